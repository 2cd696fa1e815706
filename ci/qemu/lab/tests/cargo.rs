// SPDX-License-Identifier: GPL-2.0

//! ci/cargo.sh: checkouts share cargo's folder and never run each other's programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A checkout with a workspace, of which one program says what the checkout is called.
fn checkout(dir: &Path, name: &str) -> PathBuf {
    let repo = dir.join(name);
    fs::create_dir_all(repo.join("all/one/src")).unwrap();
    fs::create_dir_all(repo.join("ci")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cargo.sh");
    fs::copy(script, repo.join("ci/cargo.sh")).unwrap();
    fs::write(repo.join("all/Cargo.toml"), "[workspace]\nmembers = [\"one\"]\nresolver = \"2\"\n").unwrap();
    fs::write(repo.join("all/one/Cargo.toml"), "[package]\nname = \"one\"\nedition = \"2021\"\n").unwrap();
    let lock = "version = 3\n\n[[package]]\nname = \"one\"\nversion = \"0.0.0\"\n";
    fs::write(repo.join("all/Cargo.lock"), lock).unwrap();
    fs::write(repo.join("all/one/src/main.rs"), format!("fn main() {{ print!(\"{name}\") }}")).unwrap();
    repo
}

fn said(repo: &Path, folder: &str, cache: &Path) -> String {
    let mut cargo = Command::new(repo.join("ci/cargo.sh"));
    cargo.args([folder, "run", "--quiet", "--locked"]).env("NVPM_CACHE", cache).env_remove("NVPM_TARGET");
    let out = cargo.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The files of either are older than what was built of the other, in whichever folder of the
/// workspace it was built.
#[test]
fn another_checkouts_build_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let repos = ["first", "second"].map(|name| checkout(dir.path(), name));
    for _ in 0..2 {
        assert_eq!(said(&repos[0], "all", &cache), "first");
        assert_eq!(said(&repos[1], "all/one", &cache), "second");
    }
}
