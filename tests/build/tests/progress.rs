// SPDX-License-Identifier: GPL-2.0

//! Tests the lines of progress of long commands, and what they say without cargo or as a plain user.

use build_tests::{program, repository, run, Outcome};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A program that ends once `sleep` has been called often enough for a line of progress.
const SLOW: &str = "echo '   Compiling one v1.0' >&2; n=0; until [ \"$(wc -l 2>/dev/null <\"$DIR/slept\" || echo 0)\" -gt 20 ] || [ $n -gt 600 ]; do /bin/sleep 0.1; n=$((n + 1)); done";

/// Runs a script of the repository with the programs in `dir/bin` before the system's own, and seconds that are
/// short.
fn script(dir: &Path, script: &str) -> Outcome {
    program(dir, "sleep", "echo >>\"$DIR/slept\"; exec /bin/sleep 0.01");
    fs::write(dir.join("slept"), "").expect("file");
    let path = format!("{}/bin:{}", dir.display(), std::env::var("PATH").expect("PATH"));
    let mut sh = Command::new("sh");
    sh.args(["-ec", script]).current_dir(repository()).env("PATH", path).env("DIR", dir);
    run(sh.env("CARGO_TARGET_DIR", dir.join("target")).env("TMPDIR", dir).env("BUILD", "binary"))
}

/// Returns what `mk/tools.sh` and `mk/user.sh` say with this cargo.
fn builds(dir: &Path, cargo: &str) -> [(&'static str, Outcome); 2] {
    let out = dir.display();
    [
        ("tools", script(dir, &format!("sh mk/tools.sh {cargo} {out}/tools"))),
        ("user", script(dir, &format!("sh mk/user.sh build {cargo} {out}/user"))),
    ]
}

#[test]
fn what_takes_minutes_says_how_far_it_is() {
    let dir = TempDir::new().expect("folder");
    // What cargo says last is why it fails. Its lines of progress are not shown then.
    program(dir.path(), "cargo", &format!("{SLOW}; echo 'error: no reason at all' >&2; exit 101"));
    for (target, outcome) in builds(dir.path(), "cargo") {
        let said = &outcome.text;
        let line = format!("{target}: building ");
        assert!(said.lines().next().is_some_and(|first| first.starts_with(&line)), "{said}");
        let told = |line: &str| {
            line.starts_with(&format!("{target}: building ")) && line.ends_with(", 15 s: Compiling one v1.0")
        };
        assert!(said.lines().any(told), "{said}");
        assert!(!outcome.ok && said.lines().any(|line| line == "error: no reason at all"), "{said}");
        assert!(!said.contains("   Compiling"), "{said}");
    }
    for (kind, tool) in [("deb", "dpkg-buildpackage"), ("rpm", "rpmbuild")] {
        program(dir.path(), tool, SLOW);
        let outcome = script(
            dir.path(),
            &format!(". mk/tell.sh; eval \"$(sed -n '/^compile() {{/,/^}}/p' packaging/make.sh)\"; kind={kind} out=$DIR; compile {tool}"),
        );
        let line = format!("make {kind}: building, 15 s: Compiling one v1.0");
        assert!(outcome.ok && outcome.text.lines().any(|said| said == line), "{}", outcome.text);
    }
    for name in ["dpkg-query", "id"] {
        program(dir.path(), name, if name == "id" { "echo 0" } else { "exit 1" });
    }
    program(dir.path(), "apt-get", SLOW);
    let outcome = script(dir.path(), "sh ci/bootstrap.sh demo");
    let line = "bootstrap: package lists, 15 s: Compiling one v1.0";
    assert!(outcome.ok && outcome.text.lines().any(|said| said == line), "{}", outcome.text);
}

/// Nothing that tells outlives what called it, also where that was killed and nobody has asked for its end yet.
#[test]
fn what_tells_ends_with_its_caller() {
    let dir = TempDir::new().expect("folder");
    let start = Instant::now();
    // Both hold standard output, so that this comes back once both have ended.
    let outcome = script(dir.path(), "timeout -s KILL 20 sh -c '. mk/tell.sh; tell x \"$DIR/log\"; kill -KILL $$'");
    assert!(!outcome.ok && start.elapsed() < Duration::from_secs(20), "{:?}: {}", start.elapsed(), outcome.text);
}

/// A command may end before the subshell that tells has forgotten the traps of its caller.
#[test]
fn a_command_that_ends_at_once_is_not_told_of_for_ever() {
    let dir = TempDir::new().expect("folder");
    let words = "trap 'echo interrupted' TERM; . mk/tell.sh; n=0; while [ $n -lt 500 ]; do tell x \"$DIR/log\"; told; \
        n=$((n + 1)); done";
    let outcome = script(dir.path(), &format!("timeout -s KILL 30 sh -c '{}'", words.replace('\'', "'\\''")));
    assert!(outcome.ok, "{}", outcome.text);
}

#[test]
fn without_cargo_the_distributions_package_is_named() {
    for (release, how) in [
        ("ID=debian\nVERSION_ID=\"12\"\n", "apt-get install cargo-web"),
        ("ID=debian\nVERSION_ID=\"13\"\n", "apt-get install cargo,"),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", "apt-get install cargo-1.NN for the newest NN"),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install cargo,"),
        ("ID=\"sles\"\nID_LIKE=\"suse\"\n", "zypper install cargo1.NN for the newest NN"),
        ("ID=arch\n", "install Rust,"),
    ] {
        let dir = TempDir::new().expect("folder");
        fs::write(dir.path().join("os-release"), release).expect("file");
        for target in ["sh mk/tools.sh", "sh mk/user.sh build"] {
            let script =
                script(dir.path(), &format!("export OS_RELEASE=\"$DIR/os-release\"; {target} no-cargo \"$DIR/out\""));
            let said = &script.text;
            assert!(!script.ok && said.lines().count() == 1 && said.contains(how), "{said}");
            assert!(said.contains("there is no no-cargo, and 1.85 or later is needed: "), "{said}");
            assert!(said.ends_with(" CARGO=<path>\n"), "{said}");
        }
    }
}

/// A plain user, or a read-only /usr: one line before anything is copied.
#[test]
fn the_libraries_where_nothing_can_be_written() {
    let dir = TempDir::new().expect("folder");
    fs::create_dir(dir.path().join("user")).expect("folder");
    for name in ["libgpumr.so.1", "libgpumr-preload.so"] {
        fs::write(dir.path().join("user").join(name), "").expect("file");
    }
    let outcome = script(dir.path(), "sh mk/user.sh install \"$DIR/user\" /proc/none /proc/none/lib ''");
    let said = &outcome.text;
    assert!(!outcome.ok && said.lines().count() == 1, "{said}");
    assert!(
        said.starts_with("user-install: /proc/none/lib/pkgconfig cannot be written: run make user-install as root"),
        "{said}"
    );
    for word in ["PREFIX=<dir>", "DESTDIR=<dir>"] {
        assert!(said.contains(word), "{said}");
    }
}
