// SPDX-License-Identifier: GPL-2.0
//! Makes registrations between two marks, for the plugin that counts instructions
//! (ci/qemu/profile).

use std::fs;

use anyhow::{Context, Result};
use nvlab::Layout;
use serde_json::json;

use super::rig::{layout_name, unload, Rig, Variant};
use crate::arch::mark;
use crate::test::{emit, Env};

/// Marks the place from which instructions count.
fn begin() {
    mark!(1);
}

/// Marks the place up to which instructions count.
fn end() {
    mark!(2);
}

pub fn all(_: &Env) -> Result<()> {
    let rig = Rig::new()?;
    for variant in [Variant::OursPersistent, Variant::OursRevocable, Variant::NvMem] {
        variant.load(&rig)?;
        symbols(variant)?;
        for (size, layout) in [
            (64 << 10, Layout::Contiguous),
            (1 << 30, Layout::Contiguous),
            (1 << 30, Layout::Broken2M),
            (1 << 30, Layout::Broken64K),
        ] {
            let memory = rig.memory(size, layout)?;
            // Register once before, so that what grows only once has grown.
            rig.reg(memory.va(), size)?.dereg()?;
            begin();
            rig.reg(memory.va(), size)?.dereg()?;
            end();
            emit("profile", &json!({ "variant": variant.name(), "size": size, "layout": layout_name(layout) }));
            memory.free()?;
        }
    }
    unload()
}

/// Sends the addresses of functions of the kernel and of modules to the host.
fn symbols(variant: Variant) -> Result<()> {
    let text = fs::read_to_string("/proc/kallsyms").context("read /proc/kallsyms")?;
    let functions: Vec<(&str, &str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            let module = words.next().unwrap_or("").trim_matches(['[', ']']);
            let ours = ["nvidia_peermem", "nvidia", "ib_core", "ib_uverbs", "rdma_rxe"].contains(&module);
            (ours && kind.eq_ignore_ascii_case("t")).then_some((address, name, module))
        })
        .collect();
    emit("functions", &json!({ "variant": variant.name(), "functions": functions }));
    Ok(())
}
