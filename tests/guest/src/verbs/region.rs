// SPDX-License-Identifier: GPL-2.0
//! Registered memory, and the access that it grants.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use verbs as sys;

use super::device::{check, Pd};

pub const LOCAL_WRITE: i32 = sys::ibv_access_flags_IBV_ACCESS_LOCAL_WRITE as i32;
pub const REMOTE_WRITE: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_WRITE as i32;
pub const REMOTE_READ: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_READ as i32;
/// The access with which most tests register.
pub const FULL_ACCESS: i32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
pub const MW_BIND: i32 = sys::ibv_access_flags_IBV_ACCESS_MW_BIND as i32;
pub const REMOTE_ATOMIC: i32 = sys::ibv_access_flags_IBV_ACCESS_REMOTE_ATOMIC as i32;
/// The addresses of the region's keys begin at 0.
pub const ZERO_BASED: i32 = sys::ibv_access_flags_IBV_ACCESS_ZERO_BASED as i32;
/// The NIC faults pages in, and nothing is pinned.
pub const ON_DEMAND: i32 = sys::ibv_access_flags_IBV_ACCESS_ON_DEMAND as i32;

/// A registered range. `addr` may be a GPU address: it is never dereferenced here.
pub struct Mr {
    pub(super) mr: Option<NonNull<sys::ibv_mr>>,
    pub(super) addr: u64,
    pub(super) pd: Arc<Pd>,
}

impl Mr {
    /// Registers with the plain call of every application. The errno is the one that the user would
    /// see.
    pub fn reg(pd: &Arc<Pd>, addr: u64, len: usize, access: i32) -> io::Result<Self> {
        // SAFETY: the library hands address and length to the kernel and touches neither.
        let mr = unsafe { sys::ibv_reg_mr(pd.pd.as_ptr(), addr as *mut c_void, len, access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr, pd: Arc::clone(pd) })
    }

    /// Registers under another address: remote and local requests name `iova`, not `addr`.
    pub fn reg_iova(pd: &Arc<Pd>, addr: u64, len: usize, iova: u64, access: i32) -> io::Result<Self> {
        // SAFETY: as in reg().
        let mr = unsafe { sys::ibv_reg_mr_iova(pd.pd.as_ptr(), addr as *mut c_void, len, iova, access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr: iova, pd: Arc::clone(pd) })
    }

    /// Registers `len` bytes of a dma-buf, from `offset` on.
    pub fn reg_dma_buf(
        pd: &Arc<Pd>,
        fd: BorrowedFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: i32,
    ) -> io::Result<Self> {
        // SAFETY: the library hands all of it to the kernel.
        let mr = unsafe { sys::ibv_reg_dmabuf_mr(pd.pd.as_ptr(), offset, len, iova, fd.as_raw_fd(), access) };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { mr: Some(mr), addr: iova, pd: Arc::clone(pd) })
    }

    /// Asks the NIC to fault in `len` bytes from `addr` on, as `ibv_advise_mr()` does for a region
    /// on demand.
    pub fn prefetch(&self, addr: u64, len: u32) -> io::Result<()> {
        let mut sge = sys::ibv_sge { addr, length: len, lkey: self.lkey() };
        let advice = sys::ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        let flush = sys::ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
        // SAFETY: the protection domain is live, and the call copies the one range that it is
        // given.
        check(unsafe { sys::ibv_advise_mr(self.pd.pd.as_ptr(), advice, flush, &mut sge, 1) })
    }

    pub(super) fn raw(&self) -> &sys::ibv_mr {
        // SAFETY: Some until dereg() consumes self; the struct is the library's and stays put.
        unsafe { self.mr.expect("deregistered only by value").as_ref() }
    }

    pub fn lkey(&self) -> u32 {
        self.raw().lkey
    }

    pub fn rkey(&self) -> u32 {
        self.raw().rkey
    }

    /// Returns the address of the first byte in requests.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    pub fn dereg(self) -> io::Result<()> {
        self.try_dereg().map_err(|(mr, e)| {
            // Dropping it would deregister a second time, but the test asked for one time.
            std::mem::forget(mr);
            e
        })
    }

    /// Deregisters. If the kernel refuses, returns the MR, which is as it was.
    pub fn try_dereg(mut self) -> Result<(), (Self, io::Error)> {
        let Some(mr) = self.mr.take() else { return Ok(()) };
        // SAFETY: registered by us, and taken out unless it fails: no second call of one that
        // succeeded.
        check(unsafe { sys::ibv_dereg_mr(mr.as_ptr()) }).map_err(|e| {
            self.mr = Some(mr);
            (self, e)
        })
    }
}

// SAFETY: as for Device.
unsafe impl Send for Mr {}
// SAFETY: as for Device; through a shared reference only plain fields are read.
unsafe impl Sync for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        if let Some(mr) = self.mr.take() {
            // SAFETY: registered by us and taken out.
            unsafe { sys::ibv_dereg_mr(mr.as_ptr()) };
        }
    }
}
