// SPDX-License-Identifier: GPL-2.0

//! `make scenarios`: runs the scenario table with our module and, in legacy mode, with NVIDIA's,
//! and writes docs/results/scenarios.md.

use crate::boots::{self, Row};
use crate::judge::{self, complaints, Complaints};
use crate::lanes::{self, Found, Job};
use crate::verdict::{Complaint, Verdict};
use anyhow::{bail, Context, Result};
use lab::artefacts::{self, build, Built};
use lab::axes::{Also, Core, Kernel, Module, Named, Run};
use lab::ctx::Lab;
use lab::machine::Boot;
use lab::nvidia_c;
use lab::page;
use lab::parts;
use lab::sh::{self, human, say};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The largest number of boots for NVIDIA's module. It may stop the machine in each scenario;
/// further boots would have another cause.
const REBOOTS: usize = 80;
/// The page for Debian's NVIDIA module, and the one for a module that the user names.
const TABLE: &str = "docs/results/scenarios.md";
const USERS_TABLE: &str = "build/scenarios.md";

/// A row of the guest's table.
#[derive(Clone, Debug, Deserialize)]
struct Clause {
    scenario: String,
    suite: String,
    test: String,
    /// The mode and core of each test.
    places: Vec<(String, String)>,
}

/// The run that the page describes.
struct Ran {
    /// The commit, the date and the machine, in words.
    when: String,
    /// NVIDIA's parts beside which it was, with its own module.
    nvidia: String,
    /// The file of the page.
    table: &'static str,
    jobs: usize,
    done: usize,
    /// The tests of ours that failed, including those about the end of a boot and its console, and
    /// the jobs that could not be done.
    failed: Vec<String>,
}

/// What a module did in a scenario, and why. The reason is short enough for a table, and empty if
/// the verdict is clean. The worst answer compares as the smallest.
type Answer = (Verdict, String);

/// A value for our module, and one for NVIDIA's.
type Both<T> = [T; 2];
const OURS: usize = 0;
const THEIRS: usize = 1;
type Answers = Mutex<Both<Vec<Complaints>>>;

/// What both modules did in a clause, by mode and core.
struct Line<'a> {
    clause: &'a Clause,
    answers: BTreeMap<(String, String), Both<Option<Answer>>>,
}

impl Clause {
    /// Returns the test's name, without mode and core.
    fn test(&self) -> String {
        format!("{}/{}", self.suite, self.test)
    }
}

impl Line<'_> {
    /// Returns the answers of one module, each with its mode and core.
    fn of(&self, whose: usize) -> impl Iterator<Item = (&(String, String), &Answer)> {
        self.answers.iter().filter_map(move |(place, both)| Some((place, both[whose].as_ref()?)))
    }
}

fn words((verdict, why): &Answer) -> String {
    let name = verdict.name();
    if *verdict == Verdict::Clean {
        name.to_string()
    } else {
        format!("{name}: {why}")
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

    let answers: &Answers = &Mutex::default();
    let mut jobs = Vec::new();
    for (row, suites) in boots {
        let mut theirs = row.clone();
        theirs.module = Module::NvidiaC;
        let same = suites.clone();
        // NVIDIA's module is asked beside NVIDIA's own front alone.
        let asked = row.module != Module::Odd;
        jobs.push(Job::new(format!("ours {}", row.name), row.seconds, move || {
            once(lab, built, &row, &suites, answers)
        }));
        // NVIDIA's job takes the longest. Ours runs first, for a person who stops the run early.
        if asked {
            let name = format!("nvidia_c {}", theirs.name);
            jobs.push(Job::new(name, 0, move || again_and_again(lab, built, &theirs, &same, answers)));
        }
    }
    let commit = sh::git(lab, &["describe", "--always", "--dirty", "--abbrev=12"])?;
    let when = format!("at {commit} on {}, {}", page::today()?, page::machine());
    let nvidia = parts::line(&built.nvidia(theirs));
    let table = if nvidia_c::is_users() { USERS_TABLE } else { TABLE };
    let mut ran = Ran { when, nvidia, table, jobs: jobs.len(), done: 0, failed: Vec::new() };
    let mut kept = Ok(());
    lanes::run(jobs, |done| {
        ran.done += 1;
        // Failures of tests with NVIDIA's module are recorded and do not fail the job. A job that
        // could not be done fails.
        let failed = done.found.tests.iter().filter(|t| t.has_failed());
        ran.failed.extend(failed.map(|t| t.name.clone()));
        // Write the page after each job, so that a run that is stopped keeps its findings.
        let answers = answers.lock().unwrap_or_else(|e| e.into_inner());
        if kept.is_ok() {
            kept = lab.write(ran.table, &page(&lines(&clauses, &answers), &ran));
        }
    });
    kept?;
    let answers = answers.lock().unwrap_or_else(|e| e.into_inner());
    let lines = lines(&clauses, &answers);
    let mut all_clean = true;
    for line in &lines {
        for ((mode, core), ours) in line.of(OURS).filter(|(_, ours)| ours.0 != Verdict::Clean) {
            println!("{} ({mode}, {core}): {}", line.clause.scenario, words(ours));
            all_clean = false;
        }
    }
    let missing = missing(&lines);
    missing.iter().for_each(|what| println!("{what} did not run"));
    say(&format!("took {}; {table}", human(start.elapsed())));
    println!("with {}", ran.nvidia);
    println!("ours: {}", split(&lines, OURS));
    println!("NVIDIA's module: {}", split(&lines, THEIRS));
    if !ran.failed.is_empty() {
        println!("failed, or NVIDIA's module could not be asked: {}", ran.failed.join(", "));
    }
    Ok(all_clean && missing.is_empty() && ran.failed.is_empty())
}

/// Returns the tests that our module did not run or gave no answer to.
fn missing(lines: &[Line]) -> Vec<String> {
    let mut missing = Vec::new();
    for Line { clause, answers } in lines {
        let name = format!("{} ({})", clause.scenario, clause.test());
        if clause.places.is_empty() {
            missing.push(name.clone());
        }
        let silent = clause.places.iter().filter(|place| answers.get(place).is_none_or(|both| both[OURS].is_none()));
        missing.extend(silent.map(|(mode, core)| format!("{name}, {mode} {core}")));
    }
    missing
}

/// Returns the marked boots with their suites of the table. The table's own suite has one boot for
/// each core.
fn boots<'a>(rows: impl Iterator<Item = &'a Row>, suites: &BTreeSet<&str>) -> Vec<(Row, Vec<String>)> {
    let mut found = Vec::new();
    for row in rows {
        let has: Vec<String> = row.suites.iter().filter(|s| suites.contains(s.as_str())).cloned().collect();
        if row.core == Core::Both {
            found.extend(Core::TESTED.map(|core| (row.on(core), has.clone())));
        } else {
            found.push((row.clone(), has));
        }
    }
    found
}

/// Returns the machine of this row, for the tests of the table alone. The row's list of tests to
/// leave out does not apply, because NVIDIA's module may lack what the list names.
fn boot(row: &Row, suites: &[String]) -> Boot {
    let mut boot = row.boot(suites);
    boot.name = format!("scenarios/{}/{}", row.module.name(), row.name);
    boot.append.retain(|word| !word.starts_with("guest.only="));
    boot.append.push("guest.table=1".to_string());
    boot
}

fn add(answers: &Answers, whose: usize, complaints: Vec<Complaints>) {
    answers.lock().unwrap_or_else(|e| e.into_inner())[whose].extend(complaints);
}

fn once(lab: &Lab, built: &Built, row: &Row, suites: &[String], answers: &Answers) -> Result<Found> {
    let boot = boot(row, suites);
    let mut report = boot.run(lab, built, row.image())?;
    // A test in which the machine stopped is a line of the table, too.
    add(answers, OURS, complaints(&report)?);
    judge::judge(&report, &BTreeMap::new(), Module::Ours).into_iter().for_each(|test| report.add(test));
    Ok(report.tests.into())
}

/// Runs NVIDIA's module in the same machine. After each alarm, boots again and goes on with the
/// next scenario.
fn again_and_again(lab: &Lab, built: &Built, row: &Row, suites: &[String], answers: &Answers) -> Result<Found> {
    let mut suites = suites.to_vec();
    let mut after: Option<String> = None;
    for _ in 0..REBOOTS {
        let mut boot = boot(row, &suites);
        // The limit must exceed a test's own limit plus the time that its process takes to end.
        boot.limit = boot.limit.max(Duration::from_secs(900));
        boot.append.push("guest.fragile=1".to_string());
        boot.append.extend(after.as_ref().map(|a| format!("guest.after={a}")));
        let report = boot.run(lab, built, row.image())?;
        let part = complaints(&report)?;
        let last = part.last().map(|complaints| complaints.test.clone());
        add(answers, THEIRS, part);
        let whole = report.tests.iter().any(|t| t.name.contains("end/"));
        if whole {
            return Ok(Found::default());
        }
        let console = report.console.display();
        let last = last.with_context(|| format!("{}: nothing ran in it (console: {console})", boot.name))?;
        let suite = last.split('/').next().unwrap_or_default();
        suites.drain(..suites.iter().position(|s| *s == suite).unwrap_or(0));
        after = Some(last);
    }
    bail!("nvidia_c {}: booted {REBOOTS} times and still not at the end", row.name)
}

/// Returns how many of a module's answers have each verdict, in the legend's order.
fn counts(lines: &[Line], whose: usize) -> Vec<usize> {
    let all: Vec<Verdict> = lines.iter().flat_map(|line| line.of(whose)).map(|(_, answer)| answer.0).collect();
    Verdict::LEGEND.iter().map(|(verdict, ..)| all.iter().filter(|v| *v == verdict).count()).collect()
}

/// Returns the same counts in words: `12 clean, 2 lockdep`.
fn split(lines: &[Line], whose: usize) -> String {
    let named = counts(lines, whose).into_iter().zip(Verdict::LEGEND).rev().filter(|(n, _)| *n > 0);
    named.map(|(n, (_, name, _))| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
}

/// Returns the worst of the complaints, short enough for a table.
fn brief(complaints: &Complaints) -> Answer {
    let (verdict, reason) = Verdict::worst(&complaints.what);
    let reason = reason.map(Complaint::to_string).unwrap_or_default();
    // Leave out offsets and addresses, because they differ in each build.
    let words: Vec<&str> = reason.split_whitespace().map(|w| w.split("+0x").next().unwrap_or(w)).collect();
    let mut text = words.join(" ").replace('|', "/");
    if let Some((at, _)) = text.char_indices().nth(110) {
        text.truncate(at);
        text += " …";
    }
    (verdict, text)
}

fn lines<'a>(clauses: &'a [Clause], both: &Both<Vec<Complaints>>) -> Vec<Line<'a>> {
    let line = |clause: &'a Clause| {
        let stands = |t: &&Complaints| {
            t.test.split('/').next() == Some(&clause.suite) && t.test.rsplit('/').next() == Some(&clause.test)
        };
        let mut answers: BTreeMap<_, Both<Option<Answer>>> = BTreeMap::new();
        for (whose, complaints) in both.iter().enumerate() {
            for one in complaints.iter().filter(stands) {
                let answer = match &one.skipped {
                    None => brief(one),
                    // A skipped test is no answer.
                    Some(_) if whose == OURS => continue,
                    Some(why) => (Verdict::NotAsked, why.clone()),
                };
                let place = (one.mode.clone().unwrap_or_default(), one.core.clone());
                // A test may run in more than one machine: the worst answer counts.
                let worst = &mut answers.entry(place).or_default()[whose];
                *worst = worst.take().into_iter().chain([answer]).min();
            }
        }
        Line { clause, answers }
    };
    clauses.iter().map(line).collect()
}

/// Returns what the answers of one module have in common, or lists each with its place.
fn together(line: &Line, whose: usize) -> String {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((mode, core), answer) in line.of(whose) {
        places.entry(words(answer)).or_default().push(format!("{mode} {core}").trim().to_string());
    }
    match places.len() {
        0 => "–".to_string(),
        1 => places.into_keys().collect(),
        _ => places.iter().map(|(t, p)| format!("{t} ({})", p.join(", "))).collect::<Vec<_>>().join("; "),
    }
}

fn page(lines: &[Line], ran: &Ran) -> String {
    let Ran { when, nvidia, .. } = ran;
    let mut text = format!(
        "# The scenario table\n\n\
         Made by `make scenarios` {when}; do not edit. Each scenario is one test in the lab (`tests/guest`), with KASAN and lockdep\n\
         (kmemleak at the end of each boot), and its races are forced: by hold points in the GPU driver, the RDMA core and the NIC, by\n\
         kprobes in the kernel's DMA mapping. *Ours* is judged: clean means that the test passed, the kernel said nothing and nothing was\n\
         left behind. What NVIDIA's module does is recorded: the first and worst thing that happened; it is not asked for what only ours\n\
         promises. Both ran beside: {nvidia}.\n\n"
    );
    let legend = Verdict::LEGEND.iter().zip(counts(lines, OURS)).zip(counts(lines, THEIRS));
    let legend = legend.map(|(((_, name, means), ours), theirs)| {
        vec![name.to_string(), means.to_string(), ours.to_string(), theirs.to_string()]
    });
    text += &page::table(&["verdict", "means", "ours", "NVIDIA's module"], legend);
    text += "\nCounted by scenario, mode and core.\n\n";
    if ran.done < ran.jobs {
        text += &format!("**Not whole**: {} of the run's {} machines are in it.\n\n", ran.done, ran.jobs);
    }
    if !ran.failed.is_empty() {
        text += &format!("**Failed**, what ends a boot and its console among it: {}.\n\n", ran.failed.join(", "));
    }
    let rows = lines.iter().map(|line| {
        let set = |name: fn(&(String, String)) -> &String| {
            let all: BTreeSet<&str> = line.of(OURS).map(|(place, _)| name(place).as_str()).collect();
            let all: Vec<&str> = all.into_iter().filter(|name| !name.is_empty()).collect();
            if all.is_empty() {
                "–".to_string()
            } else {
                all.join(", ")
            }
        };
        let test = format!("`{}`", line.clause.test());
        let (modes, cores) = (set(|place| &place.0), set(|place| &place.1));
        vec![line.clause.scenario.clone(), test, modes, cores, together(line, OURS), together(line, THEIRS)]
    });
    text + &page::table(&["scenario", "test", "modes", "cores", "ours", "NVIDIA's module"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Kind;

    fn said(test: &str, mode: &str, core: &str, what: &[(Kind, &str)]) -> Complaints {
        Complaints {
            test: test.into(),
            core: core.into(),
            mode: Some(mode.into()),
            skipped: None,
            what: what.iter().map(|(kind, text)| Complaint { kind: *kind, text: text.to_string() }).collect(),
        }
    }

    fn both(both: &Both<Option<Answer>>) -> Both<String> {
        [OURS, THEIRS].map(|whose| both[whose].as_ref().map_or(String::new(), words))
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
        let spoilt = "BUG: KASAN: slab-use-after-free in f+0x12/0x34 [nvidia_peermem]";
        let what = [(Kind::Promise, "2 pins left"), (Kind::Kernel, spoilt)];
        let text = |what: &[(Kind, &str)]| words(&brief(&said("scenarios/x", "legacy", "25.10", what)));
        assert_eq!(text(&what), "memory safety: BUG: KASAN: slab-use-after-free in f [nvidia_peermem]");
        assert_eq!(text(&[]), "clean");
    }

    #[test]
    fn a_skip_is_no_answer_of_ours_and_named_for_nvidias_module() {
        let mut skipped = said("scenarios/25.10/legacy/free_during_dma_map", "legacy", "25.10", &[]);
        skipped.skipped = Some("maps by itself".to_string());
        let clauses = [clause()];
        let lines = lines(&clauses, &[vec![skipped.clone()], vec![skipped]]);
        let answers: Vec<_> = lines[0].answers.values().map(both).collect();
        assert_eq!(answers, [["", "not asked: maps by itself"]]);
    }

    #[test]
    fn a_line_for_each_mode_and_core() {
        let name = "scenarios/25.10/legacy/free_during_dma_map";
        let ours = [said(name, "legacy", "25.10", &[]), said(name, "persistent", "25.10", &[])];
        let nvidia_c = [said(name, "legacy", "25.10", &[(Kind::Hang, "did not end")])];
        let clauses = [clause()];
        let lines = lines(&clauses, &[ours.to_vec(), nvidia_c.to_vec()]);
        let answers: Vec<_> = lines[0].answers.values().map(both).collect();
        assert_eq!(answers, [["clean", "hang: did not end"], ["clean", ""]]);
        assert_eq!(split(&lines, THEIRS), "1 hang");
        let (when, nvidia) = ("at abc".to_string(), "NVIDIA's driver front 550.163.01".to_string());
        let mut ran = Ran { when, nvidia, table: TABLE, jobs: 2, done: 2, failed: Vec::new() };
        let whole = page(&lines, &ran);
        let row = "| `scenarios/free_during_dma_map` | legacy, persistent | 25.10 | clean | hang: did not end |";
        let verdict = "| hang | a task or the machine does not go on | 0 | 1 |";
        assert!(whole.contains("beside: NVIDIA's driver front 550.163.01.\n"), "{whole}");
        assert!(whole.contains(verdict) && whole.contains(row) && !whole.contains("**"), "{whole}");
        (ran.done, ran.failed) = (1, vec!["x: end/nothing_leaked".to_string()]);
        let bad = page(&lines, &ran);
        assert!(bad.contains("**Not whole**: 1 of the run's 2 ") && bad.contains("x: end/nothing_leaked"), "{bad}");
    }

    #[test]
    fn what_ours_gave_no_answer_to_is_missing() {
        let at = |mode, core| said(&format!("scenarios/{core}/{mode}/free_during_dma_map"), mode, core, &[]);
        let of = |ours: &[Complaints], nvidia_c: &[Complaints]| {
            missing(&lines(&[clause()], &[ours.to_vec(), nvidia_c.to_vec()]))
        };
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
        let marked = rows.iter().filter(|row| row.runs.contains(&Run::Scenarios));
        let (odd, marked): (Vec<_>, Vec<_>) = marked.partition(|row| row.module == Module::Odd);
        assert_eq!(odd.len(), 1);
        let boots = boots(marked.into_iter(), &BTreeSet::from(suites));
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
