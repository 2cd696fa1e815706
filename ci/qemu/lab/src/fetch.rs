//! Other people's sources, by name, unpacked once into the cache. Whatever is there already is used as it is, so that a
//! suite that moves on does not change a lab that works.

use crate::apt::{numbers, Apt};
use crate::ctx::Lab;
use crate::kernel::Flavour;
use crate::key::{file_sha256, Key};
use crate::lock;
use crate::sh::{self, say, Step};
use crate::stock;
use anyhow::{anyhow, bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The kernel series that the lab is known to work with; so far the only one.
const KERNEL: &str = "7.2";
const NVIDIA: &str = "nvidia-open-kernel-source";
const NVIDIA_SERIES: &str = "550.";
const PERFTEST_SERIES: &str = "perftest_25.01.";
/// Only its header `cuda.h` is used. PyPI's own hash of the x86-64 wheel.
const CUDA: (&str, &str, &str) =
    ("nvidia-cuda-runtime-cu12", "12.8.90", "adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90");
const BINDGEN: &str = "0.72.1";

/// The kernel's source: whole and with the lab's patches, or what of a stock kernel's the RDMA stack is rebuilt from.
pub struct Linux {
    pub dir: PathBuf,
    pub version: String,
}

pub struct Sources {
    pub linux: Linux,
    /// pin-init and what it is made with, for kernel-lite.
    pub deps: PathBuf,
    /// Folder with NVIDIA's nvidia-peermem.c, to be compiled as the rival.
    pub rival: PathBuf,
    pub perftest: PathBuf,
    pub cuda_h: PathBuf,
}

pub fn all(lab: &Lab, flavour: Flavour) -> Result<Sources> {
    let _lock = lock::take(&lab.cache.join("lock/fetch"), "fetch")?;
    let mut apt = None;
    let linux = match flavour {
        Flavour::Debian612 | Flavour::Debian61 => stock::fetch(lab, &mut apt, flavour)?,
        Flavour::Debug72 | Flavour::Fast72 => {
            bindgen(lab)?;
            linux(lab, &mut apt)?
        }
    };
    let deps = deps(lab, &mut apt)?;
    let rival = rival(lab, &mut apt)?;
    let perftest = perftest(lab, &mut apt)?;
    let cuda_h = cuda_h(lab)?;
    Ok(Sources { linux, deps, rival, perftest, cuda_h })
}

/// The package lists are only refreshed when something has to be fetched.
pub fn opened<'s, 'a>(lab: &'a Lab, apt: &'s mut Option<Apt<'a>>) -> Result<&'s Apt<'a>> {
    if apt.is_none() {
        *apt = Some(Apt::open(lab)?);
    }
    Ok(apt.as_ref().expect("just set"))
}

/// The package of the kernel's source, and its version.
fn source<'a>(lab: &'a Lab, apt: &mut Option<Apt<'a>>) -> Result<(PathBuf, String)> {
    if let Some(found) = newest_deb(&lab.cache.join("dl"))? {
        return Ok(found);
    }
    let apt = opened(lab, apt)?;
    let package = format!("linux-source-{KERNEL}");
    let version = apt.newest(&package, &format!("{KERNEL}."))?;
    Ok((apt.download(&package, &version)?, version))
}

fn linux<'a>(lab: &'a Lab, apt: &mut Option<Apt<'a>>) -> Result<Linux> {
    let patches = patches(&lab.qemu("kernel/patches"))?;
    let mut key = Key::new("linux patches");
    for patch in &patches {
        key.path(patch)?;
    }
    let suffix = &key.hex()[..8];
    // linux-<version>-<patches>
    if let Some((dir, version)) = newest_unpacked(&lab.cache.join("src"), suffix)? {
        return Ok(Linux { dir, version });
    }
    let (deb, version) = source(lab, apt)?;
    let dir = lab.cache.join(format!("src/linux-{version}-{suffix}"));
    say(&format!("unpack: linux {version} with {} patches", patches.len()));
    let step = Step::new("unpack linux", lab.build.join("log/unpack-linux.log"))?;
    let tmp = scratch(&dir)?;
    step.run(sh::command(lab, "dpkg-deb").arg("-x").arg(&deb).arg(tmp.join("deb")))?;
    let tarball = tmp.join(format!("deb/usr/src/linux-source-{KERNEL}.tar.xz"));
    fs::create_dir(tmp.join("tree"))?;
    step.run(
        sh::command(lab, "tar").arg("-xf").arg(&tarball).arg("-C").arg(tmp.join("tree")).arg("--strip-components=1"),
    )?;
    for patch in &patches {
        step.run(sh::command(lab, "patch").args(["-p1", "--forward", "-i"]).arg(patch).current_dir(tmp.join("tree")))
            .with_context(|| format!("{} does not apply to linux {version}", lab.short(patch)))?;
    }
    fs::rename(tmp.join("tree"), &dir)?;
    fs::remove_dir_all(&tmp)?;
    Ok(Linux { dir, version })
}

pub fn patches(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut patches = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "patch") {
            patches.push(path);
        }
    }
    patches.sort();
    Ok(patches)
}

fn newest_unpacked(src: &Path, suffix: &str) -> Result<Option<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(src)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(version) = name.strip_prefix("linux-").and_then(|n| n.strip_suffix(&format!("-{suffix}"))) {
            if version.starts_with(&format!("{KERNEL}.")) {
                found.push((numbers(version), path, version.to_string()));
            }
        }
    }
    found.sort();
    Ok(found.pop().map(|(_, path, version)| (path, version)))
}

fn newest_deb(dl: &Path) -> Result<Option<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dl)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let version = name.strip_prefix(&format!("linux-source-{KERNEL}_")).and_then(|n| n.strip_suffix("_all.deb"));
        if let Some(version) = version {
            found.push((numbers(version), path, version.to_string()));
        }
    }
    found.sort();
    Ok(found.pop().map(|(_, path, version)| (path, version)))
}

fn rival<'a>(lab: &'a Lab, apt: &mut Option<Apt<'a>>) -> Result<PathBuf> {
    let src = lab.cache.join("src");
    for entry in fs::read_dir(&src)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(&format!("nvidia-peermem-{NVIDIA_SERIES}")) && path.join("nvidia-peermem.c").is_file() {
            return Ok(path);
        }
    }
    let apt = opened(lab, apt)?;
    let version = apt.newest(NVIDIA, NVIDIA_SERIES)?;
    let deb = apt.download(NVIDIA, &version)?;
    let dir = src.join(format!("nvidia-peermem-{version}"));
    say(&format!("unpack: NVIDIA's C module {version}"));
    let step = Step::new("unpack the rival", lab.build.join("log/unpack-rival.log"))?;
    let tmp = scratch(&dir)?;
    step.run(sh::command(lab, "dpkg-deb").arg("-x").arg(&deb).arg(tmp.join("deb")))?;
    fs::create_dir(tmp.join("tree"))?;
    step.run(
        sh::command(lab, "tar")
            .arg("-xf")
            .arg(tmp.join("deb/usr/src/nvidia-open-kernel.tar.xz"))
            .arg("-C")
            .arg(tmp.join("tree"))
            .args(["--strip-components=3", "--wildcards", "*/nvidia-open-kernel/nvidia-peermem/*"]),
    )?;
    fs::rename(tmp.join("tree"), &dir)?;
    fs::remove_dir_all(&tmp)?;
    Ok(dir)
}

fn perftest<'a>(lab: &'a Lab, apt: &mut Option<Apt<'a>>) -> Result<PathBuf> {
    let src = lab.cache.join("src");
    for entry in fs::read_dir(&src)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        if name.starts_with(PERFTEST_SERIES) && path.join("autogen.sh").is_file() {
            return Ok(path);
        }
    }
    let apt = opened(lab, apt)?;
    let files = apt.source_files("perftest")?;
    let tarball = files
        .iter()
        .find(|f| f.name.starts_with(PERFTEST_SERIES) && f.name.contains(".orig.tar."))
        .ok_or_else(|| {
            let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
            anyhow!("the source package perftest has no {PERFTEST_SERIES}*.orig.tar.* but: {}", names.join(" "))
        })?;
    let file = apt.download_source(tarball)?;
    let version = tarball.name.trim_start_matches("perftest_").split(".orig").next().unwrap_or_default();
    let dir = src.join(format!("perftest-{version}"));
    say(&format!("unpack: perftest {version}"));
    let step = Step::new("unpack perftest", lab.build.join("log/unpack-perftest.log"))?;
    let tmp = scratch(&dir)?;
    fs::create_dir(tmp.join("tree"))?;
    step.run(
        sh::command(lab, "tar").arg("-xf").arg(&file).arg("-C").arg(tmp.join("tree")).arg("--strip-components=1"),
    )?;
    fs::rename(tmp.join("tree"), &dir)?;
    fs::remove_dir_all(&tmp)?;
    Ok(dir)
}

fn cuda_h(lab: &Lab) -> Result<PathBuf> {
    let (package, version, sha256) = CUDA;
    let dir = lab.cache.join(format!("src/cuda-{version}"));
    let header = dir.join("nvidia/cuda_runtime/include/cuda.h");
    if header.is_file() {
        return Ok(header);
    }
    say(&format!("fetch: {package} {version} (for cuda.h)"));
    let step = Step::new("fetch cuda.h", lab.build.join("log/fetch-cuda.log"))?;
    let tmp = scratch(&dir)?;
    step.run(
        sh::command(lab, "python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11"])
            .args(["--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64", "--dest"])
            .arg(&tmp)
            .arg(format!("{package}=={version}")),
    )?;
    let wheel = fs::read_dir(&tmp)?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| anyhow!("pip download {package}=={version} left no wheel"))?;
    let got = file_sha256(&wheel)?;
    if got != sha256 {
        bail!("{package} {version}: SHA-256 of the wheel is {got}, expected {sha256}");
    }
    step.run(sh::command(lab, "python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(tmp.join("tree")))?;
    fs::rename(tmp.join("tree"), &dir)?;
    fs::remove_dir_all(&tmp)?;
    Ok(header)
}

/// As a user of a kernel without Rust gets them.
/// `make deps` takes them out of the lab's own kernel source, which is fetched for that if nothing else needed it.
fn deps<'a>(lab: &'a Lab, apt: &mut Option<Apt<'a>>) -> Result<PathBuf> {
    let dir = lab.cache.join("kernel-lite-deps");
    if !dir.is_dir() {
        source(lab, apt)?;
    }
    let step = Step::new("make deps", lab.build.join("log/deps.log"))?;
    let mut cmd = sh::command(lab, "make");
    cmd.arg("-C").arg(&lab.repo).arg("deps").arg(format!("DEPS={}", dir.display())).env("NVPM_CACHE", &lab.cache);
    step.run(&mut cmd)?;
    Ok(dir)
}

fn bindgen(lab: &Lab) -> Result<()> {
    if lab.cache.join("tools/bin/bindgen").is_file() {
        let have = sh::output(sh::command(lab, lab.cache.join("tools/bin/bindgen")).arg("--version"))?;
        if have.trim() == format!("bindgen {BINDGEN}") {
            return Ok(());
        }
    }
    say(&format!("fetch: bindgen-cli {BINDGEN}"));
    let mut step = Step::new("build bindgen", lab.build.join("log/bindgen.log"))?;
    step.counts = &["Compiling"];
    let mut cmd = sh::command(lab, "cargo");
    cmd.args(["install", "--locked", "--force", "--version", BINDGEN, "--root"])
        .arg(lab.cache.join("tools"))
        .arg("bindgen-cli");
    cmd.env("CARGO_TARGET_DIR", lab.target());
    step.run(&mut cmd)
}

/// An empty folder beside the one that is to appear whole.
pub fn scratch(dir: &Path) -> Result<PathBuf> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tmp = dir.with_file_name(format!(".{name}.part"));
    if tmp.exists() {
        fs::remove_dir_all(&tmp).with_context(|| format!("cannot remove {}", tmp.display()))?;
    }
    fs::create_dir_all(&tmp).with_context(|| format!("cannot make {}", tmp.display()))?;
    Ok(tmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_is_by_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["linux-7.2.9-1-aaaaaaaa", "linux-7.2.13-1-aaaaaaaa", "linux-7.2.14-1-bbbbbbbb", "linux-6.1.200-1-aaaaaaaa"]
        {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (path, version) = newest_unpacked(dir.path(), "aaaaaaaa").unwrap().unwrap();
        assert_eq!(version, "7.2.13-1");
        assert!(path.ends_with("linux-7.2.13-1-aaaaaaaa"));
        assert!(newest_unpacked(dir.path(), "cccccccc").unwrap().is_none());
    }
}
