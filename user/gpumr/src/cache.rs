// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Look-up, registration, eviction. One lock, which is never held over a call of CUDA or verbs, and
//! which a hit of what the thread used lately does not take.

use crate::backend::{Access, Gpu, Verbs};
use crate::entry::{Entry, Export, Held, Parts, Region, Removed};
use crate::error::{Error, Memory, Refusal};
use crate::fork::{self, Closed};
use crate::identity::Identity;
use crate::lease::Lease;
use crate::policy::{Policy, Way};
use crate::pressure::Pressure;
use crate::range::{page_size, Range};
use crate::recent;
use crate::stats::{Counters, Stats};
use crate::sync::{lock, wait, Arc, AtomicU64, Condvar, Mutex, Ordering, Weak};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;

/// As often memory may change during its registration before the caller hears of it.
const CHANGES: usize = 3;
/// [`Entry::queued`] of what is not in the queue.
const UNQUEUED: u64 = u64::MAX;
/// A region that is not at its own address: who asks for a part of it must not get the whole.
const ZERO_BASED: i32 = 1 << 5;

/// How much may stay registered that nobody uses. What is in use counts, and is never evicted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Registrations.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their bytes of BAR1, of all GPUs together. What is registered with several NICs counts for
    /// each, though a dma-buf takes BAR1 once: the limit may evict early, never late.
    pub bar1_bytes: u64,
}

impl Limits {
    /// No limit but this share of a BAR1 of so many bytes, in percent.
    pub fn share_of_bar1(size: u64, percent: u64) -> Self {
        let share = u128::from(size) * u128::from(percent) / 100;
        Self { bar1_bytes: u64::try_from(share).unwrap_or(u64::MAX), ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: u64::MAX, bytes: u64::MAX, bar1_bytes: u64::MAX }
    }
}

/// A region whose memory has gone while a lease holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gone {
    /// What it was registered for.
    pub range: Range,
    /// For requests of this machine.
    pub lkey: u32,
    /// For requests of others.
    pub rkey: u32,
}

/// Hears of regions in use whose memory has gone.
pub type OnGone = Box<dyn Fn(Gone) + Send + Sync>;

/// What a cache may do beside.
#[derive(Default)]
#[non_exhaustive]
pub struct Options {
    /// A region that has more rights than a request needs serves it. Whoever gives its rkey away gives
    /// away those rights.
    pub superset: bool,
    /// While a GPU has fewer bytes free than this, what is registered of it ends as soon as nobody uses
    /// it: what is freed while it is registered by dma-buf, or pinned for good, stays allocated, and an
    /// allocator that frees to allocate again would not get it. Checked when something is registered
    /// and by the [`crate::Sweeper`], at most each 20 ms. 0: never. [`crate::FREE_BYTES_AUTO`] suits
    /// PyTorch.
    pub free_bytes: u64,
    /// Called once for each region that a lease holds when its memory is found or reported to have
    /// gone: whoever has it should stop to use it and release it. It is called by the thread that
    /// noticed, which may be the sweeper, without a lock. It must not wait for a thread that is in a
    /// call of the cache.
    pub on_gone: Option<OnGone>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("superset", &self.superset)
            .field("free_bytes", &self.free_bytes)
            .field("on_gone", &self.on_gone.is_some())
            .finish()
    }
}

/// The cache. Clones are the same cache; it ends with the last clone, lease and sweeper.
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

pub(crate) struct Inner<G: Gpu, V: Verbs> {
    pub(crate) gpu: G,
    verbs: Arc<V>,
    policy: Policy,
    limits: Limits,
    pub(crate) options: Options,
    counters: Arc<Counters>,
    generation: u64,
    /// Goes on with each registration. An entry's last use is told by it, so that hits do not write
    /// to what all share.
    clock: AtomicU64,
    /// How many promise to report frees, and had what was freed before swept.
    trusted: AtomicU64,
    pub(crate) pressure: Pressure,
    pub(crate) state: Mutex<State<G, V>>,
    /// Something left [`State::ending`].
    ended: Condvar,
}

/// A region, and what keeps its memory if that was exported.
type Made<V> = (<V as Verbs>::Mr, Option<Arc<Export>>);
/// An entry, and the lease of whoever made it.
type New<G, V> = (Arc<Entry<G, V>>, Held<G, V>);
type Regions<G, V> = BTreeMap<u64, Arc<Entry<G, V>>>;

/// A registration under way.
struct Making {
    range: Range,
    /// Its memory was reported as freed since it began, or nobody knows.
    freed: bool,
}

/// # Invariants
///
/// Of one domain and access no entry contains another, so starts and ends have the same order. The
/// sums are those of all entries. What is in it is not removed, and what leaves it is.
pub(crate) struct State<G: Gpu, V: Verbs> {
    regions: BTreeMap<(V::Pd, Access), Regions<G, V>>,
    entries: u64,
    bytes: u64,
    bar1_bytes: u64,
    /// By the clock when they began.
    making: BTreeMap<u64, Making>,
    /// What was removed without leases and is not yet deregistered.
    ending: Vec<Arc<Entry<G, V>>>,
    /// dma-bufs that other NICs may have, the oldest first.
    exports: VecDeque<Weak<Export>>,
    /// The newest of each range, by its first and last address, and what it is made of.
    shared: BTreeMap<(u64, u64), (Identity, Weak<Export>)>,
    /// What may be evicted, by its last use as far as it was known when it was put in. What is in use
    /// when its turn comes is taken out; its last lease puts it back.
    queue: BTreeMap<(u64, usize), Arc<Entry<G, V>>>,
    /// All, by their GPU; empty where free memory is not watched.
    pub(crate) of_gpus: BTreeMap<(i32, usize), Arc<Entry<G, V>>>,
    /// GPUs that have little free memory.
    pub(crate) pressed: BTreeSet<i32>,
    /// In use and not in the map, since a larger one has their place; empty where nobody wants to hear
    /// of them.
    outside: Vec<Arc<Entry<G, V>>>,
}

impl<G: Gpu, V: Verbs> State<G, V> {
    /// A program may have 1024 files open: of very many buffers the oldest is exported anew for the
    /// next NIC. What is to be closed where no lock is held.
    fn keep(&mut self, export: &Arc<Export>) -> Option<Arc<Closed>> {
        self.exports.push_back(Arc::downgrade(export));
        let oldest = (self.exports.len() > fork::PLACES).then(|| self.exports.pop_front())?;
        oldest?.upgrade()?.close()
    }

    /// The next NIC gets this dma-buf. Those that are gone are left out before they are most.
    fn share(&mut self, range: &Range, identity: &Identity, export: &Arc<Export>) {
        if self.shared.len() as u64 > 2 * self.entries + 64 {
            self.shared.retain(|_, (_, export)| export.strong_count() > 0);
        }
        self.shared.insert((range.start(), range.last()), (identity.clone(), Arc::downgrade(export)));
    }

    /// Puts `entry`, which is in, among what may be evicted, if it is not there.
    fn enqueue(&mut self, entry: &Arc<Entry<G, V>>) {
        if entry.queued.load(Ordering::Relaxed) == UNQUEUED {
            let used = entry.used.load(Ordering::Relaxed);
            entry.queued.store(used, Ordering::Relaxed);
            self.queue.insert((used, Arc::as_ptr(entry) as usize), entry.clone());
        }
    }

    fn unqueue(&mut self, entry: &Entry<G, V>) {
        let used = entry.queued.swap(UNQUEUED, Ordering::Relaxed);
        self.queue.remove(&(used, std::ptr::from_ref(entry) as usize));
    }

    /// The entry whose turn it is to be evicted, by its last use as it is now. It is taken out.
    fn turn(&mut self) -> Option<Arc<Entry<G, V>>> {
        loop {
            let ((queued, _), entry) = self.queue.pop_first()?;
            entry.queued.store(UNQUEUED, Ordering::Relaxed);
            if entry.used.load(Ordering::Relaxed) == queued {
                return Some(entry);
            }
            // Once for each use since.
            self.enqueue(&entry);
        }
    }

    /// Those that share a byte with the range.
    fn overlapping(&self, range: &Range) -> Vec<Arc<Entry<G, V>>> {
        // Starts and ends have the same order.
        let of = |regions: &Regions<G, V>| {
            let before = regions.range(..range.end()).rev().map(|(_, entry)| entry);
            before.take_while(|entry| entry.range.overlaps(range)).cloned().collect::<Vec<_>>()
        };
        self.regions.values().flat_map(of).collect()
    }

    /// The last entry that begins before `range` does ends after all others that do.
    fn find(&self, key: (V::Pd, Access), range: &Range) -> Option<&Arc<Entry<G, V>>> {
        let regions = self.regions.get(&key)?;
        // Most hits are of the same range: that is one search instead of two.
        let exact = regions.get(&range.start());
        let entry = exact.or_else(|| regions.range(..range.start()).next_back().map(|(_, entry)| entry))?;
        entry.range.contains(range).then_some(entry)
    }

    /// The same, or one with more rights if that will do.
    fn fitting(&self, pd: V::Pd, access: Access, range: &Range, superset: bool) -> Option<&Arc<Entry<G, V>>> {
        let exact = self.find((pd, access), range);
        if exact.is_some() || !superset {
            return exact;
        }
        let wider = self.regions.range((pd, i32::MIN.into())..=(pd, i32::MAX.into())).map(|(key, _)| *key);
        wider.filter(|(_, has)| has.serves(access)).find_map(|key| self.find(key, range))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Entry<G, V>>> {
        self.regions.values().flat_map(BTreeMap::values)
    }

    /// This entry, if it is in.
    fn same(&self, entry: &Entry<G, V>) -> Option<&Arc<Entry<G, V>>> {
        let found = self.regions.get(&(entry.pd, entry.access))?.get(&entry.range.start())?;
        std::ptr::eq(Arc::as_ptr(found), entry).then_some(found)
    }

    /// Takes out `entry`, which is in.
    pub(crate) fn take(&mut self, entry: &Entry<G, V>) {
        let key = (entry.pd, entry.access);
        if let Some(regions) = self.regions.get_mut(&key) {
            regions.remove(&entry.range.start());
            if regions.is_empty() {
                self.regions.remove(&key);
            }
        }
        self.unqueue(entry);
        self.of_gpus.remove(&(entry.device, std::ptr::from_ref(entry) as usize));
        self.entries -= 1;
        self.bytes -= entry.range.length();
        self.bar1_bytes -= entry.bar1_bytes();
    }

    /// Puts `entry` in, unless one that contains it is there; what it contains itself is for the
    /// caller to remove.
    fn insert(&mut self, entry: &Arc<Entry<G, V>>) -> Option<Vec<Arc<Entry<G, V>>>> {
        let key = (entry.pd, entry.access);
        if self.find(key, &entry.range).is_some() {
            return None;
        }
        let regions = self.regions.entry(key).or_default();
        let inside = regions.range(entry.range.start()..entry.range.end()).map(|(_, inside)| inside);
        let inside: Vec<_> = inside.filter(|inside| entry.range.contains(&inside.range)).cloned().collect();
        for old in &inside {
            self.take(old);
        }
        self.regions.entry(key).or_default().insert(entry.range.start(), entry.clone());
        self.enqueue(entry);
        self.entries += 1;
        self.bytes += entry.range.length();
        self.bar1_bytes += entry.bar1_bytes();
        Some(inside)
    }

    /// These may have leases, and are not in the map. Those without are left out before they are most.
    fn keep_outside(&mut self, entries: &[Arc<Entry<G, V>>]) {
        if self.outside.len() + entries.len() > self.outside.capacity() {
            self.outside.retain(|entry| entry.word.in_use());
            self.outside.reserve(self.outside.len() + entries.len());
        }
        self.outside.extend(entries.iter().filter(|entry| entry.word.in_use()).cloned());
    }

    /// This memory is reported as freed, or all that there is.
    fn freed(&mut self, range: Option<Range>) {
        let freed = |making: &&mut Making| range.is_none_or(|range| making.range.overlaps(&range));
        self.making.values_mut().filter(freed).for_each(|making| making.freed = true);
    }

    /// Until it is dropped, whoever forgets its domain waits.
    ///
    /// # Safety
    ///
    /// As for [`Removed::new()`].
    pub(crate) unsafe fn end(&mut self, entry: &Arc<Entry<G, V>>) -> Removed<G, V> {
        self.ending.push(entry.clone());
        // SAFETY: By this function's contract.
        unsafe { Removed::new(entry.clone()) }
    }

    fn exceeds(&self, limits: &Limits) -> bool {
        self.entries > limits.entries || self.bytes > limits.bytes || self.bar1_bytes > limits.bar1_bytes
    }
}

impl<G: Gpu, V: Verbs> Cache<G, V> {
    /// An empty cache.
    pub fn new(gpu: G, verbs: V, policy: Policy, limits: Limits) -> Self {
        Self::with(gpu, verbs, policy, limits, Options::default())
    }

    /// An empty cache that does more.
    pub fn with(gpu: G, verbs: V, policy: Policy, limits: Limits, options: Options) -> Self {
        let state = State {
            regions: BTreeMap::new(),
            entries: 0,
            bytes: 0,
            bar1_bytes: 0,
            making: BTreeMap::new(),
            ending: Vec::new(),
            exports: VecDeque::new(),
            shared: BTreeMap::new(),
            queue: BTreeMap::new(),
            of_gpus: BTreeMap::new(),
            pressed: BTreeSet::new(),
            outside: Vec::new(),
        };
        Self(Arc::new(Inner {
            gpu,
            verbs: Arc::new(verbs),
            policy,
            limits,
            options,
            counters: Arc::default(),
            generation: fork::watch(),
            clock: AtomicU64::new(0),
            trusted: AtomicU64::new(0),
            pressure: Pressure::default(),
            state: Mutex::new(state),
            ended: Condvar::new(),
        }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<G, V>> {
        &self.0
    }

    /// A registration of `length` bytes at `address` with `access`: one that is there, if the
    /// memory is still the same, or a new one. Callable from every thread.
    ///
    /// Errors say in words what is wrong ([`Error`]). If memory is short, unused registrations are
    /// evicted and it is tried once more.
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
        if let Some(entry) = inner.recent(pd, access, &range) {
            return Ok(Lease::new(entry, range));
        }
        if let Some(entry) = inner.hit(pd, access, &range) {
            return Ok(Lease::new(entry, range));
        }
        inner.counters.misses.add(1);
        let entry = inner.miss(pd, access, range)?;
        inner.trim();
        inner.relieve();
        Ok(Lease::new(entry, range))
    }

    /// The same with several NICs: one lease for each domain, or none. They share one dma-buf.
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

    /// Lets go of every registration whose memory is freed. What a lease holds ends with that.
    pub fn sweep(&self) {
        self.0.sweep();
    }

    /// Evicts every registration that nobody uses, and returns their bytes. For a program whose
    /// allocation failed, or is about to: what is freed while it is registered stays allocated until
    /// its registration ends, and a registration takes room in BAR1.
    pub fn shrink(&self) -> u64 {
        self.0.shrink()
    }

    /// This memory is about to be freed or unmapped: lets go of it, with or without a promise
    /// ([`crate::hooks`]). Until it is freed no thread may register it: only a sweep is sure to
    /// find such a registration. Errors: an empty or wrapping range.
    pub fn before_free(&self, address: u64, length: u64) -> Result<(), Error> {
        self.0.freed(Some(Range::new(address, length)?));
        Ok(())
    }

    /// All memory is about to be freed: a context is destroyed or reset.
    pub fn before_free_all(&self) {
        self.0.freed(None);
    }

    /// Lets go of every registration of a domain: before `ibv_dealloc_pd()`, and when its NIC is
    /// removed. Those that no lease holds are deregistered when it returns, also where another
    /// thread ends them.
    pub fn forget(&self, pd: V::Pd) {
        self.forget_where(|of| of == pd);
    }

    /// The same for each domain that `which` names.
    pub fn forget_where(&self, which: impl Fn(V::Pd) -> bool) {
        let which = |entry: &Entry<G, V>| which(entry.pd);
        self.0.take_out(|state| state.all().filter(|entry| which(entry)).cloned().collect(), which);
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
            // Under the lock: who removes an entry counts its hits there.
            stats.hits = counters.hits.get() + state.all().map(|entry| entry.word.hits()).sum::<u64>();
        }
        stats
    }

    /// Whether this process is a child of the one that made the cache. What is registered is the
    /// parent's.
    pub fn forked(&self) -> bool {
        self.0.check_process().is_err()
    }

    /// Why it registers in the way that it does.
    pub fn reason(&self) -> &'static str {
        self.0.policy.reason()
    }
}

impl<G: Gpu, V: Verbs> Inner<G, V> {
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.generation == fork::generation() {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    /// What this thread had lately, without a lock.
    #[inline]
    fn recent(self: &Arc<Self>, pd: V::Pd, access: Access, range: &Range) -> Option<Held<G, V>> {
        recent::find(self, pd, access, range, |entry| self.lease(entry))
    }

    fn hit(&self, pd: V::Pd, access: Access, range: &Range) -> Option<Held<G, V>> {
        let entry = lock(&self.state).fitting(pd, access, range, self.options.superset)?.clone();
        let held = self.lease(&entry);
        if held.is_some() {
            recent::keep(entry, range.start());
        } else {
            self.stale(&entry);
        }
        held
    }

    /// A lease, if the memory is still the same. An entry that was removed meanwhile, as by a hook,
    /// gives none.
    #[inline]
    fn lease(&self, entry: &Entry<G, V>) -> Option<Held<G, V>> {
        let asks = self.trusted.load(Ordering::Acquire) == 0;
        let same = if asks { entry.identity.holds(&self.gpu) } else { entry.identity.current(&self.gpu) };
        if !same {
            return None;
        }
        let (held, hits) = entry.hit()?;
        if hits > 0 {
            self.counters.hits.add(hits);
        }
        let now = self.clock.load(Ordering::Relaxed);
        if entry.used.load(Ordering::Relaxed) != now {
            entry.used.store(now, Ordering::Relaxed);
        }
        Some(held)
    }

    fn miss(self: &Arc<Self>, pd: V::Pd, access: Access, range: Range) -> Result<Held<G, V>, Error> {
        if access.bits() & ZERO_BASED != 0 {
            let why = "a zero-based region cannot be shared: leave out IBV_ACCESS_ZERO_BASED";
            return Err(Error::Argument(why.into()));
        }
        for _ in 0..CHANGES {
            let number = self.tick();
            lock(&self.state).making.insert(number, Making { range, freed: false });
            let made = self.make_of(pd, access, range);
            let mut state = lock(&self.state);
            let freed = state.making.remove(&number).is_none_or(|making| making.freed);
            let ((entry, held), same) = made?;
            // A free that was reported before the entry is in did not see it: this one is not kept.
            // Nor is one of which nobody could say later whether it is still the same.
            let keep = same && !freed && entry.identity.is_watched();
            let inside = if keep { state.insert(&entry) } else { None };
            let kept = inside.is_some();
            if kept {
                self.watch(&mut state, &entry);
            }
            let out = inside.unwrap_or_else(|| vec![entry.clone()]);
            if same && self.options.on_gone.is_some() {
                state.keep_outside(&out);
            }
            let out: Vec<_> = out.iter().filter_map(|entry| self.remove(&mut state, entry)).collect();
            drop(state);
            drop(out);
            if kept {
                recent::keep(entry, range.start());
            }
            if same {
                return Ok(held);
            }
        }
        Err(Error::Changed { range })
    }

    /// Registers; and whether the memory is still what it was before. What was freed meanwhile may
    /// have been registered, or what took its place.
    fn make_of(self: &Arc<Self>, pd: V::Pd, access: Access, range: Range) -> Result<(New<G, V>, bool), Error> {
        let identity = Identity::read(&self.gpu, range)?;
        let made = self.make(pd, access, range, &identity)?;
        Ok((made, identity.seems_to_hold(&self.gpu)))
    }

    /// Registers; once more after making room, if memory is short.
    fn make(
        self: &Arc<Self>,
        pd: V::Pd,
        access: Access,
        range: Range,
        identity: &Identity,
    ) -> Result<New<G, V>, Error> {
        let first = self.make_once(pd, access, range, identity);
        match first {
            Err(error) if self.make_room(&error) => {
                let made = self.make_once(pd, access, range, identity)?;
                self.counters.retried.add(1);
                Ok(made)
            }
            other => other,
        }
    }

    fn make_once(
        self: &Arc<Self>,
        pd: V::Pd,
        access: Access,
        range: Range,
        identity: &Identity,
    ) -> Result<New<G, V>, Error> {
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
            return Ok(Entry::new(Parts {
                keys: self.verbs.keys(&mr),
                pd,
                access,
                range,
                device: if self.options.free_bytes > 0 { self.gpu.device(range.start()) } else { 0 },
                way,
                cache: Arc::downgrade(self),
                identity: identity.clone(),
                used: self.tick(),
                region: Region {
                    verbs: self.verbs.clone(),
                    counters: self.counters.clone(),
                    _export: export,
                    generation: self.generation,
                    mr: Some(mr),
                },
            }));
        }
        Err(Error::Refused { range, peer_memory, dma_buf, memory: Memory::of(&self.gpu, range.start()) })
    }

    fn by_dma_buf(&self, pd: V::Pd, access: Access, range: Range, identity: &Identity) -> Result<Made<V>, Refusal> {
        let pages =
            range.widened(page_size()).ok_or_else(|| Refusal::Export("the range ends the address space".into()))?;
        let (export, fd) = match self.exported(&range, &pages, identity) {
            Some(shared) => shared,
            None => {
                let fd = Arc::new(Closed::in_children(self.gpu.export(pages).map_err(Refusal::Export)?));
                let export = Arc::new(Export::new(pages, &fd));
                let mut state = lock(&self.state);
                let oldest = state.keep(&export);
                state.share(&range, identity, &export);
                drop(state);
                drop(oldest);
                (export, fd)
            }
        };
        let offset = range.start() - export.range.start();
        let mr = self.verbs.register_dma_buf(pd, range, offset, (*fd).as_fd(), access).map_err(Refusal::Register)?;
        Ok((mr, Some(export)))
    }

    /// A dma-buf of the same memory, which another NIC has.
    fn exported(&self, range: &Range, pages: &Range, identity: &Identity) -> Option<(Arc<Export>, Arc<Closed>)> {
        let state = lock(&self.state);
        let (of, export) = state.shared.get(&(range.start(), range.last()))?;
        let export = export.upgrade().filter(|export| export.range.contains(pages))?;
        if of != identity || !identity.is_watched() {
            return None;
        }
        let fd = export.fd()?;
        Some((export, fd))
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Nobody gets this entry, which left the map or was never in it, again.
    #[must_use = "it is deregistered where no lock is held"]
    fn remove(&self, state: &mut State<G, V>, entry: &Arc<Entry<G, V>>) -> Option<Removed<G, V>> {
        let (hits, unused) = entry.word.remove();
        self.counters.hits.add(hits);
        // SAFETY: The word said so.
        unused.then(|| unsafe { state.end(entry) })
    }

    /// It is deregistered.
    pub(crate) fn ended(&self, entry: &Arc<Entry<G, V>>) {
        lock(&self.state).ending.retain(|ending| !Arc::ptr_eq(ending, entry));
        self.ended.notify_all();
    }

    /// Nobody gets this entry again. It, if it was in the map.
    pub(crate) fn detach(&self, entry: &Entry<G, V>) -> Option<Arc<Entry<G, V>>> {
        self.check_process().ok()?;
        let mut state = lock(&self.state);
        let entry = state.same(entry)?.clone();
        state.take(&entry);
        let _removed = self.remove(&mut state, &entry);
        // The lock first.
        drop(state);
        Some(entry)
    }

    pub(crate) fn stale(&self, entry: &Entry<G, V>) {
        let Some(entry) = self.detach(entry) else { return };
        self.counters.stale.add(1);
        if self.options.on_gone.is_some() {
            // If it has gone for sure, it is told of.
            let range = entry.range;
            lock(&self.state).keep_outside(&[entry]);
            self.tell_outside(Some(range), false);
        }
    }

    /// Tells of what is in use outside of the map, in this range or anywhere, and has gone: as
    /// reported, or as CUDA says.
    fn tell_outside(&self, range: Option<Range>, reported: bool) {
        if self.options.on_gone.is_none() {
            return;
        }
        let mut state = lock(&self.state);
        let (within, others) = std::mem::take(&mut state.outside)
            .into_iter()
            .partition(|entry| range.is_none_or(|range| entry.range.overlaps(&range)));
        state.outside = others;
        drop(state);
        let within: Vec<_> = within;
        let (gone, same): (Vec<_>, Vec<_>) =
            within.into_iter().partition(|entry| reported || !entry.identity.seems_to_hold(&self.gpu));
        lock(&self.state).keep_outside(&same);
        gone.iter().for_each(|entry| self.tell(entry));
    }

    /// The memory of this entry, which was just taken out, has gone.
    fn tell(&self, entry: &Entry<G, V>) {
        if let Some(tell) = self.options.on_gone.as_ref().filter(|_| entry.word.in_use()) {
            let (lkey, rkey) = entry.keys;
            tell(Gone { range: entry.range, lkey, rkey });
        }
    }

    /// Whether the memory of this entry is still the same.
    pub(crate) fn valid(&self, entry: &Entry<G, V>) -> bool {
        self.check_process().is_ok() && entry.identity.holds(&self.gpu)
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
        self.tell_outside(None, false);
    }

    pub(crate) fn trust(&self, on: bool) {
        if self.check_process().is_err() {
            return;
        }
        if on {
            // What is being registered may be of memory that was freed, and nobody reported: it is
            // not kept.
            lock(&self.state).freed(None);
            // What was freed before nobody reported. Only then hits stop asking.
            self.sweep();
            self.trusted.fetch_add(1, Ordering::Release);
        } else {
            self.trusted.fetch_sub(1, Ordering::Release);
        }
    }

    pub(crate) fn freed(&self, range: Option<Range>) {
        if self.check_process().is_ok() {
            lock(&self.state).freed(range);
            let chosen = |state: &State<G, V>| match &range {
                Some(range) => state.overlapping(range),
                None => state.all().cloned().collect(),
            };
            let out = self.take_out(chosen, |entry| range.is_none_or(|range| entry.range.overlaps(&range)));
            self.counters.freed.add(out.len() as u64);
            out.iter().for_each(|entry| self.tell(entry));
            self.tell_outside(range, true);
        }
    }

    /// Takes out what `chosen` finds, and waits for what `which` says and other threads deregister just
    /// now. Returns what it took out.
    fn take_out(
        &self,
        chosen: impl Fn(&State<G, V>) -> Vec<Arc<Entry<G, V>>>,
        which: impl Fn(&Entry<G, V>) -> bool,
    ) -> Vec<Arc<Entry<G, V>>> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        let chosen = chosen(&state);
        chosen.iter().for_each(|entry| state.take(entry));
        let out: Vec<_> = chosen.iter().filter_map(|entry| self.remove(&mut state, entry)).collect();
        drop(state);
        drop(out);
        let mut state = lock(&self.state);
        while state.ending.iter().any(|entry| which(entry)) {
            state = wait(&self.ended, state);
        }
        drop(state);
        chosen
    }

    /// Evicts until the limits hold. If all that is left is in use, the ends of leases go on with
    /// it.
    pub(crate) fn trim(&self) {
        if self.check_process().is_err() {
            return;
        }
        let mut out = Vec::new();
        let mut state = lock(&self.state);
        while state.exceeds(&self.limits) {
            let Some(entry) = state.turn() else { break };
            // What is in use is told that it is awaited.
            if self.evict(&entry) {
                state.take(&entry);
                // SAFETY: evict() said so.
                out.push(unsafe { state.end(&entry) });
            }
        }
        drop(state);
    }

    /// The last lease of this entry, which is awaited, has ended.
    pub(crate) fn released(&self, entry: &Entry<G, V>) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = lock(&self.state);
        let mut out = None;
        if let Some(entry) = state.same(entry).cloned() {
            if state.pressed.contains(&entry.device) && self.evict(&entry) {
                state.take(&entry);
                // SAFETY: evict() said so.
                out = Some(unsafe { state.end(&entry) });
            } else {
                state.enqueue(&entry);
            }
        }
        drop(state);
        drop(out);
        self.trim();
    }

    /// Evicts all that nobody uses, and lets go of what is freed: before a program allocates what it
    /// could not get. Returns how many bytes it let go of.
    fn shrink(&self) -> u64 {
        self.sweep();
        if self.check_process().is_err() {
            return 0;
        }
        self.evict_where(|_| true).iter().map(|entry| entry.range.length()).sum()
    }

    /// Evicts what nobody uses of the entries that `which` names, and returns it.
    pub(crate) fn evict_where(&self, which: impl Fn(&Entry<G, V>) -> bool) -> Vec<Arc<Entry<G, V>>> {
        let mut state = lock(&self.state);
        let evicted: Vec<_> = state.all().filter(|entry| which(entry) && self.evict(entry)).cloned().collect();
        evicted.iter().for_each(|entry| state.take(entry));
        // SAFETY: evict() said so.
        let out: Vec<_> = evicted.iter().map(|entry| unsafe { state.end(entry) }).collect();
        drop(state);
        drop(out);
        evicted
    }

    /// Evicts what nobody uses, if that may help against `error`; whether there was something.
    fn make_room(&self, error: &Error) -> bool {
        let (short, perhaps) = (error.lacks_memory(), error.may_lack_bar1());
        if !short && !perhaps {
            return false;
        }
        !self.evict_where(|entry| short || entry.way == Way::PeerMemory).is_empty()
    }

    /// Nobody gets this entry again, if nobody uses it. If so, it is to be taken out of the map and
    /// ended.
    pub(crate) fn evict(&self, entry: &Entry<G, V>) -> bool {
        let Some(hits) = entry.word.remove_or_await() else { return false };
        self.counters.hits.add(hits);
        self.counters.evicted.add(1);
        true
    }
}

impl<G: Gpu, V: Verbs> Drop for Inner<G, V> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.queue.clear();
        state.of_gpus.clear();
        let left: Vec<_> = std::mem::take(&mut state.regions).into_values().flat_map(BTreeMap::into_values).collect();
        for entry in left {
            if entry.word.remove().1 {
                // SAFETY: The word said so.
                drop(unsafe { Removed::new(entry) });
            }
        }
    }
}
