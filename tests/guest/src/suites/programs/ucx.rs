// SPDX-License-Identifier: GPL-2.0
//! `ucx_perftest` of the wheel `libucx-cu12`, on the UCX of NIXL's wheel.

use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};

use super::{
    end_of, left_behind, nothing_stays, programs, ucx_chose, ucx_settings, version, Left, Meter, Row, Running, Way,
    PROGRAMS,
};
use crate::machine::{wait_for, Level, Mode};
use crate::perftest::tcp_listens;
use crate::suites::MIB;
use crate::test::{in_modes, Env, Test};

const LIMIT: Duration = Duration::from_secs(90);
const SIZE: usize = MIB;
const TIMES: usize = 4;

/// Not `ucp_put_bw` and `ucp_get`: on this NIC they wait for ever, with host memory, too.
const TESTS: [&str; 3] = ["tag_bw", "ucp_am_bw", "ucp_put_lat"];

pub fn tests(nvidia_c: bool) -> Vec<Test> {
    let modes = [Mode::Persistent, Mode::Legacy];
    let mut tests = in_modes(nvidia_c, &modes, "ucx_perftest", |env| all(env, Way::PeerMemory));
    tests.extend(in_modes(nvidia_c, &modes[..1], "ucx_perftest/without_cache", without_cache));
    tests.push(Test::new("ucx_perftest/dma_buf", Level::Devices, |env| all(env, Way::DmaBuf)));
    tests
}

fn all(env: &Env, way: Way) -> Result<()> {
    TESTS.iter().try_for_each(|test| run(env, way, test, &[]).with_context(|| test.to_string()))
}

/// Without UCX's cache of registrations and its hooks in CUDA's memory calls. (The program registers its
/// buffers itself, once, so the number is the same.)
fn without_cache(env: &Env) -> Result<()> {
    run(env, Way::PeerMemory, TESTS[0], &[("UCX_RCACHE_ENABLE", "n"), ("UCX_MEM_EVENTS", "n")])
}

fn run(env: &Env, way: Way, test: &str, more: &[(&'static str, &str)]) -> Result<()> {
    programs()?;
    let meter = Meter::start(env)?;
    let port = fastrand::u16(20_000..32_000);
    let (size, times, at) = (SIZE.to_string(), TIMES.to_string(), port.to_string());
    let program = format!("{PROGRAMS}/ucx/libucx/bin/ucx_perftest");
    let args = ["-t", test, "-m", "cuda", "-s", &size, "-n", &times, "-w", "1", "-p", &at];
    let logs = ["/tmp/ucx-server.log", "/tmp/ucx-client.log"];
    let settings = |log| {
        let mut settings = ucx_settings(way, log);
        settings.extend(more.iter().map(|(name, value)| (*name, value.to_string())));
        settings
    };
    let mut server = Running::start("perftest-server", &program, &args, &settings(logs[0]))?;
    wait_for("ucx_perftest's server", || tcp_listens(port))?;
    way.was_foretold("ucx", server.pid())?;
    let with_server: Vec<&str> = ["127.0.0.1"].into_iter().chain(args).collect();
    let mut client = Running::start("perftest-client", &program, &with_server, &settings(logs[1]))?;
    let ended = [client.wait(LIMIT)?, server.wait(LIMIT)?];
    let said = || format!("{}\n{}\n{}", end_of(&client.log), end_of(&server.log), end_of(logs[1]));
    ensure!(ended.iter().all(|status| status.success()), "client {}, server {}\n{}", ended[0], ended[1], said());
    let seen = meter.read()?;
    println!("{}", end_of(&client.log));
    // Each has a buffer to send and one to receive.
    let left = |pid| -> Result<[Left; 2]> {
        left_behind(pid, SIZE)?.try_into().map_err(|_| anyhow!("a process had not two buffers of {SIZE} bytes"))
    };
    let ([sent, _], [_, received]) = (left(client.pid())?, left(server.pid())?);
    ensure!(received.last == sent.last, "what arrived is not what was sent");
    ensure!(received.first != received.last, "nothing arrived");
    way.was_taken(seen.registered, 1)?;
    let what = if more.is_empty() { test.to_string() } else { format!("{test}, no cache") };
    let choice = ucx_chose(logs[1]);
    let row = Row { program: "ucx", version: version("ucx")?, way, what: &what, choice, result: Ok(SIZE) };
    row.write(env, Some(&seen));
    nothing_stays()
}
