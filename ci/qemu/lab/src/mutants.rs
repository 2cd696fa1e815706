// SPDX-License-Identifier: GPL-2.0

//! `make soak ONLY=mutants`: boots the module with one fault planted at a time, each a patch of
//! `tests/mutants`, and demands that the test which the patch names fails. Leaves the table
//! docs/results/mutants.md. `FAULT=NAME` leaves one of them, and no table.

use crate::boots::{self, Row};
use crate::judge;
use crate::lanes::{Found, Job};
use anyhow::{ensure, Context, Result};
use lab::arch::Arch;
use lab::artefacts;
use lab::ctx::Lab;
use lab::ktap::{print_test, Test};
use lab::page;
use lab::sh;
use std::env;
use std::fs;
use std::path::Path;

/// The word in `ONLY=` that chooses the mutants.
pub const MUTANTS: &str = "mutants";

struct Mutant {
    name: String,
    /// One line that says what is broken.
    what: String,
    boot: String,
    suites: Vec<String>,
    /// The beginning of the name of the test that must fail.
    caught_by: String,
}

impl Mutant {
    fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let field = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            line.with_context(|| format!("{} has no line \"{key}\"", file.display()))
        };
        Ok(Mutant {
            name: file.file_stem().context("a name")?.to_string_lossy().into_owned(),
            what: text.lines().next().unwrap_or_default().to_string(),
            boot: field("Boot:")?.to_string(),
            suites: field("Suites:")?.split(' ').map(str::to_string).collect(),
            caught_by: field("Caught by:")?.to_string(),
        })
    }
}

/// Returns the first of the failed tests whose name begins with `by`.
fn caught<'a>(by: &str, failed: &'a [String]) -> Option<&'a str> {
    failed.iter().map(String::as_str).find(|name| name.starts_with(by))
}

pub fn job(lab: &Lab) -> Job<'_> {
    Job::new(MUTANTS, 900, || all(lab))
}

fn all(lab: &Lab) -> Result<Found> {
    if Arch::host() != Arch::X86 {
        return Ok(Found::skipped(MUTANTS, "they are booted with kernels for x86-64"));
    }
    let patches = sh::git(lab, &["ls-files", "tests/mutants/*.patch"])?;
    let boots = boots::all()?;
    let only = env::var("FAULT").ok();
    let is_wanted = |patch: &&str| only.as_ref().is_none_or(|name| patch.ends_with(&format!("/{name}.patch")));
    let (mut tests, mut rows) = (Vec::new(), Vec::new());
    for patch in patches.lines().filter(is_wanted) {
        let file = lab.repo.join(patch);
        let mutant = Mutant::read(&file)?;
        let row = boots.iter().find(|row| row.name == mutant.boot);
        let row = row.with_context(|| format!("{patch}: there is no boot {}", mutant.boot))?;
        let failed = planted(lab, &file).and_then(|lab| boot(&lab, row, &mutant));
        let test = match &failed {
            // A fault that cannot be built proves nothing about the tests.
            Err(why) => Err(format!("it could not be tried: {why:#}")),
            Ok(names) => {
                caught(&mutant.caught_by, names).ok_or(format!("{} passed; failed: {names:?}", mutant.caught_by))
            }
        };
        if let (Ok(test), Ok(names)) = (&test, &failed) {
            let (test, failed) = (format!("`{test}`"), names.len().to_string());
            rows.push(vec![mutant.name.clone(), mutant.what.clone(), mutant.boot.clone(), test, failed]);
        }
        let test = Test::new(format!("{MUTANTS}/{}", mutant.name), test.is_ok(), test.err().into_iter().collect());
        print_test(&test);
        tests.push(test);
    }
    ensure!(
        !tests.is_empty(),
        "tests/mutants has no patch that git knows{}",
        match &only {
            Some(name) => format!(" of the name {name}"),
            None => String::new(),
        }
    );
    if only.is_none() && !tests.iter().any(Test::has_failed) {
        lab.write("docs/results/mutants.md", &format!("{HEAD}{}", page::table(&COLUMNS, rows)))?;
    }
    Ok(tests.into())
}

const HEAD: &str = "# Faults that the lab's machines find

Written by `make soak ONLY=mutants`. Each patch of `tests/mutants` breaks the module, Rust or C; it
is built and booted, and the test below fails. The models find more of them: `tests/host/faults`.

";
const COLUMNS: [&str; 5] = ["patch", "what it breaks", "boot", "found by", "tests that failed"];

/// Returns a copy of the checkout with this fault. Unchanged files keep their times, so that little
/// is built again.
fn planted(lab: &Lab, patch: &Path) -> Result<Lab> {
    let repo = lab.repo.join("build/mutants");
    let copy = "files=$(git ls-files); { echo \"$files\"; echo build/bin/lab; } | \
        rsync --checksum --links --perms --ignore-missing-args --files-from=- ./ build/mutants";
    sh::output(sh::command("sh").args(["-ec", copy]).current_dir(&lab.repo))?;
    let mut apply = sh::command("patch");
    apply.args(["-p1", "--silent", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "-i"]).arg(patch);
    sh::output(apply.current_dir(&repo)).context("make the patch again for the sources as they are now")?;
    let build = repo.join("build/lab");
    fs::create_dir_all(&build)?;
    Ok(Lab { repo, build, cache: lab.cache.clone() })
}

/// Returns the tests that failed, without the boot's name.
fn boot(lab: &Lab, row: &Row, mutant: &Mutant) -> Result<Vec<String>> {
    let built = artefacts::build(lab, row.kernel, &[row.image()], &[])?;
    println!("  mutant {}: of the tests below, {} must fail", mutant.name, mutant.caught_by);
    let found = judge::row(lab, &built, row, &mutant.suites, &[])?;
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
    fn every_mutant_applies_and_names_a_boot_and_suites_of_it() {
        let rows = boots::all().unwrap();
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        for file in fs::read_dir(repo.join("tests/mutants")).unwrap() {
            let file = file.unwrap().path();
            // The soak alone boots it; that it still fits the sources is known at once.
            let patch = fs::File::open(&file).unwrap();
            let mut apply = sh::command("patch");
            apply.args(["-p1", "--dry-run", "--silent", "--forward", "--fuzz=0"]).stdin(patch).current_dir(&repo);
            assert!(apply.status().unwrap().success(), "{} does not apply any more", file.display());
            let mutant = Mutant::read(&file).unwrap();
            let row = rows.iter().find(|row| row.name == mutant.boot).expect(&mutant.boot);
            assert!(
                mutant.suites.iter().all(|suite| row.suites.contains(suite)),
                "{}: {:?}",
                mutant.name,
                mutant.suites
            );
        }
    }
}
