// SPDX-License-Identifier: GPL-2.0

//! Tickets: numbers that stand for registrations where a pointer could outlive what it points to
//! (rule 2).
//!
//! A ticket is a slot's index (low half) and how often the slot was given out (high half, from 1).
//! So it is found in one step, is never zero, and is never given out twice. Slots come in chunks of
//! a page.
//!
//! The registry lock is a leaf: nothing is allocated, dropped or called under it, but that a new
//! registration is written into its memory.

use crate::ffi::shim::{read_shortly, Process};
use crate::num;
use crate::pin::registration::Registration;
use core::mem::MaybeUninit;
use kernel::alloc::KVVec;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{global_lock, Arc, UniqueArc};

/// Behind the last slot of a list.
const NONE: u32 = u32::MAX;

/// Lists of orphans, by the process that may put them. So a process walks past few orphans of
/// others.
const LISTS: usize = 64;

/// No slot has a higher index than this.
const LAST: u32 = NONE - 1;

/// Slots that are looked at under one hold of the lock.
const PER_HOLD: u32 = 256;

/// Orphans of others that a process walks past, under one hold of the lock.
const MOST_WALKED: u32 = 4096;

/// Slots of one chunk: what fits into 4 KiB.
const CHUNK: usize = 4096 / size_of::<Slot>();

enum Entry {
    /// Stands for nothing.
    Free,
    /// Stands for this registration.
    Live(Arc<Registration>),
    /// The same, and in a list of orphans.
    Orphan(Arc<Registration>),
}

impl Entry {
    fn registration(&self) -> Option<&Arc<Registration>> {
        match self {
            Self::Live(registration) | Self::Orphan(registration) => Some(registration),
            Self::Free => None,
        }
    }
}

struct Slot {
    generation: u32,
    /// Next free slot, or next orphan of the list.
    next: u32,
    /// Orphan before this one in its list.
    before: u32,
    entry: Entry,
}

/// All slots, and the lists through them.
struct Registry {
    chunks: KVVec<KVec<Slot>>,
    free: u32,
    orphans: [u32; LISTS],
}

global_lock! {
    // SAFETY: Initialised in `init()`, before anything is pinned.
    unsafe(uninit) static REGISTRY: Mutex<Registry> = Registry::new();
}

/// Initialises the registry.
///
/// # Safety
///
/// To be called once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { REGISTRY.init() };
}

/// Number of orphans, changed under the registry lock. So a registration takes no lock to find that
/// there are none. Relaxed: who was told of an orphan, by a `wait()` for the process that left it, is
/// ordered behind its count by that. To others an old zero is as if they had come before.
static ORPHANS: Atomic<u64> = Atomic::new(0);

/// Gives the memory back. A registration that is left would never be found again, nor its pin put.
///
/// # Safety
///
/// Nothing is registered, and nothing will be: for unloading.
pub(crate) unsafe fn clear() {
    // Dropped behind the lock.
    let _old = core::mem::replace(&mut *REGISTRY.lock(), Registry::new());
}

/// Splits a ticket into generation and index of a slot.
fn split(ticket: u64) -> Option<(u32, u32)> {
    Some((u32::try_from(ticket >> 32).ok()?, u32::try_from(ticket & u64::from(u32::MAX)).ok()?))
}

fn join(generation: u32, index: u32) -> u64 {
    (u64::from(generation) << 32) | u64::from(index)
}

impl Registry {
    const fn new() -> Self {
        Self { chunks: KVVec::new(), free: NONE, orphans: [NONE; LISTS] }
    }

    fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        let index = num::index(index);
        self.chunks.get_mut(index.checked_div(CHUNK)?)?.get_mut(index.checked_rem(CHUNK)?)
    }

    /// Returns the slot that `ticket` stands for, unless it was given to another since.
    fn owned(&mut self, ticket: u64) -> Option<&mut Slot> {
        let (generation, index) = split(ticket)?;
        self.slot(index).filter(|slot| slot.generation == generation)
    }

    /// Takes a free slot.
    fn take_free(&mut self) -> Option<u64> {
        let index = self.free;
        let slot = self.slot(index)?;
        let next = core::mem::replace(&mut slot.next, NONE);
        let ticket = join(slot.generation, index);
        self.free = next;
        Some(ticket)
    }

    /// Writes what `make` makes of `ticket` into `room`, and enters it.
    fn enter<I: PinInit<Registration>>(
        &mut self,
        ticket: u64,
        room: UniqueArc<MaybeUninit<Registration>>,
        make: impl FnOnce(u64) -> I,
    ) -> Arc<Registration> {
        let Ok(made) = room.pin_init_with(make(ticket));
        let registration = Arc::from(made);
        if let Some(slot) = self.owned(ticket) {
            slot.entry = Entry::Live(registration.clone());
        }
        registration
    }

    /// Frees the slot of `ticket` and hands out what was in it, to be dropped outside the lock.
    fn free(&mut self, ticket: u64) -> Option<Entry> {
        let (_, index) = split(ticket)?;
        let free = self.free;
        let slot = self.owned(ticket)?;
        let entry = core::mem::replace(&mut slot.entry, Entry::Free);
        // A slot whose generations are used up is never given out again.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            slot.next = free;
            self.free = index;
        }
        Some(entry)
    }

    /// Returns the index of the first slot that another chunk would have; `None` if an index could not
    /// name all of its slots.
    fn next_index(&self) -> Option<u32> {
        let first = u32::try_from(self.chunks.len().checked_mul(CHUNK)?).ok()?;
        let behind = first.checked_add(u32::try_from(CHUNK).ok()?)?;
        (behind <= LAST).then_some(first)
    }

    /// Adds a chunk of free slots, the first of which is `first`. Hands it back where the list of
    /// chunks is full.
    fn add(&mut self, chunk: KVec<Slot>, first: u32) -> Option<KVec<Slot>> {
        let slots = u32::try_from(chunk.len()).unwrap_or(0);
        if let Err(full) = self.chunks.push_within_capacity(chunk) {
            return Some(full.0);
        }
        for index in (first..first.saturating_add(slots)).rev() {
            let free = self.free;
            if let Some(slot) = self.slot(index) {
                slot.next = free;
                self.free = index;
            }
        }
        None
    }

    /// Returns a ticket of a free slot. Adds `chunk` if there is none.
    fn ticket(&mut self, chunk: &mut Option<KVec<Slot>>) -> Result<u64, Need> {
        loop {
            if let Some(ticket) = self.take_free() {
                return Ok(ticket);
            }
            let first = self.next_index().ok_or(Need::Indices)?;
            let new = chunk.take().ok_or(Need::Chunk)?;
            *chunk = self.add(new, first);
            if chunk.is_some() {
                return Err(Need::Room(self.chunks.len()));
            }
        }
    }

    /// Moves the chunks into a longer list, and hands out the old one.
    fn relocate(&mut self, mut list: KVVec<KVec<Slot>>) -> KVVec<KVec<Slot>> {
        if list.capacity() > self.chunks.capacity() {
            for chunk in self.chunks.drain_all() {
                // Cannot fail: the list is longer. A chunk lost here would lose its slots only.
                let _ = list.push_within_capacity(chunk);
            }
            core::mem::swap(&mut self.chunks, &mut list);
        }
        list
    }

    /// Puts a live registration into the list of orphans `list`.
    fn link_orphan(&mut self, ticket: u64, list: usize) {
        let (Some((_, index)), Some(&head)) = (split(ticket), self.orphans.get(list)) else {
            return;
        };
        let Some(slot) = self.owned(ticket) else {
            return;
        };
        slot.entry = match core::mem::replace(&mut slot.entry, Entry::Free) {
            Entry::Live(registration) => Entry::Orphan(registration),
            other => {
                slot.entry = other;
                return;
            }
        };
        let _ = ORPHANS.fetch_add(1, Relaxed);
        slot.next = head;
        slot.before = NONE;
        if let Some(second) = self.slot(head) {
            second.before = index;
        }
        if let Some(first) = self.orphans.get_mut(list) {
            *first = index;
        }
    }

    /// Takes `ticket` out of the list of orphans that it is in, if it is in one.
    fn unlink_orphan(&mut self, ticket: u64) {
        let Some(slot) = self.owned(ticket) else {
            return;
        };
        let list = match &slot.entry {
            Entry::Orphan(registration) => list_of(registration.process()),
            Entry::Free | Entry::Live(_) => return,
        };
        slot.entry = match core::mem::replace(&mut slot.entry, Entry::Free) {
            Entry::Orphan(registration) => Entry::Live(registration),
            other => other,
        };
        let _ = ORPHANS.fetch_sub(1, Relaxed);
        let next = core::mem::replace(&mut slot.next, NONE);
        let before = core::mem::replace(&mut slot.before, NONE);
        if let Some(slot) = self.slot(next) {
            slot.before = before;
        }
        match self.slot(before) {
            Some(slot) => slot.next = next,
            None => {
                if let Some(first) = self.orphans.get_mut(list) {
                    *first = next;
                }
            }
        }
    }

    /// Finds an orphan of `list` that `process` may put, among the first ones: every free callback waits
    /// for the lock meanwhile.
    fn find_orphan(&mut self, list: usize, process: &Process) -> Option<Arc<Registration>> {
        let mut at = *self.orphans.get(list)?;
        for _ in 0..MOST_WALKED {
            let slot = self.slot(at)?;
            let next = slot.next;
            match &slot.entry {
                Entry::Orphan(registration) if registration.process() == process => return Some(registration.clone()),
                _ => at = next,
            }
        }
        None
    }
}

/// Returns the list of orphans for those that only `process` may put.
fn list_of(process: &Process) -> usize {
    num::index(process.tgid()).checked_rem(LISTS).unwrap_or(0)
}

/// Makes a chunk of slots that were never given out.
fn new_chunk() -> Result<KVec<Slot>> {
    let mut chunk = KVec::with_capacity(CHUNK, GFP_KERNEL)?;
    for _ in 0..CHUNK {
        chunk
            .push_within_capacity(Slot { generation: 1, next: NONE, before: NONE, entry: Entry::Free })
            .map_err(|_| ENOMEM)?;
    }
    Ok(chunk)
}

/// What the registry needs when it has no free slot.
enum Need {
    Chunk,
    /// Room for more chunks than this.
    Room(usize),
    /// Fewer registrations: no index is left.
    Indices,
}

/// Makes a registration that knows its ticket, and enters it.
///
/// Takes the registry lock and allocates: not under a state lock.
///
/// # Errors
///
/// `ENOMEM`, also where there are as many slots as an index can name: about four billion.
pub(crate) fn insert<I: PinInit<Registration>>(make: impl FnOnce(u64) -> I) -> Result<Arc<Registration>> {
    let room = UniqueArc::new_uninit(GFP_KERNEL)?;
    let mut chunk = None;
    loop {
        let mut registry = REGISTRY.lock();
        let need = match registry.ticket(&mut chunk) {
            Ok(ticket) => return Ok(registry.enter(ticket, room, make)),
            Err(need) => need,
        };
        drop(registry);
        match need {
            Need::Indices => return Err(ENOMEM),
            Need::Chunk => chunk = Some(new_chunk()?),
            Need::Room(chunks) => {
                let list = KVVec::with_capacity(chunks.saturating_mul(2).max(8), GFP_KERNEL)?;
                // The old list is freed here, behind the lock.
                let _old = REGISTRY.lock().relocate(list);
            }
        }
    }
}

/// Returns the registration that `ticket` stands for, counted; `None` if there is none (any more).
///
/// Allowed in the free callback: takes the registry lock only.
pub(crate) fn get(ticket: u64) -> Option<Arc<Registration>> {
    REGISTRY.lock().owned(ticket)?.entry.registration().cloned()
}

/// Returns the first registration whose slot has an index of at least `at`, with that index, counted.
/// Never waits for the registry lock: it pauses and tries again. So a walk over all registrations holds
/// up no free callback.
pub(crate) fn from_index(at: u32) -> Option<(u32, Arc<Registration>)> {
    let mut first = at;
    loop {
        let behind = first.checked_add(PER_HOLD)?;
        let found = read_shortly(
            || REGISTRY.try_lock(),
            |mut registry| {
                for index in first..behind {
                    if let Some(registration) = registry.slot(index)?.entry.registration() {
                        return Some(Some((index, registration.clone())));
                    }
                }
                Some(None)
            },
        );
        if let Some(found) = found? {
            return Some(found);
        }
        first = behind;
    }
}

/// Takes `ticket` out, orphan or not: once, by the one that ended the pin. The registry's count is
/// dropped behind the lock.
pub(crate) fn remove(ticket: u64) {
    let mut registry = REGISTRY.lock();
    registry.unlink_orphan(ticket);
    let entry = registry.free(ticket);
    drop(registry);
    drop(entry);
}

/// Enters `registration` into the list of orphans. Called under the state lock.
pub(crate) fn add_orphan(registration: &Registration) {
    REGISTRY.lock().link_orphan(registration.ticket(), list_of(registration.process()));
}

/// Returns whether there are orphans, of whatever process. Takes no lock.
pub(crate) fn has_orphans() -> bool {
    ORPHANS.load(Relaxed) != 0
}

/// Takes one orphan that `process` may put out of the list of orphans. It stays in the registry.
///
/// Each registration asks where there are orphans. Those of other processes cost it the lock and a
/// look at a list head. Where another process's number falls into the same list (one in 64), it walks
/// the first [`MOST_WALKED`] of those.
pub(crate) fn take_orphan(process: &Process) -> Option<Arc<Registration>> {
    let mut registry = REGISTRY.lock();
    let found = registry.find_orphan(list_of(process), process)?;
    registry.unlink_orphan(found.ticket());
    Some(found)
}
