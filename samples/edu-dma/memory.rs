// SPDX-License-Identifier: GPL-2.0

//! Pins one range of GPU memory and maps it for the device. It also contains what the pin layer
//! knows about this driver.

use crate::engine::{self, Edu};
use crate::ffi::shim::{self, Kind};
use crate::observe::reason::Reason;
use crate::observe::refusals::Asked;
use crate::pin::registration::Registration;
use crate::pin::state::Memory;
use crate::pin::{orphan, pinning, Otherwise, Owner};
use crate::range::GpuRange;
use crate::sg::{self, Run};
use core::mem::MaybeUninit;
use kernel::alloc::KVVec;
use kernel::bindings;
use kernel::prelude::*;
use kernel::scatterlist::SGTable;
use kernel::sync::Arc;

static PERSISTENT: Owner = owner(Kind::Persistent);
static REVOCABLE: Owner = owner(Kind::Revocable);

const fn owner(kind: Kind) -> Owner {
    Owner { asked: Asked { name: "edu-dma", kind, words: Reason::words }, otherwise: Otherwise::Nobody, stop }
}

/// Stops the device when the GPU driver takes the memory of a pin back. Returns once the device
/// does not touch the memory any more, and never will. The pin is marked already, so no new command
/// will name it.
///
/// The RM API lock and the GPU locks are held, and every GPU of the machine waits. So this waits
/// for nothing but the device.
///
/// # Safety
///
/// None: this needs no registration.
unsafe fn stop(_ticket: u64) {
    engine::wait_for_command();
}

/// The layer's part of the pin, until this is dropped.
struct Held(Arc<Registration>);

impl Drop for Held {
    /// Unmaps the pin, and gives it back or leaves it to a process that can. Takes the put gate and
    /// the RM API lock, so none of our locks may be held.
    fn drop(&mut self) {
        self.0.release();
    }
}

/// GPU memory that the device can reach.
pub(crate) struct Pinned {
    held: Held,
    /// The DMA addresses of the pages around the range.
    runs: KVVec<Run>,
    /// The number of their bytes before the range.
    skip: u64,
    /// The number of bytes of the range.
    length: u64,
}

impl Pinned {
    /// Pins `length` bytes at `va` of the calling process, and maps them for `edu`.
    ///
    /// It sleeps. It takes the put gate, the RM API lock and the lock of `edu`'s mappings, so none
    /// of our locks may be held.
    ///
    /// # Errors
    ///
    /// `EFAULT` if that is not GPU memory, or an error whose reason is in the log. `ENODEV` once
    /// the device is gone.
    pub(crate) fn new(edu: &Edu, kind: Kind, va: u64, length: u64) -> Result<Self> {
        let owner = match kind {
            Kind::Persistent => &PERSISTENT,
            Kind::Revocable => &REVOCABLE,
        };
        // First end what this process left behind.
        orphan::reap(orphan::REAPED_BY_PIN);
        let range = GpuRange::new(va, length, shim::page_size()).ok_or(EFAULT)?;
        let held = Held(pinning::pin(owner, range).map_err(|_| EFAULT)?);
        held.0.complete(va, length, 0)?;
        let mut table = MaybeUninit::<bindings::sg_table>::zeroed();
        let mut entries = 0;
        edu.map_with(|device| {
            edu.check_reach(&held.0)?;
            // SAFETY: `table` and `entries` are locals. `table` is read below and not again, before
            // `release`. The device is bound as long as its mappings are locked.
            unsafe { held.0.map_into(table.as_mut_ptr().cast(), Some(device), &mut entries) }
        })?;
        // SAFETY: `dma_map` has filled it, and its entries stay until `release`.
        let table = unsafe { SGTable::from_raw(table.as_mut_ptr()) };
        let mut runs = KVVec::with_capacity(usize::try_from(entries)?, GFP_KERNEL)?;
        for entry in table.iter() {
            runs.push_within_capacity(Run { addr: entry.dma_address(), len: entry.dma_len() })
                .map_err(|_| EOVERFLOW)?;
            shim::cond_resched();
        }
        let range = held.0.range();
        let skip = range.user().start().wrapping_sub(range.pages().start());
        Ok(Self { held, runs, skip, length })
    }

    /// Returns the DMA addresses of `length` bytes from `at` on, or `None` if there are fewer.
    pub(crate) fn runs(&self, at: u64, length: u64) -> Option<impl Iterator<Item = Run> + '_> {
        at.checked_add(length).filter(|end| *end <= self.length)?;
        Some(sg::trim(self.runs.iter().copied(), self.skip.wrapping_add(at), length))
    }

    /// Returns whether the device may get the pin's addresses. If the engine's lock is held, that
    /// stays so until it is released: a free callback marks the pin first, and then waits for that
    /// lock.
    pub(crate) fn is_live(&self) -> bool {
        let inner = self.held.0.inner().lock();
        inner.state.held().is_some() && matches!(inner.state.memory(), Memory::Mapped(_))
    }
}
