// SPDX-License-Identifier: GPL-2.0
//! Measures what a registration costs while many others live.

use anyhow::Result;
use nvlab::Layout;
use serde_json::json;

use super::rig::{unload, Rig, Round, Variant};
use crate::test::{emit, Env};

const SIZE: u64 = 64 << 10;
const STEPS: [usize; 4] = [1, 1_000, 10_000, 100_000];
const ROUNDS: usize = 15;

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    let most = STEPS[STEPS.len() - 1];
    for variant in [Variant::OursPersistent, Variant::OursRevocable, Variant::NvMem] {
        variant.load(&rig)?;
        let memory = rig.memory((most as u64 + 1) * SIZE, Layout::Contiguous)?;
        let at = |i: usize| memory.va() + i as u64 * SIZE;
        let mut live = Vec::with_capacity(most);
        for step in STEPS {
            while live.len() < step {
                live.push(rig.reg(at(live.len()), SIZE)?);
            }
            let rounds = (0..ROUNDS).map(|_| rig.round(at(most), SIZE)).collect::<Result<Vec<_>>>()?;
            emit(
                "live",
                &json!({
                    "variant": variant.name(), "live": step,
                    "samples": rounds.iter().map(Round::sample).collect::<Vec<_>>(),
                }),
            );
        }
        // Begin with the newest, as the provider's stand-in finds them.
        while let Some(mr) = live.pop() {
            mr.dereg()?;
        }
        memory.free()?;
    }
    unload()
}
