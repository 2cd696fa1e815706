// SPDX-License-Identifier: GPL-2.0
//! `selftest`: GPU memory, registered, written to by the NIC, compared; by peer memory and by
//! dma-buf.

use crate::answer::{Bandwidth, Selftest, SelftestWay};
use crate::check::Level;
use crate::cuda::{Cuda, Gpu};
use crate::machine::Machine;
use crate::rdma;
use crate::select;
use crate::trial::{self, Before, How};
use crate::verbs::{Domain, Loopback, PortAddress, Verbs};
use crate::way::Way;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// The bytes that are allocated: smaller memory shares a block with other memory, and need not
/// begin with a page.
const BLOCK: usize = 2 << 20;
/// The bytes of it that are registered. With as many bytes of the host's memory and the NIC's
/// queues they fit a memlock limit of 64 KiB.
const SIZE: usize = 8192;
/// The bytes that are registered to measure the bandwidth; the next constant is what one write
/// moves of them.
const MOVED: usize = 16 << 20;
const PIECE: u32 = 1 << 20;

/// The options of `selftest`.
pub struct Wanted<'a> {
    /// The GPU as [`select`] reads it; `None` for the first one.
    pub gpu: Option<&'a str>,
    pub nic: Option<&'a str>,
    pub bandwidth: bool,
}

/// Runs all ways. An error means that not even a try was possible.
pub fn run(machine: &Machine, wanted: &Wanted) -> Result<Selftest> {
    let chosen = select::gpu(machine, wanted.gpu.unwrap_or("0"))?;
    let rdma = match wanted.nic {
        Some(name) => select::nic(machine, name)?,
        None => {
            rdma::to_use(&machine.rdma).context("no RDMA device has an active port; peermemctl doctor says more")?
        }
    };
    let port = rdma.port().with_context(|| format!("{} has no port", rdma.name))?;
    let address = PortAddress::read(machine.root, &rdma.name, &port.number)?;

    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(&chosen.address).with_context(|| format!("GPU {}", chosen.address))?;
    let name = gpu.name()?;
    let verbs = Verbs::open()?;
    let open = verbs.device(&rdma.name)?;
    let domain = open.domain()?;

    let tried = |way: Way| {
        if way != Way::PeerMemory && !gpu.has_dma_buf() {
            return failed(way, Level::Skip, "the GPU driver does not offer it".to_owned());
        }
        let before = Before::look(machine.root);
        let mut at = 0;
        let how = How::of(way, machine.has_c2c(chosen));
        attempt((way, how), &gpu, &domain, &address, wanted.bandwidth, &mut at).unwrap_or_else(|error| {
            let (level, message) = trial::why(machine, rdma, way, &error, &before, at);
            failed(way, level, message)
        })
    };
    let ways: Vec<SelftestWay> =
        std::iter::once(Way::PeerMemory).chain(trial::by_dma_buf(machine, chosen, rdma)).map(tried).collect();
    Ok(Selftest { level: worst(&ways), gpu: name, nic: rdma.name.clone(), bytes: SIZE as u64, ways })
}

/// Returns the worst level of all ways. A way that is not possible here does not count; if no way
/// is possible, the result is a failure.
fn worst(ways: &[SelftestWay]) -> Level {
    ways.iter().map(|way| way.level).filter(|level| *level != Level::Skip).max().unwrap_or(Level::Fail)
}

fn failed(way: Way, level: Level, message: String) -> SelftestWay {
    SelftestWay {
        way: name(way),
        level,
        message: Some(message),
        register_us: None,
        write_us: None,
        deregister_us: None,
        bytes_equal: None,
        bandwidth: None,
    }
}

/// Returns the word for a way in the answer.
fn name(way: Way) -> &'static str {
    match way {
        Way::PeerMemory => "peer-memory",
        Way::DmaBuf => "dma-buf",
        Way::DmaBufPcie => "dma-buf-pcie",
        Way::DataDirect => "data-direct",
        Way::Preload => "preload",
    }
}

/// Tries one way. `at` becomes the memory's address.
fn attempt<'a>(
    (way, how): (Way, How),
    gpu: &Gpu,
    domain: &'a Domain<'a>,
    port: &PortAddress,
    with_bandwidth: bool,
    at: &mut u64,
) -> Result<SelftestWay> {
    let memory = gpu.allocate(BLOCK)?;
    *at = memory.address();
    memory.clear()?;
    // Not a multiple of anything that a shifted or repeated page would reproduce.
    let pattern: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8 ^ (n >> 8) as u8).collect();
    let host = domain.register(pattern.as_ptr() as u64, SIZE).context("register host memory")?;
    let loopback = domain.loopback(port)?;

    let start = Instant::now();
    let region = how.register(domain, &memory, 0, SIZE).context("register GPU memory")?;
    let register_us = micros(start);
    let start = Instant::now();
    let length = u32::try_from(SIZE).context("size")?;
    loopback
        .write((&host, pattern.as_ptr() as u64), (&region, memory.address()), length)
        .context("write to GPU memory through the NIC")?;
    let write_us = micros(start);
    let bytes = memory.read()?;
    // Nothing was written behind the pattern.
    let equal = bytes.strip_prefix(pattern.as_slice()).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
    let start = Instant::now();
    region.deregister().context("deregister GPU memory")?;
    let deregister_us = micros(start);
    let bandwidth = match with_bandwidth && equal {
        true => Some(bandwidth(gpu, domain, &loopback, how).context("measure the bandwidth")?),
        false => None,
    };
    Ok(SelftestWay {
        way: name(way),
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
fn bandwidth<'a>(gpu: &Gpu, domain: &'a Domain<'a>, loopback: &Loopback, how: How) -> Result<Bandwidth> {
    const SPAN: Duration = Duration::from_secs(1);
    let memory = gpu.allocate(MOVED)?;
    let host = vec![0u8; MOVED];
    let at = (memory.address(), host.as_ptr() as u64);
    let ours = domain.register(at.1, MOVED).context("register host memory")?;
    let theirs = how.register(domain, &memory, 0, MOVED).context("register GPU memory")?;
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
        let way = |level: Level| failed(Way::PeerMemory, level, String::new());
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
}
