// SPDX-License-Identifier: GPL-2.0
//! libgpumr-preload.so: stands before libibverbs in unmodified programs (LD_PRELOAD). See
//! libgpumr-preload.so(7).
//!
//! A registration is tried as the program asked. Where that fails on GPU memory, dma-buf is tried.
//! Host memory and programs without CUDA take the first step alone. With GPUMR_CACHE=1 GPU memory
//! goes through the cache.
#![allow(clippy::missing_safety_doc, reason = "these are libibverbs' functions, with its contracts")]

use gpumr::backend::{Gpu, Kind};
use gpumr::cuda::Cuda;
use gpumr::ibverbs::{IbVerbs, Pd, RawMr};
use gpumr::identity::Identity;
use gpumr::{Cache, Error, Lease, Limits, Policy, Range, Sweeper};
use once_cell::race::OnceBox;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Freed memory stays registered so long, with the cache on.
const SWEEP: Duration = Duration::from_secs(1);
const PAGE: u64 = 4096;
/// `IBV_ACCESS_ZERO_BASED`.
const ZERO_BASED: c_int = 1 << 5;
/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const UNCHANGED: c_int = -1;

// Statics are made without a lock: a child that is forked while another thread makes one would wait
// for that thread for ever. If two threads make one at once, the second throws its own away.

fn verbs() -> Option<&'static IbVerbs> {
    static VERBS: OnceBox<Option<IbVerbs>> = OnceBox::new();
    VERBS.get_or_init(|| Box::new(IbVerbs::open().map_err(say).ok())).as_ref()
}

/// libcuda, once the program has loaded it.
fn cuda() -> Option<&'static Cuda> {
    static CUDA: OnceBox<Cuda> = OnceBox::new();
    if let Some(cuda) = CUDA.get() {
        return Some(cuda);
    }
    let cuda = Box::new(Cuda::loaded()?);
    Some(CUDA.get_or_init(|| cuda))
}

struct Cached {
    cache: Cache<Cuda, IbVerbs>,
    /// Of each region, as often as the program registered it.
    leases: Mutex<Leases>,
    _sweeper: Sweeper,
}

type Leases = HashMap<usize, Vec<Lease<Cuda, IbVerbs>>>;

impl Cached {
    /// None in a child that was forked while another thread of its parent had them.
    fn leases(&self) -> Option<MutexGuard<'_, Leases>> {
        if self.cache.forked() {
            match self.leases.try_lock() {
                Ok(leases) => Some(leases),
                Err(TryLockError::Poisoned(leases)) => Some(leases.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        } else {
            Some(self.leases.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

/// The cache, if the user wants it and CUDA is there.
fn cached() -> Option<&'static Cached> {
    static WANTED: OnceBox<bool> = OnceBox::new();
    static CACHED: OnceBox<Option<Cached>> = OnceBox::new();
    if !*WANTED.get_or_init(|| Box::new(std::env::var_os("GPUMR_CACHE").is_some_and(|value| value == "1"))) {
        return None;
    }
    cuda()?;
    let open = || -> Result<Cached, Error> {
        let way = std::env::var("GPUMR_WAY").unwrap_or_else(|_| "auto".into());
        let cache = Cache::new(Cuda::open()?, IbVerbs::open()?, Policy::parse(&way)?, Limits::default());
        let sweeper = Sweeper::start(&cache, SWEEP).map_err(|error| Error::Library(error.to_string()))?;
        Ok(Cached { cache, leases: Mutex::default(), _sweeper: sweeper })
    };
    CACHED.get_or_init(|| Box::new(open().map_err(|error| say(format!("no cache: {error}"))).ok())).as_ref()
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn fail(errno: c_int) -> *mut RawMr {
    // SAFETY: This thread's errno.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

/// GPU memory, asked only of a CUDA that the program uses.
fn on_gpu(address: u64) -> Option<&'static Cuda> {
    cuda().filter(|cuda| cuda.kind(address) == Kind::Device)
}

/// Writes a line to standard error. Takes no lock: in a child, a thread of its parent may hold it
/// for ever. If nobody reads standard error, the line is lost, and the program gets no SIGPIPE.
fn say(why: impl std::fmt::Display) {
    let line = format!("libgpumr-preload: {why}\n");
    // SAFETY: Signal sets are made of integers.
    let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
        unsafe { std::mem::zeroed() };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: Locals; this thread's mask, which is as before in the end. The SIGPIPE of a write is
    // this thread's, and is taken unless one was pending before.
    unsafe {
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        libc::sigpending(&mut pending);
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
}

/// By dma-buf what the plain call refused with `error`, which stays the answer if this fails, too.
fn by_dma_buf(pd: *mut c_void, at: u64, length: usize, iova: u64, access: c_int, error: c_int) -> *mut RawMr {
    let made = || -> Option<*mut RawMr> {
        let cuda = cuda()?;
        match cuda.kind(at) {
            Kind::Device => {}
            // Freed, perhaps; host memory that exists is refused for other reasons.
            Kind::Unknown if error == libc::EFAULT => {
                say(Range::new(at, length as u64).map_or_else(|e| e, |range| Error::Unknown { address: at, range }));
                return None;
            }
            Kind::Managed => {
                say(Error::Managed { address: at });
                return None;
            }
            Kind::Unknown | Kind::Host => return None,
        }
        let range = Range::new(at, length as u64).map_err(say).ok()?;
        let pages = range.widened(PAGE)?;
        let fd = cuda.export(pages).map_err(|why| match Identity::read(cuda, range) {
            // More than CUDA's own word.
            Err(cause) => say(cause),
            Ok(_) => say(format!("{range} by dma-buf: {why}")),
        });
        let fd = fd.ok()?;
        // SAFETY: The caller's, as for ibv_reg_mr(); it is used during this call only.
        let pd = unsafe { Pd::new(NonNull::new(pd)?) };
        let offset = at - pages.start();
        // The region keeps the memory; the descriptor is no longer needed.
        let mr = verbs()?.dma_buf(pd, range, offset, iova, fd.as_fd(), access);
        mr.map_err(|error| say(format!("{range} by dma-buf: {error}"))).ok().map(|mr| mr.as_ptr())
    };
    made().unwrap_or_else(|| fail(error))
}

/// From the cache, if that is on and this is GPU memory. None, too, if the cache has it as a part
/// of something larger: programs look at `addr` and `length` of what they get.
fn from_cache(pd: *mut c_void, at: u64, length: usize, access: c_int) -> Option<*mut RawMr> {
    let cached = cached()?;
    on_gpu(at)?;
    // SAFETY: The caller's; ibv_dealloc_pd() below tells the cache.
    let pd = unsafe { Pd::new(NonNull::new(pd)?) };
    Some(match cached.cache.register(pd, at, length as u64, access) {
        Ok(lease) => {
            let mr = lease.mr().as_ptr();
            // SAFETY: It lives as long as the lease, and nobody writes to it.
            let (addr, size) = unsafe { ((*mr).addr, (*mr).length) };
            if (addr as u64, size) != (at, length) {
                return None;
            }
            cached.leases()?.entry(mr as usize).or_default().push(lease);
            mr
        }
        Err(error) => {
            say(&error);
            fail(error.errno())
        }
    })
}

/// See ibv_reg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut RawMr {
    register(pd, addr as u64, length, addr as u64, access, |verbs| {
        // SAFETY: The caller's arguments.
        unsafe { verbs.plain(pd, addr, length, access) }
    })
}

/// See ibv_reg_mr(3); the macro ibv_reg_mr() calls this where flags are not constant or optional.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut RawMr {
    register(pd, addr as u64, length, iova, access as c_int, |verbs| {
        // SAFETY: The caller's arguments.
        unsafe { verbs.iova2(pd, addr, length, iova, access) }
    })
}

/// See ibv_reg_mr(3); the macro ibv_reg_mr_iova() calls this where flags are constant and not
/// optional.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut RawMr {
    register(pd, addr as u64, length, iova, access, |verbs| {
        // SAFETY: The caller's arguments.
        unsafe { verbs.iova(pd, addr, length, iova, access) }
    })
}

thread_local! {
    /// This thread is in libibverbs on our behalf. Its functions call each other, and where it is
    /// linked without
    /// -Bsymbolic (Debian's is), such a call comes back to us.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn register(
    pd: *mut c_void,
    at: u64,
    length: usize,
    iova: u64,
    access: c_int,
    plain: impl FnOnce(&IbVerbs) -> *mut RawMr,
) -> *mut RawMr {
    let Some(verbs) = verbs() else { return fail(libc::ENOSYS) };
    if INSIDE.replace(true) {
        return plain(verbs);
    }
    // The cache has only what is at its own address.
    let cached = (iova == at && access & ZERO_BASED == 0).then(|| from_cache(pd, at, length, access)).flatten();
    let mr = cached.unwrap_or_else(|| match plain(verbs) {
        mr if mr.is_null() => by_dma_buf(pd, at, length, iova, access, errno()),
        mr => mr,
    });
    INSIDE.set(false);
    mr
}

/// See ibv_dereg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut RawMr) -> c_int {
    if let Some(cached) = cached() {
        // A child has nothing to end: what it may mean is its parent's.
        let Some(mut leases) = cached.leases() else { return 0 };
        if let Some(held) = leases.get_mut(&(mr as usize)) {
            let lease = held.pop();
            if held.is_empty() {
                leases.remove(&(mr as usize));
            }
            drop(leases);
            drop(lease);
            return 0;
        }
    }
    match verbs() {
        // SAFETY: The caller's region.
        Some(verbs) => unsafe { verbs.dereg(mr) },
        None => libc::ENOSYS,
    }
}

/// See ibv_alloc_pd(3). What the cache holds of the domain goes first.
#[no_mangle]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut c_void) -> c_int {
    if let (Some(cached), Some(domain)) = (cached(), NonNull::new(pd)) {
        // SAFETY: The caller's; it lives until the call below.
        cached.cache.forget(unsafe { Pd::new(domain) });
    }
    match verbs() {
        // SAFETY: The caller's domain.
        Some(verbs) => unsafe { verbs.dealloc(pd) },
        None => libc::ENOSYS,
    }
}

/// See ibv_open_device(3). What the cache holds of the device goes first: domains that were not
/// deallocated go with it.
#[no_mangle]
pub unsafe extern "C" fn ibv_close_device(context: *mut c_void) -> c_int {
    if let Some(cached) = cached() {
        cached.cache.forget_where(|pd| pd.context() == context);
    }
    match verbs() {
        // SAFETY: The caller's device.
        Some(verbs) => unsafe { verbs.close(context) },
        None => libc::ENOSYS,
    }
}

/// See ibv_rereg_mr(3). A region of the cache may be another caller's, too: it stays as it is.
#[no_mangle]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut RawMr,
    flags: c_int,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    if let Some(cached) = cached() {
        if cached.leases().is_none_or(|leases| leases.contains_key(&(mr as usize))) {
            say("ibv_rereg_mr() of a region in the cache: start the program without GPUMR_CACHE");
            fail(libc::EOPNOTSUPP);
            return UNCHANGED;
        }
    }
    match verbs() {
        // SAFETY: The caller's arguments.
        Some(verbs) => unsafe { verbs.rereg(mr, flags, pd, addr, length, access) },
        None => UNCHANGED,
    }
}
