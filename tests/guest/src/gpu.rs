// SPDX-License-Identifier: GPL-2.0
//! Reads the GPU stand-in's accounting for the suites.

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nvlab::{Accounting, Lab};

pub fn lab() -> Result<Lab> {
    Lab::open().context("the GPU stand-in's debugfs")
}

/// Returns the name of the flavour of the GPU driver that is not loaded (ci/qemu/gpu/README.md).
pub fn other_flavour() -> &'static str {
    let flavour = lab().and_then(|lab| Ok(lab.flavour()?));
    if flavour.is_ok_and(|flavour| flavour == "nvidia") {
        "the odd flavour"
    } else {
        "the flavour with NVIDIA's own front"
    }
}

pub fn accounting() -> Result<Accounting> {
    Ok(lab()?.accounting()?)
}

/// Derives the order of pages in `Layout::Shuffled` from this test's seed from now on, too.
pub fn seed_layout(rng: &mut fastrand::Rng) -> Result<()> {
    Ok(lab()?.set("layout_seed", rng.u64(1..))?)
}

/// Returns the GPU's PCI address, as sysfs has it.
pub fn pci_address(rm: &nvlab::Client, gpu: u32) -> Result<String> {
    let (domain, bus, device, function) = rm.info(gpu)?.pci;
    Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

/// Returns the address range of the BAR that is this GPU's memory.
pub fn bar(rm: &nvlab::Client, gpu: u32) -> Result<RangeInclusive<u64>> {
    let file = format!("/sys/bus/pci/devices/{}/resource", pci_address(rm, gpu)?);
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let line = text.lines().nth(2).with_context(|| format!("{file} has no third line"))?;
    let number = |w: Option<&str>| -> Result<u64> {
        let w = w.and_then(|w| w.strip_prefix("0x")).with_context(|| format!("{file}: {line:?}"))?;
        u64::from_str_radix(w, 16).with_context(|| format!("{file}: {line:?}"))
    };
    let mut words = line.split_whitespace();
    Ok(number(words.next())?..=number(words.next())?)
}

/// Returns the number of live pins of both kinds.
pub fn pins() -> Result<i64> {
    let b = accounting()?;
    Ok(b.get("live_pins") + b.get("live_persistent"))
}

/// Returns the numbers of calls that pin and that unpin, of both kinds.
pub fn provider_calls() -> Result<(i64, i64)> {
    let b = accounting()?;
    Ok((b.get("gets") + b.get("persistent_gets"), b.get("puts") + b.get("persistent_puts")))
}

/// Returns the page of video memory at `va`, which shows whether two processes had the same memory.
/// The module nvlab_gdr must be loaded.
pub fn place(va: u64) -> Result<u64> {
    let gdr = nvlab::Gdr::open()?;
    let pin = gdr.pin(va, 64 << 10, nvlab::Kind::Persistent)?;
    let mapped = lab()?.bar1()?.into_iter().find(|page| page.bar == pin.first);
    pin.unpin()?;
    Ok(mapped.with_context(|| format!("BAR1 has nothing for the pin of {va:#x}"))?.video)
}

/// Waits until nothing is pinned and nothing is allocated.
pub fn wait_clean(limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let b = accounting()?;
        if b.is_clean() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("not clean after {limit:?}: {:?}", b.dirt());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
