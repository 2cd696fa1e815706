// SPDX-License-Identifier: GPL-2.0
//! Compares peer memory with dma-buf: what a registration costs and holds, what a free costs while
//! it lives, what memory stays after that, and one registration over many allocations.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use nvlab::{Layout, Memory, Piece, Reservation};
use procfs::Current;
use serde_json::json;

use super::rig::{layout_name, ns, unload, Cost, Rig, Variant};
use crate::common::errno_name;
use crate::test::{emit, Env};
use crate::verbs::{Mr, FULL_ACCESS};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const CASES: [(u64, Layout); 6] = [
    (64 * KIB, Layout::Contiguous),
    (MIB, Layout::Contiguous),
    (64 * MIB, Layout::Contiguous),
    (GIB, Layout::Contiguous),
    (GIB, Layout::Broken2M),
    (GIB, Layout::Broken64K),
];
const ROUNDS: usize = 3;
/// The size of PyTorch's expandable segments.
const SEGMENT: u64 = 20 * MIB;

/// The number of registrations that live at the same time when the memory of one is measured.
const LIVE: u64 = 64;

/// Returns the number of bytes that the kernel has left. What a registration holds is not among
/// them.
fn free_memory() -> Result<u64> {
    // Writing to this file gives back pages that a processor keeps at hand.
    const COMPACT: &str = "/proc/sys/vm/compact_memory";
    fs::write(COMPACT, "1").with_context(|| format!("write {COMPACT}"))?;
    Ok(procfs::Meminfo::current().context("read /proc/meminfo")?.mem_free)
}

/// The way in which memory is registered.
#[derive(Clone, Copy)]
enum Way {
    Peer(Variant),
    DmaBuf,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Peer(Variant::OursPersistent),
        Self::Peer(Variant::OursRevocable),
        Self::Peer(Variant::NvMem),
        Self::Peer(Variant::NvMemNc),
        Self::DmaBuf,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Peer(variant) => variant.name(),
            Self::DmaBuf => "dma_buf",
        }
    }

    fn load(self, rig: &Rig) -> Result<()> {
        match self {
            Self::Peer(variant) => variant.load(rig),
            Self::DmaBuf => unload(),
        }
    }

    /// Registers these allocations, which lie one behind the other from `va` on.
    fn register(self, rig: &Rig, va: u64, memory: &[&Memory]) -> Result<std::io::Result<Mr>> {
        let size = memory.iter().map(|m| m.size()).sum::<u64>();
        let len = usize::try_from(size)?;
        Ok(match self {
            Self::Peer(_) => Mr::reg(&rig.pd, va, len, FULL_ACCESS),
            Self::DmaBuf => {
                let piece = |m: &&Memory| Piece { handle: m.handle(), offset: 0, len: m.size() };
                let pieces: Vec<Piece> = memory.iter().map(piece).collect();
                // The descriptor is closed at once, because the region keeps the memory.
                let fd: OwnedFd = rig.rm.export(0, &pieces).context("export")?;
                Mr::reg_dma_buf(&rig.pd, fd.as_fd(), 0, len, va, FULL_ACCESS)
            }
        })
    }
}

/// Returns how many nanoseconds `what` took, and its result.
fn timed<T>(what: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
    let start = Instant::now();
    let value = what()?;
    Ok((ns(start.elapsed().as_nanos()), value))
}

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    for way in Way::ALL {
        way.load(&rig)?;
        for (size, layout) in CASES {
            one(&rig, way, size, layout)?;
        }
        several(&rig, way)?;
    }
    unload()
}

fn one(rig: &Rig, way: Way, size: u64, layout: Layout) -> Result<()> {
    let memory = rig.memory(size, layout)?;
    let (va, all) = (memory.va(), [&memory]);
    // Register once before, because the first meeting of a GPU and a NIC happens once per module.
    way.register(rig, va, &all)??.dereg()?;
    let before = free_memory()?;
    let live = (0..LIVE).map(|_| Ok(way.register(rig, va, &all)??)).collect::<Result<Vec<Mr>>>()?;
    let held = before.saturating_sub(free_memory()?) / LIVE;
    // Begin with the newest, as the provider's stand-in finds them.
    live.into_iter().rev().try_for_each(Mr::dereg)?;
    Cost::V100.set(&rig.gpu)?;
    let mut registered = Vec::new();
    for _ in 0..ROUNDS {
        let (register, mr) = timed(|| Ok(way.register(rig, va, &all)??))?;
        let (deregister, ()) = timed(|| Ok(mr.dereg()?))?;
        registered.push([register, deregister]);
    }
    memory.free()?;
    let mut freed = Vec::new();
    let mut kept = 0;
    for _ in 0..ROUNDS {
        let memory = rig.memory(size, layout)?;
        let mr = way.register(rig, memory.va(), &[&memory])??;
        let (free, ()) = timed(|| Ok(memory.free()?))?;
        kept = rig.gpu.accounting()?.get("memory_used");
        let (deregister, ()) = timed(|| Ok(mr.dereg()?))?;
        ensure!(rig.gpu.accounting()?.get("memory_used") == 0, "{}: memory stays for ever", way.name());
        freed.push([free, deregister]);
    }
    Cost::Zero.set(&rig.gpu)?;
    emit(
        "ways",
        &json!({
            "variant": way.name(), "size": size, "layout": layout_name(layout), "samples": registered, "held": held,
            "free": freed, "kept": kept,
        }),
    );
    Ok(())
}

/// Measures one registration of 1 GiB in segments, or records why it is refused.
fn several(rig: &Rig, way: Way) -> Result<()> {
    let count = GIB.div_ceil(SEGMENT);
    let addresses = Reservation::new(0, count * SEGMENT, None)?;
    let memory = (0..count).map(|i| -> Result<Memory> {
        let memory = rig.rm.request(0, SEGMENT).layout(Layout::Contiguous).unmapped().alloc()?;
        memory.register_at(addresses.va() + i * SEGMENT)?;
        Ok(memory)
    });
    let memory: Vec<Memory> = memory.collect::<Result<_>>().context("segments")?;
    let all: Vec<&Memory> = memory.iter().collect();
    Cost::V100.set(&rig.gpu)?;
    let (mut samples, mut refused) = (Vec::new(), None);
    for _ in 0..ROUNDS {
        let (register, made) = timed(|| way.register(rig, addresses.va(), &all))?;
        match made {
            Ok(mr) => {
                let (deregister, ()) = timed(|| Ok(mr.dereg()?))?;
                samples.push([register, deregister]);
            }
            Err(e) => refused = Some(errno_name(e.raw_os_error().unwrap_or(0))),
        }
    }
    Cost::Zero.set(&rig.gpu)?;
    ensure!(samples.is_empty() == refused.is_some(), "{}: registered at times", way.name());
    emit(
        "ways_several",
        &json!({
            "variant": way.name(), "allocations": count, "segment": SEGMENT, "samples": samples, "refused": refused,
        }),
    );
    Ok(())
}
