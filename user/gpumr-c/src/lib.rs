// SPDX-License-Identifier: GPL-2.0
//! libgpumr.so: the cache for C. `include/gpumr.h` is its documentation; `tests/` compares the two.
//!
//! # Safety
//!
//! Each pointer is what gpumr.h says, or null where it allows that.
#![allow(clippy::missing_safety_doc, reason = "above, for all")]

use gpumr::cuda::Cuda;
use gpumr::hooks::Hooks;
use gpumr::ibverbs::{IbVerbs, Pd};
use gpumr::{Cache, Error, Lease, Limits, Policy, Sweeper};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// `struct gpumr`.
pub struct Gpumr {
    cache: Cache<Cuda, IbVerbs>,
    hooks: Mutex<Option<Hooks<Cuda, IbVerbs>>>,
    reason: CString,
    _sweeper: Option<Sweeper>,
}

type GpumrLease = Lease<Cuda, IbVerbs>;

/// `struct gpumr_limits`.
#[repr(C)]
pub struct GpumrLimits {
    entries: u64,
    bytes: u64,
    bar1_bytes: u64,
}

/// `struct gpumr_stats`.
#[repr(C)]
pub struct GpumrStats([u64; 10]);

thread_local! {
    static WORDS: RefCell<CString> = RefCell::default();
}

fn failed(error: &Error) -> c_int {
    let text = CString::new(error.to_string()).unwrap_or_default();
    let _ = WORDS.try_with(|words| *words.borrow_mut() = text);
    error.errno()
}

fn status(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| 0)
}

fn domain(pd: *mut c_void) -> Result<Pd, Error> {
    let pd = NonNull::new(pd).ok_or(Error::Argument("the protection domain is NULL".into()))?;
    // SAFETY: gpumr.h: a live domain, told to gpumr_forget() before it goes.
    Ok(unsafe { Pd::new(pd) })
}

unsafe fn open(way: *const c_char, limits: *const GpumrLimits, sweep_ms: u32) -> Result<Gpumr, Error> {
    let way = if way.is_null() {
        "auto".into()
    } else {
        // SAFETY: gpumr.h: a string.
        unsafe { CStr::from_ptr(way) }.to_string_lossy()
    };
    let or_none = |limit: u64| if limit == 0 { u64::MAX } else { limit };
    // SAFETY: gpumr.h: limits or NULL.
    let limits = unsafe { limits.as_ref() }.map_or_else(Limits::default, |limits| Limits {
        entries: or_none(limits.entries),
        bytes: or_none(limits.bytes),
        bar1_bytes: or_none(limits.bar1_bytes),
    });
    let cache = Cache::new(Cuda::open()?, IbVerbs::open()?, Policy::parse(&way)?, limits);
    let sweeper = match sweep_ms {
        0 => None,
        ms => Some(Sweeper::start(&cache, Duration::from_millis(ms.into())).map_err(Error::Thread)?),
    };
    let reason = CString::new(cache.reason()).unwrap_or_default();
    Ok(Gpumr { cache, hooks: Mutex::default(), reason, _sweeper: sweeper })
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_open(
    out: *mut *mut Gpumr,
    way: *const c_char,
    limits: *const GpumrLimits,
    sweep_ms: u32,
) -> c_int {
    // SAFETY: The caller's pointers, as gpumr.h says.
    match unsafe { open(way, limits, sweep_ms) } {
        Ok(cache) => {
            // SAFETY: gpumr.h: room for a pointer.
            unsafe { out.write(Box::into_raw(Box::new(cache))) };
            0
        }
        Err(error) => failed(&error),
    }
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_close(cache: *mut Gpumr) {
    if !cache.is_null() {
        // SAFETY: gpumr_open() made it, and nobody uses it any more.
        drop(unsafe { Box::from_raw(cache) });
    }
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_register(
    cache: *mut Gpumr,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    out: *mut *mut GpumrLease,
) -> c_int {
    // SAFETY: gpumr.h: an open cache.
    let cache = unsafe { &(*cache).cache };
    status(domain(pd).and_then(|pd| cache.register(pd, addr as u64, length as u64, access)).map(|lease| {
        // SAFETY: gpumr.h: room for a pointer.
        unsafe { out.write(Box::into_raw(Box::new(lease))) };
    }))
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_mr(lease: *const GpumrLease) -> *mut c_void {
    // SAFETY: gpumr.h: a lease.
    unsafe { &*lease }.mr().as_ptr().cast()
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_release(lease: *mut GpumrLease) {
    if !lease.is_null() {
        // SAFETY: gpumr_register() made it, and nobody uses it any more.
        drop(unsafe { Box::from_raw(lease) });
    }
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_revoked(lease: *mut GpumrLease) {
    if !lease.is_null() {
        // SAFETY: As in gpumr_release().
        unsafe { Box::from_raw(lease) }.revoked();
    }
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_forget(cache: *mut Gpumr, pd: *mut c_void) -> c_int {
    // SAFETY: gpumr.h: an open cache.
    let cache = unsafe { &(*cache).cache };
    status(domain(pd).map(|pd| cache.forget(pd)))
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_sweep(cache: *mut Gpumr) {
    // SAFETY: gpumr.h: an open cache.
    unsafe { &(*cache).cache }.sweep();
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_hooks(cache: *mut Gpumr, on: c_int) {
    // SAFETY: gpumr.h: an open cache.
    let cache = unsafe { &*cache };
    if cache.cache.forked() {
        // Another thread of the parent may have the lock.
        return;
    }
    let mut hooks = cache.hooks.lock().unwrap_or_else(PoisonError::into_inner);
    if on == 0 {
        *hooks = None;
    } else if hooks.is_none() {
        *hooks = Some(Hooks::promise(&cache.cache));
    }
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_free(cache: *mut Gpumr, addr: *mut c_void, length: usize) -> c_int {
    // SAFETY: gpumr.h: an open cache.
    status(unsafe { &(*cache).cache }.before_free(addr as u64, length as u64))
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_free_all(cache: *mut Gpumr) {
    // SAFETY: gpumr.h: an open cache.
    unsafe { &(*cache).cache }.before_free_all();
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_get_stats(cache: *const Gpumr, out: *mut GpumrStats) {
    // SAFETY: gpumr.h: an open cache, room for the numbers.
    unsafe {
        let s = (*cache).cache.stats();
        let numbers =
            [s.hits, s.misses, s.stale, s.freed, s.evicted, s.retried, s.lost, s.entries, s.bytes, s.bar1_bytes];
        out.write(GpumrStats(numbers));
    }
}

/// See gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_reason(cache: *const Gpumr) -> *const c_char {
    // SAFETY: gpumr.h: an open cache.
    unsafe { &(*cache).reason }.as_ptr()
}

/// See gpumr.h.
#[no_mangle]
pub extern "C" fn gpumr_error() -> *const c_char {
    WORDS.try_with(|words| words.borrow().as_ptr()).unwrap_or(c"the thread ends".as_ptr())
}
