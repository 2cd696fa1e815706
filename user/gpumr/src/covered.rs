// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Says without a lock that no registration has memory in common with a range. Most frees that a
//! program reports are of memory that was never registered, and threads that report them do not wait
//! for each other here.

use crate::range::Range;
use crate::sync::{Arc, AtomicU64, Ordering};

/// The number of counters is two to the power of this: 64 KiB in each cache. With 500 buffers of
/// 2 MiB, less than one answer in ten about a single block is a maybe without a cause.
#[cfg(not(feature = "shuttle"))]
const SLOTS_LOG: u32 = 13;
#[cfg(feature = "shuttle")]
const SLOTS_LOG: u32 = 4;
/// The blocks of the smallest class have two to the power of this bytes, the size of a block of
/// CUDA's, and those of each further class are eight times as large.
const SMALLEST_LOG: u32 = 21;
const STEP_LOG: u32 = 3;
/// A range is counted in the smallest class in which it has no more than two to the power of this
/// blocks, so it touches one more at most.
const BLOCKS_LOG: u32 = 3;
/// The number of classes, which is enough for the longest range.
const CLASSES: usize = 15;
/// A question about more blocks of a class than this is a maybe, if the class has any range.
const MOST: u64 = 32;

/// Memory by blocks, each of which has a counter of the registrations in it. Blocks share counters, so
/// the answer to a question is no or maybe.
#[derive(Debug)]
pub(crate) struct Covered {
    /// The number of ranges in each class.
    ranges: [AtomicU64; CLASSES],
    counters: Box<[AtomicU64]>,
}

impl Default for Covered {
    fn default() -> Self {
        let counters = (0..1 << SLOTS_LOG).map(|_| AtomicU64::new(0)).collect();
        Self { ranges: std::array::from_fn(|_| AtomicU64::new(0)), counters }
    }
}

impl Covered {
    /// Counts a range until the result is dropped.
    pub(crate) fn cover(self: &Arc<Self>, range: Range) -> Cover {
        let class = class(range.length());
        // Who reports a free of registered memory has learned of the registration from the thread that
        // is here, which orders these before the question. No order is needed for a registration under
        // way: no thread may register what another one is about to free.
        self.ranges[class as usize].fetch_add(1, Ordering::Relaxed);
        blocks(class, &range).for_each(|block| _ = self.counter(class, block).fetch_add(1, Ordering::Relaxed));
        Cover { covered: self.clone(), class, range }
    }

    /// Returns `false` if nothing that is counted has a byte in common with the range.
    pub(crate) fn may_overlap(&self, range: &Range) -> bool {
        for (class, ranges) in (0..).zip(&self.ranges) {
            // What ended before a counter became 0 has ended for the caller, too: each change is a
            // read-modify-write, so a 0 is ordered after all ends before it.
            if ranges.load(Ordering::Acquire) == 0 {
                continue;
            }
            let mut blocks = blocks(class, range);
            let many = blocks.end - blocks.start > MOST;
            if many || blocks.any(|block| self.counter(class, block).load(Ordering::Acquire) != 0) {
                return true;
            }
        }
        false
    }

    #[inline]
    fn counter(&self, class: u32, block: u64) -> &AtomicU64 {
        let mixed = (block ^ u64::from(class).rotate_right(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.counters[(mixed >> (u64::BITS - SLOTS_LOG)) as usize]
    }
}

/// A range that is counted.
#[derive(Debug)]
pub(crate) struct Cover {
    covered: Arc<Covered>,
    class: u32,
    range: Range,
}

impl Drop for Cover {
    fn drop(&mut self) {
        let counter = |block| self.covered.counter(self.class, block);
        blocks(self.class, &self.range).for_each(|block| _ = counter(block).fetch_sub(1, Ordering::Release));
        self.covered.ranges[self.class as usize].fetch_sub(1, Ordering::Release);
    }
}

/// Returns the class of a range of this length.
fn class(length: u64) -> u32 {
    let log = u64::BITS - length.saturating_sub(1).leading_zeros();
    log.saturating_sub(SMALLEST_LOG + BLOCKS_LOG).div_ceil(STEP_LOG)
}

/// Returns the numbers of the blocks of this class that a range touches.
#[inline]
fn blocks(class: u32, range: &Range) -> std::ops::Range<u64> {
    let log = SMALLEST_LOG + STEP_LOG * class;
    (range.start() >> log)..(range.last() >> log) + 1
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn range(start: u64, length: u64) -> Range {
        Range::new(start, length).expect("a range")
    }

    #[test]
    fn a_range_touches_nine_blocks_at_most() {
        for log in 0..64 {
            for length in [1u64 << log, (1 << log) + 1, ((1u128 << (log + 1)) - 1) as u64] {
                let whole = range(u64::MAX - length, length);
                let blocks = blocks(class(length), &whole);
                assert!(blocks.end - blocks.start <= 9, "{length} bytes touch {blocks:?}");
                assert!((class(length) as usize) < CLASSES, "{length} bytes are of no class");
            }
        }
    }

    #[test]
    fn each_byte_of_what_is_counted_is_found_until_it_ends() {
        let covered = Arc::new(Covered::default());
        for length in [1, 512, 64 << 10, 2 * MIB, 17 * MIB, 1 << 30, 80 << 30] {
            let start = 0x7f00_0000_0000 + 512;
            let cover = covered.cover(range(start, length));
            for at in [start, start + length / 2, start + length - 1] {
                assert!(covered.may_overlap(&range(at, 1)), "byte {at:#x} of {length}");
            }
            assert!(covered.may_overlap(&range(start - 512, length + 1024)));
            drop(cover);
            assert!(!covered.may_overlap(&range(start, 1)), "{length} bytes have ended");
        }
    }

    #[test]
    fn memory_elsewhere_is_not_found() {
        let covered = Arc::new(Covered::default());
        let base = 0x7f00_0000_0000;
        let _covers: Vec<_> = (0..500).map(|n| covered.cover(range(base + n * 2 * MIB, 2 * MIB))).collect();
        let elsewhere = (0..1000).filter(|n| covered.may_overlap(&range(base + (1 << 40) + n * 2 * MIB, 2 * MIB)));
        let without_cause = elsewhere.count();
        assert!(without_cause < 100, "{without_cause} of 1000 answers have no cause");
    }

    /// Memory that is further away than the registration is long, and than a block of CUDA's.
    #[test]
    fn memory_far_from_a_registration_is_not_found() {
        for length in [4096, 2 * MIB, 17 * MIB, 100 * MIB, 1 << 30, 80 << 30] {
            let covered = Arc::new(Covered::default());
            let (start, far) = (0x7f00_0000_0000 + 3 * length, length.max(2 * MIB));
            let cover = covered.cover(range(start, length));
            for at in [start - far - 62 * MIB, start + length + far] {
                assert!(!covered.may_overlap(&range(at, 62 * MIB)), "{length} bytes, asked at {at:#x}");
            }
            drop(cover);
            assert!(!covered.may_overlap(&range(0, u64::MAX)), "nothing is counted any more");
        }
    }
}
