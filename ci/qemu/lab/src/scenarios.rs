//! `make scenarios`: the scenario table against ours and, in legacy mode, against NVIDIA's module;
//! build/scenarios.json and docs/results/scenarios.md.

use crate::boots::{self, Row};
use crate::judge::{self, told_by_the_guest};
use crate::lanes::{self, Found, Job};
use crate::verdict::Verdict;
use anyhow::{bail, Context, Result};
use lab::artefacts::{self, build, Built};
use lab::axes::{Also, Core, Kernel, Module, Named, Run};
use lab::ctx::Lab;
use lab::machine::Boot;
use lab::nvidia_c;
use lab::sh::{self, human, say};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// NVIDIA's module may stop the machine in each scenario; more boots than that come from something
/// else.
const REBOOTS: usize = 80;
/// Where the table of Debian's NVIDIA module is kept, and where one that a user has.
const TABLE: &str = "docs/results/scenarios.md";
const USERS_TABLE: &str = "build/scenarios.md";

/// A row of the guest's table.
#[derive(Clone, Debug, Deserialize)]
struct Clause {
    scenario: String,
    suite: String,
    test: String,
    /// Mode and core of each test.
    places: Vec<(String, String)>,
}

/// What the guest says of a test of the table, after it.
#[derive(Clone, Debug, Deserialize)]
struct Told {
    test: String,
    #[serde(rename = "generation")]
    core: String,
    /// None where nvidia-peermem is not loaded by the runner.
    mode: Option<String>,
    skipped: Option<String>,
    what: Vec<String>,
}

/// The run that the page is of.
struct Ran {
    commit: String,
    /// The version of NVIDIA's module.
    driver: String,
    /// Where the page goes.
    table: &'static str,
    jobs: usize,
    done: usize,
    /// Tests of ours that failed, also those that end a boot and that its console is; and what
    /// could not be asked.
    failed: Vec<String>,
}

/// What a module did in a scenario. The worst compares as the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// In words, short enough for a table; empty where it is clean.
    Judged(Verdict, String),
    /// NVIDIA's module is spared what asks for something that only ours promises.
    NotAsked(String),
}

/// A line of build/scenarios.json.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    name: String,
    test: String,
    mode: String,
    core: String,
    ours: Option<Answer>,
    nvidia_c: Option<Answer>,
}

impl Answer {
    fn verdict(&self) -> Option<Verdict> {
        match self {
            Answer::Judged(verdict, _) => Some(*verdict),
            Answer::NotAsked(_) => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Answer::Judged(Verdict::Clean, _) => f.write_str(Verdict::Clean.name()),
            Answer::Judged(verdict, words) => write!(f, "{}: {words}", verdict.name()),
            Answer::NotAsked(why) => write!(f, "not asked: {why}"),
        }
    }
}

impl Told {
    fn read(value: &Value) -> Result<Self> {
        Told::deserialize(value).with_context(|| format!("a scenario's row {value}"))
    }
}

pub fn run(lab: &Lab) -> Result<bool> {
    let start = Instant::now();
    let theirs = (Module::NvidiaC, Also::Nothing);
    let rows = boots::all()?;
    let marked = || rows.iter().filter(|row| row.runs.contains(&Run::Scenarios));
    let kinds: Vec<_> = marked().map(|row| row.image()).chain([theirs]).collect();
    let built = &build(lab, Kernel::Debug72, &kinds, &[])?;
    let guest = artefacts::program(lab, "guest", "guest");
    let clauses: Vec<Clause> =
        serde_json::from_str(&sh::output(sh::command(guest).arg("table"))?).context("the guest's table")?;
    let suites: BTreeSet<&str> = clauses.iter().map(|c| c.suite.as_str()).collect();
    let boots = boots(marked(), &suites);

    let mut jobs = Vec::new();
    for (row, suites) in boots {
        let name = row.name.clone();
        let same = (Row { module: Module::NvidiaC, ..row.clone() }, suites.clone());
        jobs.push(Job::new(format!("ours {}", row.name), row.seconds, move || once(lab, built, &row, &suites)));
        let theirs = move || again_and_again(lab, built, &same.0, &same.1);
        // It takes the longest. Ours comes first, for a person who stops this early.
        jobs.push(Job::new(format!("nvidia_c {name}"), 0, theirs));
    }
    let commit = sh::output(sh::command("git").args(["describe", "--always", "--dirty", "--abbrev=12"]))?;
    let (driver, table) = (nvidia_c::version(lab)?, if nvidia_c::is_users() { USERS_TABLE } else { TABLE });
    let mut ran =
        Ran { commit: commit.trim().to_string(), driver, table, jobs: jobs.len(), done: 0, failed: Vec::new() };
    // What is told of ours, and of NVIDIA's module.
    let (mut told, mut kept) = ([Vec::new(), Vec::new()], Ok(Vec::new()));
    lanes::run(jobs, |done| {
        let whose = usize::from(!done.name.starts_with("ours "));
        ran.done += 1;
        // What NVIDIA's module's tests say is recorded and no outcome of the job's; that it could
        // not be asked is.
        let failed = done.found.tests.iter().filter(|t| t.has_failed());
        ran.failed.extend(failed.map(|t| t.name.clone()));
        let rows = done.found.json.get("scenario").into_iter().flatten().map(Told::read);
        // After each, so that a run that is stopped keeps what it found.
        if kept.is_ok() {
            kept = rows.collect::<Result<Vec<_>>>().and_then(|rows| {
                told[whose].extend(rows);
                let lines = lines(&clauses, &told[0], &told[1]);
                keep(lab, &clauses, &lines, &ran)?;
                Ok(lines)
            });
        }
    });
    let lines = kept?;
    let mut all_clean = true;
    for line in &lines {
        if let Some(ours) = line.ours.as_ref().filter(|ours| ours.verdict() != Some(Verdict::Clean)) {
            println!("{} ({}, {}): {ours}", line.name, line.mode, line.core);
            all_clean = false;
        }
    }
    let missing = missing(&clauses, &lines);
    missing.iter().for_each(|what| println!("{what} did not run"));
    say(&format!("took {}; {} and {table}", human(start.elapsed()), lab.short(&json_file(lab))));
    println!("ours: {}", split(lines.iter().filter_map(|l| l.ours.as_ref())));
    println!("NVIDIA's module: {}", split(lines.iter().filter_map(|l| l.nvidia_c.as_ref())));
    if !ran.failed.is_empty() {
        println!("failed, or NVIDIA's module could not be asked: {}", ran.failed.join(", "));
    }
    Ok(all_clean && missing.is_empty() && ran.failed.is_empty())
}

/// What ours was not asked, or gave no answer to.
fn missing(clauses: &[Clause], lines: &[Line]) -> Vec<String> {
    let mut missing = Vec::new();
    for clause in clauses {
        let of = |l: &&Line| {
            l.name == clause.scenario && l.test == format!("{}/{}", clause.suite, clause.test) && l.ours.is_some()
        };
        let asked: Vec<&Line> = lines.iter().filter(of).collect();
        let name = format!("{} ({}/{})", clause.scenario, clause.suite, clause.test);
        if clause.places.is_empty() {
            missing.push(name.clone());
        }
        for (mode, core) in &clause.places {
            if !asked.iter().any(|l| l.mode == *mode && l.core == *core) {
                missing.push(format!("{name}, {mode} {core}"));
            }
        }
    }
    missing
}

fn json_file(lab: &Lab) -> PathBuf {
    lab.repo.join("build/scenarios.json")
}

fn keep(lab: &Lab, clauses: &[Clause], lines: &[Line], ran: &Ran) -> Result<()> {
    let file = json_file(lab);
    fs::write(&file, serde_json::to_string_pretty(lines)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    let table = ran.table;
    fs::write(lab.repo.join(table), page(clauses, lines, ran)).with_context(|| format!("cannot write {table}"))
}

/// The boots marked for it, with their suites of the table; the table's own suite has one for each
/// core.
fn boots<'a>(rows: impl Iterator<Item = &'a Row>, suites: &BTreeSet<&str>) -> Vec<(Row, Vec<String>)> {
    let mut found = Vec::new();
    for row in rows {
        let has: Vec<String> = row.suites.iter().filter(|s| suites.contains(s.as_str())).cloned().collect();
        if row.core == Core::Both {
            let on =
                |core: Core| (Row { core, name: format!("{}-{}", row.name, core.name()), ..row.clone() }, has.clone());
            found.extend(Core::TESTED.map(on));
        } else {
            found.push((row.clone(), has));
        }
    }
    found
}

/// The machine of this row, for the tests of the table alone: which others the row leaves out does
/// not matter, and NVIDIA's module may lack what it names.
fn boot(row: &Row, suites: &[String]) -> Boot {
    let mut boot = row.boot(suites);
    boot.name = format!("scenarios/{}/{}", row.module.name(), row.name);
    boot.append.retain(|word| !word.starts_with("guest.only="));
    boot.append.push("guest.table=1".to_string());
    boot
}

fn once(lab: &Lab, built: &Built, row: &Row, suites: &[String]) -> Result<Found> {
    let boot = boot(row, suites);
    let mut report = boot.run(lab, built, &built.image(row.image()))?;
    // A test that the machine did not outlive is a line of the table, too.
    let told = told_by_the_guest(&report);
    report.json.insert("scenario".to_string(), told);
    judge::judge(&report, &BTreeMap::new(), Module::Ours).into_iter().for_each(|test| report.add(test));
    Ok(Found { tests: report.tests, json: report.json })
}

/// NVIDIA's module in the same machine: after each alarm it boots anew and goes on with the next
/// scenario.
fn again_and_again(lab: &Lab, built: &Built, row: &Row, suites: &[String]) -> Result<Found> {
    let mut found = Found::default();
    let mut suites = suites.to_vec();
    let mut after: Option<String> = None;
    for _ in 0..REBOOTS {
        let mut boot = boot(row, &suites);
        // Longer than a test's own limit and the death of its process.
        boot.limit = boot.limit.max(Duration::from_secs(900));
        boot.append.push("guest.fragile=1".to_string());
        boot.append.extend(after.as_ref().map(|a| format!("guest.after={a}")));
        let report = boot.run(lab, built, &built.image(row.image()))?;
        let part = told_by_the_guest(&report);
        let last = part.last().and_then(|v| v["test"].as_str()).map(str::to_string);
        found.json.entry("scenario".to_string()).or_default().extend(part);
        let whole = report.tests.iter().any(|t| t.name.contains("end/"));
        let Some(last) = last else {
            if whole {
                return Ok(found);
            }
            bail!("{}: nothing ran in it (console: {})", boot.name, report.console.display());
        };
        if whole {
            return Ok(found);
        }
        let suite = last.split('/').next().unwrap_or_default();
        suites.drain(..suites.iter().position(|s| *s == suite).unwrap_or(0));
        after = Some(last);
    }
    bail!("nvidia_c {}: booted {REBOOTS} times and still not at the end", row.name)
}

/// How many of these answers have which verdict: `12 clean, 2 lockdep`.
fn split<'a>(answers: impl Iterator<Item = &'a Answer>) -> String {
    let all: Vec<Option<Verdict>> = answers.map(Answer::verdict).collect();
    let count = |verdict: Option<Verdict>| all.iter().filter(|v| **v == verdict).count();
    let counted = Verdict::ALL.iter().rev().map(|v| (count(Some(*v)), v.name())).chain([(count(None), "not asked")]);
    counted.filter(|(n, _)| *n > 0).map(|(n, name)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
}

/// The worst of what was said, short enough for a table.
fn brief(told: &Told) -> Answer {
    let (verdict, reason) = Verdict::worst(&told.what);
    let reason = reason.unwrap_or_default().replace("the kernel: ", "");
    // Offsets and addresses are others in each build.
    let words: Vec<&str> = reason.split_whitespace().map(|w| w.split("+0x").next().unwrap_or(w)).collect();
    let mut text = words.join(" ").replace('|', "/");
    if let Some((at, _)) = text.char_indices().nth(110) {
        text.truncate(at);
        text += " …";
    }
    Answer::Judged(verdict, text)
}

fn lines(clauses: &[Clause], ours: &[Told], nvidia_c: &[Told]) -> Vec<Line> {
    let mut lines = Vec::new();
    for clause in clauses {
        let stands = |t: &&Told| {
            t.test.split('/').next() == Some(&clause.suite) && t.test.rsplit('/').next() == Some(&clause.test)
        };
        let key = |t: &Told| (t.mode.clone().unwrap_or_default(), t.core.clone());
        let by = |told: &[Told], of: fn(&Told) -> Option<Answer>| -> BTreeMap<(String, String), Answer> {
            let mut all = BTreeMap::new();
            for (key, answer) in told.iter().filter(stands).filter_map(|t| Some((key(t), of(t)?))) {
                // It may run in more than one machine: the worst counts.
                let worst = all.entry(key).or_insert_with(|| answer.clone());
                *worst = answer.min(worst.clone());
            }
            all
        };
        let ours = by(ours, |t| t.skipped.is_none().then(|| brief(t)));
        let nvidia_c = by(nvidia_c, |t| Some(t.skipped.clone().map_or_else(|| brief(t), Answer::NotAsked)));
        let keys: BTreeSet<&(String, String)> = ours.keys().chain(nvidia_c.keys()).collect();
        for key in keys {
            lines.push(Line {
                name: clause.scenario.clone(),
                test: format!("{}/{}", clause.suite, clause.test),
                mode: key.0.clone(),
                core: key.1.clone(),
                ours: ours.get(key).cloned(),
                nvidia_c: nvidia_c.get(key).cloned(),
            });
        }
    }
    lines
}

/// What several lines have in common, or each with where it was.
fn together(lines: &[&Line], what: impl Fn(&Line) -> Option<&Answer>) -> String {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        if let Some(answer) = what(line) {
            places
                .entry(answer.to_string())
                .or_default()
                .push(format!("{} {}", line.mode, line.core).trim().to_string());
        }
    }
    match places.len() {
        0 => "–".to_string(),
        1 => places.into_keys().collect(),
        _ => places.iter().map(|(t, p)| format!("{t} ({})", p.join(", "))).collect::<Vec<_>>().join("; "),
    }
}

fn page(clauses: &[Clause], lines: &[Line], ran: &Ran) -> String {
    let Ran { commit, driver, .. } = ran;
    let mut text = format!(
        "# The scenario table\n\n\
         Made by `make scenarios` at {commit}; do not edit. Each scenario is one test in the lab (`tests/guest`), with KASAN and lockdep\n\
         (kmemleak at the end of each boot), and its races are forced: by hold points in the GPU driver, the RDMA core and the NIC, by\n\
         kprobes in the kernel's DMA mapping. *Ours* is judged: clean means that the test passed, the kernel said nothing and nothing was\n\
         left behind. What NVIDIA's module does (driver {driver}) is recorded: the first and worst thing that happened; it is not asked for\n\
         what only ours promises.\n\n\
         | verdict | means | ours | NVIDIA's module |\n|---|---|---|---|\n"
    );
    let of = |answer: fn(&Line) -> Option<&Answer>, verdict: Option<Verdict>| {
        lines.iter().filter_map(answer).filter(|answer| answer.verdict() == verdict).count()
    };
    for verdict in Verdict::ALL {
        let (ours, theirs) = (of(|l| l.ours.as_ref(), Some(verdict)), of(|l| l.nvidia_c.as_ref(), Some(verdict)));
        text += &format!("| {} | {} | {ours} | {theirs} |\n", verdict.name(), verdict.means());
    }
    let spared = of(|l| l.nvidia_c.as_ref(), None);
    text += &format!("| not asked | only ours promises it | 0 | {spared} |\n\nCounted by scenario, mode and core.\n\n");
    if ran.done < ran.jobs {
        text += &format!("**Not whole**: {} of the run's {} machines are in it.\n\n", ran.done, ran.jobs);
    }
    if !ran.failed.is_empty() {
        text += &format!("**Failed**, what ends a boot and its console among it: {}.\n\n", ran.failed.join(", "));
    }
    text += "| scenario | test | modes | cores | ours | NVIDIA's module |\n|---|---|---|---|---|---|\n";
    for clause in clauses {
        let of: Vec<&Line> = lines
            .iter()
            .filter(|l| l.name == clause.scenario && l.test == format!("{}/{}", clause.suite, clause.test))
            .collect();
        let set = |f: fn(&Line) -> &String| {
            let mut all: Vec<&str> = Vec::new();
            for line in of.iter().filter(|l| l.ours.is_some()) {
                if !f(line).is_empty() && !all.contains(&f(line).as_str()) {
                    all.push(f(line));
                }
            }
            if all.is_empty() {
                "–".to_string()
            } else {
                all.join(", ")
            }
        };
        text += &format!(
            "| {} | `{}/{}` | {} | {} | {} | {} |\n",
            clause.scenario,
            clause.suite,
            clause.test,
            set(|l| &l.mode),
            set(|l| &l.core),
            together(&of, |l| l.ours.as_ref()),
            together(&of, |l| l.nvidia_c.as_ref()),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(test: &str, mode: &str, core: &str, what: &[&str]) -> Told {
        Told {
            test: test.into(),
            core: core.into(),
            mode: Some(mode.into()),
            skipped: None,
            what: what.iter().map(|w| w.to_string()).collect(),
        }
    }

    fn words(answer: &Option<Answer>) -> String {
        answer.as_ref().map_or(String::new(), ToString::to_string)
    }

    fn clause() -> Clause {
        Clause {
            scenario: "free during dma_map".into(),
            suite: "scenarios".into(),
            test: "free_during_dma_map".into(),
            places: vec![("persistent".into(), "24.10".into()), ("legacy".into(), "25.10".into())],
        }
    }

    #[test]
    fn the_worst_first_and_no_offsets() {
        let what = ["2 pins left", "the kernel: BUG: KASAN: slab-use-after-free in f+0x12/0x34 [nvidia_peermem]"];
        let text = |what: &[&str]| brief(&told("scenarios/x", "legacy", "25.10", what)).to_string();
        assert_eq!(text(&what), "memory safety: BUG: KASAN: slab-use-after-free in f [nvidia_peermem]");
        assert_eq!(text(&[]), "clean");
    }

    #[test]
    fn a_skip_is_no_answer_of_ours_and_named_for_nvidias_module() {
        let mut skipped = told("scenarios/25.10/legacy/free_during_dma_map", "legacy", "25.10", &[]);
        skipped.skipped = Some("maps by itself".to_string());
        let all = std::slice::from_ref(&skipped);
        assert!(lines(&[clause()], all, &[]).is_empty());
        let lines = lines(&[clause()], &[], all);
        assert_eq!((&lines[0].ours, words(&lines[0].nvidia_c)), (&None, "not asked: maps by itself".to_string()));
    }

    #[test]
    fn a_line_for_each_mode_and_core() {
        let name = "scenarios/25.10/legacy/free_during_dma_map";
        let ours = [told(name, "legacy", "25.10", &[]), told(name, "persistent", "25.10", &[])];
        let nvidia_c = [told(name, "legacy", "25.10", &["hung: did not end"])];
        let lines = lines(&[clause()], &ours, &nvidia_c);
        assert_eq!(lines.len(), 2);
        let both = |line: &Line| [words(&line.ours), words(&line.nvidia_c)];
        assert_eq!(both(&lines[0]), ["clean", "hang: hung: did not end"]);
        assert_eq!(both(&lines[1]), ["clean", ""]);
        assert_eq!(split(lines.iter().filter_map(|l| l.nvidia_c.as_ref())), "1 hang");
        let (commit, driver) = ("abc".to_string(), "550.163.01".to_string());
        let mut ran = Ran { commit, driver, table: TABLE, jobs: 2, done: 2, failed: Vec::new() };
        let whole = page(&[clause()], &lines, &ran);
        let row = "| `scenarios/free_during_dma_map` | legacy, persistent | 25.10 | clean | hang: hung: did not end |";
        let verdict = "| hang | a task or the machine does not go on | 0 | 1 |";
        assert!(whole.contains(verdict) && whole.contains(row) && !whole.contains("**"), "{whole}");
        (ran.done, ran.failed) = (1, vec!["x: end/nothing_leaked".to_string()]);
        let bad = page(&[clause()], &lines, &ran);
        assert!(bad.contains("**Not whole**: 1 of the run's 2 ") && bad.contains("x: end/nothing_leaked"), "{bad}");
    }

    #[test]
    fn what_ours_gave_no_answer_to_is_missing() {
        let at = |mode, core| told(&format!("scenarios/{core}/{mode}/free_during_dma_map"), mode, core, &[]);
        let of = |ours: &[Told], nvidia_c: &[Told]| missing(&[clause()], &lines(&[clause()], ours, nvidia_c));
        let both = [at("persistent", "24.10"), at("legacy", "25.10")];
        assert!(of(&both, &[]).is_empty());
        let not = of(&both[..1], &both[1..]);
        assert_eq!(not, ["free during dma_map (scenarios/free_during_dma_map), legacy 25.10"]);
    }

    #[test]
    fn every_suite_of_the_table_has_a_boot() {
        let suites =
            ["scenarios", "smoke", "refusals", "unfenced", "errors", "iommu", "matrix", "verbs", "faults", "unload"];
        let rows = boots::all().unwrap();
        let boots = boots(rows.iter().filter(|row| row.runs.contains(&Run::Scenarios)), &BTreeSet::from(suites));
        let of = |suite: &str| boots.iter().filter(|(_, has)| has.iter().any(|s| s == suite)).count();
        for suite in suites {
            let wanted = match suite {
                "scenarios" => Core::TESTED.len(),
                "iommu" => 4,
                _ => 1,
            };
            assert_eq!(of(suite), wanted, "{suite}");
        }
        for (row, _) in boots {
            assert!(row.kernel == Kernel::Debug72 && row.module == Module::Ours, "{}", row.name);
        }
    }
}
