// SPDX-License-Identifier: GPL-2.0
//! `selftest`: GPU memory, registered, written to by the NIC, compared; by peer memory and by
//! dma-buf.

use crate::answer::{Bandwidth, Selftest, SelftestWay};
use crate::check::Level;
use crate::cuda::{Cuda, Gpu, Mapping, Memory};
use crate::doctor::limits;
use crate::facts;
use crate::kernel;
use crate::machine::{Machine, REGISTER};
use crate::peermem::{self, Failure};
use crate::rdma::RdmaDevice;
use crate::root::Root;
use crate::select;
use crate::text;
use crate::verbs::{Domain, Loopback, PortAddress, Region, Verbs};
use crate::way::{self, Judged};
use anyhow::{Context, Result};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// What is allocated: one GPU page.
const PAGE: usize = 65536;
/// What is registered of it. With as much of the host's memory and the NIC's queues it fits a
/// memlock limit of 64 KiB.
const SIZE: usize = 8192;
/// What is registered to measure the bandwidth, and what one write of that moves.
const MOVED: usize = 16 << 20;
const PIECE: u32 = 1 << 20;
/// Under a limit below this, ENOMEM may be the limit's, on kernels with pages of 64 KiB too.
const TIGHT: u64 = 1 << 20;

/// What is asked for.
pub struct Wanted<'a> {
    /// As [`select`] reads them; `None`: the first one.
    pub gpu: Option<&'a str>,
    pub nic: Option<&'a str>,
    pub bandwidth: bool,
}

/// Runs both ways. An error means that not even a try was possible.
pub fn run(machine: &Machine, wanted: &Wanted) -> Result<Selftest> {
    let chosen = select::gpu(machine, wanted.gpu.unwrap_or("0"))?;
    let rdma = match wanted.nic {
        Some(name) => select::nic(machine, name)?,
        None => machine
            .rdma
            .iter()
            .find(|rdma| rdma.is_active())
            .context("no RDMA device has an active port; peermemctl doctor says more")?,
    };
    let port = rdma.ports.iter().find(|port| port.state == "ACTIVE").or(rdma.ports.first());
    let port = port.with_context(|| format!("{} has no port", rdma.name))?;
    let address = PortAddress::read(machine.root, &rdma.name, &port.number)?;

    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(&chosen.address).with_context(|| format!("GPU {}", chosen.address))?;
    let name = gpu.name()?;
    let verbs = Verbs::open()?;
    let open = verbs.device(&rdma.name)?;
    let domain = open.domain()?;

    let known = last_refusal(machine.root);
    let mut at = 0;
    let peer = attempt("peer-memory", &gpu, &domain, &address, wanted.bandwidth, |memory, size| {
        at = memory.address();
        domain.register(at, size)
    })
    .unwrap_or_else(|error| match without_peers(machine, rdma) {
        Some(because) => failed("peer-memory", Level::Skip, format!("does not work here: {error:#}: {because}")),
        None => failed("peer-memory", Level::Fail, format!("{error:#}{}", reason(machine.root, &error, known, at))),
    });
    let by_dma_buf = |name: &'static str, mapping: Mapping| {
        if !gpu.has_dma_buf() {
            return failed(name, Level::Skip, "the GPU driver does not offer it".to_owned());
        }
        attempt(name, &gpu, &domain, &address, wanted.bandwidth, |memory, size| {
            let fd = memory.dma_buf(mapping).map_err(io::Error::other)?;
            domain.register_dma_buf(fd.as_fd(), memory.address(), size)
        })
        .unwrap_or_else(|error| {
            failed(name, Level::Skip, format!("does not work here: {error:#}{}", refusal(machine, rdma, &error)))
        })
    };
    let mut ways = vec![peer, by_dma_buf("dma-buf", Mapping::Default)];
    // NCCL asks for this mapping where the GPU has a coherent link, and nowhere else.
    if machine.has_c2c(chosen) {
        ways.push(by_dma_buf("dma-buf-pcie", Mapping::Pcie));
    }
    Ok(Selftest { level: worst(&ways), gpu: name, nic: rdma.name.clone(), bytes: SIZE as u64, ways })
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

/// Says what is known of a dma-buf that the GPU driver refused to attach.
fn refusal(machine: &Machine, nic: &RdmaDevice, error: &anyhow::Error) -> String {
    /// ENOTSUPP, which is the kernel's own and has no name for programs.
    const NOT_SUPPORTED: i32 = 524;
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    let code = |cause: &io::Error| cause.raw_os_error();
    let mlx5 = nic.module.as_deref() == Some("mlx5_ib");
    match error.chain().filter_map(|cause| cause.downcast_ref()).find_map(code) {
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

/// A way that is not possible here counts for nothing, unless no other is.
fn worst(ways: &[SelftestWay]) -> Level {
    ways.iter().map(|way| way.level).filter(|level| *level != Level::Skip).max().unwrap_or(Level::Fail)
}

fn failed(way: &'static str, level: Level, message: String) -> SelftestWay {
    SelftestWay {
        way,
        level,
        message: Some(message),
        register_us: None,
        write_us: None,
        deregister_us: None,
        bytes_equal: None,
        bandwidth: None,
    }
}

/// The number of the last refusal that the module noted down.
fn last_refusal(root: &Root) -> u64 {
    peermem::failures(root).unwrap_or_default().last().map_or(0, |row| row.seq)
}

/// Why registering at `at` failed: what the module noted down behind the refusal `known`, or the
/// limit of locked memory, which refuses before the module is asked.
fn reason(root: &Root, error: &anyhow::Error, known: u64, at: u64) -> String {
    let rows = peermem::failures(root).unwrap_or_default();
    if let Some(row) = own(&rows, known, at, kernel::has_initial_pids(root)) {
        return format!(": {}", row.text);
    }
    let is_enomem = |cause: &io::Error| cause.kind() == io::ErrorKind::OutOfMemory;
    let no_memory = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_enomem);
    match limits::memlock(root).filter(|limit| no_memory && *limit < TIGHT) {
        Some(limit) => format!(
            "; this process may lock {} only (Max locked memory in /proc/self/limits): ulimit -l unlimited, or run it as root",
            text::bytes(limit)
        ),
        None => "; peermemctl doctor says more".to_owned(),
    }
}

/// The row of our own refusal. In a container the module knows us by another number than we do.
fn own(rows: &[Failure], known: u64, at: u64, has_initial_pids: bool) -> Option<&Failure> {
    let by_us = |row: &&Failure| !has_initial_pids || row.pid == std::process::id();
    rows.iter().filter(by_us).rfind(|row| row.seq > known && row.va == at)
}

fn attempt<'a>(
    way: &'static str,
    gpu: &Gpu,
    domain: &'a Domain<'a>,
    port: &PortAddress,
    with_bandwidth: bool,
    mut register: impl FnMut(&Memory, usize) -> io::Result<Region<'a>>,
) -> Result<SelftestWay> {
    let memory = gpu.allocate(PAGE)?;
    memory.clear()?;
    // Not a multiple of anything that a shifted or repeated page would reproduce.
    let pattern: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8 ^ (n >> 8) as u8).collect();
    let host = domain.register(pattern.as_ptr() as u64, SIZE).context("register host memory")?;
    let loopback = domain.loopback(port)?;

    let start = Instant::now();
    let region = register(&memory, SIZE).context("register GPU memory")?;
    let register_us = micros(start);
    let start = Instant::now();
    let length = u32::try_from(SIZE).context("size")?;
    loopback
        .write((&host, pattern.as_ptr() as u64), (&region, memory.address()), length)
        .context("write to GPU memory through the NIC")?;
    let write_us = micros(start);
    let bytes = memory.read()?;
    // Behind what was written, nothing was.
    let equal = bytes.strip_prefix(pattern.as_slice()).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
    let start = Instant::now();
    region.deregister().context("deregister GPU memory")?;
    let deregister_us = micros(start);
    let bandwidth = match with_bandwidth && equal {
        true => Some(bandwidth(gpu, domain, &loopback, register).context("measure the bandwidth")?),
        false => None,
    };
    Ok(SelftestWay {
        way,
        level: if equal { Level::Ok } else { Level::Fail },
        message: (!equal).then(|| "the bytes in GPU memory are not those that the NIC was given".to_owned()),
        register_us: Some(register_us),
        write_us: Some(write_us),
        deregister_us: Some(deregister_us),
        bytes_equal: Some(equal),
        bandwidth,
    })
}

/// Moves memory between host and GPU for a while, each way.
fn bandwidth<'a>(
    gpu: &Gpu,
    domain: &'a Domain<'a>,
    loopback: &Loopback,
    mut register: impl FnMut(&Memory, usize) -> io::Result<Region<'a>>,
) -> Result<Bandwidth> {
    const SPAN: Duration = Duration::from_secs(1);
    let memory = gpu.allocate(MOVED)?;
    let host = vec![0u8; MOVED];
    let at = (memory.address(), host.as_ptr() as u64);
    let ours = domain.register(at.1, MOVED).context("register host memory")?;
    let theirs = register(&memory, MOVED).context("register GPU memory")?;
    let rate = |from, to| loopback.rate(from, to, MOVED as u64, PIECE, SPAN);
    let to_gpu = rate((&ours, at.1), (&theirs, at.0))?;
    let from_gpu = rate((&theirs, at.0), (&ours, at.1))?;
    Ok(Bandwidth { to_gpu, from_gpu, registered: MOVED as u64, piece: u64::from(PIECE) })
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_of_either_way_are_a_failure() {
        let way = |level: Level| failed("peer-memory", level, String::new());
        for (peer, dma_buf, expected) in [
            (Level::Ok, Level::Ok, Level::Ok),
            (Level::Ok, Level::Skip, Level::Ok),
            (Level::Ok, Level::Fail, Level::Fail),
            (Level::Fail, Level::Ok, Level::Fail),
            (Level::Skip, Level::Ok, Level::Ok),
            (Level::Skip, Level::Skip, Level::Fail),
        ] {
            assert_eq!(worst(&[way(peer), way(dma_buf)]), expected, "{peer:?} {dma_buf:?}");
        }
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
            reason(&Root::new(dir.path()), &error, 0, 0)
        };
        assert!(why(12).starts_with("; this process may lock 16 KiB only"), "{}", why(12));
        assert_eq!(why(14), "; peermemctl doctor says more");
    }
}
