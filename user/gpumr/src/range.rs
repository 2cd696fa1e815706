// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Ranges of addresses.

use std::num::NonZeroU64;

/// Memory from `start` up to `end`, which is not part of it.
///
/// # Invariants
///
/// `start < end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    start: u64,
    end: u64,
}

impl Range {
    /// Returns `length` bytes from `address` on, or `None` if the address space has fewer.
    /// [`Range::new`] says so in words.
    #[inline]
    pub(crate) fn of(address: u64, length: NonZeroU64) -> Option<Self> {
        let end = address.checked_add(length.get())?;
        Some(Self { start: address, end })
    }

    /// Returns the first address.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the address after the last.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the last address.
    pub fn last(&self) -> u64 {
        self.end - 1
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether all of `other` is in it.
    #[inline]
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the part that both have, or `None` if there is none.
    pub fn common(&self, other: &Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// Returns whether they share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns the smallest range of whole granules around it, or `None` beyond the address space.
    /// `granule` is a power of two.
    pub fn widened(&self, granule: u64) -> Option<Self> {
        let end = self.end.checked_next_multiple_of(granule)?;
        Some(Self { start: self.start & !(granule - 1), end })
    }
}

/// Returns the size of this system's pages, of which exported memory consists.
#[doc(hidden)]
pub fn page_size() -> u64 {
    // SAFETY: It may be called at any time.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:#x}", self.length(), self.start)
    }
}
