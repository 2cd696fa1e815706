// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Ranges of addresses.

use crate::error::Error;

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
    /// `length` bytes from `address` on. Errors: no bytes, or more than the address space has.
    pub fn new(address: u64, length: u64) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::NoLength { address });
        }
        let end = address.checked_add(length).ok_or(Error::Wraps { address, length })?;
        Ok(Self { start: address, end })
    }

    /// Its first address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The address after its last.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Its last address.
    pub fn last(&self) -> u64 {
        self.end - 1
    }

    /// Its bytes.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Whether all of `other` is in it.
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What both have; `None` if that is nothing.
    pub fn common(&self, other: &Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// Whether they share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The smallest range around it of whole granules, a power of two; `None` beyond the address
    /// space.
    pub fn widened(&self, granule: u64) -> Option<Self> {
        let end = self.end.checked_next_multiple_of(granule)?;
        Some(Self { start: self.start & !(granule - 1), end })
    }
}

/// The size of this system's pages: what CUDA exports is made of them.
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
