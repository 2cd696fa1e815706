// SPDX-License-Identifier: GPL-2.0
//! Section 7: what the GPUs offer, and how much of BAR1 is left.

use super::{load_refused, log};
use crate::check::{Check, Kind, Level};
use crate::facts;
use crate::giver::{self, Giver, Nodes};
use crate::kernel;
use crate::machine::{Machine, NoContext};
use crate::module_file::Maker;
use crate::nvidia::{self, Fabric};
use crate::pci::{self, Device};
use crate::peermem::Registration;
use crate::rdma;
use crate::root::Silent;
use crate::text;
use crate::unload;
use crate::way::{self, Judged};

/// The bytes of BAR1 that the GPU driver keeps free: it grants a pin only if the pin's length and
/// this are left.
const RESERVE: u64 = 36 << 20;
/// The fewest bytes that a pin takes.
const GRANULE: u64 = 64 << 10;

/// The PCI vendor and class of the functions by which NVSwitches of NVLink 5 are managed.
const MELLANOX: u16 = 0x15b3;
const INFINIBAND: u32 = 0x0207;

/// The check of BAR1.
const ID: &str = "gpus.bar1";

/// Returns what makes room in BAR1.
fn room(machine: &Machine) -> String {
    format!("end or shrink what holds it (peermemctl list); or {}", machine.setting.larger_bar())
}

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = machine.smi.as_ref().err().and_then(|silent| answers(*silent)).into_iter().collect();
    for gpu in machine.gpus() {
        checks.push(bar1(machine, gpu));
        checks.extend(shared(machine, gpu));
        checks.extend(refused_parts(machine, gpu));
        checks.extend(coherent(machine, gpu));
        checks.extend(fabric(machine, gpu));
        checks.extend(context(machine, gpu));
        checks.extend(recovery(machine, gpu));
    }
    checks.extend(fabric_manager(machine));
    if !machine.gpus().is_empty() {
        checks.extend(nodes(machine));
        checks.push(dma_buf(machine));
    }
    checks.extend(override_parameter(machine));
    checks
}

/// Reports that the GPU driver does not answer a program in time.
fn answers(silent: Silent) -> Option<Check> {
    let Silent::Late(limit) = silent else { return None };
    let message = format!(
        "nvidia-smi did not answer within {} s: the GPU driver stands still, or takes that long to wake the GPUs",
        limit.as_secs()
    );
    let fix = "journalctl -k | grep -E 'NVRM|Xid|blocked for more' shows what stands still (reset that device or reboot); if nothing does, the service nvidia-persistenced keeps the GPUs awake";
    Some(
        Check::warn("gpus.answers", message, fix)
            .seen("nvidia-smi -q, not waited for any longer: BAR1, MIG and vGPU are not known"),
    )
}

/// Returns how many bytes of a GPU's BAR1 registrations take. Where those of one process overlap,
/// they share their place in BAR1. Nothing tells whether memory was freed and other memory lies at
/// its address now.
fn pinned(rows: &[Registration], gpu: &str) -> u64 {
    // A revoked pin has gone with its memory.
    let rows = rows.iter().filter(|row| row.gpu.as_deref() == Some(gpu) && row.state != "revoked");
    let range = |row: &Registration| {
        let start = row.va / GRANULE * GRANULE;
        (row.pid, start, start.saturating_add(row.pinned_bytes))
    };
    let mut ranges: Vec<(u32, u64, u64)> = rows.map(range).collect();
    ranges.sort_unstable();
    let (mut bytes, mut process, mut counted) = (0, 0, 0);
    for (pid, start, end) in ranges {
        if pid != process {
            (process, counted) = (pid, 0);
        }
        bytes += end.saturating_sub(start.max(counted));
        counted = counted.max(end);
    }
    bytes
}

/// Returns the size of a GPU's BAR1, how much of it is in use, and where that was read; `None` if
/// nothing tells.
pub fn bar1_in_use(machine: &Machine, gpu: &Device) -> Option<(u64, u64, &'static str)> {
    let told = machine.smi.as_ref().ok().and_then(|smi| smi.get(&gpu.address)?.bar1);
    // A size of 0 means that nvidia-smi does not know it.
    let told = told.filter(|bar1| bar1.total > 0);
    if told.is_none() && nvidia::bar1_size(gpu) == 0 {
        return None;
    }
    match told {
        Some(bar1) => Some((bar1.total, bar1.used, "nvidia-smi -q")),
        None => Some((
            nvidia::bar1_size(gpu),
            pinned(machine.registrations.as_ref().ok()?, &gpu.address),
            "size of the BAR in sysfs, pinned_bytes in /proc/driver/nvidia-peermem/registrations",
        )),
    }
}

fn bar1(machine: &Machine, gpu: &Device) -> Check {
    let pinned = machine.registrations.as_ref().ok().map(|rows| pinned(rows, &gpu.address));
    match bar1_in_use(machine, gpu) {
        Some((total, used, seen)) => judged(machine, gpu, total, used, pinned).seen(seen),
        None => bar1_by_counters(machine, gpu),
    }
}

/// Judges BAR1 by what everybody may read, if there is one GPU: no more of it is pinned than the
/// counters say, which count twice what is registered twice.
fn bar1_by_counters(machine: &Machine, gpu: &Device) -> Check {
    let size = nvidia::bar1_size(gpu);
    if size == 0 {
        return Check::skip(ID, format!("GPU {}: nothing tells the size of its BAR1", gpu.address)).about(
            Kind::Gpu,
            &gpu.address,
            "have a BAR1 whose size nothing tells",
        );
    }
    let whole = format!("GPU {}: BAR1 has {}", gpu.address, text::bytes(size));
    let live = machine.stats.as_ref().ok().and_then(|stats| stats.number("total.live_bytes"));
    let (Some(live), [_]) = (live, machine.gpus().as_slice()) else {
        return Check::skip(ID, format!("{whole}; nvidia-smi, or peermemctl as root, shows how much is in use")).about(
            Kind::Gpu,
            &gpu.address,
            format!("have {} of BAR1; nvidia-smi, or peermemctl as root, shows how much is in use", text::bytes(size)),
        );
    };
    let check = judged(machine, gpu, size, live.min(size), Some(live));
    match check.level {
        Level::Fail => Check::warn(
            ID,
            format!("{whole}, and up to {} are registered", text::bytes(live)),
            room(machine),
        )
        .about(Kind::Gpu, &gpu.address, "may have no room left in BAR1"),
        _ => check,
    }
    .seen("size of the BAR in sysfs, total.live_bytes in /proc/driver/nvidia-peermem/stats")
}

/// Judges what it means that so much of BAR1 is in use.
fn judged(machine: &Machine, gpu: &Device, total: u64, used: u64, pinned: Option<u64>) -> Check {
    let ours = pinned.map_or(String::new(), |pinned| format!(", {} of it by registrations", text::bytes(pinned)));
    let what = format!("GPU {}: {} of {} of BAR1 in use{ours}", gpu.address, text::bytes(used), text::bytes(total));
    let percent = used.saturating_mul(100).checked_div(total.saturating_sub(RESERVE)).unwrap_or(0);
    let left = total.saturating_sub(used);
    let usable = left.saturating_sub(RESERVE);
    let kept = format!("{} left, and the GPU driver keeps the last {}", text::bytes(left), text::bytes(RESERVE));
    // A share says when to look, but not whether a registration fails: 95 % of an H200's BAR1 leave
    // gigabytes.
    let (check, many) = if usable < GRANULE {
        let brief = format!("GPU {}: BAR1 is full", gpu.address);
        let message = format!("{what}: {kept}, so every registration fails");
        (Check::fail(ID, message, room(machine)).brief(brief), "have no room left in BAR1: every registration fails")
    } else if percent >= 80 {
        let larger = text::bytes(usable);
        let brief = format!("GPU {}: BAR1 has {larger} left", gpu.address);
        let message = format!("{what}: {kept}, so a registration of more than {larger} fails");
        (Check::warn(ID, message, room(machine)).brief(brief), "have little room left in BAR1")
    } else if total <= nvidia::SMALL_BAR1
        && gpu.vendor == nvidia::NVIDIA
        && machine.refusal(gpu).is_none()
        && !machine.is_for_display(gpu)
    {
        // Mellanox/nv_peer_memory#101: "it will return NULL" beyond that on a T4.
        let larger = text::bytes(usable);
        let brief = format!("GPU {}: BAR1 has {} only", gpu.address, text::bytes(total));
        let message =
            format!("{what}: this board's BAR1 is that small, so registrations of more than {larger} together fail");
        let name = machine.gpu_name(gpu);
        let larger = match nvidia::has_display_modes(&name) {
            _ if !nvidia::may_resize_bar1(gpu) => {
                "use a GPU with a larger BAR1, as those of Turing have it in this size alone".to_owned()
            }
            true => machine.setting.on_hardware(
                "displaymodeselector --gpumode physical_display_disabled (NVIDIA's tool): with its displays on, BAR1 stays small",
            ),
            false => format!("{}, if the board can", machine.setting.larger_bar()),
        };
        let fix = format!("register less at once; or {larger}");
        (Check::warn(ID, message, fix).brief(brief), "have a small BAR1: registrations of much memory fail")
    } else {
        (Check::ok(ID, what), "have room in BAR1")
    };
    check.about(Kind::Gpu, &gpu.address, many)
}

/// Reports whether this machine has the GPU as a whole. This check only names that the machine has
/// a part of it; a refusal tells what the part cannot do.
fn shared(machine: &Machine, gpu: &Device) -> Option<Check> {
    if machine.is_host_of_vgpus(gpu) {
        let what = "shared among virtual machines by this host's vGPU driver, which brings no CUDA for the host: run peermemctl in the virtual machines";
        return Some(
            Check::skip("gpus.shared", format!("GPU {} is {what}", gpu.address))
                .about(Kind::Gpu, &gpu.address, format!("are {what}"))
                .seen("GPU Virtualization Mode of nvidia-smi -q, nvidia_vgpu_vfio in /proc/modules"),
        );
    }
    let told = machine.smi.as_ref().ok()?.get(&gpu.address)?;
    let mig = match told.mig.as_deref()? {
        "Enabled" => "MIG is on: each instance pins for itself",
        _ => "MIG is off",
    };
    let whole = match told.virtualization.as_deref()? {
        "None" => "not virtualized",
        "Pass-Through" => "passed through to this VM as a whole",
        "VGPU" => "a vGPU: whether it may be pinned is its profile's and the host's choice",
        // Such memory was pinned here all the same.
        _ => "a host's, shared among VMs",
    };
    let what = format!("GPU {} is {whole}; {mig}", gpu.address);
    let many = format!("are {whole}; {mig}");
    Some(
        Check::ok("gpus.shared", what)
            .about(Kind::Gpu, &gpu.address, many)
            .seen("MIG Mode and GPU Virtualization Mode of nvidia-smi -q"),
    )
}

/// Finds parts of GPUs of which the GPU driver refuses the pins that the loaded module asks for.
fn refused_parts(machine: &Machine, gpu: &Device) -> Option<Check> {
    if !way::refuses_parts(machine, gpu) {
        return None;
    }
    let before = facts::PERSISTENT_OF_PARTS.before.unwrap_or_default();
    let refused = format!("a MIG instance or vGPU, of which drivers before {before} refuse persistent pins");
    let option = match machine.loaded.as_ref()?.maker {
        Maker::Ours => "revocable_fallback=1",
        _ => "persistent_api_support=0",
    };
    let change = machine.setting.change_parameters(&format!("write options nvidia-peermem {option} in"));
    let fix = format!("take driver {before} or later, or {}", machine.setting.on_host(&change));
    Some(
        Check::warn("gpus.shared", format!("GPU {} is {refused}: plain registrations of it fail", gpu.address), fix)
            .about(Kind::Gpu, &gpu.address, format!("are {refused}: plain registrations of them fail"))
            .seen("/proc/driver/nvidia/capabilities, MIG Mode of nvidia-smi -q; parameters of nvidia_peermem"),
    )
}

/// Checks memory that the CPU shares with the GPU: the GPU driver maps it for a NIC with persistent
/// pins only.
fn coherent(machine: &Machine, gpu: &Device) -> Option<Check> {
    const ID: &str = "gpus.coherent";
    if !machine.has_c2c(gpu) {
        return None;
    }
    let about = |check: Check, many: &str| check.about(Kind::Gpu, &gpu.address, many);
    let what = format!("GPU {}: its memory is coherent (NVLink-C2C)", gpu.address);
    let mode = machine.stats.as_ref().ok().and_then(|stats| stats.text("mode"));
    Some(match mode {
        Some("legacy") => about(
            Check::warn(
                ID,
                format!("{what}, and the module pins revocably: it refuses to register such memory"),
                "load the module with persistent_api_support=1",
            )
            .seen("mode in /proc/driver/nvidia-peermem/stats"),
            "have coherent memory (NVLink-C2C), which the module refuses to register: it pins revocably",
        ),
        _ if machine.devices.iter().any(Device::is_dma_direct) => about(
            Check::ok(
                ID,
                format!("{what}; NICs reach it through the CPU, whose PCIe has no ATS. A ConnectX with Data Direct goes beside the CPU, by dma-buf alone: that is faster here"),
            ),
            "have coherent memory (NVLink-C2C); a ConnectX with Data Direct reaches it beside the CPU, by dma-buf alone",
        ),
        _ => about(
            Check::ok(ID, format!("{what}; NICs reach it through the CPU, whose PCIe has no ATS")),
            "have coherent memory (NVLink-C2C); NICs reach it through the CPU, whose PCIe has no ATS",
        ),
    }
    .seen(match machine.shows_c2c(gpu) {
        true => "root ports of Grace above it in /sys/bus/pci/devices, or GPU C2C Mode of nvidia-smi -q",
        false => "name of the GPU; no root port of Grace is shown above it",
    }))
}

/// Returns what has the GPUs registered with the fabric of NVLink.
pub(super) fn register(machine: &Machine) -> String {
    let setting = &machine.setting;
    if machine.gpus().into_iter().any(|gpu| machine.has_c2c(gpu)) {
        return "the fabric manager of such a rack runs on its NVLink switches: it tells why these GPUs are in no partition; on this node nvidia-smi -q (Fabric) shows the state".to_owned();
    }
    if let Some(modules) = modules_of_fabric(machine) {
        return load_for_fabric(machine, &modules);
    }
    if setting.virtual_machine.is_some() && !machine.has_nvswitch() {
        return "this is a virtual machine that shows no NVSwitches: have the fabric manager of its host activate the partition of these GPUs; if all GPUs of the board are here (B200 and later), start nvidia-fabricmanager here".to_owned();
    }
    if setting.driver_container {
        return "nv-fabricmanager comes from a container here, the GPU driver's: kubectl logs of its pod says why it did not set the fabric up".to_owned();
    }
    let version = machine.driver.as_ref().and_then(|driver| driver.version.as_deref()).unwrap_or("of nvidia.ko");
    setting.on_host(&format!("journalctl -u nvidia-fabricmanager says why it did not set the fabric up; if it is missing or of another version, install nvidia-fabricmanager {version} (with NVLink 5 nvlsm, too), then systemctl enable --now nvidia-fabricmanager"))
}

/// Returns the modules by which the fabric manager reaches the NVSwitches of NVLink 5, as InfiniBand devices, and that
/// are not loaded (NVIDIA/gpu-operator#2781, spectrocloud/CanvOS#700, siderolabs/docs#581). Without mlx5_ib nothing
/// but vital product data tells such a function from a NIC.
fn modules_of_fabric(machine: &Machine) -> Option<Vec<&'static str>> {
    let manages = |device: &Device| {
        let data = || machine.root.text(&format!("{}/{}/{}", pci::DEVICES, device.address, rdma::PRODUCT_DATA));
        device.vendor == MELLANOX
            && device.kind() == INFINIBAND
            && data().is_ok_and(|text| text.contains(rdma::MANAGES_SWITCHES))
    };
    let has_nvlink5 = machine.gpus().into_iter().any(nvidia::may_have_nvlink5);
    let has_managers = || !machine.switch_managers.is_empty() || machine.devices.iter().any(manages);
    if !has_nvlink5 || !machine.modules_read || !has_managers() {
        return None;
    }
    let is_missing =
        |name: &&str| !machine.modules.contains_key(*name) && !load_refused::is_part_of_kernel(machine, name);
    let missing: Vec<&str> = ["mlx5_ib", "ib_umad"].into_iter().filter(is_missing).collect();
    (!missing.is_empty()).then_some(missing)
}

/// Returns what loads the modules that the fabric manager needs, and then has it set the fabric up.
fn load_for_fabric(machine: &Machine, modules: &[&str]) -> String {
    let setting = &machine.setting;
    let names = modules.join(" and ");
    let are = if modules.len() == 1 { "is" } else { "are" };
    let load = modules.iter().map(|name| format!("modprobe {name}")).collect::<Vec<_>>().join(" && ");
    let release = machine.release.as_deref().unwrap_or("$(uname -r)");
    // The package is that of modules which kernels for clouds do not bring.
    let from = match setting.distribution.as_deref() {
        Some("ubuntu") => format!(" (where it says that there is none: install linux-modules-extra-{release})"),
        _ => String::new(),
    };
    let again = match setting.driver_container {
        true => "delete the pod of the GPU driver, whose fabric manager tries again then",
        false => "systemctl restart nvidia-fabricmanager",
    };
    setting.on_node(&format!(
        "the fabric manager reaches the NVSwitches of this board as InfiniBand devices, for which {names} {are} missing: {load}{from}; for good, a line for each in /etc/modules-load.d/nvlink.conf; then {again}"
    ))
}

/// Checks whether a GPU is registered with the fabric of NVLink. A GPU that could not be registered
/// does without NVLink, as "Fabric Manager" of NVIDIA's documentation has it
/// (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide).
fn fabric(machine: &Machine, gpu: &Device) -> Option<Check> {
    const ID: &str = "gpus.fabric";
    const SEEN: &str = "State and Status of Fabric in nvidia-smi -q";
    if let Some(state) = machine.waits_for_fabric(gpu) {
        let many = format!("are not registered with their NVLink fabric ({state}): CUDA fails with error 802");
        return Some(
            Check::fail(ID, way::not_in_fabric(gpu, state), register(machine))
                .about(Kind::Gpu, &gpu.address, many)
                .seen(SEEN),
        );
    }
    let Fabric { state, status } = &machine.told(gpu)?.fabric;
    if state != "Completed" || status.is_empty() {
        return None;
    }
    let (check, many) = match status.as_str() {
        "Success" => (
            Check::ok(ID, format!("GPU {} is registered with its NVLink fabric", gpu.address)),
            "are registered with their NVLink fabric".to_owned(),
        ),
        _ => (
            Check::warn(
                ID,
                format!("GPU {} could not be registered with its NVLink fabric ({status}): other GPUs reach it over PCIe only", gpu.address),
                register(machine),
            ),
            format!("could not be registered with their NVLink fabric ({status}): other GPUs reach them over PCIe only"),
        ),
    };
    Some(check.about(Kind::Gpu, &gpu.address, many).seen(SEEN))
}

/// Finds GPUs on which CUDA makes no context. One that is left out on purpose is nothing to mend while there are
/// others.
fn context(machine: &Machine, gpu: &Device) -> Option<Check> {
    const ID: &str = "gpus.context";
    let none = machine.no_context(gpu)?;
    let address = &gpu.address;
    let others = machine.gpus().into_iter().any(|other| machine.no_context(other).is_none());
    let (fix, seen) = match none {
        NoContext::Excluded => (
            format!(
                "if that GPU is not left out for a fault: {}",
                unload::take_out_parameter(machine, "NVreg_ExcludedGpus", "")
            ),
            "GPU Excluded in /proc/driver/nvidia/gpus/*/information",
        ),
        NoContext::WithoutInstance => (
            match machine.setting.driver_container {
                true => "give the node the label nvidia.com/mig.config with the instances that it shall have (all-disabled switches MIG off), by which the GPU Operator's MIG manager makes them".to_owned(),
                false => machine.setting.on_host(&format!(
                    "nvidia-smi mig -i {address} -lgip lists profiles; nvidia-smi mig -i {address} -cgi PROFILE -C makes an instance (-cci, where it has a GPU instance without a compute instance), which lasts until the GPU is reset; or switch MIG off: nvidia-smi -i {address} -mig 0"
                )),
            },
            "MIG Mode of nvidia-smi -q, /proc/driver/nvidia/capabilities/gpu*/mig",
        ),
        NoContext::InstanceNotGiven => (
            Giver::of(machine).gives_instances(&machine.instances_not_given(gpu).unwrap_or_default().join(", ")),
            "/proc/driver/nvidia-caps/mig-minors, /dev/nvidia-caps",
        ),
        NoContext::Prohibited => (
            machine.setting.on_host(&format!("nvidia-smi -i {address} -c DEFAULT")),
            "Compute Mode of nvidia-smi -q",
        ),
    };
    let what = format!("GPU {address} {}", none.what());
    let check = match none {
        NoContext::Excluded | NoContext::InstanceNotGiven if others => Check::skip(ID, what),
        _ => Check::fail_unless(others, ID, what, fix),
    };
    Some(check.about(Kind::Gpu, address, format!("({}): each {}", machine.gpu_name(gpu), none.what())).seen(seen))
}

/// Finds GPUs that the GPU driver wants to be recovered after a fault: of that the kernel log may tell nothing more.
fn recovery(machine: &Machine, gpu: &Device) -> Option<Check> {
    let action = machine.told(gpu)?.recovery.as_deref()?;
    let what = format!("had a fault, after which the GPU driver asks for: {action}");
    Some(
        Check::warn("gpus.recovery", format!("GPU {} {what}", gpu.address), log::recovery_cure(machine, action))
            .about(Kind::Gpu, &gpu.address, what)
            .seen("GPU Recovery Action (GPU Reset Status) of nvidia-smi -q"),
    )
}

/// Looks for the fabric manager where the GPUs do not tell their state, which those before Hopper do not.
fn fabric_manager(machine: &Machine) -> Option<Check> {
    // A process's name has 15 characters.
    const NAME: &str = "nv-fabricmanage";
    let root = machine.root;
    let is_told = machine.gpus().into_iter().any(nvidia::tells_of_fabric);
    let sees_all = root.exists("/proc/1/comm") && kernel::has_initial_pids(root);
    let is_in_use = machine.registrations.iter().flatten().next().is_some();
    // NVreg_NvLinkDisable=1: the GPUs do without NVLink, and wait for nobody.
    let is_disabled = nvidia::params(root).get("NvLinkDisable").is_some_and(|value| value != "0");
    if is_told || !machine.has_nvswitch() || !sees_all || is_in_use || is_disabled {
        return None;
    }
    let pids = root.names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let mut names = pids.filter_map(|pid| root.line(&format!("/proc/{pid}/comm")));
    (!names.any(|name| name.starts_with(NAME))).then(|| {
        Check::warn(
            "gpus.fabric",
            "this machine has NVSwitches, and nv-fabricmanager does not run: where it has not set them up, CUDA fails with error 802, \"system not yet initialized\"",
            register(machine),
        )
        .seen("PCI functions of NVIDIA's of class 0680; no nv-fabricmanager in /proc/*/comm")
    })
}

/// Checks whether the device nodes are there that CUDA opens. A container without them has no GPU.
fn nodes(machine: &Machine) -> Option<Check> {
    machine.driver.as_ref()?;
    let gpus = machine.gpus();
    let has_common = machine.root.exists("/dev/nvidiactl");
    // Of nodes that may not be opened, [limits.devices] tells.
    let is_forbidden = machine.forbidden.iter().any(|path| !giver::is_of_nic(path));
    let none_given = gpus.iter().all(|gpu| machine.was_given_gpu(gpu) == Some(false));
    let give = || giver::gives_missing(machine, Nodes::Gpus).unwrap_or_else(|| "nvidia-modprobe -c 0 -u".to_owned());
    let word = Giver::of(machine).word();
    if has_common && none_given && !is_forbidden {
        return Some(
            Check::fail(
                "gpus.nodes",
                format!("this {word} has none of the GPUs that the kernel shows: there is no /dev/nvidia0 or other node of one"),
                give(),
            )
            .seen("/dev/nvidia*, Device Minor in /proc/driver/nvidia/gpus/*/information"),
        );
    }
    if has_common && !none_given && lacks_uvm(machine) {
        return Some(
            Check::fail(
                "gpus.nodes",
                "this container has no /dev/nvidia-uvm: cuInit() fails, and no program can use CUDA",
                "start this container so that it gets all nodes of the GPU driver (docker: --gpus all, or --device=/dev/nvidia-uvm beside the others; Kubernetes: a limit of nvidia.com/gpu; LXD and Incus: nvidia.runtime=true); where there is none, on the host, not in this container: nvidia-modprobe -c 0 -u",
            )
            .seen("/dev/nvidia-uvm; nvidia_uvm in /proc/modules"),
        );
    }
    (!has_common).then(|| {
        Check::fail("gpus.nodes", "/dev/nvidiactl is missing: no program can use a GPU", give()).seen("/dev/nvidiactl")
    })
}

/// Returns whether a container has nodes of GPUs, and not the one of the module by which CUDA maps memory.
fn lacks_uvm(machine: &Machine) -> bool {
    let is_loaded = machine.modules.contains_key("nvidia_uvm");
    machine.setting.container.is_some() && is_loaded && !machine.root.exists("/dev/nvidia-uvm")
}

fn dma_buf(machine: &Machine) -> Check {
    const ID: &str = "gpus.dma_buf";
    match (&machine.driver, machine.symbols.is_ok()) {
        (None, _) | (_, false) => Check::skip(ID, "unknown whether dma-buf works"),
        _ if machine.dma_buf() && machine.rdma.is_empty() => {
            Check::ok(ID, "nvidia.ko and the RDMA core offer registration by dma-buf to an RDMA device")
        }
        _ if machine.dma_buf() => Check::ok(
            ID,
            "dma-buf should work as well: GPU driver, core and a NIC's driver have it",
        ),
        _ if machine.rdma.iter().any(|nic| matches!(way::nic_takes_dma_buf(machine, nic), Judged::Unknown(_))) => {
            Check::skip(ID, "unknown whether dma-buf works: the driver of a NIC cannot be read")
        }
        _ if !machine.rdma.is_empty()
            && machine.rdma.iter().all(|nic| matches!(way::nic_takes_dma_buf(machine, nic), Judged::No(_))) =>
        {
            Check::ok(ID, "registration by dma-buf cannot work here: the drivers of the RDMA devices do not have it")
        }
        _ => Check::ok(
            ID,
            "registration by dma-buf cannot work here: it needs the open nvidia.ko and an RDMA core of kernel 5.12 or later",
        ),
    }
}

/// Reports whether the driver has the setting that GPU-driven communication needs.
fn override_parameter(machine: &Machine) -> Option<Check> {
    let params = nvidia::params(machine.root);
    let words = params.get("RegistryDwords")?;
    Some(
        match words.contains("PeerMappingOverride=1") {
            true => Check::ok("gpus.override", "PeerMappingOverride=1 is set, as NVSHMEM IBGDA, UCX GDAKI and NCCL GIN with an EFA want it"),
            false => {
                Check::ok("gpus.override", "PeerMappingOverride is not set; only NVSHMEM IBGDA, UCX GDAKI and NCCL GIN where the GPU posts to an EFA need it")
            }
        }
        .seen(format!("RegistryDwords: {words} in /proc/driver/nvidia/params")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_overlaps_is_in_bar1_once() {
        const GPU: &str = "0000:00:08.0";
        let row = |pid: u32, va: u64, pinned_bytes: u64| Registration {
            pid,
            va,
            pinned_bytes,
            state: "mapped".to_owned(),
            gpu: Some(GPU.to_owned()),
            ..Registration::default()
        };
        let at = 0x7f00_0000_0000;
        // Twice the same, a part of it, one that goes on behind it, one apart; from the middle of a
        // granule.
        let mut rows = vec![
            row(1, at, 4 << 20),
            row(1, at + 100, 4 << 20),
            row(1, at + (1 << 20), 1 << 20),
            row(1, at + (3 << 20), 2 << 20),
            row(1, at + (8 << 20), 1 << 20),
        ];
        assert_eq!(pinned(&rows, GPU), 6 << 20);
        // That address in another process is other memory.
        rows.push(row(2, at, 4 << 20));
        assert_eq!(pinned(&rows, GPU), 10 << 20);
        rows.push(Registration { state: "revoked".to_owned(), ..row(3, at, 4 << 20) });
        rows.push(Registration { gpu: None, ..row(3, at, 4 << 20) });
        assert_eq!(pinned(&rows, GPU), 10 << 20);
        assert_eq!(pinned(&rows, "0000:00:09.0"), 0);
    }

    #[test]
    fn who_asks_a_driver_that_stands_still_is_told() {
        let check = answers(Silent::Late(Duration::from_secs(20))).unwrap();
        assert!(check.message.starts_with("nvidia-smi did not answer within 20 s:"), "{}", check.message);
        assert!(answers(Silent::Failed).is_none());
    }
}
