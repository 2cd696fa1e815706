// SPDX-License-Identifier: GPL-2.0

//! Memory of a GPU: how it is pinned, where it lies, and which devices reach it.
//!
//! This folder and `dma/` below it know nothing of ib_core.

pub(crate) mod bar;
pub(crate) mod page_table;
pub(crate) mod pin;
pub(crate) mod topology;

use crate::dma::device::Device;
use crate::dma::map::{Mapping, ProviderPages};
use crate::ffi::raw;
use crate::observe::reason::Reason;
use crate::range::GpuRange;
use crate::sg::Run;
use bar::Bar;
use core::ptr::NonNull;
use kernel::alloc::KVVec;
use kernel::prelude::*;
use page_table::TableLayout;

/// Maps `runs` (CPU physical addresses) for `device`: the pin of `range`, whose table has `layout`.
/// `table` is the provider's table of a persistent pin. `try_map` asks the provider whether GPU and
/// device can reach each other ([`topology::ask()`]).
///
/// We map memory in a BAR, run by run. The provider maps coherent memory, and for persistent pins
/// only (rule 5). In a virtual machine that is in a BAR, too, and is RAM all the same: where the
/// table says what it is, that counts, and otherwise memory in no BAR is coherent.
///
/// May sleep and allocate, and calls the provider in the two cases of rule 5: never under a state
/// lock or the registry lock.
pub(crate) fn map(
    device: Device,
    runs: KVVec<Run>,
    layout: TableLayout,
    range: &GpuRange,
    table: Option<NonNull<raw::nvidia_p2p_page_table>>,
    try_map: impl FnOnce(NonNull<raw::nvidia_p2p_page_table>) -> Result,
) -> Result<Mapping, Reason> {
    let pages = ProviderPages {
        page_size: layout.page_size,
        entries: layout.entries,
        skip: range.skip(),
        wanted: range.pages().len(),
    };
    let bar = match layout.coherent {
        Some(true) => None,
        Some(false) => Some(Bar::around(&runs).ok_or(Reason::OutsideBar)?),
        None => Bar::around(&runs),
    };
    match (bar, table) {
        (Some(bar), table) => {
            match table.filter(|_| pages.mappable()) {
                Some(table) => topology::ask(bar.gpu(), device, || try_map(table))?,
                None => topology::note_unasked(bar.gpu(), device),
            }
            Mapping::of_bar(device, runs, pages, bar.gpu(), bar.bus_offset())
        }
        (None, Some(table)) => Mapping::by_provider(device, runs, pages, table),
        (None, None) => Err(Reason::OutsideBar),
    }
}
