// SPDX-License-Identifier: GPL-2.0
//! libfabric's own tests over its verbs provider: GPU memory on both sides, and each byte verified by
//! the test itself (`-v`).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::program::{end_of, nothing_stays, Choice, Meter, Row, Running, Way};
use crate::init;
use crate::machine::{wait_for, Level, Mode, RDMA_DEVICE};
use crate::modules;
use crate::peer::Role;
use crate::test::{in_modes, Env, Suite, Test};

const LIMIT: Duration = Duration::from_secs(90);
const SIZE: usize = 64 << 10;
const TIMES: usize = 10;
/// The series of the source that it is built from (ci/qemu/artefacts.mk).
const VERSION: &str = "2.1";

pub fn suite(nvidia_c: bool) -> Suite {
    let modes = [Mode::Persistent, Mode::Legacy];
    let mut tests = in_modes(nvidia_c, &modes, "fi_msg_bw", |env| run(env, Way::PeerMemory, "fi_msg_bw"));
    tests.extend(in_modes(nvidia_c, &modes, "fi_msg_pingpong", |env| run(env, Way::PeerMemory, "fi_msg_pingpong")));
    tests.push(Test::new("fi_msg_bw/dma_buf", Level::Devices, |env| run(env, Way::DmaBuf, "fi_msg_bw")));
    tests.push(Test::new("fi_msg_pingpong/dma_buf", Level::Devices, |env| run(env, Way::DmaBuf, "fi_msg_pingpong")));
    Suite { name: "fabtests", tests }
}

/// libfabric gives GPU memory to NICs of that name alone (2.1, prov/verbs/src/verbs_info.c,
/// `vrb_hmem_supported`).
const NAME: &str = "mlx5_lab";

/// The NIC under another name, until this is dropped.
struct Named;

impl Named {
    fn new() -> Result<Self> {
        init::run("rdma", &["dev", "set", RDMA_DEVICE, "name", NAME])?;
        Ok(Self)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // Without its name the next test finds no NIC, and says so.
        let _ = init::run("rdma", &["dev", "set", NAME, "name", RDMA_DEVICE]);
    }
}

fn run(env: &Env, way: Way, program: &str) -> Result<()> {
    modules::modprobe("rdma_ucm", &[])?;
    let meter = Meter::start(env)?;
    let address = Role::Server.address();
    let (size, times) = (SIZE.to_string(), TIMES.to_string());
    let args = ["-p", "verbs", "-D", "cuda", "-v", "-S", &size, "-I", &times, "-w", "1"];
    let dma_buf = if way == Way::DmaBuf { "1" } else { "0" };
    let settings = BTreeMap::from([
        ("FI_HMEM_CUDA_USE_DMABUF", dma_buf.to_string()),
        ("FI_LOG_LEVEL", "info".to_string()),
        ("FI_LOG_PROV", "verbs,core".to_string()),
    ]);
    let of_server: Vec<&str> = args.iter().copied().chain(["-s", address]).collect();
    let of_client: Vec<&str> = args.iter().copied().chain([address]).collect();
    let named = Named::new()?;
    let mut server = Running::start("fabtests-server", program, &of_server, &settings)?;
    wait_for("the server", || {
        init::run("rdma", &["resource", "show", "cm_id"]).is_ok_and(|ids| ids.contains("LISTEN"))
    })
    .with_context(|| end_of(&server.log))?;
    way.was_foretold("libfabric", server.pid())?;
    let mut client = Running::start("fabtests-client", program, &of_client, &settings)?;
    let ended = [client.wait(LIMIT)?, server.wait(LIMIT)?];
    let said = || format!("{}\n--\n{}", end_of(&client.log), end_of(&server.log));
    ensure!(ended.iter().all(|status| status.success()), "client {}, server {}\n{}", ended[0], ended[1], said());
    drop(named);
    let seen = meter.read()?;
    let wanted = (SIZE * TIMES) as u64;
    let wrote = seen.counts.wrote;
    ensure!(wrote >= wanted, "{wrote} bytes were written through BAR addresses, wanted {wanted}");
    way.was_taken(seen.registered, 2)?;
    let said = client.said();
    let own = ["dmabuf support is", "Failover on", "cuda dmabuf support status", "ib_register_peer_memory_client"];
    let lines: Vec<String> =
        said.lines().filter(|line| own.iter().any(|own| line.contains(own))).map(str::to_string).collect();
    let from_own = |line: &String| own.iter().find_map(|own| Some(line[line.find(own)?..].trim().to_string()));
    let mut looked: Vec<String> = lines.iter().filter_map(from_own).collect();
    looked.dedup();
    let looked_at = format!("FI_HMEM_CUDA_USE_DMABUF={dma_buf}; {}", looked.join("; "));
    let (version, choice, result) = (VERSION.to_string(), Choice { looked_at, lines }, Ok(SIZE * TIMES));
    let row = Row { program: "libfabric", version, way, what: program, choice, result };
    row.write(env, Some(&seen));
    nothing_stays()
}
