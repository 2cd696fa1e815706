// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Keeps the entries whose last lease is just ending. A thread ends a lease without the cache's lock
//! and then takes the lock to put the entry back among those that may be evicted. Meanwhile nobody
//! uses the entry, and whoever evicts all that nobody uses finds it here.

use crate::backend::{Gpu, Verbs};
use crate::entry::Entry;
use crate::inner::Inner;
use crate::sync::{lock, Arc, Mutex};

/// The entries, each once for each thread that is ending a lease of it. So there are no more than
/// threads.
pub(crate) struct Leaving<G: Gpu, V: Verbs>(Mutex<Vec<Arc<Entry<G, V>>>>);

impl<G: Gpu, V: Verbs> Default for Leaving<G, V> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<G: Gpu, V: Verbs> Leaving<G, V> {
    /// Returns the entries at this moment.
    pub(crate) fn now(&self) -> Vec<Arc<Entry<G, V>>> {
        lock(&self.0).clone()
    }
}

/// Keeps an entry in the list of its cache until drop.
pub(crate) struct Leaves<G: Gpu, V: Verbs> {
    cache: Arc<Inner<G, V>>,
    entry: Arc<Entry<G, V>>,
}

impl<G: Gpu, V: Verbs> Leaves<G, V> {
    /// Puts the entry into the list, before its last lease ends. Returns `None` in a child of the
    /// process, in which a thread of the parent may have the lock for ever.
    pub(crate) fn new(cache: Arc<Inner<G, V>>, entry: Arc<Entry<G, V>>) -> Option<Self> {
        cache.check_process().ok()?;
        lock(&cache.leaving.0).push(entry.clone());
        Some(Self { cache, entry })
    }

    /// Continues when the lease has ended.
    pub(crate) fn released(self) {
        self.cache.released(&self.entry);
    }
}

impl<G: Gpu, V: Verbs> Drop for Leaves<G, V> {
    fn drop(&mut self) {
        let mut leaving = lock(&self.cache.leaving.0);
        if let Some(at) = leaving.iter().position(|entry| Arc::ptr_eq(entry, &self.entry)) {
            leaving.swap_remove(at);
        }
    }
}
