//! `make test`: what is to be known before a change goes in, one line each, and the count.

use crate::boots;
use crate::lanes::{self, Done, Found, Job};
use crate::later::Later;
use crate::{host, judge};
use anyhow::{anyhow, Context, Error, Result};
use lab::artefacts::{self, Built};
use lab::axes::{Kernel, Run};
use lab::ctx::Lab;
use lab::ktap::{print_test, Outcome};
use lab::sh::{human, say};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;
use std::time::Instant;

pub fn run(lab: &Lab, run: Run, only: Option<&str>, lanes: usize) -> Result<bool> {
    let start = Instant::now();
    let only: Option<Vec<&str>> = only.map(|o| o.split(',').collect());
    let here = |name: &str| run == Run::Test && only.as_ref().is_none_or(|only| only.contains(&name));
    let all = boots::all()?;
    let rows = boots::chosen(
        &all,
        run,
        only.as_deref(),
        if run == Run::Test { &["host", "lint", host::PACKAGES] } else { &[] },
    )?;

    // The debug kernel's machines run longest, so what they need is built first, with this
    // machine's tests beside it: where programs have changed, that is one crate after the other.
    // Then, beside the first boots, the other kernels.
    let mut kernels: BTreeSet<Kernel> = rows.iter().map(|(row, _)| row.kernel).collect();
    kernels.extend(here("lint").then_some(Kernel::Debug72));
    let built: BTreeMap<Kernel, Later<Built>> = kernels.into_iter().map(|f| (f, Later::default())).collect();
    let programs = Later::default();
    let build = |kernel: Kernel| {
        let kinds: Vec<_> = rows.iter().filter(|(row, _)| row.kernel == kernel).map(|(row, _)| row.image()).collect();
        // What the gates need.
        let parts: &[&str] =
            if kernel == Kernel::Debug72 { &["linux", "bindgen", "ofed", "gpu", "nvidia_c-source"] } else { &[] };
        artefacts::build(lab, kernel, &kinds, parts)
    };
    let mut jobs: Vec<Job> = Vec::new();
    if here("host") {
        jobs.extend(host::tests(lab, &programs));
    }
    if here(host::PACKAGES) {
        jobs.push(host::packages(lab, false));
    }
    if here("lint") {
        jobs.push(host::gates(lab, &built[&Kernel::Debug72]));
    }
    for (row, suites) in &rows {
        let built = &built[&row.kernel];
        jobs.push(Job {
            name: format!("boot {}", row.name),
            takes: row.seconds,
            run: Box::new(move || judge::row(lab, built.wait()?, row, suites, &[])),
        });
    }
    let debug = built.get(&Kernel::Debug72);
    let others: Vec<_> = built.iter().filter(|(kernel, _)| **kernel != Kernel::Debug72).collect();
    let (waited, done) = thread::scope(|scope| -> Result<_> {
        scope.spawn(|| {
            let rest = || {
                if here("host") {
                    programs.tell(host::build(lab, || !debug.is_some_and(Later::failed)));
                }
                if debug.is_none_or(|debug| debug.wait().is_ok()) {
                    for (kernel, later) in &others {
                        later.tell(build(**kernel));
                    }
                }
            };
            // Nobody is to wait for what does not come.
            if catch_unwind(AssertUnwindSafe(rest)).is_err() {
                programs.tell(Err(the_lab_failed()));
                others.iter().for_each(|(_, later)| later.tell(Err(the_lab_failed())));
            }
        });
        if let Some(debug) = debug {
            let one = catch_unwind(AssertUnwindSafe(|| build(Kernel::Debug72)));
            debug.tell(one.unwrap_or_else(|_| Err(the_lab_failed())));
            debug.wait()?;
        }
        Ok((start.elapsed(), lanes::run(jobs, lanes, |_| ())))
    })?;
    let mut done = done;
    if run == Run::Test && only.is_none() {
        let rows: Vec<_> = rows.iter().map(|(row, _)| *row).collect();
        let tests: Vec<_> = done.iter().flat_map(|one| &one.found.tests).collect();
        let tests = judge::never_ran(&rows, &tests);
        tests.iter().for_each(print_test);
        done.push(Done { name: "all boots".into(), seconds: 0, found: Found { tests, ..Found::default() } });
    }
    let name = if run == Run::NvidiaC { "test-nvidia_c" } else { "test" };
    let file = lab.repo.join("build").join(format!("{name}.json"));
    let report = report(&done, waited.as_secs(), start.elapsed().as_secs());
    fs::write(&file, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    let failed = list(&done);
    say(&format!("{:5} s  build, before the first of them began", waited.as_secs()));
    for one in &done {
        say(&format!("{:5} s  {}", one.seconds, one.name));
    }
    say(&format!("took {} on {lanes} lanes; report: {}", human(start.elapsed()), lab.short(&file)));
    let passed = count(&done, |o| *o == Outcome::Passed);
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0 && passed > 0)
}

/// Of what is built by a thread that panicked, which the thread itself has printed.
fn the_lab_failed() -> Error {
    anyhow!("the lab itself failed")
}

fn count(done: &[Done], want: fn(&Outcome) -> bool) -> usize {
    done.iter().map(|d| d.count(want)).sum()
}

/// Says once more what failed; returns how many did.
fn list(done: &[Done]) -> usize {
    let failed = count(done, |o| *o == Outcome::Failed);
    if failed > 0 {
        println!("\nfailed:");
        for test in done.iter().flat_map(|d| &d.found.tests).filter(|t| t.outcome == Outcome::Failed) {
            println!("  {}", test.name);
        }
    }
    let skipped = count(done, |o| matches!(o, Outcome::Skipped(_)));
    if skipped > 0 {
        println!("{skipped} skipped");
    }
    failed
}

fn report(done: &[Done], built: u64, all: u64) -> Value {
    let failures = done.iter().flat_map(|d| &d.found.tests).filter(|t| t.outcome == Outcome::Failed);
    let mut guest: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for (name, rows) in done.iter().flat_map(|d| &d.found.json) {
        guest.entry(name).or_default().extend(rows);
    }
    let jobs = done.iter().map(|d| {
        json!({
            "name": d.name,
            "seconds": d.seconds,
            "passed": d.count(|o| *o == Outcome::Passed),
            "failed": d.count(|o| *o == Outcome::Failed),
        })
    });
    json!({
        "passed": count(done, |o| *o == Outcome::Passed),
        "failed": count(done, |o| *o == Outcome::Failed),
        "skipped": count(done, |o| matches!(o, Outcome::Skipped(_))),
        "seconds": all,
        "build_seconds": built,
        "jobs": jobs.collect::<Vec<_>>(),
        "failures": failures.map(|t| json!({"name": t.name, "notes": t.notes})).collect::<Vec<_>>(),
        "guest": guest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Found;
    use lab::ktap::Test;

    #[test]
    fn the_report_counts_and_merges() {
        let test = |name: &str, outcome| Test { name: name.into(), outcome, notes: vec!["why".into()] };
        let job = |name: &str, tests, row: i32| Done {
            name: name.into(),
            seconds: 7,
            found: Found { tests, json: BTreeMap::from([("x".to_string(), vec![json!(row)])]) },
        };
        let done = [
            job("a", vec![test("x", Outcome::Passed), test("y", Outcome::Failed)], 1),
            job("b", vec![test("z", Outcome::Passed), test("s", Outcome::Skipped("no GPU".into()))], 2),
        ];
        let report = report(&done, 3, 20);
        assert_eq!((&report["passed"], &report["failed"], &report["skipped"]), (&json!(2), &json!(1), &json!(1)));
        assert_eq!(report["jobs"][0], json!({"name": "a", "seconds": 7, "passed": 1, "failed": 1}));
        assert_eq!(report["failures"], json!([{"name": "y", "notes": ["why"]}]));
        assert_eq!(report["guest"], json!({"x": [1, 2]}));
    }
}
