// SPDX-License-Identifier: GPL-2.0

//! Tests `make deps`, which fetches the crates that kernel-lite needs with cargo.

use build_tests::{repository, run, Outcome, CRATES};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Runs `make deps` with a cargo that is this script and gets the folder to write to as `$to`.
fn deps(dir: &Path, cargo: &str) -> Outcome {
    let program = dir.join("cargo");
    fs::write(&program, format!("#!/bin/sh\nfor to; do :; done\n{cargo}\n")).expect("file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    make(dir, program.to_str().expect("text"))
}

fn make(dir: &Path, cargo: &str) -> Outcome {
    let mut make = Command::new("make");
    make.current_dir(repository()).args(["--no-print-directory", "deps"]);
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        make.env_remove(name);
    }
    for (name, folder) in [("OUT", "out"), ("DEPS", "deps")] {
        make.arg(format!("{name}={}", dir.join(folder).display()));
    }
    run(make.arg(format!("CARGO={cargo}")))
}

/// Returns a script that makes these files.
fn writes(files: &[&str]) -> String {
    let line = |file: &&str| format!("mkdir -p \"$(dirname \"$to/{file}\")\" && : >\"$to/{file}\"");
    files.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Asserts that no call left a folder that is half made.
fn nothing_half_made(dir: &Path) {
    let left = fs::read_dir(dir).expect("folder").map(|entry| entry.expect("entry").file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("deps")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn what_is_whole_is_not_fetched_again() {
    let dir = TempDir::new().expect("temporary folder");
    let first = deps(dir.path(), &writes(&CRATES));
    assert!(first.ok, "{}", first.text);
    assert!(CRATES.iter().all(|file| dir.path().join("deps").join(file).exists()));
    let again = deps(dir.path(), "exit 1");
    assert!(again.ok && again.text.is_empty(), "{}", again.text);
}

/// A folder of an earlier release, or one from which something was deleted, is made anew.
#[test]
fn what_is_not_whole_is_replaced() {
    let dir = TempDir::new().expect("temporary folder");
    fs::create_dir_all(dir.path().join("deps/syn")).expect("folder");
    let outcome = deps(dir.path(), &writes(&CRATES));
    assert!(outcome.ok && !dir.path().join("deps/syn").exists(), "{}", outcome.text);
}

#[test]
fn a_crate_that_does_not_come_is_named() {
    for missing in CRATES {
        let dir = TempDir::new().expect("temporary folder");
        let others: Vec<&str> = CRATES.into_iter().filter(|file| *file != missing).collect();
        let outcome = deps(dir.path(), &writes(&others));
        assert!(!outcome.ok && outcome.text.contains(missing), "{missing}: {}", outcome.text);
        nothing_half_made(dir.path());
    }
}

/// A crate that cargo chose by itself has no checksum here.
#[test]
fn a_crate_that_the_lock_file_does_not_name() {
    let dir = TempDir::new().expect("temporary folder");
    let outcome = deps(dir.path(), &(writes(&CRATES) + "\necho 'checksum = \"new\"' >>$to/.lock/Cargo.lock"));
    assert!(!outcome.ok && outcome.text.contains("with checksum = \"new\""), "{}", outcome.text);
    nothing_half_made(dir.path());
}

#[test]
fn a_network_that_is_down() {
    let dir = TempDir::new().expect("temporary folder");
    let outcome = deps(
        dir.path(),
        "echo 'error: failed to download replaced source registry\n\nCaused by:\n  no route to host' >&2; exit 101",
    );
    assert!(!outcome.ok && outcome.text.contains("no route to host"), "{}", outcome.text);
    assert!(
        outcome.text.contains("could not be fetched") && outcome.text.contains("source archive"),
        "{}",
        outcome.text
    );
    nothing_half_made(dir.path());
}

#[test]
fn a_machine_without_cargo() {
    let dir = TempDir::new().expect("temporary folder");
    let outcome = make(dir.path(), "/nonexistent/cargo");
    for word in ["/nonexistent/cargo", "1.85 or later is needed", "make deps CARGO=<path>", "source archive"] {
        assert!(!outcome.ok && outcome.text.contains(word), "no \"{word}\" in: {}", outcome.text);
    }
    nothing_half_made(dir.path());
}

/// Checks that the newest cargo with its version in the name is taken where `cargo` is missing or too old, as on Ubuntu
/// 24.04, where some folders in PATH have none, and that it calls the rustc of its own version. Without such a one, a
/// line says what is there.
#[test]
fn a_cargo_with_its_version_in_the_name() {
    for (cargo, says) in [(Some(75), "cargo is 1.75"), (None, "there is no cargo")] {
        let dir = TempDir::new().expect("temporary folder");
        let (bin, system) = (dir.path().join("bin"), dir.path().join("system"));
        fs::create_dir(&bin).expect("folder");
        fs::create_dir(&system).expect("folder");
        // Everything of this machine but its own cargo.
        for program in fs::read_dir("/usr/bin").expect("programs").flatten() {
            let name = program.file_name().into_string().expect("text");
            if !name.starts_with("cargo") && !name.starts_with("rustc") {
                std::os::unix::fs::symlink(program.path(), system.join(name)).expect("link");
            }
        }
        let program = |name: &str, minor: u32, script: &str| {
            let file = bin.join(name);
            let version = format!("[ \"$1\" != --version ] || {{ echo 'cargo 1.{minor}.0 (x)'; exit; }}");
            fs::write(&file, format!("#!/bin/sh\n{version}\n{script}\n")).expect("file");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("mode");
        };
        let make = || {
            let mut make = Command::new("/bin/sh");
            make.current_dir(repository()).arg("kernel-lite/deps.sh").arg(dir.path().join("deps"));
            make.env("CARGO", "cargo").env_remove("RUSTC");
            let folders = [dir.path(), &bin, &system].map(|folder| folder.display().to_string());
            run(make.env("PATH", folders.join(":")))
        };
        if let Some(minor) = cargo {
            program("cargo", minor, "exit 1");
        }
        program("cargo-1.80", 80, "exit 1");
        let outcome = make();
        let line = format!("make deps: {says}, and 1.85 or later is needed: ");
        assert!(!outcome.ok && outcome.text.starts_with(&line), "{}", outcome.text);
        assert_eq!(outcome.text.lines().count(), 1, "{}", outcome.text);
        for minor in [91, 100] {
            program(&format!("rustc-1.{minor}"), minor, "");
            let fetch = format!("for to; do :; done\necho $RUSTC >$to/../rustc\n{}", writes(&CRATES));
            program(&format!("cargo-1.{minor}"), minor, &fetch);
        }
        let outcome = make();
        let line = format!("deps: {}/cargo-1.100, because {says}\n", bin.display());
        assert!(outcome.ok && outcome.text.starts_with(&line), "{}", outcome.text);
        let rustc = fs::read_to_string(dir.path().join("rustc")).expect("what cargo was told");
        assert_eq!(rustc.trim(), bin.join("rustc-1.100").display().to_string());
    }
}

#[test]
fn a_place_that_nobody_can_write_to() {
    let dir = TempDir::new().expect("temporary folder");
    fs::write(dir.path().join("file"), "").expect("file");
    let mut command = Command::new("/bin/sh");
    command.arg(repository().join("kernel-lite/deps.sh")).arg(dir.path().join("file/deps"));
    let outcome = run(&mut command);
    assert!(!outcome.ok && outcome.text.contains("file/deps") && outcome.text.contains("DEPS="), "{}", outcome.text);
}

/// The registry's own crates, as cargo gives them, are those that kernel-lite looks for.
#[test]
fn cargo_brings_them() {
    let dir = TempDir::new().expect("temporary folder");
    let outcome = make(dir.path(), "cargo");
    assert!(outcome.ok, "{}", outcome.text);
    assert!(CRATES.iter().all(|file| dir.path().join("deps").join(file).exists()));
}

/// The folder is the same as the lab's.
#[test]
fn the_cache_of_the_environment() {
    for (settings, place) in [
        (vec![("HOME", "")], ".cache/nvidia-peermem"),
        (vec![("HOME", "home"), ("XDG_CACHE_HOME", "")], "nvidia-peermem"),
        (vec![("HOME", "home"), ("XDG_CACHE_HOME", "xdg"), ("NVPM_CACHE", "own")], "own"),
    ] {
        let dir = TempDir::new().expect("temporary folder");
        let deps = dir.path().join(place).join("kernel-lite-deps");
        for file in CRATES {
            let file = deps.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("folder");
            fs::write(file, "").expect("file");
        }
        let mut make = Command::new("make");
        make.current_dir(repository()).args(["--no-print-directory", "deps", "CARGO=/nonexistent/cargo"]);
        make.arg(format!("OUT={}", dir.path().join("out").display()));
        for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "DEPS", "XDG_CACHE_HOME", "NVPM_CACHE"] {
            make.env_remove(name);
        }
        make.envs(settings.into_iter().map(|(name, folder)| (name, dir.path().join(folder))));
        // The crates that exist are found, and nothing is fetched.
        let outcome = run(&mut make);
        assert!(outcome.ok, "{place}: {}", outcome.text);
    }
}
