// SPDX-License-Identifier: GPL-2.0
//! `ucx_perftest`: that of the wheel `libucx-cu12`, on the UCX of NIXL's wheel, and Debian 12's, built with
//! CUDA (ci/qemu/ucx.sh).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};

use super::program::{
    doctor_says, end_of, left_behind, nothing_stays, programs, ucx_chose, ucx_settings, version, wheels_libraries,
    Left, Meter, Row, Running, Seen, Way, PROGRAMS,
};
use crate::common::MIB;
use crate::lab;
use crate::machine::{wait_for, Level, Mode};
use crate::perftest::tcp_listens;
use crate::test::{in_modes, Env, Suite, Test};

const LIMIT: Duration = Duration::from_secs(90);
/// More than the blocks of 2 MiB in which CUDA gives out memory: smaller buffers share a block with each
/// other, or with what UCX allocates for itself.
const SIZE: usize = 3 * MIB;
const TIMES: usize = 4;

/// `ucp_put_bw` and `ucp_get` are left out: on this NIC they wait for ever, with host memory, too.
const TESTS: [&str; 3] = ["tag_bw", "ucp_am_bw", "ucp_put_lat"];

pub fn tests(nvidia_c: bool) -> Vec<Test> {
    let modes = [Mode::Persistent, Mode::Legacy];
    let mut tests = in_modes(nvidia_c, &modes, "ucx_perftest", |env| all(env, Way::PeerMemory));
    tests.extend(in_modes(nvidia_c, &modes[..1], "ucx_perftest/without_cache", without_cache));
    tests.push(Test::new("ucx_perftest/dma_buf", Level::Devices, |env| all(env, Way::DmaBuf)));
    tests
}

/// Makes the suite of Debian 12's UCX, which knows no dma-buf and looks for the module in one place
/// only.
pub fn suite(nvidia_c: bool) -> Suite {
    let modes = [Mode::Persistent, Mode::Legacy];
    let tests = in_modes(nvidia_c, &modes, "ucx_perftest", debians);
    Suite { name: "ucx_cuda", tests: tests.into_iter().map(|test| test.limit(600)).collect() }
}

fn all(env: &Env, way: Way) -> Result<()> {
    TESTS.iter().try_for_each(|test| of_wheel(env, way, test, &[]).with_context(|| test.to_string()))
}

/// Moves bytes without UCX's cache of registrations and its hooks in CUDA's memory calls. (The
/// program registers its buffers itself, once, so the number is the same.)
fn without_cache(env: &Env) -> Result<()> {
    of_wheel(env, Way::PeerMemory, TESTS[0], &[("UCX_RCACHE_ENABLE", "n"), ("UCX_MEM_EVENTS", "n")])
}

fn of_wheel(env: &Env, way: Way, test: &str, more: &[(&'static str, &str)]) -> Result<()> {
    programs(&["nixl", "ucx"])?;
    let program = format!("{PROGRAMS}/ucx/libucx/bin/ucx_perftest");
    let settings = |log: &str| {
        let mut settings = ucx_settings(way, log);
        settings.insert("LD_LIBRARY_PATH", wheels_libraries());
        settings.extend(more.iter().map(|(name, value)| (*name, value.to_string())));
        settings
    };
    let seen = run(env, &program, test, settings, |pid| way.was_foretold("ucx", pid))?;
    way.was_taken(seen.registered, 1)?;
    let what = if more.is_empty() { test.to_string() } else { format!("{test}, no cache") };
    let choice = ucx_chose(LOGS[1]);
    let row = Row { program: "ucx", version: version("ucx")?, way, what: &what, choice, result: Ok(SIZE) };
    row.write(env, Some(&seen));
    nothing_stays()
}

/// Names the tests that Debian 12's passes with GPU memory that no NIC can reach, too.
const DEBIANS_MESSAGES: [&str; 2] = ["tag_bw", "ucp_am_bw"];

/// Names the tests that it is asked for only where it registers GPU memory. With other GPU memory `ucp_put_lat` waits for
/// ever.
const DEBIANS_RMA: [&str; 3] = ["ucp_put_lat", "ucp_put_bw", "ucp_get"];

/// Debian 12's, on the way that it has. Where the core has no folder of peers it copies through host
/// memory, whatever module is loaded, and says nothing: doctor does.
fn debians(env: &Env) -> Result<()> {
    /// The series of the source that it is built from (ci/qemu/artefacts.mk).
    const VERSION: &str = "1.13.1";
    let finds = lab::has_memory_peers();
    let rma = if finds { &DEBIANS_RMA[..] } else { &[] };
    for test in DEBIANS_MESSAGES.iter().chain(rma) {
        let foretold = |pid| {
            let said = doctor_says("ucx", pid)?;
            println!("doctor: {said}");
            ensure!(finds || said.contains("looks only at /sys/kernel/mm/memory_peers"), "doctor says: {said}");
            Ok(())
        };
        let settings = |log: &str| {
            let mut settings = ucx_settings(Way::PeerMemory, log);
            // This version takes a datagram for one of IPv4 only if the completion's service level says so, as
            // mlx5's does. Software NICs leave it 0, as irdma does, and UCX then drops each datagram without
            // a word (openucx/ucx#10209).
            settings.insert("UCX_UD_VERBS_ETH_DGID_CHECK", "n".to_string());
            settings
        };
        let seen = run(env, "ucx_perftest", test, settings, foretold).context(test)?;
        let choice = ucx_chose(LOGS[1]);
        let said = if finds { "enabled" } else { "disabled" };
        ensure!(choice.looked_at == format!("cuda GPUDirect RDMA is {said}"), "{test}: UCX says {:?}", choice.lines);
        ensure!((seen.registered > 0) == finds, "{test}: {} registrations went through the module", seen.registered);
        let what = if finds { test.to_string() } else { format!("{test}, through host memory") };
        let (version, result) = (VERSION.to_string(), Ok(SIZE));
        Row { program: "ucx", version, way: Way::PeerMemory, what: &what, choice, result }.write(env, Some(&seen));
        nothing_stays()?;
    }
    Ok(())
}

/// The log of each of the two processes.
const LOGS: [&str; 2] = ["/tmp/ucx-server.log", "/tmp/ucx-client.log"];

/// Runs a test between two processes, and compares what arrived. `running` is called with the
/// server's process while both run.
fn run(
    env: &Env,
    program: &str,
    test: &str,
    settings: impl Fn(&str) -> BTreeMap<&'static str, String>,
    running: impl Fn(u32) -> Result<()>,
) -> Result<Seen> {
    let meter = Meter::start(env)?;
    let port = fastrand::u16(20_000..32_000);
    let (size, times, at) = (SIZE.to_string(), TIMES.to_string(), port.to_string());
    let args = ["-t", test, "-m", "cuda", "-s", &size, "-n", &times, "-w", "1", "-p", &at];
    let mut server = Running::start("perftest-server", program, &args, &settings(LOGS[0]))?;
    wait_for("ucx_perftest's server", || tcp_listens(port)).with_context(|| end_of(&server.log))?;
    running(server.pid())?;
    let with_server: Vec<&str> = ["127.0.0.1"].into_iter().chain(args).collect();
    let mut client = Running::start("perftest-client", program, &with_server, &settings(LOGS[1]))?;
    let ended = [client.wait(LIMIT)?, server.wait(LIMIT)?];
    let said = || format!("{}\n{}\n{}", end_of(&client.log), end_of(&server.log), end_of(LOGS[1]));
    ensure!(ended.iter().all(|status| status.success()), "client {}, server {}\n{}", ended[0], ended[1], said());
    let seen = meter.read()?;
    println!("{}", end_of(&client.log));
    // Each has a buffer to send and one to receive.
    let left = |pid| -> Result<[Left; 2]> {
        let all = left_behind(pid, SIZE)?;
        let many = all.len();
        all.try_into().map_err(|_| anyhow!("process {pid} had {many} buffers of {SIZE} bytes, not two"))
    };
    let ([sent, _], [_, received]) = (left(client.pid())?, left(server.pid())?);
    ensure!(received.last == sent.last, "what arrived is not what was sent");
    let target = if test == "ucp_get" { sent } else { received };
    ensure!(target.first != target.last, "nothing arrived");
    Ok(seen)
}
