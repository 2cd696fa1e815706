// SPDX-License-Identifier: GPL-2.0
//! Mooncake's `transfer_engine_bench`: a target and an initiator, which find each other by the P2P
//! handshake.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use nix::sys::signal::Signal;
use serde_json::json;

use super::program::{
    end_of, left_behind, nothing_stays, programs, version, Choice, Left, Meter, Row, Running, Way, PROGRAMS,
};
use crate::common::{GPU_PAGE, MIB};
use crate::machine::{Level, Mode, RDMA_DEVICE};
use crate::peer::{together, Role};
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

/// Mooncake registers by address, whether somebody is there for that or not, and says the errno.
fn without_a_way(env: &Env) -> Result<()> {
    let refused = run(env, Way::PeerMemory, "write");
    let said = format!("{:#}", refused.err().context("it moved bytes, and there is no module")?);
    ensure!(said.contains("Failed to register memory") && said.contains("Bad address [14]"), "{said}");
    let result = Err("Failed to register memory: Bad address [14]".to_string());
    row(Way::PeerMemory, "write, no way", result)?.write(env, None);
    nothing_stays()
}

/// Starts one side, at this address.
fn start(way: Way, mode: &str, address: &str, more: &[&str]) -> Result<Running> {
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
    let own = [
        format!("--mode={mode}"),
        format!("--local_server_name={address}"),
        format!("--buffer_size={SIZE}"),
        format!("--batch_size={BATCH}"),
        format!("--block_size={BLOCK}"),
        format!("--device_name={RDMA_DEVICE}"),
    ];
    let common = ["--metadata_server=P2PHANDSHAKE", "--protocol=rdma", "--use_vram=true", "--gpu_id=0"];
    let rest = ["--logtostderr", "--init_mem=false", "--threads=1"];
    let args: Vec<&str> =
        own.iter().map(String::as_str).chain(common).chain(rest).chain(more.iter().copied()).collect();
    let program = format!("{PROGRAMS}/mooncake/mooncake/transfer_engine_bench");
    Running::start(&format!("mooncake-{mode}"), &program, &args, &settings)
}

/// Starts a target. Returns where an initiator finds it, too.
fn target(way: Way, address: &str) -> Result<(Running, String)> {
    let mut target = start(way, "target", &format!("{address}:12345"), &[])?;
    let at = target.hear("listening on", LIMIT)?;
    Ok((target, at))
}

/// Runs an initiator to its end.
fn initiate(way: Way, operation: &str, address: &str, target: &str) -> Result<Running> {
    let more = [format!("--segment_id={target}"), format!("--operation={operation}"), "--duration=1".to_string()];
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let mut initiator = start(way, "initiator", &format!("{address}:12346"), &more)?;
    let ended = initiator.wait(LIMIT)?;
    ensure!(ended.success(), "the initiator: {ended}\n{}", end_of(&initiator.log));
    println!("{}", end_of(&initiator.log));
    Ok(initiator)
}

/// Ends a target, and looks at the memory that it had.
fn end(target: &mut Running) -> Result<Left> {
    target.send(Signal::SIGINT)?;
    let ended = target.wait(LIMIT)?;
    ensure!(ended.success(), "the target: {ended}\n{}", end_of(&target.log));
    left(target)
}

fn left(side: &Running) -> Result<Left> {
    left_behind(side.pid(), SIZE)?.pop().context("it had no memory of a GPU")
}

/// Checks that what was moved has arrived, and that nothing else has changed.
fn compare(operation: &str, initiator: &Left, target: &Left) -> Result<()> {
    let (from, to) = if operation == "write" { (initiator, target) } else { (target, initiator) };
    let moved = BATCH * BLOCK / GPU_PAGE;
    ensure!(from.first == from.last, "{operation}: the source has changed");
    ensure!(to.last[..moved] == from.first[..moved], "{operation}: what arrived is not what was sent");
    ensure!(to.last[moved..] == to.first[moved..], "{operation}: bytes landed behind the blocks");
    Ok(())
}

fn row(way: Way, what: &str, result: Result<usize, String>) -> Result<Row<'_>> {
    // Its log does not say.
    let looked_at = if way == Way::DmaBuf { "WITH_NVIDIA_PEERMEM=0".to_string() } else { String::new() };
    let choice = Choice { looked_at, lines: Vec::new() };
    Ok(Row { program: "mooncake", version: version("mooncake")?, way, what, choice, result })
}

fn run(env: &Env, way: Way, operation: &str) -> Result<()> {
    programs(&["mooncake"])?;
    let meter = Meter::start(env)?;
    let (mut server, at) = target(way, "127.0.0.1")?;
    let client = initiate(way, operation, "127.0.0.1", &at).with_context(|| end_of(&server.log))?;
    way.was_foretold("mooncake", server.pid())?;
    let theirs = end(&mut server)?;
    compare(operation, &left(&client)?, &theirs)?;
    let seen = meter.read()?;
    way.was_taken(seen.registered, 2)?;
    row(way, operation, Ok(2 * SIZE))?.write(env, Some(&seen));
    nothing_stays()
}

/// Runs the target on one machine and the initiator on the other.
pub fn two_machines(env: &Env, way: Way, operation: &str) -> Result<()> {
    programs(&["mooncake"])?;
    together(env, &format!("mooncake {operation} {}", way.name()), |peer| {
        let meter = Meter::start(env)?;
        let address = peer.role.address();
        let (own, theirs) = match peer.role {
            Role::Server => {
                let (mut server, at) = target(way, address)?;
                peer.tell("target", json!(at))?;
                peer.hear("done", LIMIT)?;
                let own = end(&mut server)?;
                peer.tell("left", json!([own.first, own.last]))?;
                (own, peer.hear("left", LIMIT)?)
            }
            Role::Client => {
                let at = peer.hear("target", LIMIT)?;
                let client = initiate(way, operation, address, at.as_str().context("an address")?)?;
                peer.tell("done", json!(null))?;
                let own = left(&client)?;
                peer.tell("left", json!([own.first, own.last]))?;
                (own, peer.hear("left", LIMIT)?)
            }
        };
        let (first, last) = serde_json::from_value(theirs).context("CRCs")?;
        let theirs = Left { first, last };
        match peer.role {
            Role::Client => compare(operation, &own, &theirs)?,
            Role::Server => compare(operation, &theirs, &own)?,
        }
        let seen = meter.read()?;
        way.was_taken(seen.registered, 1)?;
        let side = if peer.role == Role::Client { "initiator" } else { "target" };
        row(way, &format!("{operation}, two machines, {side}"), Ok(2 * SIZE))?.write(env, Some(&seen));
        nothing_stays()
    })
}
