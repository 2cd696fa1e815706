// SPDX-License-Identifier: GPL-2.0
//! Asks real UCX, by its own `ucx_info`, what it can do with the soft NIC (docs/consumers.md).

use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::lab;
use crate::machine::{Level, Mode, RDMA_DEVICE};
use crate::modules;
use crate::test::{skip, Env, Suite, Test};

const PROGRAM: &str = "/usr/bin/ucx_info";

pub fn suite() -> Suite {
    Suite { name: "ucx", tests: vec![Test::new("finds_the_module", Level::Devices, finds_the_module)] }
}

/// Returns what `ucx_info -d` reports about the NIC's memory domain, with UCX's use of GPUDirect
/// RDMA set to `try` (its default), `y` or `n`, or `None` if UCX could not open the domain.
fn domain(gpu_direct: &str) -> Result<Option<String>> {
    let out = Command::new(PROGRAM)
        .arg("-d")
        .env("UCX_IB_GPU_DIRECT_RDMA", gpu_direct)
        .output()
        .with_context(|| format!("start {PROGRAM}"))?;
    let said = String::from_utf8_lossy(&out.stdout);
    let wrong = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "ucx_info -d: {}\n{said}{wrong}", out.status);
    if said.contains(&format!("failed to open memory domain {RDMA_DEVICE}")) {
        println!("UCX_IB_GPU_DIRECT_RDMA={gpu_direct}: {RDMA_DEVICE} is not opened: {}", wrong.trim());
        return Ok(None);
    }
    let begin = format!("# Memory domain: {RDMA_DEVICE}\n");
    let (_, of_nic) =
        said.split_once(&begin).with_context(|| format!("ucx_info shows no {RDMA_DEVICE}:\n{said}{wrong}"))?;
    let of_nic = of_nic.split("# Memory domain:").next().unwrap_or(of_nic);
    Ok(Some(of_nic.to_string()))
}

/// UCX registers GPU memory with a NIC if it finds the module, and only then. A newer `ucx_info`
/// lists the memory types, which show it. An older one shows it by refusing to do without.
fn finds_the_module(_: &Env) -> Result<()> {
    if !Path::new(PROGRAM).exists() {
        skip("ucx_info is not in this image");
        return Ok(());
    }
    let without = domain("try")?.context("UCX cannot open the NIC even without GPUDirect")?;
    let forced_without = domain("y")?;
    modules::modprobe("nvidia-peermem", Mode::Persistent.parameters(false))?;
    let with = domain("try");
    let told_by_peers = lab::has_memory_peers();
    let (forced_with, forbidden) = (domain("y"), domain("n"));
    modules::rmmod(modules::PEERMEM)?;
    let (with, forbidden) = (with?.context("the NIC is gone with the module")?, forbidden?.context("n: no NIC")?);

    let types = |said: &str| said.lines().find(|l| l.contains("memory types:")).map(str::to_string);
    if !told_by_peers && types(&with).is_none() {
        // See docs/consumers.md.
        skip("no /sys/kernel/mm/memory_peers on this kernel, and this UCX looks for the module nowhere else");
        return Ok(());
    }
    ensure!(forced_without.is_none(), "without the module UCX believes that it can register GPU memory");
    ensure!(forced_with?.is_some(), "with the module UCX believes that it cannot register GPU memory");
    for (what, said, wanted) in
        [("without the module", &without, false), ("with it", &with, true), ("forbidden", &forbidden, false)]
    {
        match types(said) {
            Some(line) => ensure!(line.contains("cuda") == wanted, "{what}: {line}"),
            None => println!("{what}: this ucx_info lists no memory types"),
        }
    }
    let changed: Vec<&str> = with.lines().filter(|l| !without.lines().any(|w| w == *l)).collect();
    println!("ucx_info -d says with the module, and not without: {changed:?}");
    Ok(())
}
