//! Cache keys: a hash over everything that a product is made of.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
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

    /// The file's bytes, or, for a folder, every file in it by its path; what builds leave behind is not looked at.
    pub fn path(&mut self, path: &Path) -> Result<&mut Self> {
        for entry in WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(|e| e.depth() == 0 || is_source(e))
        {
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
        hex(&self.0.clone().finalize())[..16].to_string()
    }
}

fn is_source(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    !(name.starts_with('.')
        || (entry.file_type().is_dir() && (name == "target" || name == "build"))
        || name.ends_with(".md"))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn file_sha256(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash)?;
    Ok(hex(&hash.finalize()))
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
    fn sha256_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "abc").unwrap();
        assert_eq!(file_sha256(&file).unwrap(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
