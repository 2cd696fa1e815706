// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Keeps entries that may be anywhere and of any size, also one in another, and finds those of a range
//! without a look at the others.

use crate::entry::{Entry, Home};
use crate::range::Range;
use crate::sync::Arc;
use std::collections::BTreeMap;

/// Entries by their first address. The number tells entries apart that begin at the same one.
type Starts<H> = BTreeMap<(u64, usize), Arc<Entry<H>>>;

/// # Invariants
///
/// What lies under `n` has at least 2 to the power of `n` bytes, and less than twice as many. So what
/// reaches into a range begins less than that before it. `count` is the number of all.
pub(crate) struct Outside<H: Home> {
    sizes: BTreeMap<u32, Starts<H>>,
    count: usize,
    /// The number of entries beyond which those without leases are dropped.
    most: usize,
}

impl<H: Home> Default for Outside<H> {
    fn default() -> Self {
        Self { sizes: BTreeMap::new(), count: 0, most: 0 }
    }
}

impl<H: Home> Outside<H> {
    /// Remembers entries that may have leases. Drops those without leases before they are the
    /// majority.
    pub(crate) fn keep(&mut self, entries: &[Arc<Entry<H>>]) {
        if self.count + entries.len() > self.most {
            self.sizes.retain(|_, starts| {
                starts.retain(|_, entry| entry.word.in_use());
                !starts.is_empty()
            });
            self.count = self.sizes.values().map(BTreeMap::len).sum();
            self.most = 2 * (self.count + entries.len());
        }
        for entry in entries.iter().filter(|entry| entry.word.in_use()) {
            let starts = self.sizes.entry(entry.range.length().ilog2()).or_default();
            let new = starts.insert((entry.range.start(), Arc::as_ptr(entry) as usize), entry.clone()).is_none();
            self.count += usize::from(new);
        }
    }

    /// Takes out the entries that share a byte with this range, or all.
    pub(crate) fn take(&mut self, range: Option<Range>) -> Vec<Arc<Entry<H>>> {
        let Some(range) = range else {
            self.count = 0;
            return std::mem::take(&mut self.sizes).into_values().flat_map(BTreeMap::into_values).collect();
        };
        let mut within = Vec::new();
        for (size, starts) in &mut self.sizes {
            let before = range.start().saturating_sub(u64::MAX >> (63 - size));
            let near = starts.range((before, 0)..(range.end(), 0));
            let near: Vec<_> = near.filter(|(_, entry)| entry.range.overlaps(&range)).map(|(at, _)| *at).collect();
            within.extend(near.iter().filter_map(|at| starts.remove(at)));
        }
        self.count -= within.len();
        within
    }
}
