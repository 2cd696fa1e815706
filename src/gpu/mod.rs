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
use crate::sg::Run;
use bar::Bar;
use core::ptr::NonNull;
use kernel::alloc::KVVec;
use kernel::prelude::*;

/// Maps `runs` (CPU physical addresses) of a pin for `device`. `table` is the provider's table of a
/// persistent pin, `pages` what it holds. `try_map` asks the provider whether GPU and device can
/// reach each other ([`topology::ask()`]).
///
/// We map memory in a BAR, run by run. The provider maps memory outside every BAR (coherent
/// platforms), and for persistent pins only (rule 5).
///
/// May sleep and allocate, and calls the provider in the two cases of rule 5: never under a state
/// lock or the registry lock.
pub(crate) fn map(
    device: Device,
    runs: KVVec<Run>,
    pages: ProviderPages,
    table: Option<NonNull<raw::nvidia_p2p_page_table>>,
    try_map: impl FnOnce(NonNull<raw::nvidia_p2p_page_table>) -> Result,
) -> Result<Mapping, Reason> {
    match (Bar::around(&runs), table) {
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
