// SPDX-License-Identifier: GPL-2.0
//! Section 9: locked memory, what is loaded at boot, DKMS.

use super::module;
use crate::check::Check;
use crate::machine::{Machine, NAME};
use crate::modprobe;
use crate::root::Root;
use crate::text;
use procfs_core::process::{LimitValue, Limits, Status};
use procfs_core::FromRead;

/// Bit of CAP_IPC_LOCK, which lifts the limit.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// A limit below this stops real applications.
const ENOUGH: u64 = 64 << 30;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![login(machine.root)];
    checks.extend(processes(machine.root));
    checks.extend(module::blocked(machine));
    checks.push(boot(machine));
    checks.extend(dkms(machine));
    checks
}

/// The limit of locked memory of a process; `None` for no limit or a process that no limit binds.
fn limit(root: &Root, pid: &str) -> Option<Option<u64>> {
    let limits = Limits::from_read(root.bytes(&format!("/proc/{pid}/limits")).ok()?.as_slice()).ok()?;
    match limits.max_locked_memory.soft_limit {
        LimitValue::Unlimited => Some(None),
        LimitValue::Value(bytes) => Some(Some(bytes)),
    }
}

fn is_exempt(root: &Root, pid: &str) -> bool {
    let status =
        root.bytes(&format!("/proc/{pid}/status")).ok().and_then(|bytes| Status::from_read(bytes.as_slice()).ok());
    status.is_some_and(|status| status.capeff & CAP_IPC_LOCK != 0)
}

/// `* - memlock unlimited` and the like, for users that log in.
fn configured(root: &Root) -> Option<String> {
    let mut files = vec!["/etc/security/limits.conf".to_owned()];
    files.extend(root.names("/etc/security/limits.d").into_iter().map(|name| format!("/etc/security/limits.d/{name}")));
    files.into_iter().find(|file| {
        let text = root.text(file).unwrap_or_default();
        text.lines().any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            matches!(words.as_slice(), ["*", "-" | "soft", "memlock", "unlimited" | "infinity" | "-1", ..])
        })
    })
}

fn login(root: &Root) -> Check {
    const ID: &str = "limits.memlock";
    if let Some(file) = configured(root) {
        return Check::ok(ID, "users may lock all memory").seen(format!("memlock unlimited in {file}"));
    }
    match limit(root, "self") {
        None => Check::skip(ID, "the limit of locked memory cannot be read"),
        Some(None) => Check::ok(ID, "programs started from here may lock all memory").seen("Max locked memory in /proc/self/limits"),
        Some(Some(bytes)) if bytes >= ENOUGH => {
            Check::ok(ID, format!("programs started from here may lock {}", text::bytes(bytes))).seen("/proc/self/limits")
        }
        Some(Some(bytes)) => Check::warn(
            ID,
            format!(
                "programs started from here may lock {} only: more than that of GPU memory fails with \"Cannot allocate memory\", unless they run as root",
                text::bytes(bytes)
            ),
            "echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf and log in again; services: LimitMEMLOCK=infinity",
        )
        .seen("Max locked memory in /proc/self/limits"),
    }
}

/// Processes that have an RDMA device open and a limit that will stop them.
fn processes(root: &Root) -> Vec<Check> {
    let uses_rdma = |pid: &String| {
        root.names(&format!("/proc/{pid}/fd")).iter().any(|fd| {
            std::fs::read_link(root.at(&format!("/proc/{pid}/fd/{fd}")))
                .is_ok_and(|target| target.to_string_lossy().contains("/dev/infiniband/uverbs"))
        })
    };
    root.names("/proc")
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(uses_rdma)
        .filter_map(|pid| {
            let bytes = limit(root, &pid)?.filter(|bytes| *bytes < ENOUGH)?;
            if is_exempt(root, &pid) {
                return None;
            }
            let comm = root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
            Some(
                Check::warn(
                    "limits.process",
                    format!("process {pid} ({comm}) uses RDMA and may lock {} only: larger registrations fail with \"Cannot allocate memory\"", text::bytes(bytes)),
                    format!("prlimit --pid {pid} --memlock=unlimited; for good: memlock in /etc/security/limits.d or LimitMEMLOCK=infinity"),
                )
                .seen(format!("/proc/{pid}/limits, no CAP_IPC_LOCK in /proc/{pid}/status")),
            )
        })
        .collect()
}

fn boot(machine: &Machine) -> Check {
    const ID: &str = "limits.autoload";
    match modprobe::loaded_at_boot(machine.root, NAME) {
        Some(file) => Check::ok(ID, "the module is loaded at boot").seen(file),
        None => Check::warn(
            ID,
            "nothing loads the module at boot",
            "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",
        )
        .seen("no nvidia-peermem in modules-load.d or /etc/modules"),
    }
}

/// Builds that DKMS has given up.
fn dkms(machine: &Machine) -> Option<Check> {
    let dir = "/var/lib/dkms/nvidia-peermem-rust";
    let versions = machine.root.names(dir);
    let version = versions.iter().rfind(|name| name.starts_with(|c: char| c.is_ascii_digit()))?;
    let release = machine.release.as_deref()?;
    let built = machine.root.exists(&format!("{dir}/{version}/{release}"));
    Some(
        match built {
            true => Check::ok("limits.dkms", format!("DKMS has built version {version} for this kernel")),
            false => Check::warn(
                "limits.dkms",
                format!("DKMS knows version {version} and has not built it for kernel {release}"),
                format!("dkms install nvidia-peermem-rust/{version} -k {release}"),
            ),
        }
        .seen(dir),
    )
}
