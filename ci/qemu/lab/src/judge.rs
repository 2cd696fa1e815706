// SPDX-License-Identifier: GPL-2.0

//! Boots the machine of one row of the table of boots, and judges the results by the tests and by
//! the console.

use crate::boots::{Expect, Row};
use crate::lanes::Found;
use crate::pair;
use crate::verdict::{self, Complaint, Verdict};
use anyhow::{ensure, Context, Result};
use lab::alarms::Kind;
use lab::artefacts::{self, Built};
use lab::axes::Module;
use lab::ctx::Lab;
use lab::ktap::{print_test, Outcome, Test};
use lab::machine::Report;
use lab::sh::say;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;

/// The complaint about a machine that stopped in a test without an alarm on its console.
const NO_WORD: &str = "no word on the console";

/// What the guest reports after a test of the scenario table.
#[derive(Clone, Debug, Deserialize)]
pub struct Complaints {
    pub test: String,
    #[serde(rename = "generation")]
    pub core: String,
    /// How the module pins. `None` where the runner does not load nvidia-peermem.
    pub mode: Option<String>,
    pub skipped: Option<String>,
    /// The complaints. Empty in the row that announces the test.
    #[serde(default)]
    pub what: Vec<Complaint>,
}

/// Boots the row's machine with these of its suites.
pub fn row(lab: &Lab, built: &Built, row: &Row, suites: &[String], more: &[String]) -> Result<Found> {
    let kind = row.image();
    let mut boot = row.boot(suites);
    boot.append.extend_from_slice(more);
    let counts = lab.build.join("free_cost.txt");
    if let Expect::FreeCost(_) = &row.expect {
        boot.plugin = Some(artefacts::plugin(lab, row.kernel, &counts)?);
    }
    let mut reports =
        if row.is_pair() { pair::run(lab, built, kind, &boot)? } else { vec![boot.run(lab, built, kind)?] };
    let mut found = Found::default();
    if let Expect::Replay(name) = &row.expect {
        boot.name += "-again";
        reports.push(boot.run(lab, built, kind)?);
        let test = replayed(&reports, name);
        print_test(&test);
        found.tests.push(test);
    }
    for mut report in reports {
        let label = format!("{}: ", report.name);
        let none = BTreeMap::new();
        let expected = if let Expect::Alarms(alarms) = &row.expect { alarms } else { &none };
        let mut judged = judge(&report, expected, row.module);
        match &row.expect {
            Expect::Alarms(_) => judged.extend(untested(&report, suites, &label)),
            Expect::Replay(_) => {}
            Expect::FreeCost(most) => {
                let text = fs::read_to_string(&counts).with_context(|| format!("read {}", counts.display()))?;
                let test = free_cost(&text, report.json.get("free_cost").map_or(&[], Vec::as_slice), *most)?;
                test.notes.iter().for_each(|note| println!("{label}{note}"));
                judged.push(test);
            }
            Expect::Canary(tests) => {
                // The guest's own tests do not count here, not even whether the machine survived.
                report.tests.clear();
                judged = caught(&report, tests)?;
            }
        }
        if row.module != Module::NvidiaC {
            judged.extend(unexpected_skips(&report, row, &label));
        }
        judged.into_iter().for_each(|test| report.add(test));
        if report.tests.iter().any(Test::has_failed) {
            say(&format!("  {label}console: {}", report.console.display()));
        }
        if row.module == Module::NvidiaC {
            let lines = report.alarms.iter().map(|a| json!({"boot": report.name, "line": a.line, "number": a.number}));
            report.json.entry("nvidia_c_alarms".to_string()).or_default().extend(lines);
        }
        found.nvidia.extend(report.nvidia);
        found.tests.append(&mut report.tests);
        for (name, mut rows) in report.json {
            found.json.entry(name).or_default().append(&mut rows);
        }
    }
    Ok(found)
}

/// Judges what the plugin counted for each row of the guest's. Each row has two sections: from the
/// provider's call to the core's hook, and from there back. Lines with a `+` count the kernel's own
/// instructions a second time, by the function on whose behalf they ran. A timer tick in a section
/// belongs to neither, so the median of each size is judged.
fn free_cost(counted: &str, rows: &[Value], most: u64) -> Result<Test> {
    let section = |text: &str| -> Result<u64> {
        let lines = text.lines().filter(|l| !l.starts_with('+'));
        let counts = lines.map(|l| l.split_once(' ').and_then(|(_, n)| n.parse::<u64>().ok()));
        counts.sum::<Option<u64>>().with_context(|| format!("the plugin's section {text:?}"))
    };
    let sections = counted.split("==\n").skip(1).map(section).collect::<Result<Vec<_>>>()?;
    let (frees, marked) = (rows.len(), sections.len());
    ensure!(frees > 0 && marked == 2 * frees, "{marked} sections of {frees} frees");
    let mut sizes: BTreeMap<u64, Vec<[u64; 2]>> = BTreeMap::new();
    for (row, halves) in rows.iter().zip(sections.chunks(2)) {
        let size = row["size"].as_u64().with_context(|| format!("no size in {row}"))?;
        sizes.entry(size).or_default().push([halves[0], halves[1]]);
    }
    let (mut notes, mut passed) = (Vec::new(), true);
    for (size, mut frees) in sizes {
        frees.sort_unstable_by_key(|halves| halves[0] + halves[1]);
        let [before, after] = frees[frees.len() / 2];
        notes.push(format!(
            "{} KiB: {} instructions of ours, {before} before the core's invalidate and {after} after it; at most {most}",
            size >> 10,
            before + after
        ));
        passed &= before + after <= most;
    }
    Ok(Test::new("a free with one registration", passed, notes))
}

/// Returns a test that passes if every boot gave the same rows of this name.
fn replayed(reports: &[Report], name: &str) -> Test {
    let rows: Vec<_> = reports.iter().map(|r| r.json.get(name)).collect();
    let same = rows[0].is_some() && rows.iter().all(|row| *row == rows[0]);
    let notes = if same { Vec::new() } else { rows.iter().map(|row| format!("{row:?}")).collect() };
    Test::new(format!("the same {name} twice"), same, notes)
}

/// Returns a failed test for each suite in which every test was skipped, because it would look like
/// one that passed.
fn untested(report: &Report, suites: &[String], label: &str) -> Vec<Test> {
    let ran = |suite: &&String| {
        let of_suite = |t: &&Test| t.name.strip_prefix(label).is_some_and(|n| n.starts_with(&format!("{suite}/")));
        report.tests.iter().filter(of_suite).any(|t| !matches!(t.outcome, Outcome::Skipped(_)))
    };
    let why = "not one of its tests ran: take it out of this boot, or see why each was skipped";
    let nothing = |suite: &String| Test::failed(format!("{suite}: something of it is tested"), why);
    suites.iter().filter(|suite| !ran(suite)).map(nothing).collect()
}

/// Returns a failed test for each test that was skipped for a reason that the table of boots does
/// not expect.
fn unexpected_skips(report: &Report, row: &Row, label: &str) -> Vec<Test> {
    let unexpected = |test: &Test| {
        let Outcome::Skipped(reason) = &test.outcome else { return None };
        let expected = row.skips.iter().any(|skip| skip.expects(&row.name, reason));
        let name = test.name.strip_prefix(label).unwrap_or(&test.name);
        let why = format!("{reason}; ci/qemu/boots.toml does not expect that of this boot");
        (!expected).then(|| Test::failed(format!("{name}: is not skipped"), why))
    };
    report.tests.iter().filter_map(unexpected).collect()
}

/// Returns a failed test for each test that every boot which begins it skipped, unless it is left
/// to the soak. The names in `tests` begin with the boot's name and `: `. A test that no boot
/// begins is not seen here.
pub fn never_ran(rows: &[&Row], tests: &[&Test]) -> Vec<Test> {
    let mut reasons: BTreeMap<&str, Option<Vec<String>>> = BTreeMap::new();
    for test in tests {
        let Some((boot, name)) = test.name.split_once(": ") else { continue };
        let Some(row) = rows.iter().find(|row| row.name == boot) else { continue };
        let all = reasons.entry(name).or_insert_with(|| Some(Vec::new()));
        match &test.outcome {
            Outcome::Skipped(reason) if row.skips.iter().any(|s| s.soak && s.expects(boot, reason)) => *all = None,
            Outcome::Skipped(reason) => all.iter_mut().for_each(|all| all.push(format!("{boot}: {reason}"))),
            _ => *all = None,
        }
    }
    let missing = reasons.into_iter().filter_map(|(name, reasons)| Some((name, reasons?)));
    missing.map(|(name, notes)| Test::new(format!("{name}: runs in some boot"), false, notes)).collect()
}

/// Returns what the guest reported for each test. For a test that never ended, the console supplies
/// the complaint.
pub fn complaints(report: &Report) -> Result<Vec<Complaints>> {
    let all = |name: &str| -> Result<Vec<Complaints>> {
        let rows = report.json.get(name).into_iter().flatten();
        rows.map(|row| Complaints::deserialize(row).with_context(|| format!("the guest's row {row}"))).collect()
    };
    let mut rows = all("scenario")?;
    if let Some(mut begun) = all("begin")?.pop().filter(|begun| !rows.iter().any(|row| row.test == begun.test)) {
        let begin = report.begun.get(&begun.test).copied().unwrap_or(usize::MAX);
        let here = || report.alarms.iter().rev().filter(|a| a.number > begin);
        // The report of spoilt memory says more than the reports of its consequences.
        let worst = here().find(|a| matches!(a.kind, Kind::Kasan | Kind::Bug)).or_else(|| here().next());
        let alarm = worst.map_or(NO_WORD, |a| a.line.as_str());
        // Remove the time, because it differs in each boot.
        let alarm = alarm.split_once("] ").filter(|_| alarm.starts_with('[')).map_or(alarm, |(_, said)| said);
        begun.what = vec![Complaint { kind: verdict::Kind::Stopped, text: alarm.to_string() }];
        rows.push(begun);
    }
    Ok(rows)
}

/// Returns, for each of these tests, whether it caught NVIDIA's module.
fn caught(report: &Report, tests: &[String]) -> Result<Vec<Test>> {
    let rows = complaints(report)?;
    let words = |what: &[Complaint]| what.iter().map(Complaint::to_string).collect::<Vec<_>>();
    let caught = |name: &String| {
        let what = rows.iter().find(|row| row.test == *name).map(|row| row.what.clone());
        let caught = what.as_ref().is_some_and(|what| Verdict::worst(what).0 == Verdict::MemorySafety);
        let unseen = "no alarm, no lost pin: the lab would not see ours break either".to_string();
        let notes = match what {
            None => vec!["it did not run".to_string()],
            Some(what) if caught => words(&what),
            Some(what) => [vec![unseen], words(&what)].concat(),
        };
        Test::new(format!("NVIDIA's module is caught in {name}"), caught, notes)
    };
    Ok(tests.iter().map(caught).collect())
}

/// Returns tests made from the console: each unexpected alarm fails, and so does each expected
/// alarm that did not come. For NVIDIA's module, they are recorded and not judged.
pub fn judge(report: &Report, expected: &BTreeMap<Kind, usize>, module: Module) -> Vec<Test> {
    let mut tests = Vec::new();
    for (kind, want) in expected {
        let have = report.alarms.iter().filter(|alarm| alarm.kind == *kind).count();
        let notes = vec![format!("{want} wanted, {have} on the console")];
        tests.push(Test::new(format!("console/{kind:?} alarm is caught"), have == *want, notes));
    }
    let unexpected: Vec<String> = report
        .alarms
        .iter()
        .filter(|a| !expected.contains_key(&a.kind))
        .map(|a| format!("line {}: {}", a.number, a.line))
        .collect();
    let name = "console/no alarm";
    tests.push(match unexpected.first() {
        Some(first) if module == Module::NvidiaC => {
            Test::skipped(name, format!("NVIDIA's module: {} recorded, {first}", unexpected.len()))
        }
        _ => Test::new(name, unexpected.is_empty(), unexpected),
    });
    tests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boots;
    use lab::alarms::Alarm;
    use lab::ktap::Counts;
    use std::time::Duration;

    fn report(kinds: &[Kind]) -> Report {
        let alarms = kinds.iter().map(|k| Alarm { kind: *k, line: format!("{k:?}"), number: 1 }).collect();
        Report {
            name: "x".into(),
            nvidia: Vec::new(),
            tests: Vec::new(),
            json: BTreeMap::new(),
            alarms,
            begun: BTreeMap::from([("s/b".into(), 0)]),
            console: "x".into(),
            elapsed: Duration::ZERO,
            screen: lab::ktap::Screen::Tests,
        }
    }

    fn failures(tests: &[Test]) -> usize {
        Counts::of(tests).failed
    }

    #[test]
    fn exactly_the_expected_alarms_must_come() {
        use Kind::{Bug, Kasan, Lockdep, Warning};
        let (none, two) = (BTreeMap::new(), BTreeMap::from([(Kasan, 1), (Lockdep, 1)]));
        for (expected, got, failed) in [
            (&none, &[][..], 0),
            (&none, &[Warning], 1),
            (&two, &[Kasan, Lockdep], 0),
            (&two, &[Kasan], 1),
            (&two, &[Kasan, Kasan, Lockdep], 1),
            (&two, &[Kasan, Lockdep, Bug], 1),
        ] {
            assert_eq!(failures(&judge(&report(got), expected, Module::Ours)), failed, "{got:?}");
        }
        let nvidia_c = judge(&report(&[Warning]), &none, Module::NvidiaC);
        assert!(matches!(&nvidia_c[0].outcome, Outcome::Skipped(why) if why.contains("Warning")), "{nvidia_c:?}");
    }

    #[test]
    fn a_suite_that_skips_everything_is_a_failure() {
        let skipped = |name| Test::skipped(name, "stays loaded");
        let (passed, failed) = (Test::new("x: a/two", true, Vec::new()), Test::failed("x: c/one", ""));
        let tests = vec![skipped("x: a/one"), passed, skipped("x: b/one"), failed];
        let report = Report { tests, ..report(&[]) };
        let names: Vec<String> =
            untested(&report, &["a", "b", "c", "d"].map(String::from), "x: ").into_iter().map(|t| t.name).collect();
        assert_eq!(names, ["b: something of it is tested", "d: something of it is tested"]);
    }

    #[test]
    fn a_skip_that_nobody_expects_is_a_failure_and_so_is_a_test_that_never_runs() {
        let rows = boots::all().unwrap();
        let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        let (debian, debug) = (of("debian-6.12/25.10/persistent/1gpu"), of("debug-7.2/25.10/both/1gpu"));
        let test = |row: &Row, name: &str, skipped: Option<&str>| {
            let name = format!("{}: {name}", row.name);
            skipped.map_or(Test::new(&name, true, Vec::new()), |why| Test::skipped(&name, why))
        };
        let (no_lockdep, no_faults) = ("this kernel has no lockdep", "this kernel has no fault injection");
        let unexpected = |row: &Row, skipped: &str| {
            let report = Report { tests: vec![test(row, "a/b", Some(skipped))], ..report(&[]) };
            failures(&unexpected_skips(&report, row, &format!("{}: ", row.name)))
        };
        assert_eq!((unexpected(debian, no_lockdep), unexpected(debug, no_lockdep)), (0, 1));
        assert_eq!(unexpected(debian, "it is Monday"), 1);

        let tests = [
            test(debian, "skipped/everywhere", Some(no_lockdep)),
            test(debug, "skipped/everywhere", Some(no_lockdep)),
            test(debian, "runs/once", Some(no_lockdep)),
            test(debug, "runs/once", None),
            test(debian, "left/to_the_soak", Some(no_faults)),
        ];
        let missing = never_ran(&[debian, debug], &tests.iter().collect::<Vec<_>>());
        let missing: Vec<_> = missing.iter().map(|t| (t.name.as_str(), t.notes.len())).collect();
        assert_eq!(missing, [("skipped/everywhere: runs in some boot", 2)]);
    }

    #[test]
    fn a_free_is_two_sections_and_judged_by_its_median() {
        let rows = [json!({"size": 65536}), json!({"size": 65536}), json!({"size": 65536})];
        let text = "==\nff 100\n+ff 60\nfe 2\n==\nff 90\n==\nff 9000\n==\nff 90\n==\nff 100\n==\nff 90\n";
        let test = free_cost(text, &rows, 192).unwrap();
        assert_eq!(test.outcome, Outcome::Passed);
        assert!(test.notes[0].contains("64 KiB: 192 instructions of ours, 102 before"), "{:?}", test.notes);
        assert_eq!(free_cost(text, &rows, 191).unwrap().outcome, Outcome::Failed);
        assert!(free_cost(text, &rows[..2], 550).is_err(), "a free without its marks");
        assert!(free_cost("", &[], 550).is_err(), "nothing was counted");
    }

    #[test]
    fn a_replay_is_the_same_twice() {
        let with = |rows: &[u32]| Report {
            json: [("x".to_string(), rows.iter().map(|r| json!(r)).collect())].into(),
            ..report(&[])
        };
        let outcome = |a: &[u32], b: &[u32]| replayed(&[with(a), with(b)], "x").outcome;
        assert_eq!(outcome(&[1, 2], &[1, 2]), Outcome::Passed);
        assert_eq!(outcome(&[1, 2], &[2, 1]), Outcome::Failed);
        assert_eq!(replayed(&[report(&[]), report(&[])], "x").outcome, Outcome::Failed, "nothing was compared");
    }

    #[test]
    fn a_canary_that_comes_out_clean_is_a_failure() {
        let row = |test: &str, what: &[(&str, &str)]| {
            let what: Vec<Value> = what.iter().map(|(kind, text)| json!({"kind": kind, "text": text})).collect();
            json!({"test": test, "generation": "25.10", "what": what})
        };
        let mut report = report(&[Kind::Bug]);
        let judged = |report: &Report| -> Vec<bool> {
            caught(report, &["s/a", "s/b"].map(String::from)).unwrap().iter().map(|test| !test.has_failed()).collect()
        };
        assert_eq!(judged(&report), [false, false]);
        let alarm = ("kernel", "BUG: KASAN: slab-use-after-free");
        report.json.insert("scenario".into(), vec![row("s/a", &[("promise", "wanted 1"), alarm]), row("s/b", &[])]);
        assert_eq!(judged(&report), [true, false]);
        // A circle of locks is a finding for either module.
        let circle = ("kernel", "WARNING: possible circular locking dependency detected");
        report.json.insert("scenario".into(), vec![row("s/a", &[circle]), row("s/b", &[alarm])]);
        assert_eq!(judged(&report), [false, true]);
        // Breaking a promise that only our module gives is no finding against NVIDIA's module;
        // losing a pin is one.
        let pins = ("pinned", "the GPU's accounting is not clean: [(\"live_pins\", 1)]");
        let users = ("promise", "0 users, wanted 1");
        report.json.insert("scenario".into(), vec![row("s/a", &[users]), row("s/b", &[pins])]);
        assert_eq!(judged(&report), [false, true]);
        // The machine stopped in the second test, with an alarm.
        let panic = Alarm { kind: Kind::Bug, line: "Kernel panic - not syncing".into(), number: 1 };
        report.alarms[0] = panic.clone();
        report.json.insert("scenario".into(), vec![row("s/a", &[alarm])]);
        report.json.insert("begin".into(), vec![row("s/a", &[]), row("s/b", &[])]);
        assert_eq!(judged(&report), [true, true]);
        // The same with a circle of locks as the alarm, and with an alarm that belongs to the test
        // before.
        report.alarms[0] = Alarm { kind: Kind::Lockdep, line: circle.1.into(), number: 1 };
        assert_eq!(judged(&report), [true, false]);
        report.alarms[0] = panic;
        report.begun.insert("s/b".into(), 2);
        assert_eq!(judged(&report), [true, false]);
        // The same without any alarm.
        report.alarms.clear();
        assert_eq!(judged(&report), [true, false]);
    }

    #[test]
    fn the_console_explains_a_test_that_never_ended() {
        let row = |test: &str| json!({"test": test, "generation": "25.10", "mode": "legacy", "what": []});
        let mut report = report(&[]);
        report.json.insert("begin".into(), vec![row("scenarios/a"), row("s/b")]);
        report.json.insert("scenario".into(), vec![row("scenarios/a")]);
        report.alarms.push(Alarm { kind: Kind::Bug, line: "[   10.414051] Kernel panic".into(), number: 1 });
        let rows = complaints(&report).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].what, [Complaint { kind: verdict::Kind::Stopped, text: "Kernel panic".into() }]);
    }
}
