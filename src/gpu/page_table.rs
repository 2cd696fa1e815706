// SPDX-License-Identifier: GPL-2.0

//! The provider's page table of a pin: checked (rule 14), and read into runs.
//!
//! The reader looks at each record once: a first pass that only counts the runs would cost as much
//! as this one. It reads some records under one hold of the state lock, and makes room in between.
//! The list of runs doubles, and is cut to its length at the end.

use crate::ffi::raw;
use crate::gpu::pin::PagePin;
use crate::num;
use crate::observe::reason::{Reason, TableFault};
use crate::range::Span;
use crate::sg::{BadPage, Coalescer, Run, Runs};
use kernel::prelude::*;

/// What a checked table looks like.
#[derive(Clone, Copy)]
pub(crate) struct TableLayout {
    /// Bytes per page, a power of two.
    pub(crate) page_size: u64,
    /// Number of pages. Together they are exactly as long as what was asked for.
    pub(crate) entries: u32,
    /// Whether the pages are coherent memory, RAM to the kernel wherever they lie. `None` where the
    /// table cannot say.
    pub(crate) coherent: Option<bool>,
}

/// Returns the bytes per page for the provider's code, `None` for one that is unknown.
fn page_bytes(code: u32) -> Option<u64> {
    match code {
        raw::NVIDIA_P2P_PAGE_SIZE_4KB => Some(4 << 10),
        raw::NVIDIA_P2P_PAGE_SIZE_64KB => Some(64 << 10),
        raw::NVIDIA_P2P_PAGE_SIZE_128KB => Some(128 << 10),
        _ => None,
    }
}

/// Judges the numbers of a table by rule 14. `flags` reads what tables of version 2 alone have.
fn check_layout(
    version: u32,
    page_size: u32,
    entries: u32,
    flags: impl FnOnce() -> u32,
    asked: Span,
) -> Result<TableLayout, TableFault> {
    let coherent = match version >> 16 {
        raw::NVIDIA_P2P_PAGE_TABLE_MAJOR_V1 => None,
        raw::NVIDIA_P2P_PAGE_TABLE_MAJOR_V2 => Some(flags() & raw::NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE != 0),
        _ => return Err(TableFault::Version(version)),
    };
    let bytes = page_bytes(page_size).ok_or(TableFault::PageSize(page_size))?;
    if asked.start() & bytes.wrapping_sub(1) != 0 || u64::from(entries).checked_mul(bytes) != Some(asked.len()) {
        return Err(TableFault::Entries(entries));
    }
    Ok(TableLayout { page_size: bytes, entries, coherent })
}

/// The table of a pin that cannot go while this is used.
///
/// # Invariants
///
/// The provider neither frees nor changes the pin's table while this exists.
pub(crate) struct PageTable<'a>(&'a PagePin);

impl<'a> PageTable<'a> {
    /// Returns the table of `pin`.
    ///
    /// # Safety
    ///
    /// As long as the answer is used, the pin is not put, and a free callback for it has not
    /// returned.
    pub(crate) unsafe fn of(pin: &'a PagePin) -> Self {
        // INVARIANT: By this function's contract: until then the provider keeps the table as it is.
        Self(pin)
    }

    /// Returns the pin.
    pub(crate) fn pin(&self) -> &PagePin {
        self.0
    }

    /// Reads and checks the head of the table against what the provider was asked for.
    pub(crate) fn layout(&self) -> Result<TableLayout, TableFault> {
        // SAFETY: The table is valid by the invariant. All versions share the fields read here.
        let (version, page_size, pages, entries) = unsafe {
            let table = self.0.table().as_ptr();
            ((*table).version, (*table).page_size, (*table).pages, (*table).entries)
        };
        // SAFETY: As above, and called for a table that has them.
        let flags = || unsafe { (*self.0.table().as_ptr()).flags };
        let layout = check_layout(version, page_size, entries, flags, self.0.span())?;
        if pages.is_null() {
            return Err(TableFault::NoPages);
        }
        Ok(layout)
    }

    /// Returns the pages of a table that has `layout`, in order.
    fn pages(&self, layout: TableLayout) -> &[Page] {
        // SAFETY: The table is valid and unchanged as long as `self` by the invariant. `layout()`
        // found `pages` not NULL, and it holds `entries` aligned pointers, which `Page` is: 2^32
        // of them are fewer bytes than `isize::MAX`.
        // INVARIANT: They are the table's own.
        unsafe { core::slice::from_raw_parts((*self.0.table().as_ptr()).pages.cast(), num::index(layout.entries)) }
    }
}

/// One page of a table: a pointer to its record.
///
/// # Invariants
///
/// It is NULL, or the table that it was read from has such a record.
#[repr(transparent)]
struct Page(*mut raw::nvidia_p2p_page);

impl Page {
    /// Returns the page's physical address, or `None` where the provider left the record out.
    fn address(&self) -> Option<u64> {
        // SAFETY: Not NULL where it is read, so it is valid by the invariant: it is borrowed from a
        // table that does not change meanwhile.
        (!self.0.is_null()).then(|| unsafe { (*self.0).physical_address })
    }
}

/// Returns how many of the first `pages` lie one behind the other, `step` bytes each, the first of
/// them at `at`. The first one that is not as expected ends the run.
///
/// A large registration spends most of our time here: a handful of instructions per page, as long
/// as it has the registers for itself.
#[inline(never)]
fn contiguous(pages: &[Page], at: u64, step: u64) -> usize {
    let mut expected = at;
    let fours = pages.chunks_exact(4);
    let rest = fours.remainder();
    'run: {
        for four in fours {
            for page in four {
                if page.address() != Some(expected) {
                    break 'run;
                }
                expected = expected.wrapping_add(step);
            }
        }
        for page in rest {
            if page.address() != Some(expected) {
                break 'run;
            }
            expected = expected.wrapping_add(step);
        }
    }
    num::usize_from(expected.wrapping_sub(at) >> step.trailing_zeros())
}

/// Pages read under one hold of the state lock. So a callback waits for microseconds, not for the
/// whole of a fragmented 80 GiB table.
const PAGES_PER_HOLD: u32 = 4096;

/// Appends the runs of a table to a list. See the file's text.
pub(crate) struct Reader {
    layout: TableLayout,
    coalescer: Coalescer,
    /// The first page that was not read yet.
    next: u32,
    runs: Runs,
}

impl Reader {
    /// Reads a table of `layout`. `runs` has room for one.
    pub(crate) fn new(layout: TableLayout, mut runs: Runs) -> Self {
        // The table's first pages may continue what is in the list.
        let coalescer = Coalescer::behind(&mut runs, layout.page_size);
        Self { layout, coalescer, next: 0, runs }
    }

    /// Returns whether all pages were read.
    pub(crate) fn done(&self) -> bool {
        self.next >= self.layout.entries
    }

    /// Makes room for at least one run: between two calls of [`Self::read`]. Allocates: not under a
    /// state lock.
    pub(crate) fn make_room(&mut self) -> Result<(), Reason> {
        self.runs.make_room().map_err(|_| Reason::NoMemory)
    }

    /// Reads on, until the state lock was held long enough or there is no room. Does not allocate.
    pub(crate) fn read(&mut self, table: &PageTable<'_>) -> Result<(), Reason> {
        let TableLayout { page_size, entries, .. } = self.layout;
        let until = self.next.saturating_add(PAGES_PER_HOLD).min(entries);
        let pages = table.pages(self.layout).get(num::index(self.next)..num::index(until));
        let mut left = pages.unwrap_or_default();
        // By value: memory in single pages comes here for each of them.
        let mut coalescer = self.coalescer;
        let mut list = self.runs.list();
        let mut first = None;
        while let Some((page, behind)) = left.split_first() {
            let page = page.address().ok_or(Reason::Table(TableFault::NoPages))?;
            let run = coalescer.push(page).map_err(|fault| match fault {
                BadPage::Misaligned | BadPage::Wraps => Reason::Table(TableFault::Address),
            })?;
            left = behind;
            if let Some(run) = run {
                let Some(list) = &mut list else {
                    first = Some(run);
                    break;
                };
                list.push_within_capacity(run).map_err(|_| Reason::NoMemory)?;
                if list.len() == list.capacity() {
                    break;
                }
                // A single page. The page that was just read probably is alone, too.
                if run.len <= page_size {
                    continue;
                }
            }
            if let Some((at, most)) = coalescer.expected() {
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                let same = contiguous(left.get(..most).unwrap_or(left), at, page_size);
                coalescer.extend(num::u64_from(same));
                left = left.get(same..).unwrap_or_default();
            }
        }
        self.coalescer = coalescer;
        if let Some(run) = first {
            self.runs.push(run).map_err(|_| Reason::NoMemory)?;
        }
        // Fewer than `until`, which is 32 bits long.
        self.next = until.saturating_sub(u32::try_from(left.len()).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Returns the run of all pages, once they were read; `None` where there are more runs than this
    /// one.
    pub(crate) fn alone(&self) -> Option<Run> {
        match self.runs {
            Runs::None => self.coalescer.finish(),
            Runs::One(_) | Runs::Many(_) => None,
        }
    }

    /// Returns the list with the last run. Allocates: not under a state lock.
    pub(crate) fn finish(mut self) -> Result<Runs, Reason> {
        match self.coalescer.finish() {
            Some(run) => self.runs.append(run).map_err(|_| Reason::NoMemory)?,
            None => return Err(Reason::Table(TableFault::Entries(self.layout.entries))),
        }
        Ok(self.runs)
    }
}
