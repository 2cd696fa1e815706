// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Finds out which allocations a range is made of. CUDA numbers allocations and never uses a number
//! twice, and memory is freed by whole allocations or segments. So while each piece has its number,
//! nothing has changed.

use crate::backend::{Gpu, Kind};
use crate::error::Error;
use crate::range::Range;

/// The pieces of a range.
///
/// # Invariants
///
/// There is at least one piece, in order of address; together they cover the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pieces: Vec<Piece>,
    last: u64,
    /// The epoch of the process when this was read, or `None` if checkpoints are not seen.
    epoch: Option<u64>,
    /// The piece and its bounds, if it is the only one and CUDA tells its number and its bounds at
    /// once.
    at_once: Option<(Piece, Range)>,
}

#[cfg(all(test, not(feature = "shuttle")))]
impl Identity {
    /// The offset at which the part ends that a hit with reported frees reads.
    pub(crate) const EPOCH_ENDS: usize = std::mem::offset_of!(Self, epoch) + size_of::<Option<u64>>();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: u64,
    id: u64,
}

impl Identity {
    /// Asks CUDA. Fails if an address of the range is no device memory.
    pub fn read(gpu: &impl Gpu, range: Range) -> Result<Self, Error> {
        // Before CUDA has started, the epoch would be that of another library's files (NVML's).
        if gpu.kind(range.start()) != Kind::Device {
            return Err(Error::not_device(gpu, range.start(), range));
        }
        let epoch = gpu.fresh_epoch();
        let mut pieces = Vec::with_capacity(1);
        let mut at_once = None;
        let mut at = range.start();
        while at < range.end() {
            let unknown = || Error::not_device(gpu, at, range);
            let (Some(id), Kind::Device) = (gpu.buffer_id(at), gpu.kind(at)) else { return Err(unknown()) };
            let start = Piece { at, id };
            pieces.push(start);
            let piece = gpu.allocation(at).filter(|piece| piece.end() > at).ok_or_else(unknown)?;
            if piece.contains(&range) && gpu.buffer(at) == Some((id, piece)) {
                at_once = Some((start, piece));
            }
            at = piece.end();
        }
        Ok(Self { pieces, last: range.last(), epoch, at_once })
    }

    /// Returns whether there was no checkpoint since. CUDA does not report checkpoints to programs
    /// that report frees.
    #[inline]
    pub fn current(&self, gpu: &impl Gpu) -> bool {
        self.is_watched() && gpu.epoch() == self.epoch
    }

    /// Returns whether a checkpoint would be seen.
    pub fn is_watched(&self) -> bool {
        self.epoch.is_some()
    }

    /// Returns whether the memory is surely the same: there was no checkpoint since, and no free.
    #[inline]
    pub fn holds(&self, gpu: &impl Gpu) -> bool {
        self.current(gpu) && self.same(gpu)
    }

    /// Returns whether the memory, which was just read, is the same as far as anybody can say.
    pub fn seems_to_hold(&self, gpu: &impl Gpu) -> bool {
        let now = gpu.fresh_epoch();
        (now == self.epoch || now.is_none() || !self.is_watched()) && self.same(gpu)
    }

    /// Returns whether each piece, and both ends, have their numbers. If one answer contains number
    /// and bounds, and these are unchanged, it is valid for both ends.
    #[inline]
    fn same(&self, gpu: &impl Gpu) -> bool {
        if let Some((piece, bounds)) = self.at_once {
            return gpu.buffer(piece.at) == Some((piece.id, bounds));
        }
        let end = self.pieces.last().map(|piece| piece.id);
        self.pieces.iter().all(|piece| gpu.buffer_id(piece.at) == Some(piece.id)) && gpu.buffer_id(self.last) == end
    }
}
