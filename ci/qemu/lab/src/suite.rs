// SPDX-License-Identifier: GPL-2.0

//! `make test`: runs what must pass before a change goes in, prints a line for each test, and
//! counts them.

use crate::boots;
use crate::lanes::{self, Done, Job};
use crate::later::Later;
use crate::{host, judge};
use anyhow::Result;
use lab::arch::Arch;
use lab::artefacts::{self, Built};
use lab::axes::{Kernel, Run};
use lab::ctx::Lab;
use lab::ktap::{print_test, Counts};
use lab::parts;
use lab::sh::{human, processor_time, say};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

pub fn run(lab: &Lab, run: Run, only: Option<&str>) -> Result<bool> {
    let start = Instant::now();
    let only: Option<Vec<&str>> = only.map(|o| o.split(',').collect());
    let here = |name: &str| run == Run::Test && only.as_ref().is_none_or(|only| only.contains(&name));
    let all = boots::all()?;
    let others: &[&str] = if run == Run::Test { &["host", "lint", host::PACKAGES] } else { &[] };
    let rows = boots::chosen(&all, run, Arch::host(), only.as_deref(), others)?;

    // The debug kernel's machines run longest, so build what they need first. The tests of this
    // machine are built at the same time, because crates that changed are compiled one after the
    // other there. The other kernels follow, one at a time, beside the first boots.
    let mut kernels = boots::images(&rows);
    if here("lint") {
        kernels.entry(Kernel::debug()).or_default();
    }
    let one_at_a_time = Mutex::new(());
    let build = |kernel: Kernel, kinds: &[artefacts::Kind]| {
        let _turn = one_at_a_time.lock().unwrap_or_else(|e| e.into_inner());
        // The parts that the gates need.
        let parts: &[&str] =
            if kernel == Kernel::debug() { &["linux", "bindgen", "ofed", "gpu", "nvidia_c-source"] } else { &[] };
        artefacts::build(lab, kernel, kinds, parts)
    };
    let build = &build;
    let later = |(kernel, kinds): (Kernel, Vec<artefacts::Kind>)| (kernel, Later::new(move || build(kernel, &kinds)));
    let built: BTreeMap<Kernel, Later<Built>> = kernels.into_iter().map(later).collect();
    let (debug, failed) = (built.get(&Kernel::debug()), AtomicBool::new(false));
    let programs = Later::new(|| host::build(lab, || !failed.load(Relaxed)));

    let mut jobs: Vec<Job> = Vec::new();
    if here("host") {
        jobs.extend(host::tests(lab, &programs));
    }
    if here(host::PACKAGES) {
        jobs.push(host::packages(lab, false));
    }
    if here("lint") {
        jobs.push(host::gates(lab, &built[&Kernel::debug()]));
    }
    for (row, suites) in &rows {
        let built = &built[&row.kernel];
        let boot = move || judge::row(lab, built.get()?, row, suites, &[]);
        jobs.push(Job::new(format!("boot {}", row.name), row.seconds, boot));
    }
    let (waited, mut done) = thread::scope(|scope| -> Result<_> {
        scope.spawn(|| {
            // The result is ignored here: the jobs report what is wrong.
            let tests = here("host").then(|| programs.get());
            drop(tests);
            if debug.is_none_or(|debug| debug.get().is_ok()) {
                built.values().for_each(|later| drop(later.get()));
            }
        });
        if let Some(debug) = debug {
            debug.get().inspect_err(|_| failed.store(true, Relaxed))?;
        }
        Ok((start.elapsed(), lanes::run(jobs, |_| ())))
    })?;
    if run == Run::Test && only.is_none() {
        let rows: Vec<_> = rows.iter().map(|(row, _)| *row).collect();
        let tests: Vec<_> = done.iter().flat_map(|one| &one.found.tests).collect();
        let tests = judge::never_ran(&rows, &tests);
        tests.iter().for_each(print_test);
        done.push(Done { name: "all boots".into(), seconds: 0, found: tests.into() });
    }
    let Counts { passed, failed, skipped } = lanes::count(&done);
    let nvidia = parts::line(done.iter().flat_map(|one| &one.found.nvidia));
    let file = format!("build/{}.json", if run == Run::NvidiaC { "test-nvidia_c" } else { "test" });
    lab.write_json(
        &file,
        &json!({"passed": passed, "failed": failed, "skipped": skipped, "seconds": start.elapsed().as_secs(),
            "nvidia": nvidia, "build_seconds": waited.as_secs(), "jobs": done}),
    )?;
    say(&format!("{:5} s  build, before the first of them began", waited.as_secs()));
    for one in &done {
        say(&format!("{:5} s  {}", one.seconds, one.name));
    }
    let (wall, spent) = (human(start.elapsed()), human(processor_time()));
    say(&format!("took {wall}, and {spent} of processors; report: {file}"));
    println!("with {nvidia}");
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0 && passed > 0)
}
