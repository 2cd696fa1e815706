// SPDX-License-Identifier: GPL-2.0
//! Measures how long a process waits for the refusal of a bad host address while another one
//! registers 64 GiB of GPU memory. The core asks the clients about both, one after the other.

use std::time::Instant;

use anyhow::{Context, Result};
use nvlab::{Layout, Memory, Reservation};
use serde_json::json;

use super::rig::{ns, unload, Cost, Rig, Variant};
use crate::helper::Helper;
use crate::test::{emit, Env};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 << 30;

/// The modules and lengths that are measured. NVIDIA's module does not register a range of several
/// allocations.
const CASES: [(Variant, u64); 3] =
    [(Variant::OursPersistent, 2 * MIB), (Variant::OursPersistent, SIZE), (Variant::NvMem, SIZE)];

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    for (variant, segment) in CASES {
        variant.load(&rig)?;
        let addresses = Reservation::new(0, SIZE, None)?;
        let at = |i: u64| addresses.va() + i * segment;
        let memory = (0..SIZE / segment).map(|i| -> Result<Memory> {
            let memory = rig.rm.request(0, segment).layout(Layout::Contiguous).unmapped().alloc()?;
            memory.register_at(at(i))?;
            Ok(memory)
        });
        let memory: Vec<Memory> = memory.collect::<Result<_>>().context("segments")?;
        Cost::V100.set(&rig.gpu)?;
        rig.gpu.cost("sleep", 1)?;
        let mut other = Helper::start(&["bad-addresses"])?;
        let begin = Instant::now();
        let mr = rig.reg(addresses.va(), SIZE)?;
        let elapsed = begin.elapsed();
        let said = other.ask("stop")?;
        other.finish()?;
        mr.dereg()?;
        rig.gpu.reset_cost()?;
        let numbers = said.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
        let [longest_us, attempts] = numbers.with_context(|| said.clone())?[..] else {
            anyhow::bail!("the other process says {said:?}");
        };
        emit(
            "bad_addresses",
            &json!({
                "variant": variant.name(), "segments": memory.len(), "size": SIZE,
                "registration": ns(elapsed.as_nanos()), "longest_us": longest_us, "attempts": attempts,
            }),
        );
    }
    unload()
}
