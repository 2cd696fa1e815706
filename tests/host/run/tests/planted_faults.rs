// SPDX-License-Identifier: GPL-2.0

//! Tests that the models find planted faults, each a patch of tests/faults/model. They must report
//! what it breaks, in the words that the patch names. `FAULT=NAME` leaves one of them.

use faults::Fault;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Mistakes that must be among the faults.
const NEEDED: [&str; 11] = [
    "pointer-instead-of-ticket",
    "state-lock-over-put",
    "no-check-after-get",
    "invalidate-while-the-registrar-waits",
    "put-in-put-pages",
    "no-second-check-under-the-gate",
    "unmap-after-release",
    "reference-dropped-by-the-callback",
    "piece-not-put",
    "piece-put-twice",
    "several-revocable-pins",
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable").path();
        let to = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            copy(&entry, &to);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            fs::copy(&entry, to).expect("writable");
        }
    }
}

/// Makes one package per fault, in one workspace that shares what is built already. A fault runs
/// for a moment only, so the compiler does not optimise.
fn prepare(faults: &[Fault], host: &Path, work: &Path) {
    let root = host.join("../..");
    let (mut members, mut quick) = (String::new(), String::new());
    for fault in faults {
        let package = work.join(&fault.name);
        let _ = fs::remove_dir_all(&package);
        copy(&root.join("src"), &package.join("src"));
        copy(&root.join("bindings"), &package.join("bindings"));
        fs::copy(root.join("VERSION"), package.join("VERSION")).expect("writable");
        fault.apply(&package).unwrap_or_else(|error| panic!("{error}"));
        let lib = format!("fault_{}", fault.name.replace('-', "_"));
        let manifest = format!(
            "[package]\nname = \"fault-{name}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
             [lib]\nname = \"{lib}\"\npath = \"src/peer_client.rs\"\n\
             [[bin]]\nname = \"fault-{name}\"\npath = \"main.rs\"\n\
             [dependencies]\nkernel = {{ path = \"{root}/kernel-lite\" }}\nmodel = {{ path = \"{host}/model\" }}\n\
             pinned-init = {{ version = \"=0.0.10\", default-features = false }}\n\
             [lints.rust]\nunexpected_cfgs = \"allow\"\n",
            name = fault.name,
            host = host.display(),
            root = root.display(),
        );
        fs::write(package.join("Cargo.toml"), manifest).expect("writable");
        let main = format!("model::main!({lib});\n");
        fs::write(package.join("main.rs"), main).expect("writable");
        writeln!(members, "    \"{}\",", fault.name).expect("a string");
        writeln!(quick, "[profile.dev.package.fault-{}]\ndebug = false", fault.name).expect("a string");
    }
    let profile = fs::read_to_string(root.join("Cargo.toml")).expect("readable");
    let profile = profile.split("[profile.dev]").nth(1).expect("the workspace has a profile");
    let workspace =
        format!("[workspace]\nresolver = \"3\"\nmembers = [\n{members}]\n\n[profile.dev]{profile}\n{quick}");
    fs::write(work.join("Cargo.toml"), workspace).expect("writable");
    fs::copy(root.join("Cargo.lock"), work.join("Cargo.lock")).expect("writable");
}

#[test]
fn every_planted_fault_is_found() {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent").canonicalize().expect("there");
    let target = Path::new(env!("CARGO_BIN_EXE_run")).parent().and_then(Path::parent).expect("target folder");
    let work = target.join("faults");
    fs::create_dir_all(&work).expect("writable");
    let faults = faults::read(&host.join("../faults/model"), &NEEDED).unwrap_or_else(|error| panic!("{error}"));
    prepare(&faults, &host, &work);
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--workspace", "--quiet", "--target-dir"])
        .arg(target)
        .arg("--config")
        .arg(host.join("../../.cargo/config.toml"))
        .current_dir(&work)
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "a fault does not build:\n{}", String::from_utf8_lossy(&built.stderr));
    let mut missed = String::new();
    for fault in &faults {
        let ran = Command::new(target.join("debug").join(format!("fault-{}", fault.name)))
            .args(&fault.run)
            .output()
            .expect("built just now");
        let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        let first = err.lines().find(|l| l.starts_with("VIOLATION")).unwrap_or("");
        if ran.status.code() == Some(86) && first.contains(&fault.says) {
            let _ = std::io::stderr().write_all(format!("model: fault {} is found: {first}\n", fault.name).as_bytes());
        } else {
            writeln!(missed, "{} by `run {}`: {:?}\n{out}{err}", fault.name, fault.run.join(" "), ran.status)
                .expect("a string");
        }
    }
    assert!(missed.is_empty(), "the models miss, or find something else than \"Says:\" in\n{missed}");
}
