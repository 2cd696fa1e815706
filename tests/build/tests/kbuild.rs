// SPDX-License-Identifier: GPL-2.0

//! Tests Kbuild without the top Makefile, and so without its preflight.

use build_tests::{repository, run, FakeKernel, Outcome};
use std::process::Command;

/// Calls Kbuild by itself, as far as it makes the module's Rust object.
fn kbuild(settings: &str) -> Outcome {
    let kernel = FakeKernel::new();
    let text = format!(
        "pound := \\#\n.DEFAULT_GOAL := o/src/peer_client.o\n{settings}\nRUSTC := rustc\nobj := o\nobjtree := /build\nsrc := {}\n\
         include $(src)/Kbuild\no/%.o: ; @echo \"made $@\"\n.PHONY: FORCE\nFORCE:\n",
        repository().display()
    );
    let makefile = kernel.write("Makefile", &text);
    run(Command::new("make").current_dir(kernel.path()).arg("-f").arg(makefile))
}

/// Nobody has checked rustc and nvidia.ko in that case.
#[test]
fn kbuild_without_preflight() {
    for (settings, words) in [
        ("", ["NVPM_KERNEL_CRATE= is neither", "run make KDIR=/build"]),
        ("NVPM_KERNEL_CRATE := other", ["NVPM_KERNEL_CRATE=other is neither", "run make KDIR=/build"]),
        ("NVPM_KERNEL_CRATE := lite", ["there is no /", "make deps and make KDIR=/build"]),
        ("NVPM_KERNEL_CRATE := lite\nNVPM_DEPS := /gone", ["there is no /gone/", "make deps"]),
    ] {
        let outcome = kbuild(settings);
        assert!(!outcome.ok && !outcome.text.contains("made "), "{settings}: {}", outcome.text);
        for word in words {
            assert!(outcome.text.contains(word), "{settings}: no \"{word}\" in: {}", outcome.text);
        }
        assert!(!outcome.text.contains("No rule to make target"), "{settings}: {}", outcome.text);
    }
    assert!(kbuild("NVPM_KERNEL_CRATE := own").ok);
}
