// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Verbs functions of the caller's own.

use crate::backend::Access;
use crate::error::Error;
use crate::objects::{made, Mr, Pd, RawMr};
use crate::range::Range;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// [`Table::reg_mr`].
pub type RegMr = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, usize, u64, u32) -> *mut RawMr;
/// [`Table::reg_dmabuf_mr`].
pub type RegDmaBuf = unsafe extern "C" fn(*mut c_void, *mut c_void, u64, usize, u64, c_int, c_int) -> *mut RawMr;
/// [`Table::dereg_mr`].
pub type DeregMr = unsafe extern "C" fn(*mut c_void, *mut RawMr) -> c_int;

/// Functions that a caller supplies: of its own libibverbs, or functions that call more than verbs,
/// like mlx5dv for Data Direct. One of the first two may be missing; that way then does not work.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Table {
    /// Does what `ibv_reg_mr_iova2()` does with all arguments but the first.
    pub reg_mr: Option<RegMr>,
    /// Does what `ibv_reg_dmabuf_mr()` does with all arguments but the first.
    pub reg_dmabuf_mr: Option<RegDmaBuf>,
    /// Does what `ibv_dereg_mr()` does with the second argument.
    pub dereg_mr: Option<DeregMr>,
    /// The first argument of each function.
    pub argument: *mut c_void,
}

// SAFETY: By the contract of IbVerbs::from_table(), every thread may call the functions with this
// argument.
unsafe impl Send for Table {}
// SAFETY: As for Send.
unsafe impl Sync for Table {}

impl Default for Table {
    fn default() -> Self {
        Self { reg_mr: None, reg_dmabuf_mr: None, dereg_mr: None, argument: std::ptr::null_mut() }
    }
}

fn hole(function: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the table of verbs functions has no {function}"))
}

/// Sets this thread's errno to 0: a function of the caller's that fails and sets none is not to be taken for one that
/// failed as an earlier call did.
fn forget_errno() {
    // SAFETY: This thread's errno.
    unsafe { *libc::__errno_location() = 0 };
}

impl Table {
    /// Fails if the table has no way to register, or none to deregister.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let lacks = |what: &'static str| Err(Error::Argument(what.into()));
        if self.reg_mr.is_none() && self.reg_dmabuf_mr.is_none() {
            return lacks("the table of verbs functions has neither reg_mr nor reg_dmabuf_mr: fill in one");
        }
        if self.dereg_mr.is_none() {
            return lacks("the table of verbs functions has no dereg_mr: fill it in");
        }
        Ok(())
    }

    pub(crate) fn register(&self, pd: Pd, range: Range, access: Access) -> io::Result<Mr> {
        let call = self.reg_mr.ok_or_else(|| hole("reg_mr"))?;
        let (at, length) = (range.start() as *mut c_void, range.length() as usize);
        forget_errno();
        // SAFETY: The domain lives (Pd::new); a wrong range or flag is refused.
        made(unsafe { call(self.argument, pd.as_ptr(), at, length, range.start(), access.bits() as u32) })
    }

    /// Returns `reg_dmabuf_mr`, or an error that says that the table lacks it.
    pub(crate) fn takes_dma_buf(&self) -> io::Result<RegDmaBuf> {
        self.reg_dmabuf_mr.ok_or_else(|| hole("reg_dmabuf_mr"))
    }

    pub(crate) fn register_dma_buf(
        &self,
        pd: Pd,
        range: Range,
        offset: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Mr> {
        let call = self.takes_dma_buf()?;
        let (length, fd) = (range.length() as usize, fd.as_raw_fd());
        forget_errno();
        // SAFETY: The domain lives (Pd::new), the descriptor is borrowed; a wrong range or flag is
        // refused.
        let mr = unsafe { call(self.argument, pd.as_ptr(), offset, length, range.start(), fd, access.bits()) };
        Ok(made(mr)?.at(range.start()))
    }

    /// Deregisters a region.
    ///
    /// # Safety
    ///
    /// `mr` is a region that `ibv_dereg_mr()` takes.
    pub(crate) unsafe fn deregister(&self, mr: *mut RawMr) -> c_int {
        // SAFETY: By this function's contract. A table without this function is refused.
        self.dereg_mr.map_or(libc::ENOSYS, |call| unsafe { call(self.argument, mr) })
    }
}
