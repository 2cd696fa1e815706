// SPDX-License-Identifier: GPL-2.0
//! What the kernel log says of hung tasks, Xids and NICs, beside this project's own lines.

use crate::check::Check;
use crate::machine::{Machine, NAME};
use crate::root::Missing;
use crate::text;

/// Functions of the RDMA core in which a free callback waits.
const WAITS: [&str; 4] =
    ["ib_invalidate_peer_memory", "ib_umem_activate_invalidation", "ib_invalidate_umem", "peer_umem_invalidate"];
/// Functions of the GPU driver and its clients that call back.
const CALLBACKS: [&str; 5] = [
    "nv_get_p2p_free_callback",
    "nv_mem_info_free_callback",
    "nv_p2p_mem_info_free_callback",
    "nvidia_p2p_free",
    "nvidia_peermem",
];

/// Xids after which the GPU does nothing until it is reset, with what they say.
const FATAL_XIDS: [(u32, &str); 7] = [
    (48, "double-bit ECC error"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (95, "uncontained memory error"),
    (119, "the GPU's own processor (GSP) does not answer"),
    (120, "error of the GPU's own processor (GSP)"),
    (143, "the GPU could not be initialized"),
];

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = hung(machine).into_iter().collect();
    checks.extend(xid(machine));
    checks.extend(mlx5(machine));
    checks.extend(unread(machine));
    checks
}

/// Says what of the log is not known. A recorded machine may have none.
fn unread(machine: &Machine) -> Option<Check> {
    const ID: &str = "log.read";
    let words = match &machine.log {
        Ok(_) if machine.log_cut => "the kernel log is long: only its end was read, so earlier lines are not known",
        Ok(_) => return None,
        Err(Missing::Denied) => {
            "only root may read the kernel log: hung tasks, Xids and refused dma-bufs in it are not known"
        }
        Err(_) if machine.root.is_live() => {
            "there is no kernel log here: hung tasks, Xids and refused dma-bufs are not known"
        }
        Err(_) => return None,
    };
    Some(Check::skip(ID, words).seen("/dev/kmsg"))
}

/// Returns the module that holds the callback, as the stacks name it or as it is loaded.
fn holder(machine: &Machine) -> &'static str {
    match machine.modules.contains_key("nv_peer_mem") {
        true => "nv_peer_mem",
        false => NAME,
    }
}

/// Tasks that wait in the RDMA core below a free callback, which holds the GPU driver's lock.
fn hung(machine: &Machine) -> Option<Check> {
    const ID: &str = "log.hung";
    let Some((task, evidence)) = waiting_now(machine, is_the_wait).or_else(|| hung_by_log(machine, is_the_wait)) else {
        return unbinding(machine).or_else(|| blocked(machine));
    };
    let module = holder(machine);
    let used = match machine.modules.get(module).and_then(|loaded| loaded.refcount).filter(|count| *count > 0) {
        Some(count) => format!("rmmod {module} cannot work (use count {count}), and would hang"),
        None => format!("rmmod {module} would hang"),
    };
    Some(
        Check::fail(
            ID,
            format!("{task} waits in the RDMA core below a free callback of {module}, with the GPU driver's lock held: every CUDA call hangs"),
            machine.setting.on_host(&format!(
                "reboot (or reset the NIC), as no kill ends that wait; {used}; afterwards load this project's module, or update the RDMA core"
            )),
        )
        .brief(format!("a free callback of {module} waits for ever: every CUDA call hangs"))
        .seen(evidence),
    )
}

/// A GPU that is taken from nvidia.ko while somebody pins its memory: the driver waits for its last user
/// with its lock held.
fn unbinding(machine: &Machine) -> Option<Check> {
    let (task, evidence) = waiting_now(machine, is_an_unbind).or_else(|| hung_by_log(machine, is_an_unbind))?;
    let pins = machine.registrations.as_ref().map_or(0, Vec::len);
    let who = match pins {
        0 => "whoever has the GPU open or pins its memory (fuser -v /dev/nvidia*; peermemctl list)".to_owned(),
        pins => format!("whoever pins its memory ({}: peermemctl list)", text::count(pins, "registration")),
    };
    Some(
        Check::fail(
            "log.hung",
            format!("{task} takes a GPU away from nvidia.ko, which waits for the last user of that GPU with its lock held: every CUDA call hangs"),
            machine.setting.on_host(&format!("end {who}; if the wait does not end then, reboot. End them before the next unbind")),
        )
        .brief("a GPU is taken away from nvidia.ko while somebody uses it: every CUDA call hangs")
        .seen(evidence),
    )
}

/// Tasks that wait in the GPU driver, where nothing tells who holds its lock.
fn blocked(machine: &Machine) -> Option<Check> {
    const MODULES: [&str; 4] = ["[nvidia]", "[nvidia_uvm]", "[nvidia_peermem]", "[nv_peer_mem]"];
    let in_driver = |stack: &str| MODULES.iter().any(|module| stack.contains(module));
    let (task, evidence) = hung_by_log(machine, in_driver)?;
    Some(
        Check::warn(
            "log.hung",
            format!("{task} waits in the GPU driver, and nothing that was read tells for whom"),
            machine.setting.on_host("as root, grep -l nvidia /proc/*/stack names the tasks that wait there; if nvidia-smi hangs, too, reboot"),
        )
        .seen(evidence),
    )
}

/// Returns a task whose stack shows a wait, as far as root may see that.
fn waiting_now(machine: &Machine, is_it: fn(&str) -> bool) -> Option<(String, String)> {
    let pids = machine.root.names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    for pid in pids {
        // Most tasks do not wait, which their state tells sooner than their stack.
        let status = machine.root.text(&format!("/proc/{pid}/status")).unwrap_or_default();
        if !status.lines().any(|line| line.starts_with("State:") && line.contains("D (")) {
            continue;
        }
        let stack = machine.root.text(&format!("/proc/{pid}/stack")).unwrap_or_default();
        if is_it(&stack) {
            let comm = machine.root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
            return Some((format!("process {pid} ({comm})"), format!("/proc/{pid}/stack")));
        }
    }
    None
}

/// Returns whether a stack is that of a task that takes a GPU away from nvidia.ko.
fn is_an_unbind(stack: &str) -> bool {
    ["nv_pci_remove", "nvidia_remove"].iter().any(|name| stack.contains(name))
}

fn is_the_wait(stack: &str) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| stack.contains(name));
    has(&WAITS) && (has(&CALLBACKS) || stack.contains("[nvidia]"))
}

/// Returns a task that the kernel reported as blocked with such a stack, and that may wait still.
fn hung_by_log(machine: &Machine, is_it: fn(&str) -> bool) -> Option<(String, String)> {
    const BLOCKED: &str = " blocked for more than ";
    let log = machine.log.as_ref().ok()?;
    let starts: Vec<usize> =
        log.iter().enumerate().filter(|(_, line)| line.contains(BLOCKED)).map(|(n, _)| n).collect();
    for (n, start) in starts.iter().enumerate().rev() {
        let end = starts.get(n + 1).copied().unwrap_or(log.len()).min(start + 60);
        let stack = log.get(*start..end)?.join("\n");
        let head = log.get(*start)?;
        let task = head.split("task ").nth(1).and_then(|rest| rest.split(BLOCKED).next()).unwrap_or("a task");
        let (comm, pid) = task.rsplit_once(':').unwrap_or((task, ""));
        // A task that has ended waits no more; where processes cannot be seen, the log stands.
        let seen = machine.root.exists(&format!("/proc/{pid}"))
            || !machine.root.exists("/proc/1/comm") && !machine.root.is_live();
        if is_it(&stack) && (seen || !crate::kernel::has_initial_pids(machine.root)) {
            return Some((format!("task {comm} ({pid})"), format!("kernel log: {head}")));
        }
    }
    None
}

/// Xids, the last of each GPU.
fn xid(machine: &Machine) -> Vec<Check> {
    const ID: &str = "log.xid";
    let mut found: Vec<(String, u32, String)> = Vec::new();
    for line in machine.log.iter().flatten() {
        // NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', ...
        let Some(rest) = line.split("Xid (PCI:").nth(1).filter(|_| line.contains("NVRM")) else { continue };
        let Some((gpu, rest)) = rest.split_once(')') else { continue };
        let number: String =
            rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        let Ok(number) = number.parse() else { continue };
        found.retain(|(other, ..)| other != gpu);
        found.push((gpu.to_owned(), number, line.clone()));
    }
    let check = |(gpu, number, line): (String, u32, String)| {
        let check = match FATAL_XIDS.iter().find(|(xid, _)| *xid == number) {
            Some((_, what)) => Check::warn(
                ID,
                format!("GPU {gpu} reported Xid {number} since the kernel was booted: {what}"),
                reset_gpu(machine, "that GPU"),
            ),
            None => Check::ok(ID, format!("GPU {gpu} reported Xid {number} since the kernel was booted: an application's fault, or one that is over")),
        };
        check.seen(format!("kernel log: {line}"))
    };
    found.into_iter().map(check).collect()
}

/// Finds what mlx5 says of its NICs' health.
fn mlx5(machine: &Machine) -> Option<Check> {
    let is_it = |line: &&String| {
        let words = [
            "health compromised",
            "Fatal error",
            "fatal sensor",
            "device's health",
            "assert_var",
            "health poll failed",
            "handling bad device",
        ];
        line.contains("mlx5_core") && words.iter().any(|word| line.contains(word))
    };
    let line = machine.log.iter().flatten().rev().find(is_it)?;
    let nic = line.split_ascii_whitespace().find(|word| crate::pci::is_address(word.trim_end_matches(':')));
    let nic = nic.map_or("a NIC", |nic| nic.trim_end_matches(':'));
    Some(
        Check::warn(
            "log.mlx5",
            format!("mlx5_core reported that {nic} is not healthy"),
            machine.setting.on_host(&format!(
                "devlink health show pci/{nic}; if it does not recover, reset the NIC (mlxfwreset) or reboot"
            )),
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Returns how a GPU is reset: nvidia-persistenced and all users hold it, and the reset is refused
/// until they are gone.
pub fn reset_gpu(machine: &Machine, which: &str) -> String {
    let live = machine.registrations.as_ref().map_or(0, Vec::len);
    let held = match live {
        0 => String::new(),
        live => format!(" ({} live: peermemctl list)", text::count(live, "registration")),
    };
    machine.setting.on_host(&format!(
        "systemctl stop nvidia-persistenced (or nvidia-smi -pm 0), end every user of {which}{held}: fuser -v /dev/nvidia*; then nvidia-smi -r -i N"
    ))
}
