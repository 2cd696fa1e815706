// SPDX-License-Identifier: GPL-2.0

//! `make soak ONLY=planted`: boots the module with one fault planted at a time, each a patch of
//! tests/faults/boot, and demands that the test which the patch names fails. Leaves the table
//! docs/results/planted-faults.md. `FAULT=NAME` leaves one of them, and no table.

use crate::boots::{self, Row};
use crate::judge;
use crate::lanes::{Found, Job};
use anyhow::{bail, Context, Error, Result};
use faults::Fault;
use lab::arch::Arch;
use lab::artefacts;
use lab::ctx::Lab;
use lab::ktap::{print_test, Test};
use lab::page;
use lab::sh;
use std::env;
use std::fs;
use std::path::Path;

/// The word in `ONLY=` that chooses the planted faults.
pub const PLANTED: &str = "planted";

/// Returns whether only one of them is tried, which is no result of all.
pub fn is_one() -> bool {
    env::var_os("FAULT").is_some()
}

fn read(repo: &Path) -> Result<Vec<Fault>, String> {
    faults::read(&repo.join("tests/faults/boot"), &[])
}

/// Returns the boot that must find a fault, and those of its suites that are run.
fn place<'a>(boots: &'a [Row], fault: &Fault) -> Result<(&'a Row, Vec<String>)> {
    let name = &fault.name;
    let [boot, suites] = &fault.run[..] else { bail!("{name}: what follows \"Run:\" is not BOOT SUITE,SUITE") };
    let row = boots.iter().find(|row| row.name == *boot);
    let row = row.with_context(|| format!("{name}: there is no boot {boot}"))?;
    let suites: Vec<_> = suites.split(',').map(str::to_string).collect();
    match suites.iter().find(|suite| !row.suites.contains(suite)) {
        Some(suite) => bail!("{name}: the boot {boot} has no suite {suite}"),
        None => Ok((row, suites)),
    }
}

/// Returns the first of the failed tests whose name begins with `by`.
fn caught<'a>(by: &str, failed: &'a [String]) -> Option<&'a str> {
    failed.iter().map(String::as_str).find(|name| name.starts_with(by))
}

pub fn job(lab: &Lab) -> Job<'_> {
    Job::new(PLANTED, 900, || all(lab))
}

fn all(lab: &Lab) -> Result<Found> {
    if Arch::host() != Arch::X86 {
        return Ok(Found::skipped(PLANTED, "they are booted with kernels for x86-64"));
    }
    let boots = boots::all()?;
    let (mut tests, mut rows) = (Vec::new(), Vec::new());
    for fault in read(&lab.repo).map_err(Error::msg)? {
        let (row, suites) = place(&boots, &fault)?;
        let failed = planted(lab, &fault).and_then(|lab| boot(&lab, row, &suites, &fault));
        let test = match &failed {
            // A fault that cannot be built proves nothing about the tests.
            Err(why) => Err(format!("it could not be tried: {why:#}")),
            Ok(names) => caught(&fault.says, names).ok_or(format!("{} passed; failed: {names:?}", fault.says)),
        };
        if let (Ok(test), Ok(names)) = (&test, &failed) {
            let (test, failed) = (format!("`{test}`"), names.len().to_string());
            rows.push(vec![fault.name.clone(), fault.what.clone(), row.name.clone(), test, failed]);
        }
        let test = Test::new(format!("{PLANTED}/{}", fault.name), test.is_ok(), test.err().into_iter().collect());
        print_test(&test);
        tests.push(test);
    }
    if !is_one() && !tests.iter().any(Test::has_failed) {
        lab.write("docs/results/planted-faults.md", &format!("{HEAD}{}", page::table(&COLUMNS, rows)))?;
    }
    Ok(tests.into())
}

const HEAD: &str = "# Faults that the lab's machines find

Written by `make soak ONLY=planted`. Each patch of `tests/faults/boot` breaks the module, Rust or
C; it is built and booted, and the test below fails. The models find more: `tests/faults/model`.

";
const COLUMNS: [&str; 5] = ["patch", "what it breaks", "boot", "found by", "tests that failed"];

/// Returns a copy of the checkout with this fault. Unchanged files keep their times, so that little
/// is built again.
fn planted(lab: &Lab, fault: &Fault) -> Result<Lab> {
    let repo = lab.repo.join("build/planted");
    let copy = "files=$(git ls-files); { echo \"$files\"; echo build/bin/lab; } | \
        rsync --checksum --links --perms --ignore-missing-args --files-from=- ./ build/planted";
    sh::output(sh::command("sh").args(["-ec", copy]).current_dir(&lab.repo))?;
    fault.apply(&repo).map_err(Error::msg)?;
    let build = repo.join("build/lab");
    fs::create_dir_all(&build)?;
    Ok(Lab { repo, build, cache: lab.cache.clone() })
}

/// Returns the tests that failed, without the boot's name.
fn boot(lab: &Lab, row: &Row, suites: &[String], fault: &Fault) -> Result<Vec<String>> {
    let built = artefacts::build(lab, row.kernel, &[row.image()], &[])?;
    println!("  planted fault {}: of the tests below, {} must fail", fault.name, fault.says);
    let found = judge::row(lab, &built, row, suites, &[])?;
    let failed = found.tests.into_iter().filter(Test::has_failed);
    let label = format!("{}: ", row.name);
    Ok(failed.map(|test| test.name.strip_prefix(&label).unwrap_or(&test.name).to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_test_that_fails_does_not_count() {
        assert_eq!(caught("smoke/", &["end/a".into(), "smoke/b".into()]), Some("smoke/b"));
        assert_eq!(caught("smoke/", &["end/smoke/".into()]), None);
    }

    #[test]
    fn every_planted_fault_names_a_boot_and_suites_of_it() {
        let boots = boots::all().unwrap();
        for fault in read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")).unwrap() {
            place(&boots, &fault).unwrap();
        }
    }
}
