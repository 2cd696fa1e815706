// SPDX-License-Identifier: GPL-2.0

//! GPU memory for a driver that chooses the order of its calls itself: one call pins it, one maps it, and
//! dropping it ends both (docs/own-driver.md).
//!
//! A driver that is itself called step by step, in an order of others, uses [`crate::pin::pinning`] and
//! the steps of a [`Registration`].

use crate::dma::device::Device;
use crate::ffi::shim;
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::pin::registration::Registration;
use crate::pin::state::Memory;
use crate::pin::verdict::Unclaimed;
use crate::pin::{orphan, pinning, registry, Owner};
use crate::range::{GpuRange, Span};
use crate::sg::Runs;
use kernel::prelude::*;
use kernel::sync::Arc;

/// GPU memory that is pinned until this is dropped.
///
/// Dropping it unmaps it, and gives the pin back or leaves it to a process that can (rule 8). That takes
/// the put gate and the RM API lock, so it must not happen under a stop lock ([`crate::pin`]).
pub(crate) struct Buffer(Arc<Registration>);

impl Buffer {
    /// Pins `length` bytes at `va` of the calling process, all of them or none. [`Owner::stop`] gets
    /// `ticket`. First ends what this process has left behind.
    ///
    /// Takes the put gate, the RM API lock, state locks and the registry lock: never under a stop lock.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// `EFAULT` where the process has no GPU memory there. The log has the reason of any other error, and
    /// of an `EFAULT` where nobody could find out whose memory it is.
    pub(crate) fn pin(owner: &'static Owner, va: u64, length: u64, ticket: u64) -> Result<Self> {
        orphan::reap(orphan::REAPED_BY_PIN);
        let range = GpuRange::new(va, length, shim::page_size()).ok_or(EFAULT)?;
        let refused = |reason: Reason| {
            refusals::refused(reason, &owner.asked, range.user());
            reason.errno()
        };
        let registration = pinning::pin(owner, range).map_err(|unclaimed| match unclaimed {
            Unclaimed::NotMine => EFAULT,
            Unclaimed::StepAside => refused(Reason::NotSupported),
            Unclaimed::AskFallback => refused(Reason::Unproven),
            Unclaimed::Unproven(reason) => refused(reason),
        })?;
        // From here on, an error ends the pin.
        let buffer = Self(registration);
        buffer.0.complete(va, length, ticket)?;
        Ok(buffer)
    }

    /// Returns what was pinned, as it was asked for.
    pub(crate) fn span(&self) -> Span {
        self.0.range().user()
    }

    /// Returns the highest CPU physical address of what [`Self::map`] would map; `None` once it did. Takes
    /// the state lock.
    pub(crate) fn last_address(&self) -> Option<u64> {
        let inner = self.0.inner().lock();
        let Memory::Read(pinned) = inner.state.memory() else { return None };
        pinned.runs.as_slice().iter().map(|run| run.addr.saturating_add(run.len).saturating_sub(1)).max()
    }

    /// Maps it for `device`, once. Returns the addresses at which the device reaches its bytes, in their
    /// order. No run is longer than a segment of the device may be.
    ///
    /// Takes the state lock, and for a persistent pin the RM API lock and the registry lock: never under a
    /// lock that [`Owner::stop`] takes for any pin ([`crate::pin`]). Sleeps.
    ///
    /// # Errors
    ///
    /// The log has the reason.
    pub(crate) fn map(&self, device: Device) -> Result<Runs> {
        self.0.map(device)
    }

    /// Returns whether the device may use it: it is mapped, and was not freed. Takes the state lock.
    ///
    /// The answer holds while the caller has a stop lock: who frees the memory marks it first, and then
    /// waits for that lock.
    pub(crate) fn is_mapped(&self) -> bool {
        let inner = self.0.inner().lock();
        inner.state.held().is_some() && matches!(inner.state.memory(), Memory::Mapped(_))
    }
}

impl Drop for Buffer {
    // Inline, so that a module without buffers has no code of it.
    #[inline]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Unmaps all buffers, of all devices, for a device that goes away. They stay pinned. Takes the state locks,
/// one after the other.
pub(crate) fn unmap_all() {
    let mut at = 0;
    while let Some((index, registration)) = registry::from_index(at) {
        registration.unmap();
        at = index.saturating_add(1);
        shim::cond_resched();
    }
}
