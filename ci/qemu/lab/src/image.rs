//! The machine's root file system, an initramfs: programs of this Debian with their libraries, modules, and what was built.

use crate::axes::{Also as More, Module, Named};
use crate::consumers;
use crate::ctx::Lab;
use crate::kernel::Kernel;
use crate::lock;
use crate::parts::{Part, Parts, PERFTEST};
use crate::sh::{self, Step};
use anyhow::{anyhow, bail, Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Programs of this Debian that go into the machine, by path.
const PROGRAMS: [&str; 6] = [
    "/usr/bin/kmod",
    "/usr/bin/ip",
    "/usr/bin/rdma",
    "/usr/bin/ibv_devinfo",
    "/usr/bin/ibv_devices",
    "/usr/bin/busybox",
];
const KMOD: [&str; 6] = ["modprobe", "insmod", "rmmod", "lsmod", "depmod", "modinfo"];
pub const LIB: &str = "usr/lib/x86_64-linux-gnu";
/// rdma-core's user-space driver for rxe; the number in its file name is the version of its interface.
const PROVIDER_DIR: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";
const PROVIDER: &str = "librxe-rdmav";

pub fn build(lab: &Lab, kernel: &Kernel, parts: &Parts, module: Module, more: More) -> Result<PathBuf> {
    let module_name = module.name();
    let more_name = match more {
        More::Nothing => "",
        More::Consumers => "-consumers",
        More::NvidiaC => "-both",
        More::Lite => "-both-providers",
    };
    let name = format!("{module_name}{more_name}");
    pack(lab, kernel, &name, |root| fill(lab, kernel, parts, module, more, root))
}

/// A module where modprobe does not find it.
fn beside(root: &Path, name: &str, part: Option<&Part>) -> Result<()> {
    let dir = root.join("usr/lib").join(name);
    fs::create_dir_all(&dir)?;
    let part = part.ok_or_else(|| anyhow!("there is no {name} for this kernel"))?;
    fs::copy(part.dir.join("nvidia-peermem.ko"), dir.join("nvidia-peermem.ko"))
        .with_context(|| format!("the build of {name} has no nvidia-peermem.ko"))?;
    Ok(())
}

fn pack(lab: &Lab, kernel: &Kernel, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let base = lab.build.join(kernel.flavour.kept_as());
    // A folder of this process alone, and one rename at the end: two runs may make the same image at once.
    let root = base.join(format!("root-{name}.{}", std::process::id()));
    let image = base.join(format!("initramfs-{name}.cpio"));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fill(&root)?;
    let step = Step::new("initramfs", lab.build.join(format!("log/initramfs-{name}.log")))?;
    let tmp = base.join(format!("initramfs-{name}.cpio.{}", std::process::id()));
    // Not compressed: unpacking costs more than reading on an emulated processor.
    let script = "find . -print0 | LC_ALL=C sort -z | cpio --quiet --null -o -H newc -R 0:0 > \"$0\"";
    step.run(sh::command(lab, "sh").args(["-ec", script]).arg(&tmp).current_dir(&root))?;
    fs::rename(&tmp, &image)?;
    fs::remove_dir_all(&root)?;
    Ok(image)
}

fn fill(lab: &Lab, kernel: &Kernel, parts: &Parts, module: Module, more: More, root: &Path) -> Result<()> {
    for dir in
        ["usr/bin", "usr/sbin", LIB, "usr/lib64", "etc/modprobe.d", "proc", "sys", "dev", "run", "tmp", "root", "var"]
    {
        fs::create_dir_all(root.join(dir))?;
    }
    for dir in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{dir}"), root.join(dir))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;

    let mut files = Files { lab, root, done: BTreeSet::new() };
    for program in PROGRAMS {
        let path = PathBuf::from(program);
        let found =
            if path.is_file() { path } else { Path::new("/usr/sbin").join(path.file_name().unwrap_or_default()) };
        files.program(&found, &Path::new("usr/bin").join(found.file_name().unwrap_or_default()))?;
    }
    for name in KMOD {
        symlink("../bin/kmod", root.join("usr/sbin").join(name))?;
    }
    for applet in sh::output(sh::command(lab, "busybox").arg("--list"))?.lines() {
        let link = root.join("usr/bin").join(applet);
        if !link.exists() && !root.join("usr/sbin").join(applet).exists() {
            symlink("busybox", link)?;
        }
    }
    let provider = fs::read_dir(PROVIDER_DIR)
        .with_context(|| format!("{PROVIDER_DIR} is missing: is ibverbs-providers installed? (ci/bootstrap.sh)"))?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(PROVIDER)))
        .ok_or_else(|| {
            anyhow!("{PROVIDER_DIR} has no {PROVIDER}*.so: is ibverbs-providers installed? (ci/bootstrap.sh)")
        })?;
    files.program(&provider, provider.strip_prefix("/")?)?;
    fs::create_dir_all(root.join("etc/libibverbs.d"))?;
    // What the file says in every rdma-core: which driver to try.
    fs::write(root.join("etc/libibverbs.d/rxe.driver"), "driver rxe\n")?;

    // The stand-in first, so that the programs linked against it find it and not a real one of this machine.
    files.program(&parts.libcuda, &Path::new(LIB).join("libcuda.so.1"))?;
    symlink("libcuda.so.1", root.join(LIB).join("libcuda.so"))?;
    for name in PERFTEST {
        files.program(&parts.perftest.dir.join("bin").join(name), &Path::new("usr/bin").join(name))?;
    }
    for program in &parts.selftests {
        files.program(program, &Path::new("usr/bin").join(program.file_name().unwrap_or_default()))?;
    }
    files.program(&parts.guest, Path::new("usr/bin/guest"))?;
    files.program(&parts.peermemctl, Path::new("usr/bin/peermemctl"))?;
    symlink("usr/bin/guest", root.join("init"))?;
    match more {
        More::Nothing => (),
        More::Consumers => consumers::fill(&mut files)?,
        More::Lite => beside(root, "lite", parts.lite.as_ref())?,
        More::NvidiaC => beside(root, "rival", parts.rival.as_ref())?,
    }
    modules(lab, kernel, parts, module, root)
}

pub struct Files<'a> {
    pub lab: &'a Lab,
    pub root: &'a Path,
    done: BTreeSet<String>,
}

impl Files<'_> {
    /// Copies a program or library and every library that it needs.
    pub fn program(&mut self, from: &Path, to: &Path) -> Result<()> {
        self.copy(from, to)?;
        let ldd = sh::command(self.lab, "ldd").arg(from).output().context("cannot run ldd")?;
        for line in String::from_utf8_lossy(&ldd.stdout).lines() {
            match library(line) {
                Library::Found(path) => {
                    let lib = Path::new(&path);
                    let relative = lib.strip_prefix("/")?;
                    // /lib is /usr/lib here and in the machine.
                    let relative = if relative.starts_with("usr") {
                        relative.to_path_buf()
                    } else {
                        Path::new("usr").join(relative)
                    };
                    if self.done.insert(path.clone()) && !self.root.join(&relative).exists() {
                        self.copy(lib, &relative)?;
                    }
                }
                Library::Missing(name) if name == "libcuda.so.1" => (),
                Library::Missing(name) => bail!("{} needs {name}, which this machine has not", from.display()),
                Library::None => (),
            }
        }
        Ok(())
    }

    pub fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.root.join(to);
        fs::create_dir_all(to.parent().unwrap_or(self.root))?;
        fs::copy(from, &to).with_context(|| {
            format!("cannot copy {} into the image: is its package installed? (ci/bootstrap.sh)", from.display())
        })?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
enum Library {
    Found(String),
    Missing(String),
    None,
}

/// Reads a line of ldd. A libcuda of this machine is not the lab's: it counts as missing.
fn library(line: &str) -> Library {
    let line = line.trim();
    let (name, path) = match line.split_once(" => ") {
        Some((name, rest)) => (name, rest.split(" (").next().unwrap_or_default()),
        None if line.starts_with('/') => (line, line.split(" (").next().unwrap_or_default()),
        None => return Library::None,
    };
    if path.starts_with('/') && !name.starts_with("libcuda.so") {
        Library::Found(path.to_string())
    } else {
        Library::Missing(name.to_string())
    }
}

fn modules(lab: &Lab, kernel: &Kernel, parts: &Parts, module: Module, root: &Path) -> Result<()> {
    let tree = root.join("usr/lib/modules").join(&kernel.release);
    let order = fs::read_to_string(kernel.modules.join("modules.order")).context("the kernel has no modules.order")?;
    for object in order.lines() {
        let file = object.trim_end_matches(".o").to_string() + ".ko";
        let to = tree.join("kernel").join(&file);
        fs::create_dir_all(to.parent().unwrap_or(&tree))?;
        fs::copy(kernel.modules.join(&file), to).with_context(|| format!("the kernel has no {file}"))?;
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(kernel.modules.join(name), tree.join(name)).with_context(|| format!("the kernel has no {name}"))?;
    }
    let updates = tree.join("updates");
    fs::create_dir_all(&updates)?;
    let last = match module {
        Module::NvidiaC | Module::Installed => parts.rival.as_ref(),
        _ => Some(&parts.ours),
    };
    if last.is_none() && module == Module::NvidiaC {
        bail!("there is no {module:?} for kernel {}", kernel.release);
    }
    for part in parts.pcie.iter().chain([&parts.ofed, &parts.gpu]).chain(&parts.alarms).chain(last) {
        for entry in WalkDir::new(&part.dir) {
            let entry = entry?;
            if entry.path().extension().is_some_and(|e| e == "ko") {
                fs::copy(entry.path(), updates.join(entry.file_name()))?;
            }
        }
    }
    sh::output(sh::command(lab, "depmod").arg("-b").arg(root).arg(&kernel.release))?;
    if module == Module::Installed {
        installed(lab, kernel, parts, root)?;
    }
    Ok(())
}

/// What README says: `make`, and then `make install` by another user, who knows what the first one left in the build folder.
fn installed(lab: &Lab, kernel: &Kernel, parts: &Parts, root: &Path) -> Result<()> {
    let flavour = kernel.flavour.kept_as();
    let _lock = lock::take(&lab.build.join(format!("lock-{flavour}")), "build")?;
    let step = Step::new("make install", lab.build.join(format!("log/install-{flavour}.log")))?;
    let make = |words: &[&str]| {
        let mut cmd = sh::command(lab, "make");
        cmd.arg("-C").arg(&lab.repo).args(words);
        cmd.arg(format!("OUT={}", lab.build.join(flavour).join("ours").display()));
        cmd
    };
    let mut module = make(&[&format!("KDIR={}", kernel.dir.display())]);
    module.arg(format!("OFED={}", parts.ofed.dir.display())).arg(format!("NVIDIA={}", parts.gpu.dir.display()));
    step.run(module.env("NVPM_CACHE", &lab.cache))?;
    // As root, who has another home, does it: what was built is known.
    let mut install = make(&["install", &format!("INSTALL_MOD_PATH={}", root.display())]);
    step.run(install.env_remove("NVPM_CACHE").env("HOME", "/nonexistent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ldd() {
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007ffd)"), Library::None);
        let libc = "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)";
        assert_eq!(library(libc), Library::Found("/lib/x86_64-linux-gnu/libc.so.6".into()));
        assert_eq!(
            library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"),
            Library::Found("/lib64/ld-linux-x86-64.so.2".into())
        );
        assert_eq!(library("\tlibx.so.1 => not found"), Library::Missing("libx.so.1".into()));
        assert_eq!(library("\tlibcuda.so.1 => /opt/real/libcuda.so.1 (0x0)"), Library::Missing("libcuda.so.1".into()));
        assert_eq!(library("\tstatically linked"), Library::None);
    }
}
