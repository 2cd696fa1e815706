// SPDX-License-Identifier: GPL-2.0

//! Tests the flags that kernel-lite.mk finds for a compiler, with a compiler that knows what the
//! test wants, and the folders that it writes to.

use build_tests::{repository, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use tempfile::TempDir;

/// Returns the flags on a kernel of Debian's configuration, for a rustc of this version that
/// refuses these options.
fn flags(version: &str, unknown: &[&str]) -> String {
    let dir = TempDir::new().expect("temporary folder");
    let rustc = dir.path().join("rustc");
    let refused: Vec<String> = unknown.iter().map(|option| format!("*\" {option}\"*")).collect();
    let script = format!(
        "#!/bin/sh\ncase \" $*\" in\n*--version*) echo 'rustc {version} (x)' ;;\n{}) exit 1 ;;\nesac\n",
        refused.join(" | ")
    );
    fs::write(&rustc, script).expect("file");
    fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755)).expect("mode");
    let config = ["X86_64", "X86_KERNEL_IBT", "MITIGATION_RETPOLINE", "MITIGATION_RETHUNK", "CALL_PADDING"];
    flags_by(&rustc.display().to_string(), &config)
}

/// Returns the flags on a kernel of this configuration, for this rustc.
fn flags_by(rustc: &str, config: &[&str]) -> String {
    let dir = TempDir::new().expect("temporary folder");
    let makefile = dir.path().join("Makefile");
    let config: String = config.iter().map(|name| format!("CONFIG_{name} := y\n")).collect();
    let text = format!(
        "pound := \\#\n.DEFAULT_GOAL := show\n{config}CONFIG_FUNCTION_PADDING_BYTES := 16\nobj := o\nsrc := {repository}\n\
         include $(src)/kernel-lite/kernel-lite.mk\nshow: ; @echo '$(kl-flags)'\n.PHONY: FORCE\nFORCE:\n",
        repository = repository().display()
    );
    fs::write(&makefile, text).expect("file");
    let made = run(Command::new("make").arg("-sf").arg(makefile).arg(format!("RUSTC={rustc}")).arg("show"));
    assert!(made.ok, "{}", made.text);
    made.text
}

/// Tests what arm64 kernels do with return addresses and indirect calls. The installed rustc
/// accepts each of these flags for arm64's target.
#[test]
fn what_arm64_kernels_ask() {
    const BTI: &str = "-Zbranch-protection=bti,pac-ret";
    const PAC: &str = "-Zbranch-protection=pac-ret";
    const STATIC: &str = "-Zfixed-x18 -Zsanitizer=shadow-call-stack";
    const UNWIND: &str = "-Cforce-unwind-tables=y -Zuse-sync-unwind=n";
    let all = [BTI, PAC, STATIC, "-Zfixed-x18", "shadow-call-stack", UNWIND];
    for (config, wanted) in [
        (&[][..], &[][..]),
        (&["ARM64_PTR_AUTH_KERNEL"], &[PAC]),
        (&["ARM64_PTR_AUTH_KERNEL", "ARM64_BTI_KERNEL"], &[BTI]),
        (&["SHADOW_CALL_STACK"], &[STATIC, "-Zfixed-x18", "shadow-call-stack"]),
        (&["SHADOW_CALL_STACK", "UNWIND_PATCH_PAC_INTO_SCS"], &["-Zfixed-x18", UNWIND]),
    ] {
        let flags = flags_by("rustc", &[&["ARM64"], config].concat());
        // make leaves more than one space where a flag is left out.
        let flags = flags.split_whitespace().collect::<Vec<_>>().join(" ");
        for flag in all {
            assert_eq!(flags.contains(flag), wanted.contains(&flag), "{config:?}: {flag} in {flags}");
        }
        let dir = TempDir::new().expect("temporary folder");
        let source = dir.path().join("empty.rs");
        fs::write(&source, "#![feature(no_core)]\n#![no_core]\n").expect("file");
        let mut rustc = Command::new("rustc");
        rustc.args(flags.split(' ')).args(["--sysroot=/dev/null", "--crate-type=rlib", "--emit=metadata", "--out-dir"]);
        let made = run(rustc.arg(dir.path()).arg(source).env("RUSTC_BOOTSTRAP", "1"));
        assert!(made.ok && made.text.is_empty(), "{config:?}: {flags}: {}", made.text);
    }
}

/// Debian 13's rustc has other spellings, warnings about the target features in each crate, and no
/// prefix of indirect calls at all.
#[test]
fn debian_13s_rustc_gets_the_flags_that_it_knows() {
    let flags = flags("1.85.1", &["-Cjump-tables", "-Zretpoline-external-thunk", "-Zindirect-branch-cs-prefix"]);
    for flag in ["-Zno-jump-tables", "-Ctarget-feature=+retpoline-external-thunk,", " -Awarnings"] {
        assert!(flags.contains(flag), "no {flag} in {flags}");
    }
    assert!(!flags.contains("no-spelling") && !flags.contains("cs-prefix"), "{flags}");
}

#[test]
fn a_newer_rustc_gets_the_new_spellings() {
    let flags = flags("1.96.0", &["-Zno-jump-tables", "-Ctarget-feature"]);
    for flag in ["-Cjump-tables=n", "-Zretpoline-external-thunk", "-Zindirect-branch-cs-prefix"] {
        assert!(flags.contains(flag), "no {flag} in {flags}");
    }
    assert!(!flags.contains("no-spelling") && !flags.contains("-Awarnings"), "{flags}");
}

/// A required mitigation is not left out silently: rustc refuses the flag that asks for it.
#[test]
fn no_spelling_of_a_mitigation() {
    let flags = flags("1.84.0", &["-Zretpoline-external-thunk", "-Ctarget-feature"]);
    assert!(flags.contains("-kernel-lite-no-spelling-of=-Zretpoline-external-thunk"), "{flags}");
}

/// The headers of a kernel belong to root. Before 6.13, make runs in them, and so does rustc.
#[test]
fn a_build_tree_that_only_root_may_write() {
    let dir = TempDir::new().expect("temporary folder");
    let [out, tree] = ["out", "tree"].map(|name| dir.path().join(name));
    fs::create_dir(&tree).expect("folder");
    fs::create_dir(&out).expect("folder");
    for (rule, name) in [("kl_host", "libhost.rlib"), ("kl_lib", "liblite.rlib")] {
        let source = out.join("empty.rs");
        fs::write(&source, "#![feature(no_core)]\n#![no_core]\n").expect("file");
        let made = out.join(name);
        let text = format!(
            "pound := \\#\n.DEFAULT_GOAL := {made}\nobj := {out}\nsrc := {repository}\nHOSTCC := cc\n\
             kl-args := --crate-type rlib\ndepfile = $(@D)/d\n.PHONY: FORCE\nFORCE:\n\
             include $(src)/kernel-lite/kernel-lite.mk\n{made}: {source} ; $(cmd_{rule})\n",
            made = made.display(),
            out = out.display(),
            source = source.display(),
            repository = repository().display(),
        );
        let makefile = out.join("Makefile");
        fs::write(&makefile, text).expect("file");
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o555)).expect("mode");
        // The test may run as root, whom the mode of a folder would not stop.
        let mut make = Command::new("setpriv");
        make.args(["--bounding-set=-dac_override", "make", "-sf"]).arg(makefile).current_dir(&tree);
        // The kernel's own Makefile sets this.
        make.env("RUSTC_BOOTSTRAP", "1");
        let outcome = run(&mut make);
        assert!(outcome.ok && made.exists(), "{rule}: {}", outcome.text);
    }
}
