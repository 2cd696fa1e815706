//! Cache keys: a hash over everything that a product is made of.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use walkdir::{DirEntry, WalkDir};

pub struct Key(Sha256);

impl Key {
    pub fn new(kind: &str) -> Self {
        let mut key = Key(Sha256::new());
        key.text(kind);
        key
    }

    /// Each piece goes in with its length, so that no two lists of pieces run into one.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// The file's bytes, or, for a folder, every file in it by its path; what builds leave behind
    /// is not looked at.
    pub fn path(&mut self, path: &Path) -> Result<&mut Self> {
        let counts =
            |e: &DirEntry| e.depth() == 0 || is_source(&e.file_name().to_string_lossy(), e.file_type().is_dir());
        for entry in WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(counts) {
            let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
            if !entry.file_type().is_file() {
                continue;
            }
            let name = entry.path().strip_prefix(path).unwrap_or(entry.path());
            let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
            self.text(&name.to_string_lossy()).bytes(&bytes);
        }
        Ok(self)
    }

    pub fn hex(&self) -> String {
        self.0.clone().finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
    }
}

/// Does a file count where `path()` is told of `read`, itself or a folder that it is in?
pub fn counts(read: &Path, file: &Path) -> bool {
    let Ok(below) = file.strip_prefix(read) else { return false };
    let folders = below.parent().unwrap_or(below);
    let name = |name: &OsStr, folder| is_source(&name.to_string_lossy(), folder);
    below.file_name().is_none_or(|last| name(last, false)) && folders.iter().all(|folder| name(folder, true))
}

fn is_source(name: &str, folder: bool) -> bool {
    !(name.starts_with('.') || (folder && (name == "target" || name == "build")) || name.ends_with(".md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_run_together() {
        let one = Key::new("k").text("ab").text("c").hex();
        let two = Key::new("k").text("a").text("bc").hex();
        assert_ne!(one, two);
    }

    #[test]
    fn a_folder_counts_by_what_its_sources_say() {
        let dir = tempfile::tempdir().unwrap();
        let key = || Key::new("k").path(dir.path()).unwrap().hex();
        fs::write(dir.path().join("a.c"), "int a;").unwrap();
        let first = key();
        fs::create_dir(dir.path().join("target")).unwrap();
        fs::write(dir.path().join("target/x"), "junk").unwrap();
        fs::write(dir.path().join(".a.o.cmd"), "junk").unwrap();
        assert_eq!(key(), first, "what a build leaves behind changes the key");
        fs::write(dir.path().join("a.c"), "int b;").unwrap();
        let second = key();
        assert_ne!(second, first);
        fs::rename(dir.path().join("a.c"), dir.path().join("b.c")).unwrap();
        assert_ne!(key(), second, "a renamed file has the old key");
    }

    #[test]
    fn what_a_folder_counts_is_known_by_name() {
        let counts = |file: &str| counts(Path::new("docs"), Path::new(file));
        assert!(counts("docs/x.rs") && counts("docs/a/x.rs") && counts("docs"));
        assert!(!counts("docs/x.md") && !counts("docs/build/x.rs") && !counts("docs/.x") && !counts("docs2/x.rs"));
        assert!(super::counts(Path::new("docs/x.md"), Path::new("docs/x.md")), "a file that is named counts");
    }
}
