// SPDX-License-Identifier: GPL-2.0
//! libibverbs, opened at run time: a program starts where it or its dma-buf call is missing. The
//! crates `ibverbs` 0.9.2 (ibverbs-sys 0.3.2) and `rdma-sys` 0.3.0 link it. `sideway` 0.4.3 is made
//! of rdma-mummy-sys 0.2.6: C functions of the same names, which the preload library has to define,
//! and a constructor that opens libibverbs in every process.

use crate::backend::{Access, Verbs};
use crate::error::Error;
use crate::range::Range;
use libloading::os::unix::{Library, Symbol};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Flags that only `ibv_reg_mr_iova2()` takes.
const OPTIONAL: Access = 0x3ff0_0000;

/// The beginning of `struct ibv_mr`, the same since libibverbs 1.1.
#[repr(C)]
pub struct RawMr {
    context: *mut c_void,
    pd: *mut c_void,
    /// Where the memory is.
    pub addr: *mut c_void,
    /// Its bytes.
    pub length: usize,
    handle: u32,
    /// For requests of this machine.
    pub lkey: u32,
    /// For requests of others.
    pub rkey: u32,
}

const _: () = assert!(std::mem::offset_of!(RawMr, rkey) == 40);

/// `struct ibv_pd *`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pd(NonNull<c_void>);

// SAFETY: Verbs may be called from every thread.
unsafe impl Send for Pd {}
// SAFETY: As for Send.
unsafe impl Sync for Pd {}

impl Pd {
    /// A protection domain.
    ///
    /// # Safety
    ///
    /// It is one of libibverbs', and lives until the cache was told to forget it and all its leases
    /// ended.
    pub unsafe fn new(pd: NonNull<c_void>) -> Self {
        Self(pd)
    }

    /// Its device, as `ibv_open_device()` returned it.
    pub fn context(self) -> *mut c_void {
        // SAFETY: It lives (new), and begins with that pointer since libibverbs 1.1.
        unsafe { self.0.cast::<*mut c_void>().read() }
    }
}

/// `struct ibv_mr *`, which lives until it is deregistered.
#[derive(Debug)]
pub struct Mr(NonNull<RawMr>);

// SAFETY: Verbs may be called from every thread, and nobody writes to it but `register_dma_buf()`
// before it returns.
unsafe impl Send for Mr {}
// SAFETY: As for Send.
unsafe impl Sync for Mr {}

impl Mr {
    /// For calls of libibverbs.
    pub fn as_ptr(&self) -> *mut RawMr {
        self.0.as_ptr()
    }
}

type RegMr = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> *mut RawMr;
type RegIova = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, c_int) -> *mut RawMr;
type RegIova2 = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, u32) -> *mut RawMr;
type RegDmaBuf = unsafe extern "C" fn(*mut c_void, u64, usize, u64, c_int, c_int) -> *mut RawMr;
type DeallocPd = unsafe extern "C" fn(*mut c_void) -> c_int;
type CloseDevice = unsafe extern "C" fn(*mut c_void) -> c_int;
type ReregMr = unsafe extern "C" fn(*mut RawMr, c_int, *mut c_void, *mut c_void, usize, c_int) -> c_int;
type DeregMr = unsafe extern "C" fn(*mut RawMr) -> c_int;

/// libibverbs.
pub struct IbVerbs {
    reg_mr: Symbol<RegMr>,
    /// Since rdma-core 26.
    reg_iova: Option<Symbol<RegIova>>,
    /// Since rdma-core 28.
    reg_iova2: Option<Symbol<RegIova2>>,
    /// Since rdma-core 34.
    reg_dma_buf: Option<Symbol<RegDmaBuf>>,
    dereg_mr: Symbol<DeregMr>,
    dealloc_pd: Symbol<DeallocPd>,
    close_device: Symbol<CloseDevice>,
    /// The function is as old as the others; some libraries leave it out.
    rereg_mr: Option<Symbol<ReregMr>>,
    /// Last: the functions are its.
    _lib: Library,
}

fn lacks(function: &str, since: u32) -> io::Error {
    let why = format!("libibverbs has no {function}(): it needs rdma-core {since} or later");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// The answer in C of a function that the library lacks.
fn no_function() -> *mut RawMr {
    // SAFETY: This thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    std::ptr::null_mut()
}

fn made(mr: *mut RawMr) -> io::Result<Mr> {
    NonNull::new(mr).map(Mr).ok_or_else(io::Error::last_os_error)
}

impl IbVerbs {
    /// Opens the library. Errors: it is missing.
    pub fn open() -> Result<Self, Error> {
        // SAFETY: libibverbs' constructors are safe to run.
        let lib = unsafe { Library::new("libibverbs.so.1") }.map_err(|error| {
            Error::Library(format!("libibverbs.so.1 cannot be opened: install rdma-core ({error})"))
        })?;
        let missing = |error| Error::Library(format!("libibverbs.so.1 is no libibverbs: {error}"));
        // SAFETY: The types are those of infiniband/verbs.h.
        unsafe {
            Ok(Self {
                reg_mr: lib.get(b"ibv_reg_mr\0").map_err(missing)?,
                reg_iova: lib.get(b"ibv_reg_mr_iova\0").ok(),
                reg_iova2: lib.get(b"ibv_reg_mr_iova2\0").ok(),
                reg_dma_buf: lib.get(b"ibv_reg_dmabuf_mr\0").ok(),
                dereg_mr: lib.get(b"ibv_dereg_mr\0").map_err(missing)?,
                dealloc_pd: lib.get(b"ibv_dealloc_pd\0").map_err(missing)?,
                close_device: lib.get(b"ibv_close_device\0").map_err(missing)?,
                rereg_mr: lib.get(b"ibv_rereg_mr\0").ok(),
                _lib: lib,
            })
        }
    }

    /// `ibv_reg_mr()` itself, null and errno included.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn plain(&self, pd: *mut c_void, at: *mut c_void, length: usize, access: c_int) -> *mut RawMr {
        // SAFETY: By this function's contract.
        unsafe { (self.reg_mr)(pd, at, length, access) }
    }

    /// `ibv_reg_mr_iova()` itself.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn iova(&self, pd: *mut c_void, at: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut RawMr {
        match &self.reg_iova {
            // SAFETY: By this function's contract.
            Some(call) => unsafe { call(pd, at, length, iova, access) },
            None => no_function(),
        }
    }

    /// `ibv_reg_mr_iova2()` itself.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn iova2(&self, pd: *mut c_void, at: *mut c_void, length: usize, iova: u64, access: u32) -> *mut RawMr {
        match &self.reg_iova2 {
            // SAFETY: By this function's contract.
            Some(call) => unsafe { call(pd, at, length, iova, access) },
            None => no_function(),
        }
    }

    /// `ibv_dereg_mr()` itself.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn dereg(&self, mr: *mut RawMr) -> c_int {
        // SAFETY: By this function's contract.
        unsafe { (self.dereg_mr)(mr) }
    }

    /// `ibv_dealloc_pd()` itself.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn dealloc(&self, pd: *mut c_void) -> c_int {
        // SAFETY: By this function's contract.
        unsafe { (self.dealloc_pd)(pd) }
    }

    /// `ibv_close_device()` itself.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn close(&self, context: *mut c_void) -> c_int {
        // SAFETY: By this function's contract.
        unsafe { (self.close_device)(context) }
    }

    /// `ibv_rereg_mr()` itself.
    ///
    /// # Safety
    ///
    /// As for that.
    pub unsafe fn rereg(
        &self,
        mr: *mut RawMr,
        flags: c_int,
        pd: *mut c_void,
        at: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int {
        match &self.rereg_mr {
            // SAFETY: By this function's contract.
            Some(call) => unsafe { call(mr, flags, pd, at, length, access) },
            None => {
                no_function();
                -1
            }
        }
    }

    /// `ibv_reg_dmabuf_mr()`, at the NIC's address `iova`, with the address that the program knows
    /// in it.
    pub fn dma_buf(
        &self,
        pd: Pd,
        range: Range,
        offset: u64,
        iova: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Mr> {
        let call = self.reg_dma_buf.as_ref().ok_or_else(|| lacks("ibv_reg_dmabuf_mr", 34))?;
        // SAFETY: The domain lives (Pd::new), the descriptor is borrowed; a wrong range or flag is
        // refused.
        let mr = made(unsafe { call(pd.0.as_ptr(), offset, range.length() as usize, iova, fd.as_raw_fd(), access) })?;
        // SAFETY: It is new, so nobody else has it. libibverbs leaves the address empty here.
        unsafe { (*mr.as_ptr()).addr = range.start() as *mut c_void };
        Ok(mr)
    }
}

impl Verbs for IbVerbs {
    type Pd = Pd;
    type Mr = Mr;

    fn register(&self, pd: Pd, range: Range, access: Access) -> io::Result<Mr> {
        let (at, length) = (range.start() as *mut c_void, range.length() as usize);
        if access & OPTIONAL == 0 {
            // SAFETY: The domain lives (Pd::new); a wrong range or flag is refused.
            return made(unsafe { self.plain(pd.0.as_ptr(), at, length, access) });
        }
        let call = self.reg_iova2.as_ref().ok_or_else(|| lacks("ibv_reg_mr_iova2", 28))?;
        // SAFETY: As above.
        made(unsafe { call(pd.0.as_ptr(), at, length, range.start(), access as u32) })
    }

    fn register_dma_buf(
        &self,
        pd: Pd,
        range: Range,
        offset: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Mr> {
        self.dma_buf(pd, range, offset, range.start(), fd, access)
    }

    fn deregister(&self, mr: Mr) -> io::Result<()> {
        // SAFETY: It was registered here and is given away by this call.
        match unsafe { self.dereg(mr.as_ptr()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn keys(&self, mr: &Mr) -> (u32, u32) {
        // SAFETY: It lives until it is deregistered, which takes it.
        let mr = unsafe { mr.0.as_ref() };
        (mr.lkey, mr.rkey)
    }
}
