// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! libgpumr-preload.so: stands before libibverbs in unmodified programs (LD_PRELOAD). See
//! libgpumr-preload.so(7).
//!
//! A registration is tried as the program asked. Where that fails on GPU memory, dma-buf is tried.
//! Host memory and programs without CUDA take the first step alone. With GPUMR_CACHE=1 a region that
//! the program deregistered is kept, and given out again where the program registers the same memory.
//! Where the cache cannot serve, all is as without it.
#![allow(clippy::missing_safety_doc, reason = "these are libibverbs' functions, with its contracts")]

use gpumr::backend::{Gpu, Kind};
use gpumr::cuda::Cuda;
use gpumr::error::{Memory, Words};
use gpumr::ibverbs::{Functions, IbVerbs, Mr, Pd, RawMr, RawMrAttr};
use gpumr::identity::Identity;
use gpumr::range::page_size;
use gpumr::{Cache, Error, Lease, Limits, Options, Policy, Range, Sweeper, Way, FREE_BYTES_AUTO};
use once_cell::race::OnceBox;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void, CStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The time for which freed memory stays registered, with the cache on.
const SWEEP: Duration = Duration::from_secs(1);
/// The number of bytes that stay registered although the program no longer has them. What the
/// program freed of them is missing to its allocator until the next sweep.
const KEPT: u64 = 4 << 30;
/// `IBV_ACCESS_ZERO_BASED`.
const ZERO_BASED: c_int = 1 << 5;
/// `IBV_REREG_MR_ERR_INPUT`: the region is unchanged.
const UNCHANGED: c_int = -1;

// Statics are made without a lock, because a child that is forked while another thread makes one
// would wait for that thread for ever. If two threads make one at once, the second throws its own
// away.

/// Returns the functions that the program would call without this library. If another copy of
/// libibverbs made the program's device, returns the functions of that copy.
///
/// # Safety
///
/// `context` is what [`Functions::of_device()`] takes.
unsafe fn verbs(context: *mut c_void) -> Option<Functions> {
    // SAFETY: By this function's contract.
    let of_device = unsafe { Functions::of_device(context) };
    match (next(), of_device) {
        // A library that stands before libibverbs, like this one, serves all copies.
        (Some(next), Some(_)) if !next.is_libibverbs => Some(next.functions),
        (_, Some(functions)) => Some(functions),
        (Some(next), None) => Some(next.functions),
        (None, None) => by_name(),
    }
}

struct Next {
    functions: Functions,
    is_libibverbs: bool,
}

fn next() -> Option<&'static Next> {
    static NEXT: OnceBox<Next> = OnceBox::new();
    if let Some(next) = NEXT.get() {
        return Some(next);
    }
    // SAFETY: The symbols are libibverbs', or of what stands before it and has its types.
    let functions = unsafe { Functions::find(|name| libc::dlsym(libc::RTLD_NEXT, name.as_ptr())) }.ok()?;
    // SAFETY: A symbol's name; a local; the object's name lives while the object does.
    let is_libibverbs = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(libc::dlsym(libc::RTLD_NEXT, c"ibv_reg_mr".as_ptr()), &mut info) != 0;
        let path = found.then(|| CStr::from_ptr(info.dli_fname).to_string_lossy());
        path.is_some_and(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libibverbs")))
    };
    Some(NEXT.get_or_init(|| Box::new(Next { functions, is_libibverbs })))
}

/// Returns libibverbs itself, for a program that found this library by name and has none.
fn by_name() -> Option<Functions> {
    static VERBS: OnceBox<Option<IbVerbs>> = OnceBox::new();
    let verbs = VERBS.get_or_init(|| Box::new(IbVerbs::open().map_err(say).ok()));
    verbs.as_ref().and_then(|verbs| verbs.functions().copied())
}

/// Returns the device of a domain or of a region, which begin with it.
///
/// # Safety
///
/// It is null or one of libibverbs', and lives.
unsafe fn device(of: *mut c_void) -> *mut c_void {
    if of.is_null() {
        return of;
    }
    // SAFETY: By this function's contract.
    unsafe { of.cast::<*mut c_void>().read() }
}

/// Returns libcuda, once the program has loaded it.
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
    /// The leases of the regions that the program has, by the region's address.
    leases: Mutex<Leases>,
    _sweeper: Sweeper,
}

/// A region that the program has. The program may deregister it past this library, by a handle of
/// its own. Then it stays here, and nobody gets it again.
struct Given {
    lease: Lease<Cuda, IbVerbs>,
    handle: u32,
    lkey: u32,
}

impl Given {
    /// Returns whether this region is the one that was given out. Another may have its address by
    /// now.
    ///
    /// # Safety
    ///
    /// `mr` is a region that lives.
    unsafe fn is(&self, mr: *const RawMr) -> bool {
        // SAFETY: By this function's contract.
        unsafe { ((*mr).handle, (*mr).lkey) == (self.handle, self.lkey) }
    }
}

type Leases = HashMap<usize, Given>;

impl Cached {
    /// Returns the leases, or `None` in a child that was forked while another thread of its parent
    /// had them.
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

/// The cache, once it has served.
static CACHED: OnceBox<Option<Cached>> = OnceBox::new();

/// Returns the cache, if it has served already.
fn serving() -> Option<&'static Cached> {
    CACHED.get()?.as_ref()
}

/// Returns whether the user wants the cache.
fn is_wanted() -> bool {
    static WANTED: OnceBox<bool> = OnceBox::new();
    *WANTED.get_or_init(|| Box::new(std::env::var_os("GPUMR_CACHE").is_some_and(|value| value == "1")))
}

/// Returns the cache that the user wants. It is only asked for GPU memory, so CUDA is started.
fn cached(verbs: &Functions) -> Option<&'static Cached> {
    let open = || -> Result<Cached, Error> {
        let way = std::env::var("GPUMR_WAY").unwrap_or_else(|_| "auto".into());
        let verbs = match next() {
            Some(next) if !next.is_libibverbs => IbVerbs::given(next.functions),
            _ => IbVerbs::of_devices_or(*verbs),
        };
        let mut options = Options::default();
        options.idle_bytes = KEPT;
        // With this, an allocator that frees to allocate again, like PyTorch's, gets what it freed.
        options.free_bytes = FREE_BYTES_AUTO;
        let cuda = Cuda::open()?;
        // An allocator would miss what is kept, if nobody could say how much is free.
        cuda.knows_memory()?;
        let cache = Cache::with(cuda, verbs, Policy::parse(&way)?, Limits::default(), options);
        let sweeper = Sweeper::start(&cache, SWEEP).map_err(Error::Thread)?;
        Ok(Cached { cache, leases: Mutex::default(), _sweeper: sweeper })
    };
    CACHED
        .get_or_init(|| Box::new(open().map_err(|error| say(format!("the cache cannot be opened: {error}"))).ok()))
        .as_ref()
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn fail(errno: c_int) -> *mut RawMr {
    // SAFETY: This thread's errno.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

/// Returns CUDA if the address is GPU memory. It asks CUDA only if the program uses it.
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

/// The registration that the program asks for.
#[derive(Clone, Copy)]
struct Wanted {
    pd: *mut c_void,
    at: u64,
    length: usize,
    iova: u64,
    access: c_int,
    /// The attributes, if they ask for more than the other functions can express.
    attr: Option<RawMrAttr>,
}

impl Wanted {
    fn by_dma_buf(&self, verbs: &Functions, range: Range, offset: u64, fd: BorrowedFd<'_>) -> Option<io::Result<Mr>> {
        // SAFETY: The caller's, as for ibv_reg_mr(); it is used during this call only.
        let pd = unsafe { Pd::new(NonNull::new(self.pd)?) };
        Some(match self.attr {
            Some(attr) => verbs.dma_buf_ex(pd, range, offset, fd, attr),
            None => verbs.dma_buf(pd, range, offset, self.iova, fd, self.access.into()),
        })
    }
}

/// Registers by dma-buf what the plain call refused with `error`, which stays the result if this
/// fails, too.
fn by_dma_buf(verbs: &Functions, wanted: &Wanted, error: c_int) -> *mut RawMr {
    let (at, length) = (wanted.at, wanted.length as u64);
    let made = || -> Option<*mut RawMr> {
        let cuda = cuda()?;
        match cuda.kind(at) {
            Kind::Device => {}
            // The memory may have been freed. Existing host memory is refused for other reasons.
            Kind::Unknown if error == libc::EFAULT => {
                say(Range::new(at, length).map_or_else(|e| e, |range| Error::Unknown { address: at, range }));
                return None;
            }
            Kind::Managed | Kind::Failed(_) => {
                say(Range::new(at, length).map_or_else(|e| e, |range| Error::not_device(cuda, at, range)));
                return None;
            }
            _ => return None,
        }
        let range = Range::new(at, length).map_err(say).ok()?;
        let pages = range.widened(page_size())?;
        let export = cuda.export(pages, range).map_err(|why| match Identity::read(cuda, range) {
            // This says more than CUDA's own word.
            Err(cause) => say(cause),
            Ok(_) => say(format!("{range} by dma-buf: {why}{}", Memory::of(cuda, at).why())),
        });
        let (fd, pages) = export.ok()?;
        // The region keeps the memory; the descriptor is no longer needed.
        let mr = wanted.by_dma_buf(verbs, range, at - pages.start(), fd.as_fd())?;
        mr.map_err(|error| say(format!("{range} by dma-buf: {}", Words(&error, Way::DmaBuf, wanted.access.into()))))
            .ok()
            .map(|mr| mr.as_ptr())
    };
    made().unwrap_or_else(|| fail(error))
}

/// Returns a region that the program had before and deregistered, or a new one that the cache will
/// keep, if the cache is on and this is GPU memory. Returns `None` if the cache cannot serve: if it
/// fails; if it has the memory as a part of something larger, because programs look at `addr` and
/// `length` of what they get; or if the program still has the region, which it may have
/// deregistered past us.
fn from_cache(verbs: &Functions, wanted: &Wanted) -> Option<*mut RawMr> {
    // The cache only has regions that are at their own address.
    if wanted.iova != wanted.at || wanted.access & ZERO_BASED != 0 || wanted.attr.is_some() {
        return None;
    }
    // This comes first: without the cache, a registration of host memory asks CUDA nothing.
    if !is_wanted() {
        return None;
    }
    on_gpu(wanted.at)?;
    let cached = cached(verbs)?;
    // SAFETY: The caller's; ibv_dealloc_pd() below tells the cache.
    let pd = unsafe { Pd::new(NonNull::new(wanted.pd)?) };
    let lease = cached.cache.register(pd, wanted.at, wanted.length as u64, wanted.access).ok()?;
    let mr = lease.mr().as_ptr();
    let mut leases = cached.leases()?;
    // Another thread may have made it the program's alone, since this one found it.
    if lease.is_abandoned() || leases.get(&(mr as usize)).is_some_and(|given| given.lease.is_same(&lease)) {
        return None;
    }
    // SAFETY: The program does not have it, so nobody deregistered it; the lease keeps it.
    let (addr, size, handle, lkey) = unsafe { ((*mr).addr, (*mr).length, (*mr).handle, (*mr).lkey) };
    if (addr as u64, size) != (wanted.at, wanted.length) {
        return None;
    }
    // One that was noted at this address before was deregistered past us.
    if let Some(old) = leases.insert(mr as usize, Given { lease, handle, lkey }) {
        old.lease.abandon();
    }
    Some(mr)
}

/// Notes a region that libibverbs has just made. If the cache has one at that address, the program
/// deregistered that one past us.
fn made(mr: *mut RawMr) -> *mut RawMr {
    if let Some(mut leases) = serving().and_then(Cached::leases) {
        if let Some(old) = leases.remove(&(mr as usize)) {
            old.lease.abandon();
        }
    }
    mr
}

/// Takes the lease of a region if it is one of the cache's. Returns `Err` in a child that cannot
/// know.
///
/// # Safety
///
/// `mr` is a region that lives, or null.
unsafe fn take(mr: *mut RawMr) -> Result<Option<Given>, ()> {
    let Some(cached) = serving() else { return Ok(None) };
    // SAFETY: By this function's contract: what has a lease is not null.
    let is = |given: &Given| unsafe { given.is(mr) };
    let mut leases = cached.leases().ok_or(())?;
    match leases.remove(&(mr as usize)) {
        Some(given) if !is(&given) => {
            given.lease.abandon();
            Ok(None)
        }
        given => Ok(given),
    }
}

/// Makes a region of the cache the program's alone: it is as if libibverbs had made it for the
/// program. Returns `false` in a child that cannot know.
///
/// # Safety
///
/// `mr` is a region that lives, or null.
unsafe fn give_away(mr: *mut RawMr) -> bool {
    let Some(cached) = serving() else { return true };
    let Some(mut leases) = cached.leases() else { return false };
    if let Some(given) = leases.remove(&(mr as usize)) {
        given.lease.abandon();
    }
    true
}

/// Implements ibv_reg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut c_void, addr: *mut c_void, length: usize, access: c_int) -> *mut RawMr {
    let wanted = Wanted { pd, at: addr as u64, length, iova: addr as u64, access, attr: None };
    // SAFETY: The caller's arguments.
    unsafe { register(wanted, |verbs| verbs.plain(pd, addr, length, access)) }
}

/// Implements ibv_reg_mr(3): the macro ibv_reg_mr() calls this where flags are not constant or
/// optional.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut RawMr {
    let wanted = Wanted { pd, at: addr as u64, length, iova, access: access as c_int, attr: None };
    // SAFETY: The caller's arguments.
    unsafe { register(wanted, |verbs| verbs.iova2(pd, addr, length, iova, access)) }
}

/// Implements ibv_reg_mr(3): the macro ibv_reg_mr_iova() calls this where flags are constant and
/// not optional.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut RawMr {
    let wanted = Wanted { pd, at: addr as u64, length, iova, access, attr: None };
    // SAFETY: The caller's arguments.
    unsafe { register(wanted, |verbs| verbs.iova(pd, addr, length, iova, access)) }
}

/// Implements ibv_reg_mr_ex(3). A call that names a dma-buf already is passed on unchanged.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut c_void, attr: *mut RawMrAttr) -> *mut RawMr {
    // SAFETY: The caller's: one that lives, or null, which libibverbs refuses.
    let asked = unsafe { attr.as_ref() }.copied();
    // Fields that only a newer libibverbs knows lie beyond our struct.
    let known = RawMrAttr::ADDR | RawMrAttr::IOVA | RawMrAttr::FD | RawMrAttr::FD_OFFSET | RawMrAttr::DMAH;
    let asked = asked.filter(|asked| asked.comp_mask & !known == 0);
    let asked = asked.filter(|asked| asked.comp_mask & (RawMrAttr::ADDR | RawMrAttr::FD) == RawMrAttr::ADDR);
    let Some(asked) = asked else {
        // SAFETY: The caller's arguments.
        return unsafe { verbs(device(pd)) }.map_or_else(|| fail(libc::ENOSYS), |verbs| unsafe { verbs.ex(pd, attr) });
    };
    let at = asked.addr as u64;
    let iova = if asked.comp_mask & RawMrAttr::IOVA != 0 { asked.iova } else { at };
    // If there are no hints, the cache may serve this, and any function that takes a dma-buf.
    let plain = asked.comp_mask & !(RawMrAttr::ADDR | RawMrAttr::IOVA) == 0;
    let wanted = Wanted { pd, at, length: asked.length, iova, access: asked.access, attr: (!plain).then_some(asked) };
    // SAFETY: The caller's arguments.
    unsafe { register(wanted, |verbs| verbs.ex(pd, attr)) }
}

/// Implements ibv_reg_dmabuf_mr(3). The program has a dma-buf of its own, so the call is passed on
/// unchanged.
#[no_mangle]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut c_void,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut RawMr {
    // SAFETY: The caller's domain.
    let Some(verbs) = (unsafe { verbs(device(pd)) }) else { return fail(libc::ENOSYS) };
    // SAFETY: The caller's arguments.
    made(unsafe { verbs.own_dma_buf(pd, offset, length, iova, fd, access) })
}

thread_local! {
    /// Whether this thread is in libibverbs on our behalf. libibverbs' functions call each other,
    /// and if it is linked without -Bsymbolic (as Debian's is), such a call comes back to us.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Registers memory through the cache, through libibverbs (`plain`), or by dma-buf if both fail.
///
/// # Safety
///
/// The domain is the caller's, as for ibv_reg_mr().
unsafe fn register(wanted: Wanted, plain: impl FnOnce(&Functions) -> *mut RawMr) -> *mut RawMr {
    // SAFETY: By this function's contract.
    let Some(verbs) = (unsafe { verbs(device(wanted.pd)) }) else { return fail(libc::ENOSYS) };
    if INSIDE.replace(true) {
        return plain(&verbs);
    }
    let mr = from_cache(&verbs, &wanted).unwrap_or_else(|| match plain(&verbs) {
        mr if mr.is_null() => match by_dma_buf(&verbs, &wanted, errno()) {
            mr if mr.is_null() => mr,
            mr => made(mr),
        },
        mr => made(mr),
    });
    INSIDE.set(false);
    mr
}

/// Implements ibv_dereg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut RawMr) -> c_int {
    // SAFETY: The caller's region.
    match unsafe { take(mr) } {
        // The lease ends here, and the cache keeps the region. In a child there is nothing to end:
        // what it may mean belongs to its parent.
        Ok(Some(_)) | Err(()) => 0,
        Ok(None) => {
            // SAFETY: The caller's region.
            unsafe { verbs(device(mr.cast())) }.map_or(libc::ENOSYS, |verbs| unsafe { verbs.dereg(mr) })
        }
    }
}

/// Implements ibv_dealloc_pd(), which ibv_alloc_pd(3) describes. The cache first releases what it
/// holds of the domain.
#[no_mangle]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut c_void) -> c_int {
    if let (Some(cached), Some(domain)) = (serving(), NonNull::new(pd)) {
        // SAFETY: The caller's; it lives until the call below.
        cached.cache.forget(unsafe { Pd::new(domain) });
    }
    // SAFETY: The caller's domain.
    unsafe { verbs(device(pd)) }.map_or(libc::ENOSYS, |verbs| unsafe { verbs.dealloc(pd) })
}

/// Implements ibv_close_device(), which ibv_open_device(3) describes. The cache first releases what
/// it holds of the device, because domains that were not deallocated go with it.
#[no_mangle]
pub unsafe extern "C" fn ibv_close_device(context: *mut c_void) -> c_int {
    if let Some(cached) = serving() {
        cached.cache.forget_where(|pd| pd.context() == context);
    }
    // SAFETY: The caller's device.
    unsafe { verbs(context) }.map_or(libc::ENOSYS, |verbs| unsafe { verbs.close(context) })
}

/// Implements ibv_rereg_mr(3). The cache never gives a region out that the program has changed.
#[no_mangle]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut RawMr,
    flags: c_int,
    pd: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: The caller's region.
    if !unsafe { give_away(mr) } {
        say("ibv_rereg_mr() fails in a child of the process that registered the region");
        fail(libc::EOPNOTSUPP);
        return UNCHANGED;
    }
    // SAFETY: The caller's arguments.
    let verbs = unsafe { verbs(device(mr.cast())) };
    // SAFETY: The caller's arguments.
    verbs.map_or(UNCHANGED, |verbs| unsafe { verbs.rereg(mr, flags, pd, addr, length, access) })
}
