// SPDX-License-Identifier: GPL-2.0
//! perftest's rate on GPU memory registered by either module, and on host memory.

use anyhow::{Context, Result};
use serde_json::json;

use super::{unload, Rig, Variant};
use crate::perftest::{mb_s, Run, Sizes};
use crate::test::{emit, Env};

const ROUNDS: usize = 7;

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    let sizes = Sizes { message: 1 << 20, iterations: 100 };
    for _ in 0..ROUNDS {
        for variant in [Variant::OursPersistent, Variant::NvMem] {
            variant.load(&rig)?;
            for program in ["ib_write_bw", "ib_read_bw"] {
                for buffer in ["gpu", "host"] {
                    if buffer == "host" && variant != Variant::OursPersistent {
                        continue;
                    }
                    let (_, _, report) = Run::new(program, &sizes, buffer == "gpu").on_this_machine()?;
                    let rate = mb_s(report.rate.context("perftest could not calibrate its clock")?);
                    let who = if buffer == "host" { "-" } else { variant.name() };
                    emit("bandwidth", &json!({ "program": program, "buffer": buffer, "variant": who, "mb_s": rate }));
                }
            }
        }
    }
    unload()
}
