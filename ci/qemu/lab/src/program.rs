//! The lab's own Rust programs, as they go into the machine. Where cargo would compile them anew for each clone, what came of
//! the same sources is taken from the cache.

use crate::cargo;
use crate::ctx::Lab;
use crate::kernel::LLVM;
use crate::key::Key;
use crate::lock;
use crate::parts::{self, packages};
use crate::sh::{self, Step};
use anyhow::{bail, Context, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Program {
    /// Of the folder that has its Cargo.toml.
    dir: &'static str,
    /// The file that cargo makes.
    product: &'static str,
    /// Every file and folder that it is made of; compared with what the compiler has read.
    reads: &'static [&'static str],
    /// Packages whose headers it is compiled with.
    packages: &'static [&'static str],
}

const CLIENT: &str = "ci/qemu/gpu/client";
const CUDA: &str = "ci/qemu/cuda";

pub const LIBCUDA: Program = Program { dir: CUDA, product: "libcuda.so", reads: &[CUDA, CLIENT], packages: &[] };
/// What the stand-ins are tested with in the machine.
pub const SELFTESTS: [Program; 2] = [
    Program { dir: CLIENT, product: "nvlab-selftest", reads: &[CLIENT], packages: &[] },
    Program { dir: CUDA, product: "cuda-selftest", reads: &[CUDA, CLIENT], packages: &[] },
];
pub const GUEST: Program = Program {
    dir: "tests/guest",
    product: "guest",
    reads: &["tests/guest", CLIENT],
    packages: &["libibverbs-dev", "libc6-dev"],
};
pub const PEERMEMCTL: Program = Program {
    dir: "tools/peermemctl",
    product: "peermemctl",
    reads: &["tools/peermemctl/src", "tools/peermemctl/Cargo.toml", "tools/peermemctl/Cargo.lock"],
    packages: &[],
};
const PROFILE: Program =
    Program { dir: "ci/qemu/profile", product: "libprofile.so", reads: &["ci/qemu/profile"], packages: &[] };

impl Program {
    /// Where the finished file is.
    pub fn build(&self, lab: &Lab) -> Result<PathBuf> {
        if !lab.repo.join(self.dir).join("Cargo.toml").is_file() {
            bail!("{} has no Cargo.toml: this checkout is not whole", self.dir);
        }
        let mut key = Key::new("program");
        key.text(&sh::output(sh::command(lab, "rustc").arg("-vV"))?).text(LLVM);
        key.text(&env::var("RUSTFLAGS").unwrap_or_default());
        packages(lab, &mut key, self.packages)?;
        for path in self.reads {
            key.text(path).path(&lab.repo.join(path))?;
        }
        let part = parts::part(lab, "program", self.product, key, |out, step| self.compile(lab, out, step))?;
        Ok(part.dir.join("bin").join(self.product))
    }

    fn compile(&self, lab: &Lab, out: &Path, step: &Step) -> Result<()> {
        // Another checkout's build would put its own file in the place of this one.
        fs::create_dir_all(lab.target())?;
        let _lock = lock::take(&lab.target().join(".lab-lock"), &step.what)?;
        step.run(&mut cargo::command(lab, self.dir, &["build", "--release", "--locked"])?)?;
        let file = lab.target().join("release").join(self.product);
        let depends = file.with_extension("d");
        let depends = fs::read_to_string(&depends).with_context(|| format!("cannot read {}", depends.display()))?;
        if let Some(file) = unknown(&depends, &lab.repo, self.reads) {
            bail!("{} is made of {file}, too, which its key does not have (ci/qemu/lab/src/program.rs)", self.product);
        }
        fs::create_dir_all(out.join("bin"))?;
        fs::copy(&file, out.join("bin").join(self.product))
            .with_context(|| format!("cargo built {}, but {} is not there", self.dir, file.display()))?;
        Ok(())
    }
}

/// The first file of the checkout that cargo's list of what a product depends on has, and `reads` has not.
fn unknown(depends: &str, repo: &Path, reads: &[&str]) -> Option<String> {
    // A space in a name has a backslash before it.
    let depends = depends.replace("\\ ", "\0");
    let files = depends.split_whitespace().map(|file| PathBuf::from(file.replace('\0', " ")));
    let mut ours = files.filter_map(|file| Some(file.strip_prefix(repo).ok()?.to_path_buf()));
    ours.find(|file| !reads.iter().any(|read| file.starts_with(read))).map(|file| file.display().to_string())
}

/// The plugin that counts instructions between marks, as QEMU is to load it; it writes to `out`, where nothing is left of an
/// earlier run.
pub fn plugin(lab: &Lab, out: &Path) -> Result<String> {
    let file = PROFILE.build(lab)?;
    // Usually there is none.
    let _ = fs::remove_file(out);
    Ok(format!("{},out={}", file.display(), out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_key_lacks_is_found() {
        let repo = Path::new("/a b/main");
        let depends = "/cache/target/release/guest: /a\\ b/main/tests/guest/src/main.rs /cache/out/verbs.rs \
            /a\\ b/main/tests/guests.rs /a\\ b/main/docs/x.md\n";
        let unknown = |reads: &[&str]| unknown(depends, repo, reads);
        assert_eq!(unknown(&["tests/guest"]).as_deref(), Some("tests/guests.rs"));
        assert_eq!(unknown(&["tests/guest", "tests/guests.rs"]).as_deref(), Some("docs/x.md"));
        assert_eq!(unknown(&["tests", "docs/x.md"]), None);
    }
}
