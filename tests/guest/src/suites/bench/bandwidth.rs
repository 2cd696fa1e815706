// SPDX-License-Identifier: GPL-2.0
//! Measures perftest's rate on GPU memory registered by either module, and on host memory.

use std::collections::BTreeMap;

use anyhow::{ensure, Result};
use serde_json::json;

use super::rig::{unload, Rig, Variant};
use crate::perftest::{mb_s, Report, Run, Sizes};
use crate::test::{emit, Env};

/// The number of rounds. One run varies by two per cent, so this many show a difference of one per
/// cent in the median.
const ROUNDS: usize = 40;
/// The number of rounds that must have been measured in each series of GPU memory. With fewer, it
/// is not the measurement that is described.
const ENOUGH: usize = 30;
/// The number of runs that perftest may take to calibrate its clock.
const TRIES: usize = 4;

const VARIANTS: [Variant; 2] = [Variant::OursPersistent, Variant::NvMem];
const PROGRAMS: [&str; 2] = ["ib_write_bw", "ib_read_bw"];

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    let sizes = Sizes { message: 1 << 20, iterations: 200 };
    let mut measured: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for round in 0..ROUNDS {
        for variant in VARIANTS {
            variant.load(&rig)?;
            for program in PROGRAMS {
                for buffer in ["gpu", "host"] {
                    // Host memory is only there for comparison by eye, so a few rounds are enough.
                    if buffer == "host" && (variant != Variant::OursPersistent || round % 8 != 0) {
                        continue;
                    }
                    let Some(rate) = rate(program, &sizes, buffer == "gpu")? else { continue };
                    if buffer == "gpu" {
                        *measured.entry((program, variant.name())).or_default() += 1;
                    }
                    let who = if buffer == "host" { "-" } else { variant.name() };
                    let row = json!({
                        "program": program, "buffer": buffer, "variant": who, "round": round, "mb_s": mb_s(rate),
                    });
                    emit("bandwidth", &row);
                }
            }
        }
    }
    unload()?;
    for program in PROGRAMS {
        for who in VARIANTS.map(Variant::name) {
            let rounds = measured.get(&(program, who)).copied().unwrap_or(0);
            ensure!(rounds >= ENOUGH, "{program}, {who}: {rounds} of {ROUNDS} rounds were measured, wanted {ENOUGH}");
        }
    }
    Ok(())
}

/// Returns the rate, or `None` if perftest could not calibrate its clock. The series then has one
/// sample less.
fn rate(program: &str, sizes: &Sizes, on_gpu: bool) -> Result<Option<f64>> {
    for _ in 0..TRIES {
        if let (_, _, Report { rate: Some(rate), .. }) = Run::new(program, sizes, on_gpu).on_this_machine()? {
            return Ok(Some(rate));
        }
        println!("perftest could not calibrate its clock");
    }
    Ok(None)
}
