// SPDX-License-Identifier: GPL-2.0

//! Tests the gates behind each build: they remove a module in which they find a fault, and print
//! the fault in one line.

use build_tests::{asm, repository, run, FakeKernel};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes an object that refers to this symbol, as the module of a build in `out`.
fn module(kernel: &FakeKernel, symbol: &str) -> PathBuf {
    assembled(kernel, &format!(".data\n.quad {symbol}\n"))
}

/// Makes an object from these lines, as the module of a build in `out`.
fn assembled(kernel: &FakeKernel, lines: &str) -> PathBuf {
    let source = kernel.write("out/module.s", lines);
    let object = kernel.path().join("out/nvidia-peermem.ko");
    assert!(run(Command::new("as").arg(source).arg("-o").arg(&object)).ok);
    object
}

fn plain_exports(kernel: &FakeKernel, kernel_crate: &str) -> Command {
    let symvers =
        kernel.write("nvidia/Module.symvers", "0x00000000\tnvidia_p2p_get_pages\tnvidia\tEXPORT_SYMBOL_GPL\t\n");
    let env = format!("PREFLIGHT_KERNEL_CRATE='{kernel_crate}'\nPREFLIGHT_SYMVERS='{}'\n", symvers.display());
    kernel.write("out/preflight.env", &env);
    let mut gate = Command::new("sh");
    gate.arg(repository().join("mk/plain-exports.sh")).env("KDIR", kernel.path());
    gate.env("OUT", kernel.path().join("out"));
    gate
}

fn no_panic(module: &Path) -> Command {
    let mut gate = Command::new("sh");
    gate.arg(repository().join("mk/no-panic.sh")).arg(module);
    gate
}

#[test]
fn a_gpl_only_import_with_kernel_lite() {
    let kernel = FakeKernel::new();
    kernel.write(
        "Module.symvers",
        "0x00000000\tclass_create\tvmlinux\tEXPORT_SYMBOL_GPL\t\n0x00000000\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n",
    );
    let built = module(&kernel, "class_create");
    assert!(run(&mut plain_exports(&kernel, "own")).ok && built.exists(), "the kernel's own crate has nothing else");
    let outcome = run(&mut plain_exports(&kernel, "lite"));
    assert!(!outcome.ok && !built.exists() && outcome.text.contains("was removed: class_create"), "{}", outcome.text);

    for fine in ["kfree", "nvidia_p2p_get_pages"] {
        let built = module(&kernel, fine);
        let outcome = run(&mut plain_exports(&kernel, "lite"));
        assert!(outcome.ok && built.exists() && outcome.text.is_empty(), "{fine}: {}", outcome.text);
    }
}

/// If LLVM is the only toolchain, each gate uses its nm.
#[test]
fn without_binutils() {
    let kernel = FakeKernel::new();
    kernel.write("Module.symvers", "0x00000000\tclass_create\tvmlinux\tEXPORT_SYMBOL_GPL\t\n");
    let bin = kernel.path().join("only");
    std::fs::create_dir(&bin).expect("folder");
    let which =
        |name: &str| run(Command::new("sh").arg("-c").arg(format!("command -v {name}"))).text.trim().to_string();
    for name in ["sh", "awk", "sort", "tr", "grep", "rm", "cat"] {
        std::os::unix::fs::symlink(which(name), bin.join(name)).expect("link");
    }
    std::os::unix::fs::symlink(which("nm"), bin.join("llvm-nm")).expect("link");
    let built = module(&kernel, "class_create");
    let outcome = run(plain_exports(&kernel, "lite").env("PATH", &bin));
    assert!(!outcome.ok && !built.exists() && outcome.text.contains("was removed: class_create"), "{}", outcome.text);
    let built = module(&kernel, "_RNvNtCs1_4core9panicking18panic_bounds_check");
    let outcome = run(no_panic(&built).env("PATH", &bin));
    assert!(!outcome.ok && !built.exists() && outcome.text.contains("panic_bounds_check"), "{}", outcome.text);
}

/// A tool that fails has looked at nothing, so no gate lets its module through.
#[test]
fn a_tool_that_fails() {
    let kernel = FakeKernel::new();
    kernel.config(
        "CONFIG_X86_KERNEL_IBT=y\nCONFIG_ARM64_BTI_KERNEL=y\nCONFIG_SHADOW_CALL_STACK=y\nCONFIG_MODULE_UNLOAD=y\n",
    );
    let env = "PREFLIGHT_KERNEL_CRATE=lite\nPREFLIGHT_SYMVERS=\n";
    kernel.write("out/preflight.env", env);
    kernel.write("Module.symvers", "");
    let built = module(&kernel, "kfree");
    for gate in ["callback-tail", "landing-pads", "no-panic", "plain-exports", "relocations", "shadow-stack"] {
        let mut command = Command::new("sh");
        command.arg(repository().join("mk").join(gate).with_extension("sh")).arg(&built);
        command.env("KDIR", kernel.path()).env("OUT", kernel.path().join("out"));
        for tool in ["NM", "OBJDUMP", "READELF"] {
            command.env(tool, "/bin/false");
        }
        let outcome = run(&mut command);
        assert!(!outcome.ok && built.exists() && !outcome.text.contains("removed"), "{gate}: {}", outcome.text);
    }
}

/// With lock debugging, mutex_lock() is a GPL-only function of another name. Everything else is the
/// same.
#[test]
fn a_gpl_only_import_where_locks_are_debugged() {
    let kernel = FakeKernel::new();
    let exports =
        ["mutex_lock_nested", "class_create"].map(|name| format!("0x00000000\t{name}\tvmlinux\tEXPORT_SYMBOL_GPL\t\n"));
    kernel.write("Module.symvers", &exports.concat());
    let built = module(&kernel, "mutex_lock_nested");
    kernel.config("CONFIG_DEBUG_LOCK_ALLOC=y\n");
    let outcome = run(&mut plain_exports(&kernel, "lite"));
    assert!(outcome.ok && built.exists() && outcome.text.contains("mutex_lock_nested"), "{}", outcome.text);
    let built = module(&kernel, "mutex_lock_nested\n.quad class_create");
    let outcome = run(&mut plain_exports(&kernel, "lite"));
    assert!(!outcome.ok && !built.exists() && outcome.text.contains("was removed: class_create"), "{}", outcome.text);
    // Without it, nothing is excused.
    kernel.config("");
    let built = module(&kernel, "mutex_lock_nested");
    assert!(!run(&mut plain_exports(&kernel, "lite")).ok && !built.exists());
}

#[test]
fn a_panic_path() {
    let kernel = FakeKernel::new();
    let built = module(&kernel, "_RNvNtCs1_4core9panicking18panic_bounds_check");
    let outcome = run(&mut no_panic(&built));
    assert!(!outcome.ok && !built.exists() && outcome.text.contains("panic_bounds_check"), "{}", outcome.text);
    let built = module(&kernel, "kfree");
    assert!(run(&mut no_panic(&built)).ok && built.exists());
}

/// Returns what this gate prints about a module of this code, and whether it left the module.
fn judged(gate: &str, code: &str) -> (bool, String) {
    judged_for(&FakeKernel::new(), gate, code)
}

/// Returns the same for this kernel.
fn judged_for(kernel: &FakeKernel, gate: &str, code: &str) -> (bool, String) {
    let built = assembled(kernel, code);
    let gate = repository().join("mk").join(gate);
    let outcome = run(Command::new("sh").arg(gate).arg(&built).env("KDIR", kernel.path()));
    (outcome.ok && built.exists(), outcome.text)
}

#[test]
fn a_callback_that_returns_through_the_module() {
    let (jump, call) = (asm("jmp module_put", "b module_put"), asm("call module_put\nret", "bl module_put\nret"));
    let tail = |last: &str| {
        let code = format!("nvpm_free_callback:\nnop\n{last}\nother:\n{jump}\n");
        judged("callback-tail.sh", &code)
    };
    assert_eq!(tail(jump), (true, String::new()));
    for wrong in [call, "ret"] {
        let (ok, text) = tail(wrong);
        assert!(!ok && text.contains("the module was removed"), "{wrong}: {text}");
    }
}

/// module_put() does nothing in a kernel that cannot unload modules, so no function jumps there.
#[test]
fn a_callback_for_a_kernel_that_cannot_unload() {
    let kernel = FakeKernel::new();
    kernel.config("CONFIG_MODULES=y\n");
    let code = "nvpm_free_callback:\nnop\nret\n";
    assert_eq!(judged_for(&kernel, "callback-tail.sh", code), (true, String::new()));
    kernel.config("CONFIG_MODULES=y\nCONFIG_MODULE_UNLOAD=y\n");
    assert!(!judged_for(&kernel, "callback-tail.sh", code).0);
}

/// A relocation that arm64's loader does not know is unknown to x86's, too.
#[test]
fn a_relocation_by_a_table_of_addresses() {
    let relocations = |code: &str| judged("relocations.sh", &format!("f:\n{code}\nret\n"));
    assert_eq!(relocations(asm("call kfree", "bl kfree")), (true, String::new()));
    let (ok, text) = relocations(asm("mov kfree@GOTPCREL(%rip), %rax", "adrp x0, :got:kfree"));
    assert!(!ok && text.contains("was removed") && text.contains("kfree"), "{text}");
}

/// The processor checks indirect calls, to a callback in a table or passed as an argument.
#[test]
fn a_callback_that_an_indirect_call_must_not_reach() {
    let kernel = FakeKernel::new();
    let call = asm("call f", "bl f");
    let pads = |first: &str, taken: &str| {
        let code = format!(".type f,@function\nnop\nf:\n{first}\nret\n.type g,@function\ng:\n{call}\n{taken}\n");
        judged_for(&kernel, "landing-pads.sh", &code)
    };
    let (table, argument) = (".data\n.quad f", asm("mov $f, %rdi", "adrp x0, f"));
    // This kernel does not check.
    assert_eq!(pads("nop", table), (true, String::new()));
    kernel.config(asm("CONFIG_X86_KERNEL_IBT=y\n", "CONFIG_ARM64_BTI_KERNEL=y\n"));
    for taken in [table, argument] {
        assert_eq!(pads(asm("endbr64", "bti c"), taken), (true, String::new()));
        let (ok, text) = pads("nop", taken);
        assert!(!ok && text.contains("the kernel would stop in f"), "{taken}: {text}");
    }
    // Nobody takes its address.
    assert_eq!(pads("nop", "ret"), (true, String::new()));
}

/// The kernel also keeps return addresses at x18. The test supplies objdump's output, because this
/// machine's may not know arm64.
#[test]
fn a_function_without_a_shadow_call_stack() {
    const PUSHED: &str = "0000000000000000 <g>:\n  0:\tstr\tx30, [x18], #8\n  4:\tstp\tx29, x30, [sp, #-16]!\n";
    const IN_X18: &str = "CONFIG_SHADOW_CALL_STACK=y\n";
    let kernel = FakeKernel::new();
    let built = kernel.path().join("out/nvidia-peermem.ko");
    let ran = |config: &str, objdump: &str| {
        kernel.config(config);
        kernel.write("out/nvidia-peermem.ko", "");
        kernel.program("objdump", objdump);
        let mut gate = Command::new("sh");
        gate.arg(repository().join("mk/shadow-stack.sh")).arg(&built).env("KDIR", kernel.path());
        let outcome = run(gate.env("OBJDUMP", kernel.path().join("bin/objdump")));
        (outcome.ok && built.exists(), outcome.text)
    };
    // A function of this name and code, between others.
    let judged = |config: &str, name: &str, code: &str| {
        let lines: String = code.lines().map(|line| format!(" 10:\t{line}\n")).collect();
        ran(config, &format!("cat <<'END'\n{PUSHED}0000000000000008 <{name}>:\n{lines}{PUSHED}END"))
    };
    let fine = (true, String::new());
    for code in ["paciasp\nstp\tx29, x30, [sp, #-48]!", "str\tx30, [sp, #-16]!", "stp\tx30, x19, [sp, #16]"] {
        let (ok, text) = judged(IN_X18, "f", code);
        assert!(!ok && text.contains("the module's f ") && text.contains("was removed"), "{code}: {text}");
        // The kernel adds the code itself, or has no shadow call stacks.
        for config in [&format!("{IN_X18}CONFIG_UNWIND_PATCH_PAC_INTO_SCS=y\n"), ""] {
            assert_eq!(judged(config, "f", code), fine);
        }
        for push in ["str\tx30, [x18], #8", "str\tx30, [x18], #0x8"] {
            assert_eq!(judged(IN_X18, "f", &format!("{push}\n{code}")), fine);
        }
        for without in ["f.cold", "asan.module_ctor", "__llvm_gcov_init"] {
            assert_eq!(judged(IN_X18, without, code), fine);
        }
    }
    // The function calls no other.
    assert_eq!(judged(IN_X18, "f", "str\tx0, [sp, #8]\nret"), fine);
    assert!(!ran(IN_X18, "echo no arm64 here >&2; exit 1").0, "nothing was looked at");
}
