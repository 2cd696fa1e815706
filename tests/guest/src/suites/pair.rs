// SPDX-License-Identifier: GPL-2.0
//! Runs real perftest between two machines with a GPU each. Both machines run every test. Each
//! looks at its own GPU and NIC, they tell each other what they saw, and both judge.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use crate::gpu;
use crate::lab;
use crate::machine::{Mode, RDMA_DEVICE};
use crate::modules;
use crate::peer::{together, Peer, Role};
use crate::perftest::{
    arrived, chunks, expected_bytes, mb_s, with_rate, Before, Chunks, Counts, Report, Run, Side, Sizes, PATIENCE,
};
use crate::test::{emit, in_modes, Env, Suite, Test};

/// The number of messages of a run. Each packet passes through two emulated machines.
const ITERATIONS: usize = 8;

/// The client sends this word when the run has to be repeated.
const TOO_EARLY: &str = "too early";

/// The way in which perftest's two sides find each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connect {
    Tcp,
    RdmaCm,
}

pub fn suite(nvidia_c: bool) -> Suite {
    // Load each mode once, because some kernels do not unload a module that had revocable pins.
    let mut tests = gpu_tests(nvidia_c, Mode::Persistent);
    // Host memory does not pass through the module.
    let mode = &Mode::all(nvidia_c)[..1];
    for (name, run) in [
        ("write_lat_wants_host_memory", write_lat_wants_host_memory as fn(&Env) -> Result<()>),
        ("host/ib_write_lat", |env| host_run(env, "ib_write_lat", Connect::Tcp)),
        ("host/rdma_cm/ib_write_lat", |env| host_run(env, "ib_write_lat", Connect::RdmaCm)),
    ] {
        tests.extend(in_modes(nvidia_c, mode, name, run).into_iter().map(|mut t| {
            t.name = name.into();
            t
        }));
    }
    tests.extend(gpu_tests(nvidia_c, Mode::Legacy));
    // The limit allows for four runs, and for the other machine to arrive.
    Suite { name: "pair", tests: tests.into_iter().map(|t| t.limit(600)).collect() }
}

fn gpu_tests(nvidia_c: bool, mode: Mode) -> Vec<Test> {
    let tests = [
        ("ib_write_bw", (|env| gpu_run(env, "ib_write_bw", Connect::Tcp)) as fn(&Env) -> Result<()>),
        ("ib_read_bw", |env| gpu_run(env, "ib_read_bw", Connect::Tcp)),
        ("ib_send_bw", |env| gpu_run(env, "ib_send_bw", Connect::Tcp)),
        ("ib_send_lat", |env| gpu_run(env, "ib_send_lat", Connect::Tcp)),
        ("ib_read_lat", |env| gpu_run(env, "ib_read_lat", Connect::Tcp)),
        ("rdma_cm/ib_write_bw", |env| gpu_run(env, "ib_write_bw", Connect::RdmaCm)),
        ("rdma_cm/ib_read_bw", |env| gpu_run(env, "ib_read_bw", Connect::RdmaCm)),
        ("rdma_cm/ib_send_bw", |env| gpu_run(env, "ib_send_bw", Connect::RdmaCm)),
        ("rdma_cm/ib_send_lat", |env| gpu_run(env, "ib_send_lat", Connect::RdmaCm)),
    ];
    tests.into_iter().flat_map(|(name, run)| in_modes(nvidia_c, &[mode], name, run)).collect()
}

/// Starts this machine's side and waits for its end, while the other side is well. Returns `None`
/// if the client came too early.
fn perftest(run: &mut Run, peer: &mut Peer) -> Result<Option<Side>> {
    if run.rdma_cm {
        modules::modprobe("rdma_ucm", &[])?;
    }
    let mut side = match peer.role {
        Role::Server => {
            let side = run.start_server()?;
            peer.tell("listening", json!(run.port))?;
            side
        }
        Role::Client => {
            let port = peer.hear("listening", PATIENCE)?;
            run.port = u16::try_from(port.as_u64().context("a port")?)?;
            run.start_client(peer.role.other().address())?
        }
    };
    let status = loop {
        if let Some(status) = side.child.try_wait()? {
            break status;
        }
        if let Err(e) = peer.is_well() {
            side.child.kill()?;
            side.child.wait()?;
            bail!("{e:#}\n{}", side.said());
        }
        if peer.has_said(TOO_EARLY) {
            side.child.kill()?;
            side.child.wait()?;
            return Ok(None);
        }
        sleep(Duration::from_millis(20));
    };
    if peer.role == Role::Client && !status.success() && run.came_too_early(&side.said()) {
        println!("perftest's client asked before its server listened");
        peer.tell(TOO_EARLY, Value::Null)?;
        return Ok(None);
    }
    ensure!(status.success(), "{} as {}: {status}\n{}", run.program, side.who, side.said());
    Ok(Some(side))
}

/// The report of one machine to the other after a run.
struct Seen {
    counts: Counts,
    chunks: Chunks,
    /// The client's report.
    report: Option<(u64, Option<f64>)>,
}

impl Seen {
    fn to_json(&self) -> Value {
        json!({ "counts": self.counts.to_json(), "chunks": self.chunks, "report": self.report })
    }

    fn from_json(value: &Value) -> Result<Self> {
        Ok(Self {
            counts: Counts::from_json(&value["counts"])?,
            chunks: serde_json::from_value(value["chunks"].clone()).context("chunks")?,
            report: serde_json::from_value(value["report"].clone()).context("report")?,
        })
    }
}

fn name(connect: Connect) -> &'static str {
    match connect {
        Connect::Tcp => "tcp",
        Connect::RdmaCm => "rdma_cm",
    }
}

fn gpu_run(env: &Env, program: &str, connect: Connect) -> Result<()> {
    let what = format!("{} {program} {}", env.mode()?.name(), name(connect));
    together(env, &what, |peer| with_rate(|| gpu_once(env, peer, program, connect)))
}

fn gpu_once(env: &Env, peer: &mut Peer, program: &str, connect: Connect) -> Result<Option<f64>> {
    let sizes = Sizes::of(env, ITERATIONS)?;
    let mut run = Run::new(program, &sizes, true);
    run.rdma_cm = connect == Connect::RdmaCm;
    let before = Before::now()?;
    // Both counters must be at zero before either NIC moves a byte.
    peer.tell("zero", Value::Null)?;
    peer.hear("zero", PATIENCE)?;

    let Some(side) = perftest(&mut run, peer)? else { return Ok(None) };

    let report = match peer.role {
        Role::Server => None,
        Role::Client => Some(run.report(&side.said())?).map(|Report { bytes, rate }| (bytes, rate)),
    };
    let own = Seen { counts: before.counts()?, chunks: chunks(side.who, side.child.id(), sizes.message)?, report };
    peer.tell("seen", own.to_json())?;
    let theirs = Seen::from_json(&peer.hear("seen", PATIENCE)?)?;
    let (server, client) = match peer.role {
        Role::Server => (own, theirs),
        Role::Client => (theirs, own),
    };
    let (bytes, rate) = client.report.context("the client's report")?;
    let crc = arrived(program, &server.chunks, &client.chunks);
    if let (Role::Client, Some(rate)) = (peer.role, rate) {
        let latency = program.ends_with("_lat");
        emit(
            "pair",
            &json!({
                "mode": env.mode()?.name(), "test": program, "connect": name(connect), "buffer": "gpu",
                "mb_s": (!latency).then(|| mb_s(rate)), "usec": latency.then_some(rate),
                "server": side_json(&server.counts), "client": side_json(&client.counts),
                "chunks": crc.as_ref().ok(), "bytes": bytes,
                "version": modules::attribute(modules::PEERMEM, "version").unwrap_or_default(),
            }),
        );
    }
    crc?;
    let wanted = (sizes.message * sizes.iterations) as u64;
    ensure!(bytes == wanted, "perftest counted {bytes} bytes, asked were {wanted}");
    let expected = expected_bytes(program, bytes);
    for (who, counts, (read, written)) in
        [("server", &server.counts, expected.0), ("client", &client.counts, expected.1)]
    {
        ensure!(counts.mrs == 1, "{who}: {} MRs of GPU memory, wanted one", counts.mrs);
        counts.reconcile(who, read, written)?;
    }
    gpu::wait_clean(Duration::from_secs(10))?;
    Ok(rate)
}

fn side_json(counts: &Counts) -> Value {
    json!({
        "mrs": counts.mrs, "sg_entries": counts.sg_entries, "bytes_pinned": counts.pinned, "bar_read": counts.read,
        "bar_wrote": counts.wrote, "repeated_packets": counts.repeated,
    })
}

fn host_run(env: &Env, program: &str, connect: Connect) -> Result<()> {
    let what = format!("host {program} {}", name(connect));
    together(env, &what, |peer| with_rate(|| host_once(env, peer, program, connect)))
}

fn host_once(env: &Env, peer: &mut Peer, program: &str, connect: Connect) -> Result<Option<f64>> {
    let sizes = Sizes::of(env, ITERATIONS)?;
    let mut run = Run::new(program, &sizes, false);
    run.rdma_cm = connect == Connect::RdmaCm;
    lab::reset_fabric()?;
    let Some(side) = perftest(&mut run, peer)? else { return Ok(None) };
    let fabric = lab::fabric()?;
    ensure!(fabric.read_bytes + fabric.write_bytes == 0, "host buffers, but BAR accesses: {fabric:?}");
    // Only the client knows whether perftest had a clock.
    let rate = match peer.role {
        Role::Client => {
            let rate = run.report(&side.said())?.rate;
            peer.tell("rate", json!(rate))?;
            rate
        }
        Role::Server => peer.hear("rate", PATIENCE)?.as_f64(),
    };
    if let (Role::Client, Some(usec)) = (peer.role, rate) {
        emit(
            "pair",
            &json!({ "mode": null, "test": program, "connect": name(connect), "buffer": "host", "usec": usec }),
        );
    }
    Ok(rate)
}

/// ib_write_lat polls the buffer with the CPU, so perftest itself refuses to run it with GPU
/// memory. If a later version does not, the program belongs in the list above.
fn write_lat_wants_host_memory(_: &Env) -> Result<()> {
    let out = Command::new("ib_write_lat")
        .args(["-F", "-d", RDMA_DEVICE, "--use_cuda=0"])
        .output()
        .context("start ib_write_lat")?;
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let why = said.lines().find(|l| l.contains("CUDA latency")).unwrap_or_default().trim();
    println!("ib_write_lat --use_cuda=0: {}: {why}", out.status);
    ensure!(!out.status.success() && !why.is_empty(), "ib_write_lat --use_cuda=0: {}\n{said}", out.status);
    Ok(())
}
