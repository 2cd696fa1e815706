// SPDX-License-Identifier: GPL-2.0
//! Code that suites, helpers, storm and fuzzer share.

use std::io;
use std::sync::Arc;

use anyhow::{bail, ensure, Context, Result};

use crate::cuda::{Cuda, DeviceMemory};
use crate::machine::RDMA_DEVICE;
use crate::peermem;
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

/// The reason why the registration of a revocable client must not fail after its mapping on
/// `Generation::V2410`.
pub const STOP_TEST: &str =
    "the core hangs: its inverted stop test makes the registering thread wait for the umem mapping lock that it holds";

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
/// The unit in which the provider pins.
pub const GPU_PAGE: usize = 64 * KIB;

/// Returns the kernel's page size: 4 KiB, or on arm64 4, 16 or 64 KiB.
pub fn page() -> usize {
    procfs::page_size() as usize
}

/// An address that no process of this machine uses for anything else.
pub const FAR: u64 = 0x1000_0000_0000;

/// One process with a NIC and a GPU. Most tests start from it.
pub struct Bench {
    pub pd: Arc<Pd>,
    pub cuda: Arc<Cuda>,
}

impl Bench {
    pub fn new() -> Result<Self> {
        let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
        Ok(Self { pd, cuda: Cuda::open()? })
    }

    /// Allocates GPU memory and registers all of it.
    pub fn registered(&self, size: usize) -> Result<(DeviceMemory, Mr)> {
        let memory = self.cuda.alloc(size)?;
        let mr = self.reg(memory.va(), size).context("ibv_reg_mr of GPU memory")?;
        Ok((memory, mr))
    }

    pub fn reg(&self, addr: u64, len: usize) -> io::Result<Mr> {
        Mr::reg(&self.pd, addr, len, FULL_ACCESS)
    }

    /// Returns the errno of a registration that must fail.
    pub fn refused(&self, what: &str, addr: u64, len: usize) -> Result<i32> {
        match self.reg(addr, len) {
            Ok(_) => bail!("{what}: ibv_reg_mr({addr:#x}, {len}) succeeded"),
            Err(e) => e.raw_os_error().with_context(|| format!("{what}: {e}")),
        }
    }
}

/// Returns random bytes. A test never gets the same ones twice.
pub fn pattern(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    rng.fill(&mut bytes);
    bytes
}

/// Compares two buffers, and reports where they differ instead of printing both.
pub fn same_bytes(what: &str, got: &[u8], wanted: &[u8]) -> Result<()> {
    ensure!(got.len() == wanted.len(), "{what}: {} bytes, wanted {}", got.len(), wanted.len());
    if let Some(at) = got.iter().zip(wanted).position(|(a, b)| a != b) {
        let wrong = got.iter().zip(wanted).filter(|(a, b)| a != b).count();
        bail!(
            "{what}: {wrong} of {} bytes differ, the first at {at:#x}: {:#04x}, wanted {:#04x}",
            got.len(),
            got[at],
            wanted[at]
        );
    }
    Ok(())
}

/// Returns the name of an errno, for messages.
pub fn errno_name(errno: i32) -> String {
    format!("{:?}", nix::errno::Errno::from_raw(errno))
}

/// Returns what is wrong about a refusal that has just happened: about its errno, and about the
/// reason that the module recorded for it.
pub fn complaints(what: &str, (va, len): (u64, usize), got: i32, errno: i32, reason: Option<&str>) -> Vec<String> {
    let mut wrong: Vec<String> = expect_errno(what, got, errno).err().map(|e| format!("{e:#}")).into_iter().collect();
    let Some(reason) = reason else { return wrong };
    let wanted = (std::process::id(), va, len as u64, errno, reason);
    match peermem::last_failure() {
        Ok(Some(f)) if (f.pid, f.va, f.length, f.errno, f.reason.as_str()) == wanted => {}
        other => wrong.push(format!("{what}: recorded as {other:?}, wanted {wanted:?}")),
    }
    wrong
}

/// Fails unless the errno is the wanted one, and names both.
pub fn expect_errno(what: &str, got: i32, wanted: i32) -> Result<()> {
    ensure!(got == wanted, "{what}: {}, wanted {}", errno_name(got), errno_name(wanted));
    Ok(())
}
