// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Lets a program report frees ([`Cache::before_free`]). CUDA calls nobody back, so the program
//! must report them, or its allocator by a hook of its own. Registrations of freed memory then end
//! at once, and once all frees are promised to be reported, hits ask CUDA nothing.

use crate::backend::{Gpu, Verbs};
use crate::cache::Cache;

/// While one of these exists, hits trust that frees are reported.
#[derive(Debug)]
pub struct Hooks<G: Gpu, V: Verbs>(Cache<G, V>);

impl<G: Gpu, V: Verbs> Hooks<G, V> {
    /// Promises that every free, unmapping and destruction of a context is reported before it
    /// happens, until this is dropped. That includes one that another thread has begun by now, so a
    /// program reports from its start, and promises then. A program that leaves one out gets stale
    /// registrations.
    pub fn promise(cache: &Cache<G, V>) -> Self {
        cache.inner().trust(true);
        Self(cache.clone())
    }
}

impl<G: Gpu, V: Verbs> Drop for Hooks<G, V> {
    fn drop(&mut self) {
        self.0.inner().trust(false);
    }
}
