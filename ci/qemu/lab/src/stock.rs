//! A distribution's own kernel, unmodified, from its packages: no Rust, gcc, symbol versions, every mitigation compiled in: what
//! most users have. Debian's 6.12 for the machine's release (`stock`), where all of the RDMA stack is rebuilt as external
//! modules from the source package of the same version, as the installation of OFED does; and Debian 12's 6.1 (`oldest`),
//! with ci/qemu/bare in the place of both neighbours.
//!
//! Everything lies in one folder, `kernel/<flavour>-<format>-<release>`: `root/` has the packages as dpkg would unpack them, `modules/`
//! those modules of the kernel that the machine needs, not compressed, and `source/` the RDMA stack's sources.

use crate::apt::{self, numbers, Apt};
use crate::ctx::Lab;
use crate::fetch::{opened, scratch, Linux};
use crate::kernel::{Flavour, Kernel};
use crate::key::Key;
use crate::sh::{self, say, Step};
use anyhow::{anyhow, bail, Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What the packages of a series are called.
struct Series {
    flavour: Flavour,
    number: &'static str,
    /// Of a release, behind the number.
    release: &'static str,
    /// Whether the RDMA stack is rebuilt.
    source: bool,
}

/// In Debian 13, and in the backports and security updates of Debian 12.
const STOCK: Series =
    Series { flavour: Flavour::Debian612, number: "6.12", release: r"\.[0-9]+\+deb@-amd64", source: true };
/// Debian 12's.
const OLDEST: Series =
    Series { flavour: Flavour::Debian61, number: "6.1", release: r"\.0-[0-9]+-amd64", source: false };

/// Raised when a folder that an older lab unpacked would not do any more.
const FORMAT: u32 = 2;

impl Series {
    fn of(flavour: Flavour) -> &'static Self {
        match flavour {
            Flavour::Debian61 => &OLDEST,
            Flavour::Debian612 | Flavour::Debug72 | Flavour::Fast72 => &STOCK,
        }
    }

    /// Of the folders in the cache.
    fn prefix(&self) -> String {
        format!("{}-{FORMAT}-", self.flavour.kept_as())
    }

    /// What stands in the names of linux-kbuild; newer releases have one each.
    fn kbuild<'a>(&'a self, base: &'a str) -> &'a str {
        if base.contains("+deb") {
            base
        } else {
            self.number
        }
    }
}

/// The machine's card, and the kernel's own RDMA stack with all that ours needs of the kernel, too. (rdma_rxe asks for its
/// checksum by the alias.)
const MODULES: [&str; 7] = ["virtio_pci", "virtio_net", "rdma_rxe", "rdma_ucm", "ib_umad", "ib_uverbs", "crypto-crc32"];
/// Of the source: what ci/qemu/ofed takes, and which version it is.
const SOURCES: [&str; 4] =
    ["*/Makefile", "*/drivers/infiniband/core", "*/drivers/infiniband/sw/rxe", "*/include/rdma/ib_umem.h"];
const HEADERS: &str = "root/usr/src";

/// Takes the kernel that is in the cache, or else the newest one of the packages.
pub fn fetch<'a>(lab: &'a Lab, apt: &mut Option<Apt<'a>>, flavour: Flavour) -> Result<Linux> {
    let series = Series::of(flavour);
    if let Some((dir, release)) = unpacked(&lab.cache.join("kernel"), &series.prefix())? {
        return Ok(Linux { dir: dir.join("source"), version: release });
    }
    let apt = opened(lab, apt)?;
    let names = series.release.replace('@', &apt::release()?.number);
    let release = apt
        .search(&format!("^linux-image-{}{names}$", series.number.replace('.', r"\.")))?
        .iter()
        .filter_map(|p| p.strip_prefix("linux-image-").map(str::to_string))
        .max_by_key(|r| numbers(r))
        .ok_or_else(|| anyhow!("no suite of this machine's mirror has a linux-image-{}{names}", series.number))?;
    let image = format!("linux-image-{release}");
    let version = apt.newest(&image, series.number)?;
    let base = release.trim_end_matches("-amd64");
    let packages = [
        image,
        format!("linux-headers-{release}"),
        format!("linux-headers-{base}-common"),
        format!("linux-kbuild-{}", series.kbuild(base)),
    ];
    let debs = packages.iter().map(|p| apt.download(p, &version)).collect::<Result<Vec<_>>>()?;

    say(&format!("unpack: Debian's kernel {release} ({version})"));
    let dir = lab.cache.join(format!("kernel/{}{release}", series.prefix()));
    let step = Step::new("unpack Debian's kernel", lab.build.join(format!("log/unpack-{}.log", flavour.kept_as())))?;
    let tmp = scratch(&dir)?;
    for deb in &debs {
        step.run(sh::command(lab, "dpkg-deb").arg("-x").arg(deb).arg(tmp.join("root")))?;
    }
    modules(lab, &step, &tmp, &release)?;
    if series.source {
        let source = apt.download(&format!("linux-source-{}", series.number), &version)?;
        fs::create_dir(tmp.join("source"))?;
        let script = "dpkg-deb --fsys-tarfile \"$1\" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | \
                      tar -xJ -C \"$2\" --strip-components=1 --wildcards --no-wildcards-match-slash \"${@:3}\"";
        let mut unpack = sh::command(lab, "bash");
        unpack.args(["-o", "pipefail", "-ec", script, "bash"]).arg(&source).arg(tmp.join("source")).args(SOURCES);
        step.run(&mut unpack)?;
    }
    // The packages belong below /usr/src; there they are not, and this folder may be moved.
    let common = format!("$(dir $(lastword $(MAKEFILE_LIST)))../linux-headers-{base}-common/Makefile");
    let makefile = tmp.join(format!("{HEADERS}/linux-headers-{release}/Makefile"));
    fs::write(&makefile, format!("include {common}\n"))
        .with_context(|| format!("cannot write {}", makefile.display()))?;
    fs::rename(&tmp, &dir)?;
    Ok(Linux { dir: dir.join("source"), version: release })
}

/// The newest one that is there.
fn unpacked(kernels: &Path, prefix: &str) -> Result<Option<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(kernels).with_context(|| format!("cannot read {}", kernels.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(release) = name.strip_prefix(prefix) {
            found.push((numbers(release), path, release.to_string()));
        }
    }
    found.sort();
    Ok(found.pop().map(|(_, path, release)| (path, release)))
}

/// Decompresses the modules that the machine needs, and lists them as a build tree does.
fn modules(lab: &Lab, step: &Step, dir: &Path, release: &str) -> Result<()> {
    // /lib is a part of /usr in newer packages.
    let base = ["root/usr", "root"].map(|b| dir.join(b)).into_iter().find(|b| b.join("lib/modules").is_dir());
    let base = base.ok_or_else(|| anyhow!("the package of kernel {release} has no /lib/modules"))?;
    let theirs = base.join("lib/modules").join(release);
    step.run(sh::command(lab, "depmod").arg("-b").arg(&base).arg(release))?;
    let mut wanted = BTreeSet::new();
    for name in MODULES {
        let mut modprobe = sh::command(lab, "modprobe");
        modprobe.arg("-d").arg(&base).args(["-S", release, "--show-depends", name]);
        for line in sh::output(&mut modprobe)?.lines() {
            // insmod <file>, or builtin <name>
            if let Some(file) = line.strip_prefix("insmod ") {
                wanted.insert(PathBuf::from(file.trim()));
            }
        }
    }
    let ours = dir.join("modules");
    let mut order = String::new();
    for file in &wanted {
        let relative =
            file.strip_prefix(theirs.join("kernel")).with_context(|| format!("{} lies elsewhere", file.display()))?;
        let relative = relative.to_string_lossy();
        let (name, packed) = match relative.strip_suffix(".xz") {
            Some(name) => (name, true),
            None => (relative.as_ref(), false),
        };
        let Some(name) = name.strip_suffix(".ko") else { bail!("{relative} is neither a .ko nor a .ko.xz") };
        let to = ours.join(format!("{name}.ko"));
        fs::create_dir_all(to.parent().unwrap_or(&ours))?;
        if packed {
            let xz = sh::command(lab, "xz").arg("-dc").arg(file).output().context("cannot run xz")?;
            if !xz.status.success() {
                bail!("xz -dc {}: {}", file.display(), String::from_utf8_lossy(&xz.stderr));
            }
            fs::write(&to, xz.stdout)?;
        } else {
            fs::copy(file, &to)?;
        }
        order += &format!("{name}.o\n");
    }
    fs::write(ours.join("modules.order"), order)?;
    for name in ["modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(theirs.join(name), ours.join(name)).with_context(|| format!("kernel {release} has no {name}"))?;
    }
    Ok(())
}

/// What `fetch()` unpacked.
pub fn kernel(lab: &Lab, linux: &Linux, flavour: Flavour) -> Result<Kernel> {
    let release = linux.version.clone();
    let all = lab.cache.join(format!("kernel/{}{release}", Series::of(flavour).prefix()));
    let mut key = Key::new("stock kernel");
    // Modules are built by the compiler that the headers name; preflight looks for rustc by itself.
    for tool in ["gcc", "rustc"] {
        key.text(&sh::output(sh::command(lab, tool).arg("--version"))?);
    }
    Ok(Kernel {
        dir: all.join(format!("{HEADERS}/linux-headers-{release}")),
        image: all.join(format!("root/boot/vmlinuz-{release}")),
        modules: all.join("modules"),
        key: key.text(&release).hex(),
        release,
        flavour,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_one_in_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(dir.path(), "stock-2-").unwrap(), None);
        for name in [
            "stock-2-6.12.95+deb12-amd64",
            "stock-2-6.12.117+deb12-amd64",
            "oldest-2-6.1.0-56-amd64",
            ".stock-2-6.12.200+deb12-amd64.part",
            "stock-6.12.999+deb12-amd64",
            "debug-1",
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (path, release) = unpacked(dir.path(), "stock-2-").unwrap().unwrap();
        assert_eq!(release, "6.12.117+deb12-amd64");
        assert!(path.ends_with("stock-2-6.12.117+deb12-amd64"));
        assert_eq!(unpacked(dir.path(), "oldest-2-").unwrap().unwrap().1, "6.1.0-56-amd64");
    }

    #[test]
    fn names_of_packages() {
        assert_eq!(STOCK.kbuild("6.12.117+deb12"), "6.12.117+deb12");
        assert_eq!(OLDEST.kbuild("6.1.0-56"), "6.1");
    }
}
