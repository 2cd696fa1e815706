//! `make scenarios`: the scenario table against ours and, in legacy mode, against NVIDIA's module; build/scenarios.json
//! and docs/scenarios.md.

use crate::boots::{self, Row, Run};
use crate::ctx::Lab;
use crate::image::{Module, More};
use crate::kernel::Flavour;
use crate::lanes::{self, Found, Job};
use crate::machine::{Boot, Report};
use crate::sh::{self, human, say};
use crate::{prepare, Ready};
use anyhow::{bail, Context, Result};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Generations of the core, the newest first.
const GENERATIONS: [&str; 3] = ["25.04", "5.5", "5.1"];
/// The suite whose tests exist for each generation; those of others run on the newest.
const OWN: &str = "scenarios";
/// NVIDIA's module may stop the machine in each scenario; more boots than that come from something else.
const REBOOTS: usize = 80;
/// Where its reports are to be found again.
const TABLE: &str = "docs/scenarios.md";

/// A row of the guest's table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    scenario: String,
    suite: String,
    test: String,
}

/// What the guest says of a test of the table, before it and after.
#[derive(Clone, Debug)]
struct Told {
    test: String,
    generation: String,
    /// Empty where nvidia-peermem is not loaded by the runner.
    mode: String,
    skipped: bool,
    what: Vec<String>,
}

/// A line of build/scenarios.json.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    test: String,
    mode: String,
    generation: String,
    ours: Option<String>,
    rival: Option<String>,
}

fn text(value: &Value, key: &str) -> Result<String> {
    value[key].as_str().map(str::to_string).with_context(|| format!("no text {key:?} in {value}"))
}

impl Clause {
    fn read(value: &Value) -> Result<Self> {
        Ok(Clause { scenario: text(value, "scenario")?, suite: text(value, "suite")?, test: text(value, "test")? })
    }
}

impl Told {
    fn read(value: &Value) -> Result<Self> {
        let what = value["what"].as_array().with_context(|| format!("no list \"what\" in {value}"))?;
        Ok(Told {
            test: text(value, "test")?,
            generation: text(value, "generation")?,
            mode: value["mode"].as_str().unwrap_or_default().to_string(),
            skipped: !value["skipped"].is_null(),
            what: what.iter().filter_map(|w| w.as_str().map(str::to_string)).collect(),
        })
    }
}

impl Line {
    fn json(&self) -> Value {
        json!({
            "name": self.name, "test": self.test, "mode": self.mode, "generation": self.generation,
            "ours": self.ours, "rival": self.rival,
        })
    }
}

pub fn run(lab: &Lab, lanes: usize) -> Result<bool> {
    let start = Instant::now();
    let ready = prepare(lab, Flavour::Debug)?;
    let table: Vec<Value> = serde_json::from_str(&sh::output(sh::command(lab, &ready.parts.guest).arg("table"))?)
        .context("the guest's table")?;
    let clauses = table.iter().map(Clause::read).collect::<Result<Vec<_>>>()?;
    let suites: BTreeSet<&str> = clauses.iter().map(|c| c.suite.as_str()).collect();
    let boots = ours(&suites);
    let rival = (Module::Rival, More::Nothing);
    let images = ready.images(lab, boots.iter().map(|(row, ..)| row.image()).chain([rival]))?;

    let mut jobs = Vec::new();
    for (row, generation, suites) in boots {
        let (ready, image) = (&ready, images[&row.image()].clone());
        jobs.push(Job {
            name: format!("ours {} {generation}", row.name),
            takes: row.takes,
            run: Box::new(move || once(lab, ready, &image, row, generation, &suites)),
        });
    }
    for generation in GENERATIONS {
        let suites = if generation == GENERATIONS[0] { vec![OWN, "smoke", "refusals"] } else { vec![OWN] };
        let (ready, image) = (&ready, images[&rival].clone());
        jobs.push(Job {
            name: format!("rival {generation}"),
            takes: 600,
            run: Box::new(move || again_and_again(lab, ready, &image, generation, &suites)),
        });
    }
    let done = lanes::run(jobs, lanes, |_| ());

    let told = |which: &str| -> Result<Vec<Told>> {
        let rows = done.iter().filter(|d| d.name.starts_with(which)).flat_map(|d| d.found.json.get("scenario"));
        rows.flatten().map(Told::read).collect()
    };
    let lines = lines(&clauses, &told("ours ")?, &told("rival ")?);
    let file = lab.repo.join("build/scenarios.json");
    let rows: Vec<Value> = lines.iter().map(Line::json).collect();
    fs::write(&file, serde_json::to_string_pretty(&rows)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    let commit = sh::output(sh::command(lab, "git").args(["describe", "--always", "--dirty", "--abbrev=12"]))?;
    fs::write(lab.repo.join(TABLE), page(&clauses, &lines, commit.trim()))
        .with_context(|| format!("cannot write {TABLE}"))?;
    let not_clean: Vec<&Line> = lines.iter().filter(|l| l.ours.as_deref().is_some_and(|o| o != "clean")).collect();
    for line in &not_clean {
        println!("{} ({}, {}): {}", line.name, line.mode, line.generation, line.ours.as_deref().unwrap_or_default());
    }
    let missing: Vec<&Clause> = clauses.iter().filter(|c| !lines.iter().any(|l| l.name == c.scenario)).collect();
    for clause in &missing {
        println!("{}: {}/{} did not run", clause.scenario, clause.suite, clause.test);
    }
    let broken = lines.iter().filter(|l| l.rival.as_deref().is_some_and(|r| r != "clean")).count();
    let asked = lines.iter().filter(|l| l.rival.is_some()).count();
    say(&format!("took {}; {} and {TABLE}", human(start.elapsed()), lab.short(&file)));
    println!(
        "ours: {} of {} clean; NVIDIA's module: {} of {asked}",
        lines.iter().filter(|l| l.ours.as_deref() == Some("clean")).count(),
        lines.iter().filter(|l| l.ours.is_some()).count(),
        asked - broken
    );
    Ok(not_clean.is_empty() && missing.is_empty())
}

/// The boots of `make test` that have suites of the table, on the newest core; the table's own suite on each.
fn ours<'a>(suites: &BTreeSet<&'a str>) -> Vec<(&'static Row, &'static str, Vec<&'a str>)> {
    let mut found = Vec::new();
    for row in boots::BOOTS.iter().filter(|r| r.module == Module::Ours) {
        let has: Vec<&str> = row.suites.iter().filter_map(|s| suites.get(s).copied()).collect();
        let generations = match () {
            () if row.name == OWN => &GENERATIONS[..],
            () if !row.suites.contains(&OWN) && row.runs.contains(&Run::Test) && !has.is_empty() => &GENERATIONS[..1],
            () => &[],
        };
        found.extend(generations.iter().map(|generation| (row, *generation, has.clone())));
    }
    found
}

/// Words of the guest for all of these boots.
fn words(generation: &str) -> Vec<String> {
    vec!["guest.table=1".to_string(), format!("guest.generation={generation}")]
}

fn once(lab: &Lab, ready: &Ready, image: &Path, row: &Row, generation: &str, suites: &[&str]) -> Result<Found> {
    let mut boot = row.boot(suites);
    boot.name = format!("scenarios-{}-{generation}", row.name);
    boot.append.extend(words(generation));
    let report = boot.run(lab, &ready.kernel, image, &format!("{}: ", boot.name))?;
    Ok(Found { tests: report.tests, json: report.json })
}

/// NVIDIA's module: after each alarm the machine boots anew and goes on with the next scenario.
fn again_and_again(lab: &Lab, ready: &Ready, image: &Path, generation: &str, suites: &[&str]) -> Result<Found> {
    let mut found = Found::default();
    let mut suites = suites.to_vec();
    let mut after: Option<String> = None;
    for _ in 0..REBOOTS {
        let mut boot = Boot::new(&format!("scenarios-rival-{generation}"), &suites.join(","));
        // Longer than a test's own limit and the death of its process.
        boot.limit = Duration::from_secs(900);
        boot.append.extend(words(generation));
        boot.append.push("guest.fragile=1".to_string());
        boot.append.extend(Module::Rival.word());
        boot.append.extend(after.as_ref().map(|a| format!("guest.after={a}")));
        let report = boot.run(lab, &ready.kernel, image, &format!("{}: ", boot.name))?;
        let part = rows(&report);
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
    bail!("rival {generation}: booted {REBOOTS} times and still not at the end")
}

/// What the guest said of each test; of one that never ended, what the console says.
pub fn rows(report: &Report) -> Vec<Value> {
    let all = |name: &str| report.json.get(name).into_iter().flatten().cloned();
    let mut rows: Vec<Value> = all("scenario").collect();
    if let Some(mut begun) = all("begin").next_back() {
        if !rows.iter().any(|r| r["test"] == begun["test"]) {
            let alarm = report.alarms.last().map_or("no word on the console", |a| a.line.as_str());
            begun["what"] = vec![format!("machine stopped: {alarm}")].into();
            rows.push(begun);
        }
    }
    rows
}

/// The most telling reason, short enough for a table.
fn brief(told: &Told) -> Option<String> {
    if told.skipped {
        return None;
    }
    let telling = |words: &[&str]| told.what.iter().find(|w| words.iter().any(|x| w.contains(x)));
    let reason = telling(&["machine stopped"])
        .or_else(|| telling(&["hung:", "cannot be killed"]))
        .or_else(|| telling(&["BUG: KASAN"]))
        .or_else(|| telling(&["the kernel:"]))
        .or_else(|| told.what.first());
    let Some(reason) = reason else { return Some("clean".to_string()) };
    let reason = reason.replace("the kernel: ", "");
    // Offsets and addresses are others in each build.
    let words: Vec<&str> = reason.split_whitespace().map(|w| w.split("+0x").next().unwrap_or(w)).collect();
    let mut text = words.join(" ").replace('|', "/");
    if let Some((at, _)) = text.char_indices().nth(110) {
        text.truncate(at);
        text += " …";
    }
    Some(text)
}

fn lines(clauses: &[Clause], ours: &[Told], rival: &[Told]) -> Vec<Line> {
    let mut lines = Vec::new();
    for clause in clauses {
        let stands = |t: &&Told| {
            t.test.split('/').next() == Some(&clause.suite) && t.test.rsplit('/').next() == Some(&clause.test)
        };
        let key = |t: &Told| (t.mode.clone(), t.generation.clone());
        let by = |told: &[Told]| -> BTreeMap<(String, String), String> {
            let mut all = BTreeMap::new();
            for (key, brief) in told.iter().filter(stands).filter_map(|t| Some((key(t), brief(t)?))) {
                // It may run in more than one machine: what broke in any of them counts.
                if brief != "clean" || !all.contains_key(&key) {
                    all.insert(key, brief);
                }
            }
            all
        };
        let (ours, rival) = (by(ours), by(rival));
        let keys: BTreeSet<&(String, String)> = ours.keys().chain(rival.keys()).collect();
        for key in keys {
            lines.push(Line {
                name: clause.scenario.clone(),
                test: format!("{}/{}", clause.suite, clause.test),
                mode: key.0.clone(),
                generation: key.1.clone(),
                ours: ours.get(key).cloned(),
                rival: rival.get(key).cloned(),
            });
        }
    }
    lines
}

/// What several lines have in common, or each with where it was.
fn together(lines: &[&Line], what: impl Fn(&Line) -> Option<&String>) -> String {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in lines {
        if let Some(text) = what(line) {
            places.entry(text).or_default().push(format!("{} {}", line.mode, line.generation).trim().to_string());
        }
    }
    match places.len() {
        0 => "–".to_string(),
        1 => places.keys().map(|t| t.to_string()).collect(),
        _ => places.iter().map(|(t, p)| format!("{t} ({})", p.join(", "))).collect::<Vec<_>>().join("; "),
    }
}

fn page(clauses: &[Clause], lines: &[Line], commit: &str) -> String {
    let mut text = format!(
        "# The scenario table\n\n\
         Made by `make scenarios` at {commit}; do not edit. Each scenario is one test in the lab (`tests/guest`), with KASAN, lockdep and\n\
         kmemleak, forced by hold points in the GPU driver, the RDMA core and the NIC. *Ours* is judged: clean means that the test\n\
         passed, the kernel said nothing and nothing was left behind. What NVIDIA's module does (driver 550, its only mode there is\n\
         legacy) is recorded: the first and worst thing that happened.\n\n\
         | scenario | test | modes | cores | ours | NVIDIA's module |\n|---|---|---|---|---|---|\n"
    );
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
            set(|l| &l.generation),
            together(&of, |l| l.ours.as_ref()),
            together(&of, |l| l.rival.as_ref()),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarms::{Alarm, Kind};
    use serde_json::json;

    fn told(test: &str, mode: &str, generation: &str, what: &[&str]) -> Told {
        Told {
            test: test.into(),
            generation: generation.into(),
            mode: mode.into(),
            skipped: false,
            what: what.iter().map(|w| w.to_string()).collect(),
        }
    }

    fn clause() -> Clause {
        Clause { scenario: "free during dma_map".into(), suite: "scenarios".into(), test: "free_during_dma_map".into() }
    }

    #[test]
    fn what_never_ended_is_told_by_the_console() {
        let row = |test: &str| json!({"test": test, "generation": "25.04", "mode": "legacy", "what": []});
        let report = Report {
            name: "x".into(),
            tests: Vec::new(),
            json: BTreeMap::from([
                ("begin".to_string(), vec![row("scenarios/a"), row("scenarios/b")]),
                ("scenario".to_string(), vec![row("scenarios/a")]),
            ]),
            alarms: vec![Alarm { kind: Kind::Bug, line: "Kernel panic".into(), number: 1 }],
            console: "x".into(),
            elapsed: Duration::ZERO,
        };
        let rows = rows(&report);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1]["what"][0], "machine stopped: Kernel panic");
    }

    #[test]
    fn the_worst_first_and_no_offsets() {
        let what = ["2 pins left", "the kernel: BUG: KASAN: slab-use-after-free in f+0x12/0x34 [nvidia_peermem]"];
        let text = brief(&told("scenarios/x", "legacy", "25.04", &what)).unwrap();
        assert_eq!(text, "BUG: KASAN: slab-use-after-free in f [nvidia_peermem]");
        assert_eq!(brief(&told("scenarios/x", "legacy", "25.04", &[])).unwrap(), "clean");
        let mut skipped = told("scenarios/x", "legacy", "25.04", &[]);
        skipped.skipped = true;
        assert_eq!(brief(&skipped), None);
    }

    #[test]
    fn a_line_for_each_mode_and_generation() {
        let name = "scenarios/25.04/legacy/free_during_dma_map";
        let ours = [told(name, "legacy", "25.04", &[]), told(name, "persistent", "25.04", &[])];
        let rival = [told(name, "legacy", "25.04", &["hung: did not end"])];
        let lines = lines(&[clause()], &ours, &rival);
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].ours.as_deref(), lines[0].rival.as_deref()), (Some("clean"), Some("hung: did not end")));
        assert_eq!((lines[1].ours.as_deref(), lines[1].rival.as_deref()), (Some("clean"), None));
        let page = page(&[clause()], &lines, "abc");
        let row = "| `scenarios/free_during_dma_map` | legacy, persistent | 25.04 | clean | hung: did not end |";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn every_suite_of_the_table_has_a_boot() {
        let boots = ours(&BTreeSet::from(["scenarios", "smoke", "refusals"]));
        let of = |suite: &str| boots.iter().filter(|b| b.2.contains(&suite)).count();
        assert_eq!((of("scenarios"), of("refusals")), (3, 1));
        assert!(of("smoke") >= 1);
    }
}
