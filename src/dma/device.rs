// SPDX-License-Identifier: GPL-2.0

//! The device that does the DMA, and what it says of itself.

use crate::ffi::raw;
use core::ptr::NonNull;

/// The device that does the DMA.
///
/// # Invariants
///
/// Not NULL, and valid for as long as anything is mapped for it.
#[derive(Clone, Copy)]
pub(crate) struct Device(NonNull<raw::device>);

// SAFETY: `struct device` may be used from any thread.
unsafe impl Send for Device {}

impl Device {
    /// Wraps the device that `raw` points to. Returns `None` for NULL.
    ///
    /// # Safety
    ///
    /// `raw` is NULL, or stays valid until the last mapping for it is undone.
    pub(crate) unsafe fn new(raw: *mut raw::device) -> Option<Self> {
        // INVARIANT: By this function's contract.
        NonNull::new(raw).map(Self)
    }

    /// Returns the pointer that the C side takes.
    pub(crate) fn as_ptr(self) -> *mut raw::device {
        self.0.as_ptr()
    }

    /// Returns whether the device is a PCI function.
    pub(crate) fn is_pci(self) -> bool {
        // SAFETY: Valid by the invariant.
        unsafe { raw::nvpm_device_is_pci(self.0.as_ptr()) != 0 }
    }

    /// Returns PCI domain, bus and function in one number, or 0 for a device that is not PCI.
    pub(crate) fn number(self) -> u64 {
        // SAFETY: Valid by the invariant.
        unsafe { raw::nvpm_device_number(self.0.as_ptr()) }
    }

    /// Returns the longest segment, in bytes, that the device takes.
    pub(crate) fn segment_limit(self) -> u64 {
        // SAFETY: Valid by the invariant.
        unsafe { raw::nvpm_device_segment_limit(self.0.as_ptr()) }
    }
}
