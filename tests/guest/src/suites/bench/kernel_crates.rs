// SPDX-License-Identifier: GPL-2.0
//! Compares our module built with each crate `kernel` (docs/kernel-lite.md), in turns on one
//! kernel. A registration must cost the same with both, and our part of it must not cost more with
//! kernel-lite.

use std::path::Path;

use anyhow::{ensure, Context, Result};
use nvlab::Layout;
use serde_json::json;

use super::rig::{test, unload, Cost, Rig, Round};
use crate::machine::Level;
use crate::modules;
use crate::test::{emit, Env, Suite};

/// The module built with kernel-lite in the image. The module that modprobe finds uses the kernel's
/// own crate.
const LITE: &str = "/usr/lib/lite/nvidia-peermem.ko";
const KERNEL_CRATES: [&str; 2] = ["own", "lite"];
/// The cases: size, layout, and number of rounds in each turn.
const CASES: [(u64, Layout, usize); 6] = [
    (64 << 10, Layout::Contiguous, 9),
    (1 << 20, Layout::Contiguous, 9),
    (64 << 20, Layout::Contiguous, 5),
    (1 << 30, Layout::Contiguous, 3),
    (1 << 30, Layout::Broken2M, 3),
    (1 << 30, Layout::Broken64K, 3),
];
const TURNS: usize = 3;
/// The difference that counts as none, in thousandths.
const SAME: u64 = 30;

pub fn suite() -> Suite {
    Suite { name: "kernel_crates", tests: vec![test("cost_the_same", Level::Devices, cost_the_same)] }
}

fn load(kernel_crate: &str) -> Result<()> {
    unload()?;
    if kernel_crate == "own" {
        return modules::modprobe("nvidia-peermem", &[]).map(drop);
    }
    let loaded = modules::try_insmod(Path::new(LITE), &[])?;
    ensure!(loaded.ok, "insmod {LITE}: {}{}", loaded.said, loaded.kernel.join("\n"));
    Ok(())
}

/// Returns the instructions in the callbacks of one registration and deregistration, and how many
/// of them are ours.
fn figures(round: &Round) -> [u64; 2] {
    let all: u64 = round.callbacks.iter().sum();
    [all, all.saturating_sub(round.provider)]
}

fn median(mut samples: Vec<u64>) -> Result<u64> {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().context("no samples")
}

fn cost_the_same(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    let mut rounds: [[Vec<[u64; 2]>; 2]; CASES.len()] = Default::default();
    for _ in 0..TURNS {
        for (of, name) in KERNEL_CRATES.iter().enumerate() {
            load(name)?;
            // Register once before, for what is done once per module.
            let memory = rig.memory(64 << 10, Layout::Contiguous)?;
            rig.reg(memory.va(), 64 << 10)?.dereg()?;
            memory.free()?;
            Cost::V100.set(&rig.gpu)?;
            for (at, (size, layout, times)) in CASES.into_iter().enumerate() {
                let memory = rig.memory(size, layout)?;
                for _ in 0..times {
                    rounds[at][of].push(figures(&rig.round(memory.va(), size)?));
                }
                memory.free()?;
            }
            Cost::Zero.set(&rig.gpu)?;
        }
    }
    unload()?;
    let mut apart = Vec::new();
    for ((size, layout, _), rounds) in CASES.into_iter().zip(&rounds) {
        let medians = |figure: usize| -> Result<Vec<u64>> {
            rounds.iter().map(|of| median(of.iter().map(|r| r[figure]).collect())).collect()
        };
        let (all, own) = (medians(0)?, medians(1)?);
        let row = json!({
            "size": size, "layout": format!("{layout:?}"), "kernel_crates": KERNEL_CRATES, "callbacks_ns": all, "of_it_ours_ns": own,
        });
        emit("kernel_crates", &row);
        let said = format!(
            "{} KiB, {layout:?}: {} ns in the callbacks with the kernel's crate, {} with kernel-lite; of it ours {} and {}",
            size >> 10,
            all[0],
            all[1],
            own[0],
            own[1]
        );
        println!("{said}");
        if all[0].abs_diff(all[1]) * 1000 > SAME * all[0] || own[1] * 1000 > (1000 + SAME) * own[0] {
            apart.push(said);
        }
    }
    ensure!(apart.is_empty(), "more than {} % apart:\n{}", SAME / 10, apart.join("\n"));
    Ok(())
}
