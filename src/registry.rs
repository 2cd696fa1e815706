// SPDX-License-Identifier: GPL-2.0

//! Tickets: numbers that stand for registrations where a pointer could outlive what it points to (rule 2).
//!
//! A ticket is a slot's index (low half) and how often the slot was given out (high half, from 1), so it is found in
//! one step, is never zero, and is never given out twice. The registry lock is a leaf: nothing is allocated, dropped or
//! called under it. Slots come in chunks of a page.

use crate::registration::Registration;
use crate::shim::Process;
use kernel::alloc::KVVec;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{global_lock, Arc};

/// Behind the last slot of a list.
const NONE: u32 = u32::MAX;

/// Lists of orphans: the first for those that any process may put, the others by process, so that nobody walks past
/// more than his share of other processes' orphans.
const LISTS: usize = 64;

/// Slots of one chunk: what fits into 4 KiB.
const CHUNK: usize = 4096 / size_of::<Slot>();

enum Entry {
    /// In the list of free slots.
    Free,
    /// Given out; the registration is still being made.
    Reserved,
    /// Stands for this registration.
    Live(Arc<Registration>),
    /// The same, and in a list of orphans.
    Orphan(Arc<Registration>),
}

impl Entry {
    fn registration(&self) -> Option<&Arc<Registration>> {
        match self {
            Self::Live(registration) | Self::Orphan(registration) => Some(registration),
            Self::Free | Self::Reserved => None,
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

struct Registry {
    chunks: KVVec<KVec<Slot>>,
    free: u32,
    orphans: [u32; LISTS],
}

global_lock! {
    // SAFETY: Initialised in `init()`, before any client is registered.
    unsafe(uninit) static REGISTRY: Mutex<Registry> = Registry::new();
}

/// Number of orphans, so that nobody takes the lock to find none.
static ORPHANS: Atomic<u64> = Atomic::new(0);

/// Initialises the registry.
///
/// # Safety
///
/// To be called once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { REGISTRY.init() };
}

/// Gives the memory back. For unloading: nothing is registered any more.
pub(crate) fn clear() {
    // Dropped behind the lock.
    let _old = core::mem::replace(&mut *REGISTRY.lock(), Registry::new());
}

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
        let index = usize::try_from(index).ok()?;
        self.chunks.get_mut(index.checked_div(CHUNK)?)?.get_mut(index.checked_rem(CHUNK)?)
    }

    /// The slot that `ticket` stands for, unless it was given to another since.
    fn owned(&mut self, ticket: u64) -> Option<&mut Slot> {
        let (generation, index) = split(ticket)?;
        self.slot(index).filter(|slot| slot.generation == generation)
    }

    /// Takes a free slot.
    fn take_free(&mut self) -> Option<u64> {
        let index = self.free;
        let slot = self.slot(index)?;
        let next = slot.next;
        slot.entry = Entry::Reserved;
        slot.next = NONE;
        let ticket = join(slot.generation, index);
        self.free = next;
        Some(ticket)
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

    /// Adds a chunk of free slots; `Err` hands it back where the list of chunks is full.
    fn add(&mut self, chunk: KVec<Slot>) -> Result<(), KVec<Slot>> {
        if self.chunks.len() == self.chunks.capacity() {
            return Err(chunk);
        }
        let Some(first) = self.chunks.len().checked_mul(CHUNK).and_then(|first| u32::try_from(first).ok()) else {
            return Err(chunk);
        };
        let slots = u32::try_from(chunk.len()).unwrap_or(0);
        if self.chunks.push_within_capacity(chunk).is_err() {
            return Ok(());
        }
        for index in (first..first.saturating_add(slots)).rev() {
            let free = self.free;
            if let Some(slot) = self.slot(index) {
                slot.next = free;
                self.free = index;
            }
        }
        Ok(())
    }

    /// Moves the chunks into a longer list, and hands out the old one.
    fn relocate(&mut self, mut list: KVVec<KVec<Slot>>) -> KVVec<KVec<Slot>> {
        if list.capacity() > self.chunks.capacity() {
            for chunk in self.chunks.drain_all() {
                // Cannot fail: the list is longer. A chunk lost here would only lose its slots.
                let _ = list.push_within_capacity(chunk);
            }
            core::mem::swap(&mut self.chunks, &mut list);
        }
        list
    }

    /// Puts a live registration into the list of orphans `list`.
    fn link_orphan(&mut self, ticket: u64, list: usize) -> bool {
        let (Some((_, index)), Some(&head)) = (split(ticket), self.orphans.get(list)) else {
            return false;
        };
        let Some(slot) = self.owned(ticket) else {
            return false;
        };
        let Entry::Live(registration) = core::mem::replace(&mut slot.entry, Entry::Reserved) else {
            return false;
        };
        slot.entry = Entry::Orphan(registration);
        slot.next = head;
        slot.before = NONE;
        if let Some(second) = self.slot(head) {
            second.before = index;
        }
        if let Some(first) = self.orphans.get_mut(list) {
            *first = index;
        }
        true
    }

    /// Takes `ticket` out of the list of orphans that it is in, if it is in one.
    fn unlink_orphan(&mut self, ticket: u64) -> bool {
        let Some(slot) = self.owned(ticket) else {
            return false;
        };
        let (entry, list) = match core::mem::replace(&mut slot.entry, Entry::Reserved) {
            Entry::Orphan(registration) => {
                let list = list_of(&registration);
                (Entry::Live(registration), Some(list))
            }
            other => (other, None),
        };
        slot.entry = entry;
        let Some(list) = list else {
            return false;
        };
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
        true
    }

    /// The first orphan of `list` that `process` may put.
    fn find_orphan(&mut self, list: usize, process: &Process) -> Option<Arc<Registration>> {
        let mut at = *self.orphans.get(list)?;
        loop {
            let slot = self.slot(at)?;
            let next = slot.next;
            match &slot.entry {
                Entry::Orphan(registration) if registration.may_be_put_by(process) => {
                    return Some(registration.clone())
                }
                _ => at = next,
            }
        }
    }
}

/// The list of orphans for those that only `process` may put.
fn list_of_process(process: &Process) -> usize {
    let others = LISTS.saturating_sub(1);
    let hash = usize::try_from(process.tgid()).unwrap_or(0).checked_rem(others).unwrap_or(0);
    hash.saturating_add(1)
}

/// The list of orphans that `registration` belongs into: 0 if any process may put it.
fn list_of(registration: &Registration) -> usize {
    registration.only_owner().map_or(0, |owner| list_of_process(&owner))
}

/// A chunk of slots that were never given out.
fn new_chunk() -> Result<KVec<Slot>> {
    let mut chunk = KVec::with_capacity(CHUNK, GFP_KERNEL)?;
    for _ in 0..CHUNK {
        chunk
            .push_within_capacity(Slot { generation: 1, next: NONE, before: NONE, entry: Entry::Free })
            .map_err(|_| ENOMEM)?;
    }
    Ok(chunk)
}

/// Gives out a ticket. Allocates: not under L.
fn reserve() -> Result<u64> {
    let mut chunk = None;
    loop {
        // The number of chunks, if the list of them is full.
        let full = {
            let mut registry = REGISTRY.lock();
            if let Some(ticket) = registry.take_free() {
                return Ok(ticket);
            }
            match chunk.take().map(|new| registry.add(new)) {
                Some(Ok(())) => continue,
                Some(Err(back)) => {
                    chunk = Some(back);
                    Some(registry.chunks.len())
                }
                None => None,
            }
        };
        match full {
            None => chunk = Some(new_chunk()?),
            Some(chunks) => {
                let list = KVVec::with_capacity(chunks.saturating_mul(2).max(8), GFP_KERNEL)?;
                // The old list is freed here, behind the lock.
                let _old = REGISTRY.lock().relocate(list);
            }
        }
    }
}

/// Makes a registration that knows its ticket, and enters it.
///
/// Takes the registry lock and allocates: not under L.
pub(crate) fn insert(make: impl FnOnce(u64) -> Result<Arc<Registration>>) -> Result<Arc<Registration>> {
    let ticket = reserve()?;
    let made = make(ticket);
    let unused = {
        let mut registry = REGISTRY.lock();
        match &made {
            Ok(registration) => {
                if let Some(slot) = registry.owned(ticket) {
                    slot.entry = Entry::Live(registration.clone());
                }
                None
            }
            Err(_) => registry.free(ticket),
        }
    };
    drop(unused);
    made
}

/// The registration that `ticket` stands for, counted; `None` if there is none (any more).
///
/// Allowed in the free callback: takes the registry lock only.
pub(crate) fn get(ticket: u64) -> Option<Arc<Registration>> {
    REGISTRY.lock().owned(ticket)?.entry.registration().cloned()
}

/// The first registration whose slot has an index of at least `at`, with that index, counted.
pub(crate) fn from_index(at: u32) -> Option<(u32, Arc<Registration>)> {
    /// Slots looked at under one hold of the lock.
    const PER_HOLD: u32 = 256;

    let mut at = at;
    loop {
        let mut registry = REGISTRY.lock();
        for index in at..at.saturating_add(PER_HOLD) {
            if let Some(registration) = registry.slot(index)?.entry.registration() {
                return Some((index, registration.clone()));
            }
        }
        at = at.checked_add(PER_HOLD)?;
    }
}

/// Takes `ticket` out, orphan or not; the registry's count is dropped behind the lock. Once, by whoever ended the pin.
pub(crate) fn remove(ticket: u64) {
    let entry = {
        let mut registry = REGISTRY.lock();
        if registry.unlink_orphan(ticket) {
            let _ = ORPHANS.fetch_sub(1, Relaxed);
        }
        registry.free(ticket)
    };
    drop(entry);
}

/// Enters `registration` into the list of orphans. Called under L.
pub(crate) fn add_orphan(registration: &Registration) {
    if REGISTRY.lock().link_orphan(registration.ticket(), list_of(registration)) {
        let _ = ORPHANS.fetch_add(1, Relaxed);
    }
}

/// Takes one orphan that `process` may put out of the list of orphans; it stays in the registry.
pub(crate) fn take_orphan(process: &Process) -> Option<Arc<Registration>> {
    if ORPHANS.load(Relaxed) == 0 {
        return None;
    }
    let mut registry = REGISTRY.lock();
    let found = match registry.find_orphan(0, process) {
        Some(found) => found,
        None => registry.find_orphan(list_of_process(process), process)?,
    };
    if registry.unlink_orphan(found.ticket()) {
        let _ = ORPHANS.fetch_sub(1, Relaxed);
    }
    Some(found)
}
