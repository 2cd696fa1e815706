//! cargo, with a target folder that every checkout shares, so that a fresh clone compiles its own crates only.
//!
//! cargo names what it builds by crate and options, not by folder, and tells old from new by the time of a file: it would run
//! another checkout's tests if that was the last to build them. So a checkout that was not the last one here has its own
//! crates' tests built again. (Two that build at the same time are not kept apart.) Release builds are always made from
//! nothing, because what comes of them is kept (`program.rs`).

use crate::ctx::Lab;
use crate::lock;
use crate::sh;
use anyhow::{Context, Result};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whose crates are in the target folder.
const OWNER: &str = ".checkout";

/// `cargo <words>` for the crates in a folder of this checkout, to be run there: cargo reads the crates' own configuration by
/// the current folder.
pub fn command(lab: &Lab, dir: &str, words: &[&str]) -> Result<Command> {
    own(lab, dir)?;
    Ok(plain(lab, dir, words))
}

/// What changes builds, by how the names begin: those here depend on the checkout, the compilers and cargo's files alone.
const VARIABLES: [&str; 16] = [
    "AR",
    "BINDGEN_",
    "C_INCLUDE_PATH",
    "CARGO_BUILD_",
    "CARGO_ENCODED_",
    "CARGO_INCREMENTAL",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "CC",
    "CFLAGS",
    "CPATH",
    "HOST_C",
    "LIBRARY_PATH",
    "RUSTC",
    "RUSTFLAGS",
    "TARGET_C",
];

fn plain(lab: &Lab, dir: &str, words: &[&str]) -> Command {
    let mut cmd = sh::command(lab, "cargo");
    for (name, _) in env::vars_os() {
        if VARIABLES.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes())) {
            cmd.env_remove(name);
        }
    }
    cmd.args(words).arg("--manifest-path").arg(lab.repo.join(dir).join("Cargo.toml"));
    cmd.env("CARGO_TARGET_DIR", lab.target()).current_dir(lab.repo.join(dir));
    cmd
}

/// `cargo build --release`, from nothing but other people's crates.
pub fn release(lab: &Lab, dir: &str) -> Result<Command> {
    clean(lab, dir, "release")?;
    Ok(plain(lab, dir, &["build", "--release", "--locked"]))
}

/// The files that tell cargo how to build what is in a folder of this checkout.
pub fn configuration(lab: &Lab, dir: &str) -> Vec<PathBuf> {
    let folder = lab.repo.join(dir);
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let folders = folder.ancestors().map(|folder| folder.join(".cargo")).chain(home);
    folders.map(|folder| folder.join("config.toml")).filter(|file| file.is_file()).collect()
}

/// Has cargo forget what it built of these crates for another checkout. `command()` does it, too, but waits for cargo's lock
/// where something else is being built.
pub fn own(lab: &Lab, dir: &str) -> Result<()> {
    let name = dir.replace('/', "-");
    fs::create_dir_all(lab.target())?;
    let owner = lab.target().join(format!("{OWNER}-{name}"));
    let _lock = lock::take(&lab.target().join(format!("{OWNER}-lock")), "cargo")?;
    if is_owner(&owner, &lab.repo) {
        return Ok(());
    }
    clean(lab, dir, "dev")?;
    fs::write(&owner, lab.repo.as_os_str().as_encoded_bytes())
        .with_context(|| format!("cannot write {}", owner.display()))
}

/// Has cargo forget what it built of the checkout's crates with a profile.
fn clean(lab: &Lab, dir: &str, profile: &str) -> Result<()> {
    let text = sh::output(&mut plain(lab, dir, &["metadata", "--locked", "--format-version", "1"]))?;
    let crates = crates(&text).with_context(|| format!("cargo metadata of {dir}"))?;
    let mut clean = plain(lab, dir, &["clean", "--locked", "--quiet", "--profile", profile]);
    clean.args(crates.iter().flat_map(|name| ["-p", name]));
    sh::output(&mut clean).map(drop)
}

fn is_owner(file: &Path, repo: &Path) -> bool {
    fs::read(file).is_ok_and(|owner| owner == repo.as_os_str().as_encoded_bytes())
}

/// Those of a checkout, from cargo's metadata: what comes from elsewhere has a source.
fn crates(metadata: &str) -> Result<Vec<String>> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let own = packages.iter().filter(|p| p["source"].is_null());
    own.map(|p| Ok(p["name"].as_str().context("a package without a name")?.to_string())).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// With a program `one` in a folder of that name, which says what the checkout is called; they share a cache.
    pub fn checkout(dir: &Path, says: &str) -> Lab {
        let repo = dir.join(says);
        let folder = repo.join("one/src");
        fs::create_dir_all(&folder).unwrap();
        fs::write(repo.join("one/Cargo.toml"), "[package]\nname = \"one\"\nedition = \"2021\"\n[workspace]\n").unwrap();
        fs::write(repo.join("one/Cargo.lock"), "version = 3\n\n[[package]]\nname = \"one\"\nversion = \"0.0.0\"\n")
            .unwrap();
        fs::write(folder.join("main.rs"), format!("fn main() {{ print!(\"{says}\") }}")).unwrap();
        let path = env::var("PATH").unwrap();
        Lab { build: repo.join("build/lab"), repo, cache: dir.join("cache"), path }
    }

    /// Two checkouts that differ, whose files are older than what was built of the other one.
    #[test]
    fn another_checkouts_build_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let labs = ["first", "second"].map(|says| checkout(dir.path(), says));
        let said = |lab: &Lab| sh::output(&mut command(lab, "one", &["run", "--quiet", "--locked"]).unwrap()).unwrap();
        for _ in 0..2 {
            assert_eq!(said(&labs[0]), "first");
            assert_eq!(said(&labs[1]), "second");
        }
    }

    #[test]
    fn crates_of_a_workspace() {
        let text = r#"{"packages": [{"name": "model", "source": null}, {"name": "loom", "source": "registry"},
            {"name": "run", "source": null}]}"#;
        assert_eq!(crates(text).unwrap(), ["model", "run"]);
        assert!(crates("{}").is_err());
    }
}
