// SPDX-License-Identifier: GPL-2.0
//! Mooncake's `transfer_engine_bench`: a target and an initiator, which find each other by the P2P
//! handshake.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use nix::sys::signal::Signal;

use super::{end_of, left_behind, nothing_stays, programs, through_the_module, Left, Row, Running, Way, PROGRAMS};
use crate::common::GPU_PAGE;
use crate::lab;
use crate::machine::{Level, Mode, RDMA_DEVICE};
use crate::perftest::Before;
use crate::suites::MIB;
use crate::test::{in_modes, Env, Test};

const LIMIT: Duration = Duration::from_secs(90);
const SIZE: usize = 4 * MIB;
/// The initiator moves this many blocks of this size, from the beginning on, again and again.
const BATCH: usize = 8;
const BLOCK: usize = MIB / 4;

pub fn tests(nvidia_c: bool) -> Vec<Test> {
    let modes = [Mode::Persistent, Mode::Legacy];
    let mut tests = in_modes(nvidia_c, &modes, "mooncake/write", |env| run(env, Way::PeerMemory, "write"));
    tests.extend(in_modes(nvidia_c, &modes[..1], "mooncake/read", |env| run(env, Way::PeerMemory, "read")));
    tests.push(Test::new("mooncake/dma_buf", Level::Devices, |env| run(env, Way::DmaBuf, "write")));
    tests.push(Test::new("mooncake/preload", Level::Devices, |env| run(env, Way::Preload, "write")));
    tests.push(Test::new("mooncake/without_a_way", Level::Devices, without_a_way));
    tests
}

/// It registers by address, whether somebody is there for that or not, and says the errno.
fn without_a_way(env: &Env) -> Result<()> {
    let refused = run(env, Way::PeerMemory, "write");
    let said = format!("{:#}", refused.err().context("it moved bytes, and there is no module")?);
    ensure!(said.contains("Failed to register memory") && said.contains("Bad address [14]"), "{said}");
    let (looked_at, result) = (String::new(), Err("Failed to register memory: Bad address [14]".to_string()));
    Row { program: "mooncake", way: Way::PeerMemory, what: "write, no way", looked_at, result }.write(env, None, 0)?;
    nothing_stays()
}

fn run(env: &Env, way: Way, operation: &str) -> Result<()> {
    programs()?;
    lab::clear_trace()?;
    let before = Before::now()?;
    let mut settings = BTreeMap::from([
        ("LD_LIBRARY_PATH", format!("{PROGRAMS}/lib")),
        // An emulated machine is slow to answer.
        ("MC_IB_TIMEOUT", "20".to_string()),
        ("MC_LOG_LEVEL", "INFO".to_string()),
    ]);
    match way {
        Way::PeerMemory => {}
        Way::DmaBuf => drop(settings.insert("WITH_NVIDIA_PEERMEM", "0".to_string())),
        Way::Preload => drop(settings.insert("LD_PRELOAD", "libgpumr-preload.so".to_string())),
    }
    let program = format!("{PROGRAMS}/mooncake/mooncake/transfer_engine_bench");
    let (size, batch, block) =
        (format!("--buffer_size={SIZE}"), format!("--batch_size={BATCH}"), format!("--block_size={BLOCK}"));
    let device = format!("--device_name={RDMA_DEVICE}");
    let common = [
        "--metadata_server=P2PHANDSHAKE",
        "--protocol=rdma",
        "--use_vram=true",
        "--gpu_id=0",
        "--logtostderr",
        "--init_mem=false",
        "--threads=1",
        &batch,
        &block,
        &size,
        &device,
    ];
    let target: Vec<&str> =
        ["--mode=target", "--local_server_name=127.0.0.1:12345"].into_iter().chain(common).collect();
    let mut server = Running::start("mooncake-target", &program, &target, &settings)?;
    let at = server.hear("listening on", LIMIT)?;
    println!("target: {at}");
    let segment = format!("--segment_id={at}");
    let how = format!("--operation={operation}");
    let initiator: Vec<&str> =
        ["--mode=initiator", "--local_server_name=127.0.0.1:12346", &segment, &how, "--duration=1"]
            .into_iter()
            .chain(common)
            .collect();
    let mut client = Running::start("mooncake-initiator", &program, &initiator, &settings)?;
    let ended = client.wait(LIMIT)?;
    ensure!(ended.success(), "the initiator: {ended}\n{}\n{}", end_of(&client.log), end_of(&server.log));
    server.send(Signal::SIGINT)?;
    println!("the target: {}", server.wait(LIMIT)?);
    let counts = before.counts()?;
    let registered = through_the_module()?;
    println!("{}\n--\n{}", end_of(&client.log), end_of(&server.log));
    let left = |pid| -> Result<Left> { left_behind(pid, SIZE)?.pop().context("it had no memory of a GPU") };
    let (initiator, target) = (left(client.pid())?, left(server.pid())?);
    let (from, to) = if operation == "write" { (initiator, target) } else { (target, initiator) };
    let moved = BATCH * BLOCK / GPU_PAGE;
    ensure!(from.first == from.last, "{operation}: the source has changed");
    ensure!(to.last[..moved] == from.first[..moved], "{operation}: what arrived is not what was sent");
    ensure!(to.last[moved..] == to.first[moved..], "{operation}: bytes landed behind the blocks");
    way.was_taken(registered, 2)?;
    // Its log does not say.
    let looked_at = settings.get("WITH_NVIDIA_PEERMEM").map_or(String::new(), |v| format!("WITH_NVIDIA_PEERMEM={v}"));
    let row = Row { program: "mooncake", way, what: operation, looked_at, result: Ok(2 * SIZE) };
    row.write(env, Some(&counts), registered)?;
    nothing_stays()
}
