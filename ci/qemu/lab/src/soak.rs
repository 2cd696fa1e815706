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

Each line is a run of `make soak`, which writes it, and names the boots (or `tests/host` as `models`,
`tests/packages`, `tests/faults/boot` as `planted`) that have not run again since, each with the
numbers of its tests that passed and that failed. `make soak ONLY=<boot>` repeats one. (Commits that this history lacks
are parts of later ones.)

";
const COLUMNS: [&str; 6] = ["date", "commit", "machine", "seed", "of NVIDIA's", "boots"];

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
        let nvidia = if one.found.nvidia.is_empty() { "–".to_string() } else { parts::line(&one.found.nvidia) };
        let run = [&self.date, &self.commit, &self.machine, seed, &nvidia].map(str::to_string);
        let failed = if failed == 0 { String::new() } else { format!(" and **{failed} failed**") };
        self.lab.write(FILE, &merged(&old, run.to_vec(), &one.name, &format!("{passed}{failed}"), &self.jobs))
    }
}

/// Returns the record with this boot in the line of its run, without jobs that are not of `all`, and
/// with a sentence about which of `all` have no entry.
fn merged(old: &str, run: Vec<String>, boot: &str, result: &str, all: &[&str]) -> String {
    let mut runs: BTreeMap<Vec<String>, BTreeMap<String, String>> = BTreeMap::new();
    for mut row in page::rows(old).filter(|row| row[0] != COLUMNS[0]) {
        let boots = row.pop().unwrap_or_default();
        let boots = boots.split("; ").filter_map(|entry| entry.strip_prefix('`')?.split_once("` "));
        let boots = boots.filter(|(name, _)| *name != boot && all.contains(name));
        runs.insert(row, boots.map(|(a, b)| (a.to_string(), b.to_string())).collect());
    }
    runs.entry(run).or_default().insert(boot.to_string(), result.to_string());
    let missing = all.iter().filter(|name| !runs.values().any(|boots| boots.contains_key(**name)));
    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
    let end = if missing.is_empty() { String::new() } else { format!("\nNot soaked yet: {}.\n", missing.join(", ")) };
    let lines = runs.into_iter().rev().filter(|(_, boots)| !boots.is_empty()).map(|(mut line, boots)| {
        let boots = boots.iter().map(|(name, result)| format!("`{name}` {result}"));
        line.push(boots.collect::<Vec<_>>().join("; "));
        line
    });
    format!("{HEAD}{}{end}", page::table(&COLUMNS, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::ktap::Test;

    #[test]
    fn a_boot_stands_in_the_line_of_its_last_run() {
        let run = |date: &str| [date, "a", "m", "5", "–"].map(str::to_string).to_vec();
        let all = ["suites", "storm", "models"];
        let first = merged("", run("2026-01-01"), "suites", "1", &all);
        assert!(first.ends_with("\n\nNot soaked yet: `storm`, `models`.\n"), "{first}");
        let both = merged(&first, run("2026-01-01"), "storm", "2 and **1 failed**", &all[..2]);
        assert!(
            both.starts_with(HEAD)
                && both.ends_with("|---|\n| 2026-01-01 | a | m | 5 | – | `storm` 2 and **1 failed**; `suites` 1 |\n"),
            "{both}"
        );
        let again = merged(&both, run("2026-01-02"), "suites", "3", &all[..2]);
        let rows: Vec<&str> = again.lines().filter(|line| line.contains("2026")).collect();
        let old = "| 2026-01-01 | a | m | 5 | – | `storm` 2 and **1 failed** |";
        assert_eq!(rows, ["| 2026-01-02 | a | m | 5 | – | `suites` 3 |", old]);
        let last = merged(&again, run("2026-01-02"), "storm", "3", &all[..2]);
        assert!(!last.contains("2026-01-01"), "a line without boots stays: {last}");
        let renamed = merged(&last, run("2026-01-03"), "models", "8", &["storm", "models"]);
        assert!(renamed.contains("`storm` 3") && !renamed.contains("`suites`"), "what is no job any more: {renamed}");
    }

    #[test]
    fn nothing_starts_when_the_hours_are_over() {
        let job = || Job::new("x", 1, || bail!("it ran"));
        let found = (unless(&|| true, job()).run)().unwrap();
        assert_eq!(found.tests, [Test::skipped("x", "the hours are over")]);
        assert!((unless(&|| false, job()).run)().is_err());
    }
}
