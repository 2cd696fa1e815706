// SPDX-License-Identifier: GPL-2.0

//! When a line about something that may happen often is worth logging: once per burst.

/// Nanoseconds without an event that end a burst.
const QUIET: u64 = 5_000_000_000;

/// Nanoseconds after which a burst that goes on is worth another line.
const LONG: u64 = 60_000_000_000;

/// What was logged about one cause.
#[derive(Clone, Copy)]
pub(crate) struct Burst {
    /// When it happened last, 0 for never.
    last: u64,
    /// When it was logged last.
    said: u64,
    /// How often it happened since without a line.
    unsaid: u64,
}

impl Burst {
    pub(crate) const fn new() -> Self {
        Self { last: 0, said: 0, unsaid: 0 }
    }

    /// Notes that it happened at `now`, in nanoseconds of a clock that never shows 0. Returns how often it
    /// was not logged since the last line, or `None` if it is not worth a line now.
    pub(crate) fn happened(&mut self, now: u64) -> Option<u64> {
        let never = self.last == 0;
        let quiet = now.saturating_sub(self.last) >= QUIET;
        self.last = now;
        if never || quiet || now.saturating_sub(self.said) >= LONG {
            self.said = now;
            return Some(core::mem::take(&mut self.unsaid));
        }
        self.unsaid = self.unsaid.saturating_add(1);
        None
    }
}
