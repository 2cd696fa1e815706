//! One row of the table of boots: boots the machine and judges what came out, by its tests and by its console.

use crate::alarms::{self, Kind};
use crate::boots::{Expect, Row};
use crate::ctx::Lab;
use crate::image::Module;
use crate::kernel::Kernel;
use crate::ktap::{Outcome, Test};
use crate::lanes::Found;
use crate::machine::{print_test, Report};
use crate::pair;
use crate::scenarios;
use crate::sh::say;
use anyhow::Result;
use serde_json::json;
use std::path::Path;

/// Boots it with these of its suites.
pub fn row(lab: &Lab, kernel: &Kernel, image: &Path, row: &Row, suites: &[&str], more: &[String]) -> Result<Found> {
    let mut boot = row.boot(suites);
    boot.append.extend_from_slice(more);
    let reports = if row.pair {
        pair::run(lab, kernel, image, &boot)?
    } else {
        vec![boot.run(lab, kernel, image, &format!("{}: ", row.name))?]
    };
    let mut found = Found::default();
    for mut report in reports {
        let label = format!("{}: ", report.name);
        let judged = match row.expect {
            Expect::Alarms(expected) => judge(&report, expected, row.module),
            Expect::Bite(tests) => {
                // Whether the machine outlived it is no test.
                report.tests.clear();
                bitten(&report, tests)
            }
        };
        for mut test in judged {
            test.name = format!("{label}{}", test.name);
            print_test(&test);
            report.tests.push(test);
        }
        if report.tests.iter().any(|t| t.outcome == Outcome::Failed) {
            say(&format!("  {label}console: {}", report.console.display()));
        }
        if row.module == Module::Rival {
            let lines = report.alarms.iter().map(|a| json!({"boot": report.name, "line": a.line, "number": a.number}));
            report.json.entry("rival_alarms".to_string()).or_default().extend(lines);
        }
        found.tests.append(&mut report.tests);
        for (name, mut rows) in report.json {
            found.json.entry(name).or_default().append(&mut rows);
        }
    }
    Ok(found)
}

/// Whether the rival was caught in each of these tests: by an alarm, by what it left, or because the machine stopped.
fn bitten(report: &Report, tests: &[&str]) -> Vec<Test> {
    let rows = scenarios::rows(report);
    let bitten = |name: &&str| {
        let row = rows.iter().find(|r| r["test"] == **name);
        let what = row.map(|r| r["what"].as_array().into_iter().flatten().map(|w| w.to_string()).collect::<Vec<_>>());
        let (outcome, notes) = match what {
            Some(what) if !what.is_empty() => (Outcome::Passed, what),
            Some(_) => {
                (Outcome::Failed, vec!["it came out clean: the lab would not see ours break either".to_string()])
            }
            None => (Outcome::Failed, vec!["it did not run".to_string()]),
        };
        Test { name: format!("NVIDIA's module is caught in {name}"), outcome, notes }
    };
    tests.iter().map(bitten).collect()
}

/// Tests made of the console: every alarm that nobody expected fails, and so does every expected one that did not come.
/// What NVIDIA's module does is written down, not judged.
pub fn judge(report: &Report, expected: &[(Kind, usize)], module: Module) -> Vec<Test> {
    let got = alarms::count(&report.alarms);
    let mut tests = Vec::new();
    for (kind, want) in expected {
        let have = got.get(kind).copied().unwrap_or(0);
        let outcome = if have == *want { Outcome::Passed } else { Outcome::Failed };
        let notes = vec![format!("{want} wanted, {have} on the console")];
        tests.push(Test { name: format!("console/{kind:?} alarm is caught"), outcome, notes });
    }
    let unexpected: Vec<String> = report
        .alarms
        .iter()
        .filter(|a| !expected.iter().any(|(kind, _)| *kind == a.kind))
        .map(|a| format!("line {}: {}", a.number, a.line))
        .collect();
    let outcome = match (unexpected.first(), module) {
        (None, _) => Outcome::Passed,
        (Some(_), Module::Ours) => Outcome::Failed,
        (Some(first), Module::Rival) => Outcome::Skipped(format!("rival: {} recorded, {first}", unexpected.len())),
    };
    tests.push(Test { name: "console/no alarm".to_string(), outcome, notes: unexpected });
    tests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarms::Alarm;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn report(kinds: &[Kind]) -> Report {
        let alarms = kinds.iter().map(|k| Alarm { kind: *k, line: format!("{k:?}"), number: 1 }).collect();
        Report {
            name: "x".into(),
            tests: Vec::new(),
            json: BTreeMap::new(),
            alarms,
            console: "x".into(),
            elapsed: Duration::ZERO,
        }
    }

    fn failures(tests: &[Test]) -> usize {
        tests.iter().filter(|t| t.outcome == Outcome::Failed).count()
    }

    #[test]
    fn an_alarm_nobody_expects_fails() {
        assert_eq!(failures(&judge(&report(&[]), &[], Module::Ours)), 0);
        assert_eq!(failures(&judge(&report(&[Kind::Warning]), &[], Module::Ours)), 1);
        let rival = judge(&report(&[Kind::Warning]), &[], Module::Rival);
        assert!(matches!(&rival[0].outcome, Outcome::Skipped(why) if why.contains("Warning")), "{rival:?}");
    }

    #[test]
    fn expected_alarms_must_come_exactly_so_often() {
        let expected = [(Kind::Kasan, 1), (Kind::Lockdep, 1)];
        assert_eq!(failures(&judge(&report(&[Kind::Kasan, Kind::Lockdep]), &expected, Module::Ours)), 0);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan]), &expected, Module::Ours)), 1);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan, Kind::Kasan, Kind::Lockdep]), &expected, Module::Ours)), 1);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan, Kind::Lockdep, Kind::Bug]), &expected, Module::Ours)), 1);
    }

    #[test]
    fn a_rival_that_comes_out_clean_is_a_failure() {
        let row = |test: &str, what: &[&str]| json!({"test": test, "what": what});
        let mut report = report(&[Kind::Bug]);
        let judged = |report: &Report| -> Vec<Outcome> {
            bitten(report, &["s/a", "s/b"]).into_iter().map(|t| t.outcome).collect()
        };
        assert_eq!(judged(&report), [Outcome::Failed, Outcome::Failed]);
        report.json.insert("scenario".into(), vec![row("s/a", &["KASAN"]), row("s/b", &[])]);
        assert_eq!(judged(&report), [Outcome::Passed, Outcome::Failed]);
        // The machine stopped in the second one.
        report.json.insert("scenario".into(), vec![row("s/a", &["KASAN"])]);
        report.json.insert("begin".into(), vec![row("s/a", &[]), row("s/b", &[])]);
        assert_eq!(judged(&report), [Outcome::Passed, Outcome::Passed]);
    }
}
