// SPDX-License-Identifier: GPL-2.0

//! Runs the tests that need no virtual machine: the Rust programs' own tests, and the gates that a
//! change must pass.

use crate::lanes::{Found, Job};
use crate::later::Later;
use anyhow::{bail, ensure, Result};
use lab::artefacts::{self, Built};
use lab::ctx::Lab;
use lab::ktap::{print_test, Test};
use lab::sh::{self, Step};
use regex::Regex;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A workspace of Rust programs whose own tests run on this machine.
struct Program {
    /// The name under which its tests are counted.
    name: &'static str,
    dir: &'static str,
    /// The time that the tests take on two idle cores, in seconds.
    takes: u64,
}

const PROGRAMS: [Program; 3] = [
    Program { name: "top", dir: ".", takes: 400 },
    Program { name: "user", dir: "user", takes: 150 },
    Program { name: "peermemctl", dir: "tools/peermemctl", takes: 300 },
];
/// The script that names the tests that have nothing to look at on this machine.
const NOT_RUN: &str = "mk/not-run.sh";
/// The gates that are targets of the top Makefile.
const MAKE_GATES: [&str; 2] = ["lint", "bindings-check"];

/// Returns a command that runs cargo in a folder of this checkout, with the target folder that all
/// workspaces share.
fn cargo(lab: &Lab, dir: &str, words: &[&str]) -> Command {
    let mut cargo = sh::command(lab.repo.join("ci/cargo.sh"));
    cargo.arg(dir).args(words);
    cargo
}

/// Builds the tests of every workspace, one after the other because each takes the lock on cargo's
/// folder. Stops as soon as nobody wants them any more.
pub fn build(lab: &Lab, wanted: impl Fn() -> bool) -> Result<()> {
    for program in &PROGRAMS {
        if !wanted() {
            bail!("the tests are not built: nobody waits for them any more");
        }
        let step = Step::new(format!("build tests of {}", program.name), log(lab, program.name))?;
        step.run(cargo_test(lab, program.dir).arg("--no-run"))?;
    }
    Ok(())
}

/// Returns a job for each workspace, which runs its tests once all are built.
pub fn tests<'a, 'b: 'a>(lab: &'a Lab, built: &'a Later<'b, ()>) -> Vec<Job<'a>> {
    let job = |program: &'static Program| {
        Job::new(format!("cargo test {}", program.name), program.takes, move || {
            built.get()?;
            let mut test = cargo_test(lab, program.dir);
            test.arg("--no-fail-fast");
            let mut skipped = Vec::new();
            if program.dir == "." {
                let mut not_run = sh::command("sh");
                not_run.arg(lab.repo.join(NOT_RUN));
                let tools = [
                    ("SBOM4RUST", Some(artefacts::sbom4rust(lab)?)),
                    ("KUBERNETES_VALIDATE", artefacts::kubernetes_validate(lab)?),
                ];
                for (name, folder) in tools {
                    if let Some(folder) = folder {
                        not_run.env(name, &folder);
                        test.env(name, folder);
                    }
                }
                test.arg("--");
                for (name, why) in sh::output(&mut not_run)?.lines().filter_map(|line| line.split_once(' ')) {
                    test.args(["--skip", name]);
                    skipped.extend(Found::skipped(format!("{}/{name}", program.name), why).tests);
                }
            }
            let mut found = run(lab, program.name, &mut test)?;
            found.tests.extend(skipped);
            Ok(found)
        })
    };
    PROGRAMS.iter().map(job).collect()
}

/// The fixed seeds of the models' random searches. A soak tries three hundred times as many
/// executions with each.
pub const MODEL_SEEDS: &str = "1-6";

pub fn long_models<'a>(lab: &'a Lab, name: &str) -> Job<'a> {
    Job::new(name, 6000, move || {
        let words = ["test", "--locked", "-p", "run", "--test", "models", "random"];
        run(lab, "soak", cargo(lab, "tests/host", &words).env("NVPM_SOAK", "100"))
    })
}

/// The word in `ONLY=` for the tests of packages in chroots made of Debian packages.
pub const PACKAGES: &str = "packages";

/// Returns the job that runs tests/packages: all of it, with its page of results, if `whole`;
/// otherwise the transitions that build no module of ours.
pub fn packages(lab: &Lab, whole: bool) -> Job<'_> {
    Job::new(PACKAGES, if whole { 3000 } else { 350 }, move || {
        if sh::output(sh::command("id").arg("-u"))?.trim() != "0" {
            return Ok(Found::skipped(PACKAGES, "it needs root: dpkg runs in chroots"));
        }
        let releases: &[&str] = if whole { &["bookworm", "trixie", "sid"] } else { &["bookworm"] };
        let machines = artefacts::neighbours(lab, releases)?;
        let version = fs::read_to_string(lab.repo.join("VERSION"))?;
        let archive = format!("build/packages/nvidia-peermem-rust-{}.tar.xz", version.trim());
        // A copy: who runs what lies in cargo's folder holds the lock on it, and others would wait for
        // minutes.
        let copy = lab.repo.join("build/bin/packages");
        let mut build = cargo(lab, "tests/packages", &["build", "--quiet", "--locked"]);
        build
            .env("COPY", &copy)
            .env("NVPM_THEN", "cp --remove-destination \"$CARGO_TARGET_DIR/debug/packages\" \"$COPY\"");
        Step::new("build tests of packages", lab.build.join("log/build-packages.log"))?.run(&mut build)?;
        let mut program = sh::command(copy);
        program.args(["test", "--archive"]).arg(lab.repo.join(archive));
        for (release, machine) in releases.iter().zip(machines) {
            let word = if *release == "sid" { "--compiler" } else { "--chroot" };
            program.arg(word).arg(format!("{release}={}", machine.canonicalize()?.display()));
        }
        if whole {
            let vendor = lab.build.join("packages/vendor");
            let words = ["vendor", "--quiet", "--locked", "--sync"];
            sh::output(cargo(lab, "tools/peermemctl", &words).arg(lab.repo.join("user/Cargo.toml")).arg(&vendor))?;
            program.arg("--vendor").arg(vendor);
            program.args(["--whole", "--results"]).arg(lab.repo.join("docs/results"));
        }
        run(lab, PACKAGES, &mut program)
    })
}

fn log(lab: &Lab, name: &str) -> PathBuf {
    lab.build.join(format!("log/test-{name}.log"))
}

fn cargo_test(lab: &Lab, dir: &str) -> Command {
    cargo(lab, dir, &["test", "--locked", "--workspace"])
}

/// Runs a test program and returns a result for each of its tests.
fn run(lab: &Lab, name: &str, cmd: &mut Command) -> Result<Found> {
    let log = log(lab, name);
    let mut step = Step::new(format!("cargo test {name}"), log.clone())?;
    step.quiet = true;
    let ran = step.run(cmd);
    let text = fs::read(&log)?;
    let text = String::from_utf8_lossy(&text);
    for line in text.lines().filter(|l| l.contains(" executions")) {
        println!("        {}", line.trim());
    }
    let mut tests = parse_libtest(name, &text)?;
    let why = match ran {
        Err(e) if !tests.iter().any(Test::has_failed) => Some(format!("{e:#}")),
        _ => tests.is_empty().then(|| "it ran no test".to_string()),
    };
    tests.extend(why.map(|why| Test::failed(format!("{name}/cargo test"), why)));
    tests.iter().for_each(print_test);
    Ok(tests.into())
}

/// Reads lines of the form `test a::b ... ok`.
fn parse_libtest(name: &str, text: &str) -> Result<Vec<Test>> {
    let line = Regex::new(r"(?m)^test (.+?)(?: - should panic)? \.\.\. ([^ ,\n]+)")?;
    let test = |(test, result): (&str, &str)| {
        let test = format!("{name}/{test}");
        if result == "ignored" {
            return Test::skipped(test, result);
        }
        Test::new(test, result == "ok", Vec::new())
    };
    Ok(line.captures_iter(text).map(|found| found.extract().1).map(|[name, result]| test((name, result))).collect())
}

/// Returns the job that runs the gates: it checks what a reviewer should not have to look for by
/// eye.
pub fn gates<'a, 'b: 'a>(lab: &'a Lab, built: &'a Later<'b, Built>) -> Job<'a> {
    Job::new("gates", 50, || run_gates(lab, built.get()?))
}

fn run_gates(lab: &Lab, built: &Built) -> Result<Found> {
    let mut tests = Vec::new();
    for target in MAKE_GATES {
        let mut cmd = sh::command("make");
        cmd.arg("-C").arg(&lab.repo).arg(target).arg(format!("KDIR={}", built.part("kernel/build").display()));
        cmd.arg(format!("OFED={}", built.part("ofed").display()));
        let theirs = lab.build.join("sources/nvidia_c-source");
        cmd.arg(format!("NVIDIA={} {}", built.part("gpu").display(), theirs.display()));
        tests.push(gate(lab, &format!("make {target}"), &mut cmd)?);
    }
    for Program { name, dir, .. } in &PROGRAMS {
        tests.push(gate(lab, &format!("rustfmt {name}"), &mut cargo(lab, dir, &["fmt", "--all", "--check"]))?);
        let clippy = ["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--", "-Dwarnings"];
        tests.push(gate(lab, &format!("clippy {name}"), &mut cargo(lab, dir, &clippy))?);
    }
    let mut checkpatch = sh::command("perl");
    checkpatch.arg(built.part("kernel/source").join("scripts/checkpatch.pl")).args([
        "--no-tree",
        "--terse",
        "--no-summary",
    ]);
    // checkpatch would complain that the stand-ins ask for kernel versions and have licences that
    // it does not know. They are external modules built for several kernels, and one of them has a
    // foreign licence.
    checkpatch.args(["--typedefsfile", "ci/qemu/nvidia-types.txt"]);
    checkpatch.args(["--ignore", "LINUX_VERSION_CODE,MODULE_LICENSE", "-f"]);
    let files = sh::git(lab, &["ls-files", "--cached", "--others", "--exclude-standard", "ci/qemu/*.[ch]"])?;
    let files: Vec<&str> = files.lines().filter(|file| lab.repo.join(file).exists()).collect();
    ensure!(!files.is_empty(), "there is no C file below ci/qemu");
    checkpatch.args(files).current_dir(&lab.repo);
    tests.push(gate(lab, "checkpatch of the stand-ins", &mut checkpatch)?);
    Ok(tests.into())
}

/// Runs a program that passes or fails as a whole.
fn gate(lab: &Lab, name: &str, cmd: &mut Command) -> Result<Test> {
    let log = lab.build.join(format!("log/{}.log", name.replace(' ', "-")));
    let mut step = Step::new(name, log)?;
    step.quiet = true;
    let why = step.run(cmd).err().map(|e| format!("{e:#}"));
    let test = Test::new(format!("gate/{name}"), why.is_none(), why.into_iter().collect());
    print_test(&test);
    Ok(test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The tests of a workspace that nobody runs would not be missed.
    #[test]
    fn every_workspace_is_run() {
        // Not by git, which an archive has not. As mk/check.sh looks for them.
        let mut find = sh::command("find");
        find.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")).arg(".");
        let built = ["(", "-name", "target", "-o", "-name", "build", "-o", "-name", "deps", "-o", "-name", ".git", ")"];
        find.args(built).args(["-prune", "-o", "-name", "Cargo.lock", "-printf", r"%P\n"]);
        let there: BTreeSet<String> = sh::output(&mut find).unwrap().lines().map(str::to_string).collect();
        let lock = |program: &Program| format!("{}/Cargo.lock", program.dir).replace("./", "");
        assert_eq!(there, PROGRAMS.iter().map(lock).collect());
    }

    #[test]
    fn lines_of_libtest() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest d ... FAILED\ntest e ... ignored, slow\n\
            test result: FAILED. 2 passed; 1 failed;\n";
        let tests = parse_libtest("host", text).unwrap();
        let test = |name: &str, passed| Test::new(name, passed, Vec::new());
        let skipped = Test::skipped("host/e", "ignored");
        assert_eq!(tests, [test("host/a::b", true), test("host/c", true), test("host/d", false), skipped]);
    }
}
