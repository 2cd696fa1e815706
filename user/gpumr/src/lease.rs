// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The lease that `register` returns.

use crate::backend::{Gpu, Verbs};
use crate::inner::{Entry, Held};
use crate::range::Range;
use crate::way::Way;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// A registration, held until drop: it is not evicted, and its memory stays. Several leases may
/// share one.
pub struct Lease<G: Gpu, V: Verbs> {
    entry: Held<G, V>,
    range: Range,
}

impl<G: Gpu, V: Verbs> std::fmt::Debug for Lease<G, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lkey, rkey) = self.keys();
        let way = self.way();
        f.debug_struct("Lease")
            .field("range", &self.range)
            .field("way", &way)
            .field("lkey", &lkey)
            .field("rkey", &rkey)
            .finish()
    }
}

impl<G: Gpu, V: Verbs> Lease<G, V> {
    #[inline]
    pub(crate) fn new(entry: Held<G, V>, range: Range) -> Self {
        Self { entry, range }
    }

    /// Returns the range that was asked for.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Returns the memory region, which may cover more than was asked for.
    pub fn mr(&self) -> &V::Mr {
        self.entry.region().mr.as_ref().expect("until drop")
    }

    fn keys(&self) -> (u32, u32) {
        self.entry.keys
    }

    /// Returns whether the memory is still what was registered: not freed, replaced, or restored
    /// from a checkpoint. Returns `false`, too, if nobody can say: the cache is gone, or this is a
    /// forked child.
    pub fn valid(&self) -> bool {
        self.entry.cache.upgrade().is_some_and(|cache| cache.valid(&self.entry))
    }

    /// Returns the key for requests of this machine.
    pub fn lkey(&self) -> u32 {
        self.keys().0
    }

    /// Returns the key for requests of others.
    pub fn rkey(&self) -> u32 {
        self.keys().1
    }

    /// Returns whether both are leases of one registration.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq::<Entry<G, V>>(&*self.entry, &*other.entry)
    }

    /// Returns the way in which it is registered.
    pub fn way(&self) -> Way {
        self.entry.way
    }

    /// Returns the lease as a pointer, for C. This allocates no memory, and several leases of one
    /// region are the same pointer. The lease ends with [`Lease::from_raw`].
    pub fn into_raw(self) -> NonNull<c_void> {
        self.entry.into_raw().cast()
    }

    /// Returns the lease of a pointer. Its range is that of the whole registration.
    ///
    /// # Safety
    ///
    /// [`Lease::into_raw`] returned it, of a lease of these types, and it is given back once for
    /// each time that it was returned.
    pub unsafe fn from_raw(raw: NonNull<c_void>) -> Self {
        // SAFETY: By this function's contract.
        let entry = unsafe { Held::<G, V>::from_raw(raw.cast::<Entry<G, V>>()) };
        let range = entry.range;
        Self { entry, range }
    }

    /// Borrows the lease of a pointer. It does not end.
    ///
    /// # Safety
    ///
    /// `raw` is a pointer that [`Lease::into_raw`] returned, of a lease of these types. Nobody ends that
    /// lease while what is returned lives.
    pub unsafe fn borrow_raw(raw: NonNull<c_void>) -> ManuallyDrop<Self> {
        // SAFETY: By this function's contract; it is not dropped.
        ManuallyDrop::new(unsafe { Self::from_raw(raw) })
    }

    /// Ends the lease of a region that is no longer the cache's: somebody deregistered it past the
    /// cache, or will change it. Nobody gets the region again, and the cache never deregisters it,
    /// because another region may have its address by now.
    #[doc(hidden)]
    pub fn abandon(self) {
        self.entry.abandoned.store(true, Ordering::Relaxed);
        if let Some(cache) = self.entry.cache.upgrade() {
            cache.detach(&self.entry);
        }
        // The entry keeps this lease for ever, and so does not end.
        std::mem::forget(self);
    }

    /// Returns whether somebody abandoned a lease of the same region. The caller sees to the order of
    /// the two calls.
    #[doc(hidden)]
    pub fn is_abandoned(&self) -> bool {
        self.entry.abandoned.load(Ordering::Relaxed)
    }

    /// Ends the lease of a region that no longer works: the module revoked it, or its NIC is gone.
    /// Nobody gets it again.
    pub fn revoked(self) {
        if let Some(cache) = self.entry.cache.upgrade() {
            cache.detach(&self.entry);
        }
    }
}
