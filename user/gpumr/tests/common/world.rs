// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! A model of CUDA's memory and of verbs.
//!
//! As was read on an H200 with driver 580: BUFFER_ID grows by one per allocation, also for a
//! segment that is mapped again and for pool memory that is given out again, and freed memory has
//! none; addresses are used again. An MR keeps the memory that it was made of. After a checkpoint
//! and a restore, memory is new under its old numbers, as on an H100. Two GPUs have memory, in turn, so an
//! address comes back on the other one, and a range may lie on both (which nobody tried by dma-buf on a card).
//! Left out: costs; and contexts, which are a matter of `gpumr::cuda` (gpumr-c/tests/libraries.rs).
#![allow(dead_code, reason = "each test uses a part")]

use gpumr::backend::{Gpu, Kind, Verbs};
use gpumr::{Access, Range};
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

pub const PAGE: u64 = 4096;
const ARENA: u64 = 0x7f00_0000_0000;
const ARENA_PAGES: u64 = 48;

/// The bounds of an allocation that CUDA gives along with its number.
#[derive(Clone, Copy, Debug, Default)]
pub enum Bounds {
    /// None: an old driver.
    #[default]
    Unknown,
    /// Those of `cuMemGetAddressRange`.
    Allocation,
    /// Those of the whole reservation, as for virtual memory.
    Reservation,
}

/// Returns addresses for memory of this GPU alone.
pub fn reservation(gpu: usize) -> Range {
    let half = ARENA_PAGES / 2 * PAGE;
    Range::new(ARENA + gpu as u64 * half, half).unwrap()
}

type Meanwhile = Box<dyn FnOnce(&World) + Send>;

/// The memory itself, which no two allocations share.
type Object = u64;

#[derive(Clone, Copy)]
struct Block {
    range: Range,
    id: u64,
    object: Object,
    kind: Kind,
    gpu: usize,
}

struct Region {
    range: Range,
    /// The memory behind each page.
    pages: BTreeMap<u64, Object>,
    alive: bool,
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, Block>,
    next: u64,
    /// The GPU that has the next allocation, which is not that of the last one.
    turn: usize,
    regions: Vec<Region>,
    exports: BTreeMap<RawFd, (Range, BTreeMap<u64, Object>)>,
    peers: Vec<UnixStream>,
    exported: usize,
    /// The number of pages that may be registered at once. 0: no limit.
    room: u64,
    /// The errno when there is no room. 0: ENOMEM.
    full: i32,
    no_peer_memory: bool,
    no_export: bool,
    no_deregistration: bool,
    /// Memory that cannot be pinned for peer memory, as CUDA says.
    unpinned: Option<Range>,
    bounds: Bounds,
    epoch: u64,
    /// Whether nobody sees checkpoints.
    blind: bool,
    /// The free bytes and all bytes of each GPU, if CUDA gives them.
    memory: [Option<(u64, u64)>; 2],
    questions: usize,
    /// A function that runs once, when the next registration has its memory and has not returned.
    meanwhile: Option<Meanwhile>,
}

#[derive(Clone, Default)]
pub struct World(Arc<Mutex<State>>);

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Allocates in the first gap that is large enough, so freed addresses come back.
    pub fn allocate(&self, pages: u64) -> Option<Range> {
        self.allocate_as(pages, Kind::Device)
    }

    pub fn allocate_as(&self, pages: u64, kind: Kind) -> Option<Range> {
        self.state().allocate(ARENA, ARENA_PAGES, pages, kind, None)
    }

    /// Allocates memory of one of the GPUs, at an address where only its memory is.
    pub fn allocate_on(&self, gpu: usize, pages: u64) -> Option<Range> {
        self.state().allocate(reservation(gpu).start(), ARENA_PAGES / 2, pages, Kind::Device, Some(gpu))
    }

    /// Maps new memory of a GPU into a gap.
    pub fn map(&self, gpu: usize, range: Range) {
        self.state().add_block(range, Kind::Device, Some(gpu));
    }

    pub fn free(&self, range: Range) {
        assert!(self.state().blocks.remove(&range.start()).is_some(), "the test frees what is not allocated");
    }

    /// Replaces the memory: cuMemUnmap and cuMemMap of another handle, or the pool gives the block
    /// to somebody else.
    pub fn remap(&self, range: Range) {
        let mut state = self.state();
        assert!(state.blocks.remove(&range.start()).is_some(), "the test maps anew what is not allocated");
        state.add_block(range, Kind::Device, None);
    }

    /// Destroys a context of this GPU, with all its memory.
    pub fn destroy(&self, gpu: usize) {
        self.state().blocks.retain(|_, block| block.gpu != gpu);
    }

    /// Checkpoints the process and restores it: all memory is new, at its addresses and under its
    /// numbers.
    pub fn checkpoint(&self) {
        super::step();
        let mut state = self.state();
        state.epoch += 1;
        let mut next = state.next;
        for block in state.blocks.values_mut() {
            next += 1;
            block.object = next;
        }
        state.next = next;
    }

    pub fn see_checkpoints(&self, seen: bool) {
        self.state().blind = !seen;
    }

    /// Revokes a region as the module does: it lives, but reaches nothing any more.
    pub fn revoke(&self, key: u32) {
        self.state().regions[key as usize].pages.clear();
    }

    pub fn limit(&self, pages: u64) {
        self.state().room = pages;
    }

    pub fn has_memory(&self, gpu: usize, free: u64, all: u64) {
        self.state().memory[gpu] = Some((free, all));
    }

    pub fn answer_when_full(&self, errno: i32) {
        self.state().full = errno;
    }

    pub fn refuse_export(&self) {
        self.state().no_export = true;
    }

    pub fn refuse_peer_memory(&self) {
        self.state().no_peer_memory = true;
    }

    pub fn refuse_to_pin(&self, range: Range) {
        self.state().unpinned = Some(range);
    }

    pub fn refuse_deregistration(&self) {
        self.state().no_deregistration = true;
    }

    pub fn tell(&self, bounds: Bounds) {
        self.state().bounds = bounds;
    }

    /// Returns how often a number was asked for.
    pub fn questions(&self) -> usize {
        self.state().questions
    }

    pub fn meanwhile(&self, what: impl FnOnce(&World) + Send + 'static) {
        self.state().meanwhile = Some(Box::new(what));
    }

    /// Returns the number of regions that live.
    pub fn regions(&self) -> usize {
        self.state().regions.iter().filter(|r| r.alive).count()
    }

    /// Returns how many dma-bufs were made, and how many are open.
    pub fn exports(&self) -> (usize, usize) {
        let mut state = self.state();
        state.forget_closed();
        (state.exported, state.peers.len())
    }

    /// Checks that a NIC that uses region `key` reaches exactly what the program sees in `range`.
    pub fn reaches(&self, key: u32, range: Range) -> Result<(), String> {
        let state = self.state();
        let region = &state.regions[key as usize];
        if !region.alive {
            return Err(format!("region {key} is deregistered in use"));
        }
        if !region.range.contains(&range) {
            return Err(format!("region {key} does not cover {range}"));
        }
        for (at, object) in state.pages(&region.range) {
            if region.pages.get(&at) != Some(&object) {
                return Err(format!("region {key} reaches other memory than the program at {at:#x}"));
            }
        }
        Ok(())
    }

    pub fn is_alive(&self, key: u32) -> bool {
        self.state().regions[key as usize].alive
    }

    /// Returns the number of regions, without those in `keys`, that live and keep memory that is
    /// freed.
    pub fn keeps_freed(&self, keys: &[u32]) -> usize {
        let state = self.state();
        let live: Vec<Object> = state.blocks.values().map(|block| block.object).collect();
        let regions = state.regions.iter().enumerate().filter(|(key, r)| r.alive && !keys.contains(&(*key as u32)));
        regions.filter(|(_, r)| r.pages.values().any(|object| !live.contains(object))).count()
    }
}

impl State {
    /// Makes new memory. If `gpu` names no GPU, it is the one whose turn it is.
    fn add_block(&mut self, range: Range, kind: Kind, gpu: Option<usize>) {
        let gpu = gpu.unwrap_or(self.turn);
        self.turn = 1 - gpu;
        self.next += 1;
        let id = self.next;
        self.blocks.insert(range.start(), Block { range, id, object: id, kind, gpu });
    }

    fn allocate(&mut self, start: u64, size: u64, pages: u64, kind: Kind, gpu: Option<usize>) -> Option<Range> {
        let mut at = start;
        for block in self.blocks.range(start..).map(|(_, block)| block) {
            if block.range.start() - at >= pages * PAGE {
                break;
            }
            at = block.range.end();
        }
        if at + pages * PAGE > start + size * PAGE {
            return None;
        }
        let range = Range::new(at, pages * PAGE).unwrap();
        self.add_block(range, kind, gpu);
        Some(range)
    }

    /// Drops our ends of the dma-bufs whose other ends are closed.
    fn forget_closed(&mut self) {
        self.peers.retain_mut(|peer| {
            peer.set_nonblocking(true).unwrap();
            peer.read(&mut [0]).is_err()
        });
    }

    fn block(&self, address: u64) -> Option<&Block> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        (address < block.range.end()).then_some(block)
    }

    /// Returns the memory of each page. Pages without memory have object 0, which is none.
    fn pages(&self, range: &Range) -> BTreeMap<u64, Object> {
        let pages = range.widened(PAGE).unwrap();
        let at = |at| (at, self.block(at).map_or(0, |block| block.object));
        (pages.start()..pages.end()).step_by(PAGE as usize).map(at).collect()
    }

    fn add(&mut self, range: Range, pages: BTreeMap<u64, Object>) -> io::Result<u32> {
        let used: usize = self.regions.iter().filter(|r| r.alive).map(|r| r.pages.len()).sum();
        if self.room > 0 && (used + pages.len()) as u64 > self.room {
            let errno = if self.full == 0 { libc::ENOMEM } else { self.full };
            return Err(io::Error::from_raw_os_error(errno));
        }
        if pages.values().any(|object| *object == 0) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        self.regions.push(Region { range, pages, alive: true });
        Ok(self.regions.len() as u32 - 1)
    }
}

impl Gpu for World {
    fn buffer_id(&self, address: u64) -> Option<u64> {
        super::step();
        let mut state = self.state();
        state.questions += 1;
        state.block(address).map(|block| block.id)
    }

    fn buffer(&self, address: u64) -> Option<(u64, Range)> {
        super::step();
        let mut state = self.state();
        state.questions += 1;
        let block = state.block(address)?;
        match state.bounds {
            Bounds::Unknown => None,
            Bounds::Allocation => Some((block.id, block.range)),
            Bounds::Reservation => Some((block.id, Range::new(ARENA, ARENA_PAGES * PAGE).unwrap())),
        }
    }

    fn epoch(&self) -> Option<u64> {
        let state = self.state();
        (!state.blind).then_some(state.epoch)
    }

    fn device(&self, address: u64) -> i32 {
        self.state().block(address).map_or(0, |block| block.gpu as i32)
    }

    fn memory(&self, address: u64) -> Option<(u64, u64)> {
        super::step();
        let state = self.state();
        // Nothing is known about memory that is gone.
        state.memory[state.block(address)?.gpu]
    }

    fn capable(&self, address: u64) -> Option<bool> {
        let unpinned = self.state().unpinned?;
        Some(!(unpinned.start()..unpinned.end()).contains(&address))
    }

    fn kind(&self, address: u64) -> Kind {
        self.state().block(address).map_or(Kind::Unknown, |block| block.kind)
    }

    fn allocation(&self, address: u64) -> Option<Range> {
        super::step();
        self.state().block(address).map(|block| block.range)
    }

    fn export(&self, range: Range, memory: Range) -> Result<(OwnedFd, Range), String> {
        super::step();
        let mut state = self.state();
        if state.no_export {
            return Err("not supported".into());
        }
        // Every second one begins with the allocation, as where CUDA exports nothing less.
        let first = state.block(memory.start()).filter(|_| state.exported % 2 == 1).and_then(|b| b.range.widened(PAGE));
        let start = first.map_or(range.start(), |first| first.start().min(range.start()));
        let range = Range::new(start, range.end() - start).unwrap();
        let pages = state.pages(&range);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fd = OwnedFd::from(theirs);
        state.exports.insert(fd.as_raw_fd(), (range, pages));
        state.peers.push(ours);
        state.exported += 1;
        // A storm makes more of them than a process may have files open.
        if state.exported % 256 == 0 {
            state.forget_closed();
        }
        Ok((fd, range))
    }
}

impl Verbs for World {
    type Pd = u8;
    type Mr = u32;

    fn register(&self, _: u8, range: Range, _: Access) -> io::Result<u32> {
        super::step();
        let mut state = self.state();
        if state.no_peer_memory || state.unpinned.is_some_and(|unpinned| unpinned.overlaps(&range)) {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let pages = state.pages(&range);
        let made = state.add(range, pages);
        let meanwhile = state.meanwhile.take();
        drop(state);
        if let Some(meanwhile) = meanwhile {
            meanwhile(self);
        }
        super::step();
        made
    }

    fn register_dma_buf(&self, _: u8, range: Range, offset: u64, fd: BorrowedFd<'_>, _: Access) -> io::Result<u32> {
        super::step();
        let mut state = self.state();
        let (exported, pages) = state.exports[&fd.as_raw_fd()].clone();
        assert_eq!(exported.start() + offset, range.start(), "the offset leads elsewhere");
        assert!(exported.contains(&range), "beyond the dma-buf");
        let wide = range.widened(PAGE).unwrap();
        let pages = pages.into_iter().filter(|(at, _)| (wide.start()..wide.end()).contains(at)).collect();
        state.add(range, pages)
    }

    fn deregister(&self, mr: u32) -> io::Result<()> {
        super::step();
        let mut state = self.state();
        assert!(state.regions[mr as usize].alive, "region {mr} is deregistered twice");
        if state.no_deregistration {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.regions[mr as usize].alive = false;
        Ok(())
    }

    fn keys(&self, mr: &u32) -> (u32, u32) {
        (*mr, *mr)
    }
}
