// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Reads planted faults. Each is a patch on the repository that breaks the code, and a test must
//! find it. The head of the patch says in its first sentence what is wrong, then `Run:` how to find
//! it and `Says:` what is said then. The folder tells who runs it, and what the two lines mean:
//!
//! - `model`: the words of tests/host/run, and what its line VIOLATION contains.
//! - `boot`: a boot of the lab and its suites, with commas between, and the beginning of the name of
//!   the test that fails.
//! - `user`: the words of `cargo test`, and what its output contains.

use std::env;
use std::fs;
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

fn choose(folder: &Path, needed: &[&str], only: Option<&str>) -> Result<Vec<Fault>, String> {
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

    /// Applies the patch to the files below a folder.
    pub fn apply(&self, tree: &Path) -> Result<(), String> {
        self.patch(tree, &[])
    }

    fn patch(&self, tree: &Path, more: &[&str]) -> Result<(), String> {
        let words = ["-p1", "--silent", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "-i"];
        let mut patch = Command::new("patch");
        patch.args(more).args(words).arg(&self.file).current_dir(tree);
        let ran = patch.output().map_err(|e| format!("patch: {e}"))?;
        if ran.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        Err(format!(
            "{} does not apply any more; make it again for the sources as they are now:\n{said}",
            self.file.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "All is lost,\nand nobody sees it.\n\nRun: a boot\nSays: LOST\n\n";
    const DIFF: &str = "--- a/word\n+++ b/word\n@@ -1 +1 @@\n-good\n+bad\n";

    /// Returns a folder with these patches, and with the file that `DIFF` changes.
    fn folder(patches: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in patches.iter().chain(&[("word", "good\n")]) {
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
        fault.apply(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("word")).unwrap(), "bad\n");
        let error = fault.apply(folder.path()).unwrap_err();
        assert!(error.contains("/one.patch does not apply any more") && error.contains("word"), "{error}");
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
