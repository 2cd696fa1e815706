// SPDX-License-Identifier: GPL-2.0

//! Tests that each refusal is one line that says what is wrong, which value, and what to do.

use build_tests::{repository, run, FakeKernel, CRATES};
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

/// modpost refuses symbols that it gets twice.
#[test]
fn one_file_with_both_neighbours_is_named_once() {
    let kernel = FakeKernel::new();
    let exports = ["ib_register_peer_memory_client", "nvidia_p2p_get_pages", "nvidia_p2p_get_pages_persistent"]
        .map(|symbol| format!("0x00000000\t{symbol}\tboth\tEXPORT_SYMBOL_GPL\t\n"));
    let both = kernel.write("both/Module.symvers", &exports.concat());
    let dir = kernel.path().join("both");
    let outcome = kernel.preflight(&[&format!("OFED={}", dir.display()), &format!("NVIDIA={}", dir.display())]);
    assert!(outcome.ok, "{}", outcome.text);
    let env = std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("preflight.env");
    assert!(env.contains(&format!("PREFLIGHT_SYMVERS='{}'", both.display())), "{env}");
}

#[test]
fn a_tree_that_is_not_there() {
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
    refused(&kernel, &["KERNEL_CRATE=own"], &[FakeKernel::RELEASE, "CONFIG_RUST"]);
}

#[test]
fn the_kernel_crate_without_rust_metadata() {
    let kernel = FakeKernel::new();
    kernel.remove("rust/libkernel.rmeta");
    refused(&kernel, &["KERNEL_CRATE=own"], &["rust/libkernel.rmeta", "linux-lib-rust"]);
}

#[test]
fn another_rustc_than_the_kernels() {
    let kernel = FakeKernel::new();
    kernel.config("CONFIG_RUST=y\nCONFIG_RUSTC_VERSION_TEXT=\"rustc 1.0.0 (old)\"\n");
    refused(&kernel, &["KERNEL_CRATE=own"], &["rustc 1.0.0 (old)", "RUSTC="]);
}

/// Returns the setting that names a folder with a `nvidia.ko` of the closed flavour.
fn closed_nvidia(kernel: &FakeKernel) -> String {
    kernel.module("closed/nvidia.ko", &["license=NVIDIA"]);
    format!("NVIDIA={}", kernel.path().join("closed").display())
}

#[test]
fn the_closed_nvidia_ko() {
    let kernel = FakeKernel::new();
    let closed = closed_nvidia(&kernel);
    refused(&kernel, &["KERNEL_CRATE=own", &closed], &["closed flavour", "NVIDIA", "nvidia-open"]);
}

/// Returns a kernel without Rust for which kernel-lite can be built, as far as preflight looks.
/// `DEPS` is its folder `deps`.
fn without_rust() -> (FakeKernel, String) {
    let kernel = FakeKernel::new();
    kernel.config("CONFIG_X86_64=y\n");
    let deps = kernel.deps();
    (kernel, deps)
}

/// Returns the configuration of a kernel for which either crate can be built.
fn with_either(rustc: &str) -> String {
    format!("CONFIG_RUST=y\nCONFIG_X86_64=y\nCONFIG_RUSTC_VERSION_TEXT=\"{}\"\n", rustc.trim())
}

/// Returns a kernel for which either crate can be built, as far as preflight looks. `DEPS` is its
/// folder `deps`.
fn with_rust() -> (FakeKernel, String) {
    let kernel = FakeKernel::new();
    kernel.config(&with_either(&run(Command::new("rustc").arg("--version")).text));
    let deps = kernel.deps();
    (kernel, deps)
}

/// Asserts that kernel-lite is chosen without a setting, and that the line about it contains these
/// words.
fn falls_back(kernel: &FakeKernel, settings: &[&str], words: &[&str]) {
    let (crate_name, line) = chosen(kernel, settings);
    assert_eq!(crate_name, "'lite'", "{line}");
    for word in words.iter().chain(&["kernel-lite ("]) {
        assert!(line.contains(word), "no \"{word}\" in: {line}");
    }
}

#[test]
fn kernel_lite_beside_the_closed_nvidia_ko() {
    let (kernel, deps) = with_rust();
    let closed = closed_nvidia(&kernel);
    assert_eq!(chosen(&kernel, &[&deps]).0, "'own'");
    falls_back(&kernel, &[&deps, &closed], &["closed flavour (licence NVIDIA)", FakeKernel::RELEASE]);
}

/// A plain user's `PATH` does not lead to modinfo.
#[test]
fn a_user_without_sbin() {
    let (kernel, deps) = with_rust();
    let closed = closed_nvidia(&kernel);
    falls_back(
        &kernel,
        &[&deps, &closed, &format!("PATH={}", kernel.users_path())],
        &["closed flavour (licence NVIDIA)"],
    );
}

#[test]
fn kernel_lite_without_rust_metadata() {
    let (kernel, deps) = with_rust();
    kernel.remove("rust/libkernel.rmeta");
    falls_back(&kernel, &[&deps], &["no Rust metadata (rust/libkernel.rmeta)"]);
}

#[test]
fn kernel_lite_with_another_rustc_than_the_kernels() {
    let (kernel, deps) = with_rust();
    kernel.config(&with_either("rustc 1.0.0 (old)"));
    falls_back(&kernel, &[&deps], &["the kernel was built by \"rustc 1.0.0 (old)\""]);
}

/// The module is written for the kernel crate of 7.2, and no other was tried, so a user must ask
/// for another.
#[test]
fn another_series_with_rust() {
    for (release, says) in
        [("7.3.1-fake", "is newer than 7.2"), ("8.0.0-fake", "is newer than 7.2"), ("7.1.9-fake", "is older than 7.2")]
    {
        let (kernel, deps) = with_rust();
        kernel.write("include/config/kernel.release", release);
        falls_back(&kernel, &[&deps], &[release, says]);
    }
    let (kernel, deps) = with_rust();
    kernel.write("include/config/kernel.release", "7.3.1-fake");
    let (crate_name, line) = chosen(&kernel, &[&deps, "KERNEL_CRATE=own"]);
    assert_eq!(crate_name, "'own'");
    assert!(line.contains("KERNEL_CRATE, though kernel 7.3.1-fake is newer than 7.2"), "{line}");
}

/// Makes a rustc of this version whose toolchain has no source of its library.
fn rustc(kernel: &FakeKernel, version: &str) -> String {
    let toolchain = kernel.path().join("toolchain");
    let script = format!("case $1 in --version) echo '{version}' ;; *) echo {} ;; esac", toolchain.display());
    kernel.program("fake-rustc", &script);
    format!("RUSTC={}", kernel.path().join("bin/fake-rustc").display())
}

/// On Ubuntu 24.04, rustc is 1.75. The newest of the other versions that has its library's source
/// is chosen.
#[test]
fn a_rustc_with_its_version_in_the_name() {
    let (kernel, deps) = without_rust();
    kernel.write("good/lib/rustlib/src/rust/library/core/src/lib.rs", "");
    for (name, version, sysroot) in [
        ("rustc", "1.75.0", "good"),
        ("rustc-1.89", "1.89.0", "good"),
        ("rustc-1.91", "1.91.1", "good"),
        ("rustc-1.100", "1.100.0", "nonexistent"),
    ] {
        let sysroot = kernel.path().join(sysroot);
        let script =
            format!("case $1 in --version) echo 'rustc {version} (x)' ;; *) echo {} ;; esac", sysroot.display());
        kernel.program(name, &script);
    }
    // The first folder of PATH has no such file, like the first one of root's PATH on Ubuntu.
    let path = format!("PATH={}:{}:/usr/bin:/bin", kernel.path().display(), kernel.path().join("bin").display());
    let outcome = kernel.preflight(&[&deps, &path]);
    assert!(
        outcome.ok && outcome.text.contains("rustc: ") && outcome.text.contains("/bin/rustc-1.91"),
        "{}",
        outcome.text
    );
    let env = std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("what was found");
    assert!(env.contains("rustc-1.91'"), "{env}");
    // A user who names one gets that one.
    refused(
        &kernel,
        &[&deps, &path, &format!("RUSTC={}/bin/rustc", kernel.path().display())],
        &["1.75.0", "1.85 or later"],
    );
}

/// Debian 12's own package has 1.63. The newer one there has another name than anywhere else.
#[test]
fn a_rustc_that_is_too_old() {
    let (kernel, deps) = without_rust();
    let old = rustc(&kernel, "rustc 1.84.1 (e71f9a9a9 2025-01-27)");
    let os = |text: &str| format!("OS_RELEASE={}", kernel.write("os-release", text).display());
    let bookworm = os("ID=debian\nVERSION_ID=\"12\"\n");
    let words = ["rustc 1.84.1", "1.85 or later", "apt-get install rustc-web rust-web-src", "RUSTC="];
    refused(&kernel, &[&deps, &old, &bookworm], &words);
    refused(&kernel, &["RUSTC=/nonexistent/rustc", &bookworm], &["no /nonexistent/rustc", "rustc-web rust-web-src"]);
    for other in ["ID=ubuntu\nVERSION_ID=\"24.04\"\n", "ID=arch\n"] {
        refused(&kernel, &[&deps, &old, &os(other)], &["rustc 1.84.1", "1.85 or later", "rustup", "distribution"]);
    }
    refused(&kernel, &[&deps, &old, "OS_RELEASE=/nonexistent"], &["rustup"]);
    for (release, how) in [
        ("ID=debian\nVERSION_ID=\"13\"\n", "apt-get install rustc rust-src, or"),
        ("ID=fedora\n", "dnf install rust rust-src, or"),
        ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "zypper install rust1.NN rust1.NN-src for"),
    ] {
        refused(&kernel, &[&deps, &old, &os(release)], &[how]);
    }
}

/// A rustc that is installed and does not run, as a broken toolchain's: one line says so.
#[test]
fn a_rustc_that_does_not_run() {
    let (kernel, deps) = without_rust();
    kernel.program("rustc", "exit 127");
    let words = ["/bin/rustc is there and does not run", "RUSTC="];
    refused(&kernel, &[&deps, &format!("PATH={}", kernel.search_path())], &words);
}

/// The headers of a kernel that has none here, by the name that its distribution gives them.
#[test]
fn headers_that_are_missing() {
    let kernel = FakeKernel::new();
    for (release, of, package) in [
        ("ID=debian\n", "6.12.99-x", "linux-headers-6.12.99-x"),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "5.14.0-1.el9.x86_64", "kernel-devel-5.14.0-1.el9.x86_64"),
        ("ID=\"ol\"\nID_LIKE=\"fedora\"\n", "5.15.0-300.el9uek.x86_64", "kernel-uek-devel-5.15.0-300.el9uek.x86_64"),
        ("ID=\"ol\"\nID_LIKE=\"fedora\"\n", "5.14.0-1.el9.x86_64", "kernel-devel-5.14.0-1.el9.x86_64"),
        (
            "ID=\"amzn\"\nVERSION_ID=\"2023\"\nID_LIKE=\"fedora\"\n",
            "6.1.1-2.amzn2023.x86_64",
            "kernel-devel-6.1.1-2.amzn2023.x86_64",
        ),
        (
            "ID=\"amzn\"\nVERSION_ID=\"2023\"\nID_LIKE=\"fedora\"\n",
            "6.12.1-2.amzn2023.x86_64",
            "kernel6.12-devel-6.12.1-2.amzn2023.x86_64",
        ),
        ("ID=\"sles\"\nID_LIKE=\"suse\"\n", "6.4.0-1-default", "kernel-default-devel of 6.4.0-1-default"),
    ] {
        let file = format!("OS_RELEASE={}", kernel.write("os-release", release).display());
        let kdir = format!("KDIR=/lib/modules/{of}/build");
        refused(&kernel, &[&kdir, &file], &["no kernel build tree at /lib/modules", &format!("install {package}, or")]);
    }
}

#[test]
fn a_rustc_without_rust_src() {
    let (kernel, deps) = without_rust();
    let bare = rustc(&kernel, "rustc 1.85.0 (4d91de4e4 2025-02-17)");
    refused(&kernel, &[&deps, &bare], &["toolchain/lib/rustlib/src/rust/library", "rust-src", "rustup component add"]);
    for (release, how) in [
        ("ID=debian\nVERSION_ID=\"12\"\n", "apt-get install rust-src (with rustc-web: rust-web-src), or rustup"),
        ("ID=debian\nVERSION_ID=\"13\"\n", " apt-get install rust-src, or rustup"),
        ("ID=ubuntu\nVERSION_ID=\"24.04\"\n", "apt-get install rust-src (with rustc-1.85: rust-1.85-src), or rustup"),
        ("ID=\"rhel\"\nVERSION_ID=\"9.6\"\nID_LIKE=\"fedora\"\n", " dnf install rust-src, or rustup"),
        ("ID=\"sles\"\nVERSION_ID=\"15.6\"\nID_LIKE=\"suse\"\n", " zypper install rust1.85-src, or rustup"),
        ("ID=arch\n", "rustup component add"),
    ] {
        let file = format!("OS_RELEASE={}", kernel.write("os-release", release).display());
        refused(&kernel, &[&deps, &bare, &file], &[how]);
    }
}

/// Debian's packages of the driver have another name, which modprobe knows by a line in modprobe.d.
#[test]
fn the_driver_under_debians_name() {
    let (kernel, deps) = with_rust();
    let root = kernel.path().join("root");
    let modules = root.join("lib/modules").join(FakeKernel::RELEASE);
    let made = |module: &str, licence: &str, version: &str| {
        let lines = [format!("license={licence}"), format!("version={version}")];
        let name = format!("root/lib/modules/{}/updates/dkms/{module}.ko", FakeKernel::RELEASE);
        kernel.module(&name, &[&lines[0], &lines[1]]);
    };
    let depmod = || {
        for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            std::fs::write(modules.join(name), "").expect("file");
        }
        assert!(run(Command::new("depmod").arg("-b").arg(&root).arg(FakeKernel::RELEASE)).ok);
    };
    // These are the system's own programs, with this root.
    kernel.program("modinfo", &format!("PATH=${{PATH#*:}} exec modinfo -b {} \"$@\"", root.display()));
    let conf = kernel.write("root/etc/modprobe.d/nvidia.conf", "");
    kernel.program(
        "modprobe",
        &format!("PATH=${{PATH#*:}} exec modprobe -d {} -C {} \"$@\"", root.display(), conf.display()),
    );

    made("nvidia-current", "NVIDIA", "535.1");
    depmod();
    falls_back(&kernel, &[&deps], &["closed flavour (licence NVIDIA)"]);
    // Both exist, and this line says which is used.
    made("nvidia-current-open", "Dual MIT/GPL", "550.2");
    depmod();
    std::fs::write(&conf, "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n").expect("file");
    assert_eq!(chosen(&kernel, &[&deps]).0, "'own'");
    std::fs::write(&conf, "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n").expect("file");
    falls_back(&kernel, &[&deps], &["closed flavour"]);
    // A file of the driver's own name has priority.
    made("nvidia", "Dual MIT/GPL", "560.3");
    depmod();
    std::fs::write(&conf, "").expect("file");
    assert_eq!(chosen(&kernel, &[&deps]).0, "'own'");
}

/// Drivers that come ready-made, and DKMS before 3.1, leave no Module.symvers: the driver's own
/// file has the versions, also where modprobe cannot list exports, or else NVIDIA's own
/// nvidia-peermem beside it.
#[test]
fn the_versions_of_a_driver_without_module_symvers() {
    const PLAIN: &str = "nvidia_p2p_get_pages";
    const PERSISTENT: &str = "nvidia_p2p_get_pages_persistent";
    let kernel = FakeKernel::new();
    let rustc = run(Command::new("rustc").arg("--version")).text;
    kernel.config(&format!("{}CONFIG_MODVERSIONS=y\n", with_either(&rustc)));
    let nvidia = format!("NVIDIA={}", kernel.path().join("driver").display());
    let symvers = kernel.path().join("out/driver.symvers");
    let versions = || -> Vec<String> {
        let outcome = kernel.preflight(&[&nvidia]);
        assert!(outcome.ok, "{}", outcome.text);
        let env = std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("what was found");
        let used = env.contains(&symvers.display().to_string());
        assert_eq!(outcome.text.contains("no symbol versions of the GPU driver"), !used, "{}", outcome.text);
        let from = format!("nvidia_p2p_get_pages: {}/driver/nvidia.ko\n", kernel.path().display());
        assert_eq!(outcome.text.contains(&from), used, "{}", outcome.text);
        let text = std::fs::read_to_string(&symvers).expect("text");
        text.lines().filter(|_| used).map(|line| line.split('\t').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let wants = [(PLAIN, 0x3333_3333), (PERSISTENT, 0x4444_4444), ("printk", 0x5555_5555)];
    kernel.versioned("driver/nvidia-peermem.ko", &[], &wants);
    kernel.versioned("driver/nvidia.ko", &[(PLAIN, 0x1111_1111), (PERSISTENT, 0x2222_2222)], &[]);
    let listed = || {
        let mut found = versions();
        found.sort();
        assert_eq!(found, [format!("0x11111111 {PLAIN}"), format!("0x22222222 {PERSISTENT}")]);
    };
    listed();
    kernel.program("modprobe", WITHOUT_SHOW_EXPORTS);
    listed();
    // Nor does anything else read the file.
    kernel.program("objdump", "exit 1");
    assert_eq!(versions(), [format!("0x33333333 {PLAIN}"), format!("0x44444444 {PERSISTENT}")]);
    // One that was built without an RDMA core wants nothing of the driver.
    kernel.versioned("driver/nvidia-peermem.ko", &[], &[("printk", 0x5555_5555)]);
    assert!(versions().is_empty());
    kernel.versioned("driver/nvidia-peermem.ko", &[], &wants[..1]);
    refused(&kernel, &[&nvidia], &["driver/nvidia.ko exports nvidia_p2p_get_pages and no", "older than 550"]);
}

/// A modprobe of an older kmod.
const WITHOUT_SHOW_EXPORTS: &str = "[ \"$1\" != --show-exports ] || exit 1; PATH=${PATH#*:} exec modprobe \"$@\"";

/// Returns a kernel that would load a driver and a core that came ready-made, without any tree.
fn with_ready_made_neighbours() -> FakeKernel {
    let kernel = FakeKernel::new();
    let rustc = run(Command::new("rustc").arg("--version")).text;
    kernel.config(&format!("{}CONFIG_MODVERSIONS=y\n", with_either(&rustc)));
    kernel.remove("Module.symvers");
    let root = kernel.path().join("root");
    kernel.program("modinfo", &format!("PATH=${{PATH#*:}} exec modinfo -b {} \"$@\"", root.display()));
    let modules = format!("root/lib/modules/{}", FakeKernel::RELEASE);
    let driver = [("nvidia_p2p_get_pages", 0x1111_1111), ("nvidia_p2p_get_pages_persistent", 0x2222_2222)];
    let core = ["ib_register_peer_memory_client", "ib_unregister_peer_memory_client"].map(|name| (name, 0x3333_3333));
    kernel.versioned(&format!("{modules}/updates/dkms/nvidia-current-open.ko"), &driver, &[]);
    kernel.versioned(&format!("{modules}/updates/dkms/ib_core.ko"), &core, &[]);
    kernel.versioned(&format!("{modules}/kernel/ib_uverbs.ko"), &[("ib_uverbs_get_ucontext", 1)], &[]);
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        kernel.write(&format!("{modules}/{name}"), "");
    }
    assert!(run(Command::new("depmod").arg("-b").arg(&root).arg(FakeKernel::RELEASE)).ok);
    kernel
}

/// Returns what preflight has left for the build.
fn found(kernel: &FakeKernel) -> String {
    std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("what was found")
}

/// The files are those that this kernel's modprobe would load, under whatever name, and whether or
/// not modprobe can list exports.
#[test]
fn the_versions_of_what_this_kernel_loads() {
    let kernel = with_ready_made_neighbours();
    for modprobe in ["PATH=${PATH#*:} exec modprobe \"$@\"", WITHOUT_SHOW_EXPORTS] {
        kernel.program("modprobe", modprobe);
        let outcome = kernel.preflight(&[]);
        assert!(outcome.ok && !outcome.text.contains("warning: "), "{}", outcome.text);
        for words in ["ib_register_peer_memory_client", "nvidia_p2p_get_pages"] {
            let line = outcome.text.lines().find(|line| line.contains(&format!("{words}: "))).expect("a line");
            assert!(line.contains("/updates/dkms/"), "{line}");
        }
        let (env, out) = (found(&kernel), kernel.path().join("out").display().to_string());
        assert!(env.contains(&format!("PREFLIGHT_SYMVERS='{out}/core.symvers {out}/driver.symvers'")), "{env}");
    }
}

/// A core that has the API is not said to be missing where nothing tells the versions of its
/// exports: only they are unknown.
#[test]
fn a_core_whose_versions_nobody_reads_is_there() {
    let kernel = with_ready_made_neighbours();
    let core = format!("root/lib/modules/{}/updates/dkms/ib_core.ko", FakeKernel::RELEASE);
    let source = kernel.write("core.s", "__ksymtab_ib_register_peer_memory_client: .long 0\n");
    assert!(run(Command::new("as").arg(source).arg("-o").arg(kernel.path().join(core))).ok);
    kernel.program("modprobe", WITHOUT_SHOW_EXPORTS);
    let outcome = kernel.preflight(&[]);
    assert!(outcome.ok && outcome.text.contains("ib_core.ko exports it, without symbol versions"), "{}", outcome.text);
    assert!(outcome.text.contains("warning: the module gets no symbol versions of the RDMA core"), "{}", outcome.text);
    assert!(found(&kernel).contains("PREFLIGHT_MISSING=\"\""), "{}", found(&kernel));
}

/// Returns the kernel crate that was chosen for the build, and the line with the reason.
fn chosen(kernel: &FakeKernel, settings: &[&str]) -> (String, String) {
    let outcome = kernel.preflight(settings);
    assert!(outcome.ok, "{}", outcome.text);
    let line = outcome.text.lines().find(|l| l.contains("kernel crate: ")).unwrap_or_default().to_string();
    let env = std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("preflight.env");
    let crate_name =
        env.lines().find_map(|l| l.strip_prefix("PREFLIGHT_KERNEL_CRATE=")).unwrap_or_default().to_string();
    (crate_name, line)
}

#[test]
fn the_kernels_own_crate_comes_first() {
    let (crate_name, line) = chosen(&FakeKernel::new(), &[]);
    assert_eq!(crate_name, "'own'");
    assert!(line.contains("the kernel's own (its metadata fits rustc)"), "{line}");
}

/// The module is written for the kernel crate of 7.2. With an older one, the compiler would fail.
#[test]
fn an_older_kernel_with_rust() {
    let kernel = FakeKernel::new();
    kernel.write("include/config/kernel.release", "6.18.3-fake");
    refused(&kernel, &["KERNEL_CRATE=own"], &["6.18.3-fake is older than 7.2", "use a 7.2 kernel"]);
}

/// Debian's headers of 6.1 have 6.1.192 in kernel.release, but uname prints 6.1.0-56-amd64.
#[test]
fn a_kernel_is_called_what_uname_says() {
    let (kernel, deps) = without_rust();
    kernel.write("include/config/kernel.release", "6.1.192");
    kernel.write("include/generated/utsrelease.h", "#define UTS_RELEASE \"6.1.0-56-fake\"\n");
    let (_, line) = chosen(&kernel, &[&deps]);
    assert!(line.contains("kernel 6.1.0-56-fake"), "{line}");
}

/// `make install` runs as root, who has another home than the user who ran `make deps`.
#[test]
fn the_last_build_says_where_the_crates_are() {
    let (kernel, deps) = without_rust();
    chosen(&kernel, &[&deps]);
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "-s", "--eval", "where:; @echo '$(DEPS)'", "where"]);
    make.arg(format!("OUT={}", kernel.path().join("out").display()));
    make.current_dir(repository()).env_remove("MAKEFLAGS").env_remove("DEPS").env("HOME", "/nonexistent");
    let outcome = run(&mut make);
    assert_eq!(Some(outcome.text.trim()), deps.strip_prefix("DEPS="));
}

#[test]
fn a_kernel_without_rust_takes_kernel_lite_and_says_why() {
    let (kernel, deps) = without_rust();
    let (crate_name, line) = chosen(&kernel, &[&deps]);
    assert_eq!(crate_name, "'lite'");
    assert!(line.contains("kernel-lite (") && line.contains("CONFIG_RUST is not set"), "{line}");
}

#[test]
fn kernel_lite_where_it_is_asked_for() {
    let (kernel, deps) = with_rust();
    let (crate_name, line) = chosen(&kernel, &[&deps, "KERNEL_CRATE=lite"]);
    assert_eq!(crate_name, "'lite'");
    assert!(line.contains("(KERNEL_CRATE)"), "{line}");
}

#[test]
fn a_kernel_crate_that_there_is_not() {
    refused(&FakeKernel::new(), &["KERNEL_CRATE=other"], &["KERNEL_CRATE=other is neither own nor lite"]);
}

#[test]
fn kernel_lite_without_its_crates() {
    let (kernel, _) = without_rust();
    refused(&kernel, &["DEPS=/nonexistent"], &["DEPS=/nonexistent", "pinned-init", "make deps"]);
    // Faults of the neighbours are reported first.
    let text = kernel.preflight(&["DEPS=/nonexistent"]).text;
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words} in {text}"));
    assert!(place("ib_register_peer_memory_client") < place("make deps"), "{text}");
    // Each of these files is needed.
    for file in CRATES {
        let deps = kernel.deps();
        kernel.remove(&format!("deps/{file}"));
        refused(&kernel, &[&deps], &[file, "make deps"]);
    }
}

#[test]
fn kernel_lite_for_another_machine() {
    let (kernel, deps) = without_rust();
    kernel.config("CONFIG_RISCV=y\n");
    refused(&kernel, &[&deps], &["x86-64 and arm64 only", "CONFIG_RUST=y"]);
}

/// On x86-64, a kernel of arm64 needs the compiler for arm64.
#[test]
fn a_kernel_of_another_architecture() {
    let (kernel, deps) = without_rust();
    kernel.config("CONFIG_ARM64=y\n");
    refused(&kernel, &[&deps, "ARCH=x86"], &["ARCH=x86", "for arm64", "KDIR=<dir>"]);
    let named = [&deps, "CROSS_COMPILE=no-such-gnu-"];
    refused(&kernel, &named, &["no no-such-gnu-gcc", FakeKernel::RELEASE, "apt-get install gcc-no-such-gnu"]);
    kernel.program("aarch64-linux-gnu-gcc", "");
    let outcome = kernel.preflight(&[&deps]);
    assert!(outcome.ok, "{}", outcome.text);
    let found = std::fs::read_to_string(kernel.path().join("out/preflight.env")).expect("what was found");
    for line in ["PREFLIGHT_ARCH='arm64'", "PREFLIGHT_CROSS_COMPILE='aarch64-linux-gnu-'"] {
        assert!(found.lines().any(|l| l == line), "no {line} in {found}");
    }
    assert!(kernel.preflight(&[&deps, "ARCH=arm64"]).ok);
}

/// Code without the kernel's marks on calls and returns would stop an arm64 machine, or lose its
/// shadow call stack.
#[test]
fn a_compiler_that_lacks_what_the_kernel_asks() {
    let (kernel, deps) = without_rust();
    for (option, flag) in [
        ("CONFIG_SHADOW_CALL_STACK", "-fsanitize=shadow-call-stack"),
        ("CONFIG_ARM64_BTI_KERNEL", "-mbranch-protection=pac-ret+bti"),
        ("CONFIG_ARM64_PTR_AUTH_KERNEL", "-mbranch-protection=pac-ret"),
    ] {
        kernel.config(&format!("CONFIG_ARM64=y\n{option}=y\nCONFIG_CC_VERSION_TEXT=\"gcc 12\"\n"));
        kernel.program("aarch64-linux-gnu-gcc", &format!("for flag; do [ \"$flag\" != {flag} ] || exit 1; done"));
        let words = ["aarch64-linux-gnu-gcc does not know", flag, option, FakeKernel::RELEASE, "gcc 12"];
        refused(&kernel, &[&deps], &words);
        kernel.program("aarch64-linux-gnu-gcc", "");
        let outcome = kernel.preflight(&[&deps]);
        assert!(outcome.ok, "{}", outcome.text);
    }
}

#[test]
fn a_kernel_by_a_clang_that_is_not_there() {
    let (kernel, deps) = without_rust();
    kernel.config(
        "CONFIG_X86_64=y\nCONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=990100\nCONFIG_CC_VERSION_TEXT=\"clang 99\"\n",
    );
    refused(&kernel, &[&deps, "LLVM=-99"], &["no clang-99", FakeKernel::RELEASE, "clang 99", "LLVM=-<version>"]);
    kernel.program("clang-99", "");
    let outcome = kernel.preflight(&[&deps]);
    assert!(outcome.ok, "{}", outcome.text);
}

/// `nvidia.ko` is for another architecture, or for another kernel, whose page size may differ.
#[test]
fn a_driver_of_another_kernel() {
    let (kernel, deps) = without_rust();
    let nvidia = format!("NVIDIA={}", kernel.path().join("nvidia").display());
    let other = |magic: &str| {
        kernel.module("nvidia/nvidia.ko", &["license=Dual MIT/GPL", &format!("vermagic={magic}")]);
        kernel.preflight(&[&deps, &nvidia])
    };
    let same = other(&format!("{} SMP mod_unload modversions ", FakeKernel::RELEASE));
    assert!(same.ok && !same.text.contains("nvidia.ko is"), "{}", same.text);
    let newer = other("6.12.1-other SMP mod_unload modversions ");
    assert!(newer.ok && newer.text.contains("is for kernel 6.12.1-other, not for "), "{}", newer.text);
    assert!(!newer.text.contains("another size"), "x86-64 has one size: {}", newer.text);

    let wrong = ["nvidia.ko is of another architecture", "NVIDIA=<dir>"];
    other(&format!("{} SMP mod_unload modversions aarch64", FakeKernel::RELEASE));
    refused(&kernel, &[&deps, &nvidia], &wrong);
    kernel.config("CONFIG_ARM64=y\n");
    kernel.program("aarch64-linux-gnu-gcc", "");
    let right = kernel.preflight(&[&deps, &nvidia]);
    assert!(right.ok && !right.text.contains("nvidia.ko is"), "{}", right.text);
    for (pages, release, said) in [
        ("4", "6.12.1-arm64-16k", "with pages of 16 KiB, but"),
        ("4", "5.14.0-1.el9.aarch64+64k-debug", "with pages of 64 KiB, but"),
        ("16", "6.4.0-1-64kb", "with pages of 64 KiB, but"),
        ("64", "6.8.0-1-nvidia-64k", ", not for "),
        ("64", "6.8.0-1-nvidia", "its pages may have another size"),
        ("4", FakeKernel::RELEASE, ""),
    ] {
        kernel.config(&format!("CONFIG_ARM64=y\nCONFIG_ARM64_{pages}K_PAGES=y\n"));
        let outcome = other(&format!("{release} SMP mod_unload modversions aarch64"));
        assert_eq!(outcome.ok, !said.ends_with("but"), "{}", outcome.text);
        assert!(outcome.text.contains(said), "no {said:?} in {}", outcome.text);
        assert_eq!(outcome.text.contains("warning: "), outcome.ok && !said.is_empty(), "{}", outcome.text);
        assert_eq!(outcome.text.contains("may have"), said.contains("may have"), "{}", outcome.text);
    }
    kernel.config("CONFIG_ARM64=y\n");
    other(&format!("{} SMP mod_unload modversions ", FakeKernel::RELEASE));
    refused(&kernel, &[&deps, &nvidia], &wrong);
}

#[test]
fn kernel_lite_for_a_kernel_too_old() {
    let (kernel, deps) = without_rust();
    kernel.write("include/config/kernel.release", "4.18.0-fake");
    refused(&kernel, &[&deps], &["4.18.0-fake", "5.10"]);
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

#[test]
fn a_named_nvidia_that_is_none() {
    let kernel = FakeKernel::new();
    refused(&kernel, &["NVIDIA=/nonexistent"], &["NVIDIA=/nonexistent", "nvidia.ko", "Module.symvers", "nv-p2p.h"]);
    kernel.write("headers/nv-p2p.h", "");
    let headers = format!("NVIDIA={}", kernel.path().join("headers").display());
    assert!(kernel.preflight(&[&headers]).ok, "a driver's source without a build");
}

/// Debian's backported kernels are built by a newer gcc than the one that is installed as gcc.
#[test]
fn the_kernels_compiler_is_missing() {
    let (kernel, deps) = without_rust();
    let variables = |cc| kernel.write(".kernelvariables", &format!("CC = $(if $(X),$(CCACHE)) $(CROSS_COMPILE){cc}\n"));
    variables("gcc-99");
    refused(&kernel, &[&deps], &["no gcc-99", FakeKernel::RELEASE, "apt-get install gcc-99"]);
    assert!(kernel.preflight(&[&deps, "CC=gcc"]).ok, "another one was named");
    kernel.program("gcc-99", "");
    assert!(kernel.preflight(&[&deps, &format!("PATH={}", kernel.users_path())]).ok);
}

/// The first rustc in PATH is unsuitable, a later one is suitable.
#[test]
fn another_rustc_in_path() {
    let (kernel, deps) = without_rust();
    let good = kernel.path().join("good");
    kernel.write("good/lib/rustlib/src/rust/library/core/src/lib.rs", "");
    let rustc = format!("case $1 in --version) echo 'rustc 1.90.0 (x)' ;; *) echo {} ;; esac", good.display());
    kernel.program("rustc", &rustc);
    std::fs::rename(kernel.path().join("bin/rustc"), good.join("rustc")).expect("file");
    kernel.program("rustc", "case $1 in --version) echo 'rustc 1.90.0 (y)' ;; *) echo /nonexistent ;; esac");
    let path = format!("PATH={}", kernel.search_path().replacen(':', &format!(":{}:", good.display()), 1));
    refused(
        &kernel,
        &[&deps, &path],
        &["/nonexistent/lib/rustlib", &format!("make RUSTC={}/rustc, or", good.display())],
    );
}

/// NVIDIA's file keeps its place, ours has priority while it is installed, and uninstalling
/// restores the former state, in each of the folders where NVIDIA's packages put theirs. (Only in
/// `updates` itself would depmod prefer theirs by itself.)
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

/// What `make tools` built is installed where shells and man look, and is removed with the module
/// of the last kernel. Without it, the module is installed all the same.
#[test]
fn tools_come_and_go_with_the_module() {
    let kernel = FakeKernel::new();
    let root = kernel.path().join("root");
    let modules = root.join("lib/modules").join(FakeKernel::RELEASE);
    std::fs::create_dir_all(modules.join("updates/nvidia-peermem-rust")).expect("folder");
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        std::fs::write(modules.join(name), "").expect("file");
    }
    let source = kernel.write("ko.s", ".section .modinfo,\"a\"\n.asciz \"license=GPL\"\n");
    let object = modules.join("updates/nvidia-peermem-rust/nvidia-peermem.ko");
    assert!(run(Command::new("as").arg(&source).arg("-o").arg(object)).ok);
    let call = |verb: &str| {
        let mut command = Command::new("sh");
        command.arg(repository().join("mk/install.sh")).arg(verb).env("KDIR", kernel.path());
        run(command.env("INSTALL_MOD_PATH", &root).env("PREFIX", "/opt").env("TOOLS", kernel.path().join("tools")))
    };
    let without = call("install");
    assert!(without.ok && without.text.contains("make tools"), "{}", without.text);
    assert!(!root.join("opt").exists());
    // tools/peermemctl/examples/generate.rs names these files.
    let made = [
        "peermemctl.1",
        "peermemctl-doctor.1",
        "peermemctl.bash",
        "_peermemctl",
        "peermemctl.fish",
        "peermemctl-metrics.timer",
    ];
    for name in made.into_iter().chain(["peermemctl.schema.json", "operators/slurm/gpudirect-rdma"]) {
        kernel.write(&format!("tools/{name}"), "");
    }
    let program = kernel.write("tools/peermemctl", "#!/bin/sh\necho works\n");
    assert!(run(Command::new("chmod").arg("+x").arg(program)).ok);
    // A second installation replaces what the first has put there.
    assert!(call("install").ok);
    let with = call("install");
    assert!(with.ok, "{}", with.text);
    assert_eq!(run(&mut Command::new(root.join("opt/bin/peermemctl"))).text, "works\n");
    let places = [
        "man/man1/peermemctl.1",
        "man/man1/peermemctl-doctor.1",
        "bash-completion/completions/peermemctl",
        "zsh/site-functions/_peermemctl",
        "fish/vendor_completions.d/peermemctl.fish",
        "peermemctl/peermemctl.schema.json",
        "peermemctl/operators/slurm/gpudirect-rdma",
    ];
    for place in places {
        assert!(root.join("opt/share").join(place).is_file(), "{place}: {}", with.text);
    }
    assert!(root.join("opt/lib/systemd/system/peermemctl-metrics.timer").is_file(), "{}", with.text);
    assert!(call("uninstall").ok);
    let left = run(Command::new("find").arg(root.join("opt")).args(["-type", "f"]));
    assert_eq!(left.text, "", "left behind");
}

/// `peermemctl watch` runs while the next version is installed in its place. Whatever becomes of
/// the tools, modprobe takes our module.
#[test]
fn the_module_is_installed_before_the_tools() {
    let kernel = FakeKernel::new();
    let root = kernel.path().join("root");
    let modules = root.join("lib/modules").join(FakeKernel::RELEASE);
    for folder in ["updates/nvidia-peermem-rust", "kernel"] {
        std::fs::create_dir_all(modules.join(folder)).expect("folder");
        kernel
            .module(&format!("root/lib/modules/{}/{folder}/nvidia-peermem.ko", FakeKernel::RELEASE), &["license=GPL"]);
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        std::fs::write(modules.join(name), "").expect("file");
    }
    let install = || {
        let mut command = Command::new("sh");
        command.arg(repository().join("mk/install.sh")).arg("install").env("KDIR", kernel.path());
        run(command.env("INSTALL_MOD_PATH", &root).env("PREFIX", "/opt").env("TOOLS", kernel.path().join("tools")))
    };
    let program = kernel.write("tools/peermemctl.1", "").with_file_name("peermemctl");
    assert!(run(Command::new("sh").arg("-c").arg("cp \"$(command -v sleep)\" \"$0\"").arg(&program)).ok);
    kernel.write("root/opt/bin", "not a folder");
    assert!(!install().ok);
    let wins =
        run(Command::new("modinfo").arg("-b").arg(&root).args(["-k", FakeKernel::RELEASE, "-n", "nvidia-peermem"]));
    assert!(wins.text.contains("updates/nvidia-peermem-rust"), "{}", wins.text);

    kernel.remove("root/opt/bin");
    assert!(install().ok);
    let installed = root.join("opt/bin/peermemctl");
    let mut watch = Command::new(&installed).arg("60").spawn().expect("it runs");
    std::fs::write(&program, "the next version").expect("file");
    let outcome = install();
    watch.kill().and_then(|()| watch.wait()).expect("it ran");
    assert!(outcome.ok, "{}", outcome.text);
    assert_eq!(std::fs::read_to_string(installed).expect("file"), "the next version");

    // Nothing may grow beyond 32 KiB, as on a full disk: what is there stays, and one line says so.
    std::fs::write(&program, [b'x'; 65536]).expect("file");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 64; trap '' XFSZ; exec sh mk/install.sh tools"]).current_dir(repository());
    let outcome =
        run(command.env("INSTALL_MOD_PATH", &root).env("PREFIX", "/opt").env("TOOLS", kernel.path().join("tools")));
    assert!(!outcome.ok && outcome.text.lines().count() == 1, "{}", outcome.text);
    let line = format!("install: {} stays as it was (", root.join("opt/bin/peermemctl").display());
    assert!(outcome.text.starts_with(&line), "{}", outcome.text);
    let bin: Vec<_> =
        std::fs::read_dir(root.join("opt/bin")).expect("folder").map(|file| file.expect("file").path()).collect();
    assert_eq!(bin, [root.join("opt/bin/peermemctl")]);
    assert_eq!(std::fs::read_to_string(&bin[0]).expect("file"), "the next version");
}
