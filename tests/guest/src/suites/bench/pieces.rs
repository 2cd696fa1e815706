// SPDX-License-Identifier: GPL-2.0
//! Measures one registration over many allocations, and the time in which the provider pins and
//! unpins each of them once.

use anyhow::{ensure, Context, Result};
use nvlab::{Gdr, Kind, Layout, Memory, Reservation};
use serde_json::json;

use super::rig::{positive, unload, Cost, Rig, Variant, PROVIDER_NS};
use crate::modules;
use crate::test::{emit, Env};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The cases: length of a segment, length of the range, rounds.
const CASES: [(u64, u64, usize); 5] =
    [(20 * MIB, GIB, 5), (2 * MIB, GIB, 5), (GIB, 16 * GIB, 3), (2 * MIB, 16 * GIB, 1), (2 * MIB, 64 * GIB, 1)];

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    modules::modprobe("nvlab_gdr", &[])?;
    Variant::OursPersistent.load(&rig)?;
    for (segment, size, rounds) in CASES {
        let count = size.div_ceil(segment);
        let addresses = Reservation::new(0, count * segment, None)?;
        let at = |i: u64| addresses.va() + i * segment;
        let memory = (0..count).map(|i| -> Result<Memory> {
            let memory = rig.rm.request(0, segment).layout(Layout::Contiguous).unmapped().alloc()?;
            memory.register_at(at(i))?;
            Ok(memory)
        });
        let memory: Vec<Memory> = memory.collect::<Result<_>>().context("segments")?;
        for cost in [Cost::Zero, Cost::V100] {
            cost.set(&rig.gpu)?;
            let alone = alone(&rig, segment, size, at)?;
            let mut samples = Vec::new();
            let mut failed = 0;
            let mut calls = [0; 4];
            for _ in 0..rounds {
                let round = rig.round(addresses.va(), size)?;
                failed = positive(rig.gpu.accounting()?.get("persistent_get_failures"));
                calls = round.calls;
                ensure!(calls[0] - failed >= count, "{} pins for {count} segments", calls[0] - failed);
                samples.push(round.sample());
            }
            emit(
                "pieces",
                &json!({
                    "segment": segment, "size": size, "cost": cost.name(), "calls": calls, "failed": failed,
                    "alone_ns": alone, "samples": samples,
                }),
            );
        }
        Cost::Zero.set(&rig.gpu)?;
        drop(memory);
    }
    unload()?;
    modules::rmmod("nvlab_gdr")
}

/// Returns the provider's own time, in nanoseconds, for another user's pin and unpin of each
/// segment.
fn alone(rig: &Rig, segment: u64, size: u64, at: impl Fn(u64) -> u64) -> Result<u64> {
    let gdr = Gdr::open()?;
    rig.gpu.reset_accounting()?;
    let pins = (0..size.div_ceil(segment)).map(|i| gdr.pin(at(i), segment.min(size - i * segment), Kind::Persistent));
    let pins = pins.collect::<Result<Vec<_>, _>>()?;
    // Begin with the newest, as the stand-in finds them.
    for pin in pins.into_iter().rev() {
        pin.unpin()?;
    }
    let accounting = rig.gpu.accounting()?;
    Ok(PROVIDER_NS.iter().map(|name| positive(accounting.get(name))).sum())
}
