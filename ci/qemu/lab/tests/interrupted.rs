// SPDX-License-Identifier: GPL-2.0

//! Tests Ctrl-C while something is built and while machines run: nothing half built is taken for
//! whole, nothing stays behind, and the next run goes on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Returns a call of the lab's program in an otherwise empty checkout.
fn lab(dir: &Path, words: &[&str]) -> Command {
    let manifest = dir.join("ci/qemu/lab/Cargo.toml");
    fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    fs::write(manifest, "").unwrap();
    // A shell has what it starts in the background ignore Ctrl-C, and so all that this starts.
    let mut lab = Command::new("env");
    lab.args(["--default-signal=INT", env!("CARGO_BIN_EXE_lab")])
        .args(words)
        .current_dir(dir)
        .env("NVPM_CACHE", dir.join("cache"))
        .env("DIR", dir);
    lab.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    lab
}

fn wait(what: &str, until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not come");
        sleep(Duration::from_millis(20));
    }
}

/// Presses Ctrl-C as soon as `once` holds. All processes in the foreground get the signal.
fn interrupt(lab: &mut Command, what: &str, once: impl Fn() -> bool) -> Output {
    let child = lab.process_group(0).spawn().unwrap();
    wait(what, once);
    assert!(Command::new("kill").args(["-INT", "--", &format!("-{}", child.id())]).status().unwrap().success());
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const HALF: &str = "mkdir -p $OUT/bin; echo half >$OUT/bin/x; : >$DIR/runs";
const WHOLE: &str = "mkdir -p $OUT/bin; echo whole >$OUT/bin/x";

/// Returns what is kept under the artefact's name.
fn kept(dir: &Path) -> String {
    fs::read_to_string(dir.join("build/lab/k/x/bin/x")).unwrap_or_default()
}

#[test]
fn ctrl_c_in_a_build_keeps_nothing_of_it() {
    for place in [&[][..], &["--in-place"]] {
        let dir = tempfile::tempdir().unwrap();
        let keep =
            |script: &str| lab(dir.path(), &[&["keep", "k/x"], place, &["=1", "--", "sh", "-ec", script]].concat());
        let mut half = keep(&format!("{HALF}; echo $$ >$DIR/pid; exec sleep 60"));
        let output = interrupt(&mut half, "the build", || dir.path().join("pid").exists());
        assert!(!output.status.success(), "{}", said(&output));
        let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
        wait("the build's end", || !Path::new("/proc").join(pid.trim()).exists());
        assert_eq!(kept(dir.path()), "");
        let output = keep(WHOLE).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(kept(dir.path()), "whole\n");
    }
}

/// A program of the build ends later than the lab. The next build waits for it, because both would
/// write to one folder.
#[test]
fn the_next_build_waits_for_what_an_interrupted_one_left_running() {
    let dir = tempfile::tempdir().unwrap();
    let keep = |script: &str| lab(dir.path(), &["keep", "k/x", "=1", "--", "sh", "-ec", script]);
    let slow = "trap '' INT; sleep 2; echo late >$OUT/bin/x";
    let output = interrupt(&mut keep(&format!("{HALF}; {slow}")), "the build", || dir.path().join("runs").exists());
    assert!(!output.status.success(), "{}", said(&output));
    let output = keep(WHOLE).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("build k/x: another run is at it, waiting ("), "{}", said(&output));
    assert_eq!(kept(dir.path()), "whole\n");
}

/// QEMU may not get Ctrl-C, or not end because of it. Here, it is a program that ignores the
/// signal.
#[test]
fn ctrl_c_ends_the_machines() {
    let dir = tempfile::tempdir().unwrap();
    let arm64 = cfg!(target_arch = "aarch64");
    let kernel = if arm64 { "debian-6.12-arm64" } else { "debian-6.12" };
    let qemu = if arm64 { "qemu-system-aarch64" } else { "qemu-system-x86_64" };
    let release = dir.path().join("build/lab").join(kernel).join("kernel/release");
    fs::create_dir_all(release.parent().unwrap()).unwrap();
    fs::write(release, "6.12\n").unwrap();
    // The lab looks for programs here first.
    let bin = dir.path().join("build/lab/sources/bindgen/bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, script) in [("make", "exit 0"), (qemu, "trap '' INT TERM HUP; : >$DIR/qemu-$$; exec sleep 60")] {
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let machines = || -> Vec<String> {
        let names = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_prefix("qemu-").map(String::from)).collect()
    };
    let mut demo = lab(dir.path(), &["demo", "--kernel", kernel]);
    let output = interrupt(&mut demo, "three machines", || machines().len() == 3);
    assert!(!output.status.success());
    for machine in machines() {
        wait("the machine's end", || !Path::new("/proc").join(&machine).exists());
    }
}
