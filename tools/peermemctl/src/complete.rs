// SPDX-License-Identifier: GPL-2.0
//! What may follow an option on this machine: the shell asks while somebody types.

use crate::catalogue;
use crate::machine::Machine;
use crate::peermem;
use crate::recorded;
use crate::root::Root;
use crate::verify;
use clap_complete::CompletionCandidate;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The variable that stands for `--root`.
pub const ROOT: &str = "PEERMEMCTL_ROOT";

/// Returns the machine that words are completed for, or nothing if it cannot be looked at.
fn root() -> Option<Root> {
    let path = std::env::var_os(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    recorded::open(&path).ok()
}

fn candidates(pairs: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    pairs.map(|(value, help)| CompletionCandidate::new(value).help(Some(help.into()))).collect()
}

pub fn gpus() -> Vec<CompletionCandidate> {
    let Some(root) = root() else { return Vec::new() };
    let machine = Machine::look(&root);
    candidates(machine.gpus().into_iter().map(|gpu| (gpu.address.clone(), gpu.name())))
}

pub fn nics() -> Vec<CompletionCandidate> {
    let Some(root) = root() else { return Vec::new() };
    let at = |pci: &Option<String>| pci.clone().unwrap_or_else(|| "no PCI device".to_owned());
    candidates(crate::rdma::devices(&root).into_iter().map(|device| (device.name, at(&device.pci))))
}

/// Returns the processes that have registered something.
pub fn registrants() -> Vec<CompletionCandidate> {
    let Some(root) = root() else { return Vec::new() };
    let rows = peermem::registrations(&root).unwrap_or_default();
    let by_pid: BTreeMap<u32, String> = rows.into_iter().map(|row| (row.pid, row.comm)).collect();
    candidates(by_pid.into_iter().map(|(pid, comm)| (pid.to_string(), comm)))
}

/// Returns the processes that have a GPU or an RDMA device open, as far as this user may see.
pub fn processes() -> Vec<CompletionCandidate> {
    let Some(root) = root() else { return Vec::new() };
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let opens = |pid: &String| {
        let nodes = ["/dev/infiniband/", "/dev/nvidiactl"];
        root.open_files(pid).iter().any(|file| nodes.iter().any(|node| file.starts_with(node)))
    };
    let pids = root.names("/proc").into_iter().filter(is_number).filter(opens);
    candidates(pids.map(|pid| {
        let comm = root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
        (pid, comm)
    }))
}

/// Returns the checks of `verify`.
pub fn verifications() -> Vec<CompletionCandidate> {
    candidates(verify::checks::CHECKS.iter().map(|check| (check.id.to_owned(), String::new())))
}

pub fn checks() -> Vec<CompletionCandidate> {
    candidates(catalogue::CHECKS.iter().map(|entry| (entry.id.to_owned(), entry.looks.to_owned())))
}
