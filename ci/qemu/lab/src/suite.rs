//! `make test`: every test there is, one line each, and the count.

use crate::alarms::{self, Kind};
use crate::ctx::Lab;
use crate::image::{self, Module};
use crate::kernel::{Flavour, LLVM};
use crate::ktap::{Outcome, Test};
use crate::machine::{print_test, Boot, Iommu, Report};
use crate::sh::{self, human, say, Step};
use crate::{prepare, rival_word, Ready};
use anyhow::{bail, Context, Result};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use walkdir::WalkDir;

/// Guest suites that share one boot.
const TOGETHER: [&str; 4] = ["smoke", "callbacks", "revoke", "refusals"];
/// The suite that provokes alarms, in a boot of its own.
const ALARMS: &str = "alarms";
/// Rust programs whose own tests run on this machine, and the name under which they are counted.
const HOST: [(&str, &str); 8] = [
    ("host", "tests/host"),
    ("kernel-lite", "tests/host/kernel-lite"),
    ("build", "tests/build"),
    ("lab", "ci/qemu/lab"),
    ("nvlab", "ci/qemu/gpu/client"),
    ("libcuda", "ci/qemu/cuda"),
    ("guest", "tests/guest"),
    ("peermemctl", "tools/peermemctl"),
];
/// Gates of the top Makefile.
const MAKE_GATES: [&str; 2] = ["lint", "bindings-check"];

pub fn run(lab: &Lab, module: Module, only: Option<&str>) -> Result<bool> {
    let start = Instant::now();
    let chosen: Option<Vec<&str>> = only.map(|o| o.split(',').collect());
    let wants = |name: &str| chosen.as_ref().is_none_or(|c| c.contains(&name));
    let known = || ["host", "lint", ALARMS].into_iter().chain(TOGETHER);
    for name in chosen.iter().flatten() {
        if !known().any(|k| k == *name) {
            bail!("there is no suite {name}; there are: {}", known().collect::<Vec<_>>().join(" "));
        }
    }
    let mut all = Vec::new();
    let mut clock = Clock { steps: Vec::new(), since: start };
    if module == Module::Ours && wants("host") {
        for (name, dir) in HOST {
            all.extend(cargo_test(lab, name, dir)?);
            clock.lap(&format!("cargo test {dir}"));
        }
    }
    let lint = module == Module::Ours && wants("lint");
    let boots = plan(module, wants, only.is_none());
    let mut json: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    if lint || !boots.is_empty() {
        let ready = prepare(lab, Flavour::Debug)?;
        clock.lap("build");
        if lint {
            all.extend(gates(lab, &ready)?);
            clock.lap("gates");
        }
        for planned in &boots {
            all.extend(boot(lab, &ready, planned, &mut json)?);
            clock.lap(&format!("boot {}", planned.boot.name));
        }
    }
    let counted = |outcome: fn(&Outcome) -> bool| all.iter().filter(|t: &&Test| outcome(&t.outcome)).count();
    let passed = counted(|o| *o == Outcome::Passed);
    let failed = counted(|o| *o == Outcome::Failed);
    let skipped = counted(|o| matches!(o, Outcome::Skipped(_)));
    let name = if module == Module::Rival { "test-rival" } else { "test" };
    let file = lab.repo.join("build").join(format!("{name}.json"));
    let report = json!({
        "passed": passed, "failed": failed, "skipped": skipped,
        "seconds": clock.steps.iter().map(|(name, s)| json!({"step": name, "seconds": s})).collect::<Vec<_>>(),
        "failures": all.iter().filter(|t| t.outcome == Outcome::Failed).map(|t| json!({"name": t.name, "notes": t.notes})).collect::<Vec<_>>(),
        "guest": json,
    });
    fs::write(&file, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    if failed > 0 {
        println!("\nfailed:");
        for test in all.iter().filter(|t| t.outcome == Outcome::Failed) {
            println!("  {}", test.name);
        }
    }
    if skipped > 0 {
        println!("{skipped} skipped");
    }
    for (name, seconds) in &clock.steps {
        say(&format!("{seconds:5} s  {name}"));
    }
    say(&format!("took {}; report: {}", human(start.elapsed()), lab.short(&file)));
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0 && passed > 0)
}

/// How long each step took.
struct Clock {
    steps: Vec<(String, u64)>,
    since: Instant,
}

impl Clock {
    fn lap(&mut self, name: &str) {
        self.steps.push((name.to_string(), self.since.elapsed().as_secs()));
        self.since = Instant::now();
    }
}

/// What a boot's console is to hold.
#[derive(Debug)]
enum Expect {
    /// Exactly these alarms.
    Alarms(BTreeMap<Kind, usize>),
    /// Any sign of a fault: a lab in which the rival comes out clean would not see ours break either.
    Bite,
}

/// A boot of `make test` and what its console is expected to hold.
struct Planned {
    boot: Boot,
    module: Module,
    expect: Expect,
}

/// The boots that the chosen suites need, as few as will do.
fn plan(module: Module, wants: impl Fn(&str) -> bool, everything: bool) -> Vec<Planned> {
    let planned = |name: &str, run: &str, module: Module, limit: u64| {
        let mut boot = Boot { limit: Duration::from_secs(limit), ..Boot::new(name, run) };
        boot.append.extend(rival_word(module));
        Planned { boot, module, expect: Expect::Alarms(BTreeMap::new()) }
    };
    let mut boots = Vec::new();
    let together: Vec<&str> = TOGETHER.into_iter().filter(|s| wants(s)).collect();
    if !together.is_empty() {
        let name = if module == Module::Rival { "rival-suites" } else { "suites" };
        boots.push(planned(name, &together.join(","), module, 720));
    }
    if module == Module::Rival {
        return boots;
    }
    if wants(ALARMS) {
        let mut alarms = planned(ALARMS, ALARMS, module, 240);
        alarms.expect = Expect::Alarms(BTreeMap::from([(Kind::Kasan, 1), (Kind::Lockdep, 1), (Kind::Kmemleak, 1)]));
        boots.push(alarms);
    }
    if everything {
        // Every address goes through the NIC's own translation.
        let mut iommu = planned("iommu", "smoke", module, 300);
        iommu.boot.iommu = Iommu::Translating;
        iommu.boot.append.push("guest.only=bytes_move,layouts".to_string());
        boots.push(iommu);
        // NVIDIA's module must move data in the same lab: it was not made to fit ours.
        boots.push(planned("rival", "smoke", Module::Rival, 360));
        // And what is known to break it must break it here.
        let mut bite = planned("bite", "revoke", Module::Rival, 360);
        bite.boot.append.push("guest.only=legacy/free".to_string());
        bite.expect = Expect::Bite;
        boots.push(bite);
    }
    boots
}

/// Runs one boot; adds its result lines to `json`.
fn boot(lab: &Lab, ready: &Ready, planned: &Planned, json: &mut BTreeMap<String, Vec<Value>>) -> Result<Vec<Test>> {
    let name = &planned.boot.name;
    let image = image::build(lab, &ready.kernel, &ready.parts, planned.module)?;
    let report = planned.boot.run(lab, &ready.kernel, &image)?;
    let mut tests = report.tests.clone();
    let judged = match &planned.expect {
        Expect::Alarms(expected) => judge(&report, expected, planned.module),
        // Whether the machine outlived it is no test.
        Expect::Bite => {
            tests.clear();
            vec![bitten(&report)]
        }
    };
    for test in judged {
        print_test(&test);
        tests.push(test);
    }
    if tests.iter().any(|t| t.outcome == Outcome::Failed) {
        println!("        console of {name}: {}", report.console.display());
    }
    say(&format!("boot {name}: {}", human(report.elapsed)));
    for test in &mut tests {
        test.name = format!("{name}: {}", test.name);
    }
    if planned.module == Module::Rival {
        let lines = report.alarms.iter().map(|a| json!({"boot": name, "line": a.line, "number": a.number}));
        json.entry("rival_alarms".to_string()).or_default().extend(lines);
    }
    for (key, values) in report.json {
        json.entry(key).or_default().extend(values);
    }
    Ok(tests)
}

/// Whether the rival was caught: by an alarm, or by a test of the guest that did not come out clean.
fn bitten(report: &Report) -> Test {
    let rows = report.json.get("rival").into_iter().flatten().filter(|r| r["clean"] == false);
    let rows = rows.map(|r| format!("{}/{}: {}", r["suite"], r["test"], r["what"]));
    let notes: Vec<String> = report.alarms.iter().map(|a| a.line.clone()).chain(rows).collect();
    let (outcome, notes) = if notes.is_empty() {
        (Outcome::Failed, vec!["it came out clean: the lab would not see ours break either".to_string()])
    } else {
        (Outcome::Passed, notes)
    };
    Test { name: "NVIDIA's module is caught where it is known to break".to_string(), outcome, notes }
}

/// Tests made of the console: every alarm that nobody expected fails, and so does every expected one that did not come.
/// What NVIDIA's module does is written down, not judged.
pub fn judge(report: &Report, expected: &BTreeMap<Kind, usize>, module: Module) -> Vec<Test> {
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
        .filter(|a| !expected.contains_key(&a.kind))
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

/// `cargo test` of one of the Rust programs, one test per test of it.
fn cargo_test(lab: &Lab, name: &str, dir: &str) -> Result<Vec<Test>> {
    let manifest = lab.repo.join(dir).join("Cargo.toml");
    if !manifest.is_file() {
        bail!("{dir} has no Cargo.toml: this checkout is not whole");
    }
    let log = lab.build.join(format!("log/test-{name}.log"));
    let mut step = Step::new(format!("cargo test {name}"), log.clone())?;
    step.counts = &["Compiling "];
    say(&format!("cargo test: {dir}"));
    let mut cmd = sh::command(lab, "cargo");
    cmd.args(["test", "--locked", "--workspace", "--no-fail-fast", "--manifest-path"]).arg(&manifest);
    // Where the crate is: cargo reads the crate's own configuration by the current folder.
    cmd.env("CARGO_TARGET_DIR", lab.target()).current_dir(lab.repo.join(dir));
    let ran = step.run(&mut cmd);
    let text = fs::read(&log)?;
    let text = String::from_utf8_lossy(&text);
    for line in text.lines().filter(|l| l.contains(" executions")) {
        println!("        {}", line.trim());
    }
    let mut tests = parse_libtest(name, &text);
    if let (Err(e), false) = (&ran, tests.iter().any(|t| t.outcome == Outcome::Failed)) {
        tests.push(Test {
            name: format!("{name}/cargo test"),
            outcome: Outcome::Failed,
            notes: vec![format!("{e:#}")],
        });
    }
    if tests.is_empty() {
        tests.push(Test {
            name: format!("{name}/cargo test"),
            outcome: Outcome::Failed,
            notes: vec!["it ran no test".to_string()],
        });
    }
    for test in &tests {
        print_test(test);
    }
    Ok(tests)
}

/// Reads `test a::b ... ok` lines.
fn parse_libtest(name: &str, text: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    for line in text.lines() {
        let Some((test, result)) = line.strip_prefix("test ").and_then(|l| l.rsplit_once(" ... ")) else { continue };
        let outcome = match result.split(',').next().unwrap_or_default().trim() {
            "ok" => Outcome::Passed,
            "ignored" => Outcome::Skipped("ignored".to_string()),
            _ => Outcome::Failed,
        };
        let test = test.trim_end_matches(" - should panic").trim();
        tests.push(Test { name: format!("{name}/{test}"), outcome, notes: Vec::new() });
    }
    tests
}

/// What a reviewer would not want to look for by eye.
fn gates(lab: &Lab, ready: &Ready) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for target in MAKE_GATES {
        let mut cmd = sh::command(lab, "make");
        cmd.arg("-C").arg(&lab.repo).arg(target).arg(format!("KDIR={}", ready.kernel.dir.display()));
        cmd.arg(format!("OFED={}", ready.parts.ofed.dir.display()));
        cmd.arg(format!("NVIDIA={} {}", ready.parts.gpu.dir.display(), ready.sources.rival.display()))
            .arg(format!("LLVM={LLVM}"));
        tests.push(gate(lab, &format!("make {target}"), &mut cmd)?);
    }
    for (name, dir) in HOST {
        let manifest = lab.repo.join(dir).join("Cargo.toml");
        let mut fmt = sh::command(lab, "cargo");
        fmt.args(["fmt", "--all", "--check", "--manifest-path"]).arg(&manifest);
        tests.push(gate(lab, &format!("rustfmt {name}"), &mut fmt)?);
        let mut clippy = sh::command(lab, "cargo");
        clippy
            .args(["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--manifest-path"])
            .arg(&manifest);
        clippy.args(["--", "-Dwarnings"]).env("CARGO_TARGET_DIR", lab.target()).current_dir(lab.repo.join(dir));
        tests.push(gate(lab, &format!("clippy {name}"), &mut clippy)?);
    }
    let mut checkpatch = sh::command(lab, "perl");
    checkpatch.arg(ready.sources.linux.dir.join("scripts/checkpatch.pl")).args([
        "--no-tree",
        "--terse",
        "--no-summary",
    ]);
    // The stand-ins are external modules: they are built for more than one kernel, and one of them is of a foreign licence.
    checkpatch.args(["--ignore", "LINUX_VERSION_CODE,MODULE_LICENSE", "-f"]);
    for entry in WalkDir::new(lab.repo.join("ci/qemu")).sort_by_file_name() {
        let entry = entry?;
        if entry.path().extension().is_some_and(|e| e == "c" || e == "h") {
            checkpatch.arg(entry.path());
        }
    }
    tests.push(gate(lab, "checkpatch of the stand-ins", &mut checkpatch)?);
    Ok(tests)
}

/// A program that passes or fails as a whole.
fn gate(lab: &Lab, name: &str, cmd: &mut Command) -> Result<Test> {
    let log = lab.build.join(format!("log/{}.log", name.replace(' ', "-")));
    let step = Step::new(name, log.clone())?;
    let (outcome, notes) = match step.run(cmd) {
        Ok(()) => (Outcome::Passed, Vec::new()),
        Err(e) => (Outcome::Failed, vec![format!("{e:#}")]),
    };
    let test = Test { name: format!("gate/{name}"), outcome, notes };
    print_test(&test);
    Ok(test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarms::Alarm;

    fn report(kinds: &[Kind]) -> Report {
        let alarms = kinds.iter().map(|k| Alarm { kind: *k, line: format!("{k:?}"), number: 1 }).collect();
        Report { tests: Vec::new(), json: BTreeMap::new(), alarms, console: "x".into(), elapsed: Duration::ZERO }
    }

    fn failures(tests: &[Test]) -> usize {
        tests.iter().filter(|t| t.outcome == Outcome::Failed).count()
    }

    #[test]
    fn an_alarm_nobody_expects_fails() {
        assert_eq!(failures(&judge(&report(&[]), &BTreeMap::new(), Module::Ours)), 0);
        assert_eq!(failures(&judge(&report(&[Kind::Warning]), &BTreeMap::new(), Module::Ours)), 1);
        let rival = judge(&report(&[Kind::Warning]), &BTreeMap::new(), Module::Rival);
        assert!(matches!(&rival[0].outcome, Outcome::Skipped(why) if why.contains("Warning")), "{rival:?}");
    }

    #[test]
    fn expected_alarms_must_come_exactly_so_often() {
        let expected = BTreeMap::from([(Kind::Kasan, 1), (Kind::Lockdep, 1)]);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan, Kind::Lockdep]), &expected, Module::Ours)), 0);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan]), &expected, Module::Ours)), 1);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan, Kind::Kasan, Kind::Lockdep]), &expected, Module::Ours)), 1);
        assert_eq!(failures(&judge(&report(&[Kind::Kasan, Kind::Lockdep, Kind::Bug]), &expected, Module::Ours)), 1);
    }

    #[test]
    fn a_rival_that_comes_out_clean_is_a_failure() {
        assert_eq!(bitten(&report(&[])).outcome, Outcome::Failed);
        assert_eq!(bitten(&report(&[Kind::Kasan])).outcome, Outcome::Passed);
        let mut rows = report(&[]);
        rows.json.insert("rival".into(), vec![json!({"clean": true}), json!({"clean": false})]);
        assert_eq!(bitten(&rows).outcome, Outcome::Passed);
        rows.json.insert("rival".into(), vec![json!({"clean": true})]);
        assert_eq!(bitten(&rows).outcome, Outcome::Failed);
    }

    #[test]
    fn as_few_boots_as_will_do() {
        let names = |boots: Vec<Planned>| boots.into_iter().map(|p| (p.boot.name, p.boot.run)).collect::<Vec<_>>();
        let all = names(plan(Module::Ours, |_| true, true));
        let of = |name: &str| all.iter().filter(|(n, _)| n == name).count();
        assert_eq!(["suites", "alarms", "iommu", "rival", "bite"].map(of), [1; 5]);
        assert_eq!(all[0], ("suites".to_string(), TOGETHER.join(",")));
        assert_eq!(names(plan(Module::Ours, |s| s == "smoke", false)), [("suites".to_string(), "smoke".to_string())]);
        assert!(plan(Module::Ours, |s| s == "host", false).is_empty());
        let rival = plan(Module::Rival, |_| true, true);
        assert_eq!(rival.len(), 1);
        assert_eq!(rival[0].boot.append, ["guest.rival=1"]);
    }

    #[test]
    fn lines_of_libtest() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest d ... FAILED\ntest e ... ignored, slow\n\
            test result: FAILED. 2 passed; 1 failed;\n";
        let tests = parse_libtest("host", text);
        let got: Vec<(&str, &Outcome)> = tests.iter().map(|t| (t.name.as_str(), &t.outcome)).collect();
        assert_eq!(
            got,
            [
                ("host/a::b", &Outcome::Passed),
                ("host/c", &Outcome::Passed),
                ("host/d", &Outcome::Failed),
                ("host/e", &Outcome::Skipped("ignored".into())),
            ]
        );
    }
}
