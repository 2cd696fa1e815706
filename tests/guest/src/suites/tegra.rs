// SPDX-License-Identifier: GPL-2.0
//! A machine with an integrated GPU (Tegra). Memory that its CPU reaches registers like host
//! memory, without a client, and nvidia-peermem reports that it has nothing to do there
//! (docs/gpudirect-guide.md#integrated-gpus-tegra).

use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

use super::end;
use crate::common::{expect_errno, page, pattern, same_bytes, KIB};
use crate::machine::{self, Level, RDMA_DEVICE};
use crate::modules::{self, PEERMEM};
use crate::test::{Env, Suite, Test};
use crate::verbs::{Device, Loopback, Mr, Op, Pd, FULL_ACCESS};

/// The offset at which the stand-in has memory without pages.
const CARVEOUT: i64 = 1 << 30;

pub fn suite() -> Suite {
    Suite {
        name: "tegra",
        tests: vec![
            Test::new("registers_without_a_client", Level::Any, registers_without_a_client),
            Test::new("no_mapping_of_the_cpu", Level::Any, no_mapping_of_the_cpu),
            Test::new("load_is_refused", Level::Any, load_is_refused),
            Test::new("taint", Level::Any, end::taint),
        ],
    }
}

/// A mapping of the stand-in's memory. Dropping it unmaps the memory.
struct Mapping {
    at: std::ptr::NonNull<std::ffi::c_void>,
    len: usize,
    _file: File,
}

impl Mapping {
    fn new(offset: i64, len: usize) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/lab_nvmap").context("open /dev/lab_nvmap")?;
        let (read, write) = (ProtFlags::PROT_READ, ProtFlags::PROT_WRITE);
        let size = NonZeroUsize::new(len).context("some bytes")?;
        // SAFETY: A new mapping, where the kernel likes.
        let at = unsafe { mmap(None, size, read | write, MapFlags::MAP_SHARED, &file, offset) }.context("mmap")?;
        Ok(Self { at, len, _file: file })
    }

    fn va(&self) -> u64 {
        self.at.as_ptr() as u64
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: Mapped for reading and writing, for as long as this exists; only the NIC, which
        // the caller waits for, has it beside.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: Mapped by us, and this is the last use.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

/// Loads the NIC's driver and the integrated GPU's module.
fn devices() -> Result<()> {
    machine::load_rdma()?;
    modules::modprobe("nvidia-p2p", &[])?;
    machine::wait_for("/dev/lab_nvmap", || Path::new("/dev/lab_nvmap").exists())
}

fn registers_without_a_client(env: &Env) -> Result<()> {
    const LEN: usize = 256 * KIB;
    let mut rng = env.rng()?;
    devices()?;
    ensure!(!modules::loaded(PEERMEM)?, "nvidia_peermem is loaded");
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let bytes = pattern(&mut rng, LEN);
    let host = bytes.clone();
    let host_mr = Mr::reg(&pd, host.as_ptr() as u64, LEN, FULL_ACCESS).context("register host memory")?;
    let mut memory = Mapping::new(0, LEN)?;
    let mr = Mr::reg(&pd, memory.va(), LEN, FULL_ACCESS).context("register the GPU's memory")?;
    let link = Loopback::new(&pd)?;
    link.run(Op::Write, (&host_mr, 0), (&mr, 0), LEN)?;
    same_bytes("written by the NIC", memory.bytes(), &bytes)?;
    memory.bytes().fill(0x5a);
    link.run(Op::Read, (&host_mr, 0), (&mr, 0), LEN)?;
    same_bytes("read by the NIC", &host, &[0x5a; LEN])?;
    Ok(mr.dereg()?)
}

fn no_mapping_of_the_cpu(_: &Env) -> Result<()> {
    devices()?;
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let carveout = Mapping::new(CARVEOUT, page())?;
    // On such a machine, memory of cudaMalloc() has an address for the GPU alone.
    let gone = Mapping::new(0, page())?.va();
    for (what, va) in [("memory without pages", carveout.va()), ("an address without a mapping", gone)] {
        let refused = Mr::reg(&pd, va, page(), FULL_ACCESS).err().with_context(|| format!("{what}: registered"))?;
        expect_errno(what, refused.raw_os_error().context("an errno")?, libc::EFAULT)?;
    }
    Ok(())
}

fn load_is_refused(_: &Env) -> Result<()> {
    devices()?;
    let refused = modules::try_modprobe("nvidia-peermem", &[])?;
    ensure!(!refused.ok && !modules::loaded(PEERMEM)?, "nvidia-peermem was loaded");
    let says = |words: &str| refused.kernel.iter().any(|line| line.contains(words));
    for words in ["integrated GPU", "cudaHostAlloc()", "ibv_reg_mr()"] {
        ensure!(says(words), "the kernel log does not say {words}: {:?}", refused.kernel);
    }
    modules::rmmod("nvidia_p2p")?;
    machine::unload_rdma()
}
