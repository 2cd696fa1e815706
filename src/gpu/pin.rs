// SPDX-License-Identifier: GPL-2.0

//! A pin of GPU pages: all calls into the provider (`nvidia.ko`) but the mapping ones, and the checks of its tables.
//!
//! Knows nothing of ib_core.

use crate::ffi::raw;
use crate::ffi::shim;
use crate::observe::reason::TableFault;
use crate::observe::stats::{self, Call};
use crate::range::Span;
use crate::state::Pinned;
use core::ffi::c_void;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;

/// The two ways to pin that the provider offers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The memory outlives its free until the put; no callback.
    Persistent,
    /// The provider calls back when the memory is freed, and takes the pin back by itself.
    Revocable,
}

impl Kind {
    /// Its name for people and in `/proc/driver/nvidia-peermem`.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Revocable => "revocable",
        }
    }
}

/// The provider's handle of one pin.
///
/// There is no `Drop`: whether and when a pin may be put is what [`crate::state::Life`] decides (rules 7 and 8).
///
/// # Invariants
///
/// The provider's get returned `table` for `va`, by the way that `kind` names. A persistent pin's table is valid until
/// it is put, a revocable one's until the free callback returned.
pub(crate) struct PagePin {
    table: NonNull<raw::nvidia_p2p_page_table>,
    kind: Kind,
    va: u64,
}

// SAFETY: The table is the provider's memory and bound to no thread; who may put it is checked by process elsewhere.
unsafe impl Send for PagePin {}

impl PagePin {
    /// Asks the provider for `span`, once. For a revocable pin `ticket` is what the callback will bring along; it must
    /// be in the registry already, because the callback may come before this returns.
    ///
    /// Takes G (shared) and, in the provider, R: never under R, M, L or the registry lock. Sleeps.
    ///
    /// # Errors
    ///
    /// The provider's own errno; what each means is judged by [`crate::acquire`].
    pub(crate) fn get(kind: Kind, span: Span, ticket: u64) -> Result<Self> {
        let mut table = core::ptr::null_mut();
        let data = core::ptr::without_provenance_mut(usize::try_from(ticket).map_err(|_| EOVERFLOW)?);
        let _g = shim::GShared::lock();
        to_result(stats::timed(kind, Call::Get, || match kind {
            // SAFETY: `table` is a local that outlives the call.
            Kind::Persistent => unsafe { raw::nvpm_p2p_get_persistent(span.start(), span.len(), &mut table) },
            // SAFETY: `table` is a local that outlives the call, and `free_callback` takes any number for a ticket.
            Kind::Revocable => unsafe {
                raw::nvpm_p2p_get(span.start(), span.len(), &mut table, Some(free_callback), data)
            },
        }))?;
        // On an error the pointer may be a freed one; here the provider vouches for it.
        // INVARIANT: Just returned by the provider.
        Ok(Self { table: NonNull::new(table).ok_or(EIO)?, kind, va: span.start() })
    }

    /// Gives the pin back. A revocable one needs G, exclusive, and the caller in the process that got it.
    ///
    /// Takes R in the provider: never under R, M, L or the registry lock (a persistent put may run under M). Sleeps.
    ///
    /// # Errors
    ///
    /// The provider's errno. Only on `ENOMEM` is the pin still there, and handed back.
    pub(crate) fn put(self) -> Result<(), (Option<Self>, Error)> {
        let ret = stats::timed(self.kind, Call::Put, || match self.kind {
            // SAFETY: By the invariant the table is a persistent pin's and not put yet, as `self` is consumed.
            Kind::Persistent => unsafe { raw::nvpm_p2p_put_persistent(self.va, self.table.as_ptr()) },
            // SAFETY: By the invariant the table is a revocable pin's; the provider takes it as a key only, so a
            // callback that is faster makes this an unknown key, and G keeps the key from being reused by us.
            Kind::Revocable => unsafe { raw::nvpm_p2p_put(self.va, self.table.as_ptr()) },
        });
        to_result(ret).map_err(|error| ((error == ENOMEM).then_some(self), error))
    }
}

/// What a checked table looks like.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Bytes per page, a power of two.
    pub(crate) page_size: u64,
    /// Number of pages; together they are exactly as long as what was asked for.
    pub(crate) entries: u32,
}

/// Bytes per page for the provider's code, `None` for one that is unknown.
fn page_bytes(code: u32) -> Option<u64> {
    match code {
        raw::NVIDIA_P2P_PAGE_SIZE_4KB => Some(4 << 10),
        raw::NVIDIA_P2P_PAGE_SIZE_64KB => Some(64 << 10),
        raw::NVIDIA_P2P_PAGE_SIZE_128KB => Some(128 << 10),
        _ => None,
    }
}

/// Rule 14 on the numbers of a table.
fn check_shape(version: u32, page_size: u32, entries: u32, asked: Span) -> Result<Shape, TableFault> {
    let major = version >> 16;
    if major != raw::NVIDIA_P2P_PAGE_TABLE_MAJOR_V1 && major != raw::NVIDIA_P2P_PAGE_TABLE_MAJOR_V2 {
        return Err(TableFault::Version(version));
    }
    let bytes = page_bytes(page_size).ok_or(TableFault::PageSize(page_size))?;
    if asked.start() & bytes.wrapping_sub(1) != 0 || u64::from(entries).checked_mul(bytes) != Some(asked.len()) {
        return Err(TableFault::Entries(entries));
    }
    Ok(Shape { page_size: bytes, entries })
}

impl Pinned<'_, PagePin> {
    /// Reads and checks the head of the table against the span that was asked for.
    pub(crate) fn shape(&self, asked: Span) -> Result<Shape, TableFault> {
        // SAFETY: `Pinned` is lent out only under L, held and not revoked: the provider frees the table after our
        // callback returned, which cannot happen before L is dropped. All versions share the fields read here.
        let (version, page_size, pages, entries) = unsafe {
            let table = self.pin().table.as_ptr();
            ((*table).version, (*table).page_size, (*table).pages, (*table).entries)
        };
        let shape = check_shape(version, page_size, entries, asked)?;
        if pages.is_null() {
            return Err(TableFault::NoPages);
        }
        Ok(shape)
    }

    /// Physical address of page `index` of a table that has `shape`.
    pub(crate) fn page(&self, shape: Shape, index: u32) -> Result<u64, TableFault> {
        let at = usize::try_from(index).map_err(|_| TableFault::NoPages)?;
        if index >= shape.entries {
            return Err(TableFault::Entries(index));
        }
        // SAFETY: The table is valid as in `shape()`, which found `pages` not NULL; it holds `entries` pointers.
        let page = unsafe { *(*self.pin().table.as_ptr()).pages.add(at) };
        if page.is_null() {
            return Err(TableFault::NoPages);
        }
        // SAFETY: Not NULL, so it is a page record of the same table.
        Ok(unsafe { (*page).physical_address })
    }

    /// How many pages from `from` on, and before `until`, lie one behind the other, the first of them at `at`. Whatever
    /// is not as expected ends the row, and is for [`Self::page`] to judge.
    ///
    /// Most of the time that a large registration costs us is spent here: a handful of instructions per page.
    pub(crate) fn row(&self, shape: Shape, from: u32, until: u32, at: u64) -> u32 {
        let count = until.min(shape.entries).saturating_sub(from);
        let (Ok(first), Ok(count)) = (usize::try_from(from), usize::try_from(count)) else {
            return 0;
        };
        if count == 0 {
            return 0;
        }
        // SAFETY: The table is valid as in `shape()`, which found `pages` not NULL; it holds `entries` pointers, so
        // those from `from` to `until` lie in it, and nobody writes them while L is held.
        let pages = unsafe { core::slice::from_raw_parts((*self.pin().table.as_ptr()).pages.add(first), count) };
        // SAFETY: Not NULL where it is read, so it is a page record of the same table.
        let lies = |page: &*mut raw::nvidia_p2p_page, at| !page.is_null() && unsafe { (**page).physical_address } == at;
        let step = shape.page_size;
        let mut expected = at;
        let mut same = 0u32;
        for four in pages.chunks_exact(4) {
            let [first, second, third, fourth] = four else { break };
            for page in [first, second, third, fourth] {
                if !lies(page, expected) {
                    return same;
                }
                expected = expected.wrapping_add(step);
                same = same.wrapping_add(1);
            }
        }
        for page in pages.chunks_exact(4).remainder() {
            if !lies(page, expected) {
                break;
            }
            expected = expected.wrapping_add(step);
            same = same.wrapping_add(1);
        }
        same
    }

    /// The table for the provider's own mapping, which exists for persistent pins only: such a table stays valid
    /// without L, until the pin is put in `release`, behind every mapping.
    pub(crate) fn persistent_table(&self) -> Option<NonNull<raw::nvidia_p2p_page_table>> {
        (self.pin().kind == Kind::Persistent).then_some(self.pin().table)
    }
}

/// What the provider calls when it takes a revocable pin back: with R and GPU locks held, in any task.
///
/// # Safety
///
/// None beyond the C prototype: `data` is a number and never followed.
unsafe extern "C" fn free_callback(data: *mut c_void) {
    crate::invalidate::on_free(u64::try_from(data.addr()).unwrap_or(0));
}
