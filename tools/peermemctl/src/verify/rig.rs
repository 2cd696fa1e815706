// SPDX-License-Identifier: GPL-2.0
//! A GPU and a NIC, open in this process, and how bytes are moved between them and compared.

use super::module::{Load, Pins};
use crate::cuda::{Cuda, Gpu, Memory};
use crate::root::Root;
use crate::verbs::{At, Domain, Loopback, Op, PortAddress, Region, Verbs};
use anyhow::{bail, Context, Result};
use fastrand::Rng;
use std::io;
use std::ops::Range;
use std::time::Duration;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
/// The size of the pages by which GPU memory is pinned.
pub const GPU_PAGE: usize = 64 * KIB;

/// Which GPU, and which port of which NIC.
#[derive(Clone)]
pub struct Place {
    /// PCI address.
    pub gpu: String,
    pub nic: String,
    pub port: String,
}

/// The things that a check works with.
pub struct Rig<'a> {
    pub gpu: &'a Gpu<'a>,
    pub domain: &'a Domain<'a>,
    pub has_atomics: bool,
    port: &'a PortAddress,
}

/// The facts that a check is told.
pub struct Conditions<'a> {
    pub root: &'a Root,
    pub place: &'a Place,
    pub pins: Pins,
    /// Whether the loaded module is this project's.
    pub ours: bool,
    /// The way to load the loaded module again; `Err` says why it must stay.
    pub again: Result<&'a Load, &'a str>,
    pub storm: Duration,
    pub seed: u64,
}

/// Opens the GPU and the NIC, and runs `run` with them.
pub fn with<T>(root: &Root, place: &Place, run: impl FnOnce(&Rig) -> Result<T>) -> Result<T> {
    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(&place.gpu).with_context(|| format!("GPU {}", place.gpu))?;
    let verbs = Verbs::open()?;
    let device = verbs.device(&place.nic)?;
    let domain = device.domain()?;
    let port = PortAddress::read(root, &place.nic, &place.port)?;
    run(&Rig { gpu: &gpu, domain: &domain, has_atomics: device.has_atomics(), port: &port })
}

impl<'a> Rig<'a> {
    /// Connects the NIC to itself. A connection that saw an error is of no more use.
    pub fn link(&self) -> Result<Loopback<'a>> {
        self.domain.pair(self.port)
    }

    /// Registers `length` bytes of GPU memory from `offset` on.
    pub fn register(&self, memory: &Memory, offset: usize, length: usize) -> io::Result<Region<'a>> {
        self.domain.register(memory.address() + offset as u64, length)
    }

    /// Registers memory of the host, with random contents.
    pub fn host(&self, size: usize, rng: &mut Rng) -> Result<Side<'a>> {
        let mut bytes = vec![0; size];
        let region = self.domain.register(bytes.as_mut_ptr() as u64, size).context("register host memory")?;
        let mut side = Side { region, place: Where::Host(bytes), wanted: vec![0; size] };
        side.refill(0..size, rng)?;
        Ok(side)
    }

    /// Allocates and registers memory of the GPU, with random contents.
    pub fn on_gpu(&self, size: usize, rng: &mut Rng) -> Result<Side<'a>> {
        let memory = self.gpu.allocate(size)?;
        let region = self.register(&memory, 0, size).context("register GPU memory")?;
        let mut side = Side { region, place: Where::Gpu(memory), wanted: vec![0; size] };
        side.refill(0..size, rng)?;
        Ok(side)
    }
}

enum Where<'a> {
    Host(Vec<u8>),
    Gpu(Memory<'a>),
}

/// Registered memory, and what it must hold.
pub struct Side<'a> {
    // This field is the first, so that it is dropped before the memory.
    pub region: Region<'a>,
    place: Where<'a>,
    pub wanted: Vec<u8>,
}

impl<'a> Side<'a> {
    pub fn size(&self) -> usize {
        self.wanted.len()
    }

    fn address(&self) -> u64 {
        match &self.place {
            Where::Host(bytes) => bytes.as_ptr() as u64,
            Where::Gpu(memory) => memory.address(),
        }
    }

    /// Returns the place of a byte, for a request.
    pub fn at(&self, offset: usize) -> At<'_, 'a> {
        (&self.region, self.address() + offset as u64)
    }

    /// Fills a part with new random contents.
    pub fn refill(&mut self, part: Range<usize>, rng: &mut Rng) -> Result<()> {
        let wanted = self.wanted.get_mut(part.clone()).context("a part outside")?;
        rng.fill(wanted);
        match &mut self.place {
            Where::Host(bytes) => bytes.get_mut(part).context("a part outside")?.copy_from_slice(wanted),
            Where::Gpu(memory) => memory.write(part.start, wanted)?,
        }
        Ok(())
    }

    /// Checks that `part` holds what it must, and also what lies within a GPU page of it.
    pub fn check(&self, what: &str, part: Range<usize>) -> Result<()> {
        let around = part.start.saturating_sub(GPU_PAGE)..(part.end + GPU_PAGE).min(self.size());
        let wanted = self.wanted.get(around.clone()).context("a part outside")?;
        let got = match &self.place {
            Where::Host(bytes) => bytes.get(around.clone()).context("a part outside")?.to_vec(),
            Where::Gpu(memory) => memory.read_part(around.start, around.len())?,
        };
        same(what, &got, wanted, around.start)
    }

    /// Returns a word as it must be.
    pub fn word(&self, at: usize) -> u64 {
        self.wanted.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }

    /// Deregisters the memory, and returns it if it is the GPU's.
    pub fn deregister(self) -> io::Result<Option<Memory<'a>>> {
        self.region.deregister()?;
        Ok(match self.place {
            Where::Gpu(memory) => Some(memory),
            Where::Host(_) => None,
        })
    }
}

/// Compares bytes, and returns an error that says in words which ones differ.
pub fn same(what: &str, got: &[u8], wanted: &[u8], begin: usize) -> Result<()> {
    if got == wanted {
        return Ok(());
    }
    let differs = |(n, (a, b)): (usize, (&u8, &u8))| (a != b).then_some(n);
    let mut wrong = got.iter().zip(wanted).enumerate().filter_map(differs);
    match (wrong.next(), got.len() == wanted.len()) {
        (None, true) => Ok(()),
        (Some(first), _) => {
            bail!("{what}: {} of {} bytes differ, the first at {:#x}", 1 + wrong.count(), got.len(), begin + first)
        }
        (None, false) => bail!("{what}: {} bytes, wanted {}", got.len(), wanted.len()),
    }
}

/// Moves `length` bytes by `op` (a write, a read or a send) from one side to the other, and looks
/// at both and at what lies beside.
pub fn deliver(
    link: &Loopback,
    op: Op,
    (source, from): (&mut Side, usize),
    (target, to): (&mut Side, usize),
    length: usize,
    rng: &mut Rng,
) -> Result<()> {
    let what = format!("{op:?} of {length} bytes from {from:#x} to {to:#x}");
    source.refill(from..from + length, rng)?;
    let bytes = source.wanted.get(from..from + length).context("a part outside")?.to_vec();
    target.wanted.get_mut(to..to + length).context("a part outside")?.copy_from_slice(&bytes);
    let (local, remote) = match op {
        Op::Read => (target.at(to), source.at(from)),
        _ => (source.at(from), target.at(to)),
    };
    link.run(op, local, remote, u32::try_from(length)?)?;
    target.check(&format!("{what}, the target"), to..to + length)?;
    source.check(&format!("{what}, the source"), from..from + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_differs_is_told_with_its_place() {
        assert!(same("x", &[1, 2, 3], &[1, 2, 3], 0).is_ok());
        let error = same("x", &[1, 9, 9], &[1, 2, 3], 0x40).unwrap_err().to_string();
        assert_eq!(error, "x: 2 of 3 bytes differ, the first at 0x41");
        assert_eq!(same("x", &[1], &[1, 2], 0).unwrap_err().to_string(), "x: 1 bytes, wanted 2");
    }
}
