// SPDX-License-Identifier: GPL-2.0
//! Runs rdma-core's own test suite on the lab's RDMA stack with nvidia-peermem and on the kernel's
//! own stack of the same version. The lab's patches or the module broke what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde_json::json;

use crate::machine::{self, Level, RDMA_DEVICE};
use crate::test::{emit, skip, Env, Suite, Test};

/// The place of the tests in the image.
const RUNNER: &str = "/usr/lib/pyverbs-tests/run_tests.py";

/// Modules in addition to those that every boot loads. The connection manager has tests, too.
const MORE_MODULES: [&str; 1] = ["rdma_ucm"];

/// The number of tests that must pass in a complete machine. With rdma-core 44, 94 did.
const FEWEST: usize = 80;

pub fn suite() -> Suite {
    Suite { name: "pyverbs", tests: vec![Test::new("same_as_mainline", Level::Bare, same_as_mainline).limit(1800)] }
}

/// The outcome of each test: `ok`, `FAIL`, `ERROR`, or `skipped` with its reason.
type Outcomes = BTreeMap<String, String>;

/// Compares the outcomes on both stacks. `guest.pyverbs=test_mr,test_qp` chooses files of tests;
/// otherwise all run.
fn same_as_mainline(env: &Env) -> Result<()> {
    if !Path::new(RUNNER).exists() {
        skip("rdma-core's tests are not in this image");
        return Ok(());
    }
    let chosen: Vec<String> =
        env.values.get("pyverbs").map_or(Vec::new(), |v| v.split(',').map(|f| format!("tests.{f}")).collect());
    let mainline = on_mainline(&chosen)?;
    let ours = on_ours(&chosen)?;
    let count = |all: &Outcomes, word: &str| all.values().filter(|o| o.starts_with(word)).count();
    for (stack, all) in [("mainline", &mainline), ("ours", &ours)] {
        let row = json!({
            "stack": stack, "tests": all.len(), "ok": count(all, "ok"), "skipped": count(all, "skipped"),
            "skips": reasons(all), "failed": all.iter().filter(|(_, o)| *o != "ok" && !o.starts_with("skipped")).collect::<Vec<_>>(),
        });
        emit("pyverbs", &row);
    }
    // If devices or Python's packages are missing, both stacks lack the same tests.
    let fewest = if chosen.is_empty() { FEWEST } else { 1 };
    ensure!(count(&mainline, "ok") >= fewest, "fewer than {fewest} passed on the kernel's own stack: {mainline:?}");
    let differ = |a: &Outcomes, b: &Outcomes| -> Vec<String> {
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        names.into_iter().filter(|n| a.get(*n) != b.get(*n)).cloned().collect()
    };
    // A test with a time limit of its own may miss it once on a busy machine. So what differs is
    // run again, together with all tests before it in its file, and must differ each time.
    let mut names = differ(&mainline, &ours);
    let mut last = (mainline, ours);
    for time in 1..=3 {
        let differences: Vec<String> = names
            .iter()
            .map(|n| format!("{n}: mainline {:?}, the lab's stack {:?}", last.0.get(n), last.1.get(n)))
            .collect();
        if differences.is_empty() {
            break;
        }
        emit("pyverbs_differ", &json!({"time": time, "differ": differences}));
        ensure!(time < 3, "{}", differences.join("\n"));
        let files: BTreeSet<String> = names.iter().map(|n| file(n).to_string()).collect();
        let files: Vec<String> = files.into_iter().collect();
        last = (on_mainline(&files)?, on_ours(&files)?);
        names.retain(|n| last.0.get(n) != last.1.get(n));
    }
    Ok(())
}

/// Returns `tests.test_mr` for `tests.test_mr.MRTest.test_reg_mr`.
fn file(name: &str) -> &str {
    name.match_indices('.').nth(1).map_or(name, |(at, _)| &name[..at])
}

/// Returns the skipped tests by the reason for which they are skipped.
fn reasons(all: &Outcomes) -> BTreeMap<&str, Vec<&str>> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, outcome) in all {
        if let Some(why) = outcome.strip_prefix("skipped ") {
            reasons.entry(why).or_default().push(name.strip_prefix("tests.").unwrap_or(name));
        }
    }
    reasons
}

fn on_mainline(chosen: &[String]) -> Result<Outcomes> {
    machine::load_mainline_rdma(&MORE_MODULES)?;
    let outcomes = run(chosen);
    machine::unload_rdma()?;
    outcomes.context("on the kernel's own stack")
}

fn on_ours(chosen: &[String]) -> Result<Outcomes> {
    machine::load_devices()?;
    for name in MORE_MODULES.into_iter().chain(["nvidia-peermem"]) {
        crate::modules::modprobe(name, &[])?;
    }
    let outcomes = run(chosen);
    machine::unload_devices()?;
    outcomes.context("on the lab's stack, with nvidia-peermem")
}

fn run(chosen: &[String]) -> Result<Outcomes> {
    let out = Command::new("/usr/bin/python3")
        .args([RUNNER, "--dev", RDMA_DEVICE, "-v"])
        .args(chosen)
        .current_dir("/tmp")
        .output()
        .context("start python3")?;
    let said = String::from_utf8_lossy(&out.stderr);
    let outcomes = parse(&said);
    let ran = said.lines().find_map(|l| l.strip_prefix("Ran ")?.split(' ').next()?.parse::<usize>().ok());
    ensure!(
        ran == Some(outcomes.len()) && ran != Some(0),
        "{} results in what the runner printed, which ran {ran:?} tests:\n{said}",
        outcomes.len()
    );
    for line in said.lines().filter(|l| l.starts_with("FAIL:") || l.starts_with("ERROR:")) {
        println!("{line}");
    }
    Ok(outcomes)
}

/// Parses unittest's verbose output: `name (tests.file.Class.name)`, perhaps the first line of its
/// description, ` ... `, and the outcome, with whatever the test and its children print in between.
fn parse(said: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut running: Option<String> = None;
    for line in said.lines() {
        // The summary repeats the names of the failed tests.
        if line.starts_with("======") {
            break;
        }
        if let Some((_, rest)) = line.split_once(" (tests.") {
            running = rest.split_once(')').map(|(id, _)| format!("tests.{id}"));
        }
        let end = line.rsplit_once(" ... ").map_or(line, |(_, end)| end);
        let result = ["ok", "FAIL", "ERROR"].into_iter().find(|r| *r == end).map(str::to_string);
        let result = result.or_else(|| end.starts_with("skipped ").then(|| end.to_string()));
        if let (Some(result), Some(id)) = (result, running.clone()) {
            outcomes.insert(id, result);
            running = None;
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_unittest_prints() {
        let said = "\
test_dereg_mr_twice (tests.test_mr.MRTest.test_dereg_mr_twice)
Verify that explicit call to MR's close() doesn't fail ... ok
test_rereg_mr (tests.test_mr.MRTest.test_rereg_mr) ... skipped 'Rereg MR is not supported (95)'
test_fork (tests.test_fork.ForkTest.test_fork) ... a child's words
ok
test_bad (tests.test_qp.QPTest.test_bad) ... ERROR

======================================================================
ERROR: test_bad (tests.test_qp.QPTest.test_bad)
----------------------------------------------------------------------
Ran 4 tests in 0.1s
";
        let outcomes = parse(said);
        let got: Vec<(&str, &str)> = outcomes.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(
            got,
            [
                ("tests.test_fork.ForkTest.test_fork", "ok"),
                ("tests.test_mr.MRTest.test_dereg_mr_twice", "ok"),
                ("tests.test_mr.MRTest.test_rereg_mr", "skipped 'Rereg MR is not supported (95)'"),
                ("tests.test_qp.QPTest.test_bad", "ERROR"),
            ]
        );
        let skips = reasons(&outcomes);
        assert_eq!(skips["'Rereg MR is not supported (95)'"], ["test_mr.MRTest.test_rereg_mr"]);
        assert_eq!((skips.len(), file("tests.test_mr.MRTest.test_rereg_mr")), (1, "tests.test_mr"));
    }
}
