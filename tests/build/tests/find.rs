// SPDX-License-Identifier: GPL-2.0

//! Tests, on a played root, which folders of OFED and of the GPU driver mk/find.sh takes for a
//! kernel's own.

use build_tests::{repository, run};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const KERNEL: &str = "6.8.0-116-generic";
const FORMER: &str = "5.15.0-97-generic";

/// A root in which modinfo and modprobe print what the test wants.
struct Root(TempDir);

impl Root {
    fn new() -> Self {
        let root = Self(TempDir::new().expect("folder"));
        root.program("modinfo", "exit 1");
        root
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.0.path().join(name);
        fs::create_dir_all(file.parent().expect("folder")).expect("folder");
        fs::write(file, text).expect("file");
    }

    /// Makes a link to one of the root's own paths.
    fn link(&self, target: &str, name: &str) {
        let file = self.0.path().join(name);
        fs::create_dir_all(file.parent().expect("folder")).expect("folder");
        symlink(target, file).expect("link");
    }

    fn program(&self, name: &str, script: &str) {
        self.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.0.path().join("bin").join(name), mode).expect("mode");
    }

    fn symvers(&self, folder: &str) {
        let line = "0x11111111\tib_register_peer_memory_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n";
        self.write(&format!("{folder}/Module.symvers"), line);
    }

    /// Returns what a function prints, without the root itself, and what it notes.
    fn call(&self, words: &str) -> (Vec<String>, String) {
        let path = format!("{}:{}", self.0.path().join("bin").display(), std::env::var("PATH").expect("PATH"));
        let script = format!(
            "note() {{ echo \"note: $*\"; }}; find_here=mk; . mk/find.sh; {}",
            words.replacen(' ', " \"$ROOT\" ", 1)
        );
        let said = run(Command::new("sh")
            .arg("-euc")
            .arg(script)
            .current_dir(repository())
            .env("PATH", path)
            .env("ROOT", self.0.path()));
        assert!(said.ok, "{words}: {}", said.text);
        let root = self.0.path().display().to_string();
        let lines = said.text.lines().map(|line| line.replace(&root, ""));
        let (notes, folders): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("note: "));
        (folders.into_iter().filter(|folder| self.has_symvers(folder)).collect(), notes.join("\n"))
    }

    fn has_symvers(&self, folder: &str) -> bool {
        Path::new(&format!("{}{folder}/Module.symvers", self.0.path().display())).exists()
    }

    fn core(&self) -> (Vec<String>, String) {
        self.call(&format!("core_folders x86_64 {KERNEL}"))
    }
}

/// Asserts that a root has nothing for the kernel, and that a line says which kernel `default` is
/// for.
fn default_is_left_out(lay: impl Fn(&Root)) {
    let root = Root::new();
    lay(&root);
    let (folders, notes) = root.core();
    assert!(folders.is_empty(), "{folders:?}");
    assert!(notes.contains(&format!("default is of another kernel, {FORMER}, and not used")), "{notes}");
}

#[test]
fn a_default_of_another_kernel_is_not_used_in_any_shape() {
    default_is_left_out(|root| {
        root.symvers(&format!("usr/src/ofa_kernel/x86_64/{FORMER}"));
        root.link(&format!("x86_64/{FORMER}"), "usr/src/ofa_kernel/default");
    });
    default_is_left_out(|root| {
        root.symvers(&format!("usr/src/ofa_kernel/{FORMER}"));
        root.link(FORMER, "usr/src/ofa_kernel/default");
    });
    default_is_left_out(|root| {
        root.symvers(&format!("usr/src/mlnx-ofed-24.10/{FORMER}"));
        root.link(&format!("/usr/src/mlnx-ofed-24.10/{FORMER}"), "usr/src/ofa_kernel/default");
    });
    default_is_left_out(|root| {
        root.symvers(&format!("usr/src/ofa_kernel-dkms/x86_64/{FORMER}"));
        root.link(&format!("/usr/src/ofa_kernel-dkms/x86_64/{FORMER}"), "usr/src/ofa_kernel/default");
    });
    // The folder itself says so.
    default_is_left_out(|root| {
        root.symvers("usr/src/ofa_kernel/default");
        root.write(
            "usr/src/ofa_kernel/default/include/generated/utsrelease.h",
            &format!("#define UTS_RELEASE \"{FORMER}\"\n"),
        );
    });
    // The file with which OFED was configured says so.
    default_is_left_out(|root| {
        root.symvers("usr/src/ofa_kernel/default");
        root.write("usr/src/ofa_kernel/default/configure.mk.kernel", &format!("KSRC=/nowhere\nKVERSION={FORMER}\n"));
    });
    // A folder has this kernel's name, but leads elsewhere.
    let root = Root::new();
    root.symvers(&format!("usr/src/ofa_kernel/x86_64/{FORMER}"));
    root.link(FORMER, &format!("usr/src/ofa_kernel/x86_64/{KERNEL}"));
    assert!(root.core().0.is_empty(), "{:?}", root.core());
}

/// Azure Linux and WSL name their kernels by four numbers before the rest.
#[test]
fn a_kernel_with_four_numbers_is_one() {
    for other in ["6.6.57.1-1.azl3", "6.18.38.1-2.azl3", "5.15.153.1-microsoft-standard-WSL2"] {
        let root = Root::new();
        root.symvers(&format!("usr/src/ofa_kernel/x86_64/{other}"));
        root.link(&format!("x86_64/{other}"), "usr/src/ofa_kernel/default");
        let (folders, notes) = root.core();
        assert!(folders.is_empty(), "{folders:?}");
        assert!(notes.contains(&format!("default is of another kernel, {other}, and not used")), "{notes}");
        let own = root.call(&format!("core_folders x86_64 {other}")).0;
        assert!(own.contains(&format!("/usr/src/ofa_kernel/x86_64/{other}")), "{own:?}");
    }
}

#[test]
fn a_default_that_says_no_kernel_is_used() {
    for folder in ["usr/src/ofa_kernel/default", "usr/src/ofa_kernel-24.10.0.7.0"] {
        let root = Root::new();
        root.symvers(folder);
        // The source has this where nobody has configured it.
        root.write(&format!("{folder}/configure.mk.kernel"), "KVERSION=\n");
        if !folder.ends_with("default") {
            root.link(&format!("/{folder}"), "usr/src/ofa_kernel/default");
        }
        assert_eq!(root.core().0, [format!("/{folder}")], "{:?}", root.core());
    }
}

#[test]
fn this_kernels_own_comes_before_default() {
    let root = Root::new();
    let own = format!("usr/src/ofa_kernel-dkms/x86_64/{KERNEL}");
    root.symvers(&own);
    root.symvers(&format!("usr/src/ofa_kernel/x86_64/{FORMER}"));
    root.link(&format!("x86_64/{FORMER}"), "usr/src/ofa_kernel/default");
    assert_eq!(root.core().0, [format!("/{own}")]);
    let (kernels, _) = root.call("core_kernels x86_64; echo");
    assert!(kernels.is_empty(), "{kernels:?}");
}

/// With RHEL's weak-updates, the kernel loads what was built for another kernel, so that kernel's
/// versions count.
#[test]
fn a_core_and_a_driver_by_weak_updates() {
    let root = Root::new();
    for module in ["ib_uverbs", "nvidia"] {
        root.write(&format!("lib/modules/{FORMER}/extra/{module}.ko"), "");
        let weak = format!("lib/modules/{KERNEL}/weak-updates/{module}.ko");
        root.link(&format!("/lib/modules/{FORMER}/extra/{module}.ko"), &weak);
    }
    root.program(
        "modinfo",
        &format!("for name; do :; done; echo \"$ROOT/lib/modules/{KERNEL}/weak-updates/$name.ko\""),
    );
    for kernel in [KERNEL, FORMER] {
        root.symvers(&format!("usr/src/ofa_kernel/x86_64/{kernel}"));
        root.symvers(&format!("var/lib/dkms/nvidia-open/580.95.05/{kernel}/x86_64/module"));
    }
    let (folders, notes) = root.core();
    assert_eq!(folders, [format!("/usr/src/ofa_kernel/x86_64/{FORMER}")]);
    assert!(
        notes.contains(&format!("kernel {KERNEL} loads the RDMA core that was built for kernel {FORMER}")),
        "{notes}"
    );
    let (folders, notes) = root.call(&format!("driver_folders x86_64 {KERNEL} nvidia 580.95.05"));
    assert_eq!(folders, [format!("/var/lib/dkms/nvidia-open/580.95.05/{FORMER}/x86_64/module")]);
    assert!(notes.contains("loads the GPU driver that was built for kernel"), "{notes}");
}

/// Each packager has a name of his own for the driver's folder. A folder of another version does
/// not count.
#[test]
fn the_drivers_folder_under_each_name() {
    for folder in [
        "usr/src/nvidia-580.95.05",
        "usr/src/nvidia-open-580.95.05",
        "usr/src/nvidia-srv-580.95.05",
        "usr/src/nvidia-open-580.95.05-1.el9",
        "usr/src/nvidia-580.95.05/kernel-open",
        "usr/src/nvidia-580.95.05/kernel",
        &format!("var/lib/dkms/nvidia-open/580.95.05/{KERNEL}/x86_64/module"),
        &format!("var/lib/dkms/nvidia/580.95.05/{KERNEL}/x86_64/module"),
    ] {
        let root = Root::new();
        root.symvers(folder);
        root.symvers("usr/src/nvidia-580.95.0");
        root.symvers("usr/src/nvidia-595.10");
        root.symvers(&format!("var/lib/dkms/nvidia/580.95.05/{FORMER}/x86_64/module"));
        let (folders, _) = root.call(&format!("driver_folders x86_64 {KERNEL} nvidia 580.95.05"));
        assert_eq!(folders, [format!("/{folder}")], "{folder}");
    }
}

/// The driver's or core's own modules need symbols with another build's versions.
#[test]
fn versions_of_another_build() {
    let root = Root::new();
    root.symvers("a");
    for (wanted, fits) in [("0x11111111", true), ("0x22222222", false)] {
        root.program("modprobe", &format!("printf '{wanted}\\tib_register_peer_memory_client\\n0x3\\tprintk\\n'"));
        let said = root.0.path().join("a/Module.symvers");
        let (_, notes) =
            root.call(&format!("true && versions_fit some.ko '{}' && note fits || note differs", said.display()));
        assert_eq!(notes, if fits { "note: fits" } else { "note: differs" });
    }
}

/// Two lists agree if no symbol has different versions in them, however these are written.
#[test]
fn lists_of_versions() {
    let root = Root::new();
    root.symvers("a");
    for (other, agrees) in [
        ("0x11111111\tib_register_peer_memory_client\n", true),
        ("0x0000000011111111\tib_register_peer_memory_client\n", true),
        ("0x2\tprintk\n", true),
        ("0x22222222\tib_register_peer_memory_client\n", false),
    ] {
        root.write("b", other);
        let (_, notes) = root.call("true && agree \"$ROOT/a/Module.symvers\" \"$ROOT/b\" && note agree || note differ");
        assert_eq!(notes, if agrees { "note: agree" } else { "note: differ" }, "{other}");
    }
}

/// A kernel that has the RDMA core built in does not use what an OFED left behind.
#[test]
fn a_core_that_is_built_in() {
    let root = Root::new();
    root.symvers(&format!("usr/src/ofa_kernel/x86_64/{KERNEL}"));
    assert_eq!(root.core().0.len(), 1);
    root.program("modinfo", "echo '(builtin)'");
    let (folders, notes) = root.core();
    assert!(folders.is_empty(), "{folders:?}");
    assert!(notes.contains(&format!("kernel {KERNEL} has its RDMA core built in")), "{notes}");
}

/// A modprobe of an older kmod lists no exports. The file itself has them: as absolute symbols, of
/// a kernel before 5.19, or in a section, and compressed or not.
#[test]
fn exports_without_modprobe() {
    let root = Root::new();
    root.program("modprobe", "exit 1");
    let absolute = ".globl __crc_ib_one\n.set __crc_ib_one, 0x81111111\n.set __crc_other, 0x3\n";
    let section = ".section \"__kcrctab\",\"a\"\n__crc_other: .long 3\n.section \"__kcrctab_gpl\",\"a\"\n.long 4\n__crc_ib_one: .long 0x81111111\n";
    let unversioned = ".section \"__ksymtab_gpl\",\"a\"\n__ksymtab_ib_one: .long 0\n";
    for (source, line) in
        [(absolute, "0x81111111\tib_one"), (section, "0x81111111\tib_one"), (unversioned, "0x00000000\tib_one")]
    {
        root.write("ko.s", source);
        let path = |name: &str| root.0.path().join(name);
        assert!(run(Command::new("as").arg(path("ko.s")).arg("-o").arg(path("ko.ko"))).ok);
        for packed in ["", ".gz", ".xz"] {
            if !packed.is_empty() {
                let program = if packed == ".gz" { "gzip" } else { "xz" };
                assert!(run(Command::new(program).arg("-kf").arg(path("ko.ko"))).ok, "{program}");
            }
            let script = format!("find_here=mk; . mk/find.sh; exports '^ib_' '{}{packed}'", path("ko.ko").display());
            let bin = format!("{}:{}", path("bin").display(), std::env::var("PATH").expect("PATH"));
            let said = run(Command::new("sh").arg("-euc").arg(script).current_dir(repository()).env("PATH", bin));
            assert_eq!(said.text, format!("{line}\n"), "{packed}: {source}");
        }
    }
}
