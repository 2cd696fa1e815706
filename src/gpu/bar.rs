// SPDX-License-Identifier: GPL-2.0

//! The BAR of a GPU in which pinned memory lies.

use crate::ffi::raw;
use crate::ffi::shim::Resched;
use crate::sg::Run;
use kernel::error::to_result;

/// A BAR of a PCI device that the provider's driver drives.
pub(crate) struct Bar(raw::nvpm_bar);

impl Bar {
    /// The BAR in which every one of `runs` lies; `None` if there is no such BAR. May sleep.
    pub(crate) fn around(runs: &[Run]) -> Option<Self> {
        let mut bar = raw::nvpm_bar::default();
        // SAFETY: `bar` is a local.
        to_result(unsafe { raw::nvpm_provider_bar(runs.first()?.addr, &mut bar) }).ok()?;
        let bar = Self(bar);
        let mut resched = Resched::default();
        let all = runs.iter().all(|run| {
            resched.step();
            bar.contains(run)
        });
        all.then_some(bar)
    }

    fn contains(&self, run: &Run) -> bool {
        let last = run.len.checked_sub(1).and_then(|len| run.addr.checked_add(len));
        run.addr >= self.0.start && last.is_some_and(|last| last <= self.0.last)
    }

    /// Bytes that it has.
    pub(crate) fn length(&self) -> u64 {
        self.0.last.saturating_sub(self.0.start).saturating_add(1)
    }

    /// PCI number of the GPU.
    pub(crate) fn gpu(&self) -> u64 {
        self.0.device
    }

    /// What to add to a CPU address for the bus address, wrapping.
    pub(crate) fn bus_offset(&self) -> u64 {
        self.0.bus_offset
    }
}

/// Forgets which devices are GPUs. For unloading: nobody asks any more.
pub(crate) fn forget_gpus() {
    // SAFETY: Nobody asks any more, by this function's contract.
    unsafe { raw::nvpm_forget_gpus() };
}
