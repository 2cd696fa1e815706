// SPDX-License-Identifier: GPL-2.0

//! Counts the pins of a registration, when they begin and when they end: each once.

use crate::gpu::pin::{Lost, PagePin};
use crate::observe::stats::{self, PerClient};
use crate::pin::registration::{Inner, Registration};

impl Registration {
    /// Returns the counters of this registration's owner.
    pub(crate) fn counters(&self) -> &'static PerClient {
        stats::client(self.owner().asked.kind)
    }

    /// Counts a pin that the provider just gave. Called under the state lock.
    pub(crate) fn count_pin(&self, inner: &mut Inner, pin: &PagePin) {
        let bytes = pin.span().len();
        inner.since_ns = pin.since_ns();
        inner.counted.pins = inner.counted.pins.saturating_add(1);
        inner.counted.bytes = inner.counted.bytes.saturating_add(bytes);
        self.counters().pins.add(1);
        self.counters().pinned_bytes.add(bytes);
    }

    /// Counts the pages of a table that was just read. Called under the state lock.
    pub(crate) fn count_pages(&self, inner: &mut Inner, pages: u64) {
        inner.counted.pages = inner.counted.pages.saturating_add(pages);
        self.counters().pinned_pages.add(pages);
    }

    /// Counts the end of a pin in favour of a longer one. Called under the state lock.
    pub(crate) fn count_replaced(&self, inner: &mut Inner, bytes: u64) {
        inner.counted.pins = inner.counted.pins.saturating_sub(1);
        inner.counted.bytes = inner.counted.bytes.saturating_sub(bytes);
        self.counters().unpins.add(1);
        self.counters().unpinned_bytes.add(bytes);
    }

    /// Counts the end of all pins: once, for the first that ended them. Called under the state
    /// lock.
    pub(crate) fn count_unpin(&self, inner: &mut Inner) {
        let counted = core::mem::take(&mut inner.counted);
        if counted.pins != 0 {
            let counters = self.counters();
            counters.unpins.add(counted.pins);
            counters.unpinned_bytes.add(counted.bytes);
            counters.unpinned_pages.add(counted.pages);
        }
    }

    /// Counts pins that the provider failed to take back, and that nothing can end any more. They
    /// also count as ended.
    pub(crate) fn count_lost(&self, lost: &Lost) {
        self.counters().lost.add(lost.pins);
        self.counters().lost_bytes.add(lost.bytes);
    }

    /// Counts the free callback's mark. Called under the state lock.
    pub(crate) fn count_revocation(&self, inner: &mut Inner) {
        self.counters().revocations.add(1);
        // A put that is under way will find nothing to put: the pin ended here.
        self.count_unpin(inner);
    }

    /// Counts that this registration is no orphan any more: once, by who ended that state.
    pub(crate) fn count_adopted(&self) {
        self.counters().adopted.add(1);
    }
}
