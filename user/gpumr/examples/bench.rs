// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Measures what a hit costs on this machine's GPU, with the real libcuda, and with verbs that only
//! count, so no NIC is needed. user/bench.sh builds and runs it.

mod common;

use common::{checked, Counting, Property};
use gpumr::cuda::Cuda;
use gpumr::hooks::Hooks;
use gpumr::{Cache, Gpu, Limits, Policy, Range, Way};
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::time::Instant;

const BUFFERS: usize = 1265;
const ROUNDS: usize = 400;
const HITS_A_ROUND: usize = 1000;
const THREADS: [usize; 2] = [4, 16];
const SEGMENTS: [usize; 3] = [8, 64, 512];
/// The number of registrations that the cache has when one more is timed.
const ENTRIES: [u64; 4] = [1000, 10_000, 40_000, 100_000];
const PAGE: u64 = 4096;

/// Allocates GPU memory until the process ends.
fn allocate(count: usize, size: usize) -> Result<Vec<u64>, Box<dyn Error>> {
    // SAFETY: libcuda, with the types of cuda.h; locals for the answers.
    unsafe {
        let lib = Box::leak(Box::new(libloading::Library::new("libcuda.so.1")?));
        let init = lib.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0")?;
        checked("cuInit", init(0))?;
        let mut context: *mut c_void = std::ptr::null_mut();
        let retain =
            lib.get::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(b"cuDevicePrimaryCtxRetain\0")?;
        checked("cuDevicePrimaryCtxRetain", retain(&mut context, 0))?;
        let current = lib.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuCtxSetCurrent\0")?;
        checked("cuCtxSetCurrent", current(context))?;
        let alloc = lib.get::<unsafe extern "C" fn(*mut u64, usize) -> c_int>(b"cuMemAlloc_v2\0")?;
        let one = |_| {
            let mut at = 0;
            checked("cuMemAlloc", alloc(&mut at, size))?;
            Ok(at)
        };
        (0..count).map(one).collect()
    }
}

/// Returns the nanoseconds per buffer: the median of many rounds over all buffers. A round is long
/// enough that the clock's own cost does not matter.
fn hit(cache: &Cache<Cuda, Counting>, buffers: &[u64], size: u64) -> Result<f64, Box<dyn Error>> {
    let again = HITS_A_ROUND.div_ceil(buffers.len());
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for &at in std::iter::repeat_n(buffers, again).flatten() {
            drop(cache.register(0, at, size, 1)?);
        }
        rounds.push(start.elapsed().as_nanos() as f64 / (again * buffers.len()) as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}

/// Returns what an answer of CUDA costs, in nanoseconds: the median of many rounds.
fn answer<T>(ask: impl Fn() -> T) -> f64 {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..HITS_A_ROUND {
            std::hint::black_box(ask());
        }
        rounds.push(start.elapsed().as_nanos() as f64 / HITS_A_ROUND as f64);
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Returns the median for the slowest of `count` threads, each with a part of its own.
fn threads(count: usize, one: impl Fn(usize) -> Result<f64, Box<dyn Error>> + Sync) -> Result<f64, Box<dyn Error>> {
    let one = |n: usize| one(n).map_err(|error| error.to_string());
    let each: Vec<Result<f64, String>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..count)
            .map(|n| {
                scope.spawn({
                    let one = &one;
                    move || one(n)
                })
            })
            .collect();
        started.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let each: Vec<f64> = each.into_iter().collect::<Result<_, _>>()?;
    Ok(each.into_iter().fold(0.0, f64::max))
}

/// Maps virtual memory of `count` segments of 2 MiB until the process ends.
fn segments(count: usize) -> Result<(u64, u64), Box<dyn Error>> {
    const SEGMENT: usize = 2 << 20;
    let property = Property::of(0);
    let access: [c_int; 3] = [1, 0, 3];
    let mut at = 0u64;
    // SAFETY: libcuda, with the types of cuda.h; locals.
    unsafe {
        let lib = Box::leak(Box::new(libloading::Library::new("libcuda.so.1")?));
        let reserve =
            lib.get::<unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int>(b"cuMemAddressReserve\0")?;
        checked("cuMemAddressReserve", reserve(&mut at, count * SEGMENT, 0, 0, 0))?;
        let create =
            lib.get::<unsafe extern "C" fn(*mut u64, usize, *const Property, u64) -> c_int>(b"cuMemCreate\0")?;
        let map = lib.get::<unsafe extern "C" fn(u64, usize, usize, u64, u64) -> c_int>(b"cuMemMap\0")?;
        for n in 0..count {
            let mut handle = 0;
            checked("cuMemCreate", create(&mut handle, SEGMENT, &property, 0))?;
            checked("cuMemMap", map(at + (n * SEGMENT) as u64, SEGMENT, 0, handle, 0))?;
        }
        let allow = lib.get::<unsafe extern "C" fn(u64, usize, *const c_int, usize) -> c_int>(b"cuMemSetAccess\0")?;
        checked("cuMemSetAccess", allow(at, count * SEGMENT, access.as_ptr(), 1))?;
    }
    Ok((at, (count * SEGMENT) as u64))
}

/// Measures what a registration by dma-buf costs without a NIC and without CUDA's part when the
/// cache has `at` registrations: a new one, and one for which another must go.
fn scaling(at: u64) -> Result<(), Box<dyn Error>> {
    const MORE: u64 = 200;
    for entries in ENTRIES {
        for limit in [u64::MAX, entries] {
            let limits = Limits::default().with_entries(limit);
            let cache = Cache::new(Cuda::open()?, Counting::default(), Policy::only(Way::PeerMemory), limits);
            let register = |n: u64| cache.register(0, at + n * 2 * PAGE, PAGE, 1).map(drop);
            (0..entries).try_for_each(register)?;
            let start = Instant::now();
            (entries..entries + MORE).try_for_each(register)?;
            let each = start.elapsed().as_nanos() as f64 / MORE as f64;
            let what = if limit == u64::MAX { "one more" } else { "one more, which evicts one" };
            println!("{entries} registrations, {what}: {each:.0} ns");
        }
        let cache = Cache::new(Cuda::open()?, Counting::default(), Policy::only(Way::DmaBuf), Limits::default());
        let register = |n: u64| cache.register(0, at + n * 2 * PAGE, PAGE, 1).map(drop);
        (0..entries).try_for_each(register)?;
        let start = Instant::now();
        (entries..entries + MORE).try_for_each(register)?;
        println!(
            "{entries} registrations, one more by dma-buf: {:.0} ns",
            start.elapsed().as_nanos() as f64 / MORE as f64
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let size = 2 << 20;
    let cuda = Cuda::open()?;
    let buffers = allocate(BUFFERS, size)?;
    println!("real libcuda, verbs that count; {BUFFERS} buffers of {size} bytes; medians");
    let at = buffers[0];
    let at_once =
        cuda.buffer(at).is_some_and(|(id, range)| cuda.buffer_id(at) == Some(id) && cuda.allocation(at) == Some(range));
    let questions = if at_once { "one question a hit" } else { "two questions a hit" };
    let (number, both) = (answer(|| cuda.buffer_id(at)), answer(|| cuda.buffer(at)));
    println!("BUFFER_ID: {number:.0} ns; with bounds: {both:.0} ns; {questions}");
    let (free, all) = cuda.memory(at).ok_or("no NVML")?;
    let info = answer(|| cuda.memory(at));
    println!("free memory, asked of NVML: {info:.0} ns; {} of {} MiB free", free >> 20, all >> 20);
    for count in THREADS {
        let raw = threads(count, |n| Ok(answer(|| cuda.buffer(buffers[n]))))?;
        println!("BUFFER_ID with bounds, {count} threads, a buffer each: {raw:.0} ns");
    }
    let cache = Cache::new(cuda, Counting::default(), Policy::only(Way::PeerMemory), Limits::default());
    let start = Instant::now();
    for &at in &buffers {
        drop(cache.register(0, at, size as u64, 1)?);
    }
    println!("first time, without a NIC's cost: {:.0} ns a buffer", start.elapsed().as_nanos() as f64 / BUFFERS as f64);
    for (what, hooked) in [("identity checked", false), ("with hooks", true)] {
        let hooks = hooked.then(|| Hooks::promise(&cache));
        println!("hit, one buffer, {what}: {:.0} ns", hit(&cache, &buffers[..1], size as u64)?);
        let each = hit(&cache, &buffers, size as u64)?;
        println!("hit, {BUFFERS} buffers again, {what}: {:.3} ms, {each:.0} ns each", each * BUFFERS as f64 / 1e6);
        for count in THREADS {
            let each = threads(count, |n| hit(&cache, &buffers[n..n + 1], size as u64))?;
            println!("hit, {count} threads, a buffer each, {what}: {each:.0} ns");
        }
        drop(hooks);
    }
    let stats = cache.stats();
    if stats.misses != BUFFERS as u64 || stats.stale != 0 {
        return Err(format!("not only hits: {stats:?}").into());
    }
    for count in SEGMENTS {
        let (at, length) = segments(count)?;
        let raw = Cuda::open()?;
        let step = length / count as u64;
        if raw.allocation(at) != Some(Range::new(at, step)?) {
            return Err(format!("a segment is not told from its reservation: {:?}", raw.allocation(at)).into());
        }
        let asked = answer(|| (0..count as u64).filter_map(|n| raw.buffer_id(at + n * step)).count());
        println!(
            "hit, {count} segments, identity checked: {:.0} ns; as many BUFFER_IDs: {asked:.0} ns",
            hit(&cache, &[at], length)?
        );
    }
    scaling(allocate(1, 1 << 30)?[0])?;
    Ok(())
}
