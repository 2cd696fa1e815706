// SPDX-License-Identifier: GPL-2.0
//! Measures the time of the seven callbacks over size, layout and provider cost.

use anyhow::{ensure, Result};
use nvlab::Layout;
use serde_json::json;

use super::rig::{layout_name, unload, Cost, Rig, Round, Variant};
use crate::test::{emit, Env};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The case of one row, with its number of rounds in each turn of a module.
struct Case {
    size: u64,
    layout: Layout,
    rounds: usize,
}

/// The number of turns that each module gets, one after the other, so that a drift affects all of
/// them.
const TURNS: usize = 3;

pub fn all(_: &Env) -> Result<()> {
    let mut cases = Vec::new();
    for (size, rounds) in
        [(64 * KIB, 5), (MIB, 5), (16 * MIB, 5), (256 * MIB, 3), (GIB, 3), (4 * GIB, 1), (16 * GIB, 1), (64 * GIB, 1)]
    {
        cases.push(Case { size, layout: Layout::Contiguous, rounds });
    }
    for layout in [Layout::Broken2M, Layout::Broken64K] {
        for (size, rounds) in [(16 * MIB, 5), (256 * MIB, 3), (GIB, 3), (4 * GIB, 1), (16 * GIB, 1), (64 * GIB, 1)] {
            cases.push(Case { size, layout, rounds });
        }
    }
    measure("times", &cases, &[Cost::Zero, Cost::V100])
}

/// Measures the same on the wall clock of an emulated machine, whose host does other things as
/// well.
pub fn wall(_: &Env) -> Result<()> {
    let cases = [64 * KIB, MIB, GIB].map(|size| Case { size, layout: Layout::Contiguous, rounds: 11 });
    measure("wall", &cases, &[Cost::V100])
}

fn measure(row: &str, cases: &[Case], costs: &[Cost]) -> Result<()> {
    let rig = Rig::new()?;
    for _ in 0..TURNS {
        for variant in Variant::ALL {
            variant.load(&rig)?;
            for case in cases {
                let memory = rig.memory(case.size, case.layout)?;
                // Driver 595 writes addresses down. Driver 550, to which the module belongs, calls
                // the DMA API for each page.
                let as_550 = (row == "times" && variant == Variant::NvMem && case.size == GIB).then_some((
                    Cost::V100,
                    550,
                    "c_nv_mem_550",
                ));
                let usual = costs.iter().map(|&cost| (cost, 595, variant.name()));
                for (cost, dma_mode, name) in usual.chain(as_550) {
                    cost.set(&rig.gpu)?;
                    rig.gpu.set("dma_mode", dma_mode)?;
                    let rounds =
                        (0..case.rounds).map(|_| rig.round(memory.va(), case.size)).collect::<Result<Vec<_>>>()?;
                    let same = |r: &Round| r.calls == rounds[0].calls && r.entries == rounds[0].entries;
                    ensure!(rounds.iter().all(same), "{} bytes: rounds differ in calls or sg entries", case.size);
                    emit(
                        row,
                        &json!({
                            "variant": name, "size": case.size, "layout": layout_name(case.layout),
                            "cost": cost.name(), "calls": rounds[0].calls, "entries": rounds[0].entries,
                            "samples": rounds.iter().map(Round::sample).collect::<Vec<_>>(),
                        }),
                    );
                }
                Cost::Zero.set(&rig.gpu)?;
                rig.gpu.set("dma_mode", 595)?;
                memory.free()?;
            }
        }
    }
    unload()
}
