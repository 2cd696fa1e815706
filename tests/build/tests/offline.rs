// SPDX-License-Identifier: GPL-2.0

//! Tests builds without the network: one line says what could not be fetched and what to do,
//! nothing half made is taken for whole, and the next run goes on. cargo and pip are the real ones,
//! behind a proxy that does not exist. apt-get prints what the real one prints.

use build_tests::{program, repository, CRATES};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const NOBODY: &str = "http://127.0.0.1:9";

/// Returns a call in the checkout on a machine that reaches nothing and has fetched nothing.
fn offline(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(repository());
    for name in ["http_proxy", "https_proxy", "HTTPS_PROXY", "CARGO_HTTP_PROXY"] {
        command.env(name, NOBODY);
    }
    command.env("PIP_INDEX_URL", format!("{NOBODY}/simple")).env("PIP_RETRIES", "0").env_remove("PIP_FIND_LINKS");
    for (name, folder) in [("CARGO_HOME", "cargo"), ("NVPM_CACHE", "cache"), ("NVPM_TARGET", "target"), ("OUT", "out")]
    {
        command.env(name, dir.join(folder));
    }
    let path = std::env::var("PATH").expect("PATH");
    command.env("PATH", format!("{}:{path}", dir.join("bin").display()));
    command.env("CARGO_TARGET_DIR", dir.join("target")).env("CARGO_NET_RETRY", "0").env("TMPDIR", dir);
    // cargo sets this for the tests.
    command.env_remove("CARGO");
    command
}

/// Runs a command that must fail, and returns its lines on standard error.
fn fails(mut command: Command) -> Vec<String> {
    let output = command.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said.lines().map(String::from).collect()
}

#[test]
fn one_line_where_crates_cannot_be_fetched() {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("out").display().to_string();
    for (who, words) in [
        ("make tools", vec!["sh", "mk/tools.sh", "cargo", &out]),
        ("make user", vec!["sh", "mk/user.sh", "build", "cargo", &out]),
        ("cargo", vec!["ci/cargo.sh", "tools/peermemctl", "test", "--locked"]),
        ("bindgen", vec!["ci/qemu/fetch.sh", "bindgen", "0.72.1"]),
    ] {
        let said = fails(offline(dir.path(), &words));
        // cargo first prints what it is working on.
        let lines: Vec<&String> = said.iter().filter(|line| !line.starts_with("    Updating ")).collect();
        let [line] = lines[..] else { panic!("{who}: not one line: {said:#?}") };
        assert!(line.starts_with(&format!("{who}: crates could not be fetched from the crate registry (")), "{line}");
        assert!(line.ends_with(": once this machine reaches it, the same command goes on"), "{line}");
        let left = fs::read_dir(&out).map_or(0, |entries| entries.count());
        assert_eq!(left, 0, "{who} has left something in {out}");
    }
}

/// Other complaints of cargo's are shown in its own words, and a failure stays a failure.
#[test]
fn other_faults_of_cargo_are_shown() {
    let dir = TempDir::new().expect("temporary folder");
    program(
        dir.path(),
        "cargo",
        "echo '   Compiling x'; echo 'error: of the test' >&2; echo 'more of it' >&2; exit 101",
    );
    let said = fails(offline(dir.path(), &["sh", "mk/registry.sh", "who", "cargo", "build"]));
    assert_eq!(said, ["error: of the test", "more of it"]);
}

/// A second call of `make deps` takes nothing of the first for whole.
#[test]
fn the_crates_of_kernel_lite() {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("deps").display().to_string();
    let deps = ["sh", "kernel-lite/deps.sh", &out];
    let said = fails(offline(dir.path(), &deps));
    let [first, second] = &said[..] else { panic!("not two lines: {said:#?}") };
    assert!(first.starts_with("make deps: crates could not be fetched from the crate registry ("), "{first}");
    assert!(second.contains("a source archive has them, too"), "{second}");
    assert!(!Path::new(&out).exists());
    let left: Vec<_> = fs::read_dir(dir.path()).expect("folder").flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("deps")), "{left:?}");
    // The network is back.
    let files = CRATES.map(|file| format!("$to/{file}")).join(" ");
    program(
        dir.path(),
        "cargo",
        &format!("for to; do :; done; for file in {files}; do mkdir -p ${{file%/*}}; : >$file; done"),
    );
    assert!(offline(dir.path(), &deps).status().expect("a shell").success());
    assert!(Path::new(&out).join(CRATES[0]).exists());
}

/// The message of Debian 12's apt.
const UNRESOLVED: &str = "Temporary failure resolving 'mirror'";

#[test]
fn one_line_where_packages_cannot_be_installed() {
    for (said, clear) in [
        (format!("E: Failed to fetch http://mirror/x.deb  {UNRESOLVED}\nE: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?"), true),
        (format!("W: Failed to fetch http://mirror/InRelease  {UNRESOLVED}\nE: Unable to locate package bc"), true),
        ("W: Failed to fetch http://other/InRelease  404  Not Found\nE: Sub-process /usr/bin/dpkg returned an error code (1)".to_string(), false),
    ] {
        let dir = TempDir::new().expect("temporary folder");
        program(dir.path(), "dpkg-query", "exit 1");
        program(dir.path(), "id", "echo 0");
        program(dir.path(), "apt-get", &format!("[ $2 = update ] || {{ cat <<'END'\n{said}\nEND\nexit 100; }}"));
        let lines = fails(offline(dir.path(), &["ci/bootstrap.sh", "demo"]));
        let lines: Vec<&String> = lines.iter().filter(|line| !line.contains(" packages: ")).collect();
        if clear {
            let [line] = lines[..] else { panic!("not one line: {lines:#?}") };
            assert!(line.contains(&format!("could not be downloaded ({UNRESOLVED}): is this machine online?")), "{line}");
        } else {
            let last = lines.last().expect("it says something");
            assert!(last.starts_with("bootstrap: installing failed; whole log: "), "{lines:#?}");
        }
    }
}

/// apt's lists are missing, or the lists exist and the file does not. The last case is a Python
/// package.
#[test]
fn one_line_where_sources_cannot_be_fetched() {
    let apt = format!(
        "case \"$*\" in
        *indextargets*) echo 'deb [signed-by=/x] http://mirror/debian' ;;
        *update*) echo 'Err:1 http://mirror/debian trixie InRelease'; echo \"W: Failed to fetch http://mirror/debian/InRelease  {UNRESOLVED}\" ;;
        *) echo \"E: Failed to fetch http://mirror/debian/x  {UNRESOLVED}\" >&2; exit 100 ;;
        esac"
    );
    let sum = "0".repeat(64);
    for (lists, words, line) in [
        (false, vec!["linux", "6.12"], "nothing came from http://mirror/debian "),
        (false, vec!["nvidia_front", "550", &sum], "nothing came from http://mirror/debian "),
        (true, vec!["nvidia_front", "555", &sum, "experimental"], "nothing came from Debian's experimental suite "),
        (true, vec!["linux", "6.12"], "linux-source-6.12 6.12.9-1 could not be downloaded: "),
        (true, vec!["perftest", "25.01"], "the source of perftest could not be downloaded: "),
        (false, vec!["cuda_h", "name==1.0", &sum], "the Python package name==1.0 could not be downloaded: "),
    ] {
        let dir = TempDir::new().expect("temporary folder");
        program(dir.path(), "apt-get", &apt);
        program(dir.path(), "apt-cache", "echo ' linux-source-6.12 | 6.12.9-1 | http://mirror/debian trixie/main'");
        if lists {
            fs::create_dir_all(dir.path().join("cache/apt")).expect("folder");
            for name in ["updated", "sources.list"] {
                fs::write(dir.path().join("cache/apt").join(name), "").expect("file");
            }
        }
        let words: Vec<&str> = ["ci/qemu/fetch.sh"].into_iter().chain(words).collect();
        let said = fails(offline(dir.path(), &words));
        let last = said.last().expect("it says something");
        assert!(last.starts_with(line) && last.contains("is this machine online"), "{words:?}: {said:#?}");
        for folder in ["out", "cache/dl"] {
            let left = fs::read_dir(dir.path().join(folder)).expect("folder").flatten();
            let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
            assert!(left.is_empty(), "{words:?}: {folder} has {left:?}");
        }
    }
}
