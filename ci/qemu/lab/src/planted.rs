// SPDX-License-Identifier: GPL-2.0

//! `make soak ONLY=planted`: boots the module with one fault planted at a time, each a patch of
//! tests/faults/boot, and demands that the test which the patch names fails. Leaves the table
//! docs/results/planted-faults.md. `FAULT=NAME` leaves one of them, and no table.

use crate::boots::{self, Row};
use crate::judge;
use crate::lanes::{Found, Job};
use anyhow::{bail, Context, Error, Result};
use faults::{Fault, Ran};
use lab::arch::Arch;
use lab::artefacts;
use lab::ctx::Lab;
use lab::ktap::{print_test, Test};
use lab::page;
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

/// Returns the failed tests whose names begin with `by`, one a line.
fn caught(by: &str, failed: &[String]) -> String {
    failed.iter().filter(|name| name.starts_with(by)).map(|name| format!("{name}\n")).collect()
}

pub fn job(lab: &Lab) -> Job<'_> {
    Job::new(PLANTED, 900, || all(lab))
}

fn all(lab: &Lab) -> Result<Found> {
    if Arch::host() != Arch::X86 {
        return Ok(Found::skipped(PLANTED, "they are booted with kernels for x86-64"));
    }
    let boots = boots::all()?;
    let faults = read(&lab.repo).map_err(Error::msg)?;
    let try_one = |fault: &Fault| boot(lab, &boots, fault).map_err(|why| format!("{why:#}"));
    let (mut tests, mut rows) = (Vec::new(), Vec::new());
    for (fault, tried) in faults.iter().zip(faults::find_each(&faults, |_| true, try_one)) {
        if let Ok(found) = &tried {
            let (test, failed) = (format!("`{}`", found.said), found.printed.lines().count().to_string());
            rows.push(vec![fault.name.clone(), fault.what.clone(), fault.run[0].clone(), test, failed]);
        }
        let name = format!("{PLANTED}/{}", fault.name);
        tests.push(Test::new(name, tried.is_ok(), tried.err().into_iter().collect()));
    }
    tests.iter().for_each(print_test);
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

/// Boots a copy of the checkout with this fault. `printed` lists the tests that failed, without the
/// boot's name.
fn boot(lab: &Lab, boots: &[Row], fault: &Fault) -> Result<Ran> {
    let (row, suites) = place(boots, fault)?;
    let repo = lab.repo.join("build/planted");
    let program = |fresh: &Path| {
        fs::create_dir_all(fresh.join("build/bin"))?;
        fs::copy(lab.repo.join("build/bin/lab"), fresh.join("build/bin/lab")).map(drop)
    };
    fault.plant(&lab.repo, &["./"], &repo, program).map_err(Error::msg)?;
    let build = repo.join("build/lab");
    fs::create_dir_all(&build)?;
    let lab = Lab { repo, build, cache: lab.cache.clone() };
    let built = artefacts::build(&lab, row.kernel, &[row.image()], &[])?;
    println!("  planted fault {}: of the tests below, {} must fail", fault.name, fault.says);
    let found = judge::row(&lab, &built, row, &suites, &[])?;
    let label = format!("{}: ", row.name);
    let name = |test: Test| test.name.strip_prefix(&label).unwrap_or(&test.name).to_string();
    let failed: Vec<_> = found.tests.into_iter().filter(Test::has_failed).map(name).collect();
    Ok(Ran {
        code: Some(i32::from(!failed.is_empty())),
        said: caught(&fault.says, &failed),
        printed: failed.join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_test_that_fails_does_not_count() {
        assert_eq!(caught("smoke/", &["end/a".into(), "smoke/b".into(), "smoke/c".into()]), "smoke/b\nsmoke/c\n");
        assert_eq!(caught("smoke/", &["end/smoke/".into()]), "");
    }

    #[test]
    fn every_planted_fault_names_a_boot_and_suites_of_it() {
        let boots = boots::all().unwrap();
        for fault in read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")).unwrap() {
            place(&boots, &fault).unwrap();
        }
    }
}
