// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Has what all clones of a cache and its entries share: the map of the entries behind the one lock,
//! and what is done with it. The lock is never held over a call of CUDA or verbs, and a hit of what the
//! thread used lately does not take it.

use crate::backend::{Access, Gpu, Verbs};
use crate::covered::Covered;
use crate::entry::{self, Export, Home, Parts, Region};
use crate::error::{Error, Memory, Refusal};
use crate::exit;
use crate::fork::{self, Closed};
use crate::identity::Identity;
use crate::leaving::Leaving;
use crate::options::{Gone, Limits, Options};
use crate::outside::Outside;
use crate::policy::Policy;
use crate::pressure::{is_little, Pressure};
use crate::range::{page_size, Range};
use crate::recent;
use crate::stats::{Counters, Stats};
use crate::sync::{lock, wait, Arc, AtomicU64, Condvar, Mutex, Ordering, Weak};
use crate::way::Way;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;

/// The number of attempts to register memory that changes meanwhile. Then the caller gets an error.
const CHANGES: usize = 3;
/// The value of [`Entry::queued`] for an entry that is not in the queue.
const UNQUEUED: u64 = u64::MAX;
/// The flag of a region that is not at its own address. A caller that asks for a part of it must
/// not get the whole.
const ZERO_BASED: i32 = 1 << 5;

/// An entry of a cache of these types.
pub(crate) type Entry<G, V> = entry::Entry<Inner<G, V>>;
/// A lease of such an entry.
pub(crate) type Held<G, V> = entry::Held<Inner<G, V>>;
/// Such an entry that was removed when nobody used it.
type Removed<G, V> = entry::Removed<Inner<G, V>>;

pub(crate) struct Inner<G: Gpu, V: Verbs> {
    gpu: G,
    verbs: Arc<V>,
    pub(crate) policy: Policy,
    limits: Limits,
    pub(crate) options: Options,
    counters: Arc<Counters>,
    generation: u64,
    /// A clock that advances with each registration. It dates an entry's last use, so that hits do
    /// not write to what all share.
    clock: AtomicU64,
    /// The number of holders of a promise to report frees, for whom what was freed before has been
    /// swept.
    trusted: AtomicU64,
    pressure: Pressure,
    /// The ranges of all registrations, those under way and those that are ending among them.
    covered: Arc<Covered>,
    state: Mutex<State<G, V>>,
    /// The entries that threads are letting go of at this moment. Its lock may be taken under that of `state`.
    leaving: Leaving<Entry<G, V>>,
    /// It is signalled when something leaves [`State::ending`].
    ended: Condvar,
}

/// A region, and the dma-buf that keeps its memory if there is one.
type Made<V> = (<V as Verbs>::Mr, Option<Arc<Export>>);
/// Holds what remains of an entry that was removed: the end of its region, or the dma-buf that it no
/// longer needs. Dropping it calls verbs or closes a file, so it must happen where no lock is held.
type Rest<G, V> = (Option<Removed<G, V>>, Option<Arc<Closed>>);
/// An entry, and its maker's lease.
type New<G, V> = (Arc<Entry<G, V>>, Held<G, V>);
type Regions<G, V> = BTreeMap<u64, Arc<Entry<G, V>>>;
/// Entries by their last use.
type Queue<G, V> = BTreeMap<(u64, usize), Arc<Entry<G, V>>>;

/// A registration under way.
struct Making {
    range: Range,
    /// Whether its memory was reported as freed since it began, or nobody knows.
    freed: bool,
}

/// # Invariants
///
/// Of one domain and access, no entry contains another, so starts and ends have the same order. The
/// sums are those of all entries, and `queued_bytes` that of the queues. No entry in the maps is
/// removed, and each entry that leaves them is. An entry in the maps is in a queue, or it is awaited,
/// or it is in [`Inner::leaving`] until the thread that ended its last lease has put it back. With
/// [`Options::idle_bytes`], an entry in a queue is not in use, unless its user is about to take the
/// lock and to take it out.
struct State<G: Gpu, V: Verbs> {
    regions: BTreeMap<(V::Pd, Access), Regions<G, V>>,
    entries: u64,
    bytes: u64,
    bar1_bytes: u64,
    /// The registrations under way, by the clock when they began.
    making: BTreeMap<u64, Making>,
    /// Entries that were removed without leases and are not yet deregistered, in the order in which
    /// they were removed.
    ending: BTreeMap<u64, Arc<Entry<G, V>>>,
    /// The number of the next such entry.
    next_end: u64,
    /// The dma-bufs that other NICs may use, beginning with the oldest.
    exports: VecDeque<Weak<Export>>,
    /// The newest dma-buf of each range, by the range's first and last address, with the
    /// allocations that it consists of.
    shared: BTreeMap<(u64, u64), (Identity, Weak<Export>)>,
    /// The entries that may be evicted, by their GPU and way, and by their last use as far as it was
    /// known when they were put in. An entry in use is taken out when its turn comes, and its last
    /// lease puts it back.
    queues: BTreeMap<(i32, Way), Queue<G, V>>,
    queued_bytes: u64,
    /// All entries by their GPU. Empty if free memory is not watched.
    of_gpus: BTreeMap<(i32, usize), Arc<Entry<G, V>>>,
    /// The GPUs that have little free memory.
    pressed: BTreeSet<i32>,
    /// Entries in use that are not in the map because a larger one has their place. Empty if nobody
    /// wants to hear of them.
    outside: Outside<Inner<G, V>>,
}

impl<G: Gpu, V: Verbs> State<G, V> {
    /// Keeps a dma-buf open for other NICs. A program may have 1024 files open, so the oldest is
    /// returned, to be closed where no lock is held. It will be exported anew for the next NIC.
    fn keep(&mut self, export: &Arc<Export>) -> Option<Arc<Closed>> {
        self.exports.push_back(Arc::downgrade(export));
        let oldest = (self.exports.len() > fork::PLACES).then(|| self.exports.pop_front())?;
        oldest?.upgrade()?.close()
    }

    /// Offers this dma-buf to the next NIC. Drops the ones that are gone before they are the
    /// majority.
    fn share(&mut self, range: &Range, identity: &Identity, export: &Arc<Export>) {
        if self.shared.len() as u64 > 2 * self.entries + 64 {
            self.shared.retain(|_, (_, export)| export.strong_count() > 0);
        }
        self.shared.insert((range.start(), range.last()), (identity.clone(), Arc::downgrade(export)));
    }

    /// Puts `entry`, which is in the map, among those that may be evicted, if it is not there.
    fn enqueue(&mut self, entry: &Arc<Entry<G, V>>) {
        if entry.queued.load(Ordering::Relaxed) == UNQUEUED {
            let used = entry.used.load(Ordering::Relaxed);
            entry.queued.store(used, Ordering::Relaxed);
            let queue = self.queues.entry((entry.device, entry.way)).or_default();
            queue.insert((used, Arc::as_ptr(entry) as usize), entry.clone());
            self.queued_bytes += entry.range.length();
        }
    }

    fn unqueue(&mut self, entry: &Entry<G, V>) {
        let used = entry.queued.swap(UNQUEUED, Ordering::Relaxed);
        let queue = self.queues.get_mut(&(entry.device, entry.way));
        if queue.is_some_and(|queue| queue.remove(&(used, std::ptr::from_ref(entry) as usize)).is_some()) {
            self.queued_bytes -= entry.range.length();
        }
    }

    /// Takes the first entry out of this queue, and returns it with the use under which it was there.
    fn first(&mut self, queue: (i32, Way)) -> Option<(u64, Arc<Entry<G, V>>)> {
        let ((queued, _), entry) = self.queues.get_mut(&queue)?.pop_first()?;
        self.queued_bytes -= entry.range.length();
        entry.queued.store(UNQUEUED, Ordering::Relaxed);
        Some((queued, entry))
    }

    /// Takes out the entry whose turn it is to be evicted, by its present last use.
    fn turn(&mut self) -> Option<Arc<Entry<G, V>>> {
        loop {
            let heads = self.queues.iter().filter_map(|(of, queue)| Some((*queue.first_key_value()?.0, *of)));
            let (_, of) = heads.min()?;
            let (queued, entry) = self.first(of)?;
            if entry.used.load(Ordering::Relaxed) == queued {
                return Some(entry);
            }
            // This happens once for each use since then.
            self.enqueue(&entry);
        }
    }

    /// Returns the entries that share a byte with the range.
    fn overlapping(&self, range: &Range) -> Vec<Arc<Entry<G, V>>> {
        // This is possible because starts and ends have the same order.
        let of = |regions: &Regions<G, V>| {
            let before = regions.range(..range.end()).rev().map(|(_, entry)| entry);
            before.take_while(|entry| entry.range.overlaps(range)).cloned().collect::<Vec<_>>()
        };
        self.regions.values().flat_map(of).collect()
    }

    /// Returns the entry that contains `range`. The last entry that begins before `range` ends
    /// after all others that do.
    fn find(&self, key: (V::Pd, Access), range: &Range) -> Option<&Arc<Entry<G, V>>> {
        let regions = self.regions.get(&key)?;
        // Most hits are of the same range, for which one search is enough instead of two.
        let exact = regions.get(&range.start());
        let entry = exact.or_else(|| regions.range(..range.start()).next_back().map(|(_, entry)| entry))?;
        entry.range.contains(range).then_some(entry)
    }

    /// Returns an entry with this access or, if `superset` allows it, one with more rights.
    fn fitting(&self, pd: V::Pd, access: Access, range: &Range, superset: bool) -> Option<&Arc<Entry<G, V>>> {
        let exact = self.find((pd, access), range);
        if exact.is_some() || !superset {
            return exact;
        }
        let wider = self.of_domain(pd).map(|(key, _)| *key);
        wider.filter(|(_, has)| has.serves(access)).find_map(|key| self.find(key, range))
    }

    /// Returns the maps of this domain, by their access.
    fn of_domain(&self, pd: V::Pd) -> impl Iterator<Item = (&(V::Pd, Access), &Regions<G, V>)> {
        self.regions.range((pd, i32::MIN.into())..=(pd, i32::MAX.into()))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Entry<G, V>>> {
        self.regions.values().flat_map(BTreeMap::values)
    }

    /// Returns this entry if it is in the map.
    fn same(&self, entry: &Entry<G, V>) -> Option<&Arc<Entry<G, V>>> {
        let found = self.regions.get(&(entry.pd, entry.access))?.get(&entry.range.start())?;
        std::ptr::eq(Arc::as_ptr(found), entry).then_some(found)
    }

    /// Takes `entry` out, which is in the map.
    fn take(&mut self, entry: &Entry<G, V>) {
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
        self.bar1_bytes -= entry.bar1_bytes;
    }

    /// Puts `entry` in, unless one that contains it is there. The caller must remove the returned
    /// entries, which it contains.
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
        self.bar1_bytes += entry.bar1_bytes;
        Some(inside)
    }

    /// Notes that this memory, or all memory, is reported as freed.
    fn freed(&mut self, range: Option<Range>) {
        let freed = |making: &&mut Making| range.is_none_or(|range| making.range.overlaps(&range));
        self.making.values_mut().filter(freed).for_each(|making| making.freed = true);
    }

    /// Makes an entry end. Until the result is dropped, a thread that forgets its domain waits.
    ///
    /// # Safety
    ///
    /// The caller keeps the contract of [`Removed::new()`].
    unsafe fn end(&mut self, entry: &Arc<Entry<G, V>>) -> Removed<G, V> {
        let number = self.next_end;
        self.next_end += 1;
        self.ending.insert(number, entry.clone());
        // SAFETY: By this function's contract.
        unsafe { Removed::new(entry.clone(), number) }
    }

    /// Notes that somebody got a lease of this entry, if it is in the map: it leaves the queue, and
    /// its last lease puts it back.
    fn lend(&mut self, lease: &Held<G, V>) {
        if self.same(lease).is_some() {
            self.unqueue(lease);
            // It has a lease, so it is not removed, but learns that it is awaited.
            lease.word.remove_or_await();
        }
    }

    fn exceeds(&self, limits: &Limits, idle_bytes: u64) -> bool {
        let idle = idle_bytes > 0 && self.queued_bytes > idle_bytes;
        idle || self.entries > limits.entries || self.bytes > limits.bytes || self.bar1_bytes > limits.bar1_bytes
    }
}

impl<G: Gpu, V: Verbs> Inner<G, V> {
    pub(crate) fn new(gpu: G, verbs: V, policy: Policy, limits: Limits, options: Options) -> Self {
        let state = State {
            regions: BTreeMap::new(),
            entries: 0,
            bytes: 0,
            bar1_bytes: 0,
            making: BTreeMap::new(),
            ending: BTreeMap::new(),
            next_end: 0,
            exports: VecDeque::new(),
            shared: BTreeMap::new(),
            queues: BTreeMap::new(),
            queued_bytes: 0,
            of_gpus: BTreeMap::new(),
            pressed: BTreeSet::new(),
            outside: Outside::default(),
        };
        Self {
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
            covered: Arc::default(),
            state: Mutex::new(state),
            leaving: Leaving::default(),
            ended: Condvar::new(),
        }
    }

    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.generation == fork::generation() {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    /// Ends every registration of a domain.
    pub(crate) fn forget(&self, pd: V::Pd) {
        let of =
            |state: &mut State<G, V>| state.of_domain(pd).flat_map(|(_, regions)| regions.values()).cloned().collect();
        self.take_out(of, |entry| entry.pd == pd);
    }

    /// Ends every registration of each domain that `which` chooses.
    pub(crate) fn forget_where(&self, which: impl Fn(V::Pd) -> bool) {
        let of = |state: &mut State<G, V>| {
            let chosen = state.regions.iter().filter(|((pd, _), _)| which(*pd));
            chosen.flat_map(|(_, regions)| regions.values()).cloned().collect()
        };
        self.take_out(of, |entry| which(entry.pd));
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
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
        if self.check_process().is_ok() {
            let state = lock(&self.state);
            (stats.entries, stats.bytes, stats.bar1_bytes) = (state.entries, state.bytes, state.bar1_bytes);
            // This needs the lock, under which a thread that removes an entry counts its hits.
            stats.hits = counters.hits.get() + state.all().map(|entry| entry.word.hits()).sum::<u64>();
        }
        stats
    }

    /// Returns the number of registrations that nobody uses at this moment, for the models.
    #[cfg(feature = "shuttle")]
    pub(crate) fn unused(&self) -> usize {
        lock(&self.state).all().filter(|entry| !entry.word.in_use()).count()
    }

    /// Registers what `recent` is not, and sees to the limits.
    #[inline(never)]
    pub(crate) fn register(
        self: &Arc<Self>,
        recent: Option<Held<G, V>>,
        pd: V::Pd,
        access: Access,
        range: Range,
    ) -> Result<Held<G, V>, Error> {
        if let Some(entry) = recent.or_else(|| self.hit(pd, access, &range)) {
            if self.options.idle_bytes > 0 {
                lock(&self.state).lend(&entry);
            }
            return Ok(entry);
        }
        self.counters.misses.add(1);
        let entry = self.miss(pd, access, range)?;
        self.trim();
        self.relieve();
        Ok(entry)
    }

    /// Returns a lease of what this thread had lately, without a lock.
    #[inline]
    pub(crate) fn recent(self: &Arc<Self>, pd: V::Pd, access: Access, range: &Range) -> Option<Held<G, V>> {
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

    /// Returns a lease if the memory is still the same. An entry that was removed meanwhile, as by
    /// a hook, gives none.
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
            let _cover = self.covered.cover(range);
            lock(&self.state).making.insert(number, Making { range, freed: false });
            let made = self.make_of(pd, access, range);
            let mut state = lock(&self.state);
            let freed = state.making.remove(&number).is_none_or(|making| making.freed);
            let ((entry, held), same) = made?;
            // A free that was reported before the entry is in the map did not see the entry, so it
            // is not kept. It is not kept either if nobody could say later whether its memory is
            // still the same.
            let keep = same && !freed && entry.identity.is_watched();
            let inside = if keep { state.insert(&entry) } else { None };
            let kept = inside.is_some();
            if kept {
                self.watch(&mut state, &entry);
                if self.options.idle_bytes > 0 {
                    state.lend(&held);
                }
            }
            let out = inside.unwrap_or_else(|| vec![entry.clone()]);
            if same && self.options.on_gone.is_some() {
                state.outside.keep(&out);
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

    /// Registers, and returns whether the memory is still what it was before. If not, the region
    /// may be of memory that was freed meanwhile, or of what took its place.
    fn make_of(self: &Arc<Self>, pd: V::Pd, access: Access, range: Range) -> Result<(New<G, V>, bool), Error> {
        let identity = Identity::read(&self.gpu, range)?;
        let made = self.make(pd, access, range, &identity)?;
        Ok((made, identity.seems_to_hold(&self.gpu)))
    }

    /// Registers. If memory is short, tries once more after making room.
    fn make(
        self: &Arc<Self>,
        pd: V::Pd,
        access: Access,
        range: Range,
        identity: &Identity,
    ) -> Result<New<G, V>, Error> {
        let before = {
            let state = lock(&self.state);
            state.ending.keys().next().copied().unwrap_or(state.next_end)
        };
        let first = self.make_once(pd, access, range, identity);
        match first {
            Err(error) if self.make_room(&error, before) => {
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
            // There is memory of a GPU, so CUDA has started.
            exit::end_before_cuda();
            return Ok(Entry::new(Parts {
                keys: self.verbs.keys(&mr),
                address: self.verbs.address(&mr),
                pd,
                access,
                range,
                device: if self.options.free_bytes > 0 { self.gpu.device(range.start()) } else { 0 },
                way,
                cache: Arc::downgrade(self),
                identity: identity.clone(),
                used: self.tick(),
                cover: self.covered.cover(range),
                region: Region {
                    verbs: self.verbs.clone(),
                    counters: self.counters.clone(),
                    export,
                    generation: self.generation,
                    mr: Some(mr),
                },
            }));
        }
        let memory = Memory::of(&self.gpu, range.start());
        Err(Error::refused(range, access, (peer_memory, dma_buf), memory, self.policy.is_loaded()))
    }

    fn by_dma_buf(&self, pd: V::Pd, access: Access, range: Range, identity: &Identity) -> Result<Made<V>, Refusal> {
        let pages =
            range.widened(page_size()).ok_or_else(|| Refusal::Export("the range ends the address space".into()))?;
        // Exporting costs more than these two answers.
        self.verbs.takes_dma_buf(pd).and_then(|()| self.gpu.exports()).map_err(Refusal::Missing)?;
        let (export, fd) = match self.exported(&range, &pages, identity) {
            Some(shared) => shared,
            None => {
                let (fd, exported) = self.gpu.export(pages, range).map_err(Refusal::Export)?;
                if !exported.contains(&pages) {
                    return Err(Refusal::Export(format!("{exported} were exported in place of {pages}")));
                }
                let fd = Arc::new(Closed::in_children(fd));
                let export = Arc::new(Export::new(exported, &fd));
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

    /// Returns a dma-buf of the same memory that another NIC has.
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

    /// Removes this entry, which left the map or was never in it, so that nobody gets it again. A
    /// lease may hold the region for long, or for ever if it was deregistered past the cache, but
    /// not the dma-buf: that would keep memory that is freed meanwhile.
    #[must_use = "it is deregistered where no lock is held"]
    fn remove(&self, state: &mut State<G, V>, entry: &Arc<Entry<G, V>>) -> Option<Rest<G, V>> {
        // SAFETY: An entry is removed once, under this lock, so it is not yet.
        let export = unsafe { entry.region() }.export.clone();
        let (hits, unused) = entry.word.remove();
        self.counters.hits.add(hits);
        if unused {
            // SAFETY: The word said so.
            return Some((Some(unsafe { state.end(entry) }), None));
        }
        Some((None, Some(export?.close()?)))
    }

    /// Waits for what other threads are deregistering at this moment, and returns the number of the
    /// next end. The caller has nothing left to deregister itself.
    fn wait_for_ends(&self) -> u64 {
        let mut state = lock(&self.state);
        let until = state.next_end;
        while state.ending.first_key_value().is_some_and(|(number, _)| *number < until) {
            state = wait(&self.ended, state);
        }
        until
    }

    /// Takes this entry out of the map, so that nobody gets it again. Returns it if it was in the
    /// map.
    pub(crate) fn detach(&self, entry: &Entry<G, V>) -> Option<Arc<Entry<G, V>>> {
        self.check_process().ok()?;
        let mut state = lock(&self.state);
        let entry = state.same(entry)?.clone();
        state.take(&entry);
        let _removed = self.remove(&mut state, &entry);
        // Release the lock first.
        drop(state);
        Some(entry)
    }

    fn stale(&self, entry: &Entry<G, V>) {
        let Some(entry) = self.detach(entry) else { return };
        self.counters.stale.add(1);
        if self.options.on_gone.is_some() {
            // Report its memory as gone only if that is certain.
            let range = entry.range;
            lock(&self.state).outside.keep(&[entry]);
            self.tell_outside(Some(range), false);
        }
    }

    /// Reports the entries in use outside of the map, in this range or anywhere, whose memory has
    /// gone, as was reported or as CUDA says.
    fn tell_outside(&self, range: Option<Range>, reported: bool) {
        if self.options.on_gone.is_none() {
            return;
        }
        let within = lock(&self.state).outside.take(range);
        let (gone, same): (Vec<_>, Vec<_>) =
            within.into_iter().partition(|entry| reported || !entry.identity.seems_to_hold(&self.gpu));
        lock(&self.state).outside.keep(&same);
        gone.iter().for_each(|entry| self.tell(entry));
    }

    /// Reports that the memory of this entry, which was just taken out, has gone.
    fn tell(&self, entry: &Entry<G, V>) {
        if let Some(tell) = self.options.on_gone.as_ref().filter(|_| entry.word.in_use()) {
            let (lkey, rkey) = entry.keys;
            tell(Gone { range: entry.range, lkey, rkey, mr: entry.address });
        }
    }

    /// Returns whether the memory of this entry is still the same.
    pub(crate) fn valid(&self, entry: &Entry<G, V>) -> bool {
        self.check_process().is_ok() && entry.identity.holds(&self.gpu)
    }

    /// Ends what is freed, and waits where another thread is just doing that: the program may ask
    /// for this because it is about to allocate.
    pub(crate) fn sweep(&self) {
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
        self.wait_for_ends();
    }

    pub(crate) fn trust(&self, on: bool) {
        if self.check_process().is_err() {
            return;
        }
        if on {
            // A registration under way may be of memory that was freed without a report, so it is
            // not kept.
            lock(&self.state).freed(None);
            // Nobody reported what was freed before, so sweep first. Only then do hits stop asking.
            self.sweep();
            self.trusted.fetch_add(1, Ordering::Release);
        } else {
            self.trusted.fetch_sub(1, Ordering::Release);
        }
    }

    pub(crate) fn freed(&self, range: Option<Range>) {
        if range.is_some_and(|range| !self.covered.may_overlap(&range)) {
            return;
        }
        if self.check_process().is_ok() {
            let chosen = |state: &mut State<G, V>| {
                state.freed(range);
                match &range {
                    Some(range) => state.overlapping(range),
                    None => state.all().cloned().collect(),
                }
            };
            let out = self.take_out(chosen, |entry| range.is_none_or(|range| entry.range.overlaps(&range)));
            self.counters.freed.add(out.len() as u64);
            out.iter().for_each(|entry| self.tell(entry));
            self.tell_outside(range, true);
        }
    }

    /// Takes out the entries that `chosen` returns, and waits for those that `which` chooses and
    /// other threads are deregistering. Returns what it took out.
    fn take_out(
        &self,
        chosen: impl FnOnce(&mut State<G, V>) -> Vec<Arc<Entry<G, V>>>,
        which: impl Fn(&Entry<G, V>) -> bool,
    ) -> Vec<Arc<Entry<G, V>>> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        let chosen = chosen(&mut state);
        if !chosen.is_empty() {
            chosen.iter().for_each(|entry| state.take(entry));
            let out: Vec<_> = chosen.iter().filter_map(|entry| self.remove(&mut state, entry)).collect();
            drop(state);
            drop(out);
            state = lock(&self.state);
        }
        while state.ending.values().any(|entry| which(entry)) {
            state = wait(&self.ended, state);
        }
        drop(state);
        chosen
    }

    /// Evicts until the limits hold. If all that is left is in use, the ends of leases continue
    /// that.
    fn trim(&self) {
        if self.check_process().is_err() {
            return;
        }
        let mut out = Vec::new();
        let mut state = lock(&self.state);
        while state.exceeds(&self.limits, self.options.idle_bytes) {
            let Some(entry) = state.turn() else { break };
            // An entry in use learns that it is awaited.
            if self.evict(&entry) {
                state.take(&entry);
                // SAFETY: evict() said so.
                out.push(unsafe { state.end(&entry) });
            }
        }
        drop(state);
    }

    /// Evicts all that nobody uses, and ends what is freed, before a program allocates what it
    /// could not get. What other threads are letting go of is released, too, when this returns.
    /// Returns how many bytes it released itself.
    pub(crate) fn shrink(&self) -> u64 {
        self.sweep();
        if self.check_process().is_err() {
            return 0;
        }
        let evicted = self.evict_where(|_, _| true).iter().map(|entry| entry.range.length()).sum();
        self.wait_for_ends();
        evicted
    }

    /// Evicts and returns what nobody uses of the GPUs and ways that `which` chooses. An entry in use
    /// leaves its queue, so that the next call does not meet it, and its last lease puts it back.
    fn evict_where(&self, which: impl Fn(i32, Way) -> bool) -> Vec<Arc<Entry<G, V>>> {
        let mut state = lock(&self.state);
        let queues: Vec<_> = state.queues.keys().copied().filter(|(device, way)| which(*device, *way)).collect();
        let mut evicted = Vec::new();
        // No queue has what is leaving, and the thread that lets it go will not evict it.
        for entry in self.leaving.now() {
            if which(entry.device, entry.way) && state.same(&entry).is_some() && self.evict(&entry) {
                state.take(&entry);
                evicted.push(entry);
            }
        }
        for queue in queues {
            while let Some((_, entry)) = state.first(queue) {
                if self.evict(&entry) {
                    state.take(&entry);
                    evicted.push(entry);
                }
            }
        }
        // SAFETY: evict() said so.
        let out: Vec<_> = evicted.iter().map(|entry| unsafe { state.end(entry) }).collect();
        drop(state);
        drop(out);
        evicted
    }

    /// Evicts what nobody uses, if that may help against `error`, and waits for what other threads
    /// are deregistering. Returns whether there was anything, or has been since the end with the
    /// number `before`.
    fn make_room(&self, error: &Error, before: u64) -> bool {
        let (short, perhaps) = (error.lacks_memory(), error.may_lack_bar1());
        if !short && !perhaps {
            return false;
        }
        self.evict_where(|_, way| short || way == Way::PeerMemory);
        self.wait_for_ends() > before
    }

    /// Removes this entry if nobody uses it, so that nobody gets it again. The caller must then
    /// take it out of the map and end it.
    fn evict(&self, entry: &Entry<G, V>) -> bool {
        let Some(hits) = entry.word.remove_or_await() else { return false };
        self.counters.hits.add(hits);
        self.counters.evicted.add(1);
        true
    }

    /// Lets this entry, which is new in the map, be found by its GPU. If that has little memory
    /// left, the entry ends with its last lease.
    fn watch(&self, state: &mut State<G, V>, entry: &Arc<Entry<G, V>>) {
        if self.options.free_bytes > 0 {
            state.of_gpus.insert((entry.device, Arc::as_ptr(entry) as usize), entry.clone());
            if state.pressed.contains(&entry.device) {
                entry.word.remove_or_await();
            }
        }
    }

    /// Asks each GPU of which something is registered, if it is time or one had little memory left,
    /// and evicts what is registered of those that have little.
    pub(crate) fn relieve(&self) {
        let limit = self.options.free_bytes;
        if limit == 0 || self.check_process().is_err() {
            return;
        }
        // A GPU that had little may have enough again, and nothing registered by which to notice
        // that.
        if !self.pressure.is_due() && lock(&self.state).pressed.is_empty() {
            return;
        }
        let mut from = (i32::MIN, 0);
        loop {
            let next = lock(&self.state).of_gpus.range(from..).next().map(|(at, entry)| (*at, entry.clone()));
            let Some(((device, at), entry)) = next else { return };
            from = (device, at + 1);
            let holds = || entry.identity.holds(&self.gpu);
            let memory = if holds() { self.gpu.memory(entry.range.start()) } else { None };
            if memory.is_none() && !holds() {
                // The entry cannot say which GPU it belongs to. Its memory may have gone just now, so
                // no answer does not mean that there is enough.
                self.stale(&entry);
                continue;
            }
            // Where nobody says how much is free, nothing is kept either: an allocator might miss it.
            if memory.is_none_or(|(free, all)| is_little(limit, free, all)) {
                // Entries in use, now or later, learn that they are awaited.
                if lock(&self.state).pressed.insert(device) {
                    self.evict_where(|of, _| of == device);
                }
            } else {
                lock(&self.state).pressed.remove(&device);
            }
            let Some(next) = device.checked_add(1) else { return };
            from = (next, 0);
        }
    }
}

impl<G: Gpu, V: Verbs> Home for Inner<G, V> {
    type Verbs = V;

    fn leaving(&self) -> Option<&Leaving<Entry<G, V>>> {
        self.check_process().ok()?;
        Some(&self.leaving)
    }

    fn released(&self, entry: &Entry<G, V>) {
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
            if self.options.idle_bytes > 0 && entry.word.in_use() {
                // Somebody got it meanwhile, and lend() sees to it that its last lease comes here.
                state.unqueue(&entry);
            }
        }
        drop(state);
        drop(out);
        self.trim();
    }

    fn ended(&self, number: u64) {
        let ended = lock(&self.state).ending.remove(&number);
        self.ended.notify_all();
        drop(ended);
    }
}

impl<G: Gpu, V: Verbs> Drop for Inner<G, V> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.queues.clear();
        state.queued_bytes = 0;
        state.of_gpus.clear();
        let left: Vec<_> = std::mem::take(&mut state.regions).into_values().flat_map(BTreeMap::into_values).collect();
        // A child must not wait for a thread of its parent.
        let forked = self.generation != fork::generation();
        for entry in left {
            // SAFETY: It was in the map, so it is not removed.
            let export = unsafe { entry.region() }.export.clone();
            if entry.word.remove().1 {
                // SAFETY: The word said so. Nobody waits for it, so it needs no number.
                drop(unsafe { Removed::new(entry, 0) });
            } else if let Some(export) = export.filter(|_| !forked) {
                drop(export.close());
            }
        }
    }
}
