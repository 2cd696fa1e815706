// SPDX-License-Identifier: GPL-2.0

//! Memory of a GPU: how it is pinned, where it lies, and which devices reach it.
//!
//! This folder and `dma/`, which it uses, know nothing of ib_core.

pub(crate) mod bar;
pub(crate) mod page_table;
pub(crate) mod pin;
pub(crate) mod topology;

use crate::dma::device::Device;
use crate::dma::map::{Mapping, Mappings, ProviderPages};
use crate::ffi::{raw, shim};
use crate::observe::reason::Reason;
use crate::range::Span;
use crate::several::Several;
use crate::sg::{Cursor, Runs};
use bar::Bar;
use core::ptr::NonNull;
use kernel::prelude::*;
use page_table::TableLayout;

/// One pin of a registration, as its table was read: what an allocation, or a part of it, holds.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// What the provider was asked for.
    pub(crate) span: Span,
    pub(crate) layout: TableLayout,
    /// The provider's table, of a persistent pin only.
    pub(crate) table: Option<NonNull<raw::nvidia_p2p_page_table>>,
}

// SAFETY: The table is the provider's memory and bound to no thread.
unsafe impl Send for Piece {}

impl Piece {
    fn pages(&self) -> ProviderPages {
        ProviderPages { page_size: self.layout.page_size, entries: self.layout.entries }
    }
}

/// What is pinned, as the provider's tables were read.
pub(crate) struct Pinned {
    /// CPU physical addresses of all pins.
    pub(crate) runs: Runs,
    /// What each pin's table said.
    pub(crate) pieces: Several<Piece>,
}

/// Maps `pinned`, the pins of a registration, for `device`. `try_map` asks the provider with the
/// table of a span whether its GPU and the device can reach each other ([`topology::ask()`]).
///
/// Memory in one BAR is one mapping, whatever pieces it has, so that an IOMMU keeps contiguous
/// memory contiguous. Otherwise each piece has a mapping of its own.
///
/// May sleep and allocate, and calls the provider in the two cases of rule 5: never under a state
/// lock or the registry lock.
pub(crate) fn map(
    device: Device,
    pinned: Pinned,
    try_map: impl Fn(Span, NonNull<raw::nvidia_p2p_page_table>) -> Result,
) -> Result<Mappings, Reason> {
    let Pinned { runs, pieces } = pinned;
    let coherent = |piece: &Piece| piece.layout.coherent == Some(true);
    let bar = if pieces.iter().any(coherent) { None } else { Bar::around(runs.as_slice()) };
    let all = if bar.is_some() || pieces.len() == 1 {
        Several::one(map_piece(device, runs, pieces.first(), bar, &try_map)?)
    } else {
        let mut cursor = Cursor::new(runs.as_slice());
        let mut next = |piece: &Piece| {
            let runs = runs_of(piece, &mut cursor)?;
            let bar = if coherent(piece) { None } else { Bar::around(runs.as_slice()) };
            map_piece(device, runs, piece, bar, &try_map)
        };
        let mut all = Several::one(next(pieces.first())?);
        for piece in pieces.others() {
            all.make_room().map_err(|_| Reason::NoMemory)?;
            all.push(next(piece)?).map_err(|_| Reason::NoMemory)?;
            shim::cond_resched();
        }
        all
    };
    Ok(Mappings::new(all))
}

/// The runs of `piece`, which is the next one.
fn runs_of(piece: &Piece, cursor: &mut Cursor<'_>) -> Result<Runs, Reason> {
    let mut runs = Runs::None;
    let mut left = piece.span.len();
    while left != 0 {
        let run = cursor.next(left).ok_or(Reason::DmaMapping)?;
        runs.append(run).map_err(|_| Reason::NoMemory)?;
        left = left.saturating_sub(run.len);
    }
    Ok(runs)
}

/// Maps `runs` of `piece`, which lie in `bar`, or in none or in coherent memory.
///
/// We map memory in a BAR. The provider maps coherent memory, and for persistent pins only (rule
/// 5). In a virtual machine that is in a BAR, too, and is RAM all the same: where the table says
/// what it is, that counts, and otherwise memory in no BAR is coherent.
fn map_piece(
    device: Device,
    runs: Runs,
    piece: &Piece,
    bar: Option<Bar>,
    try_map: impl Fn(Span, NonNull<raw::nvidia_p2p_page_table>) -> Result,
) -> Result<Mapping, Reason> {
    let pages = piece.pages();
    match (bar, piece.table) {
        (Some(bar), table) => {
            match table.filter(|_| pages.mappable()) {
                Some(table) => topology::ask(bar.gpu(), device, || try_map(piece.span, table))?,
                None => topology::note_unasked(bar.gpu(), device),
            }
            Mapping::of_bar(device, runs, bar.extent(), bar.gpu(), bar.bus_offset())
        }
        (None, Some(table)) if piece.layout.coherent != Some(false) => Mapping::by_provider(device, runs, pages, table),
        (None, _) => Err(Reason::OutsideBar),
    }
}
