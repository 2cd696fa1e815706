// SPDX-License-Identifier: GPL-2.0

//! The address range of one registration, checked once and then trusted.
//!
//! This file uses nothing of the kernel, so the host tests run it as it is.

/// Bytes in which the provider pins: both ends of what it is asked for are multiples of this.
///
/// Source: nv-p2p.c of the open kernel modules. Drivers from 555 on refuse anything else with
/// `-EINVAL`.
pub(crate) const PIN_GRANULE: u64 = 64 << 10;

/// A half-open span of addresses in bytes.
///
/// # Invariants
///
/// `len` is not zero and `start + len` does not wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    start: u64,
    len: u64,
}

impl Span {
    /// Returns the span of `len` bytes from `start`, or `None` for an empty or wrapping one.
    pub(crate) fn new(start: u64, len: u64) -> Option<Self> {
        if len == 0 {
            return None;
        }
        start.checked_add(len)?;
        // INVARIANT: Both conditions were just checked.
        Some(Self { start, len })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(self) -> u64 {
        self.start
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> u64 {
        self.len
    }

    /// Returns the address behind the last byte.
    pub(crate) fn end(self) -> u64 {
        self.start.wrapping_add(self.len)
    }

    /// Returns the smallest span around this one whose ends are multiples of `granule`, a power of two;
    /// `None` if it wraps.
    fn align_out(self, granule: u64) -> Option<Self> {
        let mask = granule.checked_sub(1)?;
        let start = self.start & !mask;
        let end = self.end().checked_add(mask)? & !mask;
        Self::new(start, end.checked_sub(start)?)
    }
}

/// What the user asked for, and the two wider spans that follow from it.
///
/// # Invariants
///
/// - `user` lies in `pages`, whose ends are multiples of the CPU's page size.
/// - `pages`, aligned outwards to [`PIN_GRANULE`], does not wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GpuRange {
    user: Span,
    pages: Span,
}

impl GpuRange {
    /// Returns the range of `size` bytes at `addr`. `page_size` is the CPU's, in bytes and a power of
    /// two. Returns `None` where the range is empty or wraps once it is aligned: no memory of a GPU can
    /// lie there.
    pub(crate) fn new(addr: u64, size: u64, page_size: u64) -> Option<Self> {
        let user = Span::new(addr, size)?;
        let pages = user.align_out(page_size)?;
        pages.align_out(PIN_GRANULE)?;
        // INVARIANT: `pages` is `user` aligned outwards, and was just tried.
        Some(Self { user, pages })
    }

    /// Returns exactly what the user asked for.
    pub(crate) fn user(&self) -> Span {
        self.user
    }

    /// Returns the page-aligned range that the sg_table covers.
    pub(crate) fn pages(&self) -> Span {
        self.pages
    }

    /// Returns what the provider pins: [`Self::pages`], aligned outwards to [`PIN_GRANULE`].
    pub(crate) fn pinned(&self) -> Span {
        let mask = PIN_GRANULE.wrapping_sub(1);
        let start = self.pages.start & !mask;
        let end = self.pages.end().wrapping_add(mask) & !mask;
        // INVARIANT: By this type's invariant nothing wrapped, and `pages` is not empty.
        Span { start, len: end.wrapping_sub(start) }
    }

    /// Returns the bytes of the pinned span in front of what the sg_table covers.
    pub(crate) fn skip(&self) -> u64 {
        self.pages.start & PIN_GRANULE.wrapping_sub(1)
    }

    /// Returns the first [`PIN_GRANULE`] of `piece`, whose ends are multiples of that. Who owns the start
    /// of `piece` owns it.
    pub(crate) fn granule_of(piece: Span) -> Self {
        // INVARIANT: One span twice, aligned as `piece` is and no longer than that.
        let first = Span { start: piece.start, len: PIN_GRANULE };
        Self { user: first, pages: first }
    }
}
