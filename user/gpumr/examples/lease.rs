// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Registers GPU memory twice. The second time is a hit. Its arguments are a protection domain and
//! GPU memory, which a program gets from its verbs and CUDA crates. When run by itself, it only
//! prints whether the libraries exist.

use gpumr::cuda::Cuda;
use gpumr::ibverbs::{IbVerbs, Pd};
use gpumr::{Cache, Error, Limits, Policy, Sweeper};
use std::time::Duration;

/// Local write and remote write.
const ACCESS: i32 = 1 | 2;

/// Returns the number of registrations that are left in the cache.
pub fn example(pd: Pd, gpu_memory: u64, length: u64) -> Result<u64, Error> {
    let limits = Limits::default().with_entries(1000);
    let cache = Cache::new(Cuda::open()?, IbVerbs::open()?, Policy::automatic(), limits);
    // Freed memory stays registered for at most a second.
    let _sweeper = Sweeper::start(&cache, Duration::from_secs(1)).map_err(|e| Error::Library(e.to_string()))?;
    for _ in 0..2 {
        let lease = cache.register(pd, gpu_memory, length, ACCESS)?;
        println!("lkey {}, rkey {}, by {:?}: {}", lease.lkey(), lease.rkey(), lease.way(), cache.reason());
    }
    let left = cache.stats().entries;
    cache.forget(pd);
    Ok(left)
}

fn main() -> Result<(), Error> {
    // A bare machine gets the reason in words.
    Cuda::open().and_then(|_| IbVerbs::open()).map(|_| println!("libcuda and libibverbs are there"))
}
