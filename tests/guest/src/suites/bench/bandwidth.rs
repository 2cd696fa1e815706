// SPDX-License-Identifier: GPL-2.0
//! perftest's rate on GPU memory registered by either module, and on host memory.

use anyhow::Result;
use serde_json::json;

use super::{unload, Rig, Variant};
use crate::perftest::{mb_s, Report, Run, Sizes};
use crate::test::{emit, Env};

/// One run moves by two per cent: so many show one per cent of the median.
const ROUNDS: usize = 40;
/// Runs that perftest may take to find its clock.
const TRIES: usize = 4;

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    let sizes = Sizes { message: 1 << 20, iterations: 200 };
    for round in 0..ROUNDS {
        for variant in [Variant::OursPersistent, Variant::NvMem] {
            variant.load(&rig)?;
            for program in ["ib_write_bw", "ib_read_bw"] {
                for buffer in ["gpu", "host"] {
                    // Host memory is there to compare with, by eye.
                    if buffer == "host" && (variant != Variant::OursPersistent || round % 8 != 0) {
                        continue;
                    }
                    let Some(rate) = rate(program, &sizes, buffer == "gpu")? else { continue };
                    let who = if buffer == "host" { "-" } else { variant.name() };
                    let row = json!({
                        "program": program, "buffer": buffer, "variant": who, "round": round, "mb_s": mb_s(rate),
                    });
                    emit("bandwidth", &row);
                }
            }
        }
    }
    unload()
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
