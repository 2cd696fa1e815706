// SPDX-License-Identifier: GPL-2.0

//! Tests the top Makefile with a kernel build tree that makes no module but writes down how it was
//! called.

use build_tests::{repository, run, FakeKernel, Outcome};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `modules` makes an object with this kernel's vermagic in place of the module, and
/// `modules_install` puts it where kbuild would.
const KBUILD: &str = r#"
modules:
	@echo "$(NVPM_KERNEL_CRATE) $(RUSTC) $(KBUILD_EXTRA_SYMBOLS) $(NVPM_DEPS) LLVM $(LLVM)" >>$(CURDIR)/log
	@cp $(CURDIR)/built.ko $(MO)/nvidia-peermem.ko
modules_install:
	@mkdir -p $(INSTALL_MOD_PATH)/lib/modules/7.2.0-fake/$(INSTALL_MOD_DIR)
	@cp $(MO)/nvidia-peermem.ko $(INSTALL_MOD_PATH)/lib/modules/7.2.0-fake/$(INSTALL_MOD_DIR)/
"#;

/// Returns a kernel that either crate can be built for, with the `PATH` of a user who has a rustc.
fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.write("Makefile", KBUILD);
    kernel.module("built.ko", &["license=GPL", &format!("vermagic={} SMP", FakeKernel::RELEASE)]);
    let rustc = run(Command::new("rustc").arg("--version")).text;
    kernel.config(&format!("CONFIG_RUST=y\nCONFIG_X86_64=y\nCONFIG_RUSTC_VERSION_TEXT=\"{}\"\n", rustc.trim()));
    kernel.deps();
    let driver: &[&str] = &["nvidia_p2p_get_pages", "nvidia_p2p_get_pages_persistent"];
    for (folder, symbols) in [("ofed", &["ib_register_peer_memory_client"] as &[&str]), ("gpu", driver)] {
        let lines = symbols.iter().map(|symbol| format!("0x00000000\t{symbol}\tx\tEXPORT_SYMBOL\t\n"));
        kernel.write(&format!("{folder}/Module.symvers"), &lines.collect::<String>());
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        kernel.write(&format!("root/lib/modules/{}/{name}", FakeKernel::RELEASE), "");
    }
    kernel
}

fn folder(kernel: &FakeKernel, name: &str) -> String {
    kernel.path().join(name).display().to_string()
}

/// Returns a call of `make` with these words. The environment has none of the build's settings.
fn make(kernel: &FakeKernel, words: &[&str]) -> Command {
    let mut make = Command::new("make");
    make.current_dir(repository())
        .arg("--no-print-directory")
        .arg(format!("OUT={}", folder(kernel, "out")))
        .args(words)
        .env("PATH", kernel.search_path());
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "KDIR", "OFED", "NVIDIA", "KERNEL_CRATE", "RUSTC", "LLVM", "DEPS"]
    {
        make.env_remove(name);
    }
    make
}

/// Runs `make` with everything that a user can set.
fn build(kernel: &FakeKernel) {
    let mut words = vec!["KERNEL_CRATE=lite".to_string()];
    for (name, dir) in [("KDIR", ""), ("OFED", "ofed"), ("NVIDIA", "gpu"), ("DEPS", "deps")] {
        words.push(format!("{name}={}", folder(kernel, dir)));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let built = run(&mut make(kernel, &words));
    assert!(built.ok, "{}", built.text);
}

/// Runs `make install` as root, who has another home, only this rustc in `PATH`, and repeats no
/// settings but these words.
fn install(kernel: &FakeKernel, rustc: &str, words: &[&str]) -> Outcome {
    kernel.program("rustc", rustc);
    let mut install = make(kernel, &["install"]);
    install.args(words).arg(format!("INSTALL_MOD_PATH={}", folder(kernel, "root")));
    run(install.env("HOME", "/nonexistent"))
}

fn log(kernel: &FakeKernel) -> Vec<String> {
    let log = fs::read_to_string(kernel.path().join("log")).expect("log");
    log.lines().map(str::to_string).collect()
}

fn installed(kernel: &FakeKernel) -> PathBuf {
    let modules = kernel.path().join("root/lib/modules").join(FakeKernel::RELEASE);
    modules.join("updates/nvidia-peermem-rust/nvidia-peermem.ko")
}

const A_RUSTC: &str = "PATH=${PATH#*:} exec rustc \"$@\"";
const NO_RUSTC: &str = "echo 'rustc is not for root' >&2; exit 1";

#[test]
fn install_is_of_what_make_built() {
    let kernel = kernel();
    build(&kernel);
    let outcome = install(&kernel, NO_RUSTC, &[]);
    assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
    assert!(
        !outcome.text.contains("rustc is not for root") && !outcome.text.contains("preflight:"),
        "{}",
        outcome.text
    );
    let told = log(&kernel);
    assert_eq!(told.len(), 1, "built again: {told:?}");
    assert!(told[0].starts_with("lite /") && told[0].contains("ofed/Module.symvers"), "{told:?}");
    let outcome = run(make(&kernel, &["uninstall"]).arg(format!("INSTALL_MOD_PATH={}", folder(&kernel, "root"))));
    assert!(outcome.ok && !installed(&kernel).exists(), "{}", outcome.text);
}

/// A plain `su` keeps the user's `PATH`.
#[test]
fn root_without_sbin() {
    let kernel = kernel();
    build(&kernel);
    let path = kernel.users_path();
    for verb in ["install", "uninstall"] {
        let mut make = make(&kernel, &[verb, &format!("INSTALL_MOD_PATH={}", folder(&kernel, "root"))]);
        let outcome = run(make.env("PATH", &path));
        assert!(outcome.ok && outcome.text.contains("now loads"), "{}", outcome.text);
    }
    assert_eq!(log(&kernel).len(), 1, "built again");
}

/// Checks what is said where depmod fails at an uninstallation: that modprobe goes by the former list only where that
/// one could be put back.
#[test]
fn uninstall_where_depmod_fails() {
    for (no_list_back, says) in [(false, "modprobe still goes by its former list"), (true, "may find no module")] {
        let kernel = kernel();
        build(&kernel);
        assert!(install(&kernel, NO_RUSTC, &[]).ok);
        let modules = installed(&kernel).ancestors().nth(3).expect("folder").to_path_buf();
        fs::write(modules.join("modules.dep"), "kernel/of_others.ko:\n").expect("file");
        // A link to the kernel's folder is not a second kernel that has the module.
        std::os::unix::fs::symlink(FakeKernel::RELEASE, modules.with_file_name("99.98.link")).expect("link");
        kernel.program("depmod", &format!("rm {0}; : >{0}; exit 1", modules.join("modules.dep").display()));
        if no_list_back {
            kernel.program("mv", "exit 1");
        }
        let outcome = run(&mut make(&kernel, &["uninstall", &format!("INSTALL_MOD_PATH={}", folder(&kernel, "root"))]));
        assert!(!outcome.ok && outcome.text.contains(says), "{}", outcome.text);
        assert!(!outcome.text.contains("still installed for"), "{}", outcome.text);
        let list = fs::read_to_string(modules.join("modules.dep")).expect("list");
        assert_eq!(list.is_empty(), no_list_back, "{list}");
    }
}

/// Checks that a dry run copies, builds and removes nothing, and fails at nothing, also where nothing is built yet or
/// what is built is not up to date.
#[test]
fn a_dry_run_of_an_installation_changes_nothing() {
    let kernel = kernel();
    let outcome = install(&kernel, A_RUSTC, &["--dry-run"]);
    assert!(outcome.ok && log_is_empty(&kernel), "{}", outcome.text);
    build(&kernel);
    let built = kernel.path().join("out/built");
    fs::remove_file(&built).expect("what make has built");
    let outcome = install(&kernel, NO_RUSTC, &["--dry-run"]);
    assert!(outcome.ok && log(&kernel).len() == 1, "{}", outcome.text);
    fs::write(&built, "").expect("file");
    for is_there in [false, true] {
        let outcome = install(&kernel, NO_RUSTC, &["--dry-run"]);
        assert!(outcome.ok && !outcome.text.contains("stays"), "{}", outcome.text);
        assert_eq!(installed(&kernel).exists(), is_there, "{}", outcome.text);
        assert_eq!(log(&kernel).len(), 1, "built again");
        assert!(is_there || install(&kernel, NO_RUSTC, &[]).ok);
    }
}

/// The kernel that the module was installed for need not be running, nor have its headers any more.
#[test]
fn uninstall_without_headers() {
    let kernel = kernel();
    let headers = kernel.path().join("headers");
    std::os::unix::fs::symlink(kernel.path(), &headers).expect("link");
    let root = format!("INSTALL_MOD_PATH={}", folder(&kernel, "root"));
    let kdir = format!("KDIR={}", headers.display());
    assert!(run(&mut make(&kernel, &["KERNEL_CRATE=own", &kdir])).ok);
    kernel.program("uname", "case $1 in -r) echo 7.2.0-running ;; *) echo x86_64 ;; esac");
    let uninstall = |words: &[&str]| {
        let mut make = make(&kernel, &["uninstall", &root]);
        run(make.args(words))
    };
    let gone = |outcome: Outcome| {
        let left =
            installed(&kernel).exists() || kernel.path().join("root/etc/depmod.d/nvidia-peermem-rust.conf").exists();
        assert!(outcome.ok && !left, "{}", outcome.text);
    };
    let install = || {
        std::os::unix::fs::symlink(kernel.path(), &headers).expect("link");
        let outcome = install(&kernel, NO_RUSTC, &[]);
        assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
        fs::remove_file(&headers).expect("link");
    };
    fs::remove_file(&headers).expect("link");
    install();
    gone(uninstall(&[]));
    // If nobody remembers the build, the running kernel is chosen, and the other one is named.
    install();
    let forgotten = format!("OUT={}", folder(&kernel, "forgotten"));
    let build = format!("KDIR=/lib/modules/{}/build", FakeKernel::RELEASE);
    let outcome = uninstall(&[&forgotten]);
    assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
    for words in ["not installed for kernel 7.2.0-running", "make uninstall KDIR="] {
        assert!(outcome.text.contains(words), "no \"{words}\" in: {}", outcome.text);
    }
    assert!(outcome.text.contains(&build), "{}", outcome.text);
    let outcome = uninstall(&[&forgotten, "KDIR=/gone"]);
    assert!(!outcome.ok && outcome.text.contains(FakeKernel::RELEASE), "{}", outcome.text);
    assert!(!outcome.text.contains("cat:"), "{}", outcome.text);
    gone(uninstall(&[&forgotten, &format!("{build}/")]));
}

/// A source is newer than the module. It is built again as it was the first time, by the same
/// compiler.
#[test]
fn install_builds_again_what_is_not_up_to_date() {
    let kernel = kernel();
    build(&kernel);
    let symvers = kernel.path().join("ofed/Module.symvers");
    let later = fs::metadata(kernel.path().join("out/preflight.env")).and_then(|env| env.modified()).expect("time");
    let file = fs::File::options().write(true).open(symvers).expect("file");
    file.set_modified(later + std::time::Duration::from_secs(1)).expect("time");
    let outcome = install(&kernel, NO_RUSTC, &[]);
    assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
    let told = log(&kernel);
    assert!(told.len() == 2 && told[0] == told[1], "{told:?}");
}

/// A user who is not root, or a read-only disk, gets one line before anything is built.
#[test]
fn install_where_nothing_can_be_written() {
    let kernel = kernel();
    build(&kernel);
    let outcome = run(&mut make(&kernel, &["install", "INSTALL_MOD_PATH=/proc/none"]));
    assert!(!outcome.ok, "{}", outcome.text);
    let lines: Vec<&str> = outcome.text.lines().filter(|line| !line.starts_with("make: ")).collect();
    assert_eq!(lines.len(), 1, "{}", outcome.text);
    for words in ["install: /proc/none/lib/modules cannot be written", "as root", "INSTALL_MOD_PATH="] {
        assert!(lines[0].contains(words), "no {words} in: {}", lines[0]);
    }
    assert_eq!(log(&kernel).len(), 1, "it was built again");
}

/// Runs `make install` in a shell that begins with these words. Returns what it says apart from make's own
/// lines.
fn install_after(kernel: &FakeKernel, words: &str) -> (bool, String) {
    let make = make(kernel, &["install", &format!("INSTALL_MOD_PATH={}", folder(kernel, "root"))]);
    let mut sh = Command::new("sh");
    sh.args(["-c", &format!("{words} exec \"$@\""), "sh"]).arg(make.get_program()).args(make.get_args());
    for (name, value) in make.get_envs() {
        match value {
            Some(value) => sh.env(name, value),
            None => sh.env_remove(name),
        };
    }
    let outcome = run(sh.current_dir(repository()));
    (outcome.ok, outcome.text.lines().filter(|line| !line.starts_with("make")).collect::<Vec<_>>().join("\n"))
}

/// The disk is full, or depmod or the override cannot be written: one line says so, modprobe takes the former
/// module as before, and nothing else is left.
#[test]
fn an_installation_that_fails_leaves_the_former_module() {
    let kernel = kernel();
    build(&kernel);
    // The real one leaves an empty list where the disk is full.
    let list = kernel.path().join("root/lib/modules").join(FakeKernel::RELEASE).join("modules.dep");
    let depmod = format!(
        "rm -f '{0}'; : >'{0}'; echo 'depmod: ERROR: fclose: No space left on device' >&2; exit 1",
        list.display()
    );
    fs::write(&list, "kernel/of_others.ko:\n").expect("file");
    let folder = installed(&kernel).parent().expect("folder").to_path_buf();
    let conf = kernel.path().join("root/etc/depmod.d/nvidia-peermem-rust.conf");
    let left = || {
        let beside = fs::read_dir(folder.parent().expect("folder")).expect("folder").flatten();
        let mut names: Vec<_> = beside.map(|entry| entry.file_name().into_string().expect("text")).collect();
        names.sort();
        names
    };
    // Nothing was installed before.
    kernel.program("depmod", &depmod);
    let (ok, said) = install_after(&kernel, "");
    assert_eq!(fs::read_to_string(&list).expect("text"), "kernel/of_others.ko:\n");
    assert!(!ok && !folder.exists() && !conf.exists() && left().is_empty(), "{said}");
    let words = "install: nothing is installed (depmod fails: ERROR: fclose: No space left on device): once that is mended, make install again";
    assert_eq!(said, words);
    kernel.remove("bin/depmod");
    assert!(install(&kernel, NO_RUSTC, &[]).ok);
    let former = fs::read(installed(&kernel)).expect("file");
    let new = kernel.path().join("out/nvidia-peermem.ko");
    fs::write(&new, [former.clone(), vec![0; 1 << 18]].concat()).expect("file");
    let listed = fs::read_to_string(&list).expect("text");
    assert!(listed.contains("nvidia-peermem.ko:"), "{listed}");
    let fails = |limit: &str, why: &str| {
        let (ok, said) = install_after(&kernel, limit);
        assert!(!ok, "{said}");
        let begins = format!("install: the module that is in {} stays (", folder.display());
        assert!(said.starts_with(&begins) && said.lines().count() == 1 && said.contains(why), "{why}: {said}");
        assert!(said.ends_with("): once that is mended, make install again"), "{said}");
        assert!(fs::read(installed(&kernel)).expect("file") == former, "{why}: it is another file");
        assert_eq!(left(), ["nvidia-peermem-rust"], "{why}");
        assert_eq!(fs::read_to_string(&list).expect("text"), listed, "{why}");
        assert!(!list.with_file_name(".nvidia-peermem-rust.lists").exists(), "{why}");
        assert_eq!(fs::read_to_string(&conf).expect("text"), "override nvidia-peermem * updates/nvidia-peermem-rust\n");
    };
    fails("ulimit -f 128; trap '' XFSZ;", "cp: ");
    kernel.program("depmod", &depmod);
    fails("", "depmod fails: ");
    kernel.remove("bin/depmod");
    fs::create_dir(conf.with_extension("conf.new")).expect("folder");
    fails("", "nvidia-peermem-rust.conf: ");
    let (ok, said) = install_after(&kernel, "");
    assert!(ok && fs::read(installed(&kernel)).expect("file") != former, "{said}");
    assert!(!said.contains(".new") && left() == ["nvidia-peermem-rust"], "{said}");
}

/// The kernel has symbol versions, and the module got none of a neighbour: both make and make install say so.
#[test]
fn a_module_built_against_nothing_says_so() {
    let kernel = kernel();
    let built = run(&mut make(&kernel, &["KERNEL_CRATE=own", &format!("KDIR={}", folder(&kernel, ""))]));
    assert!(built.ok && !built.text.contains("symbol versions"), "{}", built.text);
    let said = install(&kernel, A_RUSTC, &[]);
    assert!(said.ok && !said.text.contains("symbol versions"), "{}", said.text);
    let config = fs::read_to_string(kernel.path().join("include/config/auto.conf")).expect("text");
    kernel.config(&format!("{config}CONFIG_MODVERSIONS=y\n"));
    let built = run(&mut make(&kernel, &["KERNEL_CRATE=own", &format!("KDIR={}", folder(&kernel, ""))]));
    let warning = "warning: the module gets no symbol versions of the GPU driver: the kernel will not notice";
    assert!(built.ok && built.text.contains(warning), "{}", built.text);
    let said = install(&kernel, A_RUSTC, &[]);
    let line = "install: it has no symbol versions of the GPU driver: make names what it looked for";
    assert!(said.ok && said.text.lines().any(|said| said == line), "{}", said.text);
}

/// A neighbour that the last build was made against has gone.
#[test]
fn install_after_a_neighbour_has_gone() {
    let kernel = kernel();
    build(&kernel);
    kernel.remove("gpu/Module.symvers");
    kernel.write("gpu/nv-p2p.h", "");
    let outcome = install(&kernel, "rustc", &[]);
    assert!(outcome.ok, "{}", outcome.text);
    assert_eq!(log(&kernel).len(), 2, "it was not built again: {}", outcome.text);
}

/// The driver's own file, which had the versions for want of a Module.symvers, is another one now.
#[test]
fn install_after_the_drivers_own_file_has_changed() {
    let kernel = kernel();
    kernel.remove("gpu/Module.symvers");
    kernel.versioned("gpu/nvidia.ko", &[("nvidia_p2p_get_pages", 1), ("nvidia_p2p_get_pages_persistent", 2)], &[]);
    build(&kernel);
    let outcome = install(&kernel, "rustc", &[]);
    assert!(outcome.ok && log(&kernel).len() == 1, "it was built again: {}", outcome.text);
    assert!(log(&kernel)[0].contains("out/driver.symvers"), "{:?}", log(&kernel));
    assert!(run(Command::new("touch").args(["-d", "1 hour"]).arg(kernel.path().join("gpu/nvidia.ko"))).ok);
    let outcome = install(&kernel, "rustc", &[]);
    assert!(outcome.ok && log(&kernel).len() == 2, "it was not built again: {}", outcome.text);
}

/// A setting given at install is used, and the others stay as they were.
#[test]
fn install_with_another_kernel_crate() {
    let kernel = kernel();
    build(&kernel);
    let outcome = install(&kernel, NO_RUSTC, &["KERNEL_CRATE=own"]);
    assert!(outcome.ok, "{}", outcome.text);
    let told = log(&kernel);
    assert!(told.len() == 2 && told[1] == told[0].replacen("lite", "own", 1), "{told:?}");
}

/// The same compiler under another name counts as the same.
#[test]
fn install_with_another_compiler() {
    let kernel = kernel();
    build(&kernel);
    let rustc = |words: &[&str]| install(&kernel, "PATH=${PATH#*:} exec rustc \"$@\"", words);
    let outcome = rustc(&["RUSTC=rustc"]);
    assert!(outcome.ok && log(&kernel).len() == 1, "{}", outcome.text);
    kernel.program("clang-99", "");
    let outcome = rustc(&["LLVM=-99"]);
    assert!(outcome.ok && log(&kernel).len() == 2 && log(&kernel)[1].contains("LLVM -99"), "{}", outcome.text);
    let other = kernel.path().join("bin/other-rustc");
    kernel.program("other-rustc", "case $1 in --version) echo 'rustc 1.99.0 (other)' ;; *) exec rustc \"$@\" ;; esac");
    let outcome = rustc(&["LLVM=-99", &format!("RUSTC={}", other.display())]);
    assert!(outcome.ok && log(&kernel).len() == 3, "{}", outcome.text);
    assert!(log(&kernel)[2].contains(&other.display().to_string()), "{}", outcome.text);
}

/// A build that was interrupted leaves nothing to install.
#[test]
fn install_after_a_build_that_failed() {
    let kernel = kernel();
    build(&kernel);
    kernel.write("Makefile", "modules:\n\t@echo 'the compiler says no'; exit 1\n");
    let symvers = format!("KDIR={}", folder(&kernel, ""));
    assert!(!run(&mut make(&kernel, &["KERNEL_CRATE=own", &symvers])).ok);
    let outcome = install(&kernel, NO_RUSTC, &[]);
    assert!(
        !outcome.ok && outcome.text.contains("the compiler says no") && !installed(&kernel).exists(),
        "{}",
        outcome.text
    );
}

/// `make` itself, and other targets than install, take nothing from the last build except where the
/// crates are.
#[test]
fn make_begins_anew() {
    let kernel = kernel();
    build(&kernel);
    let kdir = format!("KDIR={}", folder(&kernel, ""));
    assert!(run(&mut make(&kernel, &[&kdir])).ok);
    let told = log(&kernel);
    assert!(told[1].starts_with("own /") && !told[1].contains("ofed"), "{told:?}");
}

/// Kbuild runs in the kernel's build tree, so relative paths are made absolute.
#[test]
fn folders_by_relative_paths() {
    let kernel = kernel();
    let here = kernel.path().join("here");
    fs::create_dir(&here).expect("folder");
    for name in ["Makefile", "Kbuild", "mk", "src", "bindings", "kernel-lite"] {
        std::os::unix::fs::symlink(repository().join(name), here.join(name)).expect("link");
    }
    let words = ["OUT=out", "KDIR=..", "OFED=../none ../ofed", "NVIDIA=../gpu", "DEPS=../deps", "KERNEL_CRATE=lite"];
    let mut build = make(&kernel, &words);
    let outcome = run(build.current_dir(&here));
    assert!(outcome.ok && here.join("out/built").exists(), "{}", outcome.text);
    let mut install = make(&kernel, &["install", "OUT=out", "INSTALL_MOD_PATH=../root"]);
    let outcome = run(install.current_dir(&here));
    assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
    let told = log(&kernel);
    assert_eq!(told.len(), 1, "built again: {told:?}");
    for folder in ["ofed", "gpu", "deps"] {
        assert!(told[0].contains(&format!(" {}", kernel.path().join(folder).display())), "{told:?}");
    }
}

/// Each boot has its own kernel crate, so the setting is refused rather than ignored.
#[test]
fn a_kernel_crate_for_what_takes_none() {
    for target in ["test", "soak", "fault", "bench", "bench-docs", "bench-cost", "scenarios", "shell"] {
        let outcome = run(Command::new("make").current_dir(repository()).args(["-n", target, "KERNEL_CRATE=own"]));
        assert!(!outcome.ok, "{target}: {}", outcome.text);
        for word in [target, "KERNEL_CRATE="] {
            assert!(outcome.text.contains(word), "no \"{word}\" in: {}", outcome.text);
        }
    }
}

/// One command tries a planted fault, whichever folder has it.
#[test]
fn a_planted_fault_is_tried_by_who_must_find_it() {
    let fault = |name: &str, word: &str| {
        run(Command::new("make").current_dir(repository()).args(["-s", "fault", &format!("FAULT={name}"), word]))
    };
    for (kind, words) in [("model", "-p run "), ("user", "-p gpumr-model "), ("boot", "ci/lab.sh soak --only planted")]
    {
        let folder = fs::read_dir(repository().join("tests/faults").join(kind)).expect("folder");
        let file = folder.map(|file| file.expect("file").path()).min().expect("a fault");
        let name = file.file_stem().expect("name").to_string_lossy();
        let outcome = fault(&name, "-n");
        assert!(outcome.ok && outcome.text.contains(words), "{name}: {}", outcome.text);
        assert!(outcome.text.contains(&format!("FAULT='{name}'")), "{}", outcome.text);
    }
    let outcome = fault("no-such-fault", "lab_env=true");
    for word in ["FAULT=no-such-fault: ", "never-persistent"] {
        assert!(!outcome.ok && outcome.text.contains(word), "no \"{word}\" in: {}", outcome.text);
    }
}

/// The last line says what was built and what comes next.
#[test]
fn a_build_ends_with_the_next_step() {
    let kernel = kernel();
    let outcome = run(&mut make(&kernel, &[&format!("KDIR={}", folder(&kernel, ""))]));
    assert!(outcome.ok, "{}", outcome.text);
    // Here, standard error follows it.
    let line = outcome.text.lines().find(|line| line.contains("make install")).unwrap_or_default();
    assert!(line.contains(&folder(&kernel, "out/nvidia-peermem.ko")), "{}", outcome.text);
}

#[test]
fn a_path_with_a_space() {
    let kernel = kernel();
    for name in ["OUT", "KDIR", "DEPS", "INSTALL_MOD_PATH"] {
        let outcome = run(&mut make(&kernel, &[&format!("{name}=/a b/c")]));
        assert!(!outcome.ok && outcome.text.contains(&format!("{name}=/a b/c: ")), "{}", outcome.text);
    }
    let here = kernel.path().join("h ere");
    fs::create_dir(&here).expect("folder");
    for name in ["Makefile", "Kbuild", "mk", "src", "bindings", "kernel-lite"] {
        std::os::unix::fs::symlink(repository().join(name), here.join(name)).expect("link");
    }
    let outcome = run(make(&kernel, &[]).current_dir(&here));
    assert!(!outcome.ok && outcome.text.contains("h ere: ") && log_is_empty(&kernel), "{}", outcome.text);
}

/// Returns whether no build was begun.
fn log_is_empty(kernel: &FakeKernel) -> bool {
    !kernel.path().join("log").exists()
}

/// Packagers install like this.
#[test]
fn install_goes_below_destdir() {
    let kernel = kernel();
    build(&kernel);
    let outcome = run(&mut make(&kernel, &["install", &format!("DESTDIR={}", folder(&kernel, "root"))]));
    assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
}

/// If the kernel's key is missing, nothing is signed. sign-file would print an error of OpenSSL.
#[test]
fn signed_with_the_kernels_key_only() {
    let kernel = kernel();
    kernel.write(
        "Makefile",
        &KBUILD
            .replacen("modules:", "include include/config/auto.conf\nmodules:", 1)
            .replace("@mkdir", "@echo \"SIG_ALL $(CONFIG_MODULE_SIG_ALL)\" >>$(CURDIR)/log; mkdir"),
    );
    let config = fs::read_to_string(kernel.path().join("include/config/auto.conf")).expect("config");
    kernel.config(&format!("{config}CONFIG_MODULE_SIG_ALL=y\nCONFIG_MODULE_SIG_KEY=\"certs/key.pem\"\n"));
    build(&kernel);
    let signs = || {
        let outcome = install(&kernel, NO_RUSTC, &[]);
        assert!(outcome.ok, "{}", outcome.text);
        log(&kernel).pop()
    };
    assert_eq!(signs().as_deref(), Some("SIG_ALL "));
    kernel.write("certs/key.pem", "");
    assert_eq!(signs().as_deref(), Some("SIG_ALL y"));
}

/// Runs `make clean` in a copy of the Makefiles. Every folder in build/ that they name is removed,
/// and what the lab made stays.
#[test]
fn clean_removes_what_make_built() {
    let tree = tempfile::tempdir().expect("temporary folder");
    let copy = |name: &str| {
        let to = tree.path().join(name);
        fs::create_dir_all(to.parent().expect("a parent")).expect("folder");
        fs::copy(repository().join(name), to).expect(name);
    };
    let makefiles = ["Makefile", "mk/packages.mk", "mk/lab.mk"];
    makefiles.iter().chain(&["kernel-lite/missing.sh"]).for_each(|name| copy(name));
    let text = makefiles.map(read).concat();
    let named =
        text.split("$(CURDIR)/build/").skip(1).filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
    let named: BTreeSet<&str> =
        named.filter(|name| !name.is_empty()).chain(["lab", "module-lint", "module-doc"]).collect();
    assert!(named.contains("module") && named.contains("target"), "{named:?}");
    for name in &named {
        fs::create_dir_all(tree.path().join("build").join(name)).expect("folder");
    }
    let outcome = run(Command::new("make").current_dir(tree.path()).arg("clean").env_remove("MAKEFLAGS"));
    assert!(outcome.ok, "{}", outcome.text);
    let left = fs::read_dir(tree.path().join("build")).expect("folder");
    let left: Vec<_> = left.map(|entry| entry.expect("entry").file_name().into_string().expect("name")).collect();
    assert_eq!(left, ["lab"], "{}", outcome.text);
}

/// The former name would otherwise be ignored without any message.
#[test]
fn the_old_name_of_the_kernel_crate() {
    let outcome = run(&mut make(&kernel(), &["PROVIDER=kernel"]));
    assert!(!outcome.ok && outcome.text.contains("KERNEL_CRATE"), "{}", outcome.text);
}

/// The targets that users need fit on one screen. CONTRIBUTING.md names every other target.
#[test]
fn help_fits_one_screen_and_no_target_is_untold() {
    let help = run(Command::new("make").current_dir(repository()).args(["-s", "help"])).text;
    assert!(help.lines().count() <= 24, "{} lines: {help}", help.lines().count());
    let wide = help.lines().find(|line| line.chars().count() > 80);
    assert!(wide.is_none(), "wider than 80: {wide:?}");
    for word in ["KDIR=", "OFED=", "NVIDIA=", "KERNEL_CRATE=", "RUSTC=", "LLVM=", "INSTALL_MOD_PATH=", "PREFIX="] {
        assert!(help.contains(word), "no \"{word}\" in: {help}");
    }
    let told = help + &read("CONTRIBUTING.md");
    let told: Vec<&str> = told.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
    let makefiles = read("Makefile") + &read("mk/lab.mk") + &read("mk/packages.mk");
    let targets: Vec<&str> =
        makefiles.lines().filter_map(|line| line.strip_prefix(".PHONY:")).flat_map(str::split_whitespace).collect();
    assert!(targets.contains(&"demo") && targets.contains(&"check"), "{targets:?}");
    for target in targets {
        assert!(told.contains(&target), "neither make help nor CONTRIBUTING.md tells of make {target}");
    }
}

/// Returns the manifests of all workspaces.
fn workspaces() -> BTreeSet<String> {
    let out = Command::new("git").current_dir(repository()).args(["ls-files", "*Cargo.lock"]).output().expect("git");
    let locks = String::from_utf8(out.stdout).expect("UTF-8");
    locks.lines().map(|lock| lock.replace("Cargo.lock", "Cargo.toml")).collect()
}

/// rust-analyzer opens each existing workspace, and none that was removed.
#[test]
fn the_editor_is_told_of_every_workspace() {
    let settings = read(".vscode/settings.json");
    let told = settings.split('"').filter(|word| word.ends_with("Cargo.toml")).map(str::to_string).collect();
    assert_eq!(workspaces(), told);
}

/// Each crate is a member of a workspace: cargo runs the tests of no other.
#[test]
fn every_crate_is_a_member_of_a_workspace() {
    let out = Command::new("git").current_dir(repository()).args(["ls-files", "*Cargo.toml"]).output().expect("git");
    let manifests = String::from_utf8(out.stdout).expect("UTF-8");
    let is_crate = |manifest: &&str| read(manifest).contains("[package]");
    let crates: BTreeSet<String> = manifests.lines().filter(is_crate).map(str::to_string).collect();
    let mut members = BTreeSet::new();
    for workspace in workspaces() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline", "--manifest-path"]);
        let out = cargo.arg(repository().join(workspace)).output().expect("cargo");
        let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        for package in metadata["packages"].as_array().expect("packages") {
            let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
            members.insert(manifest.strip_prefix(repository()).expect("here").display().to_string());
        }
    }
    assert!(!crates.is_empty(), "git knows no crate");
    assert_eq!(crates, members);
}

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).expect(file)
}

/// Root builds again in a user's folder. All files that it leaves there belong to the user, whose
/// next make works. mk/not-run.sh has who runs the tests leave this one out where they are not root.
#[test]
fn root_leaves_nothing_of_root() {
    assert_eq!(
        run(Command::new("id").arg("-u")).text,
        "0\n",
        "it needs root, or -- --skip root_leaves_nothing_of_root"
    );
    let kernel = kernel();
    let copy = kernel.path().join("checkout");
    let script = "mkdir -p $1/build && cp -R Makefile Kbuild VERSION mk src bindings kernel-lite $1/ && rm -rf $1/kernel-lite/deps && chown -R 65534:65534 $1";
    let copied = run(Command::new("sh").args(["-ec", script, "sh"]).arg(&copy).current_dir(repository()));
    assert!(copied.ok, "{}", copied.text);
    let mut words = vec!["KERNEL_CRATE=lite".to_string(), format!("OUT={}/build/module", copy.display())];
    words.push(format!("INSTALL_MOD_PATH={}", folder(&kernel, "root")));
    for (name, dir) in [("KDIR", ""), ("OFED", "ofed"), ("NVIDIA", "gpu"), ("DEPS", "deps")] {
        words.push(format!("{name}={}", folder(&kernel, dir)));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = run(make(&kernel, &["install"]).args(words).current_dir(&copy));
    assert!(outcome.ok && installed(&kernel).exists(), "{}", outcome.text);
    let left = run(Command::new("find").arg(&copy).args(["-user", "0"]));
    assert!(left.ok && left.text.is_empty(), "{}", left.text);
}

/// Kbuild goes on where it cannot sign, as on a full disk.
#[test]
fn an_unsigned_module_does_not_replace_a_signed_one() {
    let kernel = kernel();
    build(&kernel);
    let first = install(&kernel, A_RUSTC, &[]);
    assert!(first.ok && installed(&kernel).exists(), "{}", first.text);
    kernel.program(
        "modinfo",
        "case \"$*\" in *-n*) echo /updates/nvidia-peermem-rust/ ;; *.new/*) ;; *) echo a key ;; esac",
    );
    let second = install(&kernel, A_RUSTC, &[]);
    let folder = installed(&kernel).parent().expect("a folder").display().to_string();
    let line = format!(
        "install: the module that is in {folder} stays (the new one could not be signed): once that is mended, make \
         install again"
    );
    assert!(!second.ok && second.text.lines().any(|said| said == line), "{}", second.text);
    assert!(installed(&kernel).exists() && !PathBuf::from(format!("{folder}.new")).exists());
}

/// An installation that was interrupted between its two moves left the former module aside.
#[test]
fn a_module_that_went_aside_comes_back_where_the_next_installation_fails() {
    let kernel = kernel();
    build(&kernel);
    assert!(install(&kernel, A_RUSTC, &[]).ok);
    let folder = installed(&kernel).parent().expect("a folder").to_path_buf();
    let long = [fs::read(installed(&kernel)).expect("file"), vec![0; 1 << 18]].concat();
    fs::rename(&folder, folder.with_extension("old")).expect("moved");
    fs::write(kernel.path().join("out/nvidia-peermem.ko"), long).expect("file");
    let (ok, said) = install_after(&kernel, "ulimit -f 128; trap '' XFSZ;");
    assert!(!ok && said.contains(" stays (") && installed(&kernel).exists(), "{said}");
}
