// SPDX-License-Identifier: GPL-2.0
//! What this thread registered last, so that a hit needs no lock. An entry that is found here may
//! be removed: its word says so. Kept is the entry alone, never its region.

use crate::backend::{Access, Gpu, Verbs};
use crate::cache::Inner;
use crate::entry::Entry;
use crate::range::Range;
use crate::sync::{thread_local, Arc};
use std::any::Any;
use std::cell::RefCell;
use std::hash::{Hash, Hasher};

/// A power of two: 96 KiB in each thread that registers. 1265 buffers of one size side by side have
/// a slot each, of different sizes three of four.
const SLOTS: usize = 4096;

/// Where the range that was asked for began, and its entry.
type Slot = Option<(u64, Arc<dyn Any>)>;

thread_local! {
    /// Empty until the first use.
    static RECENT: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
}

/// Quick; a bad one only makes hits slower.
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
        self.0 >> 40
    }
}

fn slot(pd: &impl Hash, access: Access, start: u64) -> usize {
    let mut mix = Mix(0);
    pd.hash(&mut mix);
    mix.write_i32(access);
    mix.write_u64(start);
    mix.finish() as usize % SLOTS
}

/// What `found` makes of the entry of this domain, access and range, if this thread had it lately.
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
        let (start, entry) = recent.get(slot(&pd, access, range.start()))?.as_ref()?;
        if *start != range.start() {
            return None;
        }
        let entry = entry.downcast_ref::<Entry<G, V>>()?;
        let fits = entry.cache.as_ptr() == Arc::as_ptr(cache)
            && (entry.pd, entry.access) == (pd, access)
            && entry.range.contains(range);
        fits.then(|| found(entry))?
    };
    // None in a thread that ends.
    RECENT.try_with(look).ok()?
}

/// The next hit of this thread from `start` on finds `entry` here.
pub(crate) fn keep<G: Gpu, V: Verbs>(entry: Arc<Entry<G, V>>, start: u64) {
    let slot = slot(&entry.pd, entry.access, start);
    let _ = RECENT.try_with(|recent| {
        let Ok(mut recent) = recent.try_borrow_mut() else { return None };
        if recent.is_empty() {
            recent.resize(SLOTS, None);
        }
        // What was there goes where nothing is borrowed.
        recent[slot].replace((start, entry))
    });
}
