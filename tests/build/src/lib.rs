// SPDX-License-Identifier: GPL-2.0

//! Makes a throw-away kernel build tree, and runs `make` against it.

pub mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The first file of each crate that kernel-lite needs, below the folder that `make deps` makes.
pub const CRATES: [&str; 6] = [
    "pinned-init/src/lib.rs",
    "pinned-init-macro/src/lib.rs",
    "paste/src/lib.rs",
    "proc-macro2/src/lib.rs",
    "quote/src/lib.rs",
    "unicode-ident/src/lib.rs",
];

/// A folder that looks like a kernel build tree, as far as preflight looks, on an x86-64 machine.
pub struct FakeKernel {
    dir: TempDir,
}

/// The result of a call of `make`.
pub struct Outcome {
    /// Whether it succeeded.
    pub ok: bool,
    /// Standard output and standard error, one after the other.
    pub text: String,
}

/// Returns the one of these two that the assembler of this machine accepts.
pub fn asm(x86: &'static str, arm64: &'static str) -> &'static str {
    if cfg!(target_arch = "aarch64") {
        arm64
    } else {
        x86
    }
}

impl FakeKernel {
    /// The release of the kernel that the tree belongs to. No such kernel is installed anywhere.
    pub const RELEASE: &'static str = "7.2.0-fake";

    /// Makes the tree of a configured kernel with Rust, built by the rustc that runs here.
    pub fn new() -> Self {
        let kernel = Self { dir: TempDir::new().expect("temporary folder") };
        let rustc = run(Command::new("rustc").arg("--version")).text;
        kernel.write("include/config/kernel.release", Self::RELEASE);
        kernel.config(&format!(
            "CONFIG_MODULE_UNLOAD=y\nCONFIG_RUST=y\nCONFIG_RUSTC_VERSION_TEXT=\"{}\"\n",
            rustc.trim()
        ));
        kernel.program("uname", "case $1 in -m) echo x86_64 ;; *) PATH=${PATH#*:} exec uname \"$@\" ;; esac");
        kernel.write("rust/libkernel.rmeta", "");
        kernel.write("Module.symvers", "0x00000000\tib_register_peer_memory_client\tib_uverbs\tEXPORT_SYMBOL\t\n");
        kernel
    }

    /// Returns the tree's root.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the configuration.
    pub fn config(&self, text: &str) {
        self.write("include/config/auto.conf", text);
    }

    /// Writes a file of the tree.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
        fs::write(&path, text).expect("file");
        path
    }

    /// Removes a file of the tree.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).expect("file");
    }

    /// Writes the crates that kernel-lite needs, as far as anybody looks, in the folder `deps`.
    /// Returns the setting that names it.
    pub fn deps(&self) -> String {
        for file in CRATES {
            self.write(&format!("deps/{file}"), "");
        }
        format!("DEPS={}", self.path().join("deps").display())
    }

    /// Writes a program that the tests put before the system's own of the same name.
    pub fn program(&self, name: &str, script: &str) {
        program(self.path(), name, script);
    }

    /// Returns the `PATH` with the tests' own programs first.
    pub fn search_path(&self) -> String {
        format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").expect("PATH"))
    }

    /// Returns that `PATH` for a plain user of Debian, which has no sbin.
    pub fn users_path(&self) -> String {
        let path = std::env::var("PATH").expect("PATH");
        let path: Vec<&str> =
            path.split(':').filter(|folder| !folder.trim_end_matches('/').ends_with("sbin")).collect();
        format!("{}:{}", self.path().join("bin").display(), path.join(":"))
    }

    /// Makes an object with a `.modinfo` section of these lines, which `modinfo` reads, and with
    /// the callback that mk/callback-tail.sh looks for.
    pub fn module(&self, name: &str, modinfo: &[&str]) -> PathBuf {
        let lines: String = modinfo.iter().map(|line| format!(".asciz \"{line}\"\n")).collect();
        let source = self.write(
            "module.s",
            &format!(".text\nnvpm_free_callback:\n{} module_put\n.section .modinfo,\"a\"\n{lines}", asm("jmp", "b")),
        );
        let object = self.write(name, "");
        assert!(run(Command::new("as").arg(source).arg("-o").arg(&object)).ok);
        object
    }

    /// Makes a module's file whose exports and imports have these versions.
    pub fn versioned(&self, name: &str, exports: &[(&str, u32)], imports: &[(&str, u32)]) {
        let mut text = String::new();
        for (symbol, version) in exports {
            text += &format!(".globl __crc_{symbol}\n.set __crc_{symbol}, {version}\n");
        }
        text += ".section __versions,\"a\"\n";
        for (symbol, version) in imports {
            text += &format!(".quad {version}\n.ascii \"{symbol}\"\n.balign 64\n");
        }
        let source = self.write("versioned.s", &text);
        let object = self.write(name, "");
        assert!(run(Command::new("as").arg(source).arg("-o").arg(object)).ok);
    }

    /// Runs preflight, as `make` does first, with further `name=value` settings.
    pub fn preflight(&self, settings: &[&str]) -> Outcome {
        let mut command = Command::new("sh");
        command.arg(repository().join("mk/preflight.sh")).current_dir(repository());
        for name in ["OFED", "NVIDIA", "LLVM", "KERNEL_CRATE"] {
            command.env(name, "");
        }
        command.env("KDIR", self.path()).env("OUT", self.path().join("out")).env("RUSTC", "rustc");
        command.env("PATH", self.search_path());
        for setting in settings {
            let (name, value) = setting.split_once('=').expect("name=value");
            command.env(name, value);
        }
        run(&mut command)
    }
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the checkout under test.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Writes a program below `dir/bin`, for tests that put this before the system's own of the same name.
/// Another process writes it: where a test beside this one forks, its child would have the file open for
/// writing for a moment, and nobody could run it ("Text file busy").
pub fn program(dir: &Path, name: &str, script: &str) {
    let file = dir.join("bin").join(name);
    let write = "mkdir -p \"${1%/*}\" && printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"";
    assert!(run(Command::new("sh").args(["-c", write, "sh"]).arg(&file).arg(script)).ok, "{}", file.display());
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Outcome {
    let output = command.output().expect("the command starts");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Outcome { ok: output.status.success(), text }
}
