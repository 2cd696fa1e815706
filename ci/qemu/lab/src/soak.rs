// SPDX-License-Identifier: GPL-2.0

//! `make soak`: runs what takes hours, goes on after failures, and leaves build/soak.json and the
//! record docs/results/soak.md.

use crate::arm64;
use crate::boots;
use crate::lanes::{self, Done, Found, Job};
use crate::planted::{self, PLANTED};
use crate::programs;
use crate::{host, judge};
use anyhow::{bail, Context, Result};
use lab::arch::Arch;
use lab::artefacts::{self, Built};
use lab::axes::{Kernel, Run};
use lab::ctx::Lab;
use lab::ktap::Counts;
use lab::page;
use lab::parts;
use lab::sh::{self, human, say};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

/// The word in `ONLY=` for the long form of the models in tests/host.
const MODELS: &str = "models";

/// Runs all that was chosen once. With `hours`, repeats it with new seeds, and starts no job after
/// that time.
pub fn run(lab: &Lab, only: Option<&str>, hours: Option<f64>, mut seed: Option<u32>) -> Result<bool> {
    let start = Instant::now();
    let chosen: Option<Vec<&str>> = only.map(|o| o.split(',').collect());
    let all = boots::all()?;
    let rows = boots::chosen(&all, Run::Soak, Arch::host(), chosen.as_deref(), &[MODELS, host::PACKAGES, PLANTED])?;
    let wanted = |name: &str| chosen.as_ref().is_none_or(|c| c.contains(&name));

    let mut built: BTreeMap<Kernel, Built> = BTreeMap::new();
    for (kernel, kinds) in boots::images(&rows) {
        built.insert(kernel, artefacts::build(lab, kernel, &kinds, &[])?);
    }
    let end = hours.map(|h| Duration::try_from_secs_f64(h * 3600.0)).transpose().context("--hours")?;
    let over = || end.is_some_and(|end| start.elapsed() > end);
    let jobs = all.iter().filter(|row| row.runs.contains(&Run::Soak)).map(|row| row.name.as_str());
    let mut record = Record::new(lab, jobs.chain([MODELS, host::PACKAGES, PLANTED]).collect())?;
    let (mut passed, mut failed, mut nvidia) = (0, 0, BTreeSet::new());
    for round in 1.. {
        let seed = seed.take().unwrap_or_else(new_seed);
        say(&format!("soak: round {round}, guest.seed={seed}"));
        let mut jobs: Vec<Job> = Vec::new();
        let others = [host::long_models(lab, MODELS), host::packages(lab, true), planted::job(lab)];
        jobs.extend(others.into_iter().filter(|job| wanted(&job.name)));
        for (row, suites) in &rows {
            let built = &built[&row.kernel];
            let boot = move || judge::row(lab, built, row, suites, &[format!("guest.seed={seed}")]);
            jobs.push(Job::new(&row.name, row.seconds, boot));
        }
        let jobs = jobs.into_iter().map(|job| unless(&over, job)).collect();
        let mut kept = Ok(());
        let done = lanes::run(jobs, |one| {
            let seed = if one.name == MODELS { host::MODEL_SEEDS.to_string() } else { seed.to_string() };
            if let (Ok(()), Err(e)) = (&kept, record.add(one, &seed)) {
                kept = Err(e);
            }
        });
        kept?;
        let counts = lanes::count(&done);
        (passed, failed) = (passed + counts.passed, failed + counts.failed);
        nvidia.extend(done.into_iter().flat_map(|one| one.found.nvidia));
        if end.is_none() || over() {
            break;
        }
    }
    if passed + failed == 0 {
        bail!("nothing was run: each job was skipped, for the reason above");
    }
    say(&format!("took {}; the results are in {JSON}, and in {FILE} those of whole jobs", human(start.elapsed())));
    println!("with {}", parts::line(&nvidia));
    println!("soak: {}", if failed == 0 { "PASS".to_string() } else { format!("FAIL, {failed} failed") });
    Ok(failed == 0)
}

/// Returns the job, which is skipped if `over` says so when its turn comes.
fn unless<'a>(over: &'a (dyn Fn() -> bool + Sync), job: Job<'a>) -> Job<'a> {
    let name = job.name.clone();
    Job::new(job.name, job.takes, move || {
        if over() {
            return Ok(Found::skipped(name, "the hours are over"));
        }
        (job.run)()
    })
}

/// Returns a random seed. `RandomState` is std's only source of randomness.
fn new_seed() -> u32 {
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (random >> 32) as u32
}

/// The record of what was run. It is written after each job, so that a soak that is stopped keeps
/// its findings.
struct Record<'a> {
    lab: &'a Lab,
    date: String,
    commit: String,
    machine: String,
    rows: Vec<Value>,
    /// The names of all jobs of a complete soak.
    jobs: Vec<&'a str>,
}

const FILE: &str = "docs/results/soak.md";
const JSON: &str = "build/soak.json";

const HEAD: &str = "# What was soaked

Each line is the last run of that boot (or of `tests/host`, `tests/packages`, `tests/faults/boot`)
by `make soak`, which writes it; `make soak ONLY=<boot>` repeats it. Seconds are those of an
emulated machine with another beside it. (Commits that this history lacks are parts of later ones.
Boots had other names up to 343c0de.)

";
const RUNS: [&str; 9] = ["boot", "date", "commit", "machine", "passed", "failed", "seconds", "seed", "of NVIDIA's"];
/// Fills the last column of runs that were made before there was one.
const NOT_RECORDED: &str = "not recorded";

const DEEDS: &str = "
## What storms and the fuzzer did

Counted by all of their processes, in each mode of those runs. `hca_lost`: how often a process lost
its NIC.

";
const COUNTS: [&str; 4] = ["boot", "mode", "seconds", "counted"];

/// The guest's result rows that are recorded.
const COUNTED: [&str; 2] = ["storm", "fuzz"];

impl<'a> Record<'a> {
    fn new(lab: &'a Lab, jobs: Vec<&'a str>) -> Result<Self> {
        let mut commit = sh::git(lab, &["rev-parse", "--short=12", "HEAD"])?;
        // Leave out the pages that change during a soak, such as the record itself.
        let but = [FILE, arm64::FILE, "docs/results/programs*"].map(|file| format!(":!{file}"));
        let status = ["status", "--porcelain", "--untracked-files=no", "--", ".", &but[0], &but[1], &but[2]];
        if !sh::git(lab, &status)?.is_empty() {
            commit += "+changes";
        }
        Ok(Record { lab, date: page::today()?, commit, machine: page::machine(), rows: Vec::new(), jobs })
    }

    fn add(&mut self, one: &Done, seed: &str) -> Result<()> {
        let Counts { passed, failed, .. } = one.counts();
        self.rows.push(json!({"seed": seed, "job": one}));
        let all = json!({"date": self.date, "commit": self.commit, "machine": self.machine, "rows": self.rows});
        self.lab.write_json(JSON, &all)?;
        if passed + failed == 0 || (one.name == PLANTED && planted::is_one()) {
            return Ok(());
        }
        let read = |file: &str| fs::read_to_string(self.lab.repo.join(file)).unwrap_or_default();
        if let Some(text) = arm64::merged(&read(arm64::FILE), &one.name, &one.found.tests) {
            self.lab.write(arm64::FILE, &text)?;
        }
        let rows = one.found.json.get("programs").map_or(&[][..], Vec::as_slice);
        if let Some(text) = programs::merged(&read(programs::FILE), rows) {
            self.lab.write(programs::FILE, &text)?;
        }
        for (file, text) in programs::logs(rows, read) {
            self.lab.write(&file, &text)?;
        }
        let old = read(FILE);
        let [passed, failed, seconds] = [passed, failed, one.seconds as usize].map(|n| n.to_string());
        let nvidia = if one.found.nvidia.is_empty() { "–".to_string() } else { parts::line(&one.found.nvidia) };
        let words = [&one.name, &self.date, &self.commit, &self.machine, &passed, &failed, &seconds, seed, &nvidia];
        let rows = COUNTED.iter().filter_map(|name| one.found.json.get(*name)).flatten();
        let counted = rows.map(|row| counted(&one.name, row)).collect();
        self.lab.write(FILE, &merged(&old, words.map(str::to_string).to_vec(), counted, &self.jobs))
    }
}

/// Returns the cells that say what a storm or the fuzzer did in one mode.
fn counted(boot: &str, row: &Value) -> Vec<String> {
    let counts = row["counts"].as_object().into_iter().flatten().map(|(name, n)| format!("{name} {n}"));
    let mode = row["mode"].as_str().unwrap_or_default();
    vec![boot.to_string(), mode.to_string(), row["seconds"].to_string(), counts.collect::<Vec<_>>().join(", ")]
}

/// Returns the record with this run added and the boot's counts replaced, and a sentence about
/// which of `all` have no entry.
fn merged(old: &str, run: Vec<String>, counted: Vec<Vec<String>>, all: &[&str]) -> String {
    let (runs, deeds) = old.split_once(DEEDS).unwrap_or((old, ""));
    let boot = run[0].clone();
    let with = |old: &str, new: Vec<Vec<String>>| {
        let others = page::rows(old).filter(|row| row[0] != boot && row[0] != RUNS[0]);
        let whole = |mut row: Vec<String>| {
            if row.len() == RUNS.len() - 1 {
                row.push(NOT_RECORDED.to_string());
            }
            row
        };
        let mut rows: Vec<_> = others.map(whole).chain(new).collect();
        rows.sort_unstable();
        rows
    };
    let (runs, deeds) = (with(runs, vec![run]), with(deeds, counted));
    let missing = all.iter().filter(|name| !runs.iter().any(|run| run[0] == **name));
    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
    let end = if missing.is_empty() { String::new() } else { format!("\nNot soaked yet: {}.\n", missing.join(", ")) };
    format!("{HEAD}{}{end}{DEEDS}{}", page::table(&RUNS, runs), page::table(&COUNTS, deeds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::ktap::Test;

    #[test]
    fn a_boot_has_one_line_and_others_keep_theirs() {
        let all = ["suites", "storm", "models"];
        let run = |line: &str| page::rows(line).next().unwrap();
        let deed = |n: u64| vec![counted("suites", &json!({"mode": "legacy", "seconds": 8, "counts": {"kill": n}}))];
        let first = merged("", run("| suites | 2026-01-01 | a | m | 1 | 0 | 9 | 5 | front 1 |"), deed(2), &all);
        assert!(first.contains("\nNot soaked yet: `storm`, `models`.\n"));
        let both = merged(&first, run("| models | 2026-01-02 | b | m | 2 | 0 | 9 | 1-6 |"), Vec::new(), &all[..2]);
        assert!(both.ends_with("|---|\n| suites | legacy | 8 | kill 2 |\n"), "{both}");
        let all = ["suites", "models"];
        let again = merged(&both, run("| suites | 2026-01-03 | c | m | 3 | 1 | 9 | 7 | front 2 |"), deed(3), &all);
        let rows: Vec<&str> = again.lines().filter(|l| l.starts_with("| ") && l.contains("2026")).collect();
        assert_eq!(
            rows,
            [
                "| models | 2026-01-02 | b | m | 2 | 0 | 9 | 1-6 | not recorded |",
                "| suites | 2026-01-03 | c | m | 3 | 1 | 9 | 7 | front 2 |"
            ]
        );
        assert!(again.starts_with(HEAD) && again.ends_with("|---|\n| suites | legacy | 8 | kill 3 |\n"), "{again}");
    }

    #[test]
    fn nothing_starts_when_the_hours_are_over() {
        let job = || Job::new("x", 1, || bail!("it ran"));
        let found = (unless(&|| true, job()).run)().unwrap();
        assert_eq!(found.tests, [Test::skipped("x", "the hours are over")]);
        assert!((unless(&|| false, job()).run)().is_err());
    }
}
