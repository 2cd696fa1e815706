// SPDX-License-Identifier: GPL-2.0
//! Measures what counters and tracepoints cost, by comparing the module as it is shipped with
//! builds that lack them, in turns. It is meant for a clock that counts instructions. bench/cost.sh
//! builds the modules, boots, and reads the rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Map, Value};

use crate::common::{Bench, KIB, MIB};
use crate::gpu;
use crate::machine::Level;
use crate::modules::{self, PEERMEM};
use crate::test::{emit, skip, Env, NvidiaC, Suite, Test};

/// The folder into which bench/cost.sh puts the builds.
const DIR: &str = "/usr/lib/variants";
const ENABLE: &str = "/sys/kernel/tracing/events/nvidia_peermem/enable";

/// The variants: name in the rows, build, and whether the tracepoints are on.
const VARIANTS: [(&str, &str, bool); 5] = [
    ("shipped", "shipped", false),
    ("traced", "shipped", true),
    ("no_counters", "no-counters", false),
    ("no_tracepoints", "no-tracepoints", false),
    ("neither", "neither", false),
];
/// The number of instructions that the tracepoints of one registration may cost while they are off
/// ...
const OFF: u64 = 60;
/// ... and while they are on: five events.
const ON: u64 = 5000;
const TURNS: usize = 3;
const ROUNDS: usize = 21;

pub fn suite() -> Suite {
    let test = Test::new("registration", Level::Devices, registration);
    Suite { name: "cost", tests: vec![test.nvidia_c(NvidiaC::Skip("it loads ours")).limit(600)] }
}

/// The figures of registration and deregistration of one size at one cost of the provider.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    v100: bool,
    size: usize,
}

fn registration(_: &Env) -> Result<()> {
    if !Path::new(DIR).is_dir() {
        skip("this image has no /usr/lib/variants: bench/cost.sh makes one that has");
        return Ok(());
    }
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(16 * MIB)?;
    let mut times: BTreeMap<(Row, &str), Vec<u64>> = BTreeMap::new();
    for _ in 0..TURNS {
        for (variant, build, traced) in VARIANTS {
            let file = Path::new(DIR).join(build).join("nvidia-peermem.ko");
            let loaded = modules::try_insmod(&file, &[])?;
            ensure!(loaded.ok, "insmod {build}: {}{}", loaded.said, loaded.kernel.join("\n"));
            if traced {
                fs::write(ENABLE, "1").with_context(|| format!("write {ENABLE}"))?;
            }
            for v100 in [false, true] {
                let lab = gpu::lab()?;
                if v100 {
                    lab.cost_v100()?;
                }
                for size in [64 * KIB, 16 * MIB] {
                    let rounds = times.entry((Row { v100, size }, variant)).or_default();
                    for _ in 0..ROUNDS {
                        let start = Instant::now();
                        bench.reg(memory.va(), size)?.dereg()?;
                        rounds.push(u64::try_from(start.elapsed().as_nanos())?);
                    }
                }
                lab.reset_cost()?;
            }
            modules::rmmod(PEERMEM)?;
        }
    }
    let median = |row: Row, variant: &str| -> Result<u64> {
        let (_, found) = times.iter().find(|((r, v), _)| *r == row && *v == variant).context("no such row")?;
        let mut sorted = found.clone();
        sorted.sort_unstable();
        Ok(sorted[sorted.len() / 2])
    };
    let rows: Vec<Row> = [64 * KIB, 16 * MIB]
        .into_iter()
        .flat_map(|size| [Row { v100: false, size }, Row { v100: true, size }])
        .collect();
    println!("| size | provider | {} |", VARIANTS.map(|(name, ..)| name).join(" | "));
    println!("|---{}|", "|---".repeat(VARIANTS.len() + 1));
    for row in &rows {
        let medians = VARIANTS.iter().map(|(name, ..)| median(*row, name)).collect::<Result<Vec<u64>>>()?;
        let least = medians.iter().copied().min().unwrap_or(0).max(1);
        let cells = medians.iter().map(|n| format!("{n} (+{:.2} %)", (n - least) as f64 * 100.0 / least as f64));
        let provider = if row.v100 { "as a V100" } else { "nothing" };
        println!("| {} KiB | {provider} | {} |", row.size / KIB, cells.collect::<Vec<_>>().join(" | "));
        let told: Map<String, Value> =
            VARIANTS.iter().zip(&medians).map(|((name, ..), n)| ((*name).to_string(), (*n).into())).collect();
        emit("cost", &json!({ "size": row.size, "v100": row.v100, "instructions": told }));
    }
    for row in rows {
        let [shipped, traced, no_tracepoints, neither] =
            ["shipped", "traced", "no_tracepoints", "neither"].map(|name| median(row, name));
        let (shipped, traced, no_tracepoints, neither) = (shipped?, traced?, no_tracepoints?, neither?);
        ensure!(
            !row.v100 || shipped <= neither + neither / 50,
            "{} bytes: {shipped} instructions with counters and tracepoints, {neither} without: more than 2 %",
            row.size
        );
        ensure!(
            shipped <= no_tracepoints + OFF,
            "{} bytes: {shipped} instructions with tracepoints that are off, {no_tracepoints} without: over {OFF} more",
            row.size
        );
        ensure!(
            traced <= shipped + ON,
            "{} bytes: {traced} instructions with tracepoints on, {shipped} with them off: over {ON} more",
            row.size
        );
    }
    Ok(())
}
