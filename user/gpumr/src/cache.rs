// SPDX-License-Identifier: GPL-2.0
//! Look-up, registration, eviction. One lock, which is never held over a call of CUDA or verbs.

use crate::backend::{Access, Gpu, Verbs};
use crate::entry::{Entry, Export};
use crate::error::{Error, Refusal};
use crate::fork;
use crate::identity::Identity;
use crate::lease::Lease;
use crate::policy::{Policy, Way};
use crate::range::Range;
use crate::stats::{Counters, Stats};
use crate::sync::{lock, Arc, AtomicU64, Mutex, Ordering};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// What CUDA exports is made of whole pages of this size.
const PAGE: u64 = 4096;
/// As often memory may change during its registration before the caller hears of it.
const CHANGES: usize = 3;

/// How much may stay registered that nobody uses. What is in use counts, and is never evicted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Registrations.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their bytes of BAR1.
    pub bar1_bytes: u64,
}

impl Limits {
    /// No limit but this share of a BAR1 of so many bytes, in percent.
    pub fn share_of_bar1(size: u64, percent: u64) -> Self {
        Self { bar1_bytes: size / 100 * percent, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: u64::MAX, bytes: u64::MAX, bar1_bytes: u64::MAX }
    }
}

/// The cache. Clones are the same cache; it ends with the last clone, lease and sweeper.
pub struct Cache<G: Gpu, V: Verbs>(Arc<Inner<G, V>>);

impl<G: Gpu, V: Verbs> Clone for Cache<G, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(crate) struct Inner<G: Gpu, V: Verbs> {
    gpu: G,
    verbs: Arc<V>,
    policy: Policy,
    limits: Limits,
    counters: Arc<Counters>,
    generation: u64,
    clock: AtomicU64,
    state: Mutex<State<V>>,
}

/// A region, and what keeps its memory if that was exported.
type Made<V> = (<V as Verbs>::Mr, Option<Arc<Export>>);
type Regions<V> = BTreeMap<u64, Arc<Entry<V>>>;

/// # Invariants
///
/// Of one domain and access no entry contains another, so starts and ends have the same order. The sums are those
/// of all entries.
struct State<V: Verbs> {
    regions: BTreeMap<(V::Pd, Access), Regions<V>>,
    entries: u64,
    bytes: u64,
    bar1_bytes: u64,
    /// How many promise to report frees.
    hooks: usize,
    /// How often a free was reported.
    frees: u64,
}

impl<V: Verbs> State<V> {
    /// The last entry that begins before `range` does ends after all others that do.
    fn find(&self, key: (V::Pd, Access), range: &Range) -> Option<&Arc<Entry<V>>> {
        let (_, entry) = self.regions.get(&key)?.range(..=range.start()).next_back()?;
        entry.range.contains(range).then_some(entry)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Entry<V>>> {
        self.regions.values().flat_map(BTreeMap::values)
    }

    /// Takes `entry` out, if it is still in.
    #[must_use = "it is deregistered where no lock is held"]
    fn remove(&mut self, entry: &Arc<Entry<V>>) -> Option<Arc<Entry<V>>> {
        let key = (entry.pd, entry.access);
        let regions = self.regions.get_mut(&key)?;
        if !regions.get(&entry.range.start()).is_some_and(|found| Arc::ptr_eq(found, entry)) {
            return None;
        }
        let removed = regions.remove(&entry.range.start());
        if regions.is_empty() {
            self.regions.remove(&key);
        }
        self.entries -= 1;
        self.bytes -= entry.range.length();
        self.bar1_bytes -= entry.bar1_bytes();
        removed
    }

    /// Puts `entry` in, unless one that contains it is there; what it contains itself comes out.
    #[must_use = "they are deregistered where no lock is held"]
    fn insert(&mut self, entry: &Arc<Entry<V>>) -> Vec<Arc<Entry<V>>> {
        let key = (entry.pd, entry.access);
        if self.find(key, &entry.range).is_some() {
            return Vec::new();
        }
        let regions = self.regions.entry(key).or_default();
        let inside: Vec<_> = regions.range(entry.range.start()..entry.range.end()).map(|(_, e)| e.clone()).collect();
        let mut out = Vec::new();
        for old in inside.into_iter().filter(|old| entry.range.contains(&old.range)) {
            out.extend(self.remove(&old));
        }
        self.regions.entry(key).or_default().insert(entry.range.start(), entry.clone());
        self.entries += 1;
        self.bytes += entry.range.length();
        self.bar1_bytes += entry.bar1_bytes();
        out
    }

    fn exceeds(&self, limits: &Limits) -> bool {
        self.entries > limits.entries || self.bytes > limits.bytes || self.bar1_bytes > limits.bar1_bytes
    }

    /// The entry that nobody uses and that was used longest ago. References come from here alone, under the lock: one
    /// that only the map has stays unused.
    fn oldest_unused(&self) -> Option<Arc<Entry<V>>> {
        let unused = self.all().filter(|entry| Arc::strong_count(entry) == 1);
        unused.min_by_key(|entry| entry.used.load(Ordering::Relaxed)).cloned()
    }
}

impl<G: Gpu, V: Verbs> Cache<G, V> {
    /// An empty cache.
    pub fn new(gpu: G, verbs: V, policy: Policy, limits: Limits) -> Self {
        let state = State { regions: BTreeMap::new(), entries: 0, bytes: 0, bar1_bytes: 0, hooks: 0, frees: 0 };
        Self(Arc::new(Inner {
            gpu,
            verbs: Arc::new(verbs),
            policy,
            limits,
            counters: Arc::default(),
            generation: fork::watch(),
            clock: AtomicU64::new(0),
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<G, V>> {
        &self.0
    }

    /// A registration of `length` bytes at `address` with `access`: one that is there, if the memory is still the same,
    /// or a new one. Callable from every thread.
    ///
    /// Errors say in words what is wrong ([`Error`]). If memory is short, unused registrations are evicted and it is
    /// tried once more.
    pub fn register(&self, pd: V::Pd, address: u64, length: u64, access: Access) -> Result<Lease<G, V>, Error> {
        let range = Range::new(address, length)?;
        let inner = &self.0;
        inner.check_process()?;
        if let Some(entry) = inner.hit(pd, access, &range) {
            inner.counters.hits.add(1);
            return Ok(Lease::new(inner, entry, range));
        }
        inner.counters.misses.add(1);
        let entry = inner.miss(pd, access, range)?;
        let lease = Lease::new(inner, entry, range);
        inner.trim();
        Ok(lease)
    }

    /// Lets go of every registration whose memory is freed. What a lease holds ends with that.
    pub fn sweep(&self) {
        self.0.sweep();
    }

    /// Lets go of every registration of a domain: before `ibv_dealloc_pd()`, and when its NIC is removed.
    pub fn forget(&self, pd: V::Pd) {
        self.0.take_out(|entry| entry.pd == pd);
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let counters = &self.0.counters;
        let mut stats = Stats {
            hits: counters.hits.get(),
            misses: counters.misses.get(),
            stale: counters.stale.get(),
            freed: counters.freed.get(),
            evicted: counters.evicted.get(),
            retried: counters.retried.get(),
            lost: counters.lost.get(),
            ..Stats::default()
        };
        if self.0.check_process().is_ok() {
            let state = lock(&self.0.state);
            (stats.entries, stats.bytes, stats.bar1_bytes) = (state.entries, state.bytes, state.bar1_bytes);
        }
        stats
    }

    /// Why it registers in the way that it does.
    pub fn reason(&self) -> &'static str {
        self.0.policy.reason()
    }
}

impl<G: Gpu, V: Verbs> Inner<G, V> {
    fn check_process(&self) -> Result<(), Error> {
        if self.generation == fork::generation() {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    fn hit(&self, pd: V::Pd, access: Access, range: &Range) -> Option<Arc<Entry<V>>> {
        let (entry, trusted) = {
            let state = lock(&self.state);
            let entry = state.find((pd, access), range)?.clone();
            (entry, state.hooks > 0)
        };
        entry.used.store(self.tick(), Ordering::Relaxed);
        if trusted || entry.identity.holds(&self.gpu) {
            return Some(entry);
        }
        self.stale(&entry);
        None
    }

    fn miss(&self, pd: V::Pd, access: Access, range: Range) -> Result<Arc<Entry<V>>, Error> {
        for _ in 0..CHANGES {
            let frees = lock(&self.state).frees;
            let identity = Identity::read(&self.gpu, range)?;
            let entry = self.make(pd, access, range, &identity)?;
            // What was freed meanwhile may have been registered, or what took its place.
            if !entry.identity.holds(&self.gpu) {
                continue;
            }
            let _out = {
                let mut state = lock(&self.state);
                // A free that was reported before the entry is in did not see it: this one is not kept.
                if state.hooks > 0 && state.frees != frees {
                    Vec::new()
                } else {
                    state.insert(&entry)
                }
            };
            return Ok(entry);
        }
        Err(Error::Changed { range })
    }

    /// Registers; once more after making room, if memory is short.
    fn make(&self, pd: V::Pd, access: Access, range: Range, identity: &Identity) -> Result<Arc<Entry<V>>, Error> {
        let first = self.make_once(pd, access, range, identity);
        match first {
            Err(error) if error.lacks_memory() && self.evict_all() => {
                let entry = self.make_once(pd, access, range, identity)?;
                self.counters.retried.add(1);
                Ok(entry)
            }
            other => other,
        }
    }

    fn make_once(&self, pd: V::Pd, access: Access, range: Range, identity: &Identity) -> Result<Arc<Entry<V>>, Error> {
        let (mut peer_memory, mut dma_buf) = (None, None);
        for &way in self.policy.ways() {
            let made = match way {
                Way::PeerMemory => self.verbs.register(pd, range, access).map(|mr| (mr, None)).map_err(|error| {
                    peer_memory = Some(error);
                }),
                Way::DmaBuf => self.by_dma_buf(pd, access, range, identity).map_err(|refusal| {
                    dma_buf = Some(refusal);
                }),
            };
            let Ok((mr, export)) = made else { continue };
            return Ok(Arc::new(Entry {
                verbs: self.verbs.clone(),
                counters: self.counters.clone(),
                pd,
                access,
                range,
                identity: identity.clone(),
                way,
                export,
                generation: self.generation,
                used: AtomicU64::new(self.tick()),
                mr: Some(mr),
            }));
        }
        Err(Error::Refused { range, peer_memory, dma_buf })
    }

    fn by_dma_buf(&self, pd: V::Pd, access: Access, range: Range, identity: &Identity) -> Result<Made<V>, Refusal> {
        let pages = range.widened(PAGE).ok_or_else(|| Refusal::Export("the range ends the address space".into()))?;
        let export = match self.exported(&pages, identity) {
            Some(export) => export,
            None => Arc::new(Export { range: pages, fd: self.gpu.export(pages).map_err(Refusal::Export)? }),
        };
        let offset = range.start() - export.range.start();
        let mr =
            self.verbs.register_dma_buf(pd, range, offset, export.fd.as_fd(), access).map_err(Refusal::Register)?;
        Ok((mr, Some(export)))
    }

    /// A dma-buf of the same memory, which another NIC has.
    fn exported(&self, pages: &Range, identity: &Identity) -> Option<Arc<Export>> {
        let state = lock(&self.state);
        let same = state.all().find(|entry| {
            entry.identity == *identity && entry.export.as_ref().is_some_and(|export| export.range.contains(pages))
        })?;
        same.export.clone()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Nobody gets this entry again.
    pub(crate) fn detach(&self, entry: &Arc<Entry<V>>) {
        if self.check_process().is_ok() {
            let removed = lock(&self.state).remove(entry);
            drop(removed);
        }
    }

    fn stale(&self, entry: &Arc<Entry<V>>) {
        let removed = lock(&self.state).remove(entry);
        self.counters.stale.add(u64::from(removed.is_some()));
    }

    fn sweep(&self) {
        if self.check_process().is_err() {
            return;
        }
        let all: Vec<_> = lock(&self.state).all().cloned().collect();
        for entry in all {
            if !entry.identity.holds(&self.gpu) {
                self.stale(&entry);
            }
        }
        // Those entries looked used meanwhile.
        self.trim();
    }

    pub(crate) fn trust(&self, on: bool) {
        let mut state = lock(&self.state);
        state.hooks = if on { state.hooks + 1 } else { state.hooks - 1 };
        drop(state);
        if on {
            // What was freed before nobody reported.
            self.sweep();
        }
    }

    pub(crate) fn freed(&self, range: Option<Range>) {
        if self.check_process().is_ok() {
            lock(&self.state).frees += 1;
            let out = self.take_out(|entry| range.is_none_or(|range| entry.range.overlaps(&range)));
            self.counters.freed.add(out);
        }
    }

    /// Takes out what `which` says; how many.
    fn take_out(&self, which: impl Fn(&Entry<V>) -> bool) -> u64 {
        if self.check_process().is_err() {
            return 0;
        }
        let out: Vec<_> = {
            let mut state = lock(&self.state);
            let chosen: Vec<_> = state.all().filter(|entry| which(entry)).cloned().collect();
            chosen.iter().filter_map(|entry| state.remove(entry)).collect()
        };
        out.len() as u64
    }

    /// Evicts until the limits hold, or all that is left is in use.
    pub(crate) fn trim(&self) {
        self.evict_while(|state| state.exceeds(&self.limits));
    }

    /// Evicts everything that nobody uses; whether there was something.
    fn evict_all(&self) -> bool {
        self.evict_while(|_| true)
    }

    fn evict_while(&self, more: impl Fn(&State<V>) -> bool) -> bool {
        if self.check_process().is_err() {
            return false;
        }
        let mut out = Vec::new();
        let mut state = lock(&self.state);
        while more(&state) {
            let Some(entry) = state.oldest_unused() else { break };
            out.extend(state.remove(&entry));
        }
        drop(state);
        self.counters.evicted.add(out.len() as u64);
        !out.is_empty()
    }
}
