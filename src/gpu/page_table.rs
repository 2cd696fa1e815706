// SPDX-License-Identifier: GPL-2.0

//! The provider's table read into runs: each record once, some of them under one hold of L, with room made in between.
//!
//! A reading of the whole table just to know how many runs there will be would cost as much as the one that keeps them.
//! So the list grows by doubling, and is as long as its runs in the end.

use crate::ffi::shim::Breath;
use crate::gpu::pin::{PagePin, Shape};
use crate::observe::reason::{Reason, TableFault};
use crate::sg::{BadPage, Coalescer, Run};
use crate::state::Pinned;
use kernel::alloc::KVVec;
use kernel::prelude::*;

/// Pages read under one hold of L, so that a callback waits for microseconds, not for the whole of a fragmented 80 GiB
/// table.
const PAGES_PER_HOLD: u32 = 4096;

/// Room for runs before any was seen; most registrations need no more.
const RUNS_EXPECTED: usize = 8;

/// See the module's text.
pub(crate) struct Reader {
    shape: Shape,
    coalescer: Coalescer,
    /// The first page that was not read yet.
    next: u32,
    runs: KVVec<Run>,
}

impl Reader {
    /// Reads a table of `shape`, of which `skip` bytes are left out at the front, and then `wanted` are covered.
    pub(crate) fn new(shape: Shape, skip: u64, wanted: u64) -> Result<Self, Reason> {
        let runs = KVVec::with_capacity(RUNS_EXPECTED, GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
        Ok(Self { shape, coalescer: Coalescer::new(shape.page_size, skip, wanted), next: 0, runs })
    }

    /// Whether all pages were read.
    pub(crate) fn done(&self) -> bool {
        self.next >= self.shape.entries
    }

    /// Makes room for one run at least: before each [`Self::read`]. Allocates: not under L.
    pub(crate) fn make_room(&mut self) -> Result<(), Reason> {
        if self.runs.len() == self.runs.capacity() {
            self.runs.reserve(self.runs.len(), GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
        }
        Ok(())
    }

    /// Reads on, until one hold of L has lasted long enough or there is no room. Does not allocate.
    pub(crate) fn read(&mut self, held: &Pinned<'_, PagePin>) -> Result<(), Reason> {
        let until = self.next.saturating_add(PAGES_PER_HOLD).min(self.shape.entries);
        while self.next < until {
            let page = held.page(self.shape, self.next).map_err(Reason::Table)?;
            let run = self.coalescer.push(page).map_err(|fault| match fault {
                BadPage::Misaligned | BadPage::Wraps => Reason::Table(TableFault::Address),
            })?;
            self.next = self.next.saturating_add(1);
            if let Some(run) = run {
                self.runs.push_within_capacity(run).map_err(|_| Reason::NoMemory)?;
                if self.runs.len() == self.runs.capacity() {
                    break;
                }
                // A single page: the one that was just read probably is alone, too.
                if run.len <= self.shape.page_size {
                    continue;
                }
            }
            if let Some((at, most)) = self.coalescer.expected() {
                let most = u32::try_from(most).unwrap_or(u32::MAX);
                let same = held.row(self.shape, self.next, until.min(self.next.saturating_add(most)), at);
                self.coalescer.extend(same.into());
                self.next = self.next.saturating_add(same);
            }
        }
        Ok(())
    }

    /// The runs, in a list that has no slack where there are so many that it matters. Allocates: not under L.
    pub(crate) fn finish(self) -> Result<KVVec<Run>, Reason> {
        let mut runs = self.runs;
        match self.coalescer.finish() {
            Ok(Some(run)) => runs.push(run, GFP_KERNEL).map_err(|_| Reason::NoMemory)?,
            _ => return Err(Reason::Table(TableFault::Entries(self.shape.entries))),
        }
        if runs.len() <= RUNS_EXPECTED || runs.len() == runs.capacity() {
            return Ok(runs);
        }
        let mut exact = KVVec::with_capacity(runs.len(), GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
        let mut breath = Breath::default();
        for run in runs.iter() {
            breath.step();
            exact.push_within_capacity(*run).map_err(|_| Reason::NoMemory)?;
        }
        Ok(exact)
    }
}
