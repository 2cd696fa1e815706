// SPDX-License-Identifier: GPL-2.0

//! Tests that the models find planted faults, each a patch of tests/faults/model. They must report
//! what it breaks, in the words that the patch names. `FAULT=NAME` leaves one of them.

use faults::Fault;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

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

/// Makes a package of the sources with a fault.
fn plant(fault: &Fault, root: &Path, work: &Path) -> Result<(), String> {
    let lib = format!("fault_{}", fault.name.replace('-', "_"));
    let manifest = format!(
        "[package]\nname = \"fault-{name}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
         [lib]\nname = \"{lib}\"\npath = \"src/peer_client.rs\"\n\
         [[bin]]\nname = \"fault-{name}\"\npath = \"main.rs\"\n\
         [dependencies]\nkernel = {{ path = \"{root}/kernel-lite\" }}\nmodel = {{ path = \"{root}/tests/host/model\" }}\n\
         pinned-init = {{ version = \"=0.0.10\", default-features = false }}\n\
         [lints.rust]\nunexpected_cfgs = \"allow\"\n",
        name = fault.name,
        root = root.display(),
    );
    fault.plant(root, &["VERSION", "bindings", "src"], &work.join(&fault.name), |package| {
        fs::write(package.join("Cargo.toml"), manifest)?;
        fs::write(package.join("main.rs"), format!("model::main!({lib});\n"))
    })
}

/// Makes one workspace of the packages, which share what is built already. A fault runs for a moment
/// only, so the compiler does not optimise.
fn join<'a>(names: impl Iterator<Item = &'a str>, root: &Path, work: &Path) {
    let (mut members, mut quick) = (String::new(), String::new());
    for name in names {
        writeln!(members, "    \"{name}\",").expect("a string");
        writeln!(quick, "[profile.dev.package.fault-{name}]\ndebug = false").expect("a string");
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("there");
    let target = Path::new(env!("CARGO_BIN_EXE_run")).parent().and_then(Path::parent).expect("target folder");
    let work = target.join("faults");
    let faults = faults::read(&root.join("tests/faults/model"), &NEEDED).unwrap_or_else(|error| panic!("{error}"));
    let planted: BTreeMap<_, _> =
        faults.iter().map(|fault| (fault.name.as_str(), plant(fault, &root, &work))).collect();
    join(planted.iter().filter(|(_, planted)| planted.is_ok()).map(|(name, _)| *name), &root, &work);
    let cargo = |word| {
        let mut cargo = faults::cargo(&root, word, target);
        cargo.arg("--quiet").current_dir(&work);
        cargo
    };
    // All are built at once, each that builds; what is wrong with another is said where it is run.
    let _ = faults::run(cargo("build").args(["--workspace", "--keep-going"]));
    faults::demand_all(faults::find_each(
        &faults,
        |_| true,
        |fault| {
            planted[fault.name.as_str()].clone()?;
            let package = format!("fault-{}", fault.name);
            let mut ran = faults::run(cargo("run").args(["--package", &package, "--"]).args(&fault.run))?;
            let first = ran.printed.lines().find(|line| line.starts_with("VIOLATION") && ran.code == Some(86));
            ran.said = first.unwrap_or_default().to_string();
            Ok(ran)
        },
    ));
}
