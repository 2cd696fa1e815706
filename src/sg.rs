// SPDX-License-Identifier: GPL-2.0

//! Runs of contiguous memory, and the scatterlist made of them.
//!
//! The first half is pure: it merges pages into [`Run`]s, trims those to the user's range and cuts
//! them at the cap. The second half, [`Table`], is the only writer of scatterlists.

use crate::ffi::raw;
use crate::ffi::shim::{self, Resched};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::alloc::KVVec;
use kernel::prelude::*;

/// Contiguous bytes in one address space: CPU physical before the mapping, DMA after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Address of the first byte.
    pub(crate) addr: u64,
    /// Length in bytes, never zero.
    pub(crate) len: u64,
}

/// Where runs lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// From the lowest byte to the highest.
    pub(crate) whole: Run,
    /// The largest power of two of which every run's address is a multiple; 0 if all are 0.
    pub(crate) alignment: u64,
}

impl Extent {
    /// Returns the extent of `runs`; `None` where there are none, or one reaches beyond the address space.
    pub(crate) fn of(runs: &[Run]) -> Option<Self> {
        let first = runs.first()?;
        let (mut lowest, mut last, mut bits) = (first.addr, first.addr, 0);
        for runs in runs.chunks(Resched::ROUNDS) {
            for run in runs {
                lowest = lowest.min(run.addr);
                last = last.max(run.addr.checked_add(run.len.wrapping_sub(1))?);
                bits |= run.addr;
            }
            if runs.len() == Resched::ROUNDS {
                shim::cond_resched();
            }
        }
        let len = last.wrapping_sub(lowest).checked_add(1)?;
        Some(Self { whole: Run { addr: lowest, len }, alignment: bits & bits.wrapping_neg() })
    }
}

/// Room for runs where there are several. Most registrations need no more.
const RUNS_EXPECTED: usize = 8;

/// Runs in order. One alone, as contiguous memory has, takes no memory of its own.
pub(crate) enum Runs {
    /// None yet.
    None,
    /// One.
    One(Run),
    /// As many as the list has.
    Many(KVVec<Run>),
}

impl Runs {
    /// Returns all runs.
    pub(crate) fn as_slice(&self) -> &[Run] {
        match self {
            Self::None => &[],
            Self::One(run) => core::slice::from_ref(run),
            Self::Many(list) => list,
        }
    }

    /// Returns all runs.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Run] {
        match self {
            Self::None => &mut [],
            Self::One(run) => core::slice::from_mut(run),
            Self::Many(list) => list,
        }
    }

    /// Makes room for at least one more. Allocates: not under a state lock.
    pub(crate) fn make_room(&mut self) -> Result {
        match self {
            Self::None => {}
            Self::One(run) => {
                let mut list = KVVec::with_capacity(RUNS_EXPECTED, GFP_KERNEL)?;
                list.push_within_capacity(*run).map_err(|_| ENOMEM)?;
                *self = Self::Many(list);
            }
            Self::Many(list) if list.len() == list.capacity() => list.reserve(list.len(), GFP_KERNEL)?,
            Self::Many(_) => {}
        }
        Ok(())
    }

    /// Returns the list, where there is one.
    pub(crate) fn list(&mut self) -> Option<&mut KVVec<Run>> {
        match self {
            Self::Many(list) => Some(list),
            Self::None | Self::One(_) => None,
        }
    }

    /// Appends `run`, where there is room. Does not allocate.
    pub(crate) fn push(&mut self, run: Run) -> Result {
        match self {
            Self::None => *self = Self::One(run),
            Self::One(_) => return Err(ENOMEM),
            Self::Many(list) => list.push_within_capacity(run).map_err(|_| ENOMEM)?,
        }
        Ok(())
    }

    /// Appends `run`. Allocates: not under a state lock.
    pub(crate) fn append(&mut self, run: Run) -> Result {
        self.make_room()?;
        self.push(run)
    }

    /// Takes out the last one.
    fn pop(&mut self) -> Option<Run> {
        match self {
            Self::None => None,
            Self::One(run) => {
                let run = *run;
                *self = Self::None;
                Some(run)
            }
            Self::Many(list) => list.pop(),
        }
    }

    /// Takes out all of them. Their memory stays.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::None | Self::One(_) => *self = Self::None,
            Self::Many(list) => list.clear(),
        }
    }

    /// Shrinks a long list to its exact length. Allocates: not under a state lock.
    pub(crate) fn without_slack(self) -> Result<Self> {
        let list = match self {
            Self::Many(list) if list.len() > RUNS_EXPECTED && list.len() != list.capacity() => list,
            other => return Ok(other),
        };
        let mut exact = KVVec::with_capacity(list.len(), GFP_KERNEL)?;
        let mut resched = Resched::default();
        for run in list.iter() {
            resched.step();
            exact.push_within_capacity(*run).map_err(|_| ENOMEM)?;
        }
        Ok(Self::Many(exact))
    }
}

/// Why a list of page addresses cannot be made into runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadPage {
    /// The address is no multiple of the page size.
    Misaligned,
    /// The page reaches beyond the end of the address space.
    Wraps,
}

/// Merges pages of one size, pushed in the order of their virtual addresses, into runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coalescer {
    page_size: u64,
    open: Option<Run>,
}

impl Coalescer {
    /// Begins without a page. `page_size` is a power of two.
    pub(crate) fn new(page_size: u64) -> Self {
        Self { page_size, open: None }
    }

    /// Begins behind the last of `runs`, which is taken out if a page could continue it.
    pub(crate) fn behind(runs: &mut Runs, page_size: u64) -> Self {
        let aligned = |run: &Run| run.addr.wrapping_add(run.len) & page_size.wrapping_sub(1) == 0;
        let open = if runs.as_slice().last().is_some_and(aligned) { runs.pop() } else { None };
        Self { page_size, open }
    }

    /// Takes the next page and hands out a run when the page does not continue it.
    pub(crate) fn push(&mut self, page: u64) -> Result<Option<Run>, BadPage> {
        if page & self.page_size.wrapping_sub(1) != 0 {
            return Err(BadPage::Misaligned);
        }
        // A page may end exactly at the end of the address space.
        page.checked_add(self.page_size.wrapping_sub(1)).ok_or(BadPage::Wraps)?;
        match &mut self.open {
            Some(run) if run.addr.checked_add(run.len) == Some(page) => {
                run.len = run.len.saturating_add(self.page_size);
                Ok(None)
            }
            open => Ok(open.replace(Run { addr: page, len: self.page_size })),
        }
    }

    /// Returns where the next page must lie to continue the open run, and how many pages in a row
    /// [`Self::extend`] may take: those short of the end of the address space.
    pub(crate) fn expected(&self) -> Option<(u64, u64)> {
        let run = self.open.as_ref()?;
        let next = run.addr.checked_add(run.len)?;
        // The rest of the address space without its last byte: a page that ends there goes through
        // `push()`.
        let room = u64::MAX.checked_sub(next)?;
        Some((next, room.checked_shr(self.page_size.trailing_zeros())?))
    }

    /// Takes `pages` pages that continue the open run as [`Self::expected`] said.
    pub(crate) fn extend(&mut self, pages: u64) {
        if let Some(run) = &mut self.open {
            run.len = run.len.saturating_add(pages.saturating_mul(self.page_size));
        }
    }

    /// Returns the last run; `None` if there was no page.
    pub(crate) fn finish(self) -> Option<Run> {
        self.open
    }
}

/// Hands out runs by length, in order: those of one piece after the other.
pub(crate) struct Cursor<'a> {
    runs: core::slice::Iter<'a, Run>,
    rest: Option<Run>,
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte of `runs`.
    pub(crate) fn new(runs: &'a [Run]) -> Self {
        Self { runs: runs.iter(), rest: None }
    }

    /// Returns the next run, or as much of it as `most` bytes; `None` at the end.
    pub(crate) fn next(&mut self, most: u64) -> Option<Run> {
        let run = self.rest.take().or_else(|| self.runs.next().copied())?;
        let len = run.len.min(most);
        let left = run.len.saturating_sub(len);
        if left != 0 {
            self.rest = Some(Run { addr: run.addr.wrapping_add(len), len: left });
        }
        Some(Run { addr: run.addr, len })
    }
}

/// Returns the `wanted` bytes of `runs` that follow their first `skip` bytes.
pub(crate) fn trim(
    mut runs: impl Iterator<Item = Run> + Clone,
    mut skip: u64,
    mut wanted: u64,
) -> impl Iterator<Item = Run> + Clone {
    core::iter::from_fn(move || loop {
        let run = runs.next()?;
        // Nearly every one.
        if skip == 0 && run.len <= wanted {
            wanted = wanted.wrapping_sub(run.len);
            return Some(run);
        }
        if wanted == 0 {
            return None;
        }
        let front = run.len.min(skip);
        skip = skip.wrapping_sub(front);
        let len = run.len.wrapping_sub(front).min(wanted);
        if len != 0 {
            wanted = wanted.wrapping_sub(len);
            return Some(Run { addr: run.addr.wrapping_add(front), len });
        }
    })
}

/// The longest entry with which every driver computes correctly: some shift an `int` by the page
/// shift, others keep page sizes in an `unsigned int`. Registrations of huge pages have tested 1 GiB.
const CAP_LIMIT: u32 = 1 << 30;

/// Returns the longest entry by rule 13: the device's segment limit in bytes, at most 1 GiB, rounded
/// down to a power of two. So cuts fall on multiples that a device can use as its page size. Never below
/// `page_size`.
pub(crate) fn cap(device_limit: u64, page_size: u64) -> u32 {
    let limit = u32::try_from(device_limit.max(page_size)).map_or(CAP_LIMIT, |limit| limit.min(CAP_LIMIT));
    limit.checked_ilog2().map_or(CAP_LIMIT, |shift| 1 << shift)
}

/// Cuts a run where its (DMA) address is a multiple of `cap`, a power of two. A run that is no
/// longer than `cap` stays whole.
pub(crate) fn cut(run: Run, cap: u64) -> Cut {
    Cut { rest: Some(run), cap, whole: run.len <= cap }
}

/// The pieces of one run, in order. See [`cut`].
#[derive(Debug)]
pub(crate) struct Cut {
    rest: Option<Run>,
    cap: u64,
    whole: bool,
}

impl Iterator for Cut {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let run = self.rest.take()?;
        if self.whole {
            return Some(run);
        }
        let into = run.addr & self.cap.wrapping_sub(1);
        let len = self.cap.saturating_sub(into).min(run.len);
        let left = run.len.saturating_sub(len);
        if left != 0 {
            self.rest = Some(Run { addr: run.addr.wrapping_add(len), len: left });
        }
        Some(Run { addr: run.addr, len })
    }
}

/// Returns the number of entries that `runs` need under `cap`.
pub(crate) fn entries(runs: impl Iterator<Item = Run>, cap: u32) -> usize {
    let mut resched = Resched::default();
    // Not `for`: a chain of adapters is quicker from inside.
    runs.fold(0usize, |entries, run| {
        resched.step();
        // Nearly all runs are short: no loop for each.
        if run.len <= cap.into() {
            entries.wrapping_add(1)
        } else {
            entries.saturating_add(cut(run, cap.into()).count())
        }
    })
}

/// Room for a table of one entry. Contiguous memory needs no other.
pub(crate) struct Room(UnsafeCell<MaybeUninit<raw::nvpm_sg_room>>);

// SAFETY: Plain memory, which one table at a time uses, by the contract of `Table::new()`.
unsafe impl Sync for Room {}

impl Room {
    /// Returns room that no table uses.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

/// A scatterlist of DMA addresses without struct pages, owned by one registration.
///
/// # Invariants
///
/// It came from `nvpm_sg_alloc()`, and all of its entries are filled. It may lie in a [`Room`] that
/// stays where it is, and that no other table uses.
pub(crate) struct Table(NonNull<raw::sg_table>);

// SAFETY: The table is plain memory that nothing ties to the thread that allocated it.
unsafe impl Send for Table {}

impl Table {
    /// Fills a table with `runs`, cut at `cap`. Allocates and may sleep: not under a state lock.
    ///
    /// # Safety
    ///
    /// Until the table is dropped, `room` stays where it is, and no other table uses it.
    ///
    /// # Errors
    ///
    /// `EOVERFLOW` where an `int` cannot hold the number of entries, `EINVAL` for no runs
    /// at all, `ENOMEM`.
    pub(crate) unsafe fn new(mut runs: impl Iterator<Item = Run> + Clone, cap: u32, room: &Room) -> Result<Self> {
        let count = c_int::try_from(entries(runs.clone(), cap)).map_err(|_| EOVERFLOW)?;
        if count == 0 {
            return Err(EINVAL);
        }
        // SAFETY: Called where sleeping is allowed. The room is free, and stays until the table is
        // dropped, by this function's contract.
        let raw = NonNull::new(unsafe { raw::nvpm_sg_alloc(count, room.0.get().cast()) }).ok_or(ENOMEM)?;
        // Owned from here on, so that an early return frees it.
        let table = Self(raw);
        // SAFETY: `raw` was just allocated and is not shared yet.
        let mut entry = unsafe { raw::nvpm_sg_first(raw.as_ptr()) };
        let mut resched = Resched::default();
        let mut fill = |piece: Run| {
            resched.step();
            let len = u32::try_from(piece.len).map_err(|_| EOVERFLOW)?;
            if entry.is_null() {
                return Err(EOVERFLOW);
            }
            // SAFETY: `entry` is not NULL, so it is an entry of this table, which is not shared
            // yet.
            entry = unsafe { raw::nvpm_sg_set(entry, piece.addr, len) };
            Ok(())
        };
        // As in `entries()`.
        runs.try_for_each(|run| {
            if run.len <= cap.into() {
                fill(run)
            } else {
                cut(run, cap.into()).try_for_each(&mut fill)
            }
        })?;
        // INVARIANT: `entries()` counted what `cut()` just yielded, so each entry was filled.
        Ok(table)
    }

    /// Hands the table out by one copy of its head. `nmap` may be a field of `*to` (rule 12), so it is
    /// written afterwards, through a raw pointer.
    ///
    /// # Safety
    ///
    /// `to` and `nmap` must be valid for writing, and nobody may read `*to` once this table is
    /// dropped.
    pub(crate) unsafe fn publish(&self, to: *mut raw::sg_table, nmap: *mut c_int) {
        // SAFETY: `to` is valid by this function's contract, the table by the invariant.
        let entries = unsafe { raw::nvpm_sg_publish(to, self.0.as_ptr()) };
        // SAFETY: Valid by this function's contract.
        unsafe { nmap.write(entries) };
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the invariant this is the only owner of what `nvpm_sg_alloc()` returned, and its
        // room is still there.
        unsafe { raw::nvpm_sg_free(self.0.as_ptr()) };
    }
}
