// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Checks that the tests find planted faults. Each is a patch of tests/faults/user on the cache, or on
//! one of the libraries that are built on it. This fails if the tests that it names pass, or print
//! something else. `FAULT=NAME` leaves one of them.

use faults::Fault;
use std::fs;
use std::io;
use std::path::Path;

/// The libraries that programs load. Cargo leaves the version out of the names of their files.
const LIBRARIES: [&str; 2] = ["gpumr-c", "gpumr-preload"];

/// Makes a copy of `user` a workspace of its own for a fault. The version has the fault's name: cargo
/// would take a crate of the same name and version in another folder for this one. The runner of
/// faults stays where it is.
fn name(copy: &Path, name: &str, root: &Path) -> io::Result<()> {
    let edit = |file: &str, change: &dyn Fn(&str) -> String| {
        let file = copy.join(file);
        fs::write(&file, change(&fs::read_to_string(&file)?))
    };
    let manifest = fs::read_to_string(copy.join("Cargo.toml"))?;
    let version = manifest.lines().find(|line| line.starts_with("version")).expect("a workspace");
    let own = format!("{}-{name}\"", version.trim_end_matches('"'));
    edit("Cargo.toml", &|text| text.replace(version, &own))?;
    edit("Cargo.lock", &|text| {
        let ours = |package: &str| package.starts_with("\nname = \"gpumr");
        let packages = text.split("[[package]]");
        let packages = packages.map(|one| if ours(one) { one.replace(version, &own) } else { one.to_string() });
        packages.collect::<Vec<_>>().join("[[package]]")
    })?;
    let runner = root.join("tests/faults").display().to_string();
    edit("model/Cargo.toml", &|text| text.replace("../../tests/faults", &runner))
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

#[test]
fn every_planted_fault_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("there");
    let own = std::env::current_exe().expect("this program");
    let folder = own.ancestors().nth(3).expect("the target folder").join("cache-faults");
    let (work, target) = (folder.join("work"), folder.join("target"));
    let needed = ["one-end-only", "no-sweep", "evicted-in-use"];
    let faults = faults::read(&root.join("tests/faults/user"), &needed).unwrap_or_else(|error| panic!("{error}"));
    // Cargo builds one at a time, and meanwhile the tests of another run.
    faults::demand_all(faults::find_each(&faults, loads_a_library, |fault| {
        let copy = work.join(&fault.name);
        fault.plant(&root, &["LICENSE", "user"], &copy, |fresh| name(&fresh.join("user"), &fault.name, &root))?;
        if loads_a_library(fault) {
            remove_libraries(&target);
        }
        faults::run(faults::cargo(&root, "test", &target).args(&fault.run).current_dir(copy.join("user")))
    }));
}
