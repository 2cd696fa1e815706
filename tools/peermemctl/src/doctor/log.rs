// SPDX-License-Identifier: GPL-2.0
//! What the kernel log says of hung tasks, Xids and NICs, beside this project's own lines.

use crate::check::Check;
use crate::machine::{Machine, NAME};
use crate::root::Missing;
use crate::text;

/// Functions of the RDMA core in which a free callback waits.
const WAITS: [&str; 4] =
    ["ib_invalidate_peer_memory", "ib_umem_activate_invalidation", "ib_invalidate_umem", "peer_umem_invalidate"];
/// Functions in which the GPU driver calls a client back, with its lock held.
const FREE_CALLBACKS: [&str; 3] =
    ["nv_get_p2p_free_callback", "nv_mem_info_free_callback", "nv_p2p_mem_info_free_callback"];
/// Other words of stacks below a client of the GPU driver.
const CLIENTS: [&str; 3] = ["nvidia_p2p_free", "nvidia_peermem", "[nvidia]"];

/// Xids after which the GPU does nothing until it is reset, with what they say: those for which NVIDIA's Xid
/// catalogue asks for a reset of the GPU. (46 and 62 were not looked up there.)
const FATAL_XIDS: [(u32, &str); 13] = [
    (46, "the GPU has stopped processing"),
    (48, "double-bit ECC error"),
    (62, "the GPU's own controller has halted"),
    (64, "a bad row of memory could not be replaced"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (95, "uncontained memory error"),
    (109, "a context of the GPU could not be switched"),
    (110, "security fault"),
    (119, "the GPU's own processor (GSP) does not answer"),
    (120, "error of the GPU's own processor (GSP)"),
    (140, "ECC error that was not recovered from"),
    (143, "the GPU could not be initialized"),
];
/// The Xid in which the driver says what brings the GPU back: "GPU recovery action changed from 0x0 (None) to
/// 0x2 (Node Reboot Required)", of which newer drivers write "OS Reboot".
const RECOVERY_XID: u32 = 154;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = hung(machine).into_iter().collect();
    checks.extend(fault(machine));
    checks.extend(xid(machine));
    checks.extend(NIC_WORDS.iter().filter_map(|(driver, words)| nic_health(machine, driver, words)));
    checks.extend(blocked_by_iommu(machine));
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
        return unbinding(machine).or_else(|| leaving(machine)).or_else(|| blocked(machine));
    };
    let module = holder(machine);
    let used = match machine.modules.get(module).and_then(|loaded| loaded.refcount).filter(|count| *count > 0) {
        Some(count) => format!("rmmod {module} cannot work (use count {count}), and would hang"),
        None => format!("rmmod {module} would hang"),
    };
    Some(
        Check::fail(
            ID,
            format!("{task} waits below a free callback of {module}, with the GPU driver's lock held: every CUDA call hangs"),
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

/// An rmmod that waits for the core, which waits for whoever has registered memory.
fn leaving(machine: &Machine) -> Option<Check> {
    let is_it = |stack: &str| stack.contains("ib_unregister_peer_memory_client");
    let (task, evidence) = waiting_now(machine, is_it).or_else(|| hung_by_log(machine, is_it))?;
    let module = holder(machine);
    Some(
        Check::warn(
            "log.hung",
            format!("{task} takes {module} out of the RDMA core, which waits for the end of its registrations"),
            machine.setting.on_host("end the programs that have registered GPU memory (peermemctl list; fuser -v /dev/infiniband/uverbs*); if the wait does not end then, reboot"),
        )
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
    has(&FREE_CALLBACKS) || has(&WAITS) && has(&CLIENTS)
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

/// A fault of the kernel, or a processor that does not come out of it, in a module that GPU memory goes
/// through.
fn fault(machine: &Machine) -> Option<Check> {
    const HEADS: [(&str, &str); 7] = [
        ("BUG: soft lockup", "a processor did not come out of"),
        ("watchdog: Watchdog detected hard LOCKUP", "a processor did not come out of"),
        ("BUG: kernel NULL pointer", "the kernel faulted in"),
        ("BUG: unable to handle", "the kernel faulted in"),
        ("Unable to handle kernel", "the kernel faulted in"),
        ("general protection fault", "the kernel faulted in"),
        ("Oops", "the kernel faulted in"),
    ];
    const MODULES: [&str; 7] =
        ["nvidia_peermem", "nv_peer_mem", "nvidia", "nvidia_uvm", "ib_core", "ib_uverbs", "mlx5_ib"];
    let mut last = None;
    let mut found = None;
    for line in machine.log.iter().flatten() {
        if let Some((_, what)) = HEADS.iter().find(|(head, _)| line.contains(head)) {
            last = Some((*what, line));
        }
        // The first after it says where: "RIP: 0010:nv_mem_dma_map+0x15/0x30 [nvidia_peermem]".
        let says_where = line.contains("RIP:") || line.contains("pc : ");
        if let Some((what, head)) = last.filter(|_| says_where) {
            let module = MODULES.iter().find(|module| line.contains(&format!("[{module}]")));
            found = module.map(|module| (what, head, line, *module)).or(found);
            last = None;
        }
    }
    let (what, head, at, module) = found?;
    Some(
        Check::warn(
            "log.fault",
            format!("{what} {module}: locks that it held are held for ever"),
            machine.setting.on_host(&format!("reboot; these lines belong into a report to the makers of {module}")),
        )
        .seen(format!("kernel log: {head}"))
        .seen(format!("kernel log: {at}")),
    )
}

/// Returns what the driver says of a GPU's way back in an Xid of its own, in its words.
fn recovery(line: &str) -> Option<&str> {
    line.rsplit_once(" to ")?.1.split_once('(')?.1.split(')').next()
}

/// Xids: of each GPU the last that needs a reset, unless the driver took that back, or the last of all.
fn xid(machine: &Machine) -> Vec<Check> {
    const ID: &str = "log.xid";
    struct Last<'a> {
        gpu: &'a str,
        number: u32,
        fatal: Option<(u32, String)>,
        line: &'a str,
    }
    let mut found: Vec<Last> = Vec::new();
    for line in machine.log.iter().flatten() {
        // NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', ...
        let Some(rest) = line.split("Xid (PCI:").nth(1).filter(|_| line.contains("NVRM")) else { continue };
        let Some((gpu, rest)) = rest.split_once(')') else { continue };
        let number: String =
            rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        let Ok(number) = number.parse::<u32>() else { continue };
        let known = FATAL_XIDS.iter().find(|(xid, _)| *xid == number);
        let fatal = known.map(|(_, what)| (*what).to_owned()).or_else(|| {
            let action = recovery(line).filter(|_| number == RECOVERY_XID)?;
            (action != "None").then(|| format!("the driver says: {action}"))
        });
        let taken_back = number == RECOVERY_XID && recovery(line) == Some("None");
        let at = found.iter().position(|last| last.gpu == gpu);
        let before = at.map(|at| found.remove(at));
        let last = match (fatal, before) {
            (Some(what), _) => Last { gpu, number, fatal: Some((number, what)), line },
            (None, Some(before)) if before.fatal.is_some() && !taken_back => before,
            (None, _) => Last { gpu, number, fatal: None, line },
        };
        found.push(last);
    }
    let check = |last: Last| {
        let gpu = last.gpu;
        let check = match last.fatal {
            Some((xid, what)) => {
                let reset = reset_gpu(machine, "that GPU");
                let fix = match what.contains("Reboot") {
                    true => machine.setting.on_host("reboot, as the driver asks for"),
                    false => reset,
                };
                Check::warn(ID, format!("GPU {gpu} reported Xid {xid} since the kernel was booted: {what}"), fix)
            }
            None => Check::ok(
                ID,
                format!(
                    "GPU {gpu} reported Xid {} since the kernel was booted: an application's fault, or one that is over",
                    last.number
                ),
            ),
        };
        check.seen(format!("kernel log: {}", last.line))
    };
    found.into_iter().map(check).collect()
}

/// Drivers of NICs, with words by which they say that a NIC is not healthy.
const NIC_WORDS: [(&str, &[&str]); 4] = [
    (
        "mlx5_core",
        &[
            "health compromised",
            "Fatal error",
            "fatal sensor",
            "device's health",
            "assert_var",
            "health poll failed",
            "handling bad device",
            "Will cause a leak of a command resource",
        ],
    ),
    ("bnxt_en", &["firmware fatal", "Firmware not responding", "heartbeat"]),
    ("bnxt_re", &["timed out", "Timeout", "FW stalled"]),
    ("irdma", &["CQP timeout", "not responding"]),
];

/// Finds what the driver of a NIC last said of its health.
fn nic_health(machine: &Machine, driver: &str, words: &[&str]) -> Option<Check> {
    let is_it = |line: &&String| line.contains(driver) && words.iter().any(|word| line.contains(word));
    let line = machine.log.iter().flatten().rev().find(is_it)?;
    let nic =
        line.split_ascii_whitespace().map(|word| word.trim_end_matches(':')).find(|word| crate::pci::is_address(word));
    let (name, at) = (nic.unwrap_or("a NIC"), nic.map_or(String::new(), |nic| format!(" pci/{nic}")));
    let reset = if driver == "mlx5_core" { "reset the NIC (mlxfwreset)" } else { "reset the NIC" };
    Some(
        Check::warn(
            if driver == "mlx5_core" { "log.mlx5" } else { "log.nic" },
            format!("{driver} reported that {name} is not healthy"),
            machine.setting.on_host(&format!("devlink health show{at}; if it does not recover, {reset} or reboot")),
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Finds accesses of a GPU or a NIC that the IOMMU blocked.
fn blocked_by_iommu(machine: &Machine) -> Option<Check> {
    const WORDS: [&str; 4] = ["DMAR: [DMA", "AMD-Vi: Event logged", "IO_PAGE_FAULT", "arm-smmu"];
    let of_rdma = machine.rdma.iter().filter_map(|nic| Some((nic.name.clone(), nic.pci.clone()?)));
    let of_gpu = machine.gpus().into_iter().map(|gpu| (format!("GPU {}", gpu.address), gpu.address.clone()));
    let devices: Vec<(String, String)> = of_rdma.chain(of_gpu).collect();
    let of = |line: &String| {
        if !WORDS.iter().any(|word| line.contains(word)) {
            return None;
        }
        // DMAR leaves out the domain 0000.
        let is_it = |address: &str| {
            line.contains(address)
                || address.strip_prefix("0000:").is_some_and(|short| line.contains(&format!("[{short}]")))
        };
        let (name, _) = devices.iter().find(|(_, address)| is_it(address))?;
        Some((name.clone(), line.clone()))
    };
    let (name, line) = machine.log.iter().flatten().rev().find_map(of)?;
    Some(
        Check::warn(
            "log.iommu",
            format!("the IOMMU blocked an access of {name}: transfers between GPUs and NICs get lost where it does"),
            format!("{}, unless a program freed memory that was in use", machine.setting.identity_iommu()),
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
