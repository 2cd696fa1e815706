// SPDX-License-Identifier: GPL-2.0

//! NVIDIA's C module, which tests compare with ours: driver 550's from Debian or, with
//! `NVIDIA_SRC=<dir>`, that of a driver source which the user names.

use crate::ctx::Lab;
use anyhow::{Context, Result};
use std::fs;

/// Returns whether the module comes from the user's driver source.
pub fn is_users() -> bool {
    std::env::var_os("NVIDIA_SRC").is_some_and(|dir| !dir.is_empty())
}

/// Reads a file of the source that `ci/qemu/artefacts.mk` built the module from.
fn read(lab: &Lab, file: &str) -> Result<String> {
    let source = lab.build.join("sources").join(if is_users() { "nvidia_src" } else { "nvidia_c-source" });
    let path = source.join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns whether the module has the parameter that driver 560 introduced, and so pins
/// persistently by default.
pub fn is_persistent(lab: &Lab) -> Result<bool> {
    Ok(read(lab, "nvidia-peermem.c")?.contains("module_param(persistent_api_support"))
}
