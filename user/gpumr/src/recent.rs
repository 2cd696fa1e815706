// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Remembers what this thread registered last, so that a hit needs no lock. An entry that is found
//! here may be removed, which its word says. Only the entry is kept, never its region.

use crate::backend::{Access, Gpu, Verbs};
use crate::cache::Inner;
use crate::entry::Entry;
use crate::range::Range;
use crate::sync::{thread_local, Arc};
use std::any::Any;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};

/// The number of slots is two to the power of this: 96 KiB in each thread that registers. An entry
/// may lie in either of two. So 1265 buffers of one size side by side find room, and of random sizes
/// seven of eight.
const SLOTS_LOG: u32 = 12;

/// The first address of the range that was asked for, and its entry.
type Slot = Option<(u64, Arc<dyn Any>)>;

thread_local! {
    /// The slots. Empty until the first use.
    static RECENT: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
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

/// Returns the slots in which an entry may be.
fn slots(pd: &impl Hash, access: Access, start: u64) -> [usize; 2] {
    let mut mix = Mix(0);
    pd.hash(&mut mix);
    mix.write_i32(access.bits());
    mix.write_u64(start);
    // The product's highest bits differ most between neighbours.
    let first = (mix.finish() >> (u64::BITS - SLOTS_LOG)) as usize;
    [first, first ^ 1]
}

/// Returns what `found` makes of the entry of this domain, access and range, if this thread had it
/// lately.
#[inline]
pub(crate) fn find<G: Gpu, V: Verbs, T>(
    cache: &Arc<Inner<G, V>>,
    pd: V::Pd,
    access: Access,
    range: &Range,
    found: impl FnOnce(&Entry<G, V>) -> Option<T>,
) -> Option<T> {
    let look = |recent: &RefCell<Vec<Slot>>| {
        let recent = recent.try_borrow().ok()?;
        let here = |at: usize| recent.get(at)?.as_ref().filter(|(start, _)| *start == range.start());
        let (_, entry) = slots(&pd, access, range.start()).into_iter().find_map(here)?;
        let entry = entry.downcast_ref::<Entry<G, V>>()?;
        let fits = entry.cache.as_ptr() == Arc::as_ptr(cache)
            && (entry.pd, entry.access) == (pd, access)
            && entry.range.contains(range);
        fits.then(|| found(entry))?
    };
    // A thread that ends has no slots any more.
    RECENT.try_with(look).ok()?
}

/// Keeps `entry`, so that this thread's next hit from `start` on finds it here.
pub(crate) fn keep<G: Gpu, V: Verbs>(entry: Arc<Entry<G, V>>, start: u64) {
    let slots = slots(&entry.pd, entry.access, start);
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return None };
        if recent.is_empty() {
            recent.resize(1 << SLOTS_LOG, None);
        }
        let free = |at: &usize| recent[*at].as_ref().is_none_or(|(other, _)| *other == start);
        let slot = slots.into_iter().find(free).unwrap_or(slots[0]);
        // The old entry is dropped where nothing is borrowed.
        recent[slot].replace((start, entry))
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
            *pairs.entry(slots(&0x55d0_1234_5670_u64, 1.into(), base + buffer * size)[0] / 2).or_default() += 1;
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
