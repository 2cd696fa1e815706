// SPDX-License-Identifier: GPL-2.0
//! Reads what the kernel log says of hung tasks, Xids, PCIe and NICs, beside this project's own lines.

use super::{fabric, hardware};
use crate::check::Check;
use crate::log_words::{
    blocked_task, is_pcie_error, Nic, ACS_VIOLATION, FAILED_STATUS, FAULTED, FAULTS, FREE_CALLBACK, IOMMU, LOST_GPU,
    MAKES_KEY, NICS, OF_PROGRAM, PCIE_RECOVERED, SMMU_NAMELESS, STUCK, TAKEN_AWAY, WARNING, WHERE,
};
use crate::machine::{Machine, NAME, OLD_MODULE};
use crate::module_file::{self, ModuleFile};
use crate::pci::{self, Device, Iommu};
use crate::rdma;
use crate::root::{Missing, Root};
use crate::text;
use crate::unload;
use std::collections::{BTreeMap, BTreeSet};

/// Functions of the RDMA core in which a free callback waits.
const WAITS: [&str; 4] =
    ["ib_invalidate_peer_memory", "ib_umem_activate_invalidation", "ib_invalidate_umem", "peer_umem_invalidate"];
/// Functions in which the GPU driver calls a client back, with its lock held.
const FREE_CALLBACKS: [&str; 3] =
    ["nv_get_p2p_free_callback", "nv_mem_info_free_callback", "nv_p2p_mem_info_free_callback"];
/// Other words of stacks below a client of the GPU driver, and its module.
const CLIENTS: [&str; 2] = ["nvidia_p2p_free", "nvidia_peermem"];
const DRIVER: &str = "nvidia";

// The modules that GPU memory goes through: the GPU driver's, those that it calls back, and those of RDMA.
const OF_DRIVER: [&str; 6] = [DRIVER, "nvidia_uvm", "nvidia_modeset", "nvidia_drm", NAME, OLD_MODULE];
const GDRCOPY: &str = "gdrdrv";
const GPUDIRECT_STORAGE: &str = "nvidia_fs";
const CALLED_BACK: [&str; 2] = [GDRCOPY, GPUDIRECT_STORAGE];
const OF_RDMA: [&str; 22] = [
    "ib_core",
    "ib_uverbs",
    "rdma_cm",
    "mlx5_ib",
    "mlx5_core",
    "mlx4_ib",
    "mlx4_core",
    "bnxt_re",
    "bnxt_en",
    "ib_peer_mem",
    "irdma",
    "ice",
    "i40e",
    "idpf",
    "efa",
    "efa_nv_peermem",
    "erdma",
    "mana_ib",
    "mana",
    "ionic_rdma",
    "ionic",
    "hns_roce_hw_v2",
];

/// The action that NVIDIA's Xid catalogue asks for at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asks {
    /// The catalogue has RESET_GPU.
    Reset,
    /// The catalogue has RESTART_BM.
    Reboot,
    /// The catalogue has RESTART_VM.
    Guest,
    /// The catalogue has a workflow, which may end in a reset.
    Workflow(&'static str),
    /// The catalogue has CHECK_MECHANICALS.
    Power,
}

/// Xids after which the GPU or its links do nothing until somebody acts, with what they say, by the column
/// "Immediate Action" of NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
/// as components/accelerator/nvidia/xid/catalog_generated.go of leptonai/gpud has it).
const FATAL_XIDS: [(u32, &str, Asks); 26] = [
    (46, "the GPU has stopped processing", Asks::Reset),
    (48, "double-bit ECC error", Asks::Workflow("WORKFLOW_XID_48")),
    (54, "the auxiliary power of the board is not connected", Asks::Power),
    (62, "the GPU's own controller has halted", Asks::Reset),
    (64, "a bad row of memory could not be remapped", Asks::Reset),
    (74, "NVLink error", Asks::Workflow("WORKFLOW_NVLINK_ERR")),
    (FALLEN, "the GPU has fallen off the bus", Asks::Reboot),
    (95, "uncontained memory error", Asks::Reset),
    (109, "a context of the GPU could not be switched", Asks::Reset),
    (110, "security fault", Asks::Reset),
    (119, "the GPU's own processor (GSP) does not answer", Asks::Reset),
    (120, "error of the GPU's own processor (GSP)", Asks::Reset),
    (136, "the training of a link failed", Asks::Reset),
    (140, "ECC error that was not recovered from", Asks::Reset),
    (143, "the GPU could not be initialized", Asks::Reset),
    (144, "NVLink error (SAW)", NVLINK5),
    (145, "NVLink error (RLW)", NVLINK5),
    (146, "NVLink error (TLW)", NVLINK5),
    (147, "NVLink error (TREX)", NVLINK5),
    (148, "NVLink error (NVLPW_CTRL)", NVLINK5),
    (149, "NVLink error (NETIR)", NVLINK5),
    (150, "NVLink error (MSE)", NVLINK5),
    (151, "a key of confidential computing could not be changed", Asks::Guest),
    (155, "NVLink error that software found", Asks::Reset),
    (156, "a part of the GPU has to be retired", Asks::Reset),
    (158, "fatal timeout of the GPU", Asks::Reset),
];
/// The Xid of a GPU that has fallen off the bus.
const FALLEN: u32 = 79;
const NVLINK5: Asks = Asks::Workflow("WORKFLOW_NVLINK5_ERR");
/// The Xids for which that column has RESTART_APP, IGNORE, or another Xid that comes with them. Each
/// pair is the first and the last of a range.
const HARMLESS_XIDS: [(u32, u32); 24] = [
    (8, 8),
    (11, 11),
    (13, 14),
    (25, 25),
    (31, 32),
    (37, 41),
    (43, 45),
    (60, 60),
    (63, 63),
    (66, 72),
    (75, 77),
    (80, 80),
    (82, 86),
    (88, 89),
    (92, 94),
    (96, 108),
    (121, 121),
    (126, 135),
    (137, 137),
    (139, 139),
    (141, 141),
    (152, 154),
    (157, 157),
    (160, 161),
];
/// The Xid in which the driver says what brings the GPU back: "GPU recovery action changed from 0x0 (None) to
/// 0x2 (Node Reboot Required)", of which newer drivers write "OS Reboot".
const RECOVERY_XID: u32 = 154;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = hung(machine).into_iter().collect();
    checks.extend(fault(machine));
    checks.extend(lost_gpu(machine));
    checks.extend(refused_by_acs(machine));
    checks.extend(pcie_error(machine));
    checks.extend(xid(machine));
    checks.extend(switch_error(machine));
    checks.extend(other_version(machine));
    checks.extend(nic_health(machine));
    checks.extend(refused_key(machine));
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

/// A task that waits.
#[derive(Clone)]
struct Hung {
    task: String,
    stack: String,
    /// The place where that was read.
    evidence: String,
}

/// Returns the module that holds the callback, as the stack names it or as it is loaded; `None` where neither tells.
fn holder<'a>(machine: &Machine, stack: &'a str) -> Option<&'a str> {
    let has = |words: &[&str]| words.iter().any(|word| stack.contains(word));
    let of_peers = [NAME, OLD_MODULE].into_iter().find(|module| names(stack, module));
    let other = || client(stack).filter(|_| !has(&WAITS));
    let is_loaded = |module: &&str| machine.modules.contains_key(*module);
    let loaded = || [OLD_MODULE, NAME].into_iter().find(is_loaded).filter(|_| !CALLED_BACK.iter().any(is_loaded));
    // The core waits in the callback of one that is its client.
    of_peers.or_else(other).or_else(loaded).or_else(|| has(&WAITS).then_some(NAME))
}

/// Returns the module that nvidia.ko calls back in a stack, whose innermost function comes first.
fn client(stack: &str) -> Option<&str> {
    let lines: Vec<&str> = stack.lines().filter(|line| !line.contains("? ")).collect();
    let is_called = |line: &str| ["free", "callback", "_cb"].iter().any(|word| line.contains(word));
    lines.windows(2).find_map(|pair| {
        let [inner, outer] = pair else { return None };
        let module = module_of(inner).filter(|module| !OF_DRIVER.contains(module))?;
        (names(outer, DRIVER) && is_called(inner)).then_some(module)
    })
}

/// Returns the module of a function in a line of a stack.
fn module_of(line: &str) -> Option<&str> {
    let (_, rest) = line.rsplit_once('[')?;
    rest.split([']', ' ']).next().filter(|name| !name.is_empty() && !name.starts_with('<'))
}

/// Finds tasks that wait below a free callback, which holds the GPU driver's lock.
fn hung(machine: &Machine) -> Option<Check> {
    const ID: &str = "log.hung";
    let now = waiting_now(machine);
    let waits = |is_it: fn(&str) -> bool| waiting(&now, is_it).or_else(|| hung_by_log(machine, is_it));
    let Some(Hung { task, stack, evidence }) = waits(is_the_wait) else {
        return unbinding(machine, waits(is_an_unbind))
            .or_else(|| leaving(machine, waits(is_a_leave)))
            .or_else(|| taken_away(machine))
            .or_else(|| blocked(machine))
            .or_else(|| blocked_in_nic(machine));
    };
    let holder = holder(machine, &stack);
    let module = holder.unwrap_or("a client of nvidia.ko that nothing names");
    let used = match machine.modules.get(module).and_then(|loaded| loaded.refcount).filter(|count| *count > 0) {
        Some(count) => format!("rmmod {module} cannot work (use count {count}), and would hang"),
        None => format!("rmmod {module} would hang"),
    };
    const REBOOT: &str = "reboot, as no kill ends that wait";
    let fix = match holder {
        None => format!("{REBOOT}; the whole stack names the module: update that afterwards"),
        Some(NAME | OLD_MODULE) => format!(
            "reboot (or reset the NIC), as no kill ends that wait; {used}; afterwards load this project's module, or update the RDMA core"
        ),
        Some(GDRCOPY) => format!("{REBOOT}; {used}; afterwards update GDRCopy, which brings {module}"),
        Some(GPUDIRECT_STORAGE) => {
            format!("{REBOOT}; {used}; afterwards update GPUDirect Storage (package nvidia-fs), which brings {module}")
        }
        Some(_) => format!("{REBOOT}; {used}; afterwards update {module}"),
    };
    Some(
        Check::fail(
            ID,
            format!("{task} waits below a free callback of {module}, with the GPU driver's lock held: every CUDA call hangs"),
            machine.setting.on_host(&fix),
        )
        .brief(format!("a free callback of {module} waits for ever: every CUDA call hangs"))
        .seen(evidence),
    )
}

/// Reports that a GPU is being taken from nvidia.ko while somebody pins its memory: the driver
/// waits for the last user of the GPU with its lock held.
fn unbinding(machine: &Machine, wait: Option<Hung>) -> Option<Check> {
    let Hung { task, evidence, .. } = wait?;
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

/// Reports an rmmod that waits for the core, which waits for everybody who has registered memory.
fn leaving(machine: &Machine, wait: Option<Hung>) -> Option<Check> {
    let Hung { task, stack, evidence } = wait?;
    let module = holder(machine, &stack).unwrap_or(NAME);
    Some(
        Check::warn(
            "log.hung",
            format!("{task} takes {module} out of the RDMA core, which waits for the end of its registrations"),
            machine.setting.on_host("end the programs that have registered GPU memory (peermemctl list; fuser -v /dev/infiniband/uverbs*); if the wait does not end then, reboot"),
        )
        .seen(evidence),
    )
}

/// Finds tasks that wait in the GPU driver, where nothing tells who holds its lock.
fn blocked(machine: &Machine) -> Option<Check> {
    let in_driver = |stack: &str| OF_DRIVER.iter().chain(&CALLED_BACK).any(|module| names(stack, module));
    let Hung { task, stack, evidence } = hung_by_log(machine, in_driver)?;
    let innermost = stack.lines().find(|line| in_driver(line)).and_then(module_of);
    let place = innermost.filter(|module| CALLED_BACK.contains(module)).unwrap_or("the GPU driver");
    Some(
        Check::warn(
            "log.hung",
            format!("{task} waits in {place}, and nothing that was read tells for whom"),
            machine.setting.on_host("as root, grep -l nvidia /proc/*/task/*/stack names the tasks that wait there; if nvidia-smi hangs, too, reboot"),
        )
        .seen(evidence),
    )
}

/// Finds a GPU that nvidia.ko was to give up while somebody used it, by its own line in the kernel log. The driver
/// waits for the last user, and nothing tells when that is over.
fn taken_away(machine: &Machine) -> Option<Check> {
    let of = |line: &String| {
        let address = line.split_once(TAKEN_AWAY)?.1.split_ascii_whitespace().next()?;
        // A GPU that has a driver was bound again.
        let is_bound = machine.pci(address).is_some_and(|gpu| gpu.driver.is_some());
        (line.contains("NVRM") && !is_bound).then(|| (address.to_owned(), line.clone()))
    };
    let (address, line) = machine.log.iter().flatten().rev().find_map(of)?;
    Some(
        Check::warn(
            "log.hung",
            format!("GPU {address} was taken away from nvidia.ko while somebody used it: until the last user has gone nvidia.ko waits, perhaps for ever, and CUDA calls with it"),
            machine.setting.on_host("end whoever has the GPU open or pins its memory (fuser -v /dev/nvidia*; peermemctl list); if nvidia-smi hangs then, reboot"),
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Finds a task that waits in the driver of a NIC, where nothing tells for whom.
fn blocked_in_nic(machine: &Machine) -> Option<Check> {
    let modules: Vec<&str> = OF_RDMA.into_iter().filter(|module| is_of_rdma(machine, module)).collect();
    let in_driver = |stack: &str| modules.iter().any(|module| names(stack, module));
    let Hung { task, evidence, .. } = hung_by_log(machine, in_driver)?;
    Some(
        Check::warn(
            "log.hung",
            format!("{task} waits in the RDMA core or the driver of a NIC, and nothing that was read tells for whom"),
            machine.setting.on_host("end the programs that have the NIC open (fuser -v /dev/infiniband/uverbs*); devlink health show tells whether it answers; if the wait does not end, reboot"),
        )
        .seen(evidence),
    )
}

/// Returns all tasks of /proc, each number with its folder: a process has one task for each of its threads.
fn tasks(root: &Root) -> impl Iterator<Item = (String, String)> + '_ {
    let numbers = move |folder: &str| {
        let names = root.names(folder).into_iter();
        names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    numbers("/proc").flat_map(move |pid| {
        let folder = format!("/proc/{pid}");
        let threads = numbers(&format!("{folder}/task")).filter(|thread| *thread != pid);
        let threads: Vec<_> = threads.map(|thread| (thread.clone(), format!("{folder}/task/{thread}"))).collect();
        std::iter::once((pid, folder)).chain(threads)
    })
}

/// Returns whether a task cannot be woken: state D. `None` where that cannot be read.
fn cannot_be_woken(machine: &Machine, dir: &str) -> Option<bool> {
    let status = machine.root.text(&format!("{dir}/status")).ok()?;
    let state = status.lines().find_map(|line| line.strip_prefix("State:"))?;
    Some(state.contains("D ("))
}

/// Returns the tasks that cannot be woken with their stacks, which root may read. Most tasks do not wait so,
/// which their state tells sooner than their stack.
fn waiting_now(machine: &Machine) -> Vec<Hung> {
    if machine.root.text("/proc/self/stack") == Err(Missing::Denied) {
        return Vec::new();
    }
    let of = |(tid, dir): (String, String)| {
        let file = format!("{dir}/stack");
        let stack = machine.root.text(&file).ok()?;
        let comm = machine.root.line(&format!("{dir}/comm")).unwrap_or_default();
        let what = if dir.contains("/task/") { "thread" } else { "process" };
        Some(Hung { task: format!("{what} {tid} ({comm})"), stack, evidence: file })
    };
    tasks(machine.root).filter(|(_, dir)| cannot_be_woken(machine, dir) == Some(true)).filter_map(of).collect()
}

/// Returns the first task with such a stack.
fn waiting(now: &[Hung], is_it: fn(&str) -> bool) -> Option<Hung> {
    now.iter().find(|hung| is_it(&hung.stack)).cloned()
}

/// Returns whether a stack is that of a task that takes a GPU away from nvidia.ko.
fn is_an_unbind(stack: &str) -> bool {
    ["nv_pci_remove", "nvidia_remove"].iter().any(|name| stack.contains(name))
}

/// Returns whether a stack is that of an rmmod that waits for the core.
fn is_a_leave(stack: &str) -> bool {
    stack.contains("ib_unregister_peer_memory_client")
}

fn is_the_wait(stack: &str) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| stack.contains(name));
    let is_below = || client(stack).is_some() || stack.contains(FREE_CALLBACK) && names(stack, DRIVER);
    has(&FREE_CALLBACKS) || has(&WAITS) && (has(&CLIENTS) || names(stack, DRIVER)) || is_below()
}

/// Returns whether a stack has a function of a module: `f+0x1/0x2 [nvidia]`, or with
/// CONFIG_STACKTRACE_BUILD_ID `f+0x1/0x2 [nvidia 5d3b8a3f]`.
fn names(stack: &str, module: &str) -> bool {
    let is_end = |rest: &str| rest.strip_prefix(module).is_some_and(|rest| rest.starts_with([']', ' ']));
    stack.split('[').skip(1).any(is_end)
}

/// Returns a task that the kernel reported as blocked with such a stack, and that may wait still.
fn hung_by_log(machine: &Machine, is_it: impl Fn(&str) -> bool + Copy) -> Option<Hung> {
    let log = machine.log.as_ref().ok()?;
    let lines: Vec<(u64, &str)> = machine.log_times.iter().copied().zip(log.iter().map(String::as_str)).collect();
    for (n, (_, head)) in lines.iter().enumerate().rev() {
        let Some(task) = blocked_task(head) else { continue };
        let (comm, tid) = task.rsplit_once(':').unwrap_or((task, ""));
        let stack = stack_of_report(lines.get(n..)?);
        if is_it(&stack) && may_wait(machine, comm, tid, is_it) {
            return Some(Hung { task: format!("task {comm} ({tid})"), stack, evidence: format!("kernel log: {head}") });
        }
    }
    None
}

/// The kernel writes a report within this time, in microseconds.
const AT_ONCE: u64 = 2_000_000;

/// Returns the stack that follows the head of a report: its lines have an offset in a function
/// (`f+0x61/0xc0`), and the first one without it ends the stack.
fn stack_of_report(lines: &[(u64, &str)]) -> String {
    let Some(((start, _), rest)) = lines.split_first() else { return String::new() };
    let is_of_stack = |line: &&str| line.contains("+0x");
    let own = rest.iter().take_while(|(time, line)| {
        time.saturating_sub(*start) <= AT_ONCE && blocked_task(line).is_none() && !line.starts_with(WARNING)
    });
    let stack = own.map(|(_, line)| *line).skip_while(|line| !is_of_stack(line)).take_while(is_of_stack);
    stack.collect::<Vec<_>>().join("\n")
}

/// Returns whether a task that the log names may wait still: it is there under that name, and nothing tells
/// that it can be woken or is elsewhere. Where tasks cannot be seen, the log stands.
fn may_wait(machine: &Machine, comm: &str, tid: &str, is_it: impl Fn(&str) -> bool) -> bool {
    let root = machine.root;
    let sees_tasks = root.exists("/proc/1/comm") || root.is_live();
    if !sees_tasks || !crate::kernel::has_initial_pids(root) {
        return true;
    }
    let Some((_, dir)) = tasks(root).find(|(known, _)| known == tid) else { return false };
    // A kworker adds its queue: kworker/0:1+events.
    let is_same = root.line(&format!("{dir}/comm")).is_none_or(|name| name.starts_with(comm));
    let is_elsewhere = root.text(&format!("{dir}/stack")).is_ok_and(|stack| !stack.is_empty() && !is_it(&stack));
    is_same && cannot_be_woken(machine, &dir) != Some(false) && !is_elsewhere
}

/// Reports a fault of the kernel in a module that GPU memory goes through, or a processor that does
/// not come out of such a module.
fn fault(machine: &Machine) -> Option<Check> {
    let lines = machine.log.iter().flatten().map(String::as_str);
    let Fault { what, head, at, module } = last_fault(machine.log_times.iter().copied().zip(lines))?;
    let held = if what == STUCK { "may be held still" } else { "are held for ever" };
    let what = if WHERE.iter().any(|word| at.contains(word)) { what } else { BELOW };
    Some(
        Check::warn(
            "log.fault",
            format!("{what} {module}: locks that it held {held}"),
            machine.setting.on_host(&format!("reboot; these lines belong into a report to the makers of {module}")),
        )
        .seen(format!("kernel log: {head}"))
        .seen(format!("kernel log: {at}")),
    )
}

/// The meaning of a fault in a function of the kernel's own, which a module has called.
const BELOW: &str = "the kernel faulted below";

/// Reports that nvidia.ko has lost a GPU that it was to give back, after which it may keep its lock
/// (NVIDIA/open-gpu-kernel-modules#1333, with 595.71.05).
fn lost_gpu(machine: &Machine) -> Option<Check> {
    let line = machine.log_of_driver().iter().rfind(|line| line.starts_with(WARNING) && line.contains(LOST_GPU))?;
    Some(
        Check::warn(
            "log.fault",
            "nvidia.ko did not find a GPU that it was to give back, and may keep its lock for ever: calls of NVML and CUDA may hang",
            machine.setting.on_host("if nvidia-smi hangs, reboot (NVIDIA/open-gpu-kernel-modules#1333)"),
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// A fault in the kernel log.
#[derive(PartialEq, Eq, Debug)]
struct Fault<'a> {
    what: &'static str,
    /// The first line of the fault. The field after it is the line that says where it was.
    head: &'a str,
    at: &'a str,
    module: &'static str,
}

/// Returns the last fault in a module that GPU memory goes through, of lines with their times.
fn last_fault<'a>(lines: impl Iterator<Item = (u64, &'a str)>) -> Option<Fault<'a>> {
    let of =
        |line: &str| OF_DRIVER.iter().chain(&CALLED_BACK).chain(&OF_RDMA).copied().find(|module| names(line, module));
    let mut last: Option<(&'static str, &str, u64)> = None;
    let mut found = None;
    // A fault in a function of the kernel's own: the first module in its stack has called that.
    let mut below: Option<(&'static str, &str, u64)> = None;
    for (time, line) in lines.filter(|(_, line)| !line.starts_with(OF_PROGRAM)) {
        // The lines after a warning belong to the warning, not to the fault before it.
        let goes_on = |(.., then): &(_, _, u64)| !line.starts_with(WARNING) && time.saturating_sub(*then) <= AT_ONCE;
        (last, below) = (last.filter(goes_on), below.filter(goes_on));
        if let Some((_, what)) = FAULTS.iter().find(|(head, _)| line.contains(head)) {
            last = Some((*what, line, time));
        }
        // The first after it says where: "RIP: 0010:nv_mem_dma_map+0x15/0x30 [nvidia_peermem]".
        let says_where = WHERE.iter().any(|word| line.contains(word));
        // Not the address of a program.
        let has_function = line.contains("+0x");
        if says_where {
            let fault = last.take();
            let module = fault.and_then(|(what, head, _)| Some(Fault { what, head, at: line, module: of(line)? }));
            below = fault.filter(|(what, ..)| *what == FAULTED && module_of(line).is_none() && has_function);
            found = module.or(found);
        } else if let Some((what, head, _)) = below.filter(|_| has_function && module_of(line).is_some()) {
            let module = of(line).filter(|_| !line.contains("? "));
            found = module.map(|module| Fault { what, head, at: line, module }).or(found);
            below = below.filter(|_| line.contains("? "));
        }
    }
    found
}

/// Returns what the driver says of a GPU's way back in an Xid of its own, in its words.
fn recovery(line: &str) -> Option<&str> {
    line.rsplit_once(" to ")?.1.split_once('(')?.1.split(')').next()
}

/// Returns the cure for a recovery action that the driver names, by what NVIDIA says of each ("Error
/// Recovery and Response Flags" of docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, and nvml.h of R610). A
/// drain alone is no reset: what the driver asks for afterwards is another action, or none.
pub fn recovery_cure(machine: &Machine, action: &str) -> String {
    let words = action.to_lowercase();
    let has = |word: &str| words.contains(word);
    let reset = || reset_gpu(machine, "that GPU");
    let on_host = |command: &str| machine.setting.on_host(command);
    match () {
        () if has("drain") && has("reset") => {
            format!("start nothing new on that GPU and let what runs there end; then {}", reset())
        }
        () if has("drain") => on_host(
            "end the programs that have GPUs talk to each other (NCCL, NVSHMEM) and switch UVM persistence mode off; then nvidia-smi -q (GPU Recovery Action) says what is left to do, if anything",
        ),
        () if has("imex") => on_host("restart nvidia-imex on all nodes of its domain"),
        () if has("bus") => format!("{}; -r bus resets its PCIe bus, which the driver asks for", reset()),
        () if has("reset") || has("flr") => reset(),
        () if has("boot") => on_host("reboot, as the driver asks for"),
        () => on_host("what the driver says; NVIDIA's Xid catalogue has it under Xid 154"),
    }
}

/// Returns the GPU and the number of an Xid in a line: "NVRM: Xid (PCI:0000:18:00): 79,
/// pid='<unknown>', ...". Old drivers leave out "PCI:". "NVRM: GPU 0000:18:00.0: GPU has fallen off
/// the bus." says the same as Xid 79.
fn xid_of(line: &str) -> Option<(&str, u32)> {
    let line = line.get(line.find("NVRM")?..)?;
    let Some((_, rest)) = line.split_once("Xid (") else {
        let gpu = line.split_once("GPU ")?.1.split_once(": GPU has fallen off the bus")?.0;
        return Some((gpu.rsplit_once('.')?.0, FALLEN)).filter(|_| pci::is_address(gpu));
    };
    let (gpu, rest) = rest.strip_prefix("PCI:").unwrap_or(rest).split_once(')')?;
    let digits: String = rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    Some((gpu, digits.parse().ok()?))
}

/// Reports one Xid for each GPU: the last that needs somebody to act, unless the driver took that
/// back, or else the last of all. What the driver itself asks for (Xid 154) takes precedence over
/// what its catalogue says of another Xid, and over both what nvidia-smi says now: no line of the log takes an
/// Xid back after a reset.
fn xid(machine: &Machine) -> Vec<Check> {
    const ID: &str = "log.xid";
    struct Fatal {
        number: u32,
        what: String,
        fix: String,
    }
    struct Last<'a> {
        gpu: &'a str,
        number: u32,
        fatal: Option<Fatal>,
        line: &'a str,
    }
    let fatal = |number: u32, line: &str| {
        // "149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 00 (...)": the catalogue asks for nothing at
        // once.
        if line.contains(" Nonfatal ") {
            return None;
        }
        if let Some((_, what, asks)) = FATAL_XIDS.iter().find(|(xid, ..)| *xid == number) {
            let fix = match asks {
                Asks::Reset => reset_gpu(machine, "that GPU"),
                Asks::Reboot => reboot_for_gpu(machine),
                Asks::Guest => restart_guest(machine),
                Asks::Power => machine.setting.on_hardware("connect the power cables of that board, then boot again"),
                Asks::Workflow(name) => {
                    format!(
                        "follow {name} of NVIDIA's Xid catalogue; where it ends in a reset: {}",
                        reset_gpu(machine, "that GPU")
                    )
                }
            };
            return Some(Fatal { number, what: (*what).to_owned(), fix });
        }
        let action = recovery(line).filter(|action| number == RECOVERY_XID && *action != "None")?;
        Some(Fatal { number, what: format!("the driver says: {action}"), fix: recovery_cure(machine, action) })
    };
    let mut found: Vec<Last> = Vec::new();
    for line in machine.log.iter().flatten() {
        // NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', ...
        let Some((gpu, number)) = xid_of(line) else { continue };
        let taken_back = number == RECOVERY_XID && recovery(line) == Some("None");
        let before = found.iter().position(|last| last.gpu == gpu).map(|at| found.remove(at));
        let asked = |last: &Last| last.fatal.as_ref().is_some_and(|fatal| fatal.number == RECOVERY_XID);
        let last = match (fatal(number, line), before) {
            (Some(_), Some(before)) if asked(&before) && number != RECOVERY_XID => before,
            (Some(fatal), _) => Last { gpu, number, fatal: Some(fatal), line },
            (None, Some(before)) if before.fatal.is_some() && !taken_back => before,
            (None, _) => Last { gpu, number, fatal: None, line },
        };
        found.push(last);
    }
    let is_recovered = |last: &Last| {
        // No recovery action mentions power cables.
        let is_meant = last.fatal.as_ref().is_some_and(|fatal| !is_of_power(fatal.number));
        let address = last.gpu.split_ascii_whitespace().next().map(|gpu| format!("{gpu}.0"));
        let told = address.and_then(|address| machine.told(machine.pci(&address)?));
        is_meant && told.is_some_and(|told| told.is_recovered)
    };
    let check = |last: Last| {
        let gpu = last.gpu;
        let is_over = is_recovered(&last);
        let check = match last.fatal {
            Some(Fatal { number, what, .. }) if is_over => Check::ok(
                ID,
                format!("GPU {gpu} reported Xid {number} since the kernel was booted ({what}), and the GPU driver asks for nothing now"),
            )
            .seen("GPU Recovery Action of nvidia-smi -q is None"),
            Some(Fatal { number, what, fix }) => {
                Check::warn(ID, format!("GPU {gpu} reported Xid {number} since the kernel was booted: {what}"), fix)
            }
            // This program's lists cannot have the Xids of later drivers.
            None if !is_harmless(last.number, last.line) => Check::skip(
                ID,
                format!(
                    "GPU {gpu} reported Xid {} since the kernel was booted: this program does not know what that Xid asks for: look it up in NVIDIA's Xid catalogue; nvidia-smi -q says whether the GPU has to be reset (GPU Recovery Action)",
                    last.number
                ),
            ),
            None => {
                // "Row Remapper: New row (0x...) marked for remapping, reset gpu to activate."
                let rest = match last.line.contains("reset gpu to activate") {
                    true => "a row of its memory is replaced at the next reset of that GPU, which can wait (Remapped Rows of nvidia-smi -q)",
                    false => "an application's fault, or one that is over",
                };
                Check::ok(ID, format!("GPU {gpu} reported Xid {} since the kernel was booted: {rest}", last.number))
            }
        };
        let mut check = check.seen(format!("kernel log: {}", last.line));
        let gpus = machine.gpus();
        let fallen = gpus.iter().find(|gpu| says_fallen(last.line, gpu));
        check.follows = fallen.map(|gpu| cause_of_fall(machine, gpu)).filter(|cause| *cause != ID);
        check
    };
    found.into_iter().map(check).collect()
}

/// Returns whether an Xid asks for power cables.
fn is_of_power(number: u32) -> bool {
    FATAL_XIDS.iter().any(|(xid, _, asks)| *xid == number && *asks == Asks::Power)
}

/// Returns the NVSwitch, the number and the words of an SXid that is fatal: "nvidia-nvswitch0: SXid
/// (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up". Lines with "Severity", "Data" or "Non-fatal" follow
/// such a line, or need nobody.
fn sxid_of(line: &str) -> Option<(&str, &str, &str)> {
    let (switch, rest) = line.split_once("SXid (PCI:")?.1.split_once("): ")?;
    let (number, words) = rest.split_once(", Fatal")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (switch, number, words.trim_start_matches([',', ' '])))
}

/// Reports the last fatal error of an NVSwitch (the chapters on SXids of NVIDIA's Fabric Manager guide, as
/// components/accelerator/nvidia/sxid of leptonai/gpud has them).
fn switch_error(machine: &Machine) -> Option<Check> {
    let (line, (_, number, words)) =
        machine.log.iter().flatten().rev().find_map(|line| Some((line, sxid_of(line)?)))?;
    let mut switches: Vec<&str> = machine.log.iter().flatten().filter_map(|line| Some(sxid_of(line)?.0)).collect();
    switches.sort_unstable();
    switches.dedup();
    let fix = match machine.setting.virtual_machine {
        Some(_) => {
            format!("{}; if it comes again, have its host reset all GPUs and NVSwitches", restart_guest(machine))
        }
        None => format!("{}; if it comes again, reboot", reset_fabric(machine)),
    };
    Some(
        Check::warn(
            "log.xid",
            format!(
                "NVSwitch {} reported a fatal SXid since the kernel was booted, last {number} ({words}): traffic of GPUs over NVLink may be stopped, and CUDA with it",
                switches.join(", ")
            ),
            fix,
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Returns the version of a program's libraries that nvidia.ko refused, and nvidia.ko's own, by
/// what rm_is_supported_ioctl() of NVIDIA's driver writes: "NVRM: API mismatch: the client has the
/// version 580.95.05, but NVRM: this kernel module has the version 580.82.07." Later drivers name
/// the program in between.
fn refused_version(line: &str) -> Option<(&str, &str)> {
    let mut versions = line.split_once("NVRM: API mismatch")?.1.split("the version ").skip(1);
    let mut next = || {
        let rest = versions.next()?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest.get(..end).map(|version| version.trim_end_matches('.')).filter(|version| !version.is_empty())
    };
    Some((next()?, next()?))
}

/// Returns the version of the nvidia.ko that modprobe would load.
fn installed_version(machine: &Machine) -> Option<String> {
    let path = module_file::chosen(machine.root, machine.release.as_deref()?, "nvidia")?;
    ModuleFile::read(machine.root, &path).ok()?.field("version").map(str::to_owned)
}

/// The folders in which distributions have libcuda.
pub const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
];
/// The beginning of the name of that library's file, which ends with the version of its driver.
pub const LIBCUDA: &str = "libcuda.so.";

/// Returns the version of the libraries that the loaded nvidia.ko last refused, and the line.
fn refused_libraries<'a>(machine: &'a Machine) -> Option<(&'a str, &'a str)> {
    let loaded = machine.driver.as_ref()?.version.as_deref()?;
    // Lines about another nvidia.ko than the loaded one are history.
    let of = |line| refused_version(line).filter(|(_, module)| *module == loaded).map(|(client, _)| (client, line));
    machine.log.iter().flatten().rev().map(String::as_str).find_map(of)
}

/// Returns whether the host's own libraries are those that nvidia.ko refused, so that nvidia-smi tells nothing.
pub fn refuses_own_libraries(machine: &Machine) -> bool {
    refused_libraries(machine).is_some_and(|(version, _)| is_of_host(machine, version))
}

/// Returns whether the libraries of this host are of a version that nvidia.ko refused: their files say so, or
/// nvidia-smi, which is the host's own, names no GPU.
fn is_of_host(machine: &Machine, version: &str) -> bool {
    let is_silent = machine.smi.as_ref().is_ok_and(BTreeMap::is_empty);
    let has_file = || LIBRARIES.iter().any(|folder| machine.root.exists(&format!("{folder}/{LIBCUDA}{version}")));
    machine.setting.container.is_none() && (is_silent || has_file())
}

/// Finds programs whose libraries are of another driver than nvidia.ko: CUDA does not start in
/// them.
fn other_version(machine: &Machine) -> Option<Check> {
    let loaded = machine.driver.as_ref()?.version.as_deref()?;
    let (version, line) = refused_libraries(machine)?;
    const RUNTIME: &str =
        "have the container runtime bring the host's libcuda (NVIDIA's container toolkit), and none in the image";
    let installed = installed_version(machine).filter(|installed| installed != loaded);
    let fix = match (&machine.setting.container, installed) {
        (Some(_), _) => RUNTIME.to_owned(),
        (None, Some(installed)) => format!(
            "the driver was updated to {installed} (nvidia-smi says \"Driver/library version mismatch\"): {}; or reboot when nobody uses the GPUs",
            unload::reload_driver(machine)
        ),
        (None, None) if is_of_host(machine, version) => format!(
            "the libraries of this host were updated to {version}, and nvidia.ko was not: build or install that of {version} (dkms status tells whether it was built; Ubuntu: linux-modules-nvidia-*), or go back to the libraries of {loaded}; then {}; or reboot when nobody uses the GPUs",
            unload::reload_driver(machine)
        ),
        (None, None) => format!("that program brings a libcuda of driver {version}: have it take the installed one (LD_LIBRARY_PATH, ldconfig -p | grep libcuda); if it runs in a container, {RUNTIME}"),
    };
    Some(
        Check::warn(
            "log.api",
            format!("nvidia.ko {loaded} refused a program with the libraries of driver {version}: CUDA does not start there"),
            fix,
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Returns whether NVIDIA's catalogue asks for nothing but a new start of the application, or the
/// line says so.
fn is_harmless(number: u32, line: &str) -> bool {
    line.contains(" Nonfatal ") || HARMLESS_XIDS.iter().any(|(from, to)| (*from..=*to).contains(&number))
}

/// Returns whether a module takes part in RDMA: a network driver does where the module is loaded that makes its RDMA
/// devices.
fn is_of_rdma(machine: &Machine, module: &str) -> bool {
    OF_RDMA.contains(&module) && rdma::memory_module(module).is_none_or(|of| machine.modules.contains_key(of))
}

/// Returns why the health of a NIC matters to no GPU: it is no RDMA device, or none that a GPU needs.
fn is_needless(machine: &Machine, address: &str) -> Option<&'static str> {
    let device = machine.rdma.iter().find(|nic| nic.pci.as_deref() == Some(address));
    match device {
        Some(device) => hardware::spare(machine, device),
        // One that is sick may have lost its device.
        None => {
            let driver = machine.pci(address)?.driver.as_deref()?;
            (!is_of_rdma(machine, driver)).then_some("it is no RDMA device")
        }
    }
}

/// Finds what drivers of NICs last said of their health: one finding for each driver.
fn nic_health(machine: &Machine) -> Vec<Check> {
    let has = |line: &str, words: &[&str]| words.iter().any(|word| line.contains(word));
    let mut sick: [Option<(&str, Option<&str>)>; NICS.len()] = [None; NICS.len()];
    let mut well: BTreeSet<Option<&str>> = BTreeSet::new();
    // The last word of each NIC counts.
    for line in machine.log.iter().flatten().rev() {
        let Some(at) = NICS.iter().position(|nic| line.contains(nic.driver)) else { continue };
        let (Some(of), Some(found)) = (NICS.get(at), sick.get_mut(at)) else { continue };
        // A NIC that a GPU needs goes before others.
        let is_better = || match *found {
            None => true,
            Some((_, Some(before))) => {
                let needless = |nic| is_needless(machine, nic).is_some();
                needless(before) && address(line).is_some_and(|nic| !needless(nic))
            }
            Some((_, None)) => false,
        };
        if has(line, of.well) {
            well.insert(address(line));
        } else if has(line, of.sick) && !well.contains(&address(line)) && is_better() {
            *found = Some((line, address(line)));
        }
    }
    let check = |(of, (line, nic)): (&Nic, (&str, Option<&str>))| {
        let driver = of.driver.trim_end();
        let name = nic.unwrap_or("a NIC");
        let at = nic.map_or(String::new(), |nic| format!(" pci/{nic}"));
        let is_bluefield = match nic {
            Some(nic) => machine.pci(nic).is_some_and(Device::is_bluefield),
            None => machine.devices.iter().any(Device::is_bluefield),
        };
        let last = match (driver, &machine.setting.virtual_machine) {
            ("mlx5_core", None) if is_bluefield => "look at the Arm system of that BlueField (console by rshim or its BMC), then power this machine off and on again; no mlxfwreset, which would reset or shut down that system as well",
            ("mlx5_core", None) => "reset the NIC (mlxfwreset) or reboot",
            (_, None) => "reset the NIC or reboot",
            _ => "have the host of this virtual machine reset the NIC or reboot",
        };
        let what = format!("{driver} reported that {name} is not healthy");
        let seen = format!("kernel log: {line}");
        // A reset would take the network away that this machine is reached by.
        if let Some(why) = nic.and_then(|nic| is_needless(machine, nic)) {
            return Check::skip(of.id, format!("{what}; {why}")).seen(seen);
        }
        Check::warn(
            of.id,
            what,
            machine.setting.on_host(&format!("devlink health show{at}; if it does not recover, {last}")),
        )
        .seen(seen)
    };
    NICS.iter().zip(sick).filter_map(|(of, found)| Some((of, found?))).map(check).collect()
}

/// Reports the last registration for which the firmware of an mlx5 NIC made no key.
fn refused_key(machine: &Machine) -> Option<Check> {
    let status = |line: &'_ String| {
        let is_it = line.contains("mlx5_") && MAKES_KEY.iter().any(|command| line.contains(command));
        let (_, rest) = line.split_once(FAILED_STATUS).filter(|_| is_it)?;
        Some(rest.split('(').next().unwrap_or_default().to_owned())
    };
    let (line, status) = machine.log.iter().flatten().rev().find_map(|line| Some((line, status(line)?)))?;
    let nic = address(line).unwrap_or("a NIC");
    let setting = &machine.setting;
    let (errno, fix) = match status.as_str() {
        // openucx/ucx#6264
        "limits exceeded" | "no resources" => (
            "\"Cannot allocate memory\", whatever memlock is",
            setting.on_host("end programs that hold registrations, or have them register fewer and larger regions: rdma resource show mr counts them"),
        ),
        _ => (
            "\"Invalid argument\" or the like",
            setting.on_hardware("bring the NIC's firmware and its driver to versions that go together (mlxfwmanager, or what brings the RDMA core), and look for the syndrome of that line in their release notes"),
        ),
    };
    Some(
        Check::warn(
            "log.mlx5",
            format!(
                "the firmware of {nic} made no key for a registration ({status}): such registrations fail with {errno}"
            ),
            fix,
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Returns the PCI address in a line of the log.
fn address(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().map(|word| word.trim_end_matches(':')).find(|word| pci::is_address(word))
}

/// Returns the NICs and GPUs with their PCI addresses.
fn devices(machine: &Machine) -> Vec<(String, String)> {
    let of_rdma = machine.rdma.iter().filter_map(|nic| Some((nic.name.clone(), nic.pci.clone()?)));
    let of_gpu = machine.gpus().into_iter().map(|gpu| (format!("GPU {}", gpu.address), gpu.address.clone()));
    of_rdma.chain(of_gpu).collect()
}

/// Returns the port that says in a line that its ACS refused a transfer.
fn refusing_port(line: &str) -> Option<&str> {
    ACS_VIOLATION.iter().any(|words| line.contains(words)).then(|| address(line))?
}

/// Finds a port above GPUs and NICs whose ACS refuses transfers, by source validation or translation blocking. No
/// slot or cable is at fault, and the next transfer is refused as well.
fn refused_by_acs(machine: &Machine) -> Option<Check> {
    let above = |port: &str| -> Vec<String> {
        let is_above = |address: &str| {
            let device = machine.pci(address);
            address == port || device.is_some_and(|device| device.way.iter().any(|other| other == port))
        };
        devices(machine).into_iter().filter(|(_, address)| is_above(address)).map(|(name, _)| name).collect()
    };
    let of = |line: &'_ String| {
        let port = refusing_port(line)?.to_owned();
        Some((above(&port), port, line.clone())).filter(|(names, ..)| !names.is_empty())
    };
    let (names, port, line) = machine.log.iter().flatten().rev().find_map(of)?;
    Some(
        Check::warn(
            "log.pcie",
            format!(
                "ACS of the port {port} refused a transfer (ACS violation): transfers of {} through it may be lost",
                names.join(", ")
            ),
            fabric::without_acs(machine, &port),
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Returns the GPUs and NICs with an uncorrectable error of PCIe, at themselves or at a port above them, after
/// which the kernel did not report that it recovered, each with the line. nvidia.ko takes no part in that: "can't
/// recover (no error_detected callback)" (NVIDIA/open-gpu-kernel-modules#1229).
fn with_pcie_error<'a>(machine: &'a Machine) -> Vec<(String, &'a String)> {
    // Pairs each device with its own address and those of the ports above it.
    let way = |name: String, address: String| {
        let device = machine.devices.iter().find(|device| device.address == address);
        let ports = device.map(|device| device.way.clone()).unwrap_or_default();
        (name, ports.into_iter().chain([address]).collect::<Vec<String>>())
    };
    let mut unjudged: Vec<_> = devices(machine).into_iter().map(|(name, address)| way(name, address)).collect();
    let mut lost: Vec<(String, &String)> = Vec::new();
    let refusing: Vec<&str> = machine.log.iter().flatten().filter_map(|line| refusing_port(line)).collect();
    // The last word on each device counts.
    for line in machine.log.iter().flatten().rev() {
        let is_well = line.contains(PCIE_RECOVERED);
        // The kernel writes "pci" for a device that has no driver yet, so nobody used it.
        let is_lost = !line.starts_with("pci ") && is_pcie_error(line);
        if !is_well && !is_lost {
            continue;
        }
        let Some(at) = address(line).filter(|at| is_well || !refusing.contains(at)) else { continue };
        unjudged.retain(|(name, way)| {
            let is_it = way.iter().any(|port| port == at);
            if is_it && is_lost {
                lost.push((name.clone(), line));
            }
            !is_it
        });
    }
    lost
}

/// Returns whether nvidia.ko, since it was loaded, said that a GPU has fallen off the bus.
pub fn fell_off(machine: &Machine, gpu: &Device) -> bool {
    machine.log_of_driver().iter().any(|line| says_fallen(line, gpu))
}

/// Returns whether a line says so.
pub fn says_fallen(line: &str, gpu: &Device) -> bool {
    xid_of(line).is_some_and(|(of, number)| {
        number == FALLEN && gpu.address.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'))
    })
}

/// Returns the finding that a GPU which has fallen off the bus follows from: the link above it was lost.
pub fn cause_of_fall(machine: &Machine, gpu: &Device) -> &'static str {
    let name = format!("GPU {}", gpu.address);
    match with_pcie_error(machine).iter().any(|(lost, _)| *lost == name) {
        true => "log.pcie",
        false => "log.xid",
    }
}

/// Reports those devices, and says what has fallen off the bus with its link.
fn pcie_error(machine: &Machine) -> Option<Check> {
    let lost = with_pcie_error(machine);
    let (_, line) = lost.first()?;
    let names: Vec<&str> = lost.iter().map(|(name, _)| name.as_str()).collect();
    let fallen = machine
        .gpus()
        .into_iter()
        .any(|gpu| names.contains(&format!("GPU {}", gpu.address).as_str()) && fell_off(machine, gpu));
    let look = "look at slot, riser, cable and power";
    let look = match machine.setting.virtual_machine {
        Some(_) => machine.setting.on_hardware(look),
        None => look.to_owned(),
    };
    Some(
        Check::warn(
            "log.pcie",
            format!(
                "PCIe lost transfers of {} by an uncorrectable error since the kernel was booted, and no recovery is reported",
                names.join(", ")
            ),
            match fallen {
                true => format!("{}; if that comes again, {look}", machine.setting.on_host("reboot")),
                false => format!(
                    "start the programs again; if a device does not answer, {}; if that comes again, {look}",
                    machine.setting.on_host("reboot")
                ),
            },
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Finds accesses of a GPU or a NIC that the IOMMU blocked. Where it lets all addresses of the device through now, that
/// is over; so is what the firmware's own driver of a NIC did before that of the kernel came.
fn blocked_by_iommu(machine: &Machine) -> Option<Check> {
    let devices = devices(machine);
    let log = machine.log.as_deref().unwrap_or_default();
    let is_over = |at: usize, address: &str| {
        let Some(device) = machine.pci(address) else { return false };
        let of_driver = |line: &String| {
            let driver = device.driver.as_deref().filter(|driver| line.starts_with(*driver));
            driver.is_some() && line.contains(address)
        };
        let came_later = log.iter().position(of_driver).is_some_and(|first| first > at);
        device.iommu == Iommu::Identity || came_later
    };
    let of = |(at, line): (usize, &String)| {
        if !IOMMU.iter().any(|word| line.contains(word)) {
            return None;
        }
        // DMAR leaves out the domain 0000, as AMD's did until Linux 5.4.
        let is_it = |address: &str| {
            let short = address.strip_prefix("0000:").unwrap_or(address);
            let forms = [address.to_owned(), format!("[{short}]"), format!("device={short} ")];
            forms.iter().any(|form| line.contains(form))
        };
        let (name, _) = devices.iter().find(|(_, address)| is_it(address) && !is_over(at, address))?;
        Some((name.clone(), line.clone()))
    };
    let Some((name, line)) = log.iter().enumerate().rev().find_map(of) else {
        let is_nameless =
            |line: &&String| line.contains("arm-smmu") && SMMU_NAMELESS.iter().any(|words| line.contains(words));
        let line = machine.log.iter().flatten().rfind(is_nameless)?;
        let message = "the SMMU blocked an access, and this kernel does not say of which device: if it is one of a GPU or a NIC, transfers between them get lost";
        return Some(Check::skip("log.iommu", message).seen(format!("kernel log: {line}")));
    };
    Some(
        Check::warn(
            "log.iommu",
            format!("the IOMMU blocked an access of {name}: transfers between GPUs and NICs get lost where it does"),
            format!("{}, unless a program freed memory that was in use", machine.identity_iommu()),
        )
        .seen(format!("kernel log: {line}")),
    )
}

/// Returns what brings a GPU back that only a new start of the machine does.
pub fn reboot_for_gpu(machine: &Machine) -> String {
    match &machine.setting.virtual_machine {
        Some(_) => restart_guest(machine),
        None => format!(
            "{}; a reset, which may fail, is the other try: {}",
            machine.setting.on_host("reboot, which NVIDIA's Xid catalogue asks for"),
            reset_gpu(machine, "that GPU")
        ),
    }
}

/// Says how to reset a GPU that was passed through to this virtual machine. Such a reset is
/// refused, or left to the hypervisor ("GPU VM System Reset Capabilities and Limitations" of
/// NVIDIA's Fabric Manager guide 2.3).
fn restart_guest(machine: &Machine) -> String {
    let guest = "restart this virtual machine, which resets its GPUs (in most guests nvidia-smi -r is refused)";
    match machine.setting.container {
        Some(_) => format!("on the host, not in this container: {guest}"),
        None => guest.to_owned(),
    }
}

/// Returns how all GPUs and NVSwitches of a machine are reset together.
fn reset_fabric(machine: &Machine) -> String {
    let setting = &machine.setting;
    if setting.driver_container {
        return setting.on_host(
            "reboot the node: all GPUs and NVSwitches have to be reset together, and the driver's container holds them",
        );
    }
    setting.on_host(
        "end every user of the GPUs (fuser -v /dev/nvidia*), systemctl stop nvidia-persistenced nvidia-fabricmanager, then nvidia-smi -r (without -i: all GPUs and NVSwitches are reset together), then start both again",
    )
}

/// Returns how a GPU is reset: nvidia-persistenced and all users hold it, and the reset is refused
/// until they are gone (NVIDIA/NVSentinel#1690). With the GPU Operator that daemon runs in the driver's
/// container, where systemd does not know it (NVIDIA/gpu-operator#118). Which GPUs can be reset alone says
/// `--gpu-reset` in the documentation of nvidia-smi.
pub fn reset_gpu(machine: &Machine, which: &str) -> String {
    let setting = &machine.setting;
    if setting.virtual_machine.is_some() {
        return restart_guest(machine);
    }
    let live = machine.registrations.as_ref().map_or(0, Vec::len);
    let held = match live {
        0 => String::new(),
        live => format!(" ({} live: peermemctl list)", text::count(live, "registration")),
    };
    let (persistence, users, reset) = match setting.driver_container {
        true => (
            "nvidia-smi -pm 0 in the driver's container (kubectl exec, or chroot /run/nvidia/driver), where nvidia-persistenced runs",
            "pods with GPUs, and the operator's own that hold all GPUs (kubectl label node NODE --overwrite nvidia.com/gpu.deploy.device-plugin=false nvidia.com/gpu.deploy.dcgm=false nvidia.com/gpu.deploy.dcgm-exporter=false)",
            "nvidia-smi -r -i N there",
        ),
        false => ("systemctl stop nvidia-persistenced (or nvidia-smi -pm 0)", "fuser -v /dev/nvidia*", "nvidia-smi -r -i N"),
    };
    let mut steps = format!("{persistence}, end every user of {which}{held}: {users}");
    // ComputeCanada/puppet-magic_castle#387
    if machine.modules.contains_key("nvidia_drm") {
        steps.push_str("; modprobe -r nvidia_drm, which holds it for a display");
    }
    let together = match machine.has_nvswitch() {
        true => "; leave nv-fabricmanager running: without it, and GPUs before Ampere in any case, all that NVLink connects are reset together (without -i)",
        false => "",
    };
    setting.on_host(&format!("{steps}; then {reset}{together}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_as_drivers_write_them() {
        for (line, wanted) in [
            ("NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', name=<unknown>, x", Some(("0000:19:00", 79))),
            ("NVRM: Xid (0000:19:00): 79, GPU has fallen off the bus.", Some(("0000:19:00", 79))),
            ("NVRM: Xid (PCI:0000:19:00 GPU-I:05): 95, pid=1", Some(("0000:19:00 GPU-I:05", 95))),
            ("NVRM: GPU 0000:19:00.0: GPU has fallen off the bus.", Some(("0000:19:00", 79))),
            ("NVRM: GPU at 0000:19:00.0: GPU has fallen off the bus.", None),
            ("NVRM: GPU 0000:19:00.0: something else", None),
            ("NVRM: Xid (PCI:0000:19:00", None),
            ("Xid (PCI:0000:19:00): 79", None),
        ] {
            assert_eq!(xid_of(line), wanted, "{line}");
        }
    }

    #[test]
    fn modules_in_stacks_with_and_without_build_ids() {
        for (line, wanted) in [
            ("os_acquire_mutex+0x3c/0x50 [nvidia]", true),
            ("os_acquire_mutex+0x3c/0x50 [nvidia 5d3b8a3f]", true),
            ("nv_drm_open+0x3c/0x50 [nvidia_drm]", false),
            ("[<0>] nvidia_open+0x3c/0x50", false),
        ] {
            assert_eq!(names(line, "nvidia"), wanted, "{line}");
        }
    }

    /// Checks that a line that says where is taken for the fault just before it, and for no other.
    #[test]
    fn where_a_fault_was_is_of_that_fault() {
        const AT: &str = "RIP: 0010:nv_open+0x1/0x2 [nvidia]";
        const STALL: &str = "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:";
        for (lines, wanted) in [
            (&[(0, "BUG: kernel NULL pointer dereference, address: 08"), (10, AT)][..], true),
            (&[(0, STALL), (1_900_000, AT)], true),
            (&[(0, STALL), (2_100_000, AT)], false),
            (&[(0, STALL), (5, "WARNING: mm/memory.c:1 at f+0x1/0x2, CPU#3: x/77"), (10, AT)], false),
            (
                &[(0, "traps: python3[777] general protection fault ip:7f1 sp:7ff error:0 in libcuda.so"), (10, AT)],
                false,
            ),
            (&[(0, STALL), (5, "RIP: 0010:native_safe_halt+0xe/0x10"), (10, AT)], false),
            (&[(0, "general protection fault, probably for non-canonical address: 0000 [#1] SMP"), (10, AT)], true),
        ] {
            assert_eq!(last_fault(lines.iter().copied()).is_some(), wanted, "{lines:?}");
        }
    }

    #[test]
    fn libraries_of_another_version_than_the_module() {
        for (line, wanted) in [
            ("NVRM: API mismatch: the client has the version 470.57.02, but\\x0aNVRM: this kernel module has the version 460.91.03.", Some(("470.57.02", "460.91.03"))),
            ("NVRM: API mismatch: the client 'nvidia-smi' (pid 4321) has the version 580.95.05, but this kernel module has the version 580.82.07.", Some(("580.95.05", "580.82.07"))),
            ("NVRM: API mismatch: the client has the version", None),
            ("NVRM: API mismatch: the client has the version 580.95.05, but", None),
            ("NVRM: loading NVIDIA UNIX Open Kernel Module  580.82.07", None),
        ] {
            assert_eq!(refused_version(line), wanted, "{line}");
        }
    }

    /// Checks that no Xid is called harmless for which the catalogue asks for an action at once.
    #[test]
    fn no_xid_is_both_fatal_and_harmless() {
        let both: Vec<u32> = FATAL_XIDS.iter().map(|(number, ..)| *number).filter(|n| is_harmless(*n, "")).collect();
        assert!(both.is_empty(), "{both:?}");
    }

    /// Tests the words of newer and of older drivers.
    #[test]
    fn each_recovery_action_has_its_own_cure() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let machine = Machine::look(&root);
        for (action, said, unsaid) in [
            ("GPU Reset Required", "then nvidia-smi -r -i N", "reboot"),
            ("PF FLR", "then nvidia-smi -r -i N", "reboot"),
            ("Node Reboot Required", "reboot", "nvidia-smi"),
            ("OS Reboot", "reboot", "nvidia-smi"),
            ("Drain P2P", "GPU Recovery Action", "nvidia-smi -r"),
            ("Drain and Reset", "then nvidia-smi -r -i N", "reboot"),
            ("Bus Reset", "-r bus", "reboot"),
            ("Recover IMEX Domain", "nvidia-imex", "nvidia-smi -r"),
            ("something new", "Xid 154", "nvidia-smi -r"),
        ] {
            let cure = recovery_cure(&machine, action);
            assert!(cure.contains(said) && !cure.contains(unsaid), "{action}: {cure}");
        }
    }
}
