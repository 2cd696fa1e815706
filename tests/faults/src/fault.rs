// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Reads faults, and copies sources with one of them.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A planted fault.
pub struct Fault {
    /// The name of its file, without the end.
    pub name: String,
    /// The sentence that says what is wrong.
    pub what: String,
    /// The words behind `Run:`.
    pub run: Vec<String>,
    /// The words that must be printed when they are run.
    pub says: String,
    file: PathBuf,
}

/// Reads the faults of a folder, in the order of their names. Those that are `needed` must be among
/// them. The variable `FAULT`, if it is set, leaves the one that it names.
pub fn read(folder: &Path, needed: &[&str]) -> Result<Vec<Fault>, String> {
    choose(folder, needed, env::var("FAULT").ok().as_deref())
}

pub(crate) fn choose(folder: &Path, needed: &[&str], only: Option<&str>) -> Result<Vec<Fault>, String> {
    let failed = |e| format!("{}: {e}", folder.display());
    let mut faults = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.extension().is_some_and(|end| end == "patch") {
            faults.push(Fault::read(file)?);
        }
    }
    faults.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<String> = faults.iter().map(|fault| fault.name.clone()).collect();
    if let Some(name) = needed.iter().find(|name| !names.iter().any(|there| there == *name)) {
        return Err(format!("{name}.patch is needed, and is not in {}", folder.display()));
    }
    faults.retain(|fault| only.is_none_or(|name| fault.name == name));
    match only {
        Some(name) if faults.is_empty() => {
            Err(format!("FAULT={name}: {} has no such fault; it has: {}", folder.display(), names.join(" ")))
        }
        _ => Ok(faults),
    }
}

impl Fault {
    fn read(file: PathBuf) -> Result<Self, String> {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let head = text.split("\n--- ").next().unwrap_or_default();
        let field = |key: &str| {
            let value = head.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            let value = value.filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("{} has no line \"{key}\" with words behind it", file.display()))
        };
        let what = head.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        if !what.ends_with('.') {
            return Err(format!("{} does not begin with a sentence that says what is wrong", file.display()));
        }
        Ok(Self {
            name: file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            what,
            run: field("Run:")?.split_whitespace().map(str::to_string).collect(),
            says: field("Says:")?.to_string(),
            file,
        })
    }

    /// Makes a folder contain these parts of a checkout with this fault: files and folders of its top,
    /// without what git ignores, after `edit`, which gets their folder. A file that is as it was
    /// there before stays untouched, because cargo and make compare the times of files.
    pub fn plant(
        &self,
        checkout: &Path,
        parts: &[&str],
        folder: &Path,
        edit: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), String> {
        let fresh = folder.with_extension("fresh");
        let failed = |e| format!("{}: {e}", fresh.display());
        fs::create_dir_all(&fresh).and_then(|()| fs::remove_dir_all(&fresh)).map_err(failed)?;
        let sources = ["-rlp", "--exclude=.git", "--exclude-from=.gitignore"];
        done(Command::new("rsync").args(sources).args(parts).arg(fresh.join("")).current_dir(checkout))?;
        edit(&fresh).map_err(failed)?;
        self.patch(&fresh, &[])?;
        // What the copy's own builds have left is kept.
        let changes = ["-rlp", "--checksum", "--delete", "--filter=protect /build/***"];
        done(Command::new("rsync").args(changes).arg(fresh.join("")).arg(folder))
    }

    fn patch(&self, tree: &Path, more: &[&str]) -> Result<(), String> {
        let words = ["-p1", "--silent", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "-i"];
        done(Command::new("patch").args(more).args(words).arg(&self.file).current_dir(tree)).map_err(|said| {
            format!(
                "{} does not apply any more; make it again for the sources as they are now:\n{said}",
                self.file.display()
            )
        })
    }
}

/// Runs a program that must succeed. The error is what it prints.
fn done(command: &mut Command) -> Result<(), String> {
    let ran = command.output().map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    if ran.status.success() {
        return Ok(());
    }
    Err((String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr)).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::run;

    pub const HEAD: &str = "All is lost,\nand nobody sees it.\n\nRun: a boot\nSays: LOST\n\n";
    pub const DIFF: &str = "--- a/word\n+++ b/word\n@@ -1 +1 @@\n-good\n+bad\n";

    /// Returns a folder with these patches, and with the file that `DIFF` changes.
    pub fn folder(patches: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in patches.iter().chain(&[("word", "good\n"), (".gitignore", "/build/\ntarget/\n.*.cmd\n")]) {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn faults_are_read_and_those_that_are_needed_must_be_there() {
        let folder = folder(&[("two.patch", HEAD), ("one.patch", HEAD), ("one.patch.orig", "")]);
        let faults = choose(folder.path(), &["two"], None).unwrap();
        let names: Vec<_> = faults.iter().map(|fault| fault.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let Fault { what, run, says, .. } = &faults[0];
        assert_eq!((what.as_str(), says.as_str()), ("All is lost, and nobody sees it.", "LOST"));
        assert_eq!(run, &["a", "boot"]);
        let error = choose(folder.path(), &["one", "three"], None).err().unwrap();
        assert!(error.starts_with("three.patch is needed"), "{error}");
    }

    #[test]
    fn a_line_that_is_missing_is_named() {
        // What the patch puts into a file is no line of its head.
        let without = |line, instead| HEAD.replace(line, instead) + DIFF + line;
        for (patch, words) in [
            (without("Run: a boot\n", ""), "has no line \"Run:\""),
            (without("Says: LOST\n", "Says:\n"), "has no line \"Says:\""),
            (without("All is lost,\nand nobody sees it.\n\n", ""), "does not begin with a sentence"),
        ] {
            let error = choose(folder(&[("one.patch", &patch)]).path(), &[], None).err().expect(words);
            assert!(error.contains(&format!("/one.patch {words}")), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let folder = folder(&[("one.patch", HEAD), ("two.patch", HEAD)]);
        let only = |name| choose(folder.path(), &["one"], Some(name));
        let faults = only("two").unwrap();
        assert!(faults.len() == 1 && faults[0].name == "two");
        let error = only("three").err().unwrap();
        assert!(error.starts_with("FAULT=three: ") && error.ends_with("it has: one two"), "{error}");
    }

    #[test]
    fn a_patch_that_does_not_apply_is_named() {
        let folder = folder(&[("one.patch", &(HEAD.to_string() + DIFF))]);
        let fault = choose(folder.path(), &[], None).unwrap().remove(0);
        let (once, twice) = (folder.path().join("once"), folder.path().join("twice"));
        fault.plant(folder.path(), &["word", ".gitignore"], &once, |_| Ok(())).unwrap();
        assert_eq!(fs::read_to_string(once.join("word")).unwrap(), "bad\n");
        let error = fault.plant(&once, &["word"], &twice, |_| Ok(())).unwrap_err();
        assert!(error.contains("/one.patch does not apply any more") && error.contains("word"), "{error}");
    }

    #[test]
    fn a_copy_with_a_fault_changes_what_differs_and_nothing_else() {
        let checkout = folder(&[("one.patch", &(HEAD.to_string() + DIFF))]);
        let fault = choose(checkout.path(), &[], None).unwrap().remove(0);
        let work = tempfile::tempdir().unwrap();
        let (checkout, copy) = (checkout.path(), work.path().join("copy"));
        let shell = |folder: &Path, line: &str| {
            let ran = run(Command::new("sh").args(["-ec", line]).current_dir(folder)).unwrap();
            assert_eq!(ran.code, Some(0), "{}", ran.printed);
            ran.printed.replace('\n', " ")
        };
        let edit = |fresh: &Path| fs::write(fresh.join("edited"), "1");
        let plant = || fault.plant(checkout, &["./"], &copy, edit).unwrap();
        shell(
            checkout,
            "mkdir -p .git build src tests/build user/target; chmod 755 word
            touch .git/HEAD .hidden build/log src/.o.cmd src/changes src/goes tests/build/same user/target/made
            ln -s ../word src/link",
        );
        plant();
        let all = "./.gitignore ./.hidden ./edited ./one.patch ./src/changes ./src/goes ./tests/build/same ./word ";
        assert_eq!(shell(&copy, "find -type f | LC_ALL=C sort"), all);
        assert_eq!(shell(&copy, "cat word src/link; test -x word -a -L src/link"), "bad bad ");

        shell(&copy, "find -type f | xargs touch -d 2001-01-01; mkdir build; touch build/made");
        shell(checkout, "rm src/goes; echo 2 >src/changes");
        plant();
        assert_eq!(shell(&copy, "find -type f -newermt 2002-01-01 | LC_ALL=C sort"), "./build/made ./src/changes ");
        let old = "./.gitignore ./.hidden ./edited ./one.patch ./tests/build/same ./word ";
        assert_eq!(shell(&copy, "find -type f -not -newermt 2002-01-01 | LC_ALL=C sort"), old);
    }

    /// The soak alone boots faults: that each of them still fits the sources is known at once.
    #[test]
    fn each_planted_fault_applies() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for kind in ["model", "boot", "user"] {
            let faults = choose(&here.join(kind), &[], None).unwrap();
            assert!(!faults.is_empty(), "{kind}");
            for fault in faults {
                fault.patch(&here.join("../.."), &["--dry-run"]).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}
