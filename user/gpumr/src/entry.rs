// SPDX-License-Identifier: GPL-2.0
//! One registration. It ends with its last reference: the cache has one, each lease has one.

use crate::backend::{Access, Verbs};
use crate::fork;
use crate::identity::Identity;
use crate::policy::Way;
use crate::range::Range;
use crate::stats::Counters;
use crate::sync::{Arc, AtomicU64};
use std::os::fd::OwnedFd;

/// Pages of the GPU in BAR1.
const GPU_PAGE: u64 = 64 << 10;

/// A dma-buf, shared by the registrations of all NICs. Open, it keeps the memory.
pub(crate) struct Export {
    pub(crate) range: Range,
    pub(crate) fd: OwnedFd,
}

/// # Invariants
///
/// `mr` is `Some` until drop.
pub(crate) struct Entry<V: Verbs> {
    pub(crate) verbs: Arc<V>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pd: V::Pd,
    pub(crate) access: Access,
    pub(crate) range: Range,
    pub(crate) identity: Identity,
    pub(crate) way: Way,
    pub(crate) export: Option<Arc<Export>>,
    pub(crate) generation: u64,
    /// The cache's clock when it was last asked for.
    pub(crate) used: AtomicU64,
    pub(crate) mr: Option<V::Mr>,
}

impl<V: Verbs> Entry<V> {
    pub(crate) fn bar1_bytes(&self) -> u64 {
        self.range.widened(GPU_PAGE).map_or(self.range.length(), |pages| pages.length())
    }
}

impl<V: Verbs> Drop for Entry<V> {
    fn drop(&mut self) {
        let Some(mr) = self.mr.take() else { return };
        if self.generation != fork::generation() {
            // It is the parent's.
            std::mem::forget(mr);
        } else if self.verbs.deregister(mr).is_err() {
            self.counters.lost.add(1);
        }
    }
}
