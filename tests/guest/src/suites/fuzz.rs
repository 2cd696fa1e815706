// SPDX-License-Identifier: GPL-2.0
//! Ordinary users call verbs with GPU addresses at random (`crate::fuzz`). Meanwhile, the NIC
//! sometimes asks for memory without invalidation, as it does for queues, and one of the users is
//! killed. After each round, the accounting is checked.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::counters::{settled, Ledger};
use crate::fuzz;
use crate::lab;
use crate::machine::Mode;
use crate::storm::{log, Counts};
use crate::test::{emit, in_modes, Env, NvidiaC, Suite, FAIL_MARK};

const PROCESSES: u64 = 3;
/// The number of calls of each process in a round.
const STEPS: u64 = 150;
/// The number of rounds after which what has not happened never will.
const MOST_ROUNDS: u64 = 30;
/// The duration in seconds, unless `guest.fuzz=` names another.
const SECONDS: u64 = 10;
/// The time limit of a round, on any kernel and under any load.
const LIMIT: Duration = Duration::from_secs(900);

pub fn suite(nvidia_c: bool) -> Suite {
    let means = NvidiaC::Skip("a use after free in it stops the machine");
    let tests = in_modes(nvidia_c, &[Mode::Persistent, Mode::Legacy], "any_call", any_call);
    Suite { name: "fuzz", tests: tests.into_iter().map(|t| t.nvidia_c(means).limit(6 * 3600)).collect() }
}

fn start(seed: u64, process: u64) -> Result<Child> {
    Command::new("/proc/self/exe")
        .args(["helper", "fuzz"])
        .args([seed, process, STEPS].map(|n| n.to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start a process of the fuzzer")
}

/// Returns the counts of a process that has ended, or the reason why it failed.
fn said(process: u64, child: &mut Child) -> Result<Counts> {
    let mut text = String::new();
    child.stdout.take().context("its output")?.read_to_string(&mut text).context("read its output")?;
    match text.lines().find_map(|line| line.strip_prefix("fuzz ")) {
        Some(counts) => Counts::parse(counts),
        None => bail!("process {process}: {}", text.replace(FAIL_MARK, "").trim()),
    }
}

/// Runs one round of all processes. Returns the counts of those that ended by themselves.
fn round(seed: u64) -> Result<Vec<Counts>> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut children = (0..PROCESSES).map(|process| start(seed, process)).collect::<Result<Vec<_>>>()?;
    let (end, begin) = (Instant::now() + LIMIT, Instant::now());
    let mut to_kill = (rng.u8(..3) == 0).then(|| Duration::from_millis(rng.u64(..3000)));
    let mut killed = false;
    loop {
        if to_kill.is_some_and(|after| begin.elapsed() > after) {
            to_kill = None;
            children[0].kill().context("kill a process")?;
            killed = true;
        }
        let ended = children.iter_mut().map(Child::try_wait).collect::<std::io::Result<Vec<_>>>().context("wait")?;
        if ended.iter().all(Option::is_some) {
            break;
        }
        if Instant::now() > end {
            children.iter_mut().for_each(|child| drop(child.kill()));
            bail!("a round is not over after {LIMIT:?}");
        }
        lab::set_nic("no_invalidation", next_umems(&mut rng))?;
        sleep(Duration::from_millis(rng.u64(..40)));
    }
    lab::set_nic("no_invalidation", 0)?;
    let first = usize::from(killed);
    children.iter_mut().enumerate().skip(first).map(|(i, child)| said(i as u64, child)).collect()
}

/// Returns how many of the next registrations are for queues.
fn next_umems(rng: &mut fastrand::Rng) -> u64 {
    [0, 0, 1, 3][rng.usize(..4)]
}

fn any_call(env: &Env) -> Result<()> {
    let seconds = env.number("fuzz", SECONDS)?;
    let run = env.rng()?.u64(..);
    let mut rng = fastrand::Rng::with_seed(run);
    let (begin, mut rounds, mut all) = (Instant::now(), 0u64, Vec::new());
    // A slow machine has few rounds in that time. Run more, until each call was made and has
    // worked.
    let missing = |all: &[Counts]| fuzz::names().find(|name| all.iter().all(|c| c.get(name) == 0));
    while begin.elapsed() < Duration::from_secs(seconds) || (missing(&all).is_some() && rounds < MOST_ROUNDS) {
        let seed = rng.u64(..);
        let ledger = Ledger::begin()?;
        let counted = round(seed).and_then(|counts| {
            settled(Duration::from_secs(30))?;
            ledger.check()?;
            Ok(counts)
        });
        match counted {
            Ok(counts) => all.extend(counts),
            Err(e) => {
                for process in 0..PROCESSES {
                    println!("process {process}, its last calls:");
                    log::last(process).iter().for_each(|line| println!("    {line}"));
                }
                return Err(e).with_context(|| format!("round {rounds}, seed {seed}"));
            }
        }
        rounds += 1;
    }
    let sum = |name: &str| all.iter().map(|c| c.get(name)).sum::<u64>();
    let counts: serde_json::Map<_, _> = fuzz::names().map(|name| (name.to_string(), sum(name).into())).collect();
    println!("{rounds} rounds: {}", serde_json::json!(counts));
    let row = serde_json::json!({
        "mode": env.mode()?.name(), "seed": run, "seconds": begin.elapsed().as_secs(),
        "rounds": rounds, "counts": counts,
    });
    emit("fuzz", &row);
    let missing = missing(&all);
    ensure!(missing.is_none(), "no {} in {rounds} rounds: not all was tested", missing.unwrap_or_default());
    Ok(())
}
