//! `make deps`: where it takes the four crates from.

use build_tests::{repository, run, Outcome};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Where the four crates' first files are in a kernel's source.
const FILES: [&str; 4] =
    ["rust/pin-init/internal/src/lib.rs", "rust/syn/lib.rs", "rust/quote/lib.rs", "rust/proc-macro2/lib.rs"];

/// A kernel's source, as far as `make deps` looks; each file holds `text`.
fn source(dir: &Path, text: &str) {
    for file in FILES {
        let file = dir.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folder");
        fs::write(file, text).expect("file");
    }
}

/// Debian's package of a kernel's source, in a cache of the lab.
fn package(cache: &Path, series: &str) {
    let root = cache.join("root");
    source(&root.join(format!("linux-source-{series}")), series);
    let usr = root.join("deb/usr/src");
    fs::create_dir_all(&usr).expect("folder");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&root).arg("-cJf").arg(usr.join(format!("linux-source-{series}.tar.xz")));
    assert!(run(tar.arg(format!("linux-source-{series}"))).ok);
    fs::create_dir_all(root.join("deb/DEBIAN")).expect("folder");
    let control = format!(
        "Package: linux-source-{series}\nVersion: {series}.1-1\nArchitecture: all\nMaintainer: x <x@invalid>\nDescription: x\n"
    );
    fs::write(root.join("deb/DEBIAN/control"), control).expect("file");
    fs::create_dir_all(cache.join("dl")).expect("folder");
    let deb = cache.join(format!("dl/linux-source-{series}_{series}.1-1_all.deb"));
    let built = run(Command::new("dpkg-deb").arg("-Znone").arg("--build").arg(root.join("deb")).arg(deb));
    assert!(built.ok, "{}", built.text);
    fs::remove_dir_all(root).expect("folder");
}

fn deps(cache: &Path, linux_src: &str) -> Outcome {
    let mut command = Command::new("sh");
    command.arg(repository().join("kernel-lite/deps.sh")).arg(cache.join("deps"));
    run(command.env("NVPM_CACHE", cache).env("LINUX_SRC", linux_src))
}

/// kernel-lite is made for the pin-init of 7.2: a later series is taken only where that one is not.
#[test]
fn linux_7_2_before_others() {
    let cache = TempDir::new().expect("temporary folder");
    package(cache.path(), "7.10");
    let outcome = deps(cache.path(), "");
    assert!(outcome.ok && outcome.text.contains("taken from linux-source-7.10_"), "{}", outcome.text);

    fs::remove_dir_all(cache.path().join("deps")).expect("folder");
    package(cache.path(), "7.2");
    let outcome = deps(cache.path(), "");
    assert!(outcome.ok && outcome.text.contains("taken from linux-source-7.2_"), "{}", outcome.text);
    assert_eq!(fs::read_to_string(cache.path().join("deps/syn/lib.rs")).expect("a crate"), "7.2");
}

#[test]
fn a_source_that_is_named() {
    let cache = TempDir::new().expect("temporary folder");
    let named = cache.path().join("linux");
    fs::create_dir(&named).expect("folder");
    let outcome = deps(cache.path(), named.to_str().expect("text"));
    assert!(!outcome.ok && outcome.text.contains("no rust/pin-init of Linux 7.2 or later"), "{}", outcome.text);
    source(&named, "named");
    let outcome = deps(cache.path(), named.to_str().expect("text"));
    assert!(outcome.ok && outcome.text.contains(&format!("taken from {}", named.display())), "{}", outcome.text);
}
