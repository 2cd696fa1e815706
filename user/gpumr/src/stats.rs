// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Counters.

use crate::sync::{AtomicU64, Ordering};

/// The counters of a cache, and the present size of what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that found a registration.
    pub hits: u64,
    /// Calls that registered.
    pub misses: u64,
    /// Entries whose memory had gone when a hit or a sweep asked.
    pub stale: u64,
    /// Entries that a free ended.
    pub freed: u64,
    /// Entries that made room.
    pub evicted: u64,
    /// Registrations that succeeded after making room.
    pub retried: u64,
    /// Deregistrations that failed, like those of a NIC that is gone.
    pub lost: u64,
    /// The present number of entries, without those that only leases hold.
    pub entries: u64,
    /// The bytes of these entries.
    pub bytes: u64,
    /// Their bytes of BAR1, in pages of 64 KiB.
    pub bar1_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) stale: Counter,
    pub(crate) freed: Counter,
    pub(crate) evicted: Counter,
    pub(crate) retried: Counter,
    pub(crate) lost: Counter,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
