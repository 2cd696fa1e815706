// SPDX-License-Identifier: GPL-2.0
//! The tests find planted faults: each file in `faults/` is a small patch on the cache. Fails if one no longer applies,
//! or if the tests that it names stay green or say something else.

use std::fs;
use std::path::Path;
use std::process::Command;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable").path();
        let to = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            copy(&entry, &to);
        } else {
            fs::copy(&entry, to).expect("writable");
        }
    }
}

#[test]
fn every_planted_fault_is_found() {
    let user = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
    let own = std::env::current_exe().expect("this program");
    let target = own.ancestors().nth(3).expect("the target folder");
    let mut names: Vec<_> = fs::read_dir(user.join("faults"))
        .expect("faults/ is there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    names.sort();
    for needed in ["one-end-only", "no-sweep", "evicted-in-use"] {
        assert!(names.iter().any(|path| path.ends_with(format!("{needed}.patch"))), "{needed}.patch is gone");
    }
    for path in names {
        let text = fs::read_to_string(&path).expect("readable");
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).expect("Run: and Says:").trim();
        let name = path.file_stem().expect("a name").to_string_lossy();
        let work = target.join("cache-faults").join(&*name);
        let _ = fs::remove_dir_all(&work);
        for part in ["gpumr", "model"] {
            copy(&user.join(part), &work.join(part));
        }
        fs::copy(user.join("Cargo.lock"), work.join("Cargo.lock")).expect("writable");
        let manifest = fs::read_to_string(user.join("Cargo.toml")).expect("readable");
        let members = manifest.lines().find(|line| line.starts_with("members")).expect("a workspace");
        fs::write(work.join("Cargo.toml"), manifest.replace(members, "members = [\"gpumr\", \"model\"]"))
            .expect("writable");
        let patched = Command::new("patch")
            .args(["-p1", "--silent", "--forward", "--fuzz=0", "-i"])
            .arg(&path)
            .current_dir(&work)
            .output()
            .expect("patch is installed");
        assert!(patched.status.success(), "{name} does not apply any more; make it again for the sources as they are");
        let cargo = |words: &[&str]| {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(words).arg("--target-dir").arg(target.join("cache-faults/target")).current_dir(&work);
            cargo.env("RUSTC_WRAPPER", user.join("../tests/host/rustc.sh")).output().expect("cargo runs")
        };
        // cargo takes another folder's crate of the same name for this one; what they are made of stays.
        cargo(&["clean", "--offline", "-p", "gpumr", "-p", "gpumr-model"]);
        let mut words = vec!["test", "--offline"];
        words.extend(field("Run:").split(' '));
        let ran = cargo(&words);
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(!said.contains("could not compile"), "{name} does not build:\n{said}");
        assert!(!ran.status.success() && said.contains(field("Says:")), "{name} is not found:\n{said}");
        eprintln!("model: cache fault {name} is found: {}", field("Says:"));
    }
}
