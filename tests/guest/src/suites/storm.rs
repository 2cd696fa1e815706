// SPDX-License-Identifier: GPL-2.0
//! Eight processes do everything at random at the same time (`crate::storm`), beside a reader of
//! /proc. Afterwards, the accounting is checked. What a process does is a function of seed, process
//! number and life (`crate::storm::plan`). A failure prints the last operations of each process,
//! and `guest.seed=` repeats them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::counters::{settled, Ledger};
use crate::gpu;
use crate::machine::{unload_devices, Mode};
use crate::peermem::{self, Stats};
use crate::storm::plan::Op;
use crate::storm::{log, Counts, INTERLEAVING, SEQUENCE};
use crate::test::{emit, in_modes, Env, NvidiaC, Suite, FAIL_MARK};

const PROCESSES: u64 = 8;
/// The number of registrations of all processes together, unless `guest.storm=` names another.
const REGISTRATIONS: u64 = 500;
/// The number of registrations per second for which the time limit allows, under any load and on
/// any kernel, in addition to what a boot needs.
const PER_SECOND: u64 = 2;
/// The largest number of storms. They end earlier when everything has been done that a storm is
/// for.
const MOST_ROUNDS: u32 = 5;

pub fn suite(nvidia_c: bool) -> Suite {
    let means = NvidiaC::Skip("a use after free in it stops the machine");
    let tests = in_modes(nvidia_c, &[Mode::Persistent, Mode::Legacy], "everything_at_once", everything_at_once);
    // The runner's limit is for a coordinator that hangs itself. The storm has its own.
    Suite { name: "storm", tests: tests.into_iter().map(|t| t.nvidia_c(means).limit(48 * 3600)).collect() }
}

/// A line that a process printed, or its end.
enum Said {
    Line(u64, String),
    End,
}

fn start(seed: u64, process: u64, registrations: u64, to: Sender<Said>) -> Result<Child> {
    let mut child = Command::new("/proc/self/exe")
        .args(["helper", "storm"])
        .args([seed, process, 0, registrations].map(|n| n.to_string()))
        .arg(Counts::default().print())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start a process of the storm")?;
    let out = child.stdout.take().context("its output")?;
    thread::spawn(move || {
        for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
            // Sending fails only if the test has failed already.
            let _ = to.send(Said::Line(process, String::from_utf8_lossy(&line).into_owned()));
        }
        let _ = to.send(Said::End);
    });
    Ok(child)
}

/// Waits until all have ended. Returns their counts, by number of the process.
fn listen(from: &Receiver<Said>, limit: Duration) -> Result<BTreeMap<u64, Counts>> {
    let end = Instant::now() + limit;
    let (mut counts, mut ended, mut wrong) = (BTreeMap::new(), 0, Vec::new());
    while ended < PROCESSES {
        match from.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Said::End) => ended += 1,
            Ok(Said::Line(process, line)) => {
                if let Some(json) = line.strip_prefix("storm ") {
                    counts.insert(process, Counts::parse(json)?);
                } else if let Some(why) = line.strip_prefix(FAIL_MARK) {
                    wrong.push(format!("process {process}: {why}"));
                    // The other processes would run into what this one left.
                    break;
                } else {
                    println!("process {process}: {line}");
                }
            }
            Err(RecvTimeoutError::Timeout) => bail!("not over after {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(counts.len() == PROCESSES as usize, "only {} of {PROCESSES} processes came to their end", counts.len());
    Ok(counts)
}

/// Reads /proc meanwhile: rows must be whole, and counters must never fall. Returns how often it
/// looked. Each minute, it prints on the console how far the storm is.
fn watch(done: &AtomicBool) -> Result<u64> {
    let (mut looks, mut before, mut said) = (0, 0, Instant::now());
    while !done.load(Ordering::Relaxed) {
        let stats = Stats::read()?;
        let (unpins, pins) = (stats.number("total.unpins")?, stats.number("total.pins")?);
        ensure!(before <= pins && unpins <= pins, "{pins} pins after {before}, {unpins} unpins");
        before = pins;
        for (file, last) in [("registrations", "age_ms"), ("failures", "text"), ("callbacks", "age_ms")] {
            for row in peermem::rows(file)? {
                ensure!(row.text(last).is_some(), "{file} has half a row: {row:?}");
            }
        }
        looks += 1;
        if said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            std::fs::write("/dev/kmsg", format!("guest: storm: {pins} pins so far")).context("write /dev/kmsg")?;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(looks)
}

/// Runs eight processes until each has ended, and returns their counts.
fn storm(env: &Env, seed: u64, registrations: u64) -> Result<Vec<Counts>> {
    let begin = Instant::now();
    let (to, from) = channel();
    let mut children = (0..PROCESSES)
        .map(|process| start(seed, process, registrations.div_ceil(PROCESSES), to.clone()))
        .collect::<Result<Vec<_>>>()?;
    drop(to);
    let done = AtomicBool::new(false);
    let (listened, watched) = thread::scope(|scope| {
        let reader = scope.spawn(|| watch(&done));
        let listened = listen(&from, Duration::from_secs(120 + registrations / PER_SECOND));
        done.store(true, Ordering::Relaxed);
        (listened, reader.join().expect("no panic"))
    });
    let took = begin.elapsed();
    if let Err(e) = listened.as_ref() {
        println!("{e:#}");
        for process in 0..PROCESSES {
            println!("process {process}, its last operations:");
            log::last(process).iter().for_each(|line| println!("    {line}"));
        }
        for child in &mut children {
            // The process has ended already, or is in the way.
            let _ = child.kill();
        }
    }
    for child in &mut children {
        child.wait().context("wait for a process of the storm")?;
    }
    let all = listened?;
    let looks = watched.context("read /proc meanwhile")?;
    ensure!(looks > 0, "nobody read /proc");
    let sum = |name: &str| all.values().map(|c| c.get(name)).sum::<u64>();
    ensure!(sum("registered") >= registrations, "only {} registrations", sum("registered"));
    let what = ["registered", "refused", "arrived", "errors", "slow", "hca_lost"];
    let figures: Vec<String> = what.iter().chain(&Op::NAMES).map(|name| format!("{name} {}", sum(name))).collect();
    println!("{}", figures.join(", "));
    println!("{} registrations in {took:.1?}, /proc read {looks} times", sum("registered"));
    let times = Op::NAMES.iter().chain(&["start", "reopen"]);
    let times: Vec<String> = times.map(|name| format!("{name} {}", sum(&format!("{name} us")) / 1000)).collect();
    println!("processor time of all processes in each, in ms: {}", times.join(", "));
    let counts: serde_json::Map<_, _> =
        what.iter().chain(&Op::NAMES).map(|name| ((*name).to_string(), sum(name).into())).collect();
    let row = serde_json::json!({
        "mode": env.mode()?.name(), "seed": seed, "seconds": took.as_secs(), "counts": counts,
    });
    emit("storm", &row);
    let chain = |name: &str| all.values().map(|c| c.get(name)).collect::<Vec<_>>();
    let row = serde_json::json!({
        "mode": env.mode()?.name(), SEQUENCE: chain(SEQUENCE), INTERLEAVING: chain(INTERLEAVING),
    });
    emit("replay", &row);
    Ok(all.into_values().collect())
}

fn everything_at_once(env: &Env) -> Result<()> {
    let registrations = env.number("storm", REGISTRATIONS)?;
    let mut rng = env.rng()?;
    // The processes compare bytes themselves. CRCs of all of them would take most of the storm's
    // time.
    gpu::lab()?.set("crc_max", 0)?;
    let ledger = Ledger::begin()?;
    let mut all: Vec<Counts> = Vec::new();
    let sum = |all: &[Counts], name: &str| all.iter().map(|c| c.get(name)).sum::<u64>();
    for round in 1.. {
        all.extend(storm(env, rng.u64(..), registrations)?);
        // Random steps may leave something out.
        let missing = Op::NAMES.iter().chain(&["arrived", "hca_lost"]).find(|name| sum(&all, name) == 0);
        let Some(missing) = missing else { break };
        ensure!(round < MOST_ROUNDS, "no {missing} in {round} storms: nothing was tested");
    }
    let (slow, arrived) = (sum(&all, "slow"), sum(&all, "arrived"));
    ensure!(
        slow <= arrived / 4,
        "{slow} accesses to live memory had no answer in time, and {arrived} arrived: too many to be called slow"
    );
    settled(Duration::from_secs(30))?;
    ledger.check()?;
    let lost = gpu::accounting()?.get("leaked_tables");
    if lost > 0 {
        // If memory is freed between two steps of the provider's get, the provider forgets the
        // table, and no client ever sees it. The module's own figures agreed above.
        println!("the provider lost {lost} tables by its own bug");
        unload_devices()?;
    }
    Ok(())
}
