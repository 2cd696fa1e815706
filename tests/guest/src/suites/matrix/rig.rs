// SPDX-License-Identifier: GPL-2.0
//! Two NICs, two GPUs, host memory, and the expected contents of each buffer. The CPU writes and
//! reads bytes through the GPU's control interface, never through the NIC that is being tested.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use nvlab::{Layout, Memory};

use super::case::{Case, Path, Verb, LAYOUTS, STARTS};
use crate::common::{same_bytes, GPU_PAGE, MIB};
use crate::gpu;
use crate::lab::{self, NicMr};
use crate::machine::{self, SecondNic, RDMA_DEVICE};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, FULL_ACCESS, REMOTE_ATOMIC};

/// The size of a buffer: room for the latest start and the longest length.
const SIZE: usize = 8 * MIB;
/// The number of bytes that are compared on both sides of a move, after each case. The rest of the
/// buffer is compared at the end.
const GUARD: usize = GPU_PAGE + 4096;

/// One NIC with two queue pairs that talk to each other.
pub struct Nic {
    pub pd: Arc<Pd>,
    pub link: Loopback,
    /// The PCI function that does its DMA.
    initiator: String,
}

impl Nic {
    pub fn open(name: &str) -> Result<Self> {
        let pd = Pd::new(&Device::open(name)?)?;
        Ok(Self { link: Loopback::new(&pd)?, pd, initiator: machine::pci_function(name)? })
    }

    /// Returns this MR over peer memory, as this NIC sees it. Keys of two NICs may be equal.
    pub fn held(&self, mr: &Mr) -> Result<NicMr> {
        let mine = lab::nic_mrs()?.into_iter().find(|m| m.initiator == self.initiator && m.lkey == mr.lkey());
        mine.with_context(|| format!("{} does not know lkey {:#x}", self.initiator, mr.lkey()))
    }

    pub fn reg(&self, va: u64, len: usize) -> Result<Mr> {
        let mr = Mr::reg(&self.pd, va, len, FULL_ACCESS | REMOTE_ATOMIC);
        mr.with_context(|| format!("ibv_reg_mr({va:#x}, {len})"))
    }
}

enum Store {
    Gpu(Memory),
    /// `SIZE` bytes from this offset on are aligned to 2 MiB.
    Host(Vec<u8>, usize),
}

/// Memory, and the bytes that it must hold.
struct Buffer {
    store: Store,
    wanted: Vec<u8>,
}

impl Buffer {
    fn gpu(memory: Memory, rng: &mut fastrand::Rng) -> Result<Self> {
        Self::filled(Store::Gpu(memory), rng)
    }

    fn host(rng: &mut fastrand::Rng) -> Result<Self> {
        const ALIGN: usize = 2 * MIB;
        let room = vec![0u8; SIZE + ALIGN];
        let from = room.as_ptr().align_offset(ALIGN);
        Self::filled(Store::Host(room, from), rng)
    }

    fn filled(store: Store, rng: &mut fastrand::Rng) -> Result<Self> {
        let mut this = Self { store, wanted: vec![0; SIZE] };
        this.refill(0..SIZE, rng)?;
        Ok(this)
    }

    fn va(&self) -> u64 {
        match &self.store {
            Store::Gpu(memory) => memory.va(),
            Store::Host(room, from) => room.as_ptr() as u64 + *from as u64,
        }
    }

    /// Fills the range with new random contents.
    fn refill(&mut self, at: Range<usize>, rng: &mut fastrand::Rng) -> Result<()> {
        let bytes = &mut self.wanted[at.clone()];
        rng.fill(bytes);
        match &mut self.store {
            Store::Gpu(memory) => memory.write(at.start as u64, bytes)?,
            Store::Host(room, from) => room[*from + at.start..*from + at.end].copy_from_slice(bytes),
        }
        Ok(())
    }

    fn check(&self, what: &str, at: Range<usize>) -> Result<()> {
        let wanted = &self.wanted[at.clone()];
        match &self.store {
            Store::Gpu(memory) => {
                let mut got = vec![0; at.len()];
                memory.read(at.start as u64, &mut got)?;
                same_bytes(what, &got, wanted)
            }
            Store::Host(room, from) => same_bytes(what, &room[*from + at.start..*from + at.end], wanted),
        }
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|i| self.wanted[at + i]))
    }

    fn set_word(&mut self, at: usize, value: u64) {
        self.wanted[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

fn around(at: usize, len: usize) -> Range<usize> {
    at.saturating_sub(GUARD)..(at + len + GUARD).min(SIZE)
}

/// The place of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Two buffers of GPU 0.
    Near,
    Far,
    /// A buffer of GPU 1.
    Other,
    Host,
}

fn ends(path: Path) -> (Place, Place) {
    match path {
        Path::GpuToGpu | Path::TwoNics => (Place::Near, Place::Far),
        Path::GpuToHost => (Place::Near, Place::Host),
        Path::HostToGpu => (Place::Host, Place::Far),
        Path::ToOtherGpu => (Place::Near, Place::Other),
        Path::FromOtherGpu => (Place::Other, Place::Far),
    }
}

pub struct Rig {
    first: Nic,
    second: Nic,
    rm: nvlab::Client,
    /// The buffers by place and layout. Host memory has no layout, and is kept under the one that
    /// was asked for with it.
    buffers: BTreeMap<(Place, u32), Buffer>,
    pub bytes: usize,
    /// The field is the last one, so that nothing uses it any more when it is dropped.
    _second: SecondNic,
}

impl Rig {
    pub fn new() -> Result<Self> {
        // The patterns and CRCs of the buffers are not looked at here, and cost time.
        gpu::lab()?.set("crc_max", 0)?;
        let nic = SecondNic::add()?;
        let (first, second) = (Nic::open(RDMA_DEVICE)?, Nic::open(nic.name())?);
        ensure!(first.initiator != second.initiator, "both NICs are {}", first.initiator);
        Ok(Self { first, second, rm: nvlab::Client::open()?, buffers: BTreeMap::new(), bytes: 0, _second: nic })
    }

    /// Takes a buffer out, so that two can be held at once. Makes it when it is first used.
    fn take(&mut self, place: Place, layout: Layout, rng: &mut fastrand::Rng) -> Result<Buffer> {
        if let Some(buffer) = self.buffers.remove(&(place, layout as u32)) {
            return Ok(buffer);
        }
        let gpu = match place {
            Place::Host => return Buffer::host(rng),
            Place::Near | Place::Far => 0,
            Place::Other => 1,
        };
        gpu::seed_layout(rng)?;
        let memory = self.rm.request(gpu, SIZE as u64).layout(layout).alloc();
        Buffer::gpu(memory.with_context(|| format!("{SIZE} bytes of GPU {gpu}"))?, rng)
    }

    pub fn run(&mut self, case: &Case, rng: &mut fastrand::Rng) -> Result<()> {
        let (from, to) = ends(case.path);
        let (far, far_start) = (LAYOUTS[rng.usize(..LAYOUTS.len())], STARTS[rng.usize(..STARTS.len())]);
        let mut source = self.take(from, case.layout, rng)?;
        let mut target = self.take(to, far, rng)?;
        let starts = [case.start, far_start].map(|s| s.pick(rng, case.is_atomic()));
        let done = self.between(case, (&mut source, starts[0]), (&mut target, starts[1]), rng);
        done.with_context(|| format!("{case:?}, from {:#x} to {:#x} of the far {far:?}", starts[0], starts[1]))?;
        self.bytes += case.len;
        self.buffers.insert((from, case.layout as u32), source);
        self.buffers.insert((to, far as u32), target);
        Ok(())
    }

    fn between(
        &self,
        case: &Case,
        (source, at): (&mut Buffer, usize),
        (target, to): (&mut Buffer, usize),
        rng: &mut fastrand::Rng,
    ) -> Result<()> {
        let len = case.len;
        source.refill(at..at + len, rng)?;
        target.refill(around(to, len), rng)?;
        // Register exactly the bytes that move, so that the first and last byte of a registration
        // are tested, and not only those of a transfer.
        let from_mr = self.first.reg(source.va() + at as u64, len)?;
        let to_mr = self.first.reg(target.va() + to as u64, len)?;
        let second_mr = match case.path {
            Path::TwoNics => Some(self.second.reg(target.va() + to as u64, len)?),
            _ => None,
        };
        let (local, remote) = if case.verb == Verb::Read { (&to_mr, &from_mr) } else { (&from_mr, &to_mr) };
        let op = match case.verb {
            Verb::Write => Op::Write,
            Verb::WriteImm => Op::WriteImm(rng.u32(..)),
            Verb::Read => Op::Read,
            Verb::Send => Op::Send,
            Verb::SendImm => Op::SendImm(rng.u32(..)),
            Verb::FetchAdd => Op::FetchAdd(rng.u64(..)),
            // Half of these operations find the value that they compare with.
            Verb::CmpSwap => {
                let compare = if rng.bool() { target.word(to) } else { rng.u64(..) };
                Op::CmpSwap { compare, swap: rng.u64(..) }
            }
        };
        self.first.link.run(op, (local, 0), (remote, 0), len)?;

        // This is what the operation must have done.
        let found = if case.is_atomic() { target.word(to) } else { 0 };
        match op {
            Op::FetchAdd(add) => target.set_word(to, found.wrapping_add(add)),
            Op::CmpSwap { compare, swap } if compare == found => target.set_word(to, swap),
            Op::CmpSwap { .. } => {}
            _ => target.wanted[to..to + len].copy_from_slice(&source.wanted[at..at + len]),
        }
        if case.is_atomic() {
            source.set_word(at, found);
        }
        target.check("the target and its neighbours", around(to, len))?;
        source.check("the source and its neighbours", around(at, len))?;

        if let Some(mr) = second_mr {
            // Each device has a region of its own.
            self.first.held(&to_mr)?;
            self.second.held(&mr)?;
            let mut copy = vec![0u8; len];
            let (first, second) =
                (self.first.reg(copy.as_ptr() as u64, len)?, self.second.reg(copy.as_ptr() as u64, len)?);
            self.second.link.run(Op::Read, (&second, 0), (&mr, 0), len).context("the second NIC reads")?;
            same_bytes("what the second NIC reads", &copy, &target.wanted[to..to + len])?;
            rng.fill(&mut copy);
            self.second.link.run(Op::Write, (&second, 0), (&mr, 0), len).context("the second NIC writes")?;
            target.wanted[to..to + len].copy_from_slice(&copy);
            target.check("what the second NIC writes, and its neighbours", around(to, len))?;
            copy.fill(0);
            self.first.link.run(Op::Read, (&first, 0), (&to_mr, 0), len).context("the first NIC reads")?;
            same_bytes("what the first NIC reads", &copy, &target.wanted[to..to + len])?;
            first.dereg()?;
            second.dereg()?;
            mr.dereg()?;
        }
        from_mr.dereg()?;
        to_mr.dereg()?;
        Ok(())
    }

    /// Compares all of every buffer.
    pub fn check_all(&self) -> Result<()> {
        for ((place, layout), buffer) in &self.buffers {
            buffer.check(&format!("all of {place:?}, layout {layout}, after the last case"), 0..SIZE)?;
        }
        ensure!(!self.buffers.is_empty(), "nothing was moved");
        Ok(())
    }
}
