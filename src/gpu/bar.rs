// SPDX-License-Identifier: GPL-2.0

//! The BAR of a GPU in which pinned memory lies.

use crate::ffi::raw;
use crate::sg::{Extent, Run};
use kernel::error::to_result;

/// A BAR of a PCI device that the provider's driver drives.
pub(crate) struct Bar {
    raw: raw::nvpm_bar,
    around: Extent,
}

impl Bar {
    /// Finds the BAR in which every one of `runs` lies; `None` if there is no such BAR. May sleep.
    pub(crate) fn around(runs: &[Run]) -> Option<Self> {
        let around = Extent::of(runs)?;
        let mut raw = raw::nvpm_bar::default();
        // SAFETY: `raw` is a local.
        to_result(unsafe { raw::nvpm_provider_bar(around.whole.addr, &mut raw) }).ok()?;
        // An extent does not wrap.
        let last = around.whole.addr.wrapping_add(around.whole.len.wrapping_sub(1));
        (around.whole.addr >= raw.start && last <= raw.last).then_some(Self { raw, around })
    }

    /// Returns where the runs lie for which the BAR was found.
    pub(crate) fn extent(&self) -> Extent {
        self.around
    }

    /// Returns how many bytes the BAR has.
    pub(crate) fn length(&self) -> u64 {
        self.raw.last.saturating_sub(self.raw.start).saturating_add(1)
    }

    /// Returns the GPU's PCI number.
    pub(crate) fn gpu(&self) -> u64 {
        self.raw.device
    }

    /// Returns what to add to a CPU address for the bus address, wrapping.
    pub(crate) fn bus_offset(&self) -> u64 {
        self.raw.bus_offset
    }
}

/// Forgets which devices are GPUs.
///
/// # Safety
///
/// Nobody asks any more: for unloading.
pub(crate) unsafe fn forget_gpus() {
    // SAFETY: Nobody asks any more, by this function's contract.
    unsafe { raw::nvpm_forget_gpus() };
}
