// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Has the calls that a program makes. What they do is in `inner.rs`.

use crate::backend::{Access, Gpu, Verbs};
use crate::error::Error;
use crate::inner::Inner;
use crate::lease::Lease;
pub use crate::options::{Gone, Limits, OnGone, Options};
use crate::policy::Policy;
use crate::range::Range;
use crate::stats::Stats;
use crate::sync::Arc;

/// The cache. Clones are the same cache. It ends with the last clone, lease and sweeper.
pub struct Cache<G: Gpu, V: Verbs>(Arc<Inner<G, V>>);

impl<G: Gpu, V: Verbs> std::fmt::Debug for Cache<G, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("policy", &self.0.policy).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<G: Gpu, V: Verbs> Clone for Cache<G, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G: Gpu, V: Verbs> Cache<G, V> {
    /// Returns an empty cache.
    pub fn new(gpu: G, verbs: V, policy: Policy, limits: Limits) -> Self {
        Self::with(gpu, verbs, policy, limits, Options::default())
    }

    /// Returns an empty cache with further options.
    pub fn with(gpu: G, verbs: V, policy: Policy, limits: Limits, options: Options) -> Self {
        Self(Arc::new(Inner::new(gpu, verbs, policy, limits, options)))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<G, V>> {
        &self.0
    }

    /// Registers `length` bytes at `address` with `access`. Returns an existing registration if the
    /// memory is still the same, or a new one. Every thread may call this.
    ///
    /// Errors say in words what is wrong ([`Error`]). If memory is short, unused registrations are
    /// evicted and it is tried once more.
    #[inline]
    pub fn register(
        &self,
        pd: V::Pd,
        address: u64,
        length: u64,
        access: impl Into<Access>,
    ) -> Result<Lease<G, V>, Error> {
        let access = access.into();
        let range = Range::new(address, length)?;
        let inner = &self.0;
        inner.check_process()?;
        let entry = match inner.recent(pd, access, &range) {
            Some(entry) if inner.options.idle_bytes == 0 => entry,
            recent => inner.register(recent, pd, access, range)?,
        };
        Ok(Lease::new(entry, range))
    }

    /// Registers with several NICs. Returns one lease for each domain. They share one dma-buf. If one
    /// domain fails, there is no lease, and what was registered by then stays cached.
    pub fn register_all(
        &self,
        pds: &[V::Pd],
        address: u64,
        length: u64,
        access: impl Into<Access>,
    ) -> Result<Vec<Lease<G, V>>, Error> {
        let access = access.into();
        pds.iter().map(|pd| self.register(*pd, address, length, access)).collect()
    }

    /// Ends every registration whose memory is freed. What a lease holds ends with that. What
    /// another thread is just deregistering is gone, too, when this returns.
    pub fn sweep(&self) {
        self.0.sweep();
    }

    /// Evicts every registration that nobody uses, and returns their bytes. For a program whose
    /// allocation failed, or is about to: what is freed while it is registered stays allocated until
    /// its registration ends, and a registration takes room in BAR1. What another thread is just
    /// deregistering is gone, too, when this returns.
    pub fn shrink(&self) -> u64 {
        self.0.shrink()
    }

    /// Ends the registrations of memory that is about to be freed or unmapped, with or without a
    /// promise ([`crate::hooks`]). Until it is freed, no thread may register it: only a sweep is
    /// sure to find such a registration. Fails for an empty or wrapping range.
    pub fn before_free(&self, address: u64, length: u64) -> Result<(), Error> {
        self.0.freed(Some(Range::new(address, length)?));
        Ok(())
    }

    /// Ends all registrations, because all memory is about to be freed: a context is destroyed or
    /// reset.
    pub fn before_free_all(&self) {
        self.0.freed(None);
    }

    /// Ends every registration of a domain. Call it before `ibv_dealloc_pd()`, and when its NIC is
    /// removed. Those that no lease holds are deregistered when it returns, even if another thread
    /// ends them.
    pub fn forget(&self, pd: V::Pd) {
        self.0.forget(pd);
    }

    /// Ends every registration of each domain that `which` chooses. Looks at the domains, not at what
    /// is registered in others.
    #[doc(hidden)]
    pub fn forget_where(&self, which: impl Fn(V::Pd) -> bool) {
        self.0.forget_where(which);
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns whether this process is a child of the one that made the cache. The registrations
    /// belong to the parent.
    pub fn forked(&self) -> bool {
        self.0.check_process().is_err()
    }

    /// Returns the number of registrations that nobody uses at this moment, for the models.
    #[cfg(feature = "shuttle")]
    #[doc(hidden)]
    pub fn unused(&self) -> usize {
        self.0.unused()
    }

    /// Returns why it registers in the way that it does.
    pub fn reason(&self) -> &'static str {
        self.0.policy.reason()
    }
}
