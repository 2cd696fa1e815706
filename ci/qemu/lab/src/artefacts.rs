// SPDX-License-Identifier: GPL-2.0

//! Builds what boots need into `build/lab`, through `ci/qemu/artefacts.mk`.

use crate::arch::Arch;
use crate::axes::{Also, Kernel, Module, Named};
use crate::ctx::Lab;
use crate::sh;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A kernel, and everything that was built for it.
#[derive(Clone, Debug)]
pub struct Built {
    dir: PathBuf,
    /// The kernel's release, as `uname -r` prints it in the machine.
    pub release: String,
    pub arch: Arch,
}

/// The kind of an image: the nvidia-peermem that it has, and what else is in it.
pub type Kind = (Module, Also);

fn image((module, also): Kind) -> String {
    match also {
        Also::Nothing => format!("image-{}", module.name()),
        also => format!("image-{}-{}", module.name(), also.name()),
    }
}

/// Builds images of these kinds with all their parts, and these targets of `artefacts.mk`.
pub fn build(lab: &Lab, kernel: Kernel, kinds: &[Kind], targets: &[&str]) -> Result<Built> {
    let images: BTreeSet<String> = kinds.iter().map(|kind| image(*kind)).collect();
    make(lab, kernel, images.iter().map(String::as_str).chain(targets.iter().copied()))?;
    let dir = lab.build.join(kernel.name());
    let release = fs::read_to_string(dir.join("kernel/release")).context("the kernel has no release")?;
    Ok(Built { dir, release: release.trim().to_string(), arch: kernel.arch() })
}

fn make<'a>(lab: &Lab, kernel: Kernel, targets: impl Iterator<Item = &'a str>) -> Result<()> {
    ensure!(
        kernel.is_built_on(Arch::host()),
        "{} is a kernel for x86-64, which the lab does not build on an arm64 host: use an x86-64 host, or a kernel for \
         arm64 where this command takes one",
        kernel.name()
    );
    let mut make = sh::command("make");
    make.args(["--no-print-directory", "-f", "ci/qemu/artefacts.mk"]).arg(format!("KERNEL={}", kernel.name()));
    // Far more jobs than processors: what waits for the network or for cargo's lock is a job, too, and
    // the kernel, which takes longest, must not wait for one of those to end.
    make.arg("-j16");
    make.arg(format!("LLVM={}", sh::LLVM)).arg(format!("CACHE={}", lab.cache.display()));
    make.arg(format!("LAB={}", lab.repo.join("build/bin/lab").display())).args(targets).current_dir(&lab.repo);
    // Several threads may build for different kernels at the same time, so each run of make has a
    // file of its own.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let file = lab.build.join(format!("log/why-{}-{}", std::process::id(), RUNS.fetch_add(1, Relaxed)));
    make.env(WHY, &file);
    if !make.status().context("cannot run make")?.success() {
        let why = fs::read_to_string(&file).unwrap_or_else(|_| "logs: build/lab/log".to_string());
        // No file exists if no part left a reason.
        let _ = fs::remove_file(&file);
        bail!("{}: not everything could be built: {}", kernel.name(), why.trim());
    }
    Ok(())
}

/// The variable that names the file in which the first part that cannot be built leaves its reason.
/// make goes on with other parts, and their lines would scroll the reason away.
const WHY: &str = "LAB_WHY";

/// Keeps the reason why a part cannot be built until [`build`] ends and shows it.
pub fn remember(why: &anyhow::Error) {
    let Some(path) = std::env::var_os(WHY) else { return };
    // Errors are ignored: the reason has been printed, too.
    let file = fs::OpenOptions::new().create_new(true).write(true).open(path);
    let _ = file.and_then(|mut file| write!(file, "{why:#}"));
}

/// Builds machines of these Debian releases, with stand-ins for the GPU driver and the RDMA core,
/// and returns their folders.
pub fn neighbours(lab: &Lab, releases: &[&str]) -> Result<Vec<PathBuf>> {
    let names: Vec<String> = releases.iter().map(|release| format!("neighbours-{release}")).collect();
    make(lab, Kernel::debian(), names.iter().map(String::as_str).chain(["archive"]))?;
    Ok(names.iter().map(|name| lab.build.join("packages").join(name)).collect())
}

/// Builds the Python package by which `make dist` makes SBOMs, and returns its folder.
pub fn sbom4rust(lab: &Lab) -> Result<PathBuf> {
    make(lab, Kernel::debian(), ["sbom4rust"].into_iter())?;
    Ok(lab.build.join("sources/sbom4rust"))
}

/// Builds the Python package that holds manifests against Kubernetes' schemas, and returns its
/// folder, or `None` if it cannot be fetched.
pub fn kubernetes_validate(lab: &Lab) -> Result<Option<PathBuf>> {
    make(lab, Kernel::debian(), ["kubernetes-validate"].into_iter())?;
    Ok(Some(lab.build.join("sources/kubernetes-validate")).filter(|folder| folder.exists()))
}

/// Returns QEMU's argument for the plugin that counts instructions between marks. The plugin writes
/// to `out`, which is removed first.
pub fn plugin(lab: &Lab, kernel: Kernel, out: &Path) -> Result<String> {
    make(lab, kernel, ["profile"].into_iter())?;
    // Usually there is no such file, and removing it fails.
    let _ = fs::remove_file(out);
    Ok(format!("{},out={}", program(lab, "profile", "libprofile.so").display(), out.display()))
}

pub fn program(lab: &Lab, name: &str, file: &str) -> PathBuf {
    lab.build.join("programs").join(name).join("bin").join(file)
}

impl Built {
    /// Returns the path of a part: `kernel/image`, the kernel's build tree `kernel/build`, the part
    /// of its source in `kernel/source`, and modules by their names.
    pub fn part(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn image(&self, kind: Kind) -> PathBuf {
        self.dir.join(image(kind)).with_extension("cpio")
    }
}
