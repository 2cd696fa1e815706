// SPDX-License-Identifier: GPL-2.0
//! Tells why the kernel does not take a module: the GPU driver, or a part of the RDMA stack. Another modprobe would
//! fail as the last one did.

use super::limits;
use super::module::{is_rejection, signatures_demanded};
use crate::kernel;
use crate::machine::{Machine, OFED_MODULE};
use crate::module_file::{self, ModuleFile};

/// The reason why a module is not taken.
pub struct LoadRefused {
    /// The reason in words, which follow a semicolon.
    pub why: String,
    pub fix: String,
    pub seen: String,
}

/// Returns why the kernel refused a module that is not loaded, or will refuse it.
pub fn load_refused(machine: &Machine, name: &str) -> Option<LoadRefused> {
    // The host does not sign or build modules that a container brought.
    if machine.setting.modules_in_containers() || machine.modules.contains_key(name) {
        return None;
    }
    let refused = by_versions(machine, name).or_else(|| by_signature(machine, name));
    refused.or_else(|| not_installed(machine, name))
}

/// The modules of the RDMA stack, each with the option of the kernel that builds it.
const OPTIONS: [(&str, &str); 9] = [
    ("ib_uverbs", "CONFIG_INFINIBAND_USER_ACCESS"),
    ("mlx5_ib", "CONFIG_MLX5_INFINIBAND"),
    ("mlx4_ib", "CONFIG_MLX4_INFINIBAND"),
    ("bnxt_re", "CONFIG_INFINIBAND_BNXT_RE"),
    ("irdma", "CONFIG_INFINIBAND_IRDMA"),
    ("efa", "CONFIG_INFINIBAND_EFA"),
    ("erdma", "CONFIG_INFINIBAND_ERDMA"),
    ("mana_ib", "CONFIG_MANA_INFINIBAND"),
    ("ionic_rdma", "CONFIG_INFINIBAND_IONIC"),
];

/// Returns that a module of the RDMA stack is in no package that is installed for this kernel.
fn not_installed(machine: &Machine, name: &str) -> Option<LoadRefused> {
    let (_, option) = OPTIONS.iter().find(|(module, _)| *module == name)?;
    let release = machine.release.as_deref()?;
    let list = format!("{}/modules.dep", kernel::modules_dir(release));
    let setting = &machine.setting;
    // A container's own files do not show what the host has.
    let is_told = setting.container.is_none() && machine.root.exists(&list);
    if !is_told || module_file::chosen(machine.root, release, name).is_some() || is_built_in(machine, release, name) {
        return None;
    }
    let by_maker = match name {
        "efa" => "Amazon's driver of EFAs (aws-efa-installer)",
        "erdma" => "Alibaba's driver of ERDMA",
        "mlx5_ib" | "ib_uverbs" => "DOCA-OFED (package doca-ofed)",
        // DOCA-OFED has no driver of theirs any more.
        "mlx4_ib" => "MLNX_OFED 4.9, the last one for ConnectX-3",
        _ => "its maker's driver",
    };
    let fix = match (&setting.fixed_system, setting.distribution.as_deref()) {
        (Some(system), _) => {
            format!("{system} is not changed in place: have its image, or an extension of it, bring {name} ({option} of its kernel)")
        }
        // vmware/photon#1228, spdk/spdk#1724: kernels for clouds have such drivers in a package of their own.
        (None, Some("ubuntu")) if name != "erdma" => {
            format!("install linux-modules-extra-{release}, or {by_maker}; then modprobe {name}")
        }
        _ => format!("install {by_maker}, or boot a kernel that is built with {option}; then modprobe {name}"),
    };
    let why = format!("{name} is not installed for kernel {release}");
    Some(LoadRefused { why, fix, seen: format!("no {name} in {list}") })
}

/// Returns whether a module is part of the running kernel itself.
pub(super) fn is_part_of_kernel(machine: &Machine, name: &str) -> bool {
    machine.release.as_deref().is_some_and(|release| is_built_in(machine, release, name))
}

/// Returns whether a module is part of the kernel itself.
fn is_built_in(machine: &Machine, release: &str, name: &str) -> bool {
    let list = machine.root.text(&format!("{}/modules.builtin", kernel::modules_dir(release))).unwrap_or_default();
    list.lines().any(|file| module_file::is_module(file, name))
}

/// Returns that the loader found a module to be of another build than what it needs.
fn by_versions(machine: &Machine, name: &str) -> Option<LoadRefused> {
    const WORDS: [&str; 3] = ["disagrees about version of symbol", "Unknown symbol", "version magic"];
    let is_it = |line: &&String| {
        let of_module = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
        of_module && WORDS.iter().any(|word| line.contains(word))
    };
    let line = machine.log.iter().flatten().rfind(is_it)?;
    let release = machine.release.as_deref().unwrap_or_default();
    let again = |what: &str, module: &str| {
        limits::unbuilt(machine, module).map_or_else(
            || {
                format!(
                    "build {what} again for this kernel (dkms autoinstall -k {release}, with its headers; without DKMS install it again)"
                )
            },
            |unbuilt| unbuilt.command(),
        )
    };
    let (why, fix) = match name {
        "nvidia" => {
            ("it was built against another kernel", format!("{}, then modprobe nvidia", again("the GPU driver", name)))
        }
        _ if name.starts_with("mlx") || name.starts_with("ib_") => (
            "it is part of another RDMA stack than the modules that it needs",
            format!("{}, or remove what is left of OFED; then depmod and reboot", again("OFED", OFED_MODULE)),
        ),
        _ => (
            "it is part of another RDMA stack than the modules that it needs",
            format!("{}, then depmod and reboot", again("the driver that brings it", name)),
        ),
    };
    Some(LoadRefused { why: format!("the kernel refused {name}, as {why}"), fix, seen: format!("kernel log: {line}") })
}

/// Returns that this kernel takes signed modules only, and knows no key for this one.
fn by_signature(machine: &Machine, name: &str) -> Option<LoadRefused> {
    const FIX: &str = "have the kernel know the key that signs these modules: mokutil --import /var/lib/dkms/mok.pub (the certificate of DKMS; of Ubuntu's /var/lib/shim-signed/mok/MOK.der), reboot and confirm it there; or install packages whose modules the distribution has signed";
    let demand = signatures_demanded(machine)?;
    let path = module_file::chosen(machine.root, machine.release.as_deref()?, name)?;
    // The distribution signs what it ships there, so another module was rejected.
    if path.contains("/kernel/") {
        return None;
    }
    let (why, seen) = match machine.log.iter().flatten().rfind(|line| is_rejection(line)) {
        Some(line) => ("and rejected one whose key it does not know", format!("kernel log: {line}")),
        None => {
            let file = ModuleFile::read(machine.root, &path).ok()?;
            file.signature.is_none().then_some(())?;
            ("and this one is not signed", format!("no signature in {path}"))
        }
    };
    let why = format!("this kernel takes signed modules only ({}), {why}", demand.seen);
    Some(LoadRefused { why, fix: FIX.to_owned(), seen })
}
