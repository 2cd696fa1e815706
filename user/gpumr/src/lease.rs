// SPDX-License-Identifier: GPL-2.0
//! What `register` returns.

use crate::backend::{Gpu, Verbs};
use crate::cache::Inner;
use crate::entry::Entry;
use crate::policy::Way;
use crate::range::Range;
use crate::sync::Arc;

/// A registration, held until drop: it is not evicted, and its memory stays. Several may share one.
pub struct Lease<G: Gpu, V: Verbs> {
    /// `Some` until drop.
    entry: Option<Arc<Entry<V>>>,
    cache: Arc<Inner<G, V>>,
    range: Range,
}

impl<G: Gpu, V: Verbs> Lease<G, V> {
    pub(crate) fn new(cache: &Arc<Inner<G, V>>, entry: Arc<Entry<V>>, range: Range) -> Self {
        Self { entry: Some(entry), cache: cache.clone(), range }
    }

    pub(crate) fn entry(&self) -> &Arc<Entry<V>> {
        self.entry.as_ref().expect("until drop")
    }

    /// What was asked for.
    pub fn range(&self) -> Range {
        self.range
    }

    /// The memory region, which may cover more than was asked for.
    pub fn mr(&self) -> &V::Mr {
        self.entry().mr.as_ref().expect("until drop")
    }

    /// For requests of this machine.
    pub fn lkey(&self) -> u32 {
        self.entry().verbs.keys(self.mr()).0
    }

    /// For requests of others.
    pub fn rkey(&self) -> u32 {
        self.entry().verbs.keys(self.mr()).1
    }

    /// How it is registered.
    pub fn way(&self) -> Way {
        self.entry().way
    }

    /// Ends the lease of a region that no longer works: the module revoked it, or its NIC is gone. Nobody gets it again.
    pub fn revoked(self) {
        self.cache.detach(self.entry());
    }
}

impl<G: Gpu, V: Verbs> Drop for Lease<G, V> {
    fn drop(&mut self) {
        drop(self.entry.take());
        self.cache.trim();
    }
}
