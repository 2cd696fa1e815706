// SPDX-License-Identifier: GPL-2.0

//! Tests that mk/check.sh passes only what it has checked, whatever is missing.

use build_tests::{repository, run, Outcome};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Runs mk/check.sh with stand-ins of these programs before the system's own. cargo writes down
/// where it was called.
fn check(dir: &Path, programs: &[(&str, &str)], cargo: &str) -> (Outcome, String) {
    let bin = TempDir::new().expect("folder");
    let log = bin.path().join("log");
    let cargo_script = format!("echo \"$PWD $1\" >>'{}'", log.display());
    // The programs that the test asks for come last and replace the usual ones.
    for (name, script) in [("cargo", cargo_script.as_str()), ("rustfmt", "exit 0")].iter().chain(programs) {
        let file = bin.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("file");
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").expect("PATH"));
    let outcome = run(Command::new("sh")
        .arg(repository().join("mk/check.sh"))
        .arg(cargo)
        .arg(bin.path().join("out"))
        .current_dir(dir)
        .env_remove("KUBERNETES_VALIDATE")
        .env_remove("SBOM4RUST")
        .env("PATH", path));
    (outcome, fs::read_to_string(log).unwrap_or_default())
}

/// git fails if there is no `.git`, or in a clone of another user.
#[test]
fn every_workspace_is_checked_where_git_fails() {
    let (outcome, log) = check(&repository(), &[("git", "echo 'fatal: dubious ownership' >&2; exit 128")], "cargo");
    assert!(outcome.ok && outcome.text.ends_with("check: PASS\n"), "{}", outcome.text);
    let top = repository().display().to_string();
    for folder in [top.clone(), top.clone() + "/tools/peermemctl", top + "/user"] {
        for verb in ["fmt", "clippy", "test"] {
            assert!(log.contains(&format!("{folder} {verb}\n")), "no {verb} in {folder}:\n{log}");
        }
    }
}

/// A test that has nothing to look at is left out and named, with what to do. No other one is.
#[test]
fn what_is_not_run_is_named() {
    let all = [
        ("kubernetes_takes_the_manifest", "it needs kubernetes-validate: name the folder of"),
        ("an_sbom_names_each_crate", "it needs sbom4rust: name the folder of"),
        ("root_leaves_nothing_of_root", "it needs root: "),
        ("each_commit_has_a_short_subject_and_a_body", "and git fails (fatal: dubious ownership)"),
        ("the_commits_that_the_page_of_findings_names_are_in_this_history", "and git fails (fatal: dubious ownership)"),
    ];
    let log = TempDir::new().expect("folder");
    let log = log.path().join("words");
    let cargo = format!("echo \"$*\" >>'{}'", log.display());
    let programs =
        [("git", "echo 'fatal: dubious ownership' >&2; exit 128"), ("id", "echo 1000"), ("cargo", cargo.as_str())];
    let (outcome, _) = check(&repository(), &programs, "cargo");
    assert!(outcome.ok, "{}", outcome.text);
    let left_out: Vec<&str> = outcome.text.lines().filter_map(|line| line.strip_prefix("check: without ")).collect();
    assert_eq!(left_out.len(), all.len(), "{left_out:?}");
    let words = fs::read_to_string(&log).expect("text");
    let tests: Vec<&str> =
        words.lines().filter(|line| line.starts_with("test ") && line.contains("--workspace")).collect();
    assert_eq!(tests.len(), 3, "{words}");
    for ((name, why), line) in all.into_iter().zip(left_out) {
        assert!(line.starts_with(&format!("{name}: ")) && line.contains(why), "{line}");
        assert!(tests.iter().all(|test| test.contains(&format!(" --skip {name}"))), "{name}: {words}");
        let files = fs::read_dir(repository().join("tests/build/tests")).expect("folder").flatten();
        let mut texts = files.map(|file| fs::read_to_string(file.path()).expect("text"));
        assert!(texts.any(|text| text.contains(&format!("\nfn {name}()"))), "there is no test {name}");
    }
    // Where everything is there, everything is run.
    let programs = [("git", "echo false"), ("id", "echo 0")];
    let bin = TempDir::new().expect("folder");
    programs.iter().for_each(|(name, script)| build_tests::program(bin.path(), name, script));
    let mut not_run = Command::new("sh");
    not_run.arg(repository().join("mk/not-run.sh")).env("KUBERNETES_VALIDATE", "/v").env("SBOM4RUST", "/s");
    let path = format!("{}/bin:{}", bin.path().display(), std::env::var("PATH").expect("PATH"));
    let outcome = run(not_run.env("PATH", &path));
    assert!(outcome.ok && outcome.text.lines().all(|line| line.contains("this is no clone")), "{}", outcome.text);
    build_tests::program(bin.path(), "git", "echo true");
    let outcome = run(&mut not_run);
    let is_clone = repository().join(".git").exists();
    assert!(outcome.ok && outcome.text.contains("git fetch --unshallow") == is_clone, "{}", outcome.text);
}

/// The tests of the commits run in CI, where a checkout is shallow unless it is told otherwise.
#[test]
fn ci_has_the_history() {
    for file in ["ci.yml", "release.yml"] {
        let text = fs::read_to_string(repository().join(".github/workflows").join(file)).expect("text");
        let told = text.matches("- uses: actions/checkout@v4\n        with: {fetch-depth: 0}\n").count();
        assert_eq!((text.matches("actions/checkout").count(), told), (1, 1), "{file}");
    }
}

#[test]
fn nothing_to_check_is_no_pass() {
    let empty = TempDir::new().expect("folder");
    let (outcome, _) = check(empty.path(), &[], "cargo");
    assert!(!outcome.ok && !outcome.text.contains("PASS"), "{}", outcome.text);
    assert!(outcome.text.contains("no Cargo.lock below"), "{}", outcome.text);
}

#[test]
fn a_program_that_is_missing_or_fails_is_no_pass() {
    for (programs, cargo) in [
        (&[][..], "/nonexistent/cargo"),
        (&[("cargo", "exit 101")][..], "cargo"),
        (&[("rustfmt", "exit 1")][..], "cargo"),
        (&[("find", "exit 127")][..], "cargo"),
    ] {
        let dir = TempDir::new().expect("folder");
        fs::write(dir.path().join("Cargo.lock"), "").expect("file");
        let (outcome, _) = check(dir.path(), programs, cargo);
        assert!(!outcome.ok && !outcome.text.contains("PASS"), "{programs:?} {cargo}: {}", outcome.text);
    }
}
