// SPDX-License-Identifier: GPL-2.0
//! Tests what the module and `peermemctl` report: counters, compared with the stand-ins'
//! accounting, refusals in words, the log, the tracepoints, and the list of registrations.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use peermem_proc::Row;
use serde_json::{json, Value};

use super::scenarios::beside::free_beside;
use super::scenarios::process::dereg_in_fork;
use crate::common::{expect_errno, Bench, GPU_PAGE, KIB, MIB};
use crate::counters::Ledger;
use crate::gpu;
use crate::helper::Helper;
use crate::kmsg::Mark;
use crate::lab::CoreHold;
use crate::machine::Mode;
use crate::peermem::{self, Stats};
use crate::rusage;
use crate::test::{emit, in_modes, skip, Env, NvidiaC, Suite};
use crate::verbs::{Mr, PATIENCE};

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in BOTH {
        let mut add = |modes: &[Mode], name: &str, run: fn(&Env) -> Result<()>| {
            if modes.contains(&mode) {
                let means = NvidiaC::Skip("it tells nothing");
                let limit = if name == "many_registrations" { 1800 } else { 600 };
                tests
                    .extend(in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t| t.nvidia_c(means).limit(limit)));
            }
        };
        add(&BOTH, "counters_add_up", counters_add_up);
        add(&BOTH, "stats_say_if_gpu_and_nic_reach_each_other", stats_say_if_gpu_and_nic_reach_each_other);
        add(&BOTH, "tracepoints", tracepoints);
        add(&[Mode::Legacy], "callback_in_flight", callback_in_flight);
        add(&[Mode::Persistent], "status_without_root", status_without_root);
        add(&[Mode::Persistent], "lists_are_for_admins", lists_are_for_admins);
        add(&[Mode::Persistent], "one_line_per_cause", one_line_per_cause);
        add(&[Mode::Persistent], "many_registrations", many_registrations);
    }
    Suite { name: "observe", tests }
}

/// Returns the reason for which a range that is longer than its allocation is refused. Only
/// persistent pins look at what lies behind the allocation.
fn too_long(env: &Env) -> Result<&'static str> {
    Ok(if env.mode()? == Mode::Legacy { "leaves_allocation" } else { "hole" })
}

/// Does all kinds of operations in a random order and keeps a tally. Then everything is compared,
/// with registrations alive and without.
fn counters_add_up(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let legacy = env.mode()? == Mode::Legacy;
    let bench = Bench::new()?;
    let lab = gpu::lab()?;
    let ledger = Ledger::begin()?;
    let before = Stats::read()?;
    let mut tally: BTreeMap<&str, i64> = BTreeMap::new();
    let mut live = Vec::new();
    for _ in 0..40 {
        let memory = bench.cuda.alloc(2 * MIB)?;
        match rng.u32(0..8) {
            0 => {
                // Another allocation may lie behind `memory`. This reservation has room, and
                // nothing in it.
                let mut half = bench.cuda.reserve(4 * MIB)?;
                half.map(0, 2 * MIB, true)?;
                expect_errno("too long", bench.refused("too long", half.va(), 3 * MIB)?, libc::EINVAL)?;
                *tally.entry(too_long(env)?).or_default() += 1;
            }
            1 => {
                lab.fault(if legacy { "get_errno" } else { "persistent_errno" }, libc::EBUSY as u64)?;
                let got = bench.refused("busy", memory.va(), MIB);
                lab.reset_faults()?;
                expect_errno("busy", got?, libc::EBUSY)?;
                *tally.entry("busy").or_default() += 1;
            }
            2 => {
                bench.refused("nobody's memory", 0x7000_dead_0000, KIB)?;
            }
            3 => {
                // In legacy mode, this revokes the registration.
                let mr = bench.reg(memory.va(), MIB)?;
                memory.free()?;
                mr.dereg()?;
            }
            4 => Helper::start(&["hold", &MIB.to_string(), &rng.u32(1..4).to_string()])?.kill()?,
            _ => {
                let at = rng.usize(0..2 * MIB - 1);
                let mr = bench.reg(memory.va() + at as u64, rng.usize(1..=2 * MIB - at))?;
                live.push((memory, mr));
            }
        }
        if live.len() > 8 {
            let (memory, mr) = live.swap_remove(rng.usize(0..live.len()));
            mr.dereg()?;
            memory.free()?;
        }
    }
    ledger.check().context("with registrations alive")?;
    for (memory, mr) in live {
        mr.dereg()?;
        memory.free()?;
    }
    ledger.check().context("with none left")?;
    let after = Stats::read()?;
    for (reason, count) in after.below("refused.") {
        let grown = count - before.number(&format!("refused.{reason}"))?;
        let wanted = tally.get(reason).copied().unwrap_or(0);
        ensure!(grown == wanted, "refused.{reason} grew by {grown}, wanted {wanted}");
    }
    ensure!(after.number("total.live")? == 0 && after.number("total.live_runs")? == 0, "something is left: {after:?}");
    Ok(())
}

/// With persistent pins, the module asks whether GPU and NIC can reach each other. With revocable
/// ones, it reports that it did not ask.
fn stats_say_if_gpu_and_nic_reach_each_other(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (_memory, mr) = bench.registered(MIB)?;
    let stats = Stats::read()?;
    let rows = peermem::rows("registrations")?;
    let row = rows.first().context("no row of registrations")?;
    let (gpu, nic) = row.text("gpu").zip(row.text("nic")).context("no gpu or no nic in the row")?;
    let wanted = if env.mode()? == Mode::Legacy { "unasked" } else { "supported" };
    ensure!(stats.pairs() == [(gpu, nic, wanted)], "stats say {:?}, wanted {gpu}/{nic} {wanted}", stats.pairs());
    let (topo, _) = peermem::peermemctl_json(&["topo"])?;
    let told = topo["pairs"][0]["driver_says"].as_str().context("topo says nothing of the pair")?;
    ensure!(told == wanted, "peermemctl topo says {told}, wanted {wanted}");
    Ok(mr.dereg()?)
}

/// While a free waits for the core, its callback is listed, with its subject and how long it has
/// been running.
fn callback_in_flight(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(MIB)?;
    let va = memory.va();
    let hold = CoreHold::arm("invalidate_fence")?;
    let free = free_beside(&bench, memory);
    hold.wait(PATIENCE)?;
    let age = || -> Result<u64> {
        let rows = peermem::rows("callbacks")?;
        let [row] = rows.as_slice() else { bail!("{} callbacks are listed, wanted 1: {rows:?}", rows.len()) };
        let numbers = ["pid", "va", "length"].map(|field| row.number(field));
        let wanted = [u64::from(std::process::id()), va, MIB as u64].map(Some);
        ensure!((numbers, row.text("stage")) == (wanted, Some("invalidating")), "listed is {row:?}, wanted {wanted:?}");
        row.number("age_ms").context("no age")
    };
    let before = age()?;
    thread::sleep(Duration::from_millis(100));
    ensure!(age()? >= before + 100, "it does not grow older");
    let stats = Stats::read()?;
    let oldest = stats.number("oldest_callback_ms")?;
    ensure!(stats.number("callbacks_in_flight")? == 1 && oldest >= 100, "stats: {stats:?}");
    let (tick, _) = peermem::peermemctl_json(&["watch", "--count", "1"])?;
    ensure!(tick["callbacks_in_flight"] == 1 && tick["oldest_callback_ms"].as_i64() >= Some(oldest), "watch: {tick}");
    drop(hold);
    free.finish("the free")?;
    ensure!(peermem::rows("callbacks")?.is_empty(), "still listed: {:?}", peermem::rows("callbacks")?);
    Ok(mr.dereg()?)
}

/// Runs `peermemctl status` as a user without any rights.
fn status_without_root(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (_memory, mr) = bench.registered(MIB)?;
    let (before, start) = (rusage::children()?, Instant::now());
    let out = Command::new("peermemctl").args(["status", "--json"]).uid(65534).gid(65534).output()?;
    let (ms, used) = (start.elapsed().as_millis(), rusage::children()?.saturating_sub(before));
    let said: Value = serde_json::from_slice(&out.stdout).with_context(|| format!("{out:?}"))?;
    // A bare machine lacks some things (a start at boot, room to lock memory), which is only a
    // warning.
    ensure!(said["usable"] == true && matches!(out.status.code(), Some(0 | 1)), "exit {:?}: {said}", out.status.code());
    ensure!(said["live"] == 1 && said["live_bytes"] == MIB, "live registrations: {said}");
    ensure!(said["mode"] == "persistent" && said["module"] == "rust", "module: {said}");
    emit("status_without_root", &json!({ "ms": u64::try_from(ms)?, "processor_ms": u64::try_from(used.as_millis())? }));
    Ok(mr.dereg()?)
}

/// The lists show everybody's processes and addresses, so uid 0 is not enough to read them, as the
/// root of an ordinary container has it. Everybody may read the counters.
fn lists_are_for_admins(_: &Env) -> Result<()> {
    for (file, mode) in [("registrations", 0o400), ("failures", 0o400), ("callbacks", 0o400), ("stats", 0o444)] {
        let has = fs::metadata(format!("/proc/driver/nvidia-peermem/{file}"))?.permissions().mode() & 0o777;
        ensure!(has == mode, "{file} has mode {has:04o}, wanted {mode:04o}");
    }
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    let read_as_root = |file: &str, with_capability: bool| -> Result<String> {
        let mut command = Command::new("cat");
        command.arg(format!("/proc/driver/nvidia-peermem/{file}"));
        if !with_capability {
            peermem::without_capability(&mut command, CAP_SYS_ADMIN);
        }
        Ok(String::from_utf8_lossy(&command.output().context("cat")?.stderr).into_owned())
    };
    for file in ["registrations", "failures", "callbacks"] {
        let said = [read_as_root(file, true)?, read_as_root(file, false)?];
        ensure!(said[0].is_empty(), "root reads {file}: {}", said[0]);
        ensure!(said[1].contains("not permitted"), "root without CAP_SYS_ADMIN reads {file}: {:?}", said[1]);
    }
    let said = read_as_root("stats", false)?;
    ensure!(said.is_empty(), "root without CAP_SYS_ADMIN reads stats: {said}");
    Ok(())
}

/// However often it happens, each cause takes one line. It says who, what, which value and what to
/// do, and how many events of the burst before were not logged.
fn one_line_per_cause(_: &Env) -> Result<()> {
    /// A pause of this length without an event ends a burst (docs/proc.md).
    const QUIET: Duration = Duration::from_secs(5);
    let bench = Bench::new()?;
    let lab = gpu::lab()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let burst = || -> Result<()> {
        for _ in 0..20 {
            bench.refused("too long", memory.va(), 3 * MIB)?;
        }
        lab.fault("persistent_errno", libc::EBUSY as u64)?;
        for _ in 0..20 {
            bench.refused("busy", memory.va(), MIB)?;
        }
        Ok(lab.reset_faults()?)
    };
    // The tests before decide what is logged of this burst.
    burst()?;
    // The module may read another clock.
    thread::sleep(QUIET + Duration::from_millis(200));
    let mut log = Mark::now()?;
    let start = Instant::now();
    burst()?;
    let took = start.elapsed();
    let said: Vec<String> = log.since()?.into_iter().filter(|l| l.starts_with("nvidia_peermem: ")).collect();
    for line in &said {
        println!("{line}");
    }
    let (pid, name) = (std::process::id(), fs::read_to_string("/proc/self/comm")?);
    let (holes, busy): (Vec<_>, Vec<_>) = said.iter().partition(|l| l.contains("none that can be pinned"));
    for (lines, bytes, errno, fix) in
        [(holes, 3 * MIB, "EINVAL", "register what lies before and behind"), (busy, MIB, "EBUSY", "try again")]
    {
        // If the machine stops for seconds, one burst becomes two.
        ensure!(lines.len() == 1 || took > QUIET && !lines.is_empty(), "{} lines", lines.len());
        let start =
            format!("process {pid} ({}): persistent registration of {bytes} bytes at {:#x}", name.trim(), memory.va());
        for words in [start.as_str(), &format!("refused with {errno}"), fix] {
            ensure!(lines.iter().all(|l| l.contains(words)), "no {words:?} in {lines:?}");
        }
        let unsaid = "more for this reason were not logged";
        ensure!(lines[0].contains(unsaid), "nothing about what was left out of the burst before: {lines:?}");
    }
    Ok(())
}

const TRACING: &str = "/sys/kernel/tracing";

/// The module's tracepoints. Dropping this switches them off.
struct Tracing(());

impl Tracing {
    /// Empties the trace and switches all of them off.
    fn new() -> Result<Self> {
        fs::write(format!("{TRACING}/trace"), "").context("empty the trace")?;
        Ok(Self(()))
    }

    /// Switches one event, or all of them (``), on or off.
    fn set(&self, event: &str, on: bool) -> Result<()> {
        let file = format!("{TRACING}/events/nvidia_peermem/{event}/enable");
        fs::write(&file, if on { "1" } else { "0" }).with_context(|| format!("write {file}"))
    }

    /// Returns name and fields of each event since the last call.
    fn events(&self) -> Result<Vec<(String, BTreeMap<String, String>)>> {
        let text = fs::read_to_string(format!("{TRACING}/trace"))?;
        let mut events = Vec::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            // `guest-71 [000] ..... 12.345678: pin: ticket=0x1 …`
            let (_, rest) = line.split_once(": ").with_context(|| format!("trace line {line:?}"))?;
            let (name, fields) = rest.split_once(": ").with_context(|| format!("trace line {line:?}"))?;
            let fields = fields.split(' ').filter_map(|f| f.split_once('='));
            events.push((name.to_string(), fields.map(|(k, v)| (k.into(), v.into())).collect()));
        }
        fs::write(format!("{TRACING}/trace"), "").context("empty the trace")?;
        Ok(events)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // The next test notices if they are still on.
        let _ = self.set("", false);
    }
}

/// Each event comes where docs/tracing.md says, with the fields that it names.
fn tracepoints(env: &Env) -> Result<()> {
    if env.kernel_lite() {
        skip("a module built with kernel-lite has no tracepoints: their machinery is GPL-only");
        return Ok(());
    }
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(2 * MIB)?;
    let tracing = Tracing::new()?;
    let none = |when: &str| -> Result<()> {
        bench.reg(memory.va(), MIB)?.dereg()?;
        let events = tracing.events()?;
        ensure!(events.is_empty(), "{when}: {events:?}");
        Ok(())
    };
    none("nobody listens")?;
    tracing.set("put", true)?;
    bench.reg(memory.va(), MIB)?.dereg()?;
    let events = tracing.events()?;
    ensure!(events.len() == 1 && events[0].0 == "put", "put alone is listened to: {events:?}");
    tracing.set("put", false)?;
    none("put is not listened to any more")?;
    tracing.set("", true)?;
    bench.reg(memory.va(), MIB)?.dereg()?;
    bench.refused("too long", memory.va(), 3 * MIB)?;
    let mut wanted = BTreeSet::from(["acquire", "pin", "map", "unmap", "put", "failure"]);
    if env.mode()? == Mode::Legacy {
        wanted.extend(["revoke", "orphan", "late_callback"]);
        dereg_in_fork(bench.reg(memory.va(), MIB)?)?;
        bench.reg(memory.va(), MIB)?.dereg()?;
        gpu::lab()?.fault_n("callback_double", 1, 1)?;
        let mr = bench.reg(memory.va(), MIB)?;
        memory.free()?;
        mr.dereg()?;
    }
    let events = tracing.events()?;
    let names: BTreeSet<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names == wanted, "traced {names:?}, wanted {wanted:?}");
    let (_, first) = events.iter().find(|(name, _)| name == "acquire").context("no acquire")?;
    // Follow one registration from its pin to its put, by its ticket.
    let life: Vec<_> = events.iter().filter(|(_, f)| f.get("ticket") == first.get("ticket")).collect();
    for (name, fields) in &life {
        println!("{name} {fields:?}");
    }
    let order: Vec<&str> = life.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(order == ["pin", "acquire", "map", "unmap", "put"], "one ticket's events are {order:?}");
    let kind = if env.mode()? == Mode::Legacy { "revocable" } else { "persistent" };
    for (name, fields) in &life {
        ensure!(
            fields["length"] == MIB.to_string() && fields["kind"] == kind && fields["ret"] == "0",
            "{name}: {fields:?}"
        );
        ensure!(fields["ns"].parse::<u64>()? > 0, "{name} took no time");
    }
    let (_, failure) = events.iter().find(|(name, _)| name == "failure").context("no failure")?;
    ensure!(failure["reason"] == too_long(env)? && failure["errno"] == "22", "failure: {failure:?}");
    let pinned: BTreeSet<_> = events.iter().filter(|(n, _)| n == "pin").filter_map(|(_, f)| f.get("ticket")).collect();
    for (name, fields) in events.iter().filter(|(n, _)| ["revoke", "orphan", "late_callback"].contains(&n.as_str())) {
        let known = fields.get("ticket").is_some_and(|ticket| pinned.contains(ticket));
        let whole = name == "late_callback" || (fields["length"] == MIB.to_string() && fields["kind"] == "revocable");
        ensure!(known && whole, "{name}: {fields:?}");
        ensure!(name != "revoke" || fields["ns"].parse::<u64>()? > 0, "{name} took no time: {fields:?}");
    }
    tracing.set("", false)?;
    let gone = bench.cuda.alloc(MIB)?;
    bench.reg(gone.va(), MIB)?.dereg()?;
    let events = tracing.events()?;
    ensure!(events.is_empty(), "switched off: {events:?}");
    Ok(())
}

/// Lists as many registrations as a short test can have, while others come and go. Each
/// registration that stays is listed once.
fn many_registrations(env: &Env) -> Result<()> {
    const LEN: usize = 512;
    let wanted: usize = env.number("registrations", 1000)?;
    let bench = Bench::new()?;
    // Put four in each GPU page, if the card is large enough. Each maps all of the page, and DMA
    // debugging allows seven mappings of a place.
    let pages = wanted.div_ceil(4).min(1024);
    let memory = bench.cuda.alloc((pages + 1) * GPU_PAGE)?;
    let place = |n: usize| memory.va() + (n % pages * GPU_PAGE + n / pages * LEN) as u64;
    let start = Instant::now();
    let mrs =
        (0..wanted).map(|n| bench.reg(place(n), LEN)).collect::<std::io::Result<Vec<Mr>>>().context("register")?;
    let registered = start.elapsed();
    let (done, churn) = (AtomicBool::new(false), memory.va() + (pages * GPU_PAGE) as u64);
    let (listed, took) = thread::scope(|scope| -> Result<_> {
        let others = scope.spawn(|| -> std::io::Result<u32> {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                bench.reg(churn, LEN)?.dereg()?;
                n += 1;
            }
            Ok(n)
        });
        let start = Instant::now();
        let listed = read_in_pieces("/proc/driver/nvidia-peermem/registrations");
        let took = start.elapsed();
        done.store(true, Ordering::Relaxed);
        let others = others.join().expect("no panic").context("register meanwhile")?;
        println!("{others} registrations came and went meanwhile");
        Ok((listed?, took))
    })?;
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    for line in listed.lines() {
        let va = Row::parse(line).and_then(|row| row.number("va")).with_context(|| format!("no va in {line:?}"))?;
        *times.entry(va).or_default() += 1;
    }
    let wrong = (0..wanted).map(place).filter(|va| times.get(va) != Some(&1)).count();
    ensure!(wrong == 0, "{wrong} of {wanted} registrations are not listed exactly once");
    ensure!(Stats::read()?.number("total.live")? == i64::try_from(wanted)?, "stats count another number");
    let (list, _) = peermem::peermemctl_json(&["list"])?;
    let told = list["processes"][0]["registrations"].as_array().map_or(0, Vec::len);
    ensure!(told == wanted, "peermemctl list tells of {told} registrations, wanted {wanted}");
    emit(
        "many_registrations",
        &json!({ "registrations": wanted, "register_ms": u64::try_from(registered.as_millis())?,
                 "list_ms": u64::try_from(took.as_millis())?, "list_bytes": listed.len() }),
    );
    for mr in mrs {
        mr.dereg()?;
    }
    Ok(())
}

/// Reads the file through a small buffer, so that the list is resumed in the middle many times.
fn read_in_pieces(path: &str) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("open {path}"))?;
    let (mut text, mut piece) = (Vec::new(), [0; 1000]);
    loop {
        match file.read(&mut piece).with_context(|| format!("read {path}"))? {
            0 => return String::from_utf8(text).context("a list of text"),
            n => text.extend_from_slice(&piece[..n]),
        }
    }
}
