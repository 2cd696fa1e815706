// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The objects of libibverbs that registrations consist of: domains and regions.

use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::io;
use std::ptr::NonNull;

/// The beginning of `struct ibv_mr`, which is the same since libibverbs 1.1.
#[repr(C)]
#[derive(Debug)]
#[non_exhaustive]
pub struct RawMr {
    /// The region's device.
    pub context: *mut c_void,
    pd: *mut c_void,
    /// The address of the memory.
    pub addr: *mut c_void,
    /// The number of bytes.
    pub length: usize,
    /// The kernel's number for the region.
    pub handle: u32,
    /// The key for requests of this machine.
    pub lkey: u32,
    /// The key for requests of others.
    pub rkey: u32,
}

const _: () = assert!(std::mem::offset_of!(RawMr, rkey) == 40);

/// `struct ibv_pd *`, with its device, which is noted because the program may give the domain back
/// without a word. A domain at the same address of another device is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pd {
    pd: NonNull<c_void>,
    context: *mut c_void,
}

// The address alone makes a hash that is good enough for hits, and quicker.
impl Hash for Pd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pd.hash(state);
    }
}

// SAFETY: Verbs may be called from every thread.
unsafe impl Send for Pd {}
// SAFETY: As for Send.
unsafe impl Sync for Pd {}

impl Pd {
    /// Returns a protection domain.
    ///
    /// # Safety
    ///
    /// It is one of libibverbs', and lives until the cache was told to forget it and all its leases
    /// ended.
    #[inline]
    pub unsafe fn new(pd: NonNull<c_void>) -> Self {
        // SAFETY: By this function's contract it lives. It begins with that pointer since libibverbs
        // 1.1.
        let context = unsafe { pd.cast::<*mut c_void>().read() };
        Self { pd, context }
    }

    pub(crate) fn as_ptr(self) -> *mut c_void {
        self.pd.as_ptr()
    }

    /// Returns its device, as `ibv_open_device()` returned it.
    pub fn context(self) -> *mut c_void {
        self.context
    }
}

/// `struct ibv_mr *`, which lives until it is deregistered.
#[derive(Debug)]
pub struct Mr(pub(crate) NonNull<RawMr>);

// SAFETY: Verbs may be called from every thread, and nobody writes to it but `register_dma_buf()`
// before it returns.
unsafe impl Send for Mr {}
// SAFETY: As for Send.
unsafe impl Sync for Mr {}

impl Mr {
    /// Returns the pointer for calls of libibverbs.
    pub fn as_ptr(&self) -> *mut RawMr {
        self.0.as_ptr()
    }

    /// Enters the address that the program knows, which libibverbs leaves empty for a dma-buf.
    pub(crate) fn at(self, address: u64) -> Self {
        // SAFETY: It is new, so nobody else has it.
        unsafe { (*self.as_ptr()).addr = address as *mut c_void };
        self
    }
}

/// Returns the region that a function of libibverbs, or of the caller's table, made, or this thread's errno. A function
/// that set none has failed all the same.
pub(crate) fn made(mr: *mut RawMr) -> io::Result<Mr> {
    NonNull::new(mr).map(Mr).ok_or_else(|| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::Error::other("no region came back, and no errno was set"),
        error => error,
    })
}
