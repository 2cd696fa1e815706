// SPDX-License-Identifier: GPL-2.0
//! Tests tables of every page size that the provider's interface knows, and long tables.

use std::fs;

use anyhow::{ensure, Context, Result};
use nvlab::Layout;

use crate::common::{pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::Mode;
use crate::modules::{self, PEERMEM};
use crate::test::{in_modes, skip, Env, NvidiaC, Suite};
use crate::verbs::Loopback;

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in [Mode::Persistent, Mode::Legacy] {
        tests.extend(in_modes(nvidia_c, &[mode], "page_sizes", page_sizes));
        tests.extend(in_modes(nvidia_c, &[mode], "without_high_orders", without_high_orders));
    }
    // NVIDIA's module accepts only pages of 64 KiB.
    Suite { name: "tables", tests: tests.into_iter().map(|t| t.nvidia_c(NvidiaC::Recorded)).collect() }
}

/// Returns how many runs of `run` bytes `[at, at + len)` touches.
fn touched(at: usize, len: usize, run: usize) -> u64 {
    ((at + len - 1) / run - at / run + 1) as u64
}

fn page_sizes(env: &Env) -> Result<()> {
    const SIZE: usize = 4 * MIB;
    let mut rng = env.rng()?;
    let gpu = gpu::lab()?;
    // A module that was just loaded asks the provider about the pair of GPU and NIC, by its first
    // persistent registration. It cannot ask with the smallest pages.
    if env.mode()? == Mode::Persistent {
        modules::rmmod(PEERMEM)?;
        modules::modprobe("nvidia-peermem", Mode::Persistent.parameters(env.nvidia_c))?;
    }
    gpu.set("page_size", 4 << 10)?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let rm = nvlab::Client::open()?;
    let (source, source_mr) = bench.registered(SIZE)?;
    for page_size in [4 * KIB, 64 * KIB, 128 * KIB] {
        gpu.set("page_size", page_size as u64)?;
        for (layout, run) in
            [(Layout::Contiguous, usize::MAX), (Layout::Broken2M, 2 * MIB), (Layout::Broken64K, GPU_PAGE)]
        {
            let memory = rm.request(0, SIZE as u64).layout(layout).alloc()?;
            for (at, len) in [(0, SIZE), (4096, 64 * KIB), (12_345, 200_001), (64 * KIB, 128 * KIB), (SIZE - 1, 1)] {
                let what = format!("pages of {page_size}, {layout:?}, {len} bytes at {at}");
                let before = pattern(&mut rng, SIZE);
                memory.write(0, &before)?;
                let mr = bench.reg(memory.va() + at as u64, len).with_context(|| format!("register {what}"))?;
                // The table covers the pages of the CPU around the range.
                let (first, last) = (at & !4095, (at + len + 4095) & !4095);
                let (got, wanted) = (lab::nic_mr(mr.lkey())?.sg_entries, touched(first, last - first, run));
                ensure!(got == wanted, "{what}: {got} sg entries, wanted {wanted}");
                let bytes = pattern(&mut rng, len);
                source.write(0, &bytes)?;
                link.write(1, (&source_mr, 0), (&mr, 0), len)?;
                link.done(1)?;
                let mut wanted = before;
                wanted[at..at + len].copy_from_slice(&bytes);
                let mut got = vec![0; SIZE];
                memory.read(0, &mut got)?;
                same_bytes(&what, &got, &wanted)?;
                mr.dereg()?;
            }
            memory.free()?;
        }
    }
    Ok(())
}

/// Makes the page allocator fail for this thread when it asks for more pages at once than one
/// object of a page needs. That is one, or two where KASAN or slab debugging adds to each object.
/// Dropping this switches it off.
struct OnePageOnly;

impl OnePageOnly {
    const SWITCHES: &str = "/sys/kernel/debug/fail_page_alloc";
    const MINE: &str = "/proc/thread-self/make-it-fail";

    fn new() -> Result<Self> {
        const OBJECT: &str = "/sys/kernel/slab/kmalloc-4k/slab_size";
        let object = fs::read_to_string(OBJECT).with_context(|| format!("read {OBJECT}"))?;
        let pages = object.trim().parse::<usize>()?.div_ceil(4 * KIB).next_power_of_two();
        let first_to_fail = (pages.ilog2() + 1).to_string();
        let this = Self;
        for (name, value) in [
            ("task-filter", "Y"),
            ("ignore-gfp-wait", "N"),
            ("min-order", first_to_fail.as_str()),
            ("verbose", "0"),
            ("times", "-1"),
            ("probability", "100"),
        ] {
            let file = format!("{}/{name}", Self::SWITCHES);
            fs::write(&file, value).with_context(|| format!("write {value} to {file}"))?;
        }
        fs::write(Self::MINE, "1").with_context(|| format!("write 1 to {}", Self::MINE))?;
        Ok(this)
    }
}

impl Drop for OnePageOnly {
    fn drop(&mut self) {
        // If this fails, the thread's own switch ends with the test's process.
        let _ = fs::write(Self::MINE, "0");
        let _ = fs::write(format!("{}/probability", Self::SWITCHES), "0");
    }
}

/// Registers a long table of many runs on a machine whose memory is in single pages.
fn without_high_orders(_: &Env) -> Result<()> {
    const SIZE: usize = 192 * MIB;
    if !fs::exists(OnePageOnly::SWITCHES)? {
        skip("this kernel has no fault injection");
        return Ok(());
    }
    let gpu = gpu::lab()?;
    gpu.set("crc_max", 0)?;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    for page_size in [64 * KIB, 4 * KIB] {
        gpu.set("page_size", page_size as u64)?;
        let memory = rm.request(0, SIZE as u64).layout(Layout::Broken64K).alloc()?;
        let mr = {
            let _one = OnePageOnly::new()?;
            bench.reg(memory.va(), SIZE).context("register with single pages only")?
        };
        let got = lab::nic_mr(mr.lkey())?.sg_entries;
        ensure!(got == (SIZE / GPU_PAGE) as u64, "{got} sg entries");
        mr.dereg()?;
        memory.free()?;
    }
    Ok(())
}
