// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Keeps the users of a registration in one word, so that neither a hit nor the end of a lease takes
//! a lock.
//!
//! | bits | what |
//! |---|---|
//! | 0 | removed: nobody gets it any more, and the last lease ends it |
//! | 1 | awaited: it is in the way, and its last lease makes room |
//! | 2 to 23 | leases |
//! | 24 to 63 | hits that no counter has yet |

use crate::sync::{AtomicU64, Ordering};

const REMOVED: u64 = 1;
const AWAITED: u64 = 1 << 1;
const LEASE: u64 = 1 << 2;
const HIT: u64 = 1 << 24;
const LEASES: u64 = HIT - LEASE;
/// The highest bit of the hits. A hit that would set it takes the hits out, to be counted
/// elsewhere.
const MANY: u64 = 1 << 63;

/// What remains to be done after a lease has ended.
pub(crate) enum End<T> {
    /// Nothing.
    Nothing,
    /// Somebody waits for room. The value is what was prepared.
    Awaited(T),
    /// This caller alone must end the registration.
    Removed,
}

/// # Invariants
///
/// "Removed, without leases" is final, and only one caller learns of it: the one whose step led
/// there.
pub(crate) struct Word(AtomicU64);

impl Word {
    /// Returns a word with the lease of the maker.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(LEASE))
    }

    /// Takes a lease, unless the registration is removed. Returns the hits that must be counted,
    /// which are almost always none.
    #[inline]
    pub(crate) fn hit(&self) -> Option<u64> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if old & REMOVED != 0 || old & LEASES == LEASES {
                return None;
            }
            let new = old.wrapping_add(HIT + LEASE);
            // Acquire, as for a lock: what the lease is used for comes after it.
            match self.0.compare_exchange_weak(old, new & !MANY, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some((new & MANY) / HIT),
                Err(now) => old = now,
            }
        }
    }

    /// Ends a lease. Another caller may end everything as soon as this has, so `prepare` runs
    /// before, if it may be needed.
    #[inline]
    pub(crate) fn end<T>(&self, prepare: impl Fn() -> T) -> End<T> {
        let old = self.0.load(Ordering::Relaxed);
        // Release, as below. Flags say what else there is to do.
        let plain = old & (REMOVED | AWAITED) == 0
            && self.0.compare_exchange_weak(old, old - LEASE, Ordering::Release, Ordering::Relaxed).is_ok();
        if plain {
            End::Nothing
        } else {
            self.end_slowly(prepare)
        }
    }

    #[cold]
    fn end_slowly<T>(&self, prepare: impl Fn() -> T) -> End<T> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let last = old & LEASES == LEASE;
            let awaited = (last && old & AWAITED != 0).then(&prepare);
            let new = (old - LEASE) & if last { !AWAITED } else { !0 };
            // Release: what the lease was used for comes before. Acquire: for the last lease, the
            // same holds for what other leases were used for.
            match self.0.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if last && old & REMOVED != 0 => return End::Removed,
                Ok(_) => return awaited.map_or(End::Nothing, End::Awaited),
                Err(now) => old = now,
            }
        }
    }

    /// Removes the registration, so that nobody gets it any more. Whoever takes it out of the map
    /// calls this once. Returns its hits, and whether the caller must end it.
    pub(crate) fn remove(&self) -> (u64, bool) {
        let old = self.0.fetch_or(REMOVED, Ordering::AcqRel);
        (old / HIT, old & LEASES == 0)
    }

    /// Removes it if nobody uses it, and then returns its hits; the caller must end it. Otherwise,
    /// its last lease will report that it was awaited.
    pub(crate) fn remove_or_await(&self) -> Option<u64> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let unused = old & LEASES == 0;
            let new = old | if unused { REMOVED } else { AWAITED };
            match self.0.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return unused.then_some(old / HIT),
                Err(now) => old = now,
            }
        }
    }

    /// Returns whether a lease holds it at this moment.
    pub(crate) fn in_use(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LEASES != 0
    }

    /// Returns the hits that no counter has.
    pub(crate) fn hits(&self) -> u64 {
        self.0.load(Ordering::Relaxed) / HIT
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn hits_spill_before_they_overflow() {
        let word = Word(AtomicU64::new(MANY - HIT + LEASE));
        assert_eq!(word.hit(), Some(MANY / HIT));
        assert_eq!((word.hits(), word.in_use()), (0, true));
        assert_eq!(word.hit(), Some(0));
        assert_eq!(word.hits(), 1);
    }

    #[test]
    fn more_leases_than_it_can_count_are_refused() {
        let word = Word(AtomicU64::new(LEASES - LEASE));
        assert!(word.hit().is_some());
        assert!(word.hit().is_none());
        assert!(matches!(word.end(|| ()), End::Nothing));
        assert!(word.hit().is_some());
    }
}
