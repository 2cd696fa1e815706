//! `make deps`: where it takes the four crates from.

use build_tests::{repository, run, Outcome, CRATES};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A kernel's source, as far as `make deps` looks; each file holds `text`.
fn source(dir: &Path, text: &str) {
    for file in CRATES {
        let file = dir.join("rust").join(file);
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

fn command(cache: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg(repository().join("kernel-lite/deps.sh")).arg(cache.join("deps"));
    command.env("NVPM_CACHE", cache).env_remove("LINUX_SRC");
    command
}

fn deps(cache: &Path, linux_src: &str) -> Outcome {
    run(command(cache).env("LINUX_SRC", linux_src))
}

/// Its folder in a `PATH`, with a program of this name.
fn program(cache: &Path, name: &str, script: &str) -> PathBuf {
    let bin = cache.join("bin");
    fs::create_dir_all(&bin).expect("folder");
    fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).expect("file");
    fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).expect("mode");
    bin
}

/// The files and folders of this one, without those that begin with `deps.new`, which no call may
/// leave.
fn nothing_half_made(cache: &Path) {
    let left = fs::read_dir(cache).expect("folder").map(|entry| entry.expect("entry").file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("deps.new")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// kernel-lite is made for the pin-init of 7.2: a later series is taken only where that one is not.
#[test]
fn linux_7_2_before_others() {
    let cache = TempDir::new().expect("temporary folder");
    package(cache.path(), "7.10");
    let outcome = deps(cache.path(), "");
    assert!(outcome.ok && outcome.text.contains("taken from linux-source-7.10_"), "{}", outcome.text);
    assert!(
        outcome.text.contains("warning: that is Linux 7.10") && outcome.text.contains("LINUX_SRC="),
        "{}",
        outcome.text
    );

    fs::remove_dir_all(cache.path().join("deps")).expect("folder");
    package(cache.path(), "7.2");
    let outcome = deps(cache.path(), "");
    assert!(outcome.ok && outcome.text.contains("taken from linux-source-7.2_"), "{}", outcome.text);
    assert!(!outcome.text.contains("warning"), "{}", outcome.text);
    assert_eq!(fs::read_to_string(cache.path().join("deps/syn/lib.rs")).expect("a crate"), "7.2");
}

#[test]
fn a_source_that_is_named() {
    let cache = TempDir::new().expect("temporary folder");
    let named = cache.path().join("linux");
    fs::create_dir(&named).expect("folder");
    let outcome = deps(cache.path(), named.to_str().expect("text"));
    assert!(!outcome.ok && outcome.text.contains("no rust/pin-init of Linux 7.2 or later"), "{}", outcome.text);
    nothing_half_made(cache.path());
    source(&named, "named");
    fs::write(named.join("Makefile"), "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 0\n").expect("file");
    let outcome = deps(cache.path(), named.to_str().expect("text"));
    assert!(outcome.ok && outcome.text.contains(&format!("taken from {}", named.display())), "{}", outcome.text);
    assert!(outcome.text.contains("warning: that is Linux 7.3"), "{}", outcome.text);
}

/// What the lab unpacked, of two series.
#[test]
fn sources_in_the_cache() {
    let cache = TempDir::new().expect("temporary folder");
    for series in ["7.10", "7.2"] {
        let tree = cache.path().join(format!("src/linux-{series}.1-1-abc"));
        source(&tree, series);
        let (version, patchlevel) = series.split_once('.').expect("a dot");
        fs::write(tree.join("Makefile"), format!("VERSION = {version}\nPATCHLEVEL = {patchlevel}\n")).expect("file");
    }
    let outcome = deps(cache.path(), "");
    assert!(outcome.ok && outcome.text.contains("src/linux-7.2.1-1-abc"), "{}", outcome.text);
    assert!(!outcome.text.contains("warning"), "{}", outcome.text);
    nothing_half_made(cache.path());
}

/// `make deps` looks for them, and puts them, where the lab does.
#[test]
fn the_cache_of_the_environment() {
    for (settings, place) in [
        (vec![("HOME", "")], ".cache/nvidia-peermem"),
        (vec![("HOME", "home"), ("XDG_CACHE_HOME", "")], "nvidia-peermem"),
        (vec![("HOME", "home"), ("XDG_CACHE_HOME", "xdg"), ("NVPM_CACHE", "own")], "own"),
    ] {
        let dir = TempDir::new().expect("temporary folder");
        let cache = dir.path().join(place);
        source(&cache.join("src/linux-7.2"), "7.2");
        fs::write(cache.join("src/linux-7.2/Makefile"), "VERSION = 7\nPATCHLEVEL = 2\n").expect("file");
        let mut make = Command::new("make");
        make.current_dir(repository()).args(["--no-print-directory", "deps"]);
        make.arg(format!("OUT={}", dir.path().join("out").display()));
        for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "DEPS", "LINUX_SRC", "XDG_CACHE_HOME", "NVPM_CACHE"] {
            make.env_remove(name);
        }
        make.envs(settings.into_iter().map(|(name, folder)| (name, dir.path().join(folder))));
        // Where nothing is found, nothing is fetched.
        let outcome = run(make.env("OS_RELEASE", "/nonexistent"));
        assert!(outcome.ok && cache.join("kernel-lite-deps/syn/lib.rs").exists(), "{place}: {}", outcome.text);
    }
}

/// Where there is no apt, of Debian or at all, only a source that is named can help.
#[test]
fn another_distribution() {
    let cache = TempDir::new().expect("temporary folder");
    let os = cache.path().join("os-release");
    fs::write(&os, "ID=fedora\nPRETTY_NAME=\"Fedora Linux 42\"\n").expect("file");
    let outcome = run(command(cache.path()).env("OS_RELEASE", &os));
    assert!(!outcome.ok, "{}", outcome.text);
    assert_eq!(outcome.text.lines().count(), 1, "{}", outcome.text);
    for word in ["Fedora Linux 42", "make deps LINUX_SRC=", "7.2"] {
        assert!(outcome.text.contains(word), "no \"{word}\" in: {}", outcome.text);
    }
    nothing_half_made(cache.path());
}

/// A network that is down is not a distribution without the package.
#[test]
fn no_network_or_no_package() {
    const APT: &str = r#"case "$*" in
*indextargets*) echo http://mirror.invalid/debian ;;
*update) for word; do case $word in Dir::State=*) state=${word#*=} ;; esac; done
    [ -z "$ANSWERS" ] || : >"$state/lists/mirror_InRelease"
    echo "E: Failed to fetch http://mirror.invalid/debian"; exit 100 ;;
esac"#;
    let cache = TempDir::new().expect("temporary folder");
    let os = cache.path().join("os-release");
    fs::write(&os, "ID=debian\nVERSION_CODENAME=bookworm\n").expect("file");
    program(cache.path(), "apt-cache", "exit 0");
    let bin = program(cache.path(), "apt-get", APT);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));
    let said = |answers: &str| {
        let outcome = run(command(cache.path()).env("OS_RELEASE", &os).env("PATH", &path).env("ANSWERS", answers));
        assert!(!outcome.ok && outcome.text.contains("E: Failed to fetch"), "{}", outcome.text);
        nothing_half_made(cache.path());
        outcome.text.lines().last().unwrap_or_default().to_string()
    };
    let dead = said("");
    assert!(dead.contains("nothing could be fetched from http://mirror.invalid/debian (E: Failed"), "{dead}");
    let without = said("one");
    assert!(without.contains("no suite that answered has linux-source-7.2"), "{without}");
    for line in [dead, without] {
        assert!(line.contains("LINUX_SRC="), "{line}");
    }
}
