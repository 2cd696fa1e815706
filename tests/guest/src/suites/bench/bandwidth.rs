// SPDX-License-Identifier: GPL-2.0
//! perftest's rate on GPU memory registered by either module, and on host memory.

use std::collections::BTreeMap;

use anyhow::{ensure, Result};
use serde_json::json;

use super::{unload, Rig, Variant};
use crate::perftest::{mb_s, Report, Run, Sizes};
use crate::test::{emit, Env};

/// One run moves by two per cent: this many show one per cent of the median.
const ROUNDS: usize = 40;
/// Of these, measured in each series of GPU memory; fewer are another measurement than the one that
/// is described.
const ENOUGH: usize = 30;
/// Runs that perftest may take to find its clock.
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
                    // Host memory is there to compare with, by eye.
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

/// `None` where perftest did not find its clock: one sample less, of many.
fn rate(program: &str, sizes: &Sizes, on_gpu: bool) -> Result<Option<f64>> {
    for _ in 0..TRIES {
        if let (_, _, Report { rate: Some(rate), .. }) = Run::new(program, sizes, on_gpu).on_this_machine()? {
            return Ok(Some(rate));
        }
        println!("perftest could not calibrate its clock");
    }
    Ok(None)
}
