// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests what the cache promises on this machine's GPUs, with the real libcuda and verbs that only
//! count. Prints "held" for each promise, and fails at one that does not hold. It needs CUDA 12.8.
//! It leaves out what needs a second GPU if there is only one.

#[macro_use]
mod common;

use common::{checked, Counting};
use gpumr::cuda::Cuda;
use gpumr::hooks::Hooks;
use gpumr::{Cache, Gpu, Limits, Policy, Range, Way};
use libloading::Library;
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::time::Instant;

type Res<T> = Result<T, Box<dyn Error>>;

fn context(lib: &Library, device: c_int) -> Res<*mut c_void> {
    let mut context = std::ptr::null_mut();
    cuda!(lib, cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, device => c_int))?;
    cuda!(lib, cuCtxSetCurrent(context => *mut c_void))?;
    Ok(context)
}

fn allocate(lib: &Library, size: usize) -> Res<Range> {
    let mut at = 0;
    cuda!(lib, cuMemAlloc_v2(&mut at => *mut u64, size => usize))?;
    Ok(Range::new(at, size as u64)?)
}

fn cache(way: Way) -> Res<Cache<Cuda, Counting>> {
    Ok(Cache::new(Cuda::open()?, Counting::default(), Policy::only(way), Limits::default()))
}

fn key(cache: &Cache<Cuda, Counting>, range: Range) -> Res<u32> {
    Ok(cache.register(0, range.start(), range.length(), 1)?.lkey())
}

/// Registers more than a tick of the coarse clock after what happened before.
fn later(cache: &Cache<Cuda, Counting>, range: Range) -> Res<u32> {
    std::thread::sleep(std::time::Duration::from_millis(30));
    key(cache, range)
}

fn held(what: &str, holds: bool) -> Res<()> {
    if holds {
        println!("held: {what}");
        Ok(())
    } else {
        Err(format!("NOT held: {what}").into())
    }
}

fn main() -> Res<()> {
    // SAFETY: libcuda's constructors are safe to run.
    let lib = unsafe { Library::new("libcuda.so.1")? };
    let refused = cache(Way::DmaBuf)?.register(0, 0x7000_0000_0000, 4096, 1).err().map(|error| error.errno());
    held("CUDA that nobody started is named, and stays so", refused == Some(libc::ENODEV))?;
    cuda!(lib, cuInit(0 => u32))?;
    let (mut count, mut one) = (0, 0u64);
    cuda!(lib, cuDeviceGetCount(&mut count => *mut c_int))?;
    let start = Instant::now();
    let first = context(&lib, 0)?;
    println!("a primary context takes {} ms", start.elapsed().as_millis());
    let blocks = [allocate(&lib, 2 << 20)?, allocate(&lib, 1000)?, allocate(&lib, 512)?];
    cuda!(lib, cuMemAllocAsync(&mut one => *mut u64, 2 << 20 => usize, std::ptr::null_mut() => *mut c_void))?;
    cuda!(lib, cuStreamSynchronize(std::ptr::null_mut() => *mut c_void))?;
    let pool = Range::new(one, 2 << 20)?;
    for way in [Way::DmaBuf, Way::PeerMemory] {
        let cache = cache(way)?;
        if count > 1 {
            context(&lib, 1)?;
            for range in blocks.iter().chain([&pool]) {
                held("memory of one GPU, while the other is current", key(&cache, *range)? == key(&cache, *range)?)?;
            }
            let theirs = allocate(&lib, 4096)?;
            cuda!(lib, cuCtxSetCurrent(first => *mut c_void))?;
            held("and the other way round", key(&cache, theirs)? == key(&cache, theirs)?)?;
        }
        cuda!(lib, cuCtxSetCurrent(std::ptr::null_mut() => *mut c_void))?;
        held("without a context", key(&cache, blocks[1])? == key(&cache, blocks[1])?)?;
        cuda!(lib, cuCtxSetCurrent(first => *mut c_void))?;
        let old = key(&cache, blocks[2])?;
        cuda!(lib, cuMemFree_v2(blocks[2].start() => u64))?;
        held("a neighbour is as it was", key(&cache, blocks[1])? == key(&cache, blocks[1])?)?;
        let again = allocate(&lib, 512)?;
        held("the address comes back", again == blocks[2])?;
        held("it is another buffer", key(&cache, again)? != old)?;
    }
    let cuda = Cuda::open()?;
    // At once, and after the stream has given the memory back.
    for waits in [false, true] {
        let cache = cache(Way::PeerMemory)?;
        let mut given = 0u64;
        let (old, number) = (key(&cache, pool)?, cuda.buffer_id(pool.start()));
        cuda!(lib, cuMemFreeAsync(pool.start() => u64, std::ptr::null_mut() => *mut c_void))?;
        if waits {
            cuda!(lib, cuStreamSynchronize(std::ptr::null_mut() => *mut c_void))?;
        }
        held("what a pool has back is nobody's", cuda.buffer_id(pool.start()).is_none())?;
        cuda!(lib, cuMemAllocAsync(&mut given => *mut u64, 2 << 20 => usize, std::ptr::null_mut() => *mut c_void))?;
        let is_new = given == pool.start() && cuda.buffer_id(given) != number && key(&cache, pool)? != old;
        held("what it gives out again at the same address is another buffer", is_new)?;
    }
    // A reservation of several segments consists of one piece for each.
    let spread = cuda.allocation(blocks[0].start()) == Some(blocks[0]) && cuda.allocation(pool.start()) == Some(pool);
    held("an allocation is told from its neighbours", spread)?;
    // SAFETY: NVML's constructors are safe to run.
    match unsafe { Library::new("libnvidia-ml.so.1") } {
        Ok(nvml) => {
            for early in [true, false] {
                let cache = cache(Way::DmaBuf)?;
                if early {
                    cuda!(nvml, nvmlInit_v2())?;
                }
                let old = later(&cache, blocks[0])?;
                if !early {
                    cuda!(nvml, nvmlInit_v2())?;
                }
                held("a hit beside NVML", later(&cache, blocks[0])? == old)?;
                cuda!(nvml, nvmlShutdown())?;
                held("a hit once NVML has closed its files", later(&cache, blocks[0])? == old)?;
            }
        }
        Err(error) => println!("left out: NVML: {error}"),
    }
    for hooked in [false, true] {
        let cache = cache(Way::DmaBuf)?;
        let hooks = hooked.then(|| Hooks::promise(&cache));
        let (old, lease) = (key(&cache, blocks[0])?, cache.register(0, blocks[1].start(), 100, 1)?);
        held("a hit before the checkpoint", key(&cache, blocks[0])? == old && lease.valid())?;
        let number = cuda.buffer_id(blocks[0].start());
        // SAFETY: It may be called at any time.
        let own = unsafe { libc::getpid() };
        let null: *mut c_void = std::ptr::null_mut();
        cuda!(lib, cuCheckpointProcessLock(own => c_int, null => *mut c_void))?;
        cuda!(lib, cuCheckpointProcessCheckpoint(own => c_int, null => *mut c_void))?;
        cuda!(lib, cuCheckpointProcessRestore(own => c_int, null => *mut c_void))?;
        cuda!(lib, cuCheckpointProcessUnlock(own => c_int, null => *mut c_void))?;
        held("CUDA tells nothing of it", cuda.buffer_id(blocks[0].start()) == number)?;
        held("a miss after checkpoint and restore", key(&cache, blocks[0])? != old)?;
        held("a lease over it is not valid", !lease.valid())?;
        let new = key(&cache, blocks[0])?;
        held("and then a hit again", later(&cache, blocks[0])? == new)?;
        drop(hooks);
    }
    Ok(())
}
