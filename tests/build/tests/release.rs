// SPDX-License-Identifier: GPL-2.0

//! Tests packaging/make.sh: what it makes is complete, or it fails.

use build_tests::{repository, run, FakeKernel, Outcome, CRATES};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// Makes a source archive into a folder, with these programs before the system's own.
fn dist(kernel: &FakeKernel, out: &Path) -> Outcome {
    let mut make = Command::new("sh");
    make.args(["packaging/make.sh", "dist"]).arg(out).current_dir(repository());
    kernel.deps();
    // git locks its index, so only one test may run it at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    run(make
        .env("PATH", kernel.search_path())
        .env("DEPS", kernel.path().join("deps"))
        .env("BUILD", "all")
        .env("XZ_OPT", "-0"))
}

/// git, tar or xz fails at its end, after a part is written. Then no file has the archive's name.
#[test]
fn no_archive_of_a_part() {
    let kernel = FakeKernel::new();
    // An editor that saves an unchanged file gives it a new time, and git first takes that for a
    // change.
    assert!(run(Command::new("touch").arg(repository().join("LICENSE"))).ok);
    let outcome = dist(&kernel, &kernel.path().join("packages"));
    assert!(outcome.ok, "with all of them: {}", outcome.text);
    for (program, fails) in [
        ("git", "/usr/bin/git \"$@\" || exit\n[ \"$1\" != archive ] || exit 128"),
        ("git", "echo 'fatal: detected dubious ownership' >&2; exit 128"),
        ("tar", "/bin/tar \"$@\" || exit\ncase $1 in -c*) exit 2 ;; esac"),
        ("tar", "/bin/tar \"$@\" || exit\ncase $1 in -x*) exit 2 ;; esac"),
        ("xz", "/usr/bin/xz \"$@\"; exit 1"),
    ] {
        let kernel = FakeKernel::new();
        let out = kernel.path().join("packages");
        kernel.program(program, fails);
        let outcome = dist(&kernel, &out);
        assert!(!outcome.ok, "{program}: {}", outcome.text);
        let left = run(Command::new("find").arg(&out).args(["-name", "*.tar.xz*", "!", "-name", "*.new"]));
        assert!(left.text.is_empty(), "{program}: {}", left.text);
    }
}

/// Returns the files of `make dist` whose names have this end.
fn ending(out: &Path, end: &str) -> Vec<String> {
    let names =
        fs::read_dir(out).expect("folder").flatten().map(|entry| entry.file_name().into_string().expect("text"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(end)).collect();
    names.sort();
    names
}

/// Returns each package of a Cargo.lock, by name and version.
fn locked(lock: &str) -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(repository().join(lock)).expect("text");
    let table: toml::Table = text.parse().expect("a lock file");
    let packages = table["package"].as_array().expect("packages").iter();
    let word = |package: &toml::Value, name: &str| package[name].as_str().expect("text").to_string();
    packages.map(|package| (word(package, "name"), word(package, "version"))).collect()
}

const SBOMS: [(&str, &str); 3] = [
    ("libgpumr.cdx.json", "user/Cargo.lock"),
    ("module.cdx.json", "Cargo.lock"),
    ("peermemctl.cdx.json", "tools/peermemctl/Cargo.lock"),
];

/// The real sbom4rust, which `make test` fetches (SBOM4RUST is where), names each crate of each lock
/// file with its version. mk/not-run.sh has who runs the tests leave this one out without it.
#[test]
fn an_sbom_names_each_crate() {
    let tool = std::env::var_os("SBOM4RUST").expect(
        "`make test` fetches sbom4rust; else name the folder of its Python package, SBOM4RUST=<dir>, or -- --skip an_sbom_names_each_crate",
    );
    let kernel = FakeKernel::new();
    let out = kernel.path().join("packages");
    let tool = Path::new(&tool).display();
    kernel.program("sbom4rust", &format!("PYTHONPATH={tool} exec python3 {tool}/bin/sbom4rust \"$@\""));
    let outcome = dist(&kernel, &out);
    assert!(outcome.ok, "{}", outcome.text);
    let made = ending(&out, ".cdx.json");
    assert_eq!(made.len(), SBOMS.len(), "{made:?}");
    for (name, (end, lock)) in made.iter().zip(SBOMS) {
        assert!(name.ends_with(end), "{made:?}");
        let text = fs::read_to_string(out.join(name)).expect("text");
        let sbom: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(sbom["bomFormat"], "CycloneDX", "{name}");
        let word = |part: &serde_json::Value, key: &str| part[key].as_str().unwrap_or_default().to_string();
        let components = sbom["components"].as_array().expect("components").iter();
        let named: BTreeSet<_> = components.map(|part| (word(part, "name"), word(part, "version"))).collect();
        let mut locked = locked(lock);
        if lock == "Cargo.lock" {
            let folders = CRATES.iter().flat_map(|file| file.split('/').next());
            let crates: Vec<&str> = folders.chain(["rustc_version", "semver"]).collect();
            locked.retain(|(name, _)| crates.contains(&name.as_str()));
            assert_eq!(locked.len(), crates.len(), "{locked:?}");
        }
        assert_eq!(named, locked, "{name}");
    }
}

/// Without the tool, the archive is made, and one line says what is not. If the tool fails, or
/// leaves a crate out, no archive is made, and no file has an SBOM's name.
#[test]
fn no_sbom_without_the_tool_or_of_a_part() {
    let kernel = FakeKernel::new();
    let out = kernel.path().join("packages");
    let script = "PATH=$(echo \"$PATH\" | tr : '\\n' | while read -r dir; do [ -x \"$dir/sbom4rust\" ] || echo \"$dir\"; done | paste -sd :) exec /bin/sh \"$@\"";
    kernel.program("sh", script);
    let outcome = dist(&kernel, &out);
    assert!(outcome.ok, "{}", outcome.text);
    let lines: Vec<&str> = outcome.text.lines().filter(|line| line.contains("SBOM")).collect();
    let line = "make dist: the archive comes without SBOMs: there is no sbom4rust: in a Python environment, pip install sbom4rust";
    assert_eq!(lines, [line]);
    assert_eq!(ending(&out, ".tar.xz").len(), 1);
    for (tool, why) in [
        ("echo 'of the test' >&2; exit 3", "make dist: sbom4rust fails for kernel-lite/deps/Cargo.lock: of the test"),
        (
            "for file; do :; done; sed -n 's/^name = \"\\(.*\\)\"/\\1/p; s/^version = \"\\(.*\\)\"/\\1/p' $4/Cargo.lock | paste -d @ - - | sed '/^quote@/d; s|.*|\"pkg:cargo/&\"|' >$file",
            "of kernel-lite/deps/Cargo.lock out",
        ),
    ] {
        let kernel = FakeKernel::new();
        let out = kernel.path().join("packages");
        kernel.program("sbom4rust", tool);
        let outcome = dist(&kernel, &out);
        assert!(!outcome.ok, "{}", outcome.text);
        assert!(outcome.text.lines().any(|line| line.ends_with(why)), "{}", outcome.text);
        assert_eq!(ending(&out, ".cdx.json"), [""; 0]);
    }
}

/// A release is made with the same sbom4rust that is tested here.
#[test]
fn the_release_has_the_tested_sbom4rust() {
    let text = |file: &str| fs::read_to_string(repository().join(file)).expect("text");
    let artefacts = text("ci/qemu/artefacts.mk");
    let line = artefacts.lines().find(|line| line.contains("fetch.sh sbom4rust ")).expect("a line");
    let version = line.rsplit(' ').next().expect("a version");
    let install = format!("pip install sbom4rust=={version}\n");
    assert!(text(".github/workflows/release.yml").contains(&install), "no {install}");
}

/// A hint names the distribution's own package.
#[test]
fn what_is_missing_by_its_name_there() {
    for (release, how) in [
        ("ID=debian\n", "apt-get install rpm"),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install rpm-build"),
        ("ID=\"sles\"\nID_LIKE=\"suse\"\n", "zypper install rpm-build"),
        ("ID=arch\n", "there is no rpmbuild: install it"),
    ] {
        let kernel = FakeKernel::new();
        let file = kernel.write("os-release", release);
        // The script looks for it as `need` does, and finds no program.
        let script = ". mk/find.sh; eval \"$(sed -n '/^need() {/,/^}/p' packaging/make.sh)\"; kind=rpm; command() { return 1; }; need rpmbuild";
        let mut need = Command::new("sh");
        need.args(["-c", script]).current_dir(repository()).env("OS_RELEASE", file);
        let outcome = run(&mut need);
        assert!(!outcome.ok && outcome.text.contains(how), "{}", outcome.text);
    }
}

/// `make deb` and `make rpm` name their log in a first line where they compile for minutes. The package of
/// the module alone takes seconds, and has no such line.
#[test]
fn a_package_that_takes_minutes_is_announced() {
    let dir = TempDir::new().expect("folder");
    let out = dir.path().display();
    let call = |build: &str| {
        let script = format!(". mk/tell.sh; eval \"$(sed -n '/^compile() {{/,/^}}/p' packaging/make.sh)\"; kind=deb out={out}; compile true");
        run(Command::new("sh").args(["-ec", &script]).current_dir(repository()).env("BUILD", build))
    };
    let said = call("binary");
    assert!(
        said.ok && said.text.starts_with("make deb: building ") && said.text.ends_with(&format!("{out}/deb.log\n")),
        "{}",
        said.text
    );
    let said = call("all");
    assert!(said.ok && said.text.is_empty(), "{}", said.text);
    let script = fs::read_to_string(repository().join("packaging/make.sh")).expect("text");
    assert_eq!(script.matches("\tcompile ").count(), 2, "deb and rpm");
}
