// SPDX-License-Identifier: GPL-2.0
//! Tests the addresses that the NIC gets without an IOMMU, with one that passes addresses on and
//! with one that translates, and mappings that fail half way. The kernel's command line says which
//! of the three it is. A fault is an access to an address for which the kernel's domain of the NIC
//! has no page (ci/qemu/pcie/lab_pcie.h).

use std::collections::BTreeMap;
use std::fs;

use anyhow::{bail, ensure, Context, Result};
use nvlab::{Gdr, Kind, Layout, Memory};

use crate::common::{complaints, page, pattern, same_bytes, Bench, GPU_PAGE, MIB};
use crate::gpu;
use crate::lab::{self, DmaFail};
use crate::machine::Mode;
use crate::modules;
use crate::test::{emit, in_modes, skip, Env, NvidiaC, Suite};
use crate::verbs::{Loopback, Mr, Op, Status, PATIENCE};

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in BOTH {
        for (name, means, run) in [
            (
                "addresses_of_the_nic_lead_to_the_named_pages",
                NvidiaC::Recorded,
                addresses_of_the_nic_lead_to_the_named_pages as fn(&Env) -> Result<()>,
            ),
            ("bypass_faults", NvidiaC::Recorded, bypass_faults),
            ("map_fails_at_run_n", NvidiaC::Skip("maps through the provider"), map_fails_at_run_n),
        ] {
            tests.extend(in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t| t.nvidia_c(means)));
        }
    }
    let fails = in_modes(
        nvidia_c,
        &[Mode::Legacy],
        "fence_fails_and_no_byte_reaches_the_next_owner",
        fence_fails_and_no_byte_reaches_the_next_owner,
    );
    tests.extend(fails.into_iter().map(|t| t.nvidia_c(NvidiaC::Recorded)));
    Suite { name: "iommu", tests }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iommu {
    Off,
    Identity,
    Translating,
}

/// Returns the kind of IOMMU that the machine was asked for, and checks that the NIC's IOMMU group
/// agrees.
pub fn kind(nic: &str) -> Result<Iommu> {
    let line = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let word = |w: &str| line.split_whitespace().any(|x| x == w);
    let kind = if word("iommu.passthrough=0") {
        Iommu::Translating
    } else if word("iommu=pt") || word("iommu.passthrough=1") {
        Iommu::Identity
    } else {
        Iommu::Off
    };
    let group = fs::read_to_string(format!("/sys/bus/pci/devices/{nic}/iommu_group/type"));
    let agrees = match (&group, kind) {
        (Err(_), Iommu::Off) => true,
        (Ok(t), Iommu::Identity) => t.trim() == "identity",
        (Ok(t), Iommu::Translating) => t.starts_with("DMA"),
        _ => false,
    };
    ensure!(agrees, "the command line says {kind:?}, the IOMMU group of {nic} is {group:?}");
    Ok(kind)
}

/// Returns whether the NIC gets addresses of the IOMMU's own choice.
pub fn translates(nic: &str) -> Result<bool> {
    Ok(kind(nic)? == Iommu::Translating)
}

/// GPU memory, and its places in the BAR for the existing pins.
struct Known {
    memory: Memory,
}

impl Known {
    fn new(rm: &nvlab::Client, layout: Layout, size: usize) -> Result<Self> {
        Ok(Self { memory: rm.request(0, size as u64).layout(layout).alloc()? })
    }

    /// Returns, for each physical address in the BAR, the offset in the memory.
    fn places(&self) -> Result<BTreeMap<u64, u64>> {
        let page = GPU_PAGE as u64;
        let pages = gpu::lab()?.bar1()?.into_iter().filter(|p| p.id == self.memory.handle());
        Ok(pages.map(|p| (p.bar, p.page * page)).collect())
    }
}

pub fn gdr() -> Result<Gdr> {
    modules::modprobe("nvlab_gdr", &[])?;
    Ok(Gdr::open()?)
}

fn nic_of(mr: &Mr) -> Result<String> {
    Ok(lab::nic_mr(mr.lkey())?.initiator)
}

pub fn pci(name: &str) -> Result<nvlab::Pci> {
    let parts: Vec<u32> = name
        .split([':', '.'])
        .map(|p| u32::from_str_radix(p, 16))
        .collect::<Result<_, _>>()
        .with_context(|| format!("PCI name {name}"))?;
    match parts.as_slice() {
        &[domain, bus, device, function] => Ok((domain, bus, device, function)),
        _ => bail!("{name} is no PCI name"),
    }
}

/// Each address that the NIC holds leads to the page that the provider named. It equals the page's
/// own address where nothing translates, and differs from it where the IOMMU translates. There are
/// as many mappings as runs while the memory is registered, and none afterwards. Then the IOMMU
/// lets none of these addresses through any more.
fn addresses_of_the_nic_lead_to_the_named_pages(env: &Env) -> Result<()> {
    if !lab::tells_dma_mappings() {
        skip("this kernel does not tell its DMA mappings (CONFIG_DMA_API_DEBUG)");
        return Ok(());
    }
    const SIZE: usize = 4 * MIB;
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (rm, gdr) = (nvlab::Client::open()?, gdr()?);
    let bar = gpu::bar(&rm, 0)?;
    let (start, len) = (GPU_PAGE + 4097, 3 * MIB);
    for layout in [Layout::Contiguous, Layout::Broken2M, Layout::Broken64K, Layout::Shuffled] {
        gpu::seed_layout(&mut rng)?;
        let known = Known::new(&rm, layout, SIZE)?;
        let mr = bench.reg(known.memory.va() + start as u64, len).with_context(|| format!("{layout:?}"))?;
        let nic = nic_of(&mr)?;
        let kind = kind(&nic)?;
        let seen = lab::translations(mr.lkey())?;
        ensure!(seen.len() >= len / GPU_PAGE, "{layout:?}: {} addresses for {len} bytes", seen.len());
        let places = known.places()?;
        for t in &seen {
            let wanted = (start / page() * page()) as u64 + t.at;
            let into = t.phys % GPU_PAGE as u64;
            let found = places.get(&(t.phys - into)).map(|page| page + into);
            ensure!(found == Some(wanted), "{layout:?}, {kind:?}: {t:x?} leads to {found:x?}, wanted {wanted:#x}");
            ensure!(
                (t.dma == t.phys) == (kind != Iommu::Translating),
                "{layout:?}, {kind:?}: {t:x?} is{} the BAR's own address",
                if t.dma == t.phys { "" } else { " not" }
            );
        }
        let entries = lab::nic_mr(mr.lkey())?.sg_entries;
        let mapped = lab::dma_mappings(&nic, &bar)?;
        // Behind an IOMMU, the NIC must not reach anything else.
        let wanted = if kind == Iommu::Translating { entries } else { 1 };
        ensure!(
            env.nvidia_c || mapped as u64 == wanted,
            "{layout:?}, {kind:?}: {mapped} DMA mappings for {entries} sg entries"
        );

        let bytes = pattern(&mut rng, len);
        let host = bench.reg(bytes.as_ptr() as u64, len).context("register host memory")?;
        link.run(Op::Write, (&host, 0), (&mr, 0), len)?;
        host.dereg()?;
        let mut got = vec![0; len];
        known.memory.read(start as u64, &mut got)?;
        same_bytes(&format!("{layout:?}"), &got, &bytes)?;
        mr.dereg()?;

        let left = lab::dma_mappings(&nic, &bar)?;
        ensure!(left == 0, "{layout:?}: {left} DMA mappings outlived the registration");
        ensure!(lab::fabric()?.errors() == 0, "{layout:?}: the fabric saw errors: {:?}", lab::fabric()?);
        if kind == Iommu::Translating {
            for t in &seen {
                let through = gdr.dma_read(pci(&nic)?, t.dma, &mut [0; 8]);
                ensure!(through.is_err(), "{layout:?}: {:#x} still leads somewhere after the deregistration", t.dma);
            }
            let faults = lab::fabric()?.faults;
            ensure!(faults == seen.len() as u64, "{faults} faults of {} addresses", seen.len());
            lab::reset_fabric()?;
        }
        emit(
            "addresses",
            &serde_json::json!({"iommu": format!("{kind:?}"), "layout": format!("{layout:?}"), "entries": entries}),
        );
    }
    Ok(())
}

/// The check above would be worthless if it could not fail. This test gives the BAR's own address
/// to the NIC, which faults behind a translating IOMMU and nowhere else.
fn bypass_faults(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let (rm, gdr) = (nvlab::Client::open()?, gdr()?);
    let memory = rm.alloc(0, 2 * MIB as u64)?;
    let mr = bench.reg(memory.va(), MIB)?;
    let nic = nic_of(&mr)?;
    let pin = gdr.pin(memory.va(), GPU_PAGE as u64, Kind::Revocable)?;
    let bytes = pattern(&mut rng, 8);
    let before = pattern(&mut rng, 8);
    memory.write(0, &before)?;
    let through = gdr.dma_write(pci(&nic)?, pin.first, &bytes);
    let mut got = [0; 8];
    memory.read(0, &mut got)?;
    let faults = lab::fabric()?.faults;
    if kind(&nic)? == Iommu::Translating {
        ensure!(
            through.is_err() && faults == 1,
            "an address past the IOMMU came through: {through:?}, {faults} faults"
        );
        same_bytes("what must not have been written", &got, &before)?;
        lab::reset_fabric()?;
    } else {
        through.context("the bus address of the BAR")?;
        same_bytes("what the NIC wrote", &got, &bytes)?;
        ensure!(faults == 0, "{faults} faults without translation");
    }
    pin.unpin()?;
    mr.dereg()?;
    Ok(())
}

/// The NIC cannot stop, and the core does not report that. The free returns while the MR lives.
/// What protects the next owner is that the MR's addresses are unmapped by then, so behind a
/// translating IOMMU no byte reaches it. (Elsewhere nothing would stop the NIC, so nothing is
/// sent.)
fn fence_fails_and_no_byte_reaches_the_next_owner(_: &Env) -> Result<()> {
    for (fault, state) in [("fence_fail", "fence_failed"), ("internal_error", "live")] {
        fence_without_effect(fault, state).with_context(|| fault.to_string())?;
    }
    Ok(())
}

/// Frees memory while the NIC has `fault`. The fence has no effect then, and `left` is what the NIC
/// says of the region afterwards. Behind an IOMMU nothing is written all the same.
fn fence_without_effect(fault: &str, left: &str) -> Result<()> {
    // A buffer of this size shares its memory with no other.
    const SIZE: usize = 2 * MIB;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    let bar = gpu::bar(&rm, 0)?;
    let (_source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    let nic = nic_of(&target_mr)?;
    let state = || Ok::<_, anyhow::Error>(lab::nic_mr(target_mr.lkey())?.state);
    lab::set_nic(fault, 1)?;
    target.free()?;
    lab::set_nic(fault, 0)?;
    ensure!(state()? == left, "the MR is {}", state()?);
    ensure!(gpu::pins()? == 1, "{} pins, wanted the source's", gpu::pins()?);
    if lab::tells_dma_mappings() {
        let mapped = lab::dma_mappings(&nic, &bar)?;
        ensure!(mapped == 1, "{mapped} DMA mappings, wanted the source's");
    }
    if kind(&nic)? == Iommu::Translating {
        let next = bench.cuda.alloc(SIZE)?;
        let theirs = vec![0x77; SIZE];
        next.write(0, &theirs)?;
        let link = Loopback::new(&bench.pd)?;
        link.write(1, (&source_mr, 0), (&target_mr, 0), SIZE)?;
        let status = link.wait(PATIENCE)?.status;
        ensure!(status != Status::IBV_WC_SUCCESS, "a write by addresses that are unmapped succeeded");
        ensure!(lab::fabric()?.faults > 0, "it ended with {status:?}, but not at the IOMMU");
        same_bytes("the next owner's memory", &next.read(0, SIZE)?, &theirs)?;
        lab::reset_fabric()?;
    }
    Ok(target_mr.dereg()?)
}

/// Run n cannot be mapped, for each n. The runs before it are unmapped, the pin is put, and the
/// user gets EIO.
fn map_fails_at_run_n(_: &Env) -> Result<()> {
    if !lab::tells_dma_mappings() {
        skip("this kernel does not tell its DMA mappings (CONFIG_DMA_API_DEBUG)");
        return Ok(());
    }
    const RUNS: usize = 9;
    let fail = DmaFail::load()?;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    let bar = gpu::bar(&rm, 0)?;
    let memory = rm.request(0, 2 * MIB as u64).layout(Layout::Broken64K).alloc()?;
    let (va, len) = (memory.va(), RUNS * GPU_PAGE);
    let mr = bench.reg(va, len).context("nothing fails yet")?;
    let nic = nic_of(&mr)?;
    // These counts give a meaning to a count of 0 below. Without translation, the first run is
    // tried, and then all are mapped at once.
    let (maps, wanted) = if translates(&nic)? { (RUNS, RUNS) } else { (2, 1) };
    let mapped = lab::dma_mappings(&nic, &bar)?;
    ensure!(mapped == wanted, "{mapped} DMA mappings of {RUNS} runs");
    mr.dereg()?;
    let mut wrong = Vec::new();
    for n in 1..=maps {
        let what = format!("mapping {n} of {RUNS} runs");
        fail.set(n as u64)?;
        let got = bench.refused(&what, va, len);
        let left = fail.left()?;
        fail.set(0)?;
        wrong.extend(complaints(&what, (va, len), got?, libc::EIO, Some("dma_mapping")));
        ensure!(left == 0, "{what}: {left} more calls would have been needed");
        let mapped = lab::dma_mappings(&nic, &bar)?;
        ensure!(mapped == 0, "{what}: {mapped} DMA mappings stay");
        ensure!(gpu::pins()? == 0, "{what}: {} pins stay", gpu::pins()?);
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    bench.reg(va, len).context("after all that")?.dereg()?;
    Ok(())
}
