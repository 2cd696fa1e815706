// SPDX-License-Identifier: GPL-2.0
//! Frees that the program reports. CUDA calls nobody back, so whoever frees must say so: the program,
//! or its allocator by a hook of its own. Then hits ask CUDA nothing, and freed memory is let go at once.

use crate::backend::{Gpu, Verbs};
use crate::cache::Cache;
use crate::error::Error;
use crate::range::Range;

/// Reports frees to a cache. While one exists hits trust it.
pub struct Hooks<G: Gpu, V: Verbs>(Cache<G, V>);

impl<G: Gpu, V: Verbs> Hooks<G, V> {
    /// From now on every free, unmapping and destruction of a context is reported *before* it happens. Whoever
    /// leaves one out gets stale registrations.
    pub fn promise(cache: &Cache<G, V>) -> Self {
        cache.inner().trust(true);
        Self(cache.clone())
    }

    /// This memory is about to be freed or unmapped. Errors: an empty or wrapping range.
    pub fn free(&self, address: u64, length: u64) -> Result<(), Error> {
        self.0.inner().freed(Some(Range::new(address, length)?));
        Ok(())
    }

    /// All memory is about to be freed: a context is destroyed or reset.
    pub fn free_all(&self) {
        self.0.inner().freed(None);
    }
}

impl<G: Gpu, V: Verbs> Drop for Hooks<G, V> {
    fn drop(&mut self) {
        self.0.inner().trust(false);
    }
}
