// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! libgpumr.so: the cache for C. `include/gpumr.h` is its documentation; `tests/` compares the two.
//!
//! # Safety
//!
//! Each pointer is what gpumr.h says, or null where it allows that.
#![allow(clippy::missing_safety_doc, reason = "above, for all")]

use gpumr::cuda::Cuda;
use gpumr::hooks::Hooks;
use gpumr::ibverbs::{IbVerbs, Pd, Table};
use gpumr::{Cache, Error, Gone, Lease, Limits, Options, Policy, Sweeper};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::ManuallyDrop;
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

/// `struct gpumr_lease`. C only has pointers to it: [`Lease::into_raw`].
pub struct GpumrLease(());

fn given(lease: Lease<Cuda, IbVerbs>) -> *mut GpumrLease {
    lease.into_raw().cast().as_ptr()
}

/// Borrows a lease.
///
/// # Safety
///
/// `lease` is a lease that is not released meanwhile.
unsafe fn of(lease: *const GpumrLease) -> ManuallyDrop<Lease<Cuda, IbVerbs>> {
    // SAFETY: By this function's contract, `given()` made it.
    unsafe { Lease::borrow_raw(NonNull::new_unchecked(lease.cast_mut()).cast()) }
}

/// Takes a lease back, or returns `None` for null.
///
/// # Safety
///
/// `lease` is null or a lease, which nobody uses after this.
unsafe fn back(lease: *mut GpumrLease) -> Option<Lease<Cuda, IbVerbs>> {
    // SAFETY: By this function's contract, `given()` made it.
    NonNull::new(lease).map(|lease| unsafe { Lease::from_raw(lease.cast()) })
}

/// `struct gpumr_limits`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GpumrLimits {
    entries: u64,
    bytes: u64,
    bar1_bytes: u64,
}

/// `struct gpumr_verbs`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GpumrVerbs {
    size: usize,
    table: Table,
}

/// `struct gpumr_gone`.
#[repr(C)]
pub struct GpumrGone {
    size: usize,
    addr: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
    mr: *const c_void,
}

type OnGone = unsafe extern "C" fn(*mut c_void, *const GpumrGone);

/// `struct gpumr_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GpumrOptions {
    size: usize,
    way: *const c_char,
    limits: GpumrLimits,
    sweep_ms: u32,
    flags: u32,
    verbs: *const GpumrVerbs,
    on_gone: Option<OnGone>,
    argument: *mut c_void,
    free_bytes: u64,
    idle_bytes: u64,
}

const SUPERSET: u32 = 1;
const PCIE: u32 = 2;

/// `struct gpumr_stats`.
#[repr(C)]
pub struct GpumrStats {
    size: usize,
    numbers: [u64; 10],
}

/// The version of the workspace, which is that of gpumr.h.
const VERSION: u32 = {
    const fn number(text: &str) -> u32 {
        let (mut at, mut number) = (0, 0);
        while at < text.len() {
            number = number * 10 + (text.as_bytes()[at] - b'0') as u32;
            at += 1;
        }
        number
    }
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | number(env!("CARGO_PKG_VERSION_PATCH"))
};

/// Reads a struct that begins with its size, as the caller knows it. What lies beyond that size is
/// 0.
///
/// # Safety
///
/// `from` is null or good for as many bytes as it says, and zeros are a value of `T`, which begins
/// with a usize.
unsafe fn sized<T>(from: *const T, name: &str) -> Result<T, Error> {
    // SAFETY: By this function's contract.
    unsafe {
        let mut whole: T = std::mem::zeroed();
        if from.is_null() {
            return Ok(whole);
        }
        let size = from.cast::<usize>().read();
        if size < size_of::<usize>() || size > 1 << 16 {
            let why = format!("struct {name} says that it has {size} bytes: set its size to sizeof(struct {name})");
            return Err(Error::Argument(why.into()));
        }
        let known = size.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut whole).cast::<u8>(), known);
        let beyond = std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known);
        if beyond.iter().any(|byte| *byte != 0) {
            let version = env!("CARGO_PKG_VERSION");
            let why = format!("struct {name} has fields that libgpumr {version} does not know: take a newer one");
            return Err(Error::Argument(why.into()));
        }
        Ok(whole)
    }
}

thread_local! {
    static WORDS: RefCell<CString> = RefCell::default();
}

#[cold]
fn failed(error: &Error) -> c_int {
    let text = CString::new(error.to_string()).unwrap_or_default();
    let _ = WORDS.try_with(|words| *words.borrow_mut() = text);
    error.errno()
}

fn status(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| 0)
}

#[cold]
fn null(what: &'static str) -> Error {
    Error::Argument(what.into())
}

/// Returns the open cache, or an error for null.
///
/// # Safety
///
/// `cache` is null, or an open cache for as long as the reference is used.
unsafe fn opened<'a>(cache: *const Gpumr) -> Result<&'a Gpumr, Error> {
    // SAFETY: By this function's contract.
    unsafe { cache.as_ref() }.ok_or_else(|| null("the cache is NULL"))
}

fn domain(pd: *mut c_void) -> Result<Pd, Error> {
    let pd = NonNull::new(pd).ok_or_else(|| null("the protection domain is NULL"))?;
    // SAFETY: gpumr.h: a live domain, told to gpumr_forget() before it goes.
    Ok(unsafe { Pd::new(pd) })
}

/// The argument of on_gone().
struct Argument(*mut c_void);

// SAFETY: gpumr.h: on_gone() is called by any thread.
unsafe impl Send for Argument {}
// SAFETY: As for Send.
unsafe impl Sync for Argument {}

impl Argument {
    fn tell(&self, call: OnGone, gone: Gone) {
        let gone = GpumrGone {
            size: size_of::<GpumrGone>(),
            addr: gone.range.start(),
            length: gone.range.length(),
            lkey: gone.lkey,
            rkey: gone.rkey,
            mr: gone.mr as *const c_void,
        };
        // SAFETY: gpumr.h: it may be called until the cache is closed; a local.
        unsafe { call(self.0, &gone) };
    }
}

unsafe fn open(options: *const GpumrOptions) -> Result<Gpumr, Error> {
    // SAFETY: gpumr.h: options or NULL.
    let options = unsafe { sized(options, "gpumr_options") }?;
    let unknown = options.flags & !(SUPERSET | PCIE);
    if unknown != 0 {
        let why = format!("flags {unknown:#x} are unknown: see GPUMR_SUPERSET and GPUMR_PCIE");
        return Err(Error::Argument(why.into()));
    }
    let way = if options.way.is_null() {
        "auto".into()
    } else {
        // SAFETY: gpumr.h: a string.
        unsafe { CStr::from_ptr(options.way) }.to_string_lossy()
    };
    let or_none = |limit: u64| if limit == 0 { u64::MAX } else { limit };
    let limits = Limits::default()
        .with_entries(or_none(options.limits.entries))
        .with_bytes(or_none(options.limits.bytes))
        .with_bar1_bytes(or_none(options.limits.bar1_bytes));
    let policy = Policy::parse(&way)?;
    let verbs = if options.verbs.is_null() {
        IbVerbs::open()?
    } else {
        // SAFETY: gpumr.h: a table, with functions as libibverbs has them.
        unsafe { IbVerbs::from_table(sized(options.verbs, "gpumr_verbs")?.table) }?
    };
    let mut more = Options::default();
    more.superset = options.flags & SUPERSET != 0;
    more.free_bytes = options.free_bytes;
    more.idle_bytes = options.idle_bytes;
    let argument = Argument(options.argument);
    more.on_gone = options.on_gone.map(|call| Box::new(move |gone| argument.tell(call, gone)) as gpumr::cache::OnGone);
    let cuda = Cuda::open()?.with_dma_buf_flags(u64::from(options.flags & PCIE != 0));
    let cache = Cache::with(cuda, verbs, policy, limits, more);
    let sweeper = match options.sweep_ms {
        0 => None,
        ms => Some(Sweeper::start(&cache, Duration::from_millis(ms.into())).map_err(Error::Thread)?),
    };
    let reason = CString::new(cache.reason()).unwrap_or_default();
    Ok(Gpumr { cache, hooks: Mutex::default(), reason, _sweeper: sweeper })
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub extern "C" fn gpumr_version() -> u32 {
    VERSION
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_open(out: *mut *mut Gpumr, options: *const GpumrOptions) -> c_int {
    // SAFETY: gpumr.h: room for a pointer, or NULL; the caller's options.
    let (out, cache) = unsafe { (out.as_mut(), open(options)) };
    let made = || {
        let out = out.ok_or_else(|| null("out, for the cache, is NULL"))?;
        *out = std::ptr::null_mut();
        *out = Box::into_raw(Box::new(cache?));
        Ok(())
    };
    status(made())
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_close(cache: *mut Gpumr) {
    if !cache.is_null() {
        // SAFETY: gpumr_open() made it, and nobody uses it any more.
        drop(unsafe { Box::from_raw(cache) });
    }
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_register(
    cache: *mut Gpumr,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    out: *mut *mut GpumrLease,
) -> c_int {
    // SAFETY: gpumr.h: room for a pointer, or NULL; an open cache, or NULL.
    let (Some(out), cache) = (unsafe { (out.as_mut(), opened(cache)) }) else {
        return failed(&null("out, for the lease, is NULL"));
    };
    *out = std::ptr::null_mut();
    let made = cache.and_then(|cache| cache.cache.register(domain(pd)?, addr as u64, length as u64, access));
    match made {
        Ok(lease) => {
            *out = given(lease);
            0
        }
        Err(error) => failed(&error),
    }
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_register_all(
    cache: *mut Gpumr,
    pds: *const *mut c_void,
    count: usize,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    out: *mut *mut GpumrLease,
) -> c_int {
    if out.is_null() {
        return failed(&null("out, for the leases, is NULL"));
    }
    // SAFETY: gpumr.h: so many places.
    unsafe { out.write_bytes(0, count) };
    if pds.is_null() || count == 0 {
        return failed(&null("there are no protection domains: pass at least one"));
    }
    // SAFETY: gpumr.h: an open cache or NULL, and so many domains and places.
    let (cache, pds, out) =
        unsafe { (opened(cache), std::slice::from_raw_parts(pds, count), std::slice::from_raw_parts_mut(out, count)) };
    let made = || {
        let pds = pds.iter().map(|pd| domain(*pd)).collect::<Result<Vec<_>, _>>()?;
        let leases = cache?.cache.register_all(&pds, addr as u64, length as u64, access)?;
        out.iter_mut().zip(leases).for_each(|(out, lease)| *out = given(lease));
        Ok(())
    };
    status(made())
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_valid(lease: *const GpumrLease) -> c_int {
    // SAFETY: gpumr.h: a lease, or NULL.
    let valid = !lease.is_null() && unsafe { of(lease) }.valid();
    valid.into()
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_shrink(cache: *mut Gpumr) -> u64 {
    // SAFETY: gpumr.h: an open cache, or NULL.
    unsafe { opened(cache) }.map_or(0, |cache| cache.cache.shrink())
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_mr(lease: *const GpumrLease) -> *mut c_void {
    if lease.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: gpumr.h: a lease.
    unsafe { of(lease) }.mr().as_ptr().cast()
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_release(lease: *mut GpumrLease) {
    // SAFETY: gpumr.h: a lease that nobody uses any more, or NULL.
    drop(unsafe { back(lease) });
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_revoked(lease: *mut GpumrLease) {
    // SAFETY: As in gpumr_release().
    if let Some(lease) = unsafe { back(lease) } {
        lease.revoked();
    }
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_forget(cache: *mut Gpumr, pd: *mut c_void) -> c_int {
    // SAFETY: gpumr.h: an open cache, or NULL.
    let cache = unsafe { opened(cache) };
    status(cache.and_then(|cache| domain(pd).map(|pd| cache.cache.forget(pd))))
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_sweep(cache: *mut Gpumr) {
    // SAFETY: gpumr.h: an open cache, or NULL.
    if let Ok(cache) = unsafe { opened(cache) } {
        cache.cache.sweep();
    }
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_hooks(cache: *mut Gpumr, on: c_int) {
    // SAFETY: gpumr.h: an open cache, or NULL.
    let Ok(cache) = (unsafe { opened(cache) }) else { return };
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

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_free(cache: *mut Gpumr, addr: *mut c_void, length: usize) -> c_int {
    // SAFETY: gpumr.h: an open cache, or NULL.
    let cache = unsafe { opened(cache) };
    status(cache.and_then(|cache| cache.cache.before_free(addr as u64, length as u64)))
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_free_all(cache: *mut Gpumr) {
    // SAFETY: gpumr.h: an open cache, or NULL.
    if let Ok(cache) = unsafe { opened(cache) } {
        cache.cache.before_free_all();
    }
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_get_stats(cache: *const Gpumr, out: *mut GpumrStats) -> c_int {
    let filled = || {
        // SAFETY: gpumr.h: an open cache, or NULL.
        let cache = &unsafe { opened(cache) }?.cache;
        if out.is_null() {
            return Err(null("the struct gpumr_stats is NULL"));
        }
        // SAFETY: gpumr.h: it begins with its size.
        let has = unsafe { out.cast::<usize>().read() };
        let size = has.min(size_of::<GpumrStats>());
        if size <= size_of::<usize>() {
            let why =
                format!("struct gpumr_stats says that it has {has} bytes: set its size to sizeof(struct gpumr_stats)");
            return Err(Error::Argument(why.into()));
        }
        let s = cache.stats();
        let numbers =
            [s.hits, s.misses, s.stale, s.freed, s.evicted, s.retried, s.lost, s.entries, s.bytes, s.bar1_bytes];
        let all = GpumrStats { size, numbers };
        // SAFETY: gpumr.h: room for what its size says.
        unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), out.cast::<u8>(), size) };
        Ok(())
    };
    status(filled())
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub unsafe extern "C" fn gpumr_reason(cache: *const Gpumr) -> *const c_char {
    // SAFETY: gpumr.h: an open cache, or NULL.
    unsafe { opened(cache) }.map_or(c"the cache is NULL".as_ptr(), |cache| cache.reason.as_ptr())
}

/// Implements the function of gpumr.h.
#[no_mangle]
pub extern "C" fn gpumr_error() -> *const c_char {
    WORDS.try_with(|words| words.borrow().as_ptr()).unwrap_or(c"the thread ends".as_ptr())
}
