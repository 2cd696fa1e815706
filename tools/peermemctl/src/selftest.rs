// SPDX-License-Identifier: GPL-2.0
//! `selftest`: GPU memory, registered, written to by the NIC, compared; by peer memory and by dma-buf.

use crate::answer::{Selftest, SelftestWay};
use crate::check::Level;
use crate::cuda::{Cuda, Gpu, Memory};
use crate::machine::Machine;
use crate::peermem;
use crate::verbs::{Domain, PortAddress, Region, Verbs};
use anyhow::{Context, Result};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// One GPU page: small enough for every memlock limit and BAR1.
const SIZE: usize = 65536;

/// Runs both ways. An error means that not even a try was possible.
pub fn run(machine: &Machine, device: Option<&str>, gpu: i32) -> Result<Selftest> {
    let rdma = machine
        .rdma
        .iter()
        .find(|rdma| match device {
            Some(name) => rdma.name == name,
            None => rdma.ports.iter().any(|port| port.state == "ACTIVE"),
        })
        .with_context(|| match device {
            Some(name) => format!("there is no RDMA device {name}; peermemctl topo lists them"),
            None => "no RDMA device has an active port; peermemctl doctor says more".to_owned(),
        })?;
    let port = rdma.ports.iter().find(|port| port.state == "ACTIVE").or(rdma.ports.first());
    let port = port.with_context(|| format!("{} has no port", rdma.name))?;
    let address = PortAddress::read(machine.root, &rdma.name, &port.number)?;

    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(gpu).with_context(|| format!("GPU {gpu}; nvidia-smi -L lists those that there are"))?;
    let name = gpu.name()?;
    let verbs = Verbs::open()?;
    let open = verbs.device(&rdma.name)?;
    let domain = open.domain()?;

    let peer = attempt("peer-memory", &gpu, &domain, &address, |memory| domain.register(memory.address(), SIZE))
        .unwrap_or_else(|error| failed("peer-memory", Level::Fail, format!("{error:#}{}", reason(machine))));
    let dma_buf = if gpu.has_dma_buf() {
        attempt("dma-buf", &gpu, &domain, &address, |memory| {
            let fd = memory.dma_buf().map_err(io::Error::other)?;
            domain.register_dma_buf(fd.as_fd(), memory.address(), SIZE)
        })
        .unwrap_or_else(|error| failed("dma-buf", Level::Skip, format!("does not work here: {error:#}")))
    } else {
        failed("dma-buf", Level::Skip, "the GPU driver does not offer it".to_owned())
    };
    let level = peer.level;
    Ok(Selftest { level, gpu: name, device: rdma.name.clone(), bytes: SIZE as u64, ways: vec![peer, dma_buf] })
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
    }
}

/// What the module noted down about our own refusal just now.
fn reason(machine: &Machine) -> String {
    let rows = peermem::failures(machine.root).unwrap_or_default();
    match rows.iter().rfind(|row| row.pid == std::process::id()) {
        Some(row) => format!(": {}", row.text),
        None => "; peermemctl doctor says more".to_owned(),
    }
}

fn attempt<'a>(
    way: &'static str,
    gpu: &Gpu,
    domain: &'a Domain<'a>,
    port: &PortAddress,
    register: impl FnOnce(&Memory) -> io::Result<Region<'a>>,
) -> Result<SelftestWay> {
    let memory = gpu.allocate(SIZE)?;
    memory.clear()?;
    // Not a multiple of anything that a shifted or repeated page would reproduce.
    let pattern: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8 ^ (n >> 8) as u8).collect();
    let host = domain.register(pattern.as_ptr() as u64, SIZE).context("register host memory")?;
    let loopback = domain.loopback(port)?;

    let start = Instant::now();
    let region = register(&memory).context("register GPU memory")?;
    let register_us = micros(start);
    let start = Instant::now();
    let length = u32::try_from(SIZE).context("size")?;
    loopback
        .write((&host, pattern.as_ptr() as u64), (&region, memory.address()), length)
        .context("write to GPU memory through the NIC")?;
    let write_us = micros(start);
    let equal = memory.read()? == pattern;
    let start = Instant::now();
    region.deregister();
    let deregister_us = micros(start);
    Ok(SelftestWay {
        way,
        level: if equal { Level::Ok } else { Level::Fail },
        message: (!equal).then(|| "the bytes in GPU memory are not those that the NIC was given".to_owned()),
        register_us: Some(register_us),
        write_us: Some(write_us),
        deregister_us: Some(deregister_us),
        bytes_equal: Some(equal),
    })
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}
