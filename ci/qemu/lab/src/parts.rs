//! The parts of the machine in the order in which they need each other, each built only when its inputs changed. A part is
//! built in the checkout (a module of our own from what is there, so that a changed file costs what it costs make), and what
//! came of it is kept in the cache under the key of its inputs (so that a fresh clone builds nothing that any other has
//! built). The lab's Rust programs: `program.rs`.

use crate::axes::{Also as More, Module};
use crate::ctx::Lab;
use crate::fetch::Sources;
use crate::kernel::{Flavour, Kernel};
use crate::key::Key;
use crate::lock;
use crate::program;
use crate::ready::Kind;
use crate::sh::{self, say, Step};
use anyhow::{anyhow, bail, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use walkdir::WalkDir;

/// A finished part: a folder that nobody writes to any more.
#[derive(Clone)]
pub struct Part {
    pub dir: PathBuf,
    pub key: String,
}

#[derive(Clone)]
pub struct Parts {
    pub pcie: Option<Part>,
    pub ofed: Part,
    pub gpu: Part,
    pub alarms: Option<Part>,
    pub ours: Part,
    /// Ours built with kernel-lite, in images that have both.
    pub lite: Option<Part>,
    pub rival: Option<Part>,
    pub libcuda: PathBuf,
    /// What the stand-ins are tested with in the machine.
    pub selftests: Vec<PathBuf>,
    pub guest: PathBuf,
    pub peermemctl: PathBuf,
    pub perftest: Part,
}

pub fn build(lab: &Lab, sources: &Sources, kernel: &Kernel) -> Result<Parts> {
    let flavour = kernel.flavour.kept_as();
    let _lock = lock::take(&lab.build.join(format!("lock-{flavour}")), "build")?;
    let b = Builder { lab, sources, kernel };
    let (pcie, ofed, gpu, alarms) = match kernel.flavour {
        Flavour::Debug72 | Flavour::Fast72 | Flavour::Debian612 => {
            let pcie = b.component("pcie", &[])?;
            let ofed = b.component("ofed", &[&pcie])?;
            let gpu = b.component("gpu", &[&pcie])?;
            (Some(pcie), ofed, gpu, Some(b.component("alarms", &[])?))
        }
        // One module stands in for both neighbours.
        Flavour::Debian61 => {
            let bare = b.component("bare", &[])?;
            (None, bare.clone(), bare, None)
        }
    };
    let ours = b.ours("ours", &ofed, &gpu, "")?;
    let rival = if kernel.flavour == Flavour::Debian61 { None } else { Some(b.rival(&ofed, &gpu)?) };
    let libcuda = program::LIBCUDA.build(lab)?;
    let selftests = program::SELFTESTS.iter().map(|program| program.build(lab)).collect::<Result<_>>()?;
    let guest = program::GUEST.build(lab)?;
    let peermemctl = program::PEERMEMCTL.build(lab)?;
    let perftest = b.perftest(&libcuda)?;
    Ok(Parts { pcie, ofed, gpu, alarms, ours, lite: None, rival, libcuda, selftests, guest, peermemctl, perftest })
}

/// The same with what only this image needs.
pub fn with(lab: &Lab, sources: &Sources, kernel: &Kernel, parts: &Parts, (module, more): Kind) -> Result<Parts> {
    let _lock = lock::take(&lab.build.join(format!("lock-{}", kernel.flavour.kept_as())), "build")?;
    let b = Builder { lab, sources, kernel };
    let lite = || b.ours("lite", &parts.ofed, &parts.gpu, "lite");
    let parts = Parts { lite: if more == More::Lite { Some(lite()?) } else { None }, ..parts.clone() };
    Ok(match module {
        Module::Ours | Module::NvidiaC | Module::Installed => parts,
        Module::Lite => Parts { ours: lite()?, ..parts },
        Module::Closed => {
            let needs: Vec<&Part> = parts.pcie.iter().collect();
            let gpu = b.part_of("gpu", "gpu-closed", &needs, &["NVLAB_CLOSED=1"])?;
            // Chosen by preflight, as a user's build beside such a driver.
            Parts { ours: b.ours("ours-closed", &parts.ofed, &gpu, "")?, gpu, ..parts }
        }
    })
}

/// Takes the part from the cache or lets `make` build it into the folder it is given.
pub fn part(
    lab: &Lab,
    kind: &str,
    name: &str,
    key: Key,
    make: impl FnOnce(&Path, &Step) -> Result<()>,
) -> Result<Part> {
    let key = key.hex();
    let dir = lab.cache.join(format!("part/{kind}-{name}-{key}"));
    if dir.is_dir() {
        // Its time is that of its last use: what is old is thrown away first.
        let _ = fs::File::open(&dir).and_then(|d| d.set_modified(std::time::SystemTime::now()));
        return Ok(Part { dir, key });
    }
    let start = Instant::now();
    let out = lab.build.join(kind).join(name);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut step = Step::new(format!("build {name}"), lab.build.join(format!("log/{name}-{kind}.log")))?;
    step.counts = &["CC ", "RUSTC ", "Compiling "];
    make(&out, &step)?;
    // Two checkouts may finish at once: each copies into a folder of its own, one of them wins the name.
    let tmp = lab.cache.join(format!("part/.{kind}-{name}-{key}.{}", std::process::id()));
    publish(&out, &tmp)?;
    if fs::rename(&tmp, &dir).is_err() {
        fs::remove_dir_all(&tmp)?;
    }
    if !dir.is_dir() {
        bail!("cannot keep {name} in {}", dir.display());
    }
    prune(&lab.cache.join("part"), &format!("{kind}-{name}-"), KEEP)?;
    say(&format!("build {name}: {}", sh::human(start.elapsed())));
    Ok(Part { dir, key })
}

struct Builder<'a> {
    lab: &'a Lab,
    sources: &'a Sources,
    kernel: &'a Kernel,
}

impl Builder<'_> {
    fn part(&self, name: &str, key: Key, make: impl FnOnce(&Path, &Step) -> Result<()>) -> Result<Part> {
        part(self.lab, self.kernel.flavour.kept_as(), name, key, make)
    }

    fn make(&self, dir: &Path, out: &Path) -> Command {
        let mut cmd = sh::command(self.lab, "make");
        cmd.arg("-C").arg(dir);
        cmd.arg(format!("KDIR={}", self.kernel.dir.display())).arg(format!("OUT={}", out.display()));
        cmd.args(self.kernel.make_args()).arg(jobs());
        cmd
    }

    /// A part of the lab that is kernel modules: ci/qemu/<name>.
    fn component(&self, name: &str, needs: &[&Part]) -> Result<Part> {
        self.part_of(name, name, needs, &[])
    }

    /// The same, with more words for make, under a name of its own.
    fn part_of(&self, component: &str, name: &str, needs: &[&Part], words: &[&str]) -> Result<Part> {
        let dir = self.lab.qemu(component);
        if !dir.join("Makefile").is_file() {
            bail!("{} has no Makefile: this checkout is not whole", self.lab.short(&dir));
        }
        let mut key = Key::new("component");
        key.text(&words.join(" ")).text(name).text(&self.kernel.key).path(&dir)?;
        // Parts include one another's headers.
        key.path(&self.lab.qemu("pcie/lab_pcie.h"))?.path(&self.lab.repo.join("bindings"))?;
        for need in needs {
            key.text(&need.key);
        }
        self.part(name, key, |out, step| {
            let symvers: Vec<String> =
                needs.iter().map(|n| n.dir.join("Module.symvers").display().to_string()).collect();
            let mut cmd = self.make(&dir, out);
            cmd.arg(format!("LINUX_SRC={}", self.sources.linux.dir.display()))
                .arg(format!("SYMVERS={}", symvers.join(" ")))
                .args(words);
            step.run(&mut cmd)?;
            no_warning(&step.log)
        })
    }

    /// The module that all of this is about; its `kernel` crate is the one that `kernel_crate` names, or that preflight takes.
    fn ours(&self, name: &str, ofed: &Part, gpu: &Part, kernel_crate: &str) -> Result<Part> {
        let repo = &self.lab.repo;
        // The profile of the benchmark names lines. The code is the same with them.
        let lines: &[&str] = match self.kernel.flavour {
            Flavour::Fast72 => &["KRUSTFLAGS=-Cdebuginfo=line-tables-only", "KCFLAGS=-g1"],
            _ => &[],
        };
        let mut key = Key::new("ours");
        key.text(kernel_crate)
            .text(&lines.join(" "))
            .text(&self.kernel.key)
            .text(&ofed.key)
            .text(&gpu.key)
            .path(&self.sources.rival)?
            .path(&self.sources.deps)?;
        for input in ["src", "bindings", "kernel-lite", "mk", "Kbuild", "Makefile", "VERSION"] {
            key.path(&repo.join(input))?;
        }
        self.part(name, key, |out, step| {
            let mut cmd = self.make(repo, out);
            // The rival's folder has NVIDIA's headers: our own words for its interface are compared with them.
            cmd.arg(format!("OFED={}", ofed.dir.display()));
            cmd.arg(format!("NVIDIA={} {}", gpu.dir.display(), self.sources.rival.display()));
            cmd.arg(format!("DEPS={}", self.sources.deps.display())).arg(format!("KERNEL_CRATE={kernel_crate}"));
            cmd.args(lines);
            step.run(&mut cmd)?;
            no_warning(&step.log)
        })
    }

    /// NVIDIA's C module from Debian's package, compiled in the build folder as it is. Its conftest.h, made by NVIDIA's
    /// own build from probes of the kernel, may be empty here; the two names it needs are given on the command line.
    fn rival(&self, ofed: &Part, gpu: &Part) -> Result<Part> {
        let src = &self.sources.rival;
        let mut key = Key::new("rival");
        key.text(&self.kernel.key).text(&ofed.key).text(&gpu.key).path(src)?;
        self.part("rival", key, |out, step| {
            empty(out)?;
            for name in ["nvidia-peermem.c", "nv-p2p.h", "peer_mem.h"] {
                fs::copy(src.join(name), out.join(name)).with_context(|| format!("{} has no {name}", src.display()))?;
            }
            let version = src.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let version = version.trim_start_matches("nvidia-peermem-").split('-').next().unwrap_or_default();
            fs::write(out.join("conftest.h"), "")?;
            fs::write(
                out.join("Kbuild"),
                format!(
                    "obj-m := nvidia-peermem.o\nccflags-y := -I$(src) -DNV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT \
                     -DNV_VERSION_STRING='\"{version}\"'\n"
                ),
            )?;
            let symvers = format!(
                "KBUILD_EXTRA_SYMBOLS={} {}",
                ofed.dir.join("Module.symvers").display(),
                gpu.dir.join("Module.symvers").display()
            );
            let mut cmd = sh::command(self.lab, "make");
            cmd.arg("-C").arg(&self.kernel.dir).arg(format!("M={}", out.display())).args(self.kernel.make_args());
            step.run(cmd.arg(symvers).arg("modules"))
        })
    }

    /// perftest with CUDA, linked against the stand-in.
    fn perftest(&self, libcuda: &Path) -> Result<Part> {
        let src = &self.sources.perftest;
        let mut key = Key::new("perftest");
        key.text(&src.to_string_lossy()).text(&self.sources.cuda_h.to_string_lossy());
        packages(self.lab, &mut key, &["libibverbs-dev", "librdmacm-dev", "libc6-dev"])?;
        self.part("perftest", key, |out, step| {
            empty(out)?;
            let tree = out.join("tree");
            step.run(sh::command(self.lab, "cp").arg("-a").arg(src).arg(&tree))?;
            let lib = out.join("lib");
            fs::create_dir(&lib)?;
            fs::copy(libcuda, lib.join("libcuda.so"))?;
            step.run(sh::command(self.lab, "./autogen.sh").current_dir(&tree))?;
            step.run(
                sh::command(self.lab, "./configure")
                    .current_dir(&tree)
                    .arg(format!("CUDA_H_PATH={}", self.sources.cuda_h.display()))
                    .arg(format!("LDFLAGS=-L{}", lib.display())),
            )?;
            step.run(sh::command(self.lab, "make").arg(jobs()).current_dir(&tree))?;
            let bin = out.join("bin");
            fs::create_dir(&bin)?;
            for name in PERFTEST {
                fs::copy(tree.join(name), bin.join(name)).with_context(|| format!("perftest built no {name}"))?;
            }
            fs::remove_dir_all(&tree)?;
            fs::remove_dir_all(&lib).map_err(|e| anyhow!(e))
        })
    }
}

pub const PERFTEST: [&str; 6] =
    ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat"];

/// So many finished builds of one part are kept.
const KEEP: usize = 24;

/// What is ours builds without a word of compilers, objtool and modpost: what they warn of on one kernel breaks on another.
fn no_warning(log: &Path) -> Result<()> {
    let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    match text.lines().find(|l| l.to_ascii_lowercase().contains("warning")) {
        Some(line) => bail!("it does not build without a warning: {line} (whole log: {})", log.display()),
        None => Ok(()),
    }
}

/// For what is built from nothing each time.
fn empty(out: &Path) -> Result<()> {
    fs::remove_dir_all(out)?;
    Ok(fs::create_dir(out)?)
}

/// What else a product is made of: these packages of Debian.
pub fn packages(lab: &Lab, key: &mut Key, names: &[&str]) -> Result<()> {
    for name in names {
        key.text(&sh::output(sh::command(lab, "dpkg-query").args(["-W", "-f=${Version}", name]))?);
    }
    Ok(())
}

fn jobs() -> String {
    format!("-j{}", std::thread::available_parallelism().map_or(1, usize::from))
}

/// What others use of a part: modules, their symbol versions, headers, programs.
fn publish(out: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut any = false;
    // The sources that a part was built from are copied into OUT/src, or linked into OUT/tree; its products are not there.
    for entry in WalkDir::new(out).into_iter().filter_entry(|e| e.file_name() != "src" && e.file_name() != "tree") {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy();
        let program = path.parent().is_some_and(|p| p.ends_with("bin"));
        if entry.file_type().is_file()
            && (name.ends_with(".ko") || name.ends_with(".h") || name == "Module.symvers" || program)
        {
            let target = to.join(path.strip_prefix(out)?);
            fs::create_dir_all(target.parent().unwrap_or(to))?;
            fs::copy(path, &target).with_context(|| format!("cannot copy {}", path.display()))?;
            any |= name.ends_with(".ko") || program;
        }
    }
    if !any {
        bail!("the build left neither a module nor a program in {}", out.display());
    }
    Ok(())
}

fn prune(dir: &Path, prefix: &str, keep: usize) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        // A key follows, and not the rest of a longer name.
        if name.to_string_lossy().strip_prefix(prefix).is_some_and(|key| !key.contains('-')) {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.sort();
    for (_, path) in found.iter().rev().skip(keep) {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_products_are_published() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        fs::create_dir_all(out.join("core")).unwrap();
        fs::create_dir_all(out.join("src")).unwrap();
        for name in ["core/ib_core.ko", "core/ib_core.o", "Module.symvers", "peer_mem.h", "src/ib_core.ko"] {
            fs::write(out.join(name), name).unwrap();
        }
        let to = dir.path().join("to");
        publish(&out, &to).unwrap();
        assert!(
            to.join("core/ib_core.ko").is_file()
                && to.join("Module.symvers").is_file()
                && to.join("peer_mem.h").is_file()
        );
        assert!(!to.join("core/ib_core.o").exists() && !to.join("src").exists());
        fs::remove_file(out.join("core/ib_core.ko")).unwrap();
        assert!(publish(&out, &dir.path().join("empty")).is_err(), "a part without a module was published");
    }

    #[test]
    fn the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
        for (i, name) in
            ["debug-ofed-1", "debug-ofed-2", "debug-ofed-3", "debug-gpu-1", "debug-ofed-more-1"].iter().enumerate()
        {
            fs::create_dir(dir.path().join(name)).unwrap();
            let time = old + std::time::Duration::from_secs(i as u64);
            fs::File::open(dir.path().join(name)).unwrap().set_modified(time).unwrap();
        }
        prune(dir.path(), "debug-ofed-", 2).unwrap();
        let left = |n: &str| dir.path().join(n).exists();
        assert!(!left("debug-ofed-1") && left("debug-ofed-2") && left("debug-ofed-3") && left("debug-gpu-1"));
        assert!(left("debug-ofed-more-1"), "another part's");
    }
}
