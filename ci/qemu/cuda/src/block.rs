// SPDX-License-Identifier: GPL-2.0
//! Decides which part of video memory `cuMemAlloc` hands out, as a card does (docs/facts.md#cuda).
//!
//! An allocation of at most 2 MiB is a span of a block of 2 MiB, at a multiple of 512 bytes. It
//! takes the smallest hole of the context's blocks that holds it, or else the beginning of a new
//! block. A block is freed with its last span, so a free returns no memory while the block has
//! another user. A longer allocation shares its memory with no other.

use nvlab::BACKING;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The unit of a block, in bytes. A span takes whole multiples of it.
const UNIT: u64 = 512;

/// The memory of a block, or of an allocation that shares with nobody.
struct Block<M> {
    context: usize,
    memory: Arc<M>,
    /// The length in bytes.
    len: u64,
    /// The offset and end of each span.
    used: BTreeMap<u64, u64>,
}

impl<M> Block<M> {
    /// Returns offset and length of the smallest hole of at least `len` bytes, the lowest of several.
    fn hole(&self, len: u64) -> Option<(u64, u64)> {
        let begins = std::iter::once(0).chain(self.used.values().copied());
        let ends = self.used.keys().copied().chain(std::iter::once(self.len));
        let holes = begins.zip(ends).map(|(begin, end)| (begin, end - begin));
        holes.filter(|hole| hole.1 >= len).min_by_key(|hole| hole.1)
    }
}

/// All memory that `cuMemAlloc` has handed out and that was not freed yet.
pub struct Blocks<M> {
    /// The blocks by their first addresses.
    list: Mutex<BTreeMap<u64, Block<M>>>,
}

impl<M> Default for Blocks<M> {
    fn default() -> Self {
        Self { list: Mutex::default() }
    }
}

/// The bytes of a block that one allocation has. Dropping the span frees them, and dropping a
/// block's last span frees its memory.
pub struct Span<M> {
    blocks: Arc<Blocks<M>>,
    /// The block's first address.
    block: u64,
    offset: u64,
    memory: Arc<M>,
}

/// Returns how many bytes of memory an allocation of `size` bytes needs if no block has room.
pub fn length(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(BACKING)
}

impl<M> Blocks<M> {
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, Block<M>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a span of `size` bytes, at least 1, in a block of this context that has room.
    pub fn share(self: &Arc<Self>, context: usize, size: u64) -> Option<Span<M>> {
        let len = size.checked_next_multiple_of(UNIT).filter(|len| *len <= BACKING)?;
        let mut list = self.list();
        let shared = list.iter_mut().filter(|(_, b)| b.context == context && b.len == BACKING);
        let holes = shared.filter_map(|(va, b)| b.hole(len).map(|hole| (hole.1, *va, hole.0, b)));
        let (_, va, offset, block) = holes.min_by_key(|(room, va, ..)| (*room, *va))?;
        block.used.insert(offset, offset + len);
        Some(Span { blocks: Arc::clone(self), block: va, offset, memory: Arc::clone(&block.memory) })
    }

    /// Takes a span of `size` bytes at the beginning of new memory at `va`, of [`length`] bytes.
    pub fn begin(self: &Arc<Self>, context: usize, size: u64, va: u64, memory: M) -> Span<M> {
        let memory = Arc::new(memory);
        let len = length(size).unwrap_or(size);
        let end = size.checked_next_multiple_of(UNIT).unwrap_or(len);
        let block = Block { context, memory: Arc::clone(&memory), len, used: BTreeMap::from([(0, end)]) };
        self.list().insert(va, block);
        Span { blocks: Arc::clone(self), block: va, offset: 0, memory }
    }
}

impl<M> Span<M> {
    /// Returns the block's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the offset, in bytes, at which the span begins in that memory.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the span's first address.
    pub fn va(&self) -> u64 {
        self.block + self.offset
    }
}

impl<M> Drop for Span<M> {
    fn drop(&mut self) {
        let mut list = self.blocks.list();
        let Some(block) = list.get_mut(&self.block) else { return };
        block.used.remove(&self.offset);
        let gone = if block.used.is_empty() { list.remove(&self.block) } else { None };
        // Drop the memory without the lock, because freeing it waits for callbacks in the kernel.
        // The next field holds the memory.
        drop(list);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// A card that puts new blocks one behind the other. Each block's memory is represented by its
    /// number.
    struct Card {
        blocks: Arc<Blocks<Arc<u64>>>,
        next: u64,
        memory: Vec<Arc<u64>>,
    }

    impl Card {
        fn new() -> Self {
            Self { blocks: Arc::default(), next: 0, memory: Vec::new() }
        }

        fn alloc(&mut self, size: u64) -> Span<Arc<u64>> {
            self.alloc_in(1, size)
        }

        fn alloc_in(&mut self, context: usize, size: u64) -> Span<Arc<u64>> {
            self.blocks.share(context, size).unwrap_or_else(|| {
                let (va, memory) = (self.next, Arc::new(self.next));
                self.next += length(size).unwrap();
                self.memory.push(Arc::clone(&memory));
                self.blocks.begin(context, size, va, memory)
            })
        }

        /// Returns the blocks' memory that is still in use.
        fn held(&self) -> Vec<u64> {
            self.memory.iter().filter(|memory| Arc::strong_count(memory) > 1).map(|memory| **memory).collect()
        }
    }

    /// The sizes in order and the addresses that an H100 returned (driver 580.159.04). The numbers
    /// count new blocks from 0.
    #[test]
    fn the_addresses_that_a_card_gave() {
        let mut card = Card::new();
        let asked = [
            (1, 0),
            (512, 0x200),
            (513, 0x400),
            (4096, 0x800),
            (65536, 0x1800),
            (100_000, 0x11800),
            (MIB, 0x2a000),
            (MIB + 8, 0x20_0000),
            (1, 0x12_a000),
            (2 * MIB - 512, 0x40_0000),
            (2 * MIB, 0x60_0000),
            (2 * MIB + 1, 0x80_0000),
            (1, 0x5f_fe00),
        ];
        let spans: Vec<_> = asked.iter().map(|(size, _)| card.alloc(*size)).collect();
        let given: Vec<u64> = spans.iter().map(Span::va).collect();
        assert_eq!(given, asked.map(|(_, va)| va));
    }

    #[test]
    fn the_smallest_hole_that_is_large_enough() {
        let mut card = Card::new();
        let (low, high, last) = (card.alloc(64 * KIB), card.alloc(MIB), card.alloc(KIB));
        drop((low, high));
        // There is a hole of 1088 KiB below the last span, and one of 959 KiB above it.
        let spans = [3 * MIB / 2, 600 * KIB, 64 * KIB].map(|size| card.alloc(size));
        assert_eq!(spans.each_ref().map(Span::va), [0x20_0000, 0x11_0400, 0x1a_6400]);
        // The freed bytes are now the smallest hole, so the same address comes again.
        let [_own, first, second] = spans;
        drop(first);
        assert_eq!(card.alloc(600 * KIB).va(), 0x11_0400);
        drop((second, last));
    }

    #[test]
    fn a_block_goes_with_its_last_span() {
        let mut card = Card::new();
        let (a, b) = (card.alloc(MIB), card.alloc(1));
        drop(a);
        assert_eq!(card.held(), [0]);
        drop(b);
        assert_eq!(card.held(), []);
    }

    #[test]
    fn nobody_shares_with_another_context_or_with_more_than_a_block() {
        let mut card = Card::new();
        let long = card.alloc(2 * MIB + 1);
        let (one, other) = (card.alloc(1), card.alloc_in(2, 1));
        assert_eq!([&long, &one, &other].map(Span::va), [0, 0x40_0000, 0x60_0000]);
        drop(long);
        assert_eq!(card.held(), [0x40_0000, 0x60_0000]);
        drop((one, other));
    }
}
