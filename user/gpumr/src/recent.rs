// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Remembers what this thread registered last, so that a hit needs no lock. An entry that is found
//! here may be removed, which its word says. Only the entry is kept, never its region.

use crate::backend::Access;
use crate::entry::{Entry, Home, Pd};
use crate::range::Range;
use crate::sync::{thread_local, Arc};
use std::any::Any;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};

/// The number of slots is two to the power of this: 128 KiB in each thread that registers. An entry
/// may lie in either of two. So 1265 buffers of one size side by side find room, and of random sizes
/// seven of eight.
const SLOTS_LOG: u32 = 12;
const SLOTS: usize = 1 << SLOTS_LOG;

/// A place for an entry.
///
/// # Invariants
///
/// `entry` is an [`Entry`] of the cache at the address `cache`, and has the type of that one, of which
/// it has a weak reference, so nothing else takes that address. Without an entry, `cache` is 0, at
/// which there is no cache.
#[derive(Clone)]
struct Slot {
    /// The first address of the range that was asked for.
    start: u64,
    cache: usize,
    entry: Option<Arc<dyn Any>>,
}

/// The two places in which an entry may lie. They share a line of the processor's cache.
#[derive(Clone)]
#[repr(align(64))]
struct Pair([Slot; 2]);

const _: () = assert!(size_of::<Pair>() == 64);

type Pairs = Box<[Pair; SLOTS / 2]>;

thread_local! {
    /// The slots. None until the first use.
    static RECENT: RefCell<Option<Pairs>> = const { RefCell::new(None) };
}

/// A quick hash. A bad hash only makes hits slower.
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(29) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_i32(&mut self, value: i32) {
        self.write_u64(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns the pair of slots in which an entry may be, and the slots in it in the order to look at.
#[inline]
fn slots(pd: &impl Hash, access: Access, start: u64) -> (usize, [usize; 2]) {
    let mut mix = Mix(access.bits() as u64);
    pd.hash(&mut mix);
    mix.write_u64(start);
    // The product's highest bits differ most between neighbours.
    let first = (mix.finish() >> (u64::BITS - SLOTS_LOG)) as usize;
    let slot = first % 2;
    (first / 2, [slot, 1 - slot])
}

/// Returns what `found` makes of the entry of this domain, access and range, if this thread had it
/// lately.
#[inline]
pub(crate) fn find<H: Home, T>(
    cache: &Arc<H>,
    pd: Pd<H>,
    access: Access,
    range: &Range,
    found: impl FnOnce(&Entry<H>) -> Option<T>,
) -> Option<T> {
    let address = Arc::as_ptr(cache) as usize;
    let look = |recent: &RefCell<Option<Pairs>>| {
        let recent = recent.try_borrow().ok()?;
        let (pair, [first, second]) = slots(&pd, access, range.start());
        let Pair(pair) = &recent.as_deref()?[pair];
        let here = |at: usize| {
            let slot = &pair[at];
            if slot.start != range.start() || slot.cache != address {
                return None;
            }
            let entry = std::ptr::from_ref(slot.entry.as_deref()?).cast::<Entry<H>>();
            // SAFETY: By the invariant it is an entry of this cache, which the slot holds.
            let entry = unsafe { &*entry };
            (entry.pd == pd && entry.access == access && entry.range.contains(range)).then_some(entry)
        };
        found(here(first).or_else(|| here(second))?)
    };
    // A thread that ends has no slots any more.
    RECENT.try_with(look).ok()?
}

/// Keeps `entry`, so that this thread's next hit from `start` on finds it here.
pub(crate) fn keep<H: Home>(entry: Arc<Entry<H>>, start: u64) {
    let (pair, slots) = slots(&entry.pd, entry.access, start);
    let cache = entry.cache.as_ptr() as usize;
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return None };
        let all = recent.get_or_insert_with(|| {
            let slot = Slot { start: 0, cache: 0, entry: None };
            let none = vec![Pair([slot.clone(), slot]); SLOTS / 2];
            none.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("it has so many"))
        });
        let Pair(pair) = &mut all[pair];
        let free = |at: &usize| pair[*at].entry.is_none() || pair[*at].start == start;
        let slot = slots.into_iter().find(free).unwrap_or(slots[0]);
        // The old entry is dropped where nothing is borrowed.
        Some(std::mem::replace(&mut pair[slot], Slot { start, cache, entry: Some(entry) }))
    });
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Counts the buffers that share two slots with more than one other, and so miss in turn.
    fn crowded(base: u64, size: u64) -> u64 {
        let mut pairs = BTreeMap::<usize, u64>::new();
        for buffer in 0..1265 {
            *pairs.entry(slots(&0x55d0_1234_5670_u64, 1.into(), base + buffer * size).0).or_default() += 1;
        }
        pairs.values().filter(|&&buffers| buffers > 2).sum()
    }

    #[test]
    fn many_buffers_of_one_size_find_room() {
        for base in (0..64).map(|n| 0x7f00_0000_0000 + (n << 31)) {
            for size in [64 << 10, 2 << 20] {
                assert!(crowded(base, size) <= 40, "{} of {size} bytes from {base:#x} on", crowded(base, size));
            }
        }
    }
}
