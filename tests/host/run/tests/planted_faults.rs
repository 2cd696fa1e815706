// SPDX-License-Identifier: GPL-2.0

//! Tests that the models find planted faults. Each file in `faults/` is a small patch on the
//! shipped sources, and the models must report what it breaks, in the words that the file names.
//! This fails if a patch no longer applies, or if a model passes. `FAULT=NAME` leaves one of them.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Fault {
    name: String,
    path: PathBuf,
    run: Vec<String>,
    says: String,
}

/// Mistakes that must be among the faults, each with the file that plants it.
const NAMED: [(&str, &str); 11] = [
    ("pointer instead of ticket", "pointer-instead-of-ticket"),
    ("state lock held over put", "state-lock-over-put"),
    ("no Revoked check after the provider's get", "no-check-after-get"),
    (
        "invalidate while the registering thread may still wait for the RM API lock",
        "invalidate-while-the-registrar-waits",
    ),
    ("put in put_pages instead of release", "put-in-put-pages"),
    ("no second Revoked check under the put gate", "no-second-check-under-the-gate"),
    ("unmapping after release", "unmap-after-release"),
    ("module reference dropped before the callback is done", "reference-dropped-by-the-callback"),
    ("one of several pins not put", "piece-not-put"),
    ("one of several pins put twice", "piece-put-twice"),
    ("several revocable pins in one registration", "several-revocable-pins"),
];

fn read_faults(folder: &Path) -> Vec<Fault> {
    let mut faults: Vec<Fault> = fs::read_dir(folder)
        .expect("faults/ is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "patch"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("readable");
            let field = |key: &str| {
                let line = text.lines().find_map(|l| l.strip_prefix(key));
                line.unwrap_or_else(|| panic!("{} has no line {key}", path.display())).trim().to_string()
            };
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            Fault { name, run: field("Run:").split(' ').map(Into::into).collect(), says: field("Says:"), path }
        })
        .collect();
    faults.sort_by(|a, b| a.name.cmp(&b.name));
    faults
}

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
        let patched = Command::new("patch")
            .args(["-p1", "--silent", "--forward", "--fuzz=0", "-i"])
            .arg(&fault.path)
            .current_dir(&package)
            .output()
            .expect("patch is installed");
        assert!(
            patched.status.success(),
            "{} does not apply any more; make it again for the sources as they are now:\n{}",
            fault.path.display(),
            String::from_utf8_lossy(&patched.stdout)
        );
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
    let mut faults = read_faults(&host.join("faults"));
    for (what, name) in NAMED {
        assert!(faults.iter().any(|f| f.name == name), "no faults/{name}.patch any more, which plants: {what}");
    }
    assert!(faults.len() >= 17, "{} faults only", faults.len());
    if let Ok(name) = env::var("FAULT") {
        faults.retain(|fault| fault.name == name);
        assert!(!faults.is_empty(), "FAULT={name}: no faults/{name}.patch");
    }
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
