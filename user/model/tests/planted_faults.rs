// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Checks that the tests find planted faults. Each is a patch of tests/faults/user on the cache, or on
//! one of the libraries that are built on it. This fails if the tests that it names pass, or print
//! something else. `FAULT=NAME` leaves one of them.

use faults::Fault;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The crates that a fault may be in, by their folders. Only those that its test needs are built.
const CRATES: [(&str, &str); 4] =
    [("gpumr", "gpumr"), ("model", "gpumr-model"), ("gpumr-c", "gpumr-c"), ("gpumr-preload", "gpumr-preload")];
/// The folders that the tests of these crates need besides.
const BESIDE: [&str; 2] = ["stand-ins", "examples"];
/// The libraries that programs load. Cargo leaves the version out of the names of their files.
const LIBRARIES: [&str; 2] = ["gpumr-c", "gpumr-preload"];

/// Returns every file below a folder, by its path in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn add(root: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                add(root, &path, files);
            } else {
                let name = path.strip_prefix(root).expect("below it").to_path_buf();
                files.insert(name, fs::read(&path).expect("readable"));
            }
        }
    }
    let mut all = BTreeMap::new();
    if folder.exists() {
        add(folder, folder, &mut all);
    }
    all
}

/// Makes a folder contain exactly these files. A file that is unchanged stays untouched, because
/// cargo compares the times of files.
fn hold(folder: &Path, wanted: &BTreeMap<PathBuf, Vec<u8>>) {
    let there = files(folder);
    for name in there.keys().filter(|name| !wanted.contains_key(*name)) {
        fs::remove_file(folder.join(name)).expect("writable");
    }
    for (name, bytes) in wanted.iter().filter(|(name, bytes)| there.get(*name) != Some(*bytes)) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, bytes).expect("writable");
    }
}

/// Returns the files of a workspace of its own, to which a fault is applied. The version has the
/// fault's name: cargo would take a crate of the same name and version in another folder for this
/// one. The reader of faults stays where it is.
fn sources(user: &Path, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |file: &str| fs::read_to_string(user.join(file)).expect("readable");
    let mut all = BTreeMap::new();
    for part in CRATES.iter().map(|(folder, _)| *folder).chain(BESIDE) {
        all.extend(files(&user.join(part)).into_iter().map(|(path, bytes)| (Path::new(part).join(path), bytes)));
    }
    let manifest = read("Cargo.toml");
    let line = |start: &str| manifest.lines().find(|line| line.starts_with(start)).expect("a workspace");
    let (members, version) = (line("members"), line("version"));
    let own = format!("{}-{name}\"", version.trim_end_matches('"'));
    let folders = CRATES.map(|(folder, _)| folder);
    let manifest = manifest.replace(members, &format!("members = {folders:?}")).replace(version, &own);
    let mut lock = read("Cargo.lock");
    for (_, part) in CRATES {
        let head = format!("name = \"{part}\"\n");
        lock = lock.replace(&format!("{head}{version}"), &format!("{head}{own}"));
    }
    let reader = user.join("../tests/faults").display().to_string();
    let model = read("model/Cargo.toml").replace("../../tests/faults", &reader);
    all.insert("model/Cargo.toml".into(), model.into_bytes());
    all.insert("Cargo.toml".into(), manifest.into_bytes());
    all.insert("Cargo.lock".into(), lock.into_bytes());
    all
}

/// Returns whether the tests of a fault load a library. Another fault's library would have the same
/// file, so such faults are tried one after the other.
fn loads_a_library(fault: &Fault) -> bool {
    fault.run.iter().any(|word| LIBRARIES.contains(&word.as_str()))
}

/// Removes the libraries that another fault has left, which cargo would take for this one's.
fn remove_libraries(target: &Path) {
    for library in LIBRARIES {
        for end in ["so", "rlib"] {
            let file = format!("debug/deps/lib{}.{end}", library.replace('-', "_"));
            let _ = fs::remove_file(target.join(file));
        }
    }
}

fn find(user: &Path, folder: &Path, fault: &Fault) {
    let Fault { name, run, says, .. } = fault;
    let (fresh, work) = (folder.join("fresh").join(name), folder.join("work").join(name));
    let _ = fs::remove_dir_all(&fresh);
    hold(&fresh.join("user"), &sources(user, name));
    fault.apply(&fresh).unwrap_or_else(|error| panic!("{error}"));
    hold(&work, &files(&fresh));
    let target = folder.join("target");
    if loads_a_library(fault) {
        remove_libraries(&target);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--offline", "--target-dir"]).arg(&target).current_dir(work.join("user"));
    cargo.env("RUSTC_WRAPPER", user.join("../tests/host/rustc.sh"));
    let ran = cargo.args(run).output().expect("cargo runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(!said.contains("could not compile"), "{name} does not build:\n{said}");
    assert!(!ran.status.success() && said.contains(says), "{name} is not found:\n{said}");
    eprintln!("model: cache fault {name} is found: {says}");
}

#[test]
fn every_planted_fault_is_found() {
    let user = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
    let own = std::env::current_exe().expect("this program");
    let folder = own.ancestors().nth(3).expect("the target folder").join("cache-faults");
    let needed = ["one-end-only", "no-sweep", "evicted-in-use"];
    let faults = faults::read(&user.join("../tests/faults/user"), &needed).unwrap_or_else(|error| panic!("{error}"));
    // Cargo builds one at a time, and meanwhile the tests of another run.
    let (libraries, others): (Vec<_>, Vec<_>) = faults.into_iter().partition(loads_a_library);
    let others = Mutex::new(others.into_iter());
    let next = || others.lock().expect("no panic holds it").next();
    std::thread::scope(|scope| {
        for first in [libraries, Vec::new()] {
            let (user, folder, next) = (&user, &folder, &next);
            scope.spawn(move || {
                for fault in first.into_iter().chain(std::iter::from_fn(next)) {
                    find(user, folder, &fault);
                }
            });
        }
    });
}
