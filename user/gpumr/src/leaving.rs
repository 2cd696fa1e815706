// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Keeps the entries whose last lease is just ending. A thread ends a lease without the cache's lock
//! and then takes the lock to put the entry back among those that may be evicted. Meanwhile nobody
//! uses the entry, and whoever evicts all that nobody uses finds it here.

use crate::sync::{lock, Arc, Mutex};

/// The entries, each once for each thread that is ending a lease of it. So there are no more than
/// threads.
pub(crate) struct Leaving<E>(Mutex<Vec<Arc<E>>>);

impl<E> Default for Leaving<E> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<E> Leaving<E> {
    /// Returns the entries at this moment.
    pub(crate) fn now(&self) -> Vec<Arc<E>> {
        lock(&self.0).clone()
    }

    /// Adds an entry, once more if it is there.
    pub(crate) fn add(&self, entry: Arc<E>) {
        lock(&self.0).push(entry);
    }

    /// Removes an entry, once.
    pub(crate) fn remove(&self, entry: &Arc<E>) {
        let mut leaving = lock(&self.0);
        if let Some(at) = leaving.iter().position(|other| Arc::ptr_eq(other, entry)) {
            leaving.swap_remove(at);
        }
    }
}
