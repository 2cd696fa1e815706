// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Measures what a hit and its release cost through the functions of C, on the thread that
//! registered and on others, on this machine's GPU. Its verbs only count. user/bench.sh builds and
//! runs it.

use gpumr_c as c;
use std::error::Error;
use std::ffi::{c_int, c_uint, c_void, CStr};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

const SIZE: usize = 2 << 20;
const ROUNDS: usize = 400;
const HITS_A_ROUND: usize = 1000;
const THREADS: [usize; 4] = [1, 4, 8, 16];

/// The beginning of `struct ibv_mr`.
#[repr(C)]
struct Mr {
    head: [u64; 4],
    handle: u32,
    keys: [u32; 2],
}

unsafe extern "C" fn reg_mr(_: *mut c_void, _: *mut c_void, _: *mut c_void, _: usize, _: u64, _: c_uint) -> *mut Mr {
    static KEY: AtomicU32 = AtomicU32::new(1);
    Box::into_raw(Box::new(Mr { head: [0; 4], handle: 0, keys: [KEY.fetch_add(1, Ordering::Relaxed); 2] }))
}

unsafe extern "C" fn dereg_mr(_: *mut c_void, mr: *mut Mr) -> c_int {
    // SAFETY: reg_mr() made it.
    drop(unsafe { Box::from_raw(mr) });
    0
}

/// `struct gpumr_verbs`.
#[repr(C)]
struct Verbs {
    size: usize,
    reg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, usize, u64, c_uint) -> *mut Mr,
    reg_dmabuf_mr: Option<unsafe extern "C" fn()>,
    dereg_mr: unsafe extern "C" fn(*mut c_void, *mut Mr) -> c_int,
    argument: *mut c_void,
}

/// `struct gpumr_options`.
#[repr(C)]
struct Options {
    size: usize,
    way: *const std::ffi::c_char,
    limits: [u64; 3],
    sweep_ms: u32,
    flags: u32,
    verbs: *const Verbs,
    rest: [u64; 3],
}

fn done(what: &str, status: c_int) -> Result<(), Box<dyn Error>> {
    // SAFETY: gpumr.h: a string.
    let words = || unsafe { CStr::from_ptr(c::gpumr_error()) }.to_string_lossy().into_owned();
    if status == 0 {
        Ok(())
    } else {
        Err(format!("{what}: {status}: {}", words()).into())
    }
}

fn buffers(count: usize) -> Result<Vec<u64>, Box<dyn Error>> {
    // SAFETY: libcuda, with the types of cuda.h; locals for the answers.
    unsafe {
        let lib = Box::leak(Box::new(libloading::Library::new("libcuda.so.1")?));
        let init = lib.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0")?;
        done("cuInit", init(0))?;
        let mut context: *mut c_void = std::ptr::null_mut();
        let retain =
            lib.get::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(b"cuDevicePrimaryCtxRetain\0")?;
        done("cuDevicePrimaryCtxRetain", retain(&mut context, 0))?;
        let current = lib.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuCtxPushCurrent_v2\0")?;
        done("cuCtxPushCurrent", current(context))?;
        let alloc = lib.get::<unsafe extern "C" fn(*mut u64, usize) -> c_int>(b"cuMemAlloc_v2\0")?;
        let one = |_| {
            let mut at = 0;
            done("cuMemAlloc", alloc(&mut at, SIZE))?;
            Ok(at)
        };
        (0..count).map(one).collect()
    }
}

/// Returns the median of many rounds of hits and releases, in nanoseconds.
fn hit(cache: *mut c::Gpumr, pd: *mut c_void, at: u64) -> f64 {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..HITS_A_ROUND {
            let mut lease = MaybeUninit::uninit();
            // SAFETY: An open cache, a domain that verbs above do not look at, and room.
            unsafe {
                assert_eq!(c::gpumr_register(cache, pd, at as *mut c_void, SIZE, 1, lease.as_mut_ptr()), 0);
                std::hint::black_box(c::gpumr_mr(lease.assume_init()));
                c::gpumr_release(lease.assume_init());
            }
        }
        rounds.push(start.elapsed().as_nanos() as f64 / HITS_A_ROUND as f64);
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let all = buffers(THREADS[THREADS.len() - 1])?;
    let verbs =
        Verbs { size: size_of::<Verbs>(), reg_mr, reg_dmabuf_mr: None, dereg_mr, argument: std::ptr::null_mut() };
    let options = Options {
        size: size_of::<Options>(),
        way: c"peer-memory".as_ptr(),
        limits: [0; 3],
        sweep_ms: 0,
        flags: 0,
        verbs: &verbs,
        rest: [0; 3],
    };
    let mut cache = std::ptr::null_mut();
    // SAFETY: Room, and options as gpumr.h has them.
    done("gpumr_open", unsafe { c::gpumr_open(&mut cache, (&raw const options).cast()) })?;
    let mut domain = [0u64; 8];
    let (cache, pd) = (cache as usize, domain.as_mut_ptr() as usize);
    for hooks in [0, 1] {
        // SAFETY: An open cache, whose memory nobody frees.
        unsafe { c::gpumr_hooks(cache as *mut c::Gpumr, hooks) };
        let what = if hooks == 0 { "identity checked" } else { "with hooks" };
        println!("C, the first thread, {what}: {:.0} ns", hit(cache as *mut c::Gpumr, pd as *mut c_void, all[0]));
        for count in THREADS {
            let each: Vec<f64> = std::thread::scope(|scope| {
                let one = |at: u64| scope.spawn(move || hit(cache as *mut c::Gpumr, pd as *mut c_void, at));
                let started: Vec<_> = all[..count].iter().map(|&at| one(at)).collect();
                started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            let (fastest, slowest) =
                each.iter().fold((f64::MAX, 0.0f64), |(low, high), &ns| (low.min(ns), high.max(ns)));
            println!("C, {count} other threads, a buffer each, {what}: {fastest:.0} to {slowest:.0} ns");
        }
    }
    // SAFETY: Nobody uses it any more.
    unsafe { c::gpumr_close(cache as *mut c::Gpumr) };
    Ok(())
}
