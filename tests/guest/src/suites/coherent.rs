// SPDX-License-Identifier: GPL-2.0
//! A card whose memory is coherent, like Grace's. Its memory is RAM of the machine in no BAR, and
//! the driver's tables say so (ci/qemu/gpu). Real perftest and plain verbs run with each kind of
//! IOMMU. Only the provider maps such memory, for persistent pins; a revocable pin is refused with
//! a reason in words. The suites `errors` and `faults` test what else can go wrong with it.

use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::iommu::{self, Iommu};
use crate::common::{complaints, pattern, same_bytes, Bench, GPU_PAGE, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::Mode;
use crate::peermem;
use crate::perftest::{arrived, chunks, with_rate, Before, Run, Sizes};
use crate::test::{in_modes, Env, Suite};
use crate::verbs::{Loopback, Op};

pub fn suite() -> Suite {
    let mut tests = Vec::new();
    for (name, run) in [
        ("ib_write_bw", (|env| perftest(env, "ib_write_bw")) as fn(&Env) -> Result<()>),
        ("ib_read_bw", |env| perftest(env, "ib_read_bw")),
        ("ib_send_bw", |env| perftest(env, "ib_send_bw")),
        ("bytes_change_only_inside_the_region", bytes_change_only_inside_the_region),
        ("mapping_stays", mapping_stays),
    ] {
        tests.extend(in_modes(false, &[Mode::Persistent], name, run));
    }
    tests.extend(in_modes(false, &[Mode::Legacy], "ib_write_bw_is_refused_with_the_reason", perftest_fails));
    Suite { name: "coherent", tests: tests.into_iter().map(|t| t.limit(240)).collect() }
}

/// Checks that the bytes arrive, and that the driver mapped each buffer for the NIC once.
fn perftest(env: &Env, program: &str) -> Result<()> {
    let gpu = gpu::lab()?;
    gpu.set("coherent", 1)?;
    let sizes = Sizes::of(env, 20)?;
    with_rate(|| {
        let before = Before::now()?;
        let (server, client, report) = Run::new(program, &sizes, true).on_this_machine()?;
        let counts = before.counts()?;
        arrived(program, &chunks("server", server, sizes.message)?, &chunks("client", client, sizes.message)?)?;
        counts.reconcile("the NIC", report.bytes, report.bytes)?;
        let accounting = gpu.accounting()?;
        let maps = ["persistent_gets", "dma_maps", "dma_unmaps", "bar1_used"].map(|name| accounting.get(name));
        ensure!(maps == [2, 2, 2, 0], "pins, mappings, unmappings, bytes in BAR1: {maps:?}, wanted [2, 2, 2, 0]");
        gpu::wait_clean(Duration::from_secs(10))?;
        Ok(report.rate)
    })
}

/// Wherever a region begins and ends, its bytes change and no others, and the NIC gets the memory's
/// own addresses or the IOMMU's.
fn bytes_change_only_inside_the_region(env: &Env) -> Result<()> {
    const SIZE: usize = 2 * MIB;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let rm = nvlab::Client::open()?;
    for (at, len) in [(0, SIZE), (GPU_PAGE + 4097, MIB), (4096, 1), (GPU_PAGE - 1, 2), (SIZE - 4096, 4096)] {
        let memory = rm.request(0, SIZE as u64).coherent(true).alloc()?;
        let mr = bench.reg(memory.va() + at as u64, len).with_context(|| format!("{len} bytes at {at}"))?;
        let nic = lab::nic_mr(mr.lkey())?.initiator;
        let kind = iommu::kind(&nic)?;
        let seen = lab::translations(mr.lkey())?;
        ensure!(!seen.is_empty(), "the NIC has no address");
        for t in &seen {
            ensure!(t.phys != 0 && (t.phys == t.dma) == (kind != Iommu::Translating), "{kind:?}: {t:x?}");
        }
        let bytes = pattern(&mut rng, len);
        let host = bench.reg(bytes.as_ptr() as u64, len).context("register host memory")?;
        let mut wanted = pattern(&mut rng, SIZE);
        memory.write(0, &wanted)?;
        link.run(Op::Write, (&host, 0), (&mr, 0), len)?;
        wanted[at..at + len].copy_from_slice(&bytes);
        let mut got = vec![0; SIZE];
        memory.read(0, &mut got)?;
        same_bytes(&format!("{len} bytes at {at}"), &got, &wanted)?;
        host.dereg()?;
        mr.dereg()?;
        let left = gpu::lab()?.accounting()?.get("live_mappings");
        ensure!(left == 0, "{left} mappings left");
    }
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// Deregisters coherent memory while the driver has no memory to unmap it: the driver warns, forgets
/// the mapping and says that it is done. The deregistration succeeds, nothing is pinned, and behind an IOMMU the NIC
/// reaches the memory as before (docs/safety.md, kept-mapping).
fn mapping_stays(_: &Env) -> Result<()> {
    if lab::tells_dma_mappings() {
        println!("not here: the kernel's check of the DMA API would report the mapping that stays");
        return Ok(());
    }
    let bench = Bench::new()?;
    let (rm, gdr) = (nvlab::Client::open()?, iommu::gdr()?);
    for fails in [true, false] {
        let memory = rm.request(0, 2 * MIB as u64).coherent(true).alloc()?;
        let mr = bench.reg(memory.va(), MIB)?;
        let nic = lab::nic_mr(mr.lkey())?.initiator;
        let dma = lab::translations(mr.lkey())?.first().context("the NIC has no address")?.dma;
        gpu::lab()?.fault_n("unmap_nomem", fails.into(), 1)?;
        mr.dereg()?;
        let left = ["live_persistent", "live_mappings"].map(|name| gpu::accounting().map(|all| all.get(name)));
        ensure!(matches!(left, [Ok(0), Ok(0)]), "pins and mappings: {left:?}");
        if iommu::kind(&nic)? != Iommu::Translating {
            println!("without an IOMMU that translates, there is nothing to unmap");
            continue;
        }
        let reached = gdr.dma_read(iommu::pci(&nic)?, dma, &mut [0; 8]).is_ok();
        ensure!(reached == fails, "the unmapping fails: {fails}; the NIC reaches the memory: {reached}");
        let seen = gpu::accounting()?.get("violations");
        ensure!(seen == i64::from(reached), "{seen} accesses without a pin were counted");
        gpu::lab()?.reset_accounting()?;
        lab::reset_fabric()?;
    }
    Ok(())
}

/// perftest reports that it cannot register, and the module reports why.
fn perftest_fails(env: &Env) -> Result<()> {
    let gpu = gpu::lab()?;
    gpu.set("coherent", 1)?;
    let sizes = Sizes::of(env, 20)?;
    let Err(why) = Run::new("ib_write_bw", &sizes, true).on_this_machine() else {
        anyhow::bail!("ib_write_bw registered coherent memory revocably");
    };
    ensure!(format!("{why:#}").contains("Couldn't allocate MR"), "perftest failed for another reason: {why:#}");
    let found = peermem::last_failure()?.context("no failure is recorded")?;
    let wanted = (libc::EOPNOTSUPP, "outside_bar");
    ensure!((found.errno, found.reason.as_str()) == wanted, "recorded as {found:?}, wanted {wanted:?}");
    let bench = Bench::new()?;
    let memory = nvlab::Client::open()?.request(0, MIB as u64).coherent(true).alloc()?;
    let got = bench.refused("coherent memory", memory.va(), MIB)?;
    let wrong = complaints("coherent memory", (memory.va(), MIB), got, libc::EOPNOTSUPP, env.reason("outside_bar"));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(gpu::pins()? == 0, "{} pins stay", gpu::pins()?);
    Ok(())
}
