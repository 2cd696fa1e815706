//! Cache keys: a hash over everything that a product is made of.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
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

    /// Files by their paths below `top`, and what they say.
    pub fn files(&mut self, top: &Path, files: &BTreeSet<PathBuf>) -> Result<&mut Self> {
        for file in files {
            let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            self.text(&file.strip_prefix(top).unwrap_or(file).to_string_lossy()).bytes(&bytes);
        }
        Ok(self)
    }

    pub fn hex(&self) -> String {
        format!("{:x}", self.0.clone().finalize())[..16].to_string()
    }
}

/// The file itself, or, of a folder, every file in it but what builds leave behind.
pub fn sources(path: &Path) -> Result<BTreeSet<PathBuf>> {
    let counts = |e: &DirEntry| {
        let (name, folder) = (e.file_name().to_string_lossy(), e.file_type().is_dir());
        let left = name.starts_with('.') || (folder && (name == "target" || name == "build")) || name.ends_with(".md");
        e.depth() == 0 || !left
    };
    let mut files = BTreeSet::new();
    for entry in WalkDir::new(path).into_iter().filter_entry(counts) {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        files.extend(entry.file_type().is_file().then(|| entry.into_path()));
    }
    Ok(files)
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
        let key = || Key::new("k").files(dir.path(), &sources(dir.path()).unwrap()).unwrap().hex();
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
}
