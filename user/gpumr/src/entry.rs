// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! One registration. It ends when it is removed from the cache and its last lease has ended.

use crate::backend::{Access, Verbs};
use crate::covered::Cover;
use crate::fork::{self, Closed};
use crate::identity::Identity;
use crate::leaving::Leaving;
use crate::range::Range;
use crate::stats::Counters;
use crate::sync::{lock, Arc, AtomicU64, Mutex, Weak};
use crate::way::Way;
use crate::word::{End, Word};
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

/// The size of a GPU page in BAR1.
const GPU_PAGE: u64 = 64 << 10;

/// A dma-buf, which the registrations of all NICs share. While it is open, it keeps the memory.
pub(crate) struct Export {
    pub(crate) range: Range,
    /// The descriptor, or `None` once newer ones have its place, or a registration that has it left
    /// the cache. Existing registrations do not need it any more.
    fd: Mutex<Option<Arc<Closed>>>,
}

impl Export {
    pub(crate) fn new(range: Range, fd: &Arc<Closed>) -> Self {
        Self { range, fd: Mutex::new(Some(fd.clone())) }
    }

    pub(crate) fn fd(&self) -> Option<Arc<Closed>> {
        lock(&self.fd).clone()
    }

    /// Makes sure that nobody gets the descriptor any more. It is closed when its last user drops
    /// it.
    pub(crate) fn close(&self) -> Option<Arc<Closed>> {
        lock(&self.fd).take()
    }
}

/// The part of an entry that exists until the entry ends.
///
/// # Invariants
///
/// `mr` is `Some` until drop.
pub(crate) struct Region<V: Verbs> {
    pub(crate) verbs: Arc<V>,
    pub(crate) counters: Arc<Counters>,
    /// The dma-buf that keeps the memory for other NICs.
    pub(crate) export: Option<Arc<Export>>,
    pub(crate) generation: u64,
    pub(crate) mr: Option<V::Mr>,
}

impl<V: Verbs> Drop for Region<V> {
    fn drop(&mut self) {
        let Some(mr) = self.mr.take() else { return };
        if self.generation != fork::generation() {
            // The region is the parent's.
            std::mem::forget(mr);
        } else if self.verbs.deregister(mr).is_err() {
            self.counters.lost.add(1);
        }
    }
}

/// What an entry needs of the cache that keeps it.
pub(crate) trait Home: Send + Sync + Sized + 'static {
    type Verbs: Verbs;
    /// Returns the list of the entries whose last lease is just ending. Returns `None` in a child of the
    /// process, in which a thread of the parent may have its lock for ever.
    fn leaving(&self) -> Option<&Leaving<Entry<Self>>>;
    /// Continues when the last lease of this entry, which is awaited, has ended.
    fn released(&self, entry: &Entry<Self>);
    /// Notes that the entry with this number is deregistered.
    fn ended(&self, number: u64);
}

/// A protection domain of the verbs that a cache uses.
pub(crate) type Pd<H> = <<H as Home>::Verbs as Verbs>::Pd;

struct Alive<H: Home> {
    region: Region<H::Verbs>,
    /// The entry itself, so that leases need not count it a second time.
    _own: Arc<Entry<H>>,
}

/// # Invariants
///
/// `alive` is `Some` and nobody writes to it until `word` is removed and without leases; then it
/// belongs to the caller that `word` told so.
// A hit writes to the first line of the processor's cache. No other entry lies there, so that threads
// with entries of their own do not wait for each other. With reported frees and the types that
// libgpumr.so has, a hit reads the first two lines. Without such reports it reads more of `identity`.
#[repr(C, align(64))]
pub(crate) struct Entry<H: Home> {
    pub(crate) word: Word,
    /// The value of the cache's clock when it was last asked for.
    pub(crate) used: AtomicU64,
    pub(crate) range: Range,
    pub(crate) pd: Pd<H>,
    pub(crate) access: Access,
    /// The GPU's number, or 0 if nobody needs it.
    pub(crate) device: i32,
    /// The use under which it waits to be evicted. It is read and written under the cache's lock.
    pub(crate) queued: AtomicU64,
    alive: UnsafeCell<Option<Alive<H>>>,
    pub(crate) identity: Identity,
    pub(crate) cache: Weak<H>,
    pub(crate) keys: (u32, u32),
    /// The address of the region's `struct ibv_mr`.
    pub(crate) address: usize,
    pub(crate) way: Way,
    /// While this is there, a reported free of its memory looks for it.
    cover: Mutex<Option<Cover>>,
    /// Says whether the region is no longer the cache's.
    pub(crate) abandoned: AtomicBool,
    /// The bytes of BAR1 that it may take: a dma-buf has more than the range where CUDA exports nothing
    /// less than a whole allocation.
    pub(crate) bar1_bytes: u64,
}

// SAFETY: All fields may be sent and shared but `alive`. Its parts may, and its one writer is alone
// by the invariant.
unsafe impl<H: Home> Sync for Entry<H> {}

/// The parts that an entry is made of.
pub(crate) struct Parts<H: Home> {
    pub(crate) pd: Pd<H>,
    pub(crate) access: Access,
    pub(crate) range: Range,
    pub(crate) device: i32,
    pub(crate) way: Way,
    pub(crate) keys: (u32, u32),
    pub(crate) address: usize,
    pub(crate) cache: Weak<H>,
    pub(crate) identity: Identity,
    pub(crate) used: u64,
    pub(crate) cover: Cover,
    pub(crate) region: Region<H::Verbs>,
}

impl<H: Home> Entry<H> {
    /// Returns a new entry, with a lease.
    pub(crate) fn new(parts: Parts<H>) -> (Arc<Self>, Held<H>) {
        let held = parts.region.export.as_ref().map_or(parts.range, |export| export.range);
        let entry = Arc::new(Self {
            word: Word::new(),
            used: AtomicU64::new(parts.used),
            queued: AtomicU64::new(u64::MAX),
            pd: parts.pd,
            access: parts.access,
            range: parts.range,
            device: parts.device,
            way: parts.way,
            keys: parts.keys,
            address: parts.address,
            cache: parts.cache,
            identity: parts.identity,
            cover: Mutex::new(Some(parts.cover)),
            abandoned: AtomicBool::new(false),
            bar1_bytes: held.widened(GPU_PAGE).map_or(held.length(), |pages| pages.length()),
            alive: UnsafeCell::new(None),
        });
        let alive = Alive { region: parts.region, _own: entry.clone() };
        // SAFETY: Nobody else has it yet.
        unsafe { *entry.alive.get() = Some(alive) };
        let held = Held(NonNull::from(&*entry));
        (entry, held)
    }

    /// Returns a lease, unless the entry is removed, and the number of hits that must be counted.
    #[inline]
    pub(crate) fn hit(&self) -> Option<(Held<H>, u64)> {
        let hits = self.word.hit()?;
        Some((Held(NonNull::from(self)), hits))
    }

    /// Returns its memory region, and what keeps the memory.
    ///
    /// # Safety
    ///
    /// The entry is not removed, or has a lease, until the reference is no longer used.
    pub(crate) unsafe fn region(&self) -> &Region<H::Verbs> {
        // SAFETY: By this function's contract and the invariant nobody writes.
        let alive = unsafe { &*self.alive.get() };
        &alive.as_ref().expect("until it ends").region
    }

    /// Takes out what the entry has. Dropping that deregisters, so it must happen where no lock is
    /// held; after that a reported free finds nothing. The entry may go with it.
    ///
    /// # Safety
    ///
    /// `word` told the caller that the entry is removed and without leases.
    unsafe fn finish(&self) -> (Option<Alive<H>>, Option<Cover>) {
        // SAFETY: By this function's contract and the invariant it belongs to the caller.
        let alive = unsafe { (*self.alive.get()).take() };
        // The parts of a pair are dropped in their order.
        (alive, lock(&self.cover).take())
    }
}

/// An entry that was removed when nobody used it. Dropping it deregisters, so it must happen where
/// no lock is held. The number is that under which others wait for it.
pub(crate) struct Removed<H: Home>(Arc<Entry<H>>, u64);

impl<H: Home> Removed<H> {
    /// Takes over the end of an entry.
    ///
    /// # Safety
    ///
    /// The caller keeps the contract of [`Entry::finish()`].
    pub(crate) unsafe fn new(entry: Arc<Entry<H>>, number: u64) -> Self {
        Self(entry, number)
    }
}

impl<H: Home> Drop for Removed<H> {
    fn drop(&mut self) {
        // SAFETY: Promised in `new()`.
        drop(unsafe { self.0.finish() });
        if let Some(cache) = self.0.cache.upgrade() {
            cache.ended(self.1);
        }
    }
}

/// A lease of an entry.
///
/// # Invariants
///
/// It is counted in the entry's word, so the entry lives.
pub(crate) struct Held<H: Home>(NonNull<Entry<H>>);

// SAFETY: It is a counted reference, as `Arc` is one, to what may be sent and shared.
unsafe impl<H: Home> Send for Held<H> {}
// SAFETY: As for Send.
unsafe impl<H: Home> Sync for Held<H> {}

impl<H: Home> Deref for Held<H> {
    type Target = Entry<H>;

    fn deref(&self) -> &Entry<H> {
        // SAFETY: By the invariant it lives.
        unsafe { self.0.as_ref() }
    }
}

impl<H: Home> Held<H> {
    /// Returns the lease as a pointer. The lease does not end.
    pub(crate) fn into_raw(self) -> NonNull<Entry<H>> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Returns the lease of a pointer.
    ///
    /// # Safety
    ///
    /// `into_raw()` returned it, and this is done with it once.
    pub(crate) unsafe fn from_raw(entry: NonNull<Entry<H>>) -> Self {
        Self(entry)
    }

    /// Returns the entry, for longer than this lease.
    fn own(&self) -> Option<Arc<Entry<H>>> {
        // SAFETY: This lease lives, so nobody writes.
        let alive = unsafe { &*self.alive.get() };
        alive.as_ref().map(|alive| alive._own.clone())
    }

    pub(crate) fn region(&self) -> &Region<H::Verbs> {
        // SAFETY: This lease lives as long as the reference.
        unsafe { (**self).region() }
    }
}

impl<H: Home> Drop for Held<H> {
    #[inline]
    fn drop(&mut self) {
        // From here on the entry may go, except for the caller that learns that it must end the
        // entry.
        match self.word.end(|| Leaves::new(self.cache.upgrade()?, self.own()?)) {
            End::Nothing | End::Awaited(None) => {}
            End::Awaited(Some(leaves)) => leaves.released(),
            // SAFETY: The word said so.
            End::Removed => drop(unsafe { self.finish() }),
        }
    }
}

/// Keeps an entry in the list of its cache until drop.
struct Leaves<H: Home> {
    cache: Arc<H>,
    entry: Arc<Entry<H>>,
}

impl<H: Home> Leaves<H> {
    /// Puts the entry into the list, before its last lease ends. Returns `None` in a child of the
    /// process.
    fn new(cache: Arc<H>, entry: Arc<Entry<H>>) -> Option<Self> {
        cache.leaving()?.add(entry.clone());
        Some(Self { cache, entry })
    }

    /// Continues when the lease has ended.
    fn released(self) {
        self.cache.released(&self.entry);
    }
}

impl<H: Home> Drop for Leaves<H> {
    fn drop(&mut self) {
        if let Some(leaving) = self.cache.leaving() {
            leaving.remove(&self.entry);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The size of a line of the processor's cache.
    const LINE: usize = 64;

    type Entry = super::Entry<crate::inner::Inner<crate::cuda::Cuda, crate::ibverbs::IbVerbs>>;

    #[test]
    fn a_hit_writes_to_one_line_and_reads_two_where_frees_are_reported() {
        assert!(offset_of!(Entry, word).max(offset_of!(Entry, used)) + 8 <= LINE);
        assert!(offset_of!(Entry, access) + size_of::<Access>() <= LINE);
        let reads_to = offset_of!(Entry, identity) + Identity::EPOCH_ENDS;
        assert!(reads_to <= 2 * LINE, "{reads_to} bytes");
        assert_eq!(align_of::<Entry>(), LINE);
    }
}
