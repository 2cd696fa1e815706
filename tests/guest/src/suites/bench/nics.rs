// SPDX-License-Identifier: GPL-2.0
//! Measures what a second NIC's registration of a buffer costs while the first NIC's lives.

use std::sync::Arc;

use anyhow::Result;
use nvlab::Layout;
use serde_json::json;

use super::rig::{layout_name, unload, Cost, Rig, Round, Variant};
use crate::machine::SecondNic;
use crate::test::{emit, Env};
use crate::verbs::{Device, Pd};

const ROUNDS: usize = 5;

pub fn all(_: &Env) -> Result<()> {
    let mut rig = Rig::new()?;
    let second = SecondNic::add()?;
    let pds = [Arc::clone(&rig.pd), Pd::new(&Device::open(second.name())?)?];
    for variant in [Variant::OursPersistent, Variant::NvMem] {
        variant.load(&rig)?;
        for (size, layout) in
            [(64 << 10, Layout::Contiguous), (1 << 30, Layout::Contiguous), (1 << 30, Layout::Broken2M)]
        {
            let memory = rig.memory(size, layout)?;
            // Register once before, because the first meeting of a GPU and a NIC happens once per
            // module.
            rig.pd = Arc::clone(&pds[1]);
            rig.round(memory.va(), size)?;
            rig.pd = Arc::clone(&pds[0]);
            Cost::V100.set(&rig.gpu)?;
            for nics in [1, 2] {
                let live = (nics == 2).then(|| rig.reg(memory.va(), size)).transpose()?;
                rig.pd = Arc::clone(&pds[nics - 1]);
                let rounds = (0..ROUNDS).map(|_| rig.round(memory.va(), size)).collect::<Result<Vec<_>>>()?;
                rig.pd = Arc::clone(&pds[0]);
                if let Some(mr) = live {
                    mr.dereg()?;
                }
                emit(
                    "nics",
                    &json!({
                        "variant": variant.name(), "size": size, "layout": layout_name(layout), "nics": nics,
                        "samples": rounds.iter().map(Round::sample).collect::<Vec<_>>(),
                    }),
                );
            }
            Cost::Zero.set(&rig.gpu)?;
            memory.free()?;
        }
    }
    unload()
}
