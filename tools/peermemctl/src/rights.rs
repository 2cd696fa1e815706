// SPDX-License-Identifier: GPL-2.0
//! Reads what the kernel lets a process do, by its user, its capabilities and its user namespace.

use crate::root::Root;

/// Bit of CAP_IPC_LOCK, which lifts the limit.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// Bit of CAP_SYS_ADMIN, to which the GPU driver denies no capability of its own.
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// Bit of CAP_DAC_OVERRIDE, which no mode of a file binds.
const CAP_DAC_OVERRIDE: u64 = 1 << 1;

/// Returns whether no limit binds a process. A capability counts only in the initial user
/// namespace, which root of a rootless container is not in.
pub fn is_exempt(root: &Root, pid: &str) -> bool {
    has_initial_users(root, pid) && has_capability(root, pid)
}

/// Returns whether a process has CAP_IPC_LOCK, in whatever user namespace.
pub fn has_capability(root: &Root, pid: &str) -> bool {
    capabilities(root, pid) & CAP_IPC_LOCK != 0
}

/// Returns the capabilities in effect of a process.
fn capabilities(root: &Root, pid: &str) -> u64 {
    let effective = of_status(root, pid, "CapEff:");
    effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Returns what the kernel says of a process behind a word.
pub fn of_status(root: &Root, pid: &str, word: &str) -> Option<String> {
    let status = root.text(&format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned)
}

/// Returns whether no mode of a file binds this process.
pub fn may_override_modes(root: &Root) -> bool {
    has_initial_users(root, "self") && capabilities(root, "self") & CAP_DAC_OVERRIDE != 0
}

/// Returns whether the GPU driver lets this process use whatever it has.
pub fn may_administer(root: &Root) -> bool {
    has_initial_users(root, "self") && capabilities(root, "self") & CAP_SYS_ADMIN != 0
}

/// Returns whether a process is in the initial user namespace, as far as that can be read.
pub fn has_initial_users(root: &Root, pid: &str) -> bool {
    let map = root.text(&format!("/proc/{pid}/uid_map"));
    map.map_or(true, |map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]))
}

/// Returns whether this process is root's.
pub fn is_root(root: &Root) -> bool {
    is_root_of(root, "self")
}

/// Returns whether a process is root's.
pub fn is_root_of(root: &Root, pid: &str) -> bool {
    of_status(root, pid, "Uid:").is_some_and(|uids| uids.split_ascii_whitespace().nth(1) == Some("0"))
}
