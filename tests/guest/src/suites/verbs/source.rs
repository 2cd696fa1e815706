// SPDX-License-Identifier: GPL-2.0
//! Makes the bytes that tests of verbs move into the memory under test.

use anyhow::{Context, Result};

use crate::common::{same_bytes, Bench};
use crate::cuda::DeviceMemory;
use crate::verbs::{Loopback, Mr, Op};

/// The source of what is moved: registered host memory, which is never itself under test.
pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    pub(super) mr: Mr,
}

impl Source {
    pub(super) fn new(bench: &Bench, len: usize) -> Result<Self> {
        let bytes = vec![0u8; len];
        let mr = bench.reg(bytes.as_ptr() as u64, len).context("register host memory")?;
        Ok(Self { bytes, mr })
    }

    /// Writes random bytes into `mr` at `at`, and checks that nothing else has changed in `memory`.
    /// The region begins at `from` of the memory.
    pub(super) fn deliver(
        &mut self,
        link: &Loopback,
        rng: &mut fastrand::Rng,
        (mr, at): (&Mr, usize),
        (memory, from): (&DeviceMemory, usize),
        len: usize,
    ) -> Result<()> {
        let mut wanted = memory.read(0, memory.size())?;
        rng.fill(&mut self.bytes[..len]);
        link.run(Op::Write, (&self.mr, 0), (mr, at), len)?;
        wanted[from + at..][..len].copy_from_slice(&self.bytes[..len]);
        same_bytes("the memory", &memory.read(0, memory.size())?, &wanted)
    }
}
