// SPDX-License-Identifier: GPL-2.0
//! The kind of machine that the cures are for, and what of it could not be read.

use crate::check::Check;
use crate::machine::Machine;
use crate::pci;
use crate::root::Missing;
use crate::text;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let words = Check::ok("setting.machine", machine.setting.words()).seen("/proc, /sys, /run/nvidia, /run/mellanox");
    vec![words]
}

/// Lists the deciding files that were not read completely. Runs last, when all has been read.
pub fn unread(machine: &Machine) -> Option<Check> {
    let mut files = Vec::new();
    let mut add = |missing: bool, file: &str| files.extend(missing.then(|| file.to_owned()));
    add(machine.release.is_none(), "/proc/sys/kernel/osrelease");
    add(!machine.modules_read, "/proc/modules");
    add(machine.symbols.is_err(), "/proc/kallsyms");
    add(machine.devices.is_empty(), "/sys/bus/pci/devices");
    add(matches!(machine.stats, Err(Missing::Denied)), "/proc/driver/nvidia-peermem/stats");
    let names = machine.root.names(pci::DEVICES).into_iter();
    let odd: Vec<String> = names.filter(|address| machine.pci(address).is_none()).collect();
    if let (Some(first), false) = (odd.first(), machine.devices.is_empty()) {
        files.push(format!("{} of /sys/bus/pci/devices, such as {first}", text::count(odd.len(), "function")));
    }
    let cut = machine.root.cut().into_iter();
    files.extend(cut.map(|file| format!("{file} beyond its first MiB")));
    (!files.is_empty()).then(|| {
        let message = format!("could not be read, so what they tell is not known: {}", files.join("; "));
        Check::skip("setting.unread", message).seen(files.join(", "))
    })
}
