// SPDX-License-Identifier: GPL-2.0

//! Tests ci/cargo.sh: checkouts share cargo's folder and never run each other's programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Makes a checkout with a workspace that has one program. The program prints the checkout's name.
fn checkout(dir: &Path, name: &str) -> PathBuf {
    checkout_with(dir, name, "all")
}

/// Makes a checkout with its workspace in this folder.
fn checkout_with(dir: &Path, name: &str, workspace: &str) -> PathBuf {
    let repo = dir.join(name);
    let all = repo.join(workspace);
    fs::create_dir_all(all.join("one/src")).unwrap();
    fs::create_dir_all(repo.join("ci")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cargo.sh");
    fs::copy(script, repo.join("ci/cargo.sh")).unwrap();
    fs::write(all.join("Cargo.toml"), "[workspace]\nmembers = [\"one\"]\nresolver = \"2\"\n").unwrap();
    fs::write(all.join("one/Cargo.toml"), "[package]\nname = \"one\"\nedition = \"2021\"\n").unwrap();
    let lock = "version = 3\n\n[[package]]\nname = \"one\"\nversion = \"0.0.0\"\n";
    fs::write(all.join("Cargo.lock"), lock).unwrap();
    fs::write(all.join("one/src/main.rs"), format!("fn main() {{ print!(\"{name}\") }}")).unwrap();
    repo
}

fn said(repo: &Path, folder: &str, cache: &Path) -> String {
    let mut cargo = Command::new(repo.join("ci/cargo.sh"));
    cargo.args([folder, "run", "--quiet", "--locked"]).env("NVPM_CACHE", cache).env_remove("NVPM_TARGET");
    let out = cargo.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The sources of either checkout are older than what was built from the other, in whichever folder
/// of the workspace it was built.
#[test]
fn another_checkouts_build_is_not_taken() {
    for workspace in ["all", "."] {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let repos = ["first", "second"].map(|name| checkout_with(dir.path(), name, workspace));
        for _ in 0..2 {
            assert_eq!(said(&repos[0], workspace, &cache), "first");
            assert_eq!(said(&repos[1], &format!("{workspace}/one"), &cache), "second");
        }
    }
}

/// A clone that takes another one's place is built of its own files, whatever their times. cargo does
/// not compile again what both clones have in common.
#[test]
fn a_clone_in_the_place_of_another_compiles_what_has_changed_alone() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let built = || fs::metadata(cache.join("target/debug/one")).unwrap().modified().unwrap();
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    let clone = |says: &str, time: Option<SystemTime>| {
        // The other one stays until the clone is made: each has an inode of its own.
        let place = dir.path().join("first");
        let _ = fs::rename(&place, dir.path().join("other"));
        let repo = checkout(dir.path(), "first");
        let _ = fs::remove_dir_all(dir.path().join("other"));
        assert!(Command::new("git").args(["init", "--quiet"]).current_dir(&repo).status().unwrap().success());
        let main = repo.join("all/one/src/main.rs");
        fs::write(&main, format!("fn main() {{ print!(\"{says}\") }}")).unwrap();
        if let Some(time) = time {
            fs::File::options().append(true).open(main).unwrap().set_modified(time).unwrap();
        }
        repo
    };
    assert_eq!(said(&clone("first", None), "all", &cache), "first");
    let before = built();
    for time in [None, Some(hour_ago)] {
        assert_eq!(said(&clone("first", time), "all", &cache), "first");
        assert_eq!(built(), before, "compiled again");
    }
    // This time lies between the beginning and the end of the build before.
    let between = built() - Duration::from_millis(1);
    assert_eq!(said(&clone("second", Some(between)), "all", &cache), "second");
    let changed = clone("first", Some(hour_ago));
    assert_eq!(said(&changed, "all", &cache), "first");
    // The same holds for a file that is edited in one clone, or moved there with an old time.
    let main = changed.join("all/one/src/main.rs");
    fs::write(&main, "fn main() { print!(\"third\") }").unwrap();
    assert_eq!(said(&changed, "all", &cache), "third");
    fs::write(&main, "fn main() { print!(\"fourth\") }").unwrap();
    fs::File::options().append(true).open(&main).unwrap().set_modified(hour_ago).unwrap();
    assert_eq!(said(&changed, "all", &cache), "fourth");
    assert_eq!(said(&clone("first", Some(hour_ago)), "all", &cache), "first");
}

/// cargo decides alone in a checkout that is no repository, also where another repository around it
/// ignores it.
#[test]
fn a_checkout_in_an_ignored_folder_is_built() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    assert!(Command::new("git").args(["init", "--quiet"]).current_dir(dir.path()).status().unwrap().success());
    fs::write(dir.path().join(".gitignore"), "*\n").unwrap();
    assert_eq!(said(&checkout(dir.path(), "first"), "all", &cache), "first");
}

/// Replaces the program by a test that announces itself and waits until it may end, and adds a
/// second test that cargo starts afterwards.
fn with_slow_test(repo: &Path) {
    let one = repo.join("all/one");
    fs::create_dir_all(one.join("tests")).unwrap();
    let slow = "#[test] fn slow() { let dir = std::path::PathBuf::from(std::env::var(\"GATE\").unwrap()); \
        std::fs::write(dir.join(\"runs\"), \"\").unwrap(); \
        while !dir.join(\"end\").exists() { std::thread::sleep(std::time::Duration::from_millis(20)); } }";
    fs::write(one.join("tests/a.rs"), slow).unwrap();
    fs::write(one.join("tests/b.rs"), "#[test] fn later() {}").unwrap();
}

/// A second checkout removes what the first has built, but not while the first one's tests run. Two
/// runs of one checkout's tests wait for each other, too.
#[test]
fn who_comes_second_waits_for_running_tests_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, gate) = (dir.path().join("cache"), dir.path().to_path_buf());
    let repos = ["first", "second"].map(|name| checkout(dir.path(), name));
    with_slow_test(&repos[0]);
    let errors = |number: usize| gate.join(format!("errors-{number}"));
    // cargo may say that another cargo of this machine is at the registry's files.
    let is_ours = |line: &&str| !line.contains("Blocking waiting for file lock");
    let said = |number: usize| -> String {
        fs::read_to_string(errors(number)).unwrap().lines().filter(is_ours).map(|line| format!("{line}\n")).collect()
    };
    let test = |number: usize, repo: &Path, word: &str| {
        let mut cargo = Command::new(repo.join("ci/cargo.sh"));
        cargo
            .arg("all")
            .args(word.split(' '))
            .args(["--quiet", "--locked"])
            .env("NVPM_CACHE", &cache)
            .env_remove("NVPM_TARGET");
        let errors = fs::File::create(errors(number)).unwrap();
        cargo.env("GATE", &gate).stdout(Stdio::piped()).stderr(errors).spawn().unwrap()
    };
    let end = |number: usize, child: Child| {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), said(number));
    };
    let first = test(0, &repos[0], "test");
    while !gate.join("runs").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The release of a program has a folder of its own, and waits for no tests.
    let release = test(3, &repos[1], "build --release");
    end(3, release);
    assert_eq!(said(3), "");
    let others = [test(1, &repos[1], "build"), test(2, &repos[0], "test")];
    let start = Instant::now();
    while [1, 2].iter().any(|number| said(*number).is_empty()) {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody waits: {:?}", [said(1), said(2)]);
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::write(gate.join("end"), "").unwrap();
    end(0, first);
    assert_eq!(said(0), "");
    for (number, other) in (1..).zip(others) {
        end(number, other);
        let said = said(number);
        let whom = format!("for cargo test --quiet --locked in {}/all (process ", repos[0].display());
        assert!(said.lines().next().is_some_and(|line| line.contains(&whom)), "{said:?}");
        assert!(said.lines().all(|line| line.starts_with("cargo: waiting in ")), "{said:?}");
    }
}
