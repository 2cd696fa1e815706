// SPDX-License-Identifier: GPL-2.0

//! Reads the provider's tables of a registration, once, into runs (rule 4).

use crate::ffi::shim;
use crate::gpu::page_table::Reader;
use crate::gpu::{Piece, Pinned};
use crate::observe::reason::Reason;
use crate::pin::registration::{Inner, Registration, Tables};
use crate::several::Several;
use crate::sg::Runs;
use kernel::prelude::*;
use kernel::sync::MutexGuard;

/// Copies what is needed of the provider's tables, which are never looked at again (rule 4). Gives
/// `inner`, the state lock, up in between, and takes it again.
pub(super) fn copy_runs<'a>(registration: &'a Registration, mut inner: MutexGuard<'a, Inner>) -> Result<(), Reason> {
    let count = inner.state.held().map_or(0, Several::len);
    let piece = read_head(registration, &mut inner, 0)?;
    let mut reader = Reader::new(piece.layout, Runs::None);
    inner = read_pages(registration, inner, 0, &mut reader)?;
    let mut pieces = Several::one(piece);
    let runs = match reader.alone() {
        // Nothing is allocated for memory in one piece.
        Some(run) if count == 1 => Runs::One(run),
        _ => {
            drop(inner);
            let mut runs = reader.finish()?;
            for index in 1..count {
                pieces.make_room().map_err(|_| Reason::NoMemory)?;
                runs.make_room().map_err(|_| Reason::NoMemory)?;
                let mut inner = registration.inner().lock();
                let piece = read_head(registration, &mut inner, index)?;
                let mut reader = Reader::new(piece.layout, runs);
                drop(read_pages(registration, inner, index, &mut reader)?);
                pieces.push(piece).map_err(|_| Reason::NoMemory)?;
                runs = reader.finish()?;
                shim::cond_resched();
            }
            let runs = runs.without_slack().map_err(|_| Reason::NoMemory)?;
            inner = registration.inner().lock();
            runs
        }
    };
    inner.state.keep_read(Pinned { runs, pieces });
    Ok(())
}

/// Lets `reader` read all pages of the provider's table of the pin at `index`. Gives `inner`, the
/// state lock, up now and then; the answer holds it.
fn read_pages<'a>(
    registration: &'a Registration,
    mut inner: MutexGuard<'a, Inner>,
    index: usize,
    reader: &mut Reader,
) -> Result<MutexGuard<'a, Inner>, Reason> {
    loop {
        reader.read(&inner.page_table(index).ok_or(Reason::Freed)?)?;
        if reader.done() {
            return Ok(inner);
        }
        drop(inner);
        reader.make_room()?;
        shim::cond_resched();
        inner = registration.inner().lock();
    }
}

/// Reads and checks the head of the provider's table of the pin at `index`.
fn read_head(registration: &Registration, inner: &mut Inner, index: usize) -> Result<Piece, Reason> {
    let pieces = inner.state.held().map_or(0, Several::len);
    let table = inner.page_table(index).ok_or(Reason::Freed)?;
    let layout = table.layout().map_err(Reason::Table)?;
    let piece = Piece { span: table.pin().span(), layout, table: table.pin().persistent_table() };
    let entries = u64::from(layout.entries);
    registration.count_pages(inner, entries);
    let before = inner.tables.map_or(0, |tables| tables.pages);
    let page_size = inner.tables.map_or(layout.page_size, |tables| tables.page_size);
    inner.tables = Some(Tables { pieces, pages: before.saturating_add(entries), page_size });
    Ok(piece)
}
