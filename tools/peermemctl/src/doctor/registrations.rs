// SPDX-License-Identifier: GPL-2.0
//! Section 6: what is registered now, and what was refused lately.

use super::{cure, log};
use crate::check::Check;
use crate::machine::Machine;
use crate::peermem::{self, Failure, Registration, UNKNOWN};
use crate::root::Missing;
use crate::text;
use crate::way;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The state of a registration whose key the NIC driver has not destroyed (docs/proc.md).
const LEFT_KEY: &str = "key_not_destroyed";

/// A NIC driver that destroys keys needs less than this for one.
const DESTROYS_IN: Duration = Duration::from_secs(1);

/// Refusals older than this are history.
const RECENT_S: f64 = 3600.0;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    match (&machine.registrations, &machine.loaded) {
        (_, None) => return vec![Check::skip("registrations.live", "none: nvidia_peermem is not loaded")],
        (Ok(rows), _) => {
            checks.extend(live(rows));
            checks.extend(left_keys(machine, rows));
        }
        (Err(missing), _) => {
            checks.push(unread("registrations.live", *missing));
            checks.extend(counted_orphans(machine));
        }
    }
    match &machine.failures {
        Ok(rows) => checks.extend(refusals(machine, rows)),
        Err(missing) => checks.push(unread("refusals.recent", *missing)),
    }
    checks
}

fn unread(id: &'static str, missing: Missing) -> Check {
    match missing {
        Missing::Denied => Check::skip(id, "only root may see registrations and refusals: run doctor as root"),
        Missing::Unknown => Check::skip(id, UNKNOWN),
        Missing::Absent => {
            Check::skip(id, "the loaded module does not tell").seen(format!("no {}", crate::peermem::DIR))
        }
    }
}

fn live(rows: &[Registration]) -> Vec<Check> {
    let bytes = rows.iter().map(|row| row.pinned_bytes).sum();
    let mut by_process: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    for row in rows {
        *by_process.entry((row.pid, row.comm.as_str())).or_default() += row.pinned_bytes;
    }
    let most = by_process.iter().max_by_key(|(_, bytes)| **bytes);
    let mut checks = vec![Check::ok(
        "registrations.live",
        format!(
            "{} of {}, {} pinned",
            text::count(rows.len(), "registration"),
            text::count(by_process.len(), "process"),
            text::bytes(bytes)
        ),
    )];
    if let (Some(((pid, comm), bytes)), Some(check)) = (most, checks.first_mut()) {
        check.evidence.push(format!("most: process {pid} ({comm}), {}", text::bytes(*bytes)));
        check.evidence.extend(who_pins(rows));
    }
    if rows.iter().any(|row| row.process_alive.is_none()) {
        let message =
            "which of these processes are gone cannot be seen from inside a container: their numbers are the host's";
        checks.push(
            Check::skip("registrations.stale", message).seen("the pid namespace of /proc is not the initial one"),
        );
    }
    let is_stale = |row: &&Registration| row.process_alive == Some(false) && row.state != LEFT_KEY;
    let stale: Vec<&Registration> = rows.iter().filter(is_stale).collect();
    if let Some(first) = stale.first() {
        let held = stale.iter().map(|row| row.pinned_bytes).sum();
        checks.push(
            Check::warn(
                "registrations.stale",
                format!(
                    "{} ({}) without the process that made it, such as process {} ({})",
                    text::count(stale.len(), "registration"),
                    text::bytes(held),
                    first.pid,
                    first.comm
                ),
                "end what still holds their RDMA device open: fuser -v /dev/infiniband/uverbs*; where nobody does, \
                 the NIC's driver has lost them, and they stay until reboot",
            )
            .seen("pid in /proc/driver/nvidia-peermem/registrations, and none of that number in /proc"),
        );
    }
    checks.extend(orphans(rows));
    checks
}

/// Names, for each GPU whose memory is pinned, who has to end before it is reset.
fn who_pins(rows: &[Registration]) -> Vec<String> {
    let mut by_gpu: BTreeMap<(&str, &str), BTreeSet<(u32, &str)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.pinned_bytes > 0) {
        let gpu = row.gpu.as_deref().unwrap_or("of unknown address");
        by_gpu.entry((gpu, &row.kind)).or_default().insert((row.pid, &row.comm));
    }
    by_gpu
        .into_iter()
        .map(|((gpu, kind), processes)| {
            let why = match kind {
                "persistent" => "before you reset it, change its MIG mode or unbind it from nvidia; an unbind would wait for ever",
                _ => "before you reset it; nothing else forbids that, and the NIC would reach whatever lies there afterwards",
            };
            let names: Vec<String> = processes.iter().map(|(pid, comm)| format!("{pid} ({comm})")).collect();
            format!(
                "GPU {gpu} has {kind} pins of process {}, to be ended {why}",
                names.join(", ")
            )
        })
        .collect()
}

/// Finds registrations whose key the NIC driver has failed to destroy: one finding for each process.
fn left_keys(machine: &Machine, rows: &[Registration]) -> Vec<Check> {
    let is_left = |row: &&Registration| row.state == LEFT_KEY;
    let mut left: Vec<Registration> = rows.iter().filter(is_left).cloned().collect();
    // Each deregistration is in that state for a moment.
    if !left.is_empty() && machine.root.is_live() {
        std::thread::sleep(DESTROYS_IN);
        let now = peermem::registrations(machine.root).unwrap_or_default();
        let same = |a: &Registration, b: &Registration| (a.pid, a.va, a.length) == (b.pid, b.va, b.length);
        left.retain(|row| now.iter().filter(is_left).any(|other| same(row, other)));
    }
    let mut by_process: BTreeMap<(u32, &str), Vec<&Registration>> = BTreeMap::new();
    for row in &left {
        by_process.entry((row.pid, row.comm.as_str())).or_default().push(row);
    }
    by_process
        .into_iter()
        .map(|((pid, comm), rows)| {
            let bytes = text::bytes(rows.iter().map(|row| row.pinned_bytes).sum());
            let what = text::count(rows.len(), "registration");
            let (until, fix) = match rows.iter().any(|row| row.process_alive == Some(false)) {
                true => (
                    "until reboot, as the process has ended",
                    "reboot, and report the NIC driver's lines in journalctl -k to its vendor".to_owned(),
                ),
                false => (
                    "until the NIC is reset",
                    format!(
                        "while process {pid} lives, unbind and bind its NIC's driver or reset the NIC (ls -l \
                         /proc/{pid}/fd | grep uverbs names it), so that the driver destroys its keys"
                    ),
                ),
            };
            Check::warn(
                "registrations.left_key",
                format!(
                    "the NIC driver could not destroy the keys of {what} ({bytes}) of process {pid} ({comm}), so that \
                     memory stays pinned {until}"
                ),
                fix,
            )
            .seen("state=key_not_destroyed in /proc/driver/nvidia-peermem/registrations")
        })
        .collect()
}

/// Finds pins that wait for their owner, which lives, as far as that can be told. Makes one finding
/// for each process.
fn orphans(rows: &[Registration]) -> Vec<Check> {
    let mut by_process: BTreeMap<(u32, &str), Vec<&Registration>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.process_alive != Some(false) && row.state == "orphan") {
        by_process.entry((row.pid, row.comm.as_str())).or_default().push(row);
    }
    by_process
        .into_iter()
        .map(|((pid, comm), left)| {
            let place = left.first().map_or("", |row| if row.process_alive.is_none() { "on the host, " } else { "" });
            Check::warn(
                "registrations.orphan",
                format!(
                    "process {pid} ({comm}) is left with {} ({}) that another process deregistered; {} when the owner registers again, frees the memory or ends",
                    text::count(left.len(), "pin"),
                    text::bytes(left.iter().map(|row| row.pinned_bytes).sum()),
                    if left.len() == 1 { "it ends" } else { "they end" }
                ),
                format!("{place}end process {pid}: kill {pid}"),
            )
            .seen("state=orphan in /proc/driver/nvidia-peermem/registrations")
        })
        .collect()
}

/// Reports pins that another process deregistered, by the counters, which everybody may read.
fn counted_orphans(machine: &Machine) -> Option<Check> {
    let orphans = machine.stats.as_ref().ok()?.number("total.orphans").filter(|orphans| *orphans > 0)?;
    let message = format!("{} that another process than its owner deregistered", text::count(orphans, "pin"));
    let fix = "as root, peermemctl doctor names the owner to end";
    Some(Check::warn("registrations.orphan", message, fix).seen("total.orphans in /proc/driver/nvidia-peermem/stats"))
}

/// Says what fixes a refusal, by its reason in docs/proc.md.
fn fix(machine: &Machine, reason: &str) -> String {
    let setting = &machine.setting;
    let fixed = match reason {
        "not_supported" => "use dma-buf (NCCL_DMABUF_ENABLE=1), or give the VM the whole GPU instead of a vGPU or MIG slice",
        "not_persistent" | "persistent_fault" => {
            let change = match setting.modules_in_containers() {
                true => setting.change_parameters("write revocable_fallback=1 in"),
                false => setting.change_parameters("write options nvidia-peermem revocable_fallback=1 in"),
            };
            return format!("use dma-buf (NCCL_DMABUF_ENABLE=1), or {change}");
        }
        "longer_than_bar" => return format!("register a part of it; or {}", setting.larger_bar()),
        "busy" => "wait for the GPU's reset or MIG change to end, then start the application again",
        "no_gpu" => {
            return format!("nvidia-smi: a GPU that fell off the bus is back only after a reboot or a reset: {}", log::reset_gpu(machine, "that GPU"))
        }
        "out_of_bar" => {
            return format!("end or shrink what holds BAR1 (peermemctl list); or {}", setting.larger_bar())
        }
        "provider_fault" => {
            return format!("journalctl -k | grep -E 'NVRM|Xid'; then {}", log::reset_gpu(machine, "that GPU"))
        }
        "leaves_allocation" => {
            let change = setting.change_parameters("take persistent_api_support=0 out of");
            return format!("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False; or, as persistent pins serve several allocations, {change}");
        }
        "hole" => "map memory at the address that peermemctl failures names, with gpuDirectRDMACapable=1 in cuMemCreate; or register what lies before and behind it",
        "unproven" => "peermemctl list: BAR1 or kernel memory is full; end what holds it",
        "freed" => "a bug of the application: it frees the buffer while it registers it",
        "outside_bar" => {
            let change = setting.change_parameters("take persistent_api_support=0 out of");
            return format!("use dma-buf (NCCL_DMABUF_ENABLE=1); or {change}");
        }
        "no_device" => "use a hardware RDMA device (peermemctl topo lists them)",
        "not_pci" => "use a NIC that the GPU can reach: peermemctl topo",
        "topology" => return format!("use a NIC that the GPU can reach (peermemctl topo); or {}", way::topology_cure(machine)),
        "dma_mapping" => {
            return format!("{}; see the DMAR, AMD-Vi or SMMU lines in the kernel log", machine.identity_iommu())
        }
        "no_memory" => "free memory of the host",
        "too_many_entries" => "register smaller pieces",
        "core_order" => "update the RDMA core, and report its version to this project",
        _ if cure::package_command(machine).is_some() => "update the package nvidia-peermem-rust-dkms to fit the GPU driver",
        _ => return format!("update the module to fit the GPU driver: {}", machine.install_it()),
    };
    fixed.to_owned()
}

fn refusals(machine: &Machine, rows: &[Failure]) -> Vec<Check> {
    let newest = rows.iter().map(|row| row.time).fold(0.0, f64::max);
    // For a recorded tree, the time of its last refusal is now.
    let now = match machine.root.is_live() {
        true => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(newest, |since| since.as_secs_f64()),
        false => newest,
    };
    let mut by_reason: BTreeMap<&str, (usize, &Failure)> = BTreeMap::new();
    for row in rows.iter().filter(|row| now - row.time < RECENT_S) {
        by_reason
            .entry(&row.reason)
            .and_modify(|(count, last)| (*count, *last) = (*count + 1, row))
            .or_insert((1, row));
    }
    if by_reason.is_empty() {
        return vec![Check::ok("refusals.recent", "no registration of GPU memory was refused in the last hour")];
    }
    by_reason
        .into_iter()
        .map(|(reason, (count, last))| {
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            Check::warn(
                "refusals.recent",
                format!("refused {times} in the last hour: {}", last.text),
                fix(machine, reason),
            )
            .seen(format!(
                "last: process {} ({}), {} at {:#x}, {}, reason {reason}",
                last.pid,
                last.comm,
                text::bytes(last.length),
                last.va,
                text::errno(last.errno),
            ))
        })
        .collect()
}
