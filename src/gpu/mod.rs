// SPDX-License-Identifier: GPL-2.0

//! Memory of a GPU: how it is pinned, where it lies, and which devices reach it.
//!
//! This folder uses `dma/`.

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

/// Pinned memory in the parts in which it is mapped, each with the BAR that it lies in.
///
/// Memory in one BAR is one part, whatever pieces it has, so that an IOMMU keeps contiguous memory
/// contiguous. Otherwise each piece is a part.
pub(crate) struct Placed(Several<Part>);

/// See [`Placed`].
///
/// # Invariants
///
/// All `runs` lie in `bar`, where there is one.
struct Part {
    runs: Runs,
    /// The first piece of those in it.
    piece: Piece,
    /// `None` for memory that lies in no BAR, or is coherent: that is RAM to the kernel, also where it
    /// is a BAR (of a virtual machine). Where the table says what it is, that counts.
    bar: Option<Bar>,
}

/// A question for the provider about a part: do its GPU and the device reach each other?
pub(crate) struct Question {
    /// PCI number of the GPU.
    pub(crate) gpu: u64,
    /// The span of a persistent pin, and its table, which the provider can map. It cannot be asked
    /// without one.
    pub(crate) table: Option<(Span, NonNull<raw::nvidia_p2p_page_table>)>,
}

impl Part {
    /// Returns the question to ask before it is mapped; `None` for memory in no BAR.
    fn question(&self) -> Option<Question> {
        let Self { piece, bar, .. } = self;
        let table = piece.table.filter(|_| piece.pages().mappable()).map(|table| (piece.span, table));
        bar.as_ref().map(|bar| Question { gpu: bar.gpu(), table })
    }

    /// Maps it for `device`. We map memory in a BAR ourselves. The provider maps coherent memory, and for
    /// persistent pins only (rule 5). With a table that cannot say what is coherent, memory in no BAR is.
    ///
    /// # Safety
    ///
    /// The contract is that of [`Placed::map`].
    unsafe fn map(&mut self, device: Device) -> Result<Mapping, Reason> {
        let runs = core::mem::replace(&mut self.runs, Runs::None);
        match (&self.bar, self.piece.table) {
            // SAFETY: By the invariant the runs lie in the BAR, whose extent is theirs.
            (Some(bar), _) => unsafe { Mapping::of_bar(device, runs, bar.extent(), bar.gpu(), bar.bus_offset()) },
            (None, Some(table)) if self.piece.layout.coherent != Some(false) => {
                // SAFETY: By this function's contract.
                unsafe { Mapping::by_provider(device, runs, self.piece.pages(), table) }
            }
            (None, _) => Err(Reason::OutsideBar),
        }
    }
}

/// Finds the BARs that `pinned` lies in. May sleep and allocate: never under a state lock or the registry
/// lock.
pub(crate) fn place(pinned: Pinned) -> Result<Placed, Reason> {
    let Pinned { runs, pieces } = pinned;
    let coherent = |piece: &Piece| piece.layout.coherent == Some(true);
    let bar = if pieces.iter().any(coherent) { None } else { Bar::around(runs.as_slice()) };
    if bar.is_some() || pieces.len() == 1 {
        // INVARIANT: The BAR is around all runs.
        return Ok(Placed(Several::one(Part { runs, piece: *pieces.first(), bar })));
    }
    let mut cursor = Cursor::new(runs.as_slice());
    let mut next = |piece: &Piece| {
        let runs = runs_of(piece, &mut cursor)?;
        let bar = if coherent(piece) { None } else { Bar::around(runs.as_slice()) };
        // INVARIANT: As above.
        Ok(Part { runs, piece: *piece, bar })
    };
    let mut parts = Several::one(next(pieces.first())?);
    for piece in pieces.others() {
        parts.make_room().map_err(|_| Reason::NoMemory)?;
        parts.push(next(piece)?).map_err(|_| Reason::NoMemory)?;
        shim::cond_resched();
    }
    Ok(Placed(parts))
}

impl Placed {
    /// Lists the questions to ask the provider before this is mapped.
    pub(crate) fn questions(&self) -> impl Iterator<Item = Question> + '_ {
        self.0.iter().filter_map(Part::question)
    }

    /// Maps all of it for `device`.
    ///
    /// May sleep and allocate, and calls the provider for coherent memory (rule 5): never under a state
    /// lock or the registry lock.
    ///
    /// # Safety
    ///
    /// The persistent pins of this memory are put only once the answer is dropped or undone.
    pub(crate) unsafe fn map(mut self, device: Device) -> Result<Mappings, Reason> {
        let mut all: Option<Several<Mapping>> = None;
        for part in self.0.iter_mut() {
            // SAFETY: By this function's contract.
            let mapping = unsafe { part.map(device) }?;
            match &mut all {
                None => all = Some(Several::one(mapping)),
                Some(all) => {
                    all.make_room().map_err(|_| Reason::NoMemory)?;
                    all.push(mapping).map_err(|_| Reason::NoMemory)?;
                    shim::cond_resched();
                }
            }
        }
        all.map(Mappings::new).ok_or(Reason::DmaMapping)
    }
}

/// Returns the runs of `piece`, which is the next one.
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
