// SPDX-License-Identifier: GPL-2.0

//! packaging/make.sh: what it makes is whole, or it fails.

use build_tests::{repository, run, FakeKernel, Outcome};
use std::path::Path;
use std::process::Command;

/// Makes a source archive into a folder, with these programs before the system's own.
fn dist(kernel: &FakeKernel, out: &Path) -> Outcome {
    let mut make = Command::new("sh");
    make.args(["packaging/make.sh", "dist"]).arg(out).current_dir(repository());
    kernel.deps();
    run(make
        .env("PATH", kernel.search_path())
        .env("DEPS", kernel.path().join("deps"))
        .env("BUILD", "all")
        .env("XZ_OPT", "-0"))
}

/// git, tar or xz fails at its end, where a part is written: no archive is called one.
#[test]
fn no_archive_of_a_part() {
    let kernel = FakeKernel::new();
    // An editor that saves a file as it was gives it a new time, which git first takes for a change.
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

/// A hint names the distribution's own package.
#[test]
fn what_is_missing_by_its_name_there() {
    for (release, how) in [
        ("ID=debian\n", "apt-get install rpm"),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install rpm-build"),
        ("ID=\"sles\"\nID_LIKE=\"suse\"\n", "zypper install rpm-build"),
    ] {
        let kernel = FakeKernel::new();
        let file = kernel.write("os-release", release);
        // As `need` looks for it: no rpmbuild is in this PATH.
        let script = "eval \"$(sed -n '/^need() {/,/^}/p' packaging/make.sh)\"; kind=rpm; PATH=/nowhere:$1; need no-such-rpmbuild rpm rpm-build rpm-build";
        let mut need = Command::new("sh");
        need.args(["-c", script, "sh", "/usr/bin:/bin"]).current_dir(repository()).env("OS_RELEASE", file);
        let outcome = run(&mut need);
        assert!(!outcome.ok && outcome.text.contains(how), "{}", outcome.text);
    }
}
