//! Each refusal is one line that says what is wrong, which value, and what to do.

use build_tests::{repository, run, FakeKernel};
use std::process::Command;

/// Asserts that preflight fails with one `preflight:` line that holds all of `words`.
fn refused(kernel: &FakeKernel, settings: &[&str], words: &[&str]) {
    let outcome = kernel.preflight(settings);
    assert!(!outcome.ok, "preflight accepted: {}", outcome.text);
    let line = outcome.text.lines().last().unwrap_or_default();
    assert!(line.starts_with("preflight: "), "{}", outcome.text);
    for word in words {
        assert!(line.contains(word), "no \"{word}\" in: {line}");
    }
}

#[test]
fn a_whole_tree_passes_and_says_which_symvers_it_used() {
    let kernel = FakeKernel::new();
    let outcome = kernel.preflight(&[]);
    assert!(outcome.ok, "{}", outcome.text);
    let symvers = kernel.path().join("Module.symvers");
    assert!(
        outcome.text.contains(&format!("ib_register_peer_memory_client: {}", symvers.display())),
        "{}",
        outcome.text
    );
}

#[test]
fn no_tree() {
    let kernel = FakeKernel::new();
    refused(&kernel, &["KDIR=/nonexistent/build"], &["/nonexistent/build", "make KDIR="]);
}

#[test]
fn a_tree_that_is_not_configured() {
    let kernel = FakeKernel::new();
    kernel.remove("include/config/auto.conf");
    refused(&kernel, &[], &["no configured kernel", "auto.conf"]);
}

#[test]
fn the_kernel_crate_without_config_rust() {
    let kernel = FakeKernel::new();
    kernel.config("CONFIG_MODULES=y\n");
    refused(&kernel, &["PROVIDER=kernel"], &[FakeKernel::RELEASE, "CONFIG_RUST"]);
}

#[test]
fn the_kernel_crate_without_rust_metadata() {
    let kernel = FakeKernel::new();
    kernel.remove("rust/libkernel.rmeta");
    refused(&kernel, &["PROVIDER=kernel"], &["rust/libkernel.rmeta", "linux-lib-rust"]);
}

#[test]
fn another_rustc_than_the_kernels() {
    let kernel = FakeKernel::new();
    kernel.config("CONFIG_RUST=y\nCONFIG_RUSTC_VERSION_TEXT=\"rustc 1.0.0 (old)\"\n");
    refused(&kernel, &["PROVIDER=kernel"], &["rustc 1.0.0 (old)", "RUSTC="]);
}

/// `modinfo` reads the licence out of a file that has a `.modinfo` section; the assembler makes one.
#[test]
fn the_closed_nvidia_ko() {
    let kernel = FakeKernel::new();
    let source = kernel.write("closed/nvidia.s", ".section .modinfo,\"a\"\n.asciz \"license=NVIDIA\"\n");
    let object = kernel.path().join("closed/nvidia.ko");
    assert!(run(Command::new("as").arg(source).arg("-o").arg(object)).ok);
    let closed = format!("NVIDIA={}", kernel.path().join("closed").display());
    refused(&kernel, &["PROVIDER=kernel", &closed], &["closed flavour", "NVIDIA", "nvidia-open"]);
}

/// A kernel without Rust for which kernel-lite can be built, as far as preflight looks; `DEPS` is its folder `deps`.
fn without_rust() -> (FakeKernel, String) {
    let kernel = FakeKernel::new();
    kernel.config("CONFIG_X86_64=y\n");
    kernel.write("deps/pin-init/src/lib.rs", "");
    let deps = format!("DEPS={}", kernel.path().join("deps").display());
    (kernel, deps)
}

/// The provider that was written down for the build, and the line that says why.
fn chosen(kernel: &FakeKernel, settings: &[&str]) -> (String, String) {
    let outcome = kernel.preflight(settings);
    assert!(outcome.ok, "{}", outcome.text);
    let line =
        outcome.text.lines().find(|l| l.contains("provider of the kernel crate")).unwrap_or_default().to_string();
    let env = std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("preflight.env");
    let provider = env.lines().find_map(|l| l.strip_prefix("PREFLIGHT_PROVIDER=")).unwrap_or_default().to_string();
    (provider, line)
}

#[test]
fn the_kernels_own_crate_comes_first() {
    let (provider, line) = chosen(&FakeKernel::new(), &[]);
    assert_eq!(provider, "'kernel'");
    assert!(line.contains("kernel (its metadata fits rustc)"), "{line}");
}

#[test]
fn a_kernel_without_rust_takes_kernel_lite_and_says_why() {
    let (kernel, deps) = without_rust();
    let (provider, line) = chosen(&kernel, &[&deps]);
    assert_eq!(provider, "'kernel-lite'");
    assert!(line.contains("kernel-lite (") && line.contains("CONFIG_RUST is not set"), "{line}");
}

#[test]
fn kernel_lite_where_it_is_asked_for() {
    let kernel = FakeKernel::new();
    let rustc = run(Command::new("rustc").arg("--version")).text;
    kernel.config(&format!("CONFIG_RUST=y\nCONFIG_X86_64=y\nCONFIG_RUSTC_VERSION_TEXT=\"{}\"\n", rustc.trim()));
    kernel.write("deps/pin-init/src/lib.rs", "");
    let deps = format!("DEPS={}", kernel.path().join("deps").display());
    let (provider, line) = chosen(&kernel, &[&deps, "PROVIDER=kernel-lite"]);
    assert_eq!(provider, "'kernel-lite'");
    assert!(line.contains("(PROVIDER)"), "{line}");
}

#[test]
fn a_provider_that_there_is_not() {
    refused(&FakeKernel::new(), &["PROVIDER=lite"], &["PROVIDER=lite", "kernel-lite"]);
}

#[test]
fn kernel_lite_without_its_crates() {
    let (kernel, _) = without_rust();
    refused(&kernel, &["DEPS=/nonexistent"], &["DEPS=/nonexistent", "pin-init", "make deps"]);
}

#[test]
fn kernel_lite_for_another_machine() {
    let (kernel, deps) = without_rust();
    kernel.config("CONFIG_ARM64=y\n");
    refused(&kernel, &[&deps], &["x86-64", "CONFIG_RUST=y"]);
}

#[test]
fn kernel_lite_for_a_kernel_too_old() {
    let (kernel, deps) = without_rust();
    kernel.write("include/config/kernel.release", "5.15.0-fake");
    refused(&kernel, &[&deps], &["5.15.0-fake", "6.1"]);
}

#[test]
fn kernel_lite_under_cfi() {
    let (kernel, deps) = without_rust();
    kernel.config("CONFIG_X86_64=y\nCONFIG_CFI_CLANG=y\n");
    refused(&kernel, &[&deps], &["CONFIG_CFI", FakeKernel::RELEASE]);
}

#[test]
fn a_missing_api_is_a_warning_only() {
    let kernel = FakeKernel::new();
    kernel.remove("Module.symvers");
    let outcome = kernel.preflight(&[]);
    assert!(outcome.ok, "{}", outcome.text);
    assert!(
        outcome.text.contains("warning: no Module.symvers exports ib_register_peer_memory_client"),
        "{}",
        outcome.text
    );
}

#[test]
fn a_folder_named_as_ofed_that_is_none() {
    let kernel = FakeKernel::new();
    refused(&kernel, &["OFED=/nonexistent"], &["OFED=/nonexistent", "Module.symvers"]);
}

/// NVIDIA's file keeps its place, ours wins while it is installed, and uninstalling gives the place back: in each of the
/// folders where NVIDIA's packages put theirs. (Only in `updates` itself would depmod prefer theirs by itself.)
#[test]
fn install_wins_and_uninstall_restores() {
    for theirs in ["updates", "updates/dkms", "kernel/drivers/video"] {
        let kernel = FakeKernel::new();
        let root = kernel.path().join("root");
        let modules = root.join("lib/modules").join(FakeKernel::RELEASE);
        let source = kernel.write("ko.s", ".section .modinfo,\"a\"\n.asciz \"license=GPL\"\n");
        for folder in [theirs, "updates/nvidia-peermem-rust"] {
            std::fs::create_dir_all(modules.join(folder)).expect("folder");
            let object = modules.join(folder).join("nvidia-peermem.ko");
            assert!(run(Command::new("as").arg(&source).arg("-o").arg(object)).ok);
        }
        for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            std::fs::write(modules.join(name), "").expect("file");
        }
        let call = |verb: &str| {
            let mut command = Command::new("sh");
            command.arg(repository().join("mk/install.sh")).arg(verb);
            command.env("KDIR", kernel.path()).env("INSTALL_MOD_PATH", &root);
            run(&mut command)
        };
        let installed = call("install");
        assert!(installed.ok && installed.text.contains("now loads"), "{}", installed.text);
        assert!(installed.text.contains("updates/nvidia-peermem-rust/nvidia-peermem.ko"), "{}", installed.text);
        let removed = call("uninstall");
        assert!(removed.ok && removed.text.contains(&format!("{theirs}/nvidia-peermem.ko")), "{}", removed.text);
        assert!(!modules.join("updates/nvidia-peermem-rust").exists());
    }
}

/// Uninstalling for one kernel leaves the others as they are.
#[test]
fn uninstall_for_one_of_two_kernels() {
    let kernel = FakeKernel::new();
    let root = kernel.path().join("root");
    for release in [FakeKernel::RELEASE, "7.2.0-other"] {
        let modules = root.join("lib/modules").join(release);
        std::fs::create_dir_all(modules.join("updates/nvidia-peermem-rust")).expect("folder");
        for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            std::fs::write(modules.join(name), "").expect("file");
        }
    }
    let overrides = root.join("etc/depmod.d");
    std::fs::create_dir_all(&overrides).expect("folder");
    let ours = overrides.join("nvidia-peermem-rust.conf");
    std::fs::write(&ours, "override nvidia-peermem * updates/nvidia-peermem-rust\n").expect("file");
    let uninstall = |release: &str| {
        kernel.write("include/config/kernel.release", release);
        let mut command = Command::new("sh");
        command.arg(repository().join("mk/install.sh")).arg("uninstall");
        run(command.env("KDIR", kernel.path()).env("INSTALL_MOD_PATH", &root))
    };
    assert!(uninstall(FakeKernel::RELEASE).ok && ours.exists());
    assert!(uninstall("7.2.0-other").ok && !ours.exists());
}
