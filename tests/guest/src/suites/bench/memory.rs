// SPDX-License-Identifier: GPL-2.0
//! Measures the kernel memory that a live registration holds, by who allocated it: the kernel's own
//! accounting of slab, pages and vmalloc per allocation site, and its totals.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{ensure, Context, Result};
use nvlab::Layout;
use serde_json::json;

use super::rig::{layout_name, unload, Rig, Variant};
use crate::test::{emit, Env};

const SWITCH: &str = "/proc/sys/vm/mem_profiling";

/// The kernel's accounting, which costs time. Dropping this switches it off again.
struct Accounting;

impl Accounting {
    fn on() -> Result<Self> {
        fs::write(SWITCH, "1").with_context(|| format!("{SWITCH} (fast kernel only)"))?;
        Ok(Self)
    }
}

impl Drop for Accounting {
    fn drop(&mut self) {
        // This works, because it could be switched on.
        let _ = fs::write(SWITCH, "0");
    }
}

/// The memory of each owner, in bytes.
#[derive(Default, Clone, Copy)]
struct Held {
    /// The memory of nvidia-peermem and what others allocate for it: scatterlists, and everything
    /// that Rust code allocates (no other module is in Rust).
    client: i64,
    provider: i64,
    /// The memory of the RDMA core and the NIC.
    stack: i64,
    /// Slab and vmalloc of the whole machine.
    total: i64,
}

impl Held {
    fn now() -> Result<Self> {
        let mut held = Self::default();
        let sites = fs::read_to_string("/proc/allocinfo").context("read /proc/allocinfo (fast kernel only)")?;
        for line in sites.lines() {
            let mut words = line.split_whitespace();
            // The two heading lines have no number.
            let Some(Ok(bytes)) = words.next().map(str::parse::<i64>) else { continue };
            let place = line.split(" func:").next().unwrap_or(line);
            let sum = if place.ends_with("[nvidia_peermem]")
                || place.contains("rust/")
                || place.contains("lib/scatterlist.c")
            {
                &mut held.client
            } else if place.ends_with("[nvidia]") {
                &mut held.provider
            } else if ["[ib_core]", "[ib_uverbs]", "[rdma_rxe]"].iter().any(|module| place.ends_with(module)) {
                &mut held.stack
            } else {
                continue;
            };
            *sum += bytes;
        }
        let meminfo = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
        let kib: BTreeMap<&str, i64> = meminfo
            .lines()
            .filter_map(|l| l.split_once(':'))
            .filter_map(|(name, rest)| Some((name, rest.split_whitespace().next()?.parse().ok()?)))
            .collect();
        held.total = 1024 * ["Slab", "VmallocUsed"].iter().filter_map(|name| kib.get(name)).sum::<i64>();
        Ok(held)
    }

    fn since(self, before: Self) -> Self {
        Self {
            client: self.client - before.client,
            provider: self.provider - before.provider,
            stack: self.stack - before.stack,
            total: self.total - before.total,
        }
    }
}

pub fn all(_: &Env) -> Result<()> {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let _on = Accounting::on()?;
    let rig = Rig::new()?;
    for variant in Variant::ALL {
        variant.load(&rig)?;
        for (layout, sizes) in [
            (Layout::Contiguous, &[64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB, 64 * GIB][..]),
            (Layout::Broken2M, &[16 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB, 64 * GIB][..]),
            (Layout::Broken64K, &[16 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB, 64 * GIB][..]),
        ] {
            for &size in sizes {
                let memory = rig.memory(size, layout)?;
                let before = Held::now()?;
                let mr = rig.reg(memory.va(), size)?;
                let held = Held::now()?.since(before);
                mr.dereg()?;
                let left = Held::now()?.since(before).client;
                ensure!(left == 0, "{}: {left} bytes are left of a registration of {size}", variant.name());
                emit(
                    "memory",
                    &json!({
                        "variant": variant.name(), "size": size, "layout": layout_name(layout),
                        "client": held.client, "provider": held.provider, "stack": held.stack, "total": held.total,
                    }),
                );
                memory.free()?;
            }
        }
    }
    unload()
}
