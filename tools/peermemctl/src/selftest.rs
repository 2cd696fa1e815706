// SPDX-License-Identifier: GPL-2.0
//! `selftest`.

use crate::answer::Selftest;
use crate::machine::Machine;
use anyhow::{bail, Result};

pub fn run(_machine: &Machine, _device: Option<&str>, _gpu: i32) -> Result<Selftest> {
    bail!("not yet")
}
