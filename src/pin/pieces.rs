// SPDX-License-Identifier: GPL-2.0

//! A range over several allocations: what to ask the provider for next.
//!
//! The provider pins within one allocation, and does not tell where that ends. So it is tried out:
//! by halves in the first one, and the next ones are probably as long. This file uses nothing of
//! the kernel, so the host tests run it as it is.

use crate::range::{Span, PIN_GRANULE};

/// Where allocations nearly always begin and end: at multiples of this (docs/facts.md#get).
const LARGE: u64 = 2 << 20;

/// Bytes that the provider is asked for at once, at most: it allocates 16 of its own for each
/// [`PIN_GRANULE`] before it looks whose memory it is.
pub(crate) const MOST_ASKED: u64 = 1 << 40;

/// After how many pieces of one length twice that is tried again, where it has failed.
const PATIENCE: u32 = 64;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Ask the provider for this.
    Ask(Span),
    /// All of the range is pinned.
    Done,
    /// There is no memory that can be pinned at this address.
    Hole(u64),
}

/// What is tried at a place.
enum Try {
    /// Twice the length that worked.
    Twice,
    /// The length that worked.
    Once,
    /// What lies between the longest that worked here and the shortest that failed.
    Between,
}

/// Finds the pieces of one range, from its start to its end.
///
/// # Invariants
///
/// `at <= good`, and both are in the range or its end. All of them are multiples of
/// [`PIN_GRANULE`].
pub(crate) struct Finder {
    /// Where the next piece begins.
    at: u64,
    end: u64,
    trying: Try,
    /// End of the longest piece that worked here, `at` for none.
    good: u64,
    /// End of the shortest that failed here.
    bad: u64,
    /// Length of the next piece, probably.
    length: u64,
    /// Whether that is a length that was doubled, and so says nothing of where allocations end.
    doubled: bool,
    /// The last place at which an allocation ends for sure, or the range begins.
    boundary: u64,
    /// Pieces of this length in a row.
    streak: u32,
    /// The streak after which twice the length is tried.
    patience: u32,
}

impl Finder {
    /// Begins with `range` as a whole, up to [`MOST_ASKED`], because it may be one allocation. Its ends
    /// are multiples of [`PIN_GRANULE`].
    pub(crate) fn new(range: Span) -> Self {
        Self { trying: Try::Once, ..Self::of_several(range) }
    }

    /// Begins with a part of `range`, which as a whole leaves its allocation. Its ends are multiples of
    /// [`PIN_GRANULE`].
    pub(crate) fn of_several(range: Span) -> Self {
        let (at, end) = (range.start(), range.end());
        // INVARIANT: Nothing worked yet.
        Self {
            at,
            end,
            trying: Try::Between,
            good: at,
            bad: end,
            length: range.len().min(MOST_ASKED),
            doubled: false,
            boundary: at,
            streak: 0,
            patience: 0,
        }
    }

    /// Returns what to do next. The caller answers each [`Step::Ask`] by [`Self::worked`] or [`Self::failed`].
    pub(crate) fn next(&self) -> Step {
        let to = match self.trying {
            _ if self.at >= self.end => return Step::Done,
            Try::Twice => Some(self.length.saturating_mul(2)),
            Try::Once => Some(self.length),
            Try::Between => self.between().map(|to| to.saturating_sub(self.at)),
        }
        .map(|length| self.at.saturating_add(length.min(MOST_ASKED)).min(self.end));
        let span = to.and_then(|to| Span::new(self.at, to.checked_sub(self.at)?));
        span.map_or(Step::Hole(self.at), Step::Ask)
    }

    /// Notes that the provider pinned what it was asked for. Returns whether that is in place of the piece
    /// before.
    pub(crate) fn worked(&mut self, asked: Span) -> bool {
        let longer = self.good > self.at;
        // INVARIANT: `next()` chose it behind `good`.
        self.good = asked.end();
        match self.trying {
            Try::Twice => {
                self.length = asked.len();
                self.doubled = true;
                self.go_on();
            }
            Try::Once => {
                self.streak = self.streak.saturating_add(1);
                self.go_on();
            }
            Try::Between => self.settle(),
        }
        longer
    }

    /// Notes that the provider does not know what it was asked for as part of one allocation.
    pub(crate) fn failed(&mut self, asked: Span) {
        self.bad = asked.end();
        self.streak = 0;
        match self.trying {
            Try::Twice => {
                self.patience = self.patience.saturating_mul(2).max(PATIENCE);
                self.trying = if core::mem::take(&mut self.doubled) { Try::Between } else { Try::Once };
            }
            Try::Once => self.trying = Try::Between,
            Try::Between => self.settle(),
        }
    }

    /// Returns an end between those that worked and failed; `None` if there is none to try.
    fn between(&self) -> Option<u64> {
        let below = |at: u64, unit: u64| at & !unit.wrapping_sub(1);
        let above = |at: u64, unit: u64| at.checked_add(unit).map(|at| below(at, unit));
        // Small steps only where large ones are too large.
        let unit = above(self.at, LARGE).filter(|large| *large < self.bad).map_or(PIN_GRANULE, |_| LARGE);
        let half = self.bad.saturating_sub(self.good) / 2;
        let middle = below(self.good.saturating_add(half), unit);
        let next = if middle > self.good { middle } else { above(self.good, unit)? };
        (next < self.bad).then_some(next)
    }

    /// Goes on behind the piece that was found here, if it is known well enough.
    fn settle(&mut self) {
        if self.good == self.at {
            return;
        }
        let (length, doubt) = (self.good.saturating_sub(self.at), self.bad.saturating_sub(self.good));
        if self.between().is_none() {
            // An allocation ends here. The next one is probably as long as this one, of which
            // pieces may have been found before.
            self.length = self.good.saturating_sub(self.boundary);
            self.boundary = self.good;
        } else if doubt <= length / 5 {
            self.length = length;
        } else {
            return;
        }
        self.patience = 0;
        self.go_on();
    }

    /// Moves to the place behind the piece.
    fn go_on(&mut self) {
        self.at = self.good;
        let more = self.at.saturating_add(self.length) < self.end;
        self.trying = if more && self.streak >= self.patience { Try::Twice } else { Try::Once };
    }
}
