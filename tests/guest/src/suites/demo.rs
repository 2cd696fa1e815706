// SPDX-License-Identifier: GPL-2.0
//! Runs real perftest: a server and a client process over the soft NIC, both with their buffer in
//! GPU memory. It also moves bytes through one region over several allocations, which perftest
//! cannot make.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde_json::json;

use crate::common::{pattern, same_bytes, Bench, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::Mode;
use crate::modules;
use crate::peermem;
use crate::perftest::{arrived, chunks, mb_s, with_rate, Before, Run, Sizes};
use crate::test::{emit, in_modes, Env, NvidiaC, Suite, Test};
use crate::verbs::{Loopback, Op};

/// The number of messages of a run.
const ITERATIONS: usize = 20;

pub fn suite(nvidia_c: bool) -> Suite {
    // Load each mode once, because some kernels do not unload a module that had revocable pins.
    let mut tests = gpu_tests(nvidia_c, Mode::Persistent);
    let several = in_modes(nvidia_c, &[Mode::Persistent], "several_allocations", several_allocations);
    tests.extend(several.into_iter().map(|t| t.nvidia_c(NvidiaC::Recorded)));
    // Host memory does not pass through the module, so one run of each program is enough for
    // comparison.
    let mode = &Mode::all(nvidia_c)[..1];
    for (name, run) in [
        ("host/ib_write_bw", (|env| host_run(env, "ib_write_bw")) as fn(&Env) -> Result<()>),
        ("host/ib_read_bw", |env| host_run(env, "ib_read_bw")),
        ("host/ib_send_bw", |env| host_run(env, "ib_send_bw")),
    ] {
        tests.extend(in_modes(nvidia_c, mode, name, run).into_iter().map(|mut t| {
            t.name = name.into();
            t
        }));
    }
    tests.extend(gpu_tests(nvidia_c, Mode::Legacy));
    Suite { name: "demo", tests: tests.into_iter().map(|t| t.limit(240)).collect() }
}

fn gpu_tests(nvidia_c: bool, mode: Mode) -> Vec<Test> {
    let tests = [
        ("ib_write_bw", (|env| gpu_run(env, "ib_write_bw")) as fn(&Env) -> Result<()>),
        ("ib_read_bw", |env| gpu_run(env, "ib_read_bw")),
        ("ib_send_bw", |env| gpu_run(env, "ib_send_bw")),
    ];
    tests.into_iter().flat_map(|(name, run)| in_modes(nvidia_c, &[mode], name, run)).collect()
}

fn gpu_run(env: &Env, program: &str) -> Result<()> {
    with_rate(|| gpu_once(env, program))
}

fn gpu_once(env: &Env, program: &str) -> Result<Option<f64>> {
    let sizes = Sizes::of(env, ITERATIONS)?;
    let before = Before::now()?;
    let (server, client, report) = Run::new(program, &sizes, true).on_this_machine()?;
    let counts = before.counts()?;
    let buffers = (chunks("server", server, sizes.message)?, chunks("client", client, sizes.message)?);
    let crc = arrived(program, &buffers.0, &buffers.1);
    if let Some(mib_s) = report.rate {
        emit(
            "demo",
            &json!({
                "mode": env.mode()?.name(), "test": program, "buffer": "gpu", "mb_s": mb_s(mib_s), "mrs": counts.mrs,
                "sg_entries": counts.sg_entries, "bytes_pinned": counts.pinned,
                "bar_bytes": counts.read + counts.wrote, "crc_ok": crc.is_ok(), "size": sizes.message,
                "iterations": sizes.iterations, "repeated_packets": counts.repeated,
                "version": modules::attribute(modules::PEERMEM, "version").unwrap_or_default(),
            }),
        );
    }
    crc?;
    ensure!(counts.mrs == 2, "{} MRs of GPU memory, wanted one for each side", counts.mrs);
    let wanted = (sizes.message * sizes.iterations) as u64;
    ensure!(report.bytes == wanted, "perftest counted {} bytes, asked were {wanted}", report.bytes);
    counts.reconcile("the NIC", report.bytes, report.bytes)?;
    // The pins end with the processes. A persistent pin does not outlive its process.
    gpu::wait_clean(Duration::from_secs(10))?;
    Ok(report.rate)
}

/// Registers segments like PyTorch's expandable segments in one region, writes bytes over the end
/// of a segment, and reads them back.
fn several_allocations(env: &Env) -> Result<()> {
    const SEGMENT: usize = 20 * MIB;
    const LEN: usize = 2 * MIB;
    let bench = Bench::new()?;
    let segments = bench.cuda.segments(SEGMENT, 3 * SEGMENT)?;
    let mr = bench.reg(segments.va(), 3 * SEGMENT).context("a region of three segments")?;
    let mut host = pattern(&mut env.rng()?, LEN);
    let host_mr = bench.reg(host.as_ptr() as u64, LEN)?;
    let (link, at, wanted) = (Loopback::new(&bench.pd)?, SEGMENT - LEN / 2, host.clone());
    let start = Instant::now();
    link.run(Op::Write, (&host_mr, 0), (&mr, at), LEN)?;
    host.fill(0);
    link.run(Op::Read, (&host_mr, 0), (&mr, at), LEN)?;
    let seconds = start.elapsed().as_secs_f64();
    same_bytes("read back by the NIC", &host, &wanted)?;
    same_bytes("read back by CUDA", &segments.read(at, LEN)?, &wanted)?;
    if !env.nvidia_c {
        let rows = peermem::rows("registrations")?;
        let row = rows.first().context("no row of registrations")?;
        let number = |key: &str| row.number(key).with_context(|| format!("no number {key} in {row:?}"));
        ensure!(number("pieces")? == 3, "{} pieces, wanted 3", number("pieces")?);
        emit(
            "demo",
            &json!({
                "mode": env.mode()?.name(), "test": "write, read", "buffer": "3 segments",
                "mb_s": 2.0 * LEN as f64 / 1e6 / seconds, "mrs": 1, "sg_entries": number("runs")?,
                "bytes_pinned": number("pinned_bytes")?,
            }),
        );
    }
    Ok(mr.dereg()?)
}

fn host_run(env: &Env, program: &str) -> Result<()> {
    with_rate(|| host_once(env, program))
}

fn host_once(env: &Env, program: &str) -> Result<Option<f64>> {
    let sizes = Sizes::of(env, ITERATIONS)?;
    lab::reset_fabric()?;
    let (_, _, report) = Run::new(program, &sizes, false).on_this_machine()?;
    let fabric = lab::fabric()?;
    ensure!(fabric.read_bytes + fabric.write_bytes == 0, "host buffers, but BAR accesses: {fabric:?}");
    if let Some(mib_s) = report.rate {
        emit(
            "demo",
            &json!({
                "mode": env.mode()?.name(), "test": program, "buffer": "host", "mb_s": mb_s(mib_s), "mrs": null,
                "sg_entries": null, "bytes_pinned": null, "bar_bytes": 0, "crc_ok": null, "size": sizes.message,
                "iterations": sizes.iterations,
            }),
        );
    }
    Ok(report.rate)
}
