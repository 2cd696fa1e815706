// SPDX-License-Identifier: GPL-2.0
//! Measures the largest HCA page that the RDMA core finds in a table, on a core that merges
//! neighbouring entries and on one that does not.

use anyhow::Result;
use nvlab::Layout;
use serde_json::json;

use super::rig::{layout_name, unload, Rig, Variant};
use crate::lab;
use crate::machine::{load_devices, peer_memory_core, unload_devices};
use crate::modules;
use crate::test::{emit, Env};

pub fn all(_: &Env) -> Result<()> {
    const SIZE: u64 = 1 << 30;
    for (generation, merges) in [("25.10", true), ("24.10", false)] {
        unload_devices()?;
        modules::modprobe(&peer_memory_core()?, &[&format!("generation={generation}")])?;
        load_devices()?;
        let rig = Rig::new()?;
        for variant in [Variant::OursPersistent, Variant::NvMem] {
            variant.load(&rig)?;
            for layout in [Layout::Contiguous, Layout::Broken2M, Layout::Broken64K] {
                let memory = rig.memory(SIZE, layout)?;
                rig.reg(memory.va(), SIZE)?.dereg()?;
                let page = lab::nic_stat("last_page_size")?;
                emit(
                    "pages",
                    &json!({
                        "variant": variant.name(), "generation": generation, "merges": merges, "size": SIZE,
                        "layout": layout_name(layout), "page": page, "entries": lab::nic_stat("last_sg_entries")?,
                    }),
                );
                memory.free()?;
            }
        }
        unload()?;
    }
    unload_devices()
}
