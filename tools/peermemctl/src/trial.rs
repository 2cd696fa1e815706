// SPDX-License-Identifier: GPL-2.0
//! One way of registering GPU memory, as `selftest`, `verify` and `matrix` try it, and why it fails.

use crate::check::Level;
use crate::cuda::{Mapping, Memory};
use crate::doctor::limits;
use crate::facts;
use crate::kernel;
use crate::machine::{Machine, REGISTER};
use crate::peermem::{self, Failure};
use crate::rdma::RdmaDevice;
use crate::root::Root;
use crate::text;
use crate::verbs::{Domain, Region};
use crate::way::{self, Judged, Way};
use std::io;
use std::os::fd::AsFd;

/// The limit below which ENOMEM may come from the limit, on kernels with pages of 64 KiB, too.
const TIGHT: u64 = 1 << 20;

/// The calls by which a program takes a way. The preload library's calls are the plain ones, in a
/// process that has the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Plain,
    DmaBuf(Mapping),
    DataDirect(Mapping),
}

impl How {
    /// Returns the calls of a way with a GPU that has a coherent link, or has none.
    pub fn of(way: Way, coherent: bool) -> Self {
        match way {
            Way::PeerMemory | Way::Preload => Self::Plain,
            Way::DmaBuf => Self::DmaBuf(Mapping::Default),
            // NCCL asks for this mapping if the GPU has a coherent link.
            Way::DmaBufPcie => Self::DmaBuf(Mapping::Pcie),
            // The NIC's own function is below the GPU's switch. A GPU without that link refuses to be
            // asked for the mapping that it has anyway (CUDA_ERROR_NOT_SUPPORTED on an H100).
            Way::DataDirect if coherent => Self::DataDirect(Mapping::Pcie),
            Way::DataDirect => Self::DataDirect(Mapping::Default),
        }
    }

    /// Registers `length` bytes of GPU memory from `offset` on.
    pub fn register<'a>(
        self,
        domain: &'a Domain<'a>,
        memory: &Memory,
        offset: usize,
        length: usize,
    ) -> io::Result<Region<'a>> {
        let (address, offset) = (memory.address(), offset as u64);
        let exported = |mapping| memory.dma_buf(mapping).map_err(|error| io::Error::other(format!("{error:#}")));
        match self {
            Self::Plain => domain.register(address + offset, length),
            Self::DmaBuf(mapping) => domain.register_dma_buf(exported(mapping)?.as_fd(), address, offset, length),
            Self::DataDirect(mapping) => {
                domain.register_data_direct(exported(mapping)?.as_fd(), address, offset, length)
            }
        }
    }
}

/// Returns the ways by dma-buf that programs take with a GPU and a NIC: NCCL forces the PCIe mapping
/// where the GPU has a coherent link, and nowhere else; a ConnectX-8 has Data Direct.
pub fn by_dma_buf(machine: &Machine, gpu: &crate::pci::Device, nic: &RdmaDevice) -> Vec<Way> {
    let mut ways = vec![Way::DmaBuf];
    if machine.has_c2c(gpu) {
        ways.push(Way::DmaBufPcie);
    }
    if way::data_direct(machine, nic).is_yes() {
        ways.push(Way::DataDirect);
    }
    ways
}

/// The state that the module had noted down before a try.
pub struct Before {
    /// Number of the last refusal.
    refusals: u64,
}

impl Before {
    pub fn look(root: &Root) -> Self {
        Self { refusals: peermem::failures(root).unwrap_or_default().last().map_or(0, |row| row.seq) }
    }
}

/// Returns how bad it is that a way failed with `error`, and why it did: `at` is the GPU memory's
/// address. A way that nobody expects here is skipped.
pub fn why(
    machine: &Machine,
    nic: &RdmaDevice,
    way: Way,
    error: &anyhow::Error,
    before: &Before,
    at: u64,
) -> (Level, String) {
    match (way, without_peers(machine, nic)) {
        (Way::PeerMemory, Some(because)) => (Level::Skip, format!("does not work here: {error:#}: {because}")),
        (Way::PeerMemory | Way::Preload, _) => {
            (Level::Fail, format!("{error:#}{}", reason(machine.root, error, before, at)))
        }
        _ => (Level::Skip, format!("does not work here: {error:#}{}", refusal(machine, nic, error))),
    }
}

/// Returns why nobody expects peer memory of this machine, where dma-buf is the way to go: the core or the
/// NIC's driver does not know it.
fn without_peers(machine: &Machine, nic: &RdmaDevice) -> Option<String> {
    match (way::nic_asks_peers(machine, nic), machine.has_symbol(REGISTER)) {
        (Judged::No(because), _) => Some(because),
        (_, Some(false)) if machine.loaded.is_none() => Some("the RDMA core has no peer-memory API".to_owned()),
        _ => None,
    }
}

/// ENOTSUPP, which is the kernel's own and has no name for programs.
const NOT_SUPPORTED: i32 = 524;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// Returns the errno that is behind an error.
fn errno(error: &anyhow::Error) -> Option<i32> {
    let code = |cause: &io::Error| cause.raw_os_error();
    error.chain().filter_map(|cause| cause.downcast_ref()).find_map(code)
}

/// Says what is known of a dma-buf that the GPU driver refused to attach.
fn refusal(machine: &Machine, nic: &RdmaDevice, error: &anyhow::Error) -> String {
    let mlx5 = nic.module.as_deref() == Some("mlx5_ib");
    match errno(error) {
        Some(NOT_SUPPORTED) => {
            format!(": the GPU driver does not approve of where GPU and NIC are: {}", way::topology_cure(machine))
        }
        Some(EINVAL) if mlx5 => format!(": mlx5_ib says so where {}", facts::MLX5_UMR.what),
        Some(EOPNOTSUPP) if mlx5 => {
            ": mlx5_ib says so in a kernel without CONFIG_INFINIBAND_ON_DEMAND_PAGING".to_owned()
        }
        Some(EOPNOTSUPP) => ": the driver of this NIC registers no dma-bufs".to_owned(),
        _ => String::new(),
    }
}

/// Returns why registering at `at` failed: what the module noted down since, or the limit of locked
/// memory, which refuses before the module is asked.
fn reason(root: &Root, error: &anyhow::Error, before: &Before, at: u64) -> String {
    let rows = peermem::failures(root).unwrap_or_default();
    if let Some(row) = own(&rows, before.refusals, at, kernel::has_initial_pids(root)) {
        return format!(": {}", row.text);
    }
    let is_enomem = |cause: &io::Error| cause.kind() == io::ErrorKind::OutOfMemory;
    let no_memory = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_enomem);
    match limits::memlock(root).filter(|limit| no_memory && *limit < TIGHT) {
        Some(limit) => format!(
            "; this process may lock {} only (Max locked memory in /proc/self/limits): ulimit -l unlimited, or run it as root",
            text::bytes(limit)
        ),
        None if matches!(errno(error), Some(NOT_SUPPORTED | EOPNOTSUPP)) => {
            "; the GPU driver says that the two cannot reach each other, or it pins no such memory: as root, peermemctl failures tells which".to_owned()
        }
        None => "; peermemctl doctor says more".to_owned(),
    }
}

/// Returns the row of our own refusal. In a container the module knows this process by another
/// number than the process itself does.
fn own(rows: &[Failure], known: u64, at: u64, has_initial_pids: bool) -> Option<&Failure> {
    let by_us = |row: &&Failure| !has_initial_pids || row.pid == std::process::id();
    rows.iter().filter(by_us).rfind(|row| row.seq > known && row.va == at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// An H100 without a coherent link refused the forced mapping.
    #[test]
    fn the_forced_mapping_is_asked_for_with_a_coherent_link_only() {
        let asked = |coherent: bool| Way::ALL.map(|way| How::of(way, coherent));
        assert!(
            asked(false)[3] == How::DataDirect(Mapping::Default) && asked(true)[3] == How::DataDirect(Mapping::Pcie)
        );
        assert_eq!(asked(false)[1], How::DmaBuf(Mapping::Default));
    }

    #[test]
    fn refused_dma_bufs_are_explained() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let machine = Machine::look(&root);
        let why = |module: &str, errno: i32| {
            let nic = RdmaDevice {
                name: "nic".to_owned(),
                pci: None,
                iwarp: false,
                software: false,
                module: Some(module.to_owned()),
                netdev: None,
                ports: Vec::new(),
            };
            let error = anyhow::Error::new(io::Error::from_raw_os_error(errno)).context("register GPU memory");
            refusal(&machine, &nic, &error)
        };
        assert!(why("mlx5_ib", 524).contains("NVreg_GrdmaPciTopoCheckOverride"), "{}", why("mlx5_ib", 524));
        assert!(why("mlx5_ib", 22).contains("UMR") && why("irdma", 22).is_empty());
        assert!(why("mlx5_ib", 95).contains("ON_DEMAND_PAGING") && why("erdma", 95).contains("registers no dma-bufs"));
    }

    #[test]
    fn a_refusal_is_ours_by_address_where_numbers_are_others() {
        let row = |seq: u64, pid: u32, va: u64| Failure { seq, pid, va, ..Failure::default() };
        let (us, at) = (std::process::id(), 0x7f00_0000_0000);
        let rows = [row(6, us, at), row(7, us + 1, at), row(8, us, at + 4096)];
        let seq = |known: u64, initial: bool| own(&rows, known, at, initial).map(|row| row.seq);
        assert_eq!((seq(0, true), seq(6, true)), (Some(6), None));
        assert_eq!((seq(6, false), seq(7, false)), (Some(7), None));
    }

    #[test]
    fn a_limit_that_refuses_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let limits: Vec<&str> = limits.lines().filter(|line| !line.starts_with("Max locked memory")).collect();
        let limits = format!(
            "{}\nMax locked memory         16384                65536                bytes     \n",
            limits.join("\n")
        );
        std::fs::write(dir.path().join("proc/self/limits"), limits).unwrap();
        let why = |errno: i32| {
            let error = anyhow::Error::new(io::Error::from_raw_os_error(errno)).context("register GPU memory");
            reason(&Root::new(dir.path()), &error, &Before { refusals: 0 }, 0)
        };
        assert!(why(12).starts_with("; this process may lock 16 KiB only"), "{}", why(12));
        assert_eq!(why(14), "; peermemctl doctor says more");
    }
}
