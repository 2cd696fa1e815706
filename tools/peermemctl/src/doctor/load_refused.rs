// SPDX-License-Identifier: GPL-2.0
//! Tells why the kernel does not take an installed module: the GPU driver, or a part of the RDMA stack. Another
//! modprobe would fail as the last one did.

use super::limits;
use super::module::{is_rejection, signatures_demanded};
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
    by_versions(machine, name).or_else(|| by_signature(machine, name))
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
