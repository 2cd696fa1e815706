// SPDX-License-Identifier: GPL-2.0
//! Tests the module on kernels that the lab's RDMA stack is not made for, between minimal versions
//! of both neighbours (ci/qemu/bare).

use std::fs;

use anyhow::{ensure, Context, Result};

use super::{end, loading};
use crate::machine::{number, Level};
use crate::modules::{self, PEERMEM};
use crate::test::{Env, Suite, Test};

const BARE: &str = "/sys/kernel/debug/lab_bare";

pub fn suite() -> Suite {
    Suite {
        name: "bare",
        tests: vec![
            Test::new("installed", Level::Any, installed),
            Test::new("again_and_again", Level::Any, loads).limit(300),
            Test::new("persistent", Level::Any, persistent),
            Test::new("revocable", Level::Any, revocable),
            Test::new("taint", Level::Any, end::taint),
        ],
    }
}

fn installed(env: &Env) -> Result<()> {
    modules::modprobe("lab_bare", &[])?;
    loading::installed_wins(env)
}

fn loads(env: &Env) -> Result<()> {
    modules::modprobe("lab_bare", &[])?;
    loading::again_and_again(env)
}

/// Makes one registration, from acquire to release. With `free`, the memory is freed while it is
/// mapped.
fn register(how: &str) -> Result<()> {
    fs::write(format!("{BARE}/register"), how).with_context(|| format!("a registration ({how})"))?;
    let pins = number(&format!("{BARE}/live_pins"))?;
    ensure!(pins == 0, "{pins} pins left");
    Ok(())
}

fn persistent(_: &Env) -> Result<()> {
    modules::modprobe("nvidia-peermem", &[])?;
    register("keep")?;
    // A persistent pin outlives the memory.
    register("free")?;
    let told = number(&format!("{BARE}/invalidations"))?;
    ensure!(told == 0, "the core was told of {told} revocations of a persistent pin");
    modules::rmmod(PEERMEM)
}

fn revocable(_: &Env) -> Result<()> {
    modules::modprobe("nvidia-peermem", &["persistent_api_support=0"])?;
    register("keep")?;
    register("free")?;
    let told = number(&format!("{BARE}/invalidations"))?;
    ensure!(told == 1, "the core was told {told} times that the memory goes, wanted once");
    modules::rmmod(PEERMEM)
}
