// SPDX-License-Identifier: GPL-2.0
//! Tests `peermemctl` beside a module that works: `watch`, `list`, `topo` and `selftest` must
//! report what is going on, and `failures` must show a refusal soon.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use crate::common::{expect_errno, Bench, MIB};
use crate::gpu;
use crate::helper::Helper;
use crate::machine::{Level, Mode, RDMA_DEVICE};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::rusage;
use crate::test::{emit, Env, NvidiaC, Suite, Test};

pub fn suite() -> Suite {
    let tests = [
        ("watch", watch as fn(&Env) -> Result<()>),
        ("list", list),
        ("topo", topo),
        ("selftest", selftest),
        ("failures_at_once", failures_at_once),
        ("no_kernel_addresses", no_kernel_addresses),
    ];
    let level = Level::Peermem(Mode::Persistent);
    let means = NvidiaC::Skip("it looks for ours");
    Suite {
        name: "peermemctl",
        tests: tests.into_iter().map(|(name, f)| Test::new(name, level, f).nvidia_c(means).limit(300)).collect(),
    }
}

/// `watch` shows a registration and its rate in the line after it, and then no longer. It prints as
/// many lines as were asked for.
fn watch(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let mut child = Command::new("peermemctl")
        .args(["watch", "--interval", "1", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .context("start peermemctl")?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    let mut next = || -> Result<Value> { Ok(serde_json::from_str(&lines.next().context("watch ended")??)?) };
    let first = next()?;
    ensure!(first["live"] == 0 && first["seconds"] == 0.0 && first["pins_per_second"] == 0.0, "first: {first}");
    // However slow this machine is, a line with the registration must come.
    let mut until = |key: &str| -> Result<Value> {
        for _ in 0..30 {
            let tick = next()?;
            if tick[key].as_f64() > Some(0.0) {
                return Ok(tick);
            }
        }
        bail!("30 lines without {key}")
    };
    let (memory, mr) = bench.registered(MIB)?;
    let pinned = until("pins_per_second")?;
    ensure!(pinned["live"] == 1 && pinned["live_bytes"] == MIB && pinned["seconds"].as_f64() >= Some(1.0), "{pinned}");
    mr.dereg()?;
    memory.free()?;
    let unpinned = until("unpins_per_second")?;
    ensure!(unpinned["live"] == 0 && unpinned["pins_per_second"] == 0.0, "after it: {unpinned}");
    child.kill()?;
    child.wait()?;
    let said = peermem::peermemctl(&["watch", "--interval", "1", "--count", "2"])?;
    let lines: Vec<&str> = said.text.lines().collect();
    ensure!(lines.len() == 3 && lines[0].contains("PINS/s") && said.code == Some(0), "as text: {}", said.text);
    Ok(())
}

/// `list` shows processes by bytes, and what keeps the module.
fn list(_: &Env) -> Result<()> {
    let small = Helper::start(&["hold", &MIB.to_string(), "2"])?;
    let large = Helper::start(&["hold", &(8 * MIB).to_string(), "1"])?;
    let (told, code) = peermem::peermemctl_json(&["list"])?;
    let processes = told["processes"].as_array().context("processes")?;
    let rows: Vec<_> = processes.iter().map(|p| (p["pid"].as_u64(), p["bytes"].as_u64())).collect();
    let wanted = [(large.pid(), 8 * MIB), (small.pid(), 2 * MIB)];
    let wanted = wanted.map(|(pid, bytes)| (Some(u64::from(pid)), Some(bytes as u64)));
    ensure!(rows == wanted, "told {rows:?}, wanted {wanted:?}: {told}");
    ensure!(code == Some(0) && told["references"] == 3, "exit {code:?}: {told}");
    ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod works with three registrations");
    small.finish()?;
    large.finish()?;
    let (told, _) = peermem::peermemctl_json(&["list"])?;
    let processes = told["processes"].as_array().map(Vec::len);
    ensure!(processes == Some(0) && told["references"] == 0, "something is left: {told}");
    Ok(())
}

fn topo(_: &Env) -> Result<()> {
    let (told, code) = peermem::peermemctl_json(&["topo"])?;
    let gpu = told["gpus"][0]["address"].as_str().context("no GPU")?;
    let driver = fs::read_link(format!("/sys/bus/pci/devices/{gpu}/driver"))?;
    ensure!(driver.ends_with("nvidia"), "{gpu} belongs to {}", driver.display());
    let pair = &told["pairs"][0];
    ensure!(pair["gpu"] == gpu && pair["distance"] == "PHB" && pair["meet"] == "pci0000:00", "pair: {pair}");
    ensure!(code == Some(0), "exit {code:?}: {told}");
    Ok(())
}

/// `selftest` moves bytes and leaves nothing. It gives a reason for what cannot be tried.
fn selftest(_: &Env) -> Result<()> {
    let (gets, puts) = gpu::provider_calls()?;
    let (told, code) = peermem::peermemctl_json(&["selftest", "--nic", RDMA_DEVICE, "--gpu", "0"])?;
    println!("{told}");
    let way = &told["ways"][0];
    ensure!(way["way"] == "peer-memory" && way["bytes_equal"] == true && code == Some(0), "exit {code:?}: {told}");
    let dma_buf = &told["ways"][1];
    ensure!(dma_buf["way"] == "dma-buf" && dma_buf["bytes_equal"] == true, "by dma-buf: {told}");
    for (time, way) in ["register_us", "write_us", "deregister_us"].into_iter().flat_map(|t| [(t, way), (t, dma_buf)]) {
        ensure!(way[time].as_f64() > Some(0.0), "{time}: {way}");
    }
    let after = gpu::accounting()?;
    ensure!(after.is_clean(), "left behind: {:?}", after.dirt());
    ensure!(gpu::provider_calls()? == (gets + 1, puts + 1), "pinned otherwise than once: {after:?}");
    ensure!(after.get("dma_buf_maps") == 1, "imported otherwise than once: {after:?}");
    let (told, code) = peermem::peermemctl_json(&["selftest", "--bandwidth"])?;
    for way in [0, 1] {
        let bandwidth = &told["ways"][way]["bandwidth"];
        ensure!(code == Some(0) && bandwidth["to_gpu"].as_f64() > Some(0.0), "exit {code:?}: {told}");
        ensure!(bandwidth["from_gpu"].as_f64() > Some(0.0), "bandwidth: {told}");
    }
    ensure!(gpu::accounting()?.is_clean(), "left behind by the bandwidth");
    for (args, word) in [(["--nic", "nosuch0"], "nosuch0"), (["--gpu", "7"], "no GPU 7; peermemctl topo lists")] {
        let said = peermem::peermemctl(&[&["selftest"][..], &args].concat())?;
        ensure!(said.code == Some(2) && said.text.contains(word), "{args:?}: {:?} {}", said.code, said.text);
    }
    // A refusal is reported with the module's reason.
    gpu::lab()?.fault("persistent_errno", libc::EBUSY as u64)?;
    let told = peermem::peermemctl_json(&["selftest"]);
    gpu::lab()?.reset_faults()?;
    let (told, code) = told?;
    let message = told["ways"][0]["message"].as_str().unwrap_or_default();
    ensure!(code == Some(2) && message.contains("busy"), "exit {code:?}: {told}");
    Ok(())
}

/// Measures from the failure's own time stamp until all is printed. The time is only recorded,
/// because a busy machine stretches it. The test checks the processor time of `peermemctl`, the
/// least of three tries: an emulator that has to wait for its host's processor counts that as used.
fn failures_at_once(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let mut least = Duration::MAX;
    for _ in 0..3 {
        expect_errno("too long", bench.refused("too long", memory.va(), 3 * MIB)?, libc::EINVAL)?;
        let before = rusage::children()?;
        let said = peermem::peermemctl(&["failures"])?;
        let used = rusage::children()?.saturating_sub(before);
        let printed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let flat = said.text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(flat.contains("it has none that can be pinned"), "told {}", said.text);
        let (told, _) = peermem::peermemctl_json(&["failures"])?;
        let last = told["failures"].as_array().and_then(|rows| rows.last()).context("no failure")?;
        ensure!(last["reason"] == "hole" && last["va"] == memory.va(), "told of another: {last}");
        let after = printed - last["time"].as_f64().context("time")?;
        least = least.min(used);
        emit(
            "failure_printed",
            &json!({ "ms_after": (after * 1000.0).round(), "processor_ms": u64::try_from(used.as_millis())? }),
        );
    }
    ensure!(least < Duration::from_secs(1), "peermemctl failures used {least:?} of processor time");
    Ok(())
}

/// No number in what the module reports, even to root, is an address in the kernel's half.
fn no_kernel_addresses(_: &Env) -> Result<()> {
    const KERNEL: u64 = 1 << 63;
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(MIB)?;
    bench.refused("too long", memory.va(), 3 * MIB)?;
    for (file, least) in [("stats", 100), ("registrations", 10), ("failures", 5), ("callbacks", 0)] {
        let text = fs::read_to_string(format!("/proc/driver/nvidia-peermem/{file}"))?;
        let words = || text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        ensure!(words().count() >= least, "{file} is too short: {text}");
        for word in words() {
            let hex = u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).unwrap_or(0);
            let decimal = word.parse().unwrap_or(0);
            ensure!(hex < KERNEL && decimal < KERNEL, "{file} has {word}: {text}");
        }
    }
    Ok(mr.dereg()?)
}
