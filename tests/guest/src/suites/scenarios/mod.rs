// SPDX-License-Identifier: GPL-2.0
//! The scenario table: what may happen to a registration, in each mode and on each generation of
//! the core. [`TABLE`] is the only list. The suites `scenarios`, `pairwise` and `once`, `make
//! scenarios` and docs/results/scenarios.md are made from it.

mod afterwards;
mod free;
mod nic;
pub mod process;
mod provider;
mod table;
mod threads;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::{Bench, KIB, MIB, PATIENCE};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::lab::{self, CoreHold};
use crate::machine::{Generation, Level, Mode};
use crate::test::{Env, NvidiaC, Suite, Test};
use crate::verbs::{Loopback, Mr, Status, FULL_ACCESS};

pub use nic::{fence_fails_in_dereg, key_not_destroyed, no_key};
pub use table::{By, Row, TABLE};

/// The size that most scenarios register. A buffer of this size shares its memory with no other.
const SIZE: usize = 2 * MIB;

/// The time that NVIDIA's module gets to do something that no rule requires.
const A_WHILE: Duration = Duration::from_millis(300);

/// Returns every scenario in each of its modes on each generation: the full product.
pub fn suite(nvidia_c: bool) -> Suite {
    Suite { name: "scenarios", tests: tests(nvidia_c, |_, _| true) }
}

/// This scenario repeats rows, with each table at the address of the one before. None of the tables
/// is freed, so KASAN, for which `pairwise` and `once` are run, would see nothing in it. Faster
/// boots have it in `scenarios`.
const REPEATS: &str = "again_with_reused_tables";

/// Returns the fewest tests that show each scenario but [`REPEATS`] in each mode and on each
/// generation, and each mode on each generation.
pub fn pairwise(nvidia_c: bool) -> Suite {
    let mut tests = tests(nvidia_c, |row, column| (row + column) % 2 == 0);
    tests.retain(|test| !repeats(test));
    Suite { name: "pairwise", tests }
}

/// Returns each scenario but [`REPEATS`] once, with the generations in turn. A scenario that hangs
/// on one generation is there for both.
pub fn once(nvidia_c: bool) -> Suite {
    let mut tests = pairwise(nvidia_c).tests;
    tests.retain(|test| {
        let named = |row: &Row| matches!(row.by, By::Here { name, .. } if is_named(&test.name, name));
        TABLE.iter().enumerate().filter(|(_, row)| named(row)).any(|(r, row)| {
            matches!(row.by, By::Here { hangs: Some(_), .. })
                || test.generation == Some(Generation::ALL[r % Generation::ALL.len()])
        })
    });
    Suite { name: "once", tests }
}

/// Returns whether a test has this name, apart from generation and mode.
fn is_named(test: &str, name: &str) -> bool {
    test.rsplit('/').next() == Some(name)
}

fn repeats(test: &Test) -> bool {
    is_named(&test.name, REPEATS)
}

/// Returns tests. `wanted(row, generation + mode)` chooses among those of two modes.
fn tests(nvidia_c: bool, wanted: impl Fn(usize, usize) -> bool) -> Vec<Test> {
    let mut tests = Vec::new();
    // The order is by generation and mode, so that modules are loaded as seldom as possible.
    for (g, generation) in Generation::ALL.into_iter().enumerate() {
        for mode in Mode::all(nvidia_c) {
            for (r, row) in TABLE.iter().enumerate() {
                let By::Here { name, modes, hangs, run } = row.by else { continue };
                let hangs = hangs.filter(|(on, _)| *on == generation);
                let Some(m) = modes.iter().position(|m| m == mode) else { continue };
                // If only one of the two modes can run, take that one.
                let skew =
                    hangs.is_some_and(|(_, m)| modes.iter().position(|x| *x == m).is_some_and(|m| wanted(r, g + m)));
                if modes.len() > 1 && !wanted(r + usize::from(skew), g + m) {
                    continue;
                }
                let name = format!("{}/{}/{name}", generation.name(), mode.name());
                let mut test = Test::new(&name, Level::Peermem(*mode), run).nvidia_c(NvidiaC::Recorded);
                test.generation = Some(generation);
                if let Some((on, _)) = hangs.filter(|(_, m)| m == mode) {
                    test = test.not_on(on, "the core waits for a lock that it holds itself (inverted stop test)");
                }
                tests.push(test);
            }
        }
    }
    tests
}

/// Returns the row that a test stands for.
pub fn row_of(suite: &str, test: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| match row.by {
        By::Here { name, .. } => ["scenarios", "pairwise", "once"].contains(&suite) && is_named(test, name),
        By::There { suite: s, test: t } => s == suite && is_named(test, t),
    })
}

/// Returns what `guest table` prints: clause, suite and test of each row, and the modes and
/// generations in which `make scenarios` runs it.
pub fn table_for_the_host() -> serde_json::Value {
    let rows = TABLE.iter().map(|row| {
        let (suite, test) = match row.by {
            By::Here { name, .. } => ("scenarios", name),
            By::There { suite, test } => (suite, test),
        };
        serde_json::json!({ "scenario": row.clause, "suite": suite, "test": test, "places": places(row) })
    });
    rows.collect()
}

/// Returns mode and generation of each test that stands for the row. The mode is empty if
/// nvidia-peermem is not loaded for it. Other suites run on the newest core there.
fn places(row: &Row) -> Vec<[&'static str; 2]> {
    match row.by {
        By::Here { modes, hangs, .. } => {
            let all = Generation::ALL.into_iter().flat_map(|g| modes.iter().map(move |m| (g, *m)));
            all.filter(|(g, m)| hangs != Some((*g, *m))).map(|(g, m)| [m.name(), g.name()]).collect()
        }
        By::There { suite, test } => {
            let suites = super::all(false);
            let tests = suites.iter().filter(|s| s.name == suite).flat_map(|s| &s.tests);
            let standing = tests.filter(|t| t.name.rsplit('/').next() == Some(test));
            standing.map(|t| [t.level.mode().map_or("", Mode::name), Generation::ALL[0].name()]).collect()
        }
    }
}

fn nic_state(mr: &Mr) -> Result<Option<String>> {
    Ok(lab::nic_mrs()?.into_iter().find(|m| m.lkey == mr.lkey()).map(|m| m.state))
}

/// Writes to `target` through a fresh pair of queues, and returns the status.
fn write_status(bench: &Bench, source: &Mr, target: &Mr) -> Result<Status> {
    let link = Loopback::new(&bench.pd)?;
    link.write(1, (source, 0), (target, 0), 4 * KIB)?;
    Ok(link.wait(PATIENCE)?.status)
}

fn no_pins(when: &str) -> Result<()> {
    ensure!(gpu::pins()? == 0, "{when}: {} pins left", gpu::pins()?);
    Ok(())
}

/// A call in a thread of its own, because it may have to wait for somebody.
pub struct Beside<T> {
    done: Receiver<Result<T>>,
    /// The task that makes the call, or 0 before it has begun.
    task: Arc<AtomicI32>,
}

impl<T: Send + 'static> Beside<T> {
    pub fn start(call: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let task = Arc::new(AtomicI32::new(0));
        let mine = Arc::clone(&task);
        Self::of(task, move || {
            mine.store(nix::unistd::gettid().as_raw(), Ordering::SeqCst);
            call()
        })
    }

    fn of(task: Arc<AtomicI32>, call: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let (tell, done) = channel();
        // The thread is not joined: if it hangs, it must not hang the test beyond the test's own
        // limit.
        std::thread::spawn(move || {
            // Sending fails only if the test has failed already.
            let _ = tell.send(call());
        });
        Self { done, task }
    }

    pub fn finish(self, what: &str) -> Result<T> {
        match self.done.recv_timeout(PATIENCE) {
            Ok(result) => result.with_context(|| what.to_string()),
            Err(_) => bail!("{what}: not done within {PATIENCE:?}"),
        }
    }

    /// Returns the call's result if it ends within `limit`.
    pub fn ended(&self, limit: Duration) -> Option<Result<T>> {
        self.done.recv_timeout(limit).ok()
    }

    /// Checks that the call has to wait for a task that does not move. The kernel reports where the
    /// call sleeps. That must not be a hold point or a wait that ends by itself.
    pub fn waits(&self, what: &str) -> Result<()> {
        const LOOKS: usize = 4;
        let end = Instant::now() + PATIENCE;
        let mut seen: Vec<String> = Vec::new();
        while seen.len() < LOOKS {
            ensure!(self.ended(Duration::ZERO).is_none(), "{what} did not wait");
            ensure!(Instant::now() < end, "{what} neither ended nor slept at one place within {PATIENCE:?}: {seen:?}");
            std::thread::sleep(Duration::from_millis(10));
            match asleep_at(self.task.load(Ordering::SeqCst)) {
                Some(stack) if seen.last().is_none_or(|last| *last == stack) => seen.push(stack),
                other => seen = other.into_iter().collect(),
            }
        }
        let stack: Vec<&str> = seen.iter().flat_map(|stack| stack.lines()).take(4).collect();
        println!("{what} waits in {}", stack.join(" <- "));
        Ok(())
    }
}

/// Returns the kernel's functions in which a task sleeps, beginning with the innermost. Returns
/// `None` if it runs, can be interrupted by any signal, stands at a hold point, or waits for time
/// to pass or for RCU.
fn asleep_at(task: i32) -> Option<String> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{task}/{file}")).ok();
    // `93 (comm) D …`: the name may hold anything.
    let uninterruptible = read("stat")?.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('D'));
    let stack = read("stack").filter(|stack| uninterruptible && !stack.is_empty())?;
    (!["lab_hold", "msleep", "usleep", "synchronize_", "rcu_barrier"].iter().any(|function| stack.contains(function)))
        .then(|| stack.lines().filter_map(|line| line.split_whitespace().nth(1)).map(|f| format!("{f}\n")).collect())
}

impl Beside<()> {
    /// Runs a program.
    fn program(mut program: Command) -> Result<Self> {
        let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.with_context(|| format!("start {program:?}"))?;
        let task = Arc::new(AtomicI32::new(i32::try_from(child.id())?));
        Ok(Self::of(task, move || {
            let out = child.wait_with_output()?;
            ensure!(out.status.success(), "{program:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
            Ok(())
        }))
    }
}

pub fn free_beside(bench: &Bench, memory: DeviceMemory) -> Beside<()> {
    let cuda = Arc::clone(&bench.cuda);
    Beside::start(move || {
        cuda.attach()?;
        memory.free()
    })
}

pub fn reg_beside(bench: &Bench, va: u64) -> Beside<std::io::Result<Mr>> {
    let pd = Arc::clone(&bench.pd);
    Beside::start(move || Ok(Mr::reg(&pd, va, SIZE, FULL_ACCESS)))
}

pub fn dereg_beside(mr: Mr) -> Beside<()> {
    Beside::start(move || Ok(mr.dereg()?))
}

/// An armed hold point of the core or of the GPU stand-in. Dropping it releases the tasks that
/// stand there.
pub enum Stop {
    Core(CoreHold),
    Gpu(nvlab::Hold),
}

impl Stop {
    pub fn core(point: &'static str) -> Result<Self> {
        println!("{point}");
        Ok(Self::Core(CoreHold::arm(point)?))
    }

    pub fn gpu(point: &str) -> Result<Self> {
        println!("{point}");
        Ok(Self::Gpu(gpu::lab()?.arm(point)?))
    }

    /// Returns a stop in the provider's get. The GPU stand-in's points have names of their own for
    /// persistent pins.
    pub fn pinning(mode: Mode, point: &str) -> Result<Self> {
        if mode == Mode::Persistent {
            Self::gpu(&format!("p{point}"))
        } else {
            Self::gpu(point)
        }
    }

    /// Waits until a thread stands there.
    pub fn wait(&self) -> Result<()> {
        match self {
            Self::Core(hold) => hold.wait(PATIENCE),
            Self::Gpu(hold) => Ok(hold.wait(PATIENCE)?),
        }
    }

    pub fn release(self) -> Result<()> {
        match self {
            Self::Core(hold) => hold.release(),
            Self::Gpu(hold) => hold.release()?,
        }
        Ok(())
    }
}

/// Checks a registration whose memory was freed on the way. If it `succeeds`, it is dead with a
/// revocable pin, and with a persistent pin it works until it is deregistered. If not, the
/// application saw EFAULT.
fn after_the_free(env: &Env, bench: &Bench, mr: std::io::Result<Mr>, succeeds: bool) -> Result<()> {
    // No rule says what becomes of it with NVIDIA's module.
    ensure!(env.nvidia_c || mr.is_ok() == succeeds, "ibv_reg_mr: {:?}", mr.err());
    match mr {
        Err(e) => {
            println!("ibv_reg_mr: {e}");
            ensure!(env.nvidia_c || e.raw_os_error() == Some(libc::EFAULT), "ibv_reg_mr: {e}, wanted EFAULT");
        }
        Ok(mr) => {
            println!("ibv_reg_mr succeeded; the MR is {:?}", nic_state(&mr)?);
            let (_source, source_mr) = bench.registered(SIZE)?;
            let status = write_status(bench, &source_mr, &mr)?;
            let works = status == Status::IBV_WC_SUCCESS;
            let persistent = env.mode()? == Mode::Persistent;
            ensure!(works || !persistent, "an MR over memory that is kept for it: {status:?}");
            ensure!(!works || persistent, "an MR over freed memory works");
            mr.dereg()?;
        }
    }
    no_pins("after the deregistration")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites;
    use std::collections::BTreeSet;

    #[test]
    fn every_clause_has_a_test_that_exists() {
        let mut names = BTreeSet::new();
        for suite in suites::all(false) {
            for test in &suite.tests {
                // The names are without generation and mode.
                names.insert(format!("{}/{}", suite.name, test.name.rsplit('/').next().unwrap()));
            }
        }
        for row in TABLE {
            let name = match row.by {
                By::Here { name, .. } => format!("scenarios/{name}"),
                By::There { suite, test } => format!("{suite}/{test}"),
            };
            assert!(names.contains(&name), "{}: there is no test {name}", row.clause);
        }
    }

    /// `make scenarios`, which writes docs/results/scenarios.md, takes half an hour. This test
    /// finds a row that is missing there at once.
    #[test]
    fn the_page_has_these_rows() {
        let page = include_str!("../../../../../docs/results/scenarios.md");
        let rows = page.lines().filter(|l| l.contains("| `")).map(|l| l.splitn(4, '|').skip(1).take(2));
        let told: Vec<String> = rows.map(|r| r.map(str::trim).collect::<Vec<_>>().join(" ")).collect();
        let wanted = TABLE.iter().map(|row| match row.by {
            By::Here { name, .. } => format!("{} `scenarios/{name}`", row.clause),
            By::There { suite, test } => format!("{} `{suite}/{test}`", row.clause),
        });
        let wanted: Vec<String> = wanted.collect();
        let only_in = |a: &[String], b: &[String]| a.iter().filter(|x| !b.contains(x)).cloned().collect::<Vec<_>>();
        let (lacks, has) = (only_in(&wanted, &told), only_in(&told, &wanted));
        assert!(
            lacks.is_empty() && has.is_empty(),
            "docs/results/scenarios.md lacks {lacks:?} and has {has:?}: make scenarios"
        );
        let mut own = page.lines().filter(|l| l.contains("| `scenarios/"));
        let cores = |l: &str| l.split('|').nth(4).map(|c| c.split(',').count());
        assert!(own.all(|l| cores(l) == Some(Generation::ALL.len())), "docs/results/scenarios.md is of fewer cores");
    }

    #[test]
    fn each_pair_is_covered() {
        let pairs = |tests: Vec<Test>| -> BTreeSet<[String; 2]> {
            let mut pairs = BTreeSet::new();
            for test in tests {
                if test.not_on.zip(test.generation).is_some_and(|((not, _), generation)| not == generation) {
                    continue;
                }
                let words: Vec<&str> = test.name.split('/').collect();
                let [generation, mode, name] = words[..] else { panic!("{}", test.name) };
                for (a, b) in [(generation, mode), (generation, name), (mode, name)] {
                    pairs.insert([a.to_string(), b.to_string()]);
                }
            }
            pairs
        };
        let (repeated, all): (Vec<_>, Vec<_>) = suite(false).tests.into_iter().partition(repeats);
        assert_eq!(repeated.len(), 2 * Generation::ALL.len());
        let some = pairwise(false).tests;
        assert!(some.len() < all.len(), "{} of {}", some.len(), all.len());
        assert_eq!(pairs(all), pairs(some));
    }

    #[test]
    fn once_leaves_no_scenario_and_no_mode_out() {
        let last = |tests: Vec<Test>| -> BTreeSet<String> {
            let runs = tests.into_iter().filter(|t| t.not_on.map(|(not, _)| not) != t.generation);
            runs.filter_map(|t| t.name.rsplit('/').next().map(Into::into)).collect()
        };
        assert_eq!(last(once(false).tests), last(pairwise(false).tests));
        for place in ["25.10/persistent/", "25.10/legacy/", "24.10/persistent/", "24.10/legacy/"] {
            assert!(once(false).tests.iter().any(|test| test.name.starts_with(place)), "{place}");
        }
        let (few, some) = (once(false).tests.len(), pairwise(false).tests.len());
        assert!(few < some * 2 / 3, "{few} of {some}");
    }
}
