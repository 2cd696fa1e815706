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
