// SPDX-License-Identifier: GPL-2.0
//! Measures what it costs the freeing thread that its memory is registered: the free callback, and
//! the core's invalidate within it.

use anyhow::{Context, Result};
use nvlab::Layout;
use serde_json::json;

use super::rig::{positive, unload, Rig, Variant};
use crate::lab;
use crate::test::{emit, Env};

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    for variant in [Variant::OursRevocable, Variant::NvMemRevocable] {
        variant.load(&rig)?;
        for size in [64 << 10, 1 << 30] {
            // Run with two values of the NIC's fence: none, and a millisecond.
            for fence_ms in [0, 1] {
                lab::set_nic("fence_us", fence_ms * 1000)?;
                let mut samples = Vec::new();
                for _ in 0..5 {
                    let memory = rig.memory(size, Layout::Contiguous)?;
                    let mr = rig.reg(memory.va(), size)?;
                    lab::clear_trace()?;
                    rig.gpu.reset_accounting()?;
                    memory.free()?;
                    let callback = positive(rig.gpu.accounting()?.get("callback_ns"));
                    let invalidate = lab::trace()?
                        .into_iter()
                        .find(|e| e.callback == "invalidate")
                        .context("the callback did not call invalidate")?;
                    mr.dereg()?;
                    samples.push([callback, invalidate.ns]);
                }
                lab::set_nic("fence_us", 0)?;
                emit(
                    "free",
                    &json!({ "variant": variant.name(), "size": size, "fence_ms": fence_ms, "samples": samples }),
                );
            }
        }
    }
    unload()
}

/// Frees memory with one registration, for the plugin that counts our instructions
/// (ci/qemu/pcie/lab_mark.h). Each row has two sections in the plugin's file.
pub fn counted(_: &Env) -> Result<()> {
    const TIMES: usize = 5;
    let rig = Rig::new()?;
    Variant::OursRevocable.load(&rig)?;
    for size in [64 << 10, 1 << 30] {
        for _ in 0..TIMES {
            let memory = rig.memory(size, Layout::Contiguous)?;
            let mr = rig.reg(memory.va(), size)?;
            memory.free()?;
            mr.dereg()?;
            emit("free_cost", &json!({ "size": size }));
        }
    }
    unload()
}
