//! The lab's own Rust programs, as they go into the machine. cargo would compile them anew for each clone; here, what came of
//! the same sources is taken from the cache.

use crate::cargo;
use crate::ctx::Lab;
use crate::key::{self, Key};
use crate::lock;
use crate::parts::{self, packages};
use crate::sh::{self, Step};
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::{Component, Path, PathBuf};

pub struct Program {
    /// Of the folder that has its Cargo.toml.
    dir: &'static str,
    /// The file that cargo makes.
    product: &'static str,
    /// Every file and folder that it is made of; compared with what the compiler has read.
    reads: &'static [&'static str],
    /// Packages whose headers and libraries it is compiled with.
    packages: &'static [&'static str],
}

/// What makes a program; each says its version.
const COMPILERS: [&str; 3] = ["rustc", "cc", "ld"];
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
    reads: &["tests/guest", CLIENT, "docs/checks.md", "tools/peermemctl/tests/common/table.rs"],
    packages: &["libc6-dev", "libibverbs-dev", "linux-libc-dev", "libclang-19-dev"],
};
pub const PEERMEMCTL: Program = Program {
    dir: "tools/peermemctl",
    product: "peermemctl",
    reads: &["tools/peermemctl/src", "tools/peermemctl/Cargo.toml", "tools/peermemctl/Cargo.lock", "VERSION"],
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
        fs::create_dir_all(lab.target())?;
        // Another checkout's build would put its own file in the place of this one.
        let _lock = lock::take(&lab.target().join(".lab-lock"), &format!("build {}", self.product))?;
        let key = self.key(lab)?;
        let hex = key.hex();
        let compile = |out: &Path, step: &Step| self.compile(lab, out, step, &hex);
        let part = parts::part(lab, "program", self.product, key, compile)?;
        Ok(part.dir.join("bin").join(self.product))
    }

    fn key(&self, lab: &Lab) -> Result<Key> {
        let mut key = Key::new("program");
        for compiler in COMPILERS {
            key.text(&sh::output(sh::command(lab, compiler).arg("--version"))?);
        }
        packages(lab, &mut key, self.packages)?;
        for path in self.reads {
            key.text(path).path(&lab.repo.join(path))?;
        }
        for file in cargo::configuration(lab, self.dir) {
            key.path(&file)?;
        }
        Ok(key)
    }

    fn compile(&self, lab: &Lab, out: &Path, step: &Step, key: &str) -> Result<()> {
        step.run(&mut cargo::release(lab, self.dir)?)?;
        let file = lab.target().join("release").join(self.product);
        let depends = file.with_extension("d");
        let depends = fs::read_to_string(&depends).with_context(|| format!("cannot read {}", depends.display()))?;
        self.check(&made_of(&depends, lab))?;
        if self.key(lab)?.hex() != key {
            bail!("{} was changed while it was built: again, please", self.dir);
        }
        fs::create_dir_all(out.join("bin"))?;
        fs::copy(&file, out.join("bin").join(self.product))
            .with_context(|| format!("cargo built {}, but {} is not there", self.dir, file.display()))?;
        Ok(())
    }

    /// Is each of the checkout's files that the product is made of in its key?
    fn check(&self, files: &[PathBuf]) -> Result<()> {
        if !files.iter().any(|file| file.starts_with(self.dir)) {
            bail!("cargo does not say what {} is made of: nothing in {}", self.product, self.dir);
        }
        match files.iter().find(|file| !self.reads.iter().any(|read| key::counts(Path::new(read), file))) {
            Some(file) => bail!(
                "{} is made of {}, too, which its key does not have (ci/qemu/lab/src/program.rs)",
                self.product,
                file.display()
            ),
            None => Ok(()),
        }
    }
}

/// The checkout's files in cargo's list of what a product depends on, as paths in it.
fn made_of(depends: &str, lab: &Lab) -> Vec<PathBuf> {
    let (_product, depends) = depends.split_once(": ").unwrap_or_default();
    // A space in a name has a backslash before it.
    let depends = depends.replace("\\ ", "\0");
    let files = depends.split_whitespace().map(|file| without_dots(Path::new(&file.replace('\0', " "))));
    // What a build script has made is in the cache, which may be in the checkout.
    let cache = without_dots(&lab.cache);
    let files = files.filter(|file| !file.starts_with(&cache));
    files.filter_map(|file| Some(file.strip_prefix(&lab.repo).ok()?.to_path_buf())).collect()
}

/// By the names alone.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
        path
    })
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
    use crate::cargo::tests::checkout;

    const ONE: Program = Program { dir: "one", product: "one", reads: &["one"], packages: &[] };

    fn said(program: &Program, lab: &Lab) -> Result<String> {
        sh::output(&mut sh::command(lab, program.build(lab)?))
    }

    /// Two checkouts that differ, in turns, and then one that is like the first.
    #[test]
    fn each_checkout_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let labs = ["first", "second"].map(|says| checkout(dir.path(), says));
        for _ in 0..2 {
            assert_eq!(said(&ONE, &labs[0]).unwrap(), "first");
            assert_eq!(said(&ONE, &labs[1]).unwrap(), "second");
        }
        let third = checkout(dir.path(), "third");
        fs::copy(labs[0].repo.join("one/src/main.rs"), third.repo.join("one/src/main.rs")).unwrap();
        assert_eq!(ONE.build(&third).unwrap(), ONE.build(&labs[0]).unwrap());
        fs::write(labs[0].repo.join("one/src/main.rs"), "fn main() { print!(\"changed\") }").unwrap();
        assert_eq!(said(&ONE, &labs[0]).unwrap(), "changed");
        let key = || ONE.key(&third).unwrap().hex();
        let before = key();
        fs::create_dir(third.repo.join(".cargo")).unwrap();
        fs::write(third.repo.join(".cargo/config.toml"), "[profile.release]\nopt-level = 0\n").unwrap();
        assert_ne!(key(), before, "cargo's own configuration is not in the key");
    }

    #[test]
    fn a_file_that_the_key_lacks_ends_the_build() {
        let dir = tempfile::tempdir().unwrap();
        let lab = checkout(dir.path(), "a checkout");
        fs::write(lab.repo.join("x.md"), "page").unwrap();
        fs::write(lab.repo.join("one/y.md"), "page").unwrap();
        let main = |file: &str| {
            let main = format!("fn main() {{ print!(\"{{}}\", include_str!(\"{file}\")) }}");
            fs::write(lab.repo.join("one/src/main.rs"), main).unwrap();
        };
        main("../../x.md");
        let error = said(&ONE, &lab).unwrap_err().to_string();
        assert!(error.contains("made of x.md, too"), "{error}");
        assert_eq!(said(&Program { reads: &["one", "x.md"], ..ONE }, &lab).unwrap(), "page");
        // A folder's pages are not in the key either.
        main("../y.md");
        let error = said(&ONE, &lab).unwrap_err().to_string();
        assert!(error.contains("made of one/y.md, too"), "{error}");
        assert_eq!(said(&Program { reads: &["one", "one/y.md"], ..ONE }, &lab).unwrap(), "page");
    }

    #[test]
    fn a_list_of_other_files_is_none() {
        let none = |files: &[PathBuf]| ONE.check(files).unwrap_err().to_string().contains("does not say");
        assert!(none(&[]) && none(&["two/src/main.rs".into()]));
        assert!(ONE.check(&["one/src/main.rs".into()]).is_ok());
    }

    #[test]
    fn what_is_in_the_cache_is_not_the_checkouts() {
        let dir = tempfile::tempdir().unwrap();
        let lab = checkout(dir.path(), "a");
        let lab = Lab { cache: lab.repo.join("build/../cache"), ..lab };
        let (repo, cache) = (lab.repo.display(), lab.repo.join("cache"));
        let list = format!("{0}/release/one: {0}/out/x.rs {repo}/one/src/../y.rs /usr/z.rs\n", cache.display());
        assert_eq!(made_of(&list, &lab), [Path::new("one/y.rs")]);
    }
}
