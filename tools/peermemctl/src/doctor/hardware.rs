// SPDX-License-Identifier: GPL-2.0
//! Section 1: the GPUs and NICs that are there, and whether their drivers have them.

use super::load_refused::load_refused;
use super::{driver, gpus, log, module};
use crate::check::{Check, Kind};
use crate::facts;
use crate::giver::Giver;
use crate::log_words::is_failed_probe;
use crate::machine::Machine;
use crate::pci::{self, Device, Distance};
use crate::rdma::{self, RdmaDevice};
use crate::setting::{self, GpuClass};
use crate::text;
use std::collections::BTreeMap;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = match machine.gpus().as_slice() {
        [] => vec![no_gpu(machine)],
        gpus => gpus.iter().map(|gpu| present(machine, gpu)).collect(),
    };
    checks.extend(switch_managers(machine));
    match machine.rdma.as_slice() {
        [] => checks.push(no_device(machine)),
        devices => {
            checks.extend(devices.iter().map(|device| ports(machine, device)));
            checks.extend(devices.iter().filter_map(|device| gids(machine, device)));
            checks.extend(without_device(machine));
            checks.extend(of_family(machine));
        }
    }
    checks
}

/// Says of the devices that manage NVSwitches that they are no NICs, and whether their subnet manager has set them up.
fn switch_managers(machine: &Machine) -> Option<Check> {
    const ID: &str = "fabric.port";
    let all = &machine.switch_managers;
    let names = all.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    let first = all.first()?;
    let what = match all.as_slice() {
        [_] => format!("{names} manages NVSwitches, carries no traffic of programs, and counts as no NIC"),
        _ => format!("{names} manage NVSwitches, carry no traffic of programs, and count as no NICs"),
    };
    let seen = format!("{} in vpd of the PCI function of {}", rdma::MANAGES_SWITCHES, first.name);
    let check = match all.iter().any(waits_for_manager) {
        // Another subnet manager would take the NVLink subnet from nvlsm.
        true => Check::warn(
            ID,
            format!("{what}; nvlsm, the subnet manager of NVLink, has not set their ports up"),
            format!("{}; start no opensm on these ports", gpus::register(machine)),
        ),
        false => Check::ok(ID, what),
    };
    Some(check.seen(seen))
}

/// Returns the NICs that have no RDMA device here, although their driver, whose module is loaded, makes
/// one for each.
fn nics_without_device<'a>(machine: &'a Machine) -> Vec<&'a Device> {
    let is_known = |nic: &&Device| {
        let module = module_of(nic).filter(|module| is_sure(nic, module));
        nic.driver.is_some() && module.is_some_and(|module| machine.modules.contains_key(module))
    };
    let has_device = |nic: &&Device| machine.rdma.iter().any(|device| device.pci.as_deref() == Some(&nic.address));
    machine.devices.iter().filter(is_known).filter(|nic| !has_device(nic) && !manages_switches(machine, nic)).collect()
}

/// Returns whether a PCI function is one by which NVSwitches are managed.
fn manages_switches(machine: &Machine, nic: &Device) -> bool {
    machine.switch_managers.iter().any(|device| device.pci.as_deref() == Some(&nic.address))
}

/// Returns a NIC that is nearer to a GPU than that, and has no RDMA device here.
pub fn nearer_without_device<'a>(machine: &'a Machine, gpu: &Device, than: Distance) -> Option<&'a Device> {
    let nics = missing(machine).into_iter();
    nics.min_by_key(|nic| gpu.distance_to(nic)).filter(|nic| gpu.distance_to(nic) < than)
}

/// The cure where a container was given a NIC, and not the one that belongs to its GPU.
pub const NEARER_TO_GIVE: &str = "have the NIC that belongs to the GPU in this container, too: Kubernetes with the Topology Manager's policy restricted or single-numa-node, or a DRA driver that matches the two (kubernetes-sigs/dranet); docker with --device of that NIC's node in /dev/infiniband";

/// Returns whether a NIC has fallen off the bus.
fn is_gone(machine: &Machine, nic: &RdmaDevice) -> bool {
    nic.pci.as_deref().and_then(|address| machine.pci(address)).is_some_and(|nic| nic.is_gone)
}

/// Returns the nearest of the NICs whose distance from a GPU is at most `within`, and less than `than`.
fn nearest_of<'a>(
    machine: &'a Machine,
    gpu: &Device,
    than: Distance,
    within: Distance,
    is_meant: impl Fn(&RdmaDevice) -> bool,
) -> Option<&'a RdmaDevice> {
    let nics = machine.rdma.iter().filter(|nic| !nic.software && is_meant(nic));
    let nics = nics.filter_map(|nic| Some((gpu.distance_to(machine.pci(nic.pci.as_deref()?)?), nic)));
    let near = nics.filter(|(distance, _)| *distance < than && *distance <= within);
    near.min_by_key(|(distance, _)| *distance).map(|(_, nic)| nic)
}

/// Returns a NIC that is nearer to a GPU than that, and that this container was not given.
pub fn nearer_not_given<'a>(
    machine: &'a Machine,
    gpu: &Device,
    than: Distance,
    within: Distance,
) -> Option<&'a RdmaDevice> {
    let is_elsewhere = |nic: &RdmaDevice| nic.is_active() && machine.was_given_nic(nic) == Some(false);
    nearest_of(machine, gpu, than, within, is_elsewhere)
}

/// Returns a NIC that is nearer to a GPU than that, and of which `fabric.port` says that no port is active.
pub fn nearer_down<'a>(machine: &'a Machine, gpu: &Device, than: Distance, within: Distance) -> Option<&'a RdmaDevice> {
    let is_down = |nic: &RdmaDevice| {
        is_gone(machine, nic) || !nic.is_active() && !nic.ports.is_empty() && spare(machine, nic).is_none()
    };
    nearest_of(machine, gpu, than, within, is_down)
}

/// Returns a NIC that is nearer to a GPU than that and belongs to no driver that makes an RDMA device, although its
/// like does, and what gives it back.
pub fn nearer_unbound<'a>(
    machine: &'a Machine,
    gpu: &Device,
    than: Distance,
    within: Distance,
) -> Option<(&'a Device, String)> {
    let is_unbound = |nic: &&Device| nic.driver.as_deref().and_then(rdma::memory_module).is_none();
    let driver_of_its_like = |nic: &Device| {
        let functions = machine.rdma.iter().filter_map(|device| machine.pci(device.pci.as_deref()?));
        let mut alike = functions.filter(|other| (other.vendor, other.device) == (nic.vendor, nic.device));
        alike.find_map(|other| other.driver.clone())
    };
    let mut near = machine.devices.iter().filter(|nic| nic.kind() >> 8 == 2).filter(is_unbound).filter(|nic| {
        let distance = gpu.distance_to(nic);
        distance < than && distance <= within
    });
    let (nic, driver) = near.find_map(|nic| Some((nic, driver_of_its_like(nic)?)))?;
    let address = &nic.address;
    let unbind = nic
        .driver
        .as_deref()
        .map_or(String::new(), |other| format!("echo {address} > /sys/bus/pci/drivers/{other}/unbind && "));
    let bind = format!("{unbind}echo {address} > /sys/bus/pci/drivers/{driver}/bind");
    let fix = format!("if no virtual machine or other program has {address}, give it back to {driver}: {bind}");
    let given_up = given_up(machine, nic).map(|given_up| given_up.fix);
    Some((nic, given_up.unwrap_or_else(|| machine.setting.on_host(&fix))))
}

/// A NIC that its driver has given up.
struct GivenUp {
    /// The driver, and why.
    why: String,
    fix: String,
    seen: String,
}

/// Returns what the log tells of a driver that gave a NIC up when it started it.
fn given_up(machine: &Machine, nic: &Device) -> Option<GivenUp> {
    let address = &nic.address;
    if nic.driver.is_some() {
        return None;
    }
    let of_nic = || machine.log.iter().flatten().filter(|line| line.contains(address.as_str()));
    let line = of_nic().rfind(|line| is_failed_probe(line))?;
    let driver = line.split([' ', ':']).next().unwrap_or_default();
    let bind = format!("echo {address} > /sys/bus/pci/drivers/{driver}/bind, or reboot");
    // mlx5_core waits for firmware "in pre-initializing state" (main.c).
    let is_firmware = of_nic().any(|line| line.contains("initializ"));
    let (why, fix) = match (is_firmware, nic.is_bluefield()) {
        (true, true) => (
            "as its firmware did not start",
            format!("see whether the Arm system of that BlueField boots (its console by rshim or its BMC), and boot it; then {bind}"),
        ),
        (true, false) => (
            "as its firmware did not start",
            "power this machine off and on again, as a reboot alone need not start that firmware anew; if that does not bring it back, burn the firmware again (mlxfwmanager, or the NIC maker's program), or take another card".to_owned(),
        ),
        (false, _) => ("for a reason that dmesg names", format!("dmesg | grep {address} names the reason; then {bind}")),
    };
    let fix = match is_firmware {
        true => machine.setting.on_hardware(&fix),
        false => machine.setting.on_host(&fix),
    };
    Some(GivenUp { why: format!("{driver} gave it up, {why}"), fix, seen: format!("kernel log: {line}") })
}

/// Returns what to do about a GPU whose nearest NIC is not below its switch, if all others have one there: it had one,
/// too, as a rule.
pub fn nearer_lost(machine: &Machine, gpu: &Device, than: Distance) -> Option<String> {
    /// The number of other GPUs that show how the machine was built.
    const MANY: usize = 3;
    let nics: Vec<&Device> = machine.rdma.iter().filter_map(|nic| machine.pci(nic.pci.as_deref()?)).collect();
    let has_near = |other: &&Device| nics.iter().any(|nic| other.way_to(nic).shares_a_switch());
    let gpus = machine.gpus().into_iter();
    let others: Vec<&Device> =
        gpus.filter(|other| other.address != gpu.address && !machine.is_for_display(other)).collect();
    let is_lost = than > Distance::Pxb && !has_near(&gpu) && others.len() >= MANY && others.iter().all(has_near);
    // What a virtual machine shows need not be how the hardware is built.
    (is_lost && machine.setting.virtual_machine.is_none()).then(|| {
        machine.setting.on_host("the other GPUs have a NIC below their switch: if this one had such a NIC, it is off the bus (dmesg | grep -E 'pcieport|AER|mlx5' tells; reboot, then look at the card and its slot); else put a NIC into a slot next to the GPU, or run on the others")
    })
}

/// Returns the NICs that should have an RDMA device here, and have none: all, where devices are seen in
/// their own network namespace only, else those whose like has one.
fn missing<'a>(machine: &'a Machine) -> Vec<&'a Device> {
    let found = || look_for_missing(machine).into_iter().map(|nic| nic.address.clone()).collect();
    // Each pair of GPU and NIC asks.
    machine.given.without_device.get_or_init(found).iter().filter_map(|address| machine.pci(address)).collect()
}

fn look_for_missing<'a>(machine: &'a Machine) -> Vec<&'a Device> {
    let alike = |nic: &&Device| {
        let same = |other: &Device| (other.vendor, other.device) == (nic.vendor, nic.device);
        machine.rdma.iter().filter_map(|device| machine.pci(device.pci.as_deref()?)).any(same)
    };
    // The functions of a card that are bonded have one device together: mlx5_bond_0, unless udev has given it another
    // name (kernel-boot/rdma_rename.c of rdma-core).
    let slot = |address: &str| address.rsplit_once('.').map(|(slot, _)| slot.to_owned());
    let is_bonded = |nic: &&Device| {
        let is_it = |device: &RdmaDevice| {
            let Some(at) = device.pci.as_deref().filter(|at| slot(at) == slot(&nic.address)) else { return false };
            let bond = || bond_of(machine, at).is_some_and(|bond| Some(bond) == bond_of(machine, &nic.address));
            device.name.contains("bond") || bond()
        };
        machine.rdma.iter().any(is_it)
    };
    let nics = nics_without_device(machine).into_iter().filter(|nic| !is_bonded(nic));
    nics.filter(|nic| machine.setting.rdma_by_namespace || alike(nic)).collect()
}

/// Returns the bond that the network interface of a PCI function belongs to.
fn bond_of(machine: &Machine, address: &str) -> Option<String> {
    let folder = format!("{}/{address}/net", pci::DEVICES);
    machine.root.names(&folder).iter().find_map(|name| machine.root.link_name(&format!("{folder}/{name}/{MASTER}")))
}

/// The link of a network interface to the bond, or bridge, that it belongs to.
pub const MASTER: &str = "master";

/// Names NICs that have no RDMA device here while others have one: they are with pods, or were lost there
/// (kubernetes-sigs/dranet#177), or their driver did not make one.
fn without_device(machine: &Machine) -> Option<Check> {
    const ID: &str = "fabric.rdma";
    let by_namespace = machine.setting.rdma_by_namespace;
    let missing = missing(machine);
    let first = missing.first()?;
    let names = missing.iter().map(|nic| nic.address.as_str()).collect::<Vec<_>>().join(", ");
    let seen = "/sys/class/infiniband, /sys/bus/pci/devices";
    if by_namespace {
        let (have, driver) = (text::count(missing.len(), "NIC"), first.driver.as_deref().unwrap_or_default());
        // From inside a pod nobody knows whether another one has ended.
        let rebind = match machine.setting.container {
            Some(_) => String::new(),
            None => format!("; if a pod has ended and its device did not come back: echo ADDRESS > /sys/bus/pci/drivers/{driver}/unbind && echo ADDRESS > /sys/bus/pci/drivers/{driver}/bind"),
        };
        let what = format!("the RDMA devices of {have} are in other network namespaces (ib_core netns_mode=N), and are not judged here: {names}. Run this in the pods that have them{rebind}");
        return Some(Check::skip(ID, what).seen(seen).seen("N in /sys/module/ib_core/parameters/netns_mode"));
    }
    let have = match missing.as_slice() {
        [_] => "1 NIC has no RDMA device, and others of its kind have one".to_owned(),
        many => format!("{} have no RDMA device, and others of their kind have one", text::count(many.len(), "NIC")),
    };
    let module = module_of(first).unwrap_or_default();
    let fix =
        format!("{}; else dmesg | grep -E '{module}|{}' says why there is none", switched_off(first), first.address);
    Some(Check::warn(ID, format!("{have}: {names}"), fix).seen(seen))
}

/// Returns what tells whether the RDMA device of a NIC was switched off, and switches it on. The reload takes the
/// network over that NIC away for a while.
fn switched_off(nic: &Device) -> String {
    format!(
        "devlink dev param show pci/{0} name enable_rdma tells whether it was switched off (enable_roce on some): devlink dev param set pci/{0} name enable_rdma value true cmode driverinit && devlink dev reload pci/{0}, from a console",
        nic.address
    )
}

/// Says of an instance of Amazon's that its EFAs reach no GPU memory, if there is no other NIC.
fn of_family(machine: &Machine) -> Option<Check> {
    let mut families = machine.rdma.iter().map(|nic| machine.instance_without_gpudirect(nic));
    let first = families.next()??;
    families.all(|family| family.is_some()).then(|| {
        Check::fail(
            "fabric.rdma",
            format!("the hardware of instances of {first} lets no EFA reach GPU memory"),
            "use an instance of the p family, p4d or later; here programs copy through host memory, and nothing has to be installed for that",
        )
        .seen("product_name in /sys/class/dmi/id")
        .seen(facts::EFA_FAMILIES.source)
    })
}

/// The device by which WSL asks Windows for its GPU (drivers/hv/dxgkrnl of Microsoft's kernel).
pub const WSL: &str = "/dev/dxg";

fn no_gpu(machine: &Machine) -> Check {
    const ID: &str = "gpus.present";
    let seen = "/sys/bus/pci/devices";
    if machine.devices.is_empty() && !machine.setting.tegra && !machine.root.exists(WSL) {
        return Check::skip(ID, "unknown whether there is a GPU: no PCI function can be read").seen(seen);
    }
    if machine.setting.tegra {
        let (why, cure) = GpuClass::Integrated.refusal().unwrap_or_default();
        return Check::fail(ID, format!("the GPU of this Tegra {why}"), cure)
            .seen("/proc/device-tree/compatible, /etc/nv_tegra_release");
    }
    // Windows has the GPU and its driver: this kernel has no nvidia.ko that a module could bind to.
    if machine.root.exists(WSL) {
        return Check::fail(
            ID,
            "the GPU of WSL is reached through Windows (/dev/dxg): there is neither peer memory nor dma-buf of it",
            "run on Linux itself, or copy through host memory",
        )
        .seen(WSL);
    }
    let setting = &machine.setting;
    let fix = match (&setting.container, &setting.virtual_machine) {
        (Some(_), _) => "start this container with the GPU (docker: --gpus all; Kubernetes: a limit of nvidia.com/gpu); lspci -d 10de: on the host shows what is there",
        (_, Some(_)) => "pass a GPU through to this virtual machine; lspci -d 10de: shows what came through",
        _ => "lspci -d 10de: shows what the firmware found",
    };
    // Those of data centres are processing accelerators (class 1200).
    let is_of_amd =
        |device: &&Device| device.vendor == AMD && matches!(device.kind(), 0x0300 | 0x0302 | 0x0380 | 0x1200);
    if let Some(gpu) = machine.devices.iter().find(is_of_amd).filter(|gpu| gpu.driver.as_deref() == Some("amdgpu")) {
        return Check::fail(
            ID,
            format!("there is no GPU of NVIDIA's in this {}, but one of AMD's ({})", setting.what(), gpu.address),
            "ask AMD's own tools: the driver amdgpu gives NICs memory of its GPUs by itself, which this program does not judge",
        )
        .seen(seen);
    }
    Check::fail(ID, format!("there is no GPU of NVIDIA's in this {}", setting.what()), fix).seen(seen)
}

/// AMD's PCI vendor.
const AMD: u16 = 0x1002;

fn present(machine: &Machine, gpu: &Device) -> Check {
    const ID: &str = "gpus.present";
    let model = machine.gpu_name(gpu);
    let name = format!("GPU {} ({model})", gpu.address);
    let in_vain = machine.gpus().iter().all(|gpu| machine.refusal(gpu).is_some());
    if gpu.is_gone {
        let only = machine.gpus().len() == 1;
        let others_work = machine.gpus().iter().any(|gpu| !gpu.is_gone);
        let when =
            if others_work { "when the programs on the other GPUs have ended (fuser -v /dev/nvidia*), " } else { "" };
        let fix = log::reset_gpu(machine, "that GPU");
        return Check::fail_unless(
            !only,
            ID,
            format!("{name} has fallen off the bus: it answers nothing"),
            format!("{when}reboot, or {fix}"),
        )
        .about(Kind::Gpu, &gpu.address, "have fallen off the bus: they answer nothing")
        .seen(format!("only ones in /sys/bus/pci/devices/{}/config", gpu.address));
    }
    // Programs use the board beside this GPU, so its limits are no fault.
    if machine.gpu_class(gpu) == GpuClass::Integrated && !in_vain {
        let what =
            "shares the CPU's memory, of which NICs take what cudaHostAlloc() gives; another GPU here has its own";
        return Check::ok(ID, format!("{name} {what}"))
            .about(Kind::Gpu, &gpu.address, format!("({model}): each {what}"))
            .seen(format!("/sys/bus/pci/devices/{}", gpu.address));
    }
    if machine.is_for_display(gpu) && gpu.driver.as_deref() == Some("nvidia") {
        let what = "drives displays, with a small BAR1; programs use the GPUs beside it, which have none";
        return Check::ok(ID, format!("{name} {what}"))
            .about(Kind::Gpu, &gpu.address, format!("({model}): each {what}"))
            .seen(format!("class and BARs in /sys/bus/pci/devices/{}", gpu.address));
    }
    let silent = not_started(machine, gpu);
    let (check, many) = match (machine.refusal(gpu), gpu.driver.as_deref(), silent) {
        // Other GPUs may work.
        (Some((why, cure)), ..) => {
            (Check::fail_unless(!in_vain, ID, format!("{name} {why}"), cure), format!("({model}): each {why}"))
        }
        // Such as with a changed driver or libcuda: NVIDIA/open-gpu-kernel-modules has forks that do so.
        (None, Some("nvidia"), _) if machine.gpu_class(gpu).refusal().is_some() => {
            let what =
                "a GeForce board, for which NVIDIA supports no GPUDirect RDMA, and memory is pinned all the same";
            let fix = "keep what makes that work (a changed driver or libcuda) when the driver is updated, or use a data-centre or RTX professional GPU";
            (Check::warn(ID, format!("{name} is {what}"), fix), format!("({model}): each is {what}"))
        }
        (_, Some("nvidia"), Some(seen)) => {
            let what = format!("{name} could not be initialised by nvidia.ko: no CUDA program sees it");
            let check = match why_not_started(machine, gpu) {
                Some((why, cure, line)) => {
                    let others = machine.gpus().iter().any(|other| not_started(machine, other).is_none());
                    Check::fail_unless(others, ID, format!("{what}, as {why}"), cure)
                        .seen(format!("kernel log: {line}"))
                }
                None => Check::warn(
                    ID,
                    what,
                    machine.setting.on_host(&format!(
                        "dmesg | grep NVRM names the reason; then reboot, or {}",
                        log::reset_gpu(machine, "that GPU")
                    )),
                ),
            };
            (check.seen(seen), "could not be initialised by nvidia.ko".to_owned())
        }
        (_, Some("nvidia"), None) => {
            (Check::ok(ID, format!("{name} belongs to nvidia.ko")), format!("({model}) belong to nvidia.ko"))
        }
        (_, Some(other), _) => (
            Check::fail_unless(
                machine.gpus().iter().any(|gpu| gpu.driver.as_deref() == Some("nvidia")),
                ID,
                format!("{name} belongs to the driver {other}"),
                give_back(machine, gpu, other),
            ),
            format!("belong to the driver {other}"),
        ),
        (_, None, _) if machine.drivers_are_hidden() => (
            Check::skip(ID, format!("{name}: which driver it belongs to cannot be read")),
            format!("({model}) have a driver that cannot be read"),
        ),
        (_, None, _) => {
            let (why, cure) = no_driver(machine, gpu);
            let others = machine.gpus().iter().any(|gpu| gpu.driver.as_deref() == Some("nvidia"));
            (Check::fail_unless(others, ID, format!("{name} has no driver{why}"), cure), "have no driver".to_owned())
        }
    };
    let mut check = check.about(Kind::Gpu, &gpu.address, many);
    if check.is_finding() && gpu.driver.as_deref() == Some("nvidia") && log::fell_off(machine, gpu) {
        check.follows = Some(log::cause_of_fall(machine, gpu));
    }
    let is_silent = check.is_finding() && machine.smi.as_ref().is_ok_and(BTreeMap::is_empty);
    if is_silent && gpu.driver.as_deref() == Some("nvidia") && log::refuses_own_libraries(machine) {
        check.follows = Some("log.api");
    }
    check.seen(format!("/sys/bus/pci/devices/{}/driver", gpu.address))
}

/// Returns what gives nvidia.ko a GPU that another driver has.
fn give_back(machine: &Machine, gpu: &Device, driver: &str) -> String {
    let rebind = format!(
        "echo {0} > /sys/bus/pci/drivers/{driver}/unbind && echo {0} > /sys/bus/pci/drivers/nvidia/bind",
        gpu.address
    );
    const IMAGE: &str = "build the initial RAM disk again (update-initramfs -u, dracut -f), and reboot";
    match driver {
        "nouveau" => {
            let list = "echo blacklist nouveau > /etc/modprobe.d/nouveau.conf";
            return machine.setting.on_node(&format!("{list}, {IMAGE}"));
        }
        // It takes GPUs from Linux 6.15 on, where a kernel is built with it (beclab/Olares#3963).
        "NovaCore" => {
            let list = "printf 'blacklist nova_core\\nblacklist nova_drm\\n' > /etc/modprobe.d/nova.conf";
            return machine.setting.on_node(&format!("{list}, {IMAGE}"));
        }
        _ => {}
    }
    machine.setting.on_host(&match driver {
        // The write does not return before the guest has given it back.
        _ if pci::is_of_vfio(driver) => format!("if no virtual machine has it (fuser -v /dev/vfio/*): {rebind}"),
        _ if gpu.driver_for_guests().is_some() => format!("if no virtual machine has it: {rebind}"),
        _ => rebind,
    })
}

/// Returns why a GPU has no driver although nvidia.ko is loaded, as that says in the kernel log, and what to do.
fn no_driver(machine: &Machine, gpu: &Device) -> (String, String) {
    /// Words of the line, what they mean, and the cure.
    const REASONS: [(&str, &str, &str); 4] = [
        (
            "not supported by open",
            "the open nvidia.ko does not know GPUs before Turing",
            "install the closed kernel modules of a driver that knows this GPU",
        ),
        (
            "requires use of the NVIDIA open kernel modules",
            "only the open nvidia.ko knows this GPU",
            "install the open kernel modules of the same driver (package nvidia-open)",
        ),
        (
            "Legacy drivers",
            "this driver is too new for the GPU",
            "install the driver's branch that this line of the kernel log names",
        ),
        (
            "BAR1 is 0M",
            "the firmware gave its BAR1 no addresses",
            "switch on Above 4G Decoding in the firmware's settings, then reboot",
        ),
    ];
    let about = |line: &&String| line.contains(&gpu.address) || machine.gpus().len() == 1;
    let lines = machine.log.iter().flatten().filter(|line| line.contains("NVRM")).filter(about);
    let found = lines.flat_map(|line| REASONS.iter().filter(|(words, ..)| line.contains(words))).last();
    match found {
        Some((_, why, _)) if machine.setting.driver_container => (
            format!(": {why}"),
            "have the GPU Operator bring a driver that knows it (driver.kernelModuleType: open from Turing on, else proprietary; driver.version)".to_owned(),
        ),
        Some((_, why, cure)) => (format!(": {why}"), (*cure).to_owned()),
        None if machine.driver.is_some() => {
            (String::new(), "nvidia.ko is loaded and did not take it: dmesg | grep NVRM names the reason".to_owned())
        }
        None if machine.setting.container.is_some() || machine.setting.driver_container => {
            (String::new(), machine.load_driver())
        }
        None => {
            let found = driver::why_not_loaded(machine);
            (found.why.map_or(String::new(), |why| format!(": {why}")), found.fix)
        }
    }
}

/// Returns the evidence that nvidia.ko has a GPU and could not start it. That may be over, so it is a warning.
fn not_started(machine: &Machine, gpu: &Device) -> Option<String> {
    let smi = machine.smi.as_ref().ok();
    let has_started = machine.registrations.iter().flatten().any(|row| row.gpu.as_deref() == Some(&gpu.address));
    if has_started || machine.no_context(gpu).is_some() || smi.is_some_and(|smi| smi.contains_key(&gpu.address)) {
        return None;
    }
    // A container or job is shown those GPUs that it was given.
    if let Some(smi) = smi.filter(|_| machine.has_all_devices()) {
        return Some(match smi.is_empty() {
            true => "nvidia-smi -q names no GPU".to_owned(),
            false => "nvidia-smi -q names other GPUs, and not this one".to_owned(),
        });
    }
    let failed = |line: &&String| line.contains("RmInitAdapter failed") && line.contains(&gpu.address);
    machine.log_of_driver().iter().rfind(failed).map(|line| format!("kernel log: {line}"))
}

/// Returns why nvidia.ko could not start a GPU, as it says in the kernel log, what to do, and the line. Until that is
/// done no other try ends better, so no CUDA program sees the GPU.
pub fn why_not_started(machine: &Machine, gpu: &Device) -> Option<(&'static str, String, String)> {
    not_started(machine, gpu)?;
    let of_gpu = |line: &str| line.contains(&gpu.address) || machine.gpus().len() == 1;
    let setting = &machine.setting;
    let version = || machine.driver.as_ref().and_then(|driver| driver.version.as_deref()).unwrap_or("of nvidia.ko");
    let of = |line: &String| {
        let has = |words: &str| line.contains(words) && of_gpu(line);
        // ublue-os/bazzite#2668; this line names no GPU, and the firmware is the same for all.
        if line.contains("NVRM") && line.contains("No firmware image found") {
            let fix = format!(
                "install the firmware of driver {0} (Debian and Ubuntu: package nvidia-firmware-*, else the driver's own), so that /lib/firmware/nvidia/{0} has it; where nvidia.ko is in the initial RAM disk, build that again (update-initramfs -u, dracut -f); then reboot",
                version()
            );
            let fix = match setting.driver_container {
                true => setting.restart_driver(),
                false => setting.on_node(&fix),
            };
            return Some(("the driver's firmware (GSP) is not there", fix));
        }
        if log::says_fallen(line, gpu) {
            return Some(("it has fallen off the bus", log::reboot_for_gpu(machine)));
        }
        has("necessary power cables connected").then(|| {
            let fix =
                setting.on_hardware("power the machine off and connect the power cables of that board; no reset helps");
            ("the power cables of that board are not connected", fix)
        })
    };
    machine.log_of_driver().iter().rev().find_map(|line| of(line).map(|(why, fix)| (why, fix, line.clone())))
}

/// The PCI vendors of NICs that may be RDMA devices, each with the module of these devices.
const VENDORS: [(u16, &str); 7] = [
    (0x15b3, "mlx5_ib"),
    (0x14e4, "bnxt_re"),
    (0x1dd8, "ionic_rdma"),
    (0x1d0f, "efa"),
    (0x1ded, "erdma"),
    (0x1414, "mana_ib"),
    (0x8086, "irdma"),
];

/// Returns the module of a NIC's RDMA device, if it has one. Its driver decides where it has one: a maker's
/// management ports have others (tg3, igb, ena), and that of VFIO gives it to a virtual machine.
fn module_of(nic: &Device) -> Option<&'static str> {
    if let Some(driver) = nic.driver.as_deref() {
        return rdma::memory_module(driver);
    }
    // Class 02 is network, 0207 InfiniBand.
    let vendor = VENDORS.iter().find(|(vendor, _)| *vendor == nic.vendor && nic.kind() >> 8 == 2);
    vendor.map(|(_, module)| *module)
}

/// Returns whether a NIC whose RDMA device would be one of a module is an RDMA device for sure. Amazon's and
/// Alibaba's have ids of their own (efa_main.c and erdma_main.c in drivers/infiniband/hw); Intel and Emulex also make
/// network cards without RDMA.
fn is_sure(nic: &Device, module: &str) -> bool {
    match module {
        "efa" => (0xefa0..=0xefa3).contains(&nic.device),
        "erdma" => nic.device == 0x107f,
        "irdma" | "ocrdma" => false,
        _ => true,
    }
}

/// Returns whether a NIC may be an RDMA device of Intel's: the E800s, which ice drives, and among those of i40e the
/// X722, whose ids are these.
fn is_of_intel(nic: &Device) -> bool {
    match nic.driver.as_deref() {
        Some("ice") => true,
        Some("i40e") => (0x37ce..=0x37d3).contains(&nic.device),
        _ => false,
    }
}

/// Returns a NIC whose driver makes no RDMA device and pins GPU memory by itself: HPE's Slingshot, or whatever
/// driver uses nvidia.ko.
pub fn with_own_way<'a>(machine: &'a Machine) -> Option<&'a Device> {
    const SLINGSHOT: &str = "cxi_ss1";
    let users = machine.modules.get("nvidia").map(|nvidia| nvidia.used_by.as_slice()).unwrap_or_default();
    let is_user = |driver: &str| driver == SLINGSHOT || users.iter().any(|user| *user == driver.replace('-', "_"));
    let is_it = |device: &&Device| device.kind() >> 8 == 2 && device.driver.as_deref().is_some_and(is_user);
    machine.devices.iter().find(is_it)
}

/// Returns where the RDMA device of a NIC may be, which is not in the network namespace of this process. Whoever is
/// in the first one may take it back from a pod that has ended; from elsewhere that ends the traffic of the host.
fn by_namespace(machine: &Machine, nic: &Device) -> String {
    const FIRST: &str = "nsenter --net=/proc/1/ns/net peermemctl doctor";
    let of_unit = match Giver::of(machine) {
        Giver::Service(unit) => format!(
            "take PrivateNetwork=yes (or NetworkNamespacePath=) out of {}",
            unit.as_ref().map_or("the unit of this service", |unit| unit.name.as_str())
        ),
        _ => "start the program there".to_owned(),
    };
    match setting::is_in_first(machine.root, "net") == Some(false) {
        true => format!(
            "this process is in another one than the host, which may be at work with it. Run this there: {FIRST}; so that programs reach it, {of_unit}, or give it to this namespace: rdma dev set DEVICE netns NAME"
        ),
        false => {
            let driver = nic.driver.as_deref().unwrap_or("mlx5_core");
            let address = &nic.address;
            format!("run this in the pod; if the pod has ended, as root in the host's own network namespace: echo {address} > /sys/bus/pci/drivers/{driver}/unbind && echo {address} > /sys/bus/pci/drivers/{driver}/bind")
        }
    }
}

/// Google's virtual NIC.
const GVNIC: (u16, u16) = (0x1ae0, 0x0042);

fn no_device(machine: &Machine) -> Check {
    const ID: &str = "fabric.rdma";
    const ASK: &str =
        "ask for an RDMA device in the pod's specification (device plugin, CNI or DRA driver of the network operator)";
    const BY_NAMESPACE: &str = "N in /sys/module/ib_core/parameters/netns_mode";
    let message = "there is no RDMA device";
    let seen = match machine.switch_managers.is_empty() {
        true => "/sys/class/infiniband is empty",
        false => "no device in /sys/class/infiniband but those that manage NVSwitches",
    };
    if machine.root.exists(WSL) {
        let mut check = Check::fail(ID, format!("{message} in WSL"), "run on Linux itself").seen(seen);
        check.follows = Some("gpus.present");
        return check;
    }
    let nics = machine.devices.iter().filter(|device| !manages_switches(machine, device));
    let nics: Vec<(&Device, &str)> = nics.filter_map(|device| Some((device, module_of(device)?))).collect();
    let loaded = |module: &str| machine.modules.contains_key(module);
    let setting = &machine.setting;
    if let Some((nic, module)) = nics.iter().find(|(_, module)| loaded(module)) {
        let what = format!(
            "{message} to be seen here, although {module} is loaded and there is a NIC of its kind: {} ({})",
            nic.address,
            nic.name()
        );
        // The NICs in sysfs are the node's, and other pods may be at work with them.
        if setting.rdma_by_namespace && setting.container.is_some() {
            let what = format!("{message} in the network namespace of this container, and RDMA devices are seen only in the one that has them (ib_core netns_mode=N)");
            return Check::fail(ID, what, ASK).seen(seen).seen(BY_NAMESPACE);
        }
        if let Some(given_up) = given_up(machine, nic) {
            return Check::fail(ID, format!("{what}: {}", given_up.why), given_up.fix).seen(seen).seen(given_up.seen);
        }
        if setting.rdma_by_namespace {
            let here = by_namespace(machine, nic);
            let why = format!(
                "RDMA devices are seen only in the network namespace that has them (ib_core netns_mode=N): {here}"
            );
            return Check::skip(ID, format!("{what}. {why}")).seen(seen).seen(BY_NAMESPACE);
        }
        let again =
            format!("dmesg | grep {module} says why it made no device; modprobe -r {module} && modprobe {module}");
        let fix = setting.on_host(&match nic.driver.as_deref() {
            Some("mlx5_core") => format!("{}; else {again}", switched_off(nic)),
            _ => again,
        });
        return Check::fail(ID, what, fix).seen(seen).seen(format!("{module} in /proc/modules"));
    }
    if let Some(nic) = with_own_way(machine) {
        let driver = nic.driver.as_deref().unwrap_or_default();
        let what = format!(
            "{message}, but a NIC whose driver {driver} takes GPU memory by itself, for programs that speak with it (libfabric's cxi provider with Slingshot): {} ({}). That is not judged here; NCCL's own transport, UCX and plain ibv_reg_mr() do not reach it",
            nic.address,
            nic.name()
        );
        return Check::skip(ID, what).seen(seen).seen("nvidia in /proc/modules, and driver of the NIC");
    }
    let sure = nics.iter().find(|(nic, module)| is_sure(nic, module));
    if let Some((nic, module)) = sure.or_else(|| nics.iter().find(|(nic, _)| is_of_intel(nic))) {
        let what = format!("{message}, although there is a NIC that may be one: {} ({})", nic.address, nic.name());
        if let Some(given_up) = given_up(machine, nic) {
            return Check::fail(ID, format!("{what}: {}", given_up.why), given_up.fix).seen(seen).seen(given_up.seen);
        }
        let load = format!("modprobe {module}");
        let below = (*module == "mlx5_ib").then_some("mlx5_core");
        let names = std::iter::once(*module).chain(below);
        let mut kept = names.filter_map(|name| module::kept_out(machine, name, &load));
        if let Some((line, fix)) = kept.next().filter(|_| !setting.ofed_container) {
            let whose = match *module {
                "mlx5_ib" => " (the container of DOCA-OFED leaves such a file where it is killed)",
                // openshift/openshift-docs#91003
                "irdma" => " (on OpenShift such a file is part of the setup of DOCA-OFED)",
                _ => "",
            };
            let what = format!("{what}. {} keeps its driver out{whose}", line.file);
            return Check::fail(ID, what, fix).seen(seen).seen(format!("{}: {}", line.file, line.text));
        }
        if let Some(refused) = load_refused(machine, module) {
            let check = Check::fail(ID, format!("{what}; {}", refused.why), setting.on_host(&refused.fix));
            return check.seen(seen).seen(refused.seen);
        }
        let fix = match setting.ofed_container {
            true => "the RDMA core of this node comes from a container: delete the pod of the network operator's driver, which loads its drivers again".to_owned(),
            false => setting.on_host(&format!("modprobe {module}")),
        };
        return Check::fail(ID, what, fix).seen(seen);
    }
    if machine.devices.is_empty() {
        return Check::skip(
            ID,
            "unknown whether there is an RDMA device: neither /sys/class/infiniband nor a PCI function can be read",
        )
        .seen(seen);
    }
    let given_away = |nic: &'_ Device| {
        let driver = nic.driver_for_guests().filter(|_| nic.kind() >> 8 == 2)?;
        Some((nic.address.clone(), driver.to_owned()))
    };
    let given_away = machine.devices.iter().find_map(given_away);
    // No option of a container brings what its node does not have.
    let is_elsewhere = setting.container.is_some() && !nics.is_empty();
    let fix = match (&setting.container, &setting.virtual_machine) {
        _ if setting.rdma_by_namespace && setting.container.is_some() => ASK,
        (_, Some(_))
            if !is_elsewhere
                && machine.root.line("/sys/class/dmi/id/sys_vendor").as_deref() == Some("Amazon EC2") =>
        {
            "attach a network interface of type EFA to this instance; lspci shows it"
        }
        // NVIDIA's own plugin for these speaks TCP.
        (_, Some(_)) if !is_elsewhere && machine.devices.iter().any(|device| (device.vendor, device.device) == GVNIC) => {
            "take a machine type with RDMA NICs (a3-ultragpu, a4); over its gVNICs only GPUDirect-TCPX goes, a plugin of NCCL"
        }
        (None, _) if given_away.is_some() => "run this in the virtual machine that has the NIC, or take it back from the driver that gives it away",
        (Some(_), _) if nics.is_empty() && machine.devices.iter().any(|device| device.kind() >> 8 == 2) => {
            "run this container on a node with an RDMA NIC: none of the network functions of this node (lspci) is known here to be one, and no option of the container brings it"
        }
        (Some(_), _) => "start this container with the RDMA device (docker: --device=/dev/infiniband --network=host; Kubernetes: what the RDMA device plugin offers)",
        (_, Some(_)) => "pass an RDMA NIC through to this virtual machine; lspci shows what came through",
        _ => "install an RDMA NIC; lspci shows what is there",
    };
    let what = given_away
        .map_or(String::new(), |(address, driver)| format!("; {address} is given to a virtual machine ({driver})"));
    Check::fail(ID, format!("{message} in this {}{what}", setting.what()), fix).seen(seen)
}

/// Returns why no GPU needs a NIC: each has one that programs may connect by and that is nearer or on the same card,
/// or this is a virtual function beside such NICs.
pub fn spare(machine: &Machine, device: &RdmaDevice) -> Option<&'static str> {
    let address = |device: &RdmaDevice| device.pci.clone().filter(|_| !device.software);
    let own = address(device)?;
    let at = machine.pci(&own)?;
    let active: Vec<&Device> = machine
        .rdma
        .iter()
        .filter(|other| other.can_connect() && other.name != device.name)
        .filter_map(|other| machine.pci(&address(other)?))
        .collect();
    if machine.root.exists(&format!("{}/{own}/physfn", pci::DEVICES)) {
        return (!active.is_empty()).then_some("it is a virtual function beside NICs that are active");
    }
    // All functions of one card are equally near to a GPU.
    let slot = |address: &str| address.rsplit_once('.').map(|(slot, _)| slot.to_owned());
    if active.iter().any(|other| slot(&other.address) == slot(&own)) {
        return Some("another port of its card is");
    }
    let gpus = machine.gpus();
    let is_nearer = |gpu: &&Device| active.iter().any(|nic| gpu.distance_to(nic) < gpu.distance_to(at));
    (!gpus.is_empty() && gpus.iter().all(is_nearer)).then_some("each GPU has a nearer NIC")
}

/// Returns whether a port of InfiniBand has its link, and waits for a subnet manager.
fn waits_for_manager(device: &RdmaDevice) -> bool {
    device.ports.iter().any(|port| port.link_layer == "InfiniBand" && ["INIT", "ARMED"].contains(&port.state.as_str()))
}

fn ports(machine: &Machine, device: &RdmaDevice) -> Check {
    const ID: &str = "fabric.port";
    if let Some(nic) = device.pci.as_deref().and_then(|address| machine.pci(address)).filter(|nic| nic.is_gone) {
        return Check::fail_unless(
            machine.rdma.iter().any(|other| other.name != device.name && !is_gone(machine, other)),
            ID,
            format!("{} at {} ({}) has fallen off the bus: it answers nothing", device.name, nic.address, nic.name()),
            machine.setting.on_host(match machine.setting.virtual_machine {
                Some(_) => "take what uses it away, then reboot this virtual machine; if that does not bring it back, look at the card on its host",
                None => "take what uses it away, then reboot; if that does not bring it back, the card, its slot or its power is at fault",
            }),
        )
        .about(Kind::Nic, &device.name, "have fallen off the bus: they answer nothing")
        .seen(format!("only ones in /sys/bus/pci/devices/{}/config", nic.address));
    }
    if device.ports.is_empty() {
        return Check::skip(ID, format!("{}: its ports cannot be read", device.name))
            .about(Kind::Nic, &device.name, "have ports that cannot be read")
            .seen(format!("/sys/class/infiniband/{}/ports", device.name));
    }
    let what = device
        .ports
        .iter()
        .map(|port| format!("port {} {} ({}, {})", port.number, port.state, port.link_layer, port.rate))
        .collect::<Vec<_>>()
        .join(", ");
    let at = device.pci.as_deref().unwrap_or("no PCI device");
    let name = match device.pci.as_deref().and_then(|address| machine.pci(address)) {
        Some(nic) if !device.software => format!("{} at {at} ({})", device.name, nic.name()),
        _ => format!("{} over {at}", device.name),
    };
    let seen = format!("/sys/class/infiniband/{}/ports", device.name);
    let (check, many) = match (device.is_active(), spare(machine, device)) {
        (true, None) if is_narrow(device) => (
            Check::warn(
                ID,
                format!("{name}: {what}: the link has one lane, where four are usual, and a quarter of the speed"),
                machine.setting.on_hardware(&format!("take another cable or transceiver, or see whether the port of the switch is split (mlxlink -d {} tells)", device.name)),
            ),
            "have a link of one lane",
        ),
        (true, _) => (Check::ok(ID, format!("{name}: {what}")), "have an active port"),
        (false, Some(why)) => {
            (Check::skip(ID, format!("{name}: no port is active, and {why}: {what}")), "have no active port, and are not needed")
        }
        (false, None) => (
            Check::warn(
                ID,
                format!("{name}: no port is active: {what}"),
                match &device.netdev {
                    None if of_infiniband(device, "LinkUp") => by_link(machine, device),
                    _ if waits_for_manager(device) => format!(
                        "the link of {0} is up, and no subnet manager has set its port up: start one (opensm, or that of the switch or of UFM), and look with sminfo and ibstat {0}",
                        device.name
                    ),
                    _ if machine.setting.virtual_machine.is_some() => {
                        let netdev = device.netdev.as_deref().unwrap_or("its network interface");
                        format!("ip link set {netdev} up; if that does not do it, its link is the matter of the host of this virtual machine")
                    }
                    Some(netdev) => format!("ip link set {netdev} up; if that does not do it, plug in the cable"),
                    None => by_link(machine, device),
                },
            )
            .brief(format!(
                "{} port {}",
                device.name,
                device.ports.first().map_or("missing", |port| &port.state)
            )),
            "have no active port",
        ),
    };
    check.about(Kind::Nic, &device.name, many).seen(seen)
}

/// Returns whether an active port of InfiniBand has one lane ("100 Gb/sec (1X NDR)"). With Ethernet such a word is that
/// of its speed.
fn is_narrow(device: &RdmaDevice) -> bool {
    let is_it = |port: &rdma::Port| port.link_layer == "InfiniBand" && port.is_active() && port.rate.contains("(1X ");
    device.ports.iter().any(is_it)
}

/// Returns whether the link of a port of InfiniBand does what a word says.
fn of_infiniband(device: &RdmaDevice, link: &str) -> bool {
    device.ports.iter().any(|port| port.link_layer == "InfiniBand" && port.link == link)
}

/// Returns what makes a port of a NIC active, by what its link does.
fn by_link(machine: &Machine, device: &RdmaDevice) -> String {
    let name = &device.name;
    // Omni-Path, whose link layer is called InfiniBand, too.
    if device.module.as_deref() == Some("hfi1") {
        return match of_infiniband(device, "LinkUp") {
            true => "start Omni-Path's fabric manager on one machine of this fabric (systemctl enable --now opafm); the link is up".to_owned(),
            false => format!("plug in the cable; opainfo tells what the link of {name} does; Omni-Path needs a fabric manager (opafm) as well"),
        };
    }
    if of_infiniband(device, "LinkUp") {
        return format!("start a subnet manager in this fabric, or see why it leaves this port out (sminfo -C {name}): the one of a switch, or opensm on one machine (systemctl enable --now opensm); the link is up");
    }
    if of_infiniband(device, "Disabled") || of_infiniband(device, "Sleep") {
        return format!("switch the port on: mlxlink -d {name} --port_state UP, or ibportstate -C {name} -D 0 PORT enable; it is switched off, and no cable changes that");
    }
    if of_infiniband(device, "Polling") {
        return format!(
            "plug in the cable, or switch the port at its other end on (mlxlink -d {name} tells why there is no link)"
        );
    }
    if of_infiniband(device, "PortConfigurationTraining") || of_infiniband(device, "LinkErrorRecovery") {
        return format!("take another cable or transceiver: the link does not come up in full (mlxlink -d {name} -e tells its errors)");
    }
    match device.is_infiniband() {
        true => format!("ibstat {name}; plug in the cable; InfiniBand needs a subnet manager as well"),
        false => {
            let interface = interface(machine, device);
            format!("ip link set {interface} up; if that does not do it, plug in the cable")
        }
    }
}

/// Says of a NIC with an active port whether it has a GID: without one programs register memory, and cannot
/// connect (Mellanox/k8s-rdma-shared-dev-plugin#72, projectcalico/calico#8482).
fn gids(machine: &Machine, device: &RdmaDevice) -> Option<Check> {
    const ID: &str = "fabric.gid";
    if device.iwarp && device.is_active() && !device.software && machine.was_given_nic(device) != Some(false) {
        return Some(iwarp(machine, device));
    }
    let is_told = device.ports.iter().any(|port| port.has_gid.is_some());
    if !is_told || !device.is_active() || machine.was_given_nic(device) == Some(false) {
        return None;
    }
    let name = &device.name;
    let seen = format!("gids and gid_attrs/ndevs in /sys/class/infiniband/{name}/ports/*, /sys/class/net");
    if device.can_connect() {
        return Some(
            Check::ok(ID, format!("{name} has a GID in this network namespace"))
                .about(Kind::Nic, name, "have a GID in this network namespace")
                .seen(seen),
        );
    }
    let what = "has no GID in this network namespace: programs register memory with it, and cannot connect (\"Failed to modify QP to RTR\")";
    let many = "have no GID in this network namespace: programs register memory with them, and cannot connect (\"Failed to modify QP to RTR\")";
    let in_container = machine.setting.container.is_some();
    // A container may be given the interface of one NIC, and the nodes of all; beside InfiniBand, Ethernet is for
    // other traffic.
    let others = machine.rdma.iter().filter(|other| other.can_connect() && machine.was_given_nic(other) != Some(false));
    let mut others = others.filter(|other| in_container || other.is_infiniband());
    let other = others.next().map(|other| match other.is_infiniband() {
        true => format!("{} needs none", other.name),
        false => format!("{} has one", other.name),
    });
    let check = match other.or_else(|| spare(machine, device).map(str::to_owned)) {
        Some(why) => Check::skip(ID, format!("{name} {what}; {why}")),
        None => Check::warn(ID, format!("{name} {what}"), give_interface(machine, device))
            .brief(format!("{name} has no GID")),
    };
    Some(check.about(Kind::Nic, name, many).seen(seen))
}

/// Says of a NIC that speaks iWARP who does not connect by it ([`facts::IWARP`]).
fn iwarp(machine: &Machine, device: &RdmaDevice) -> Check {
    const ID: &str = "fabric.gid";
    let name = &device.name;
    let what = format!("is an iWARP device: {}", facts::IWARP.what);
    let many = format!("are iWARP devices: {}", facts::IWARP.what);
    let nic = device.pci.as_deref().and_then(|address| machine.pci(address));
    // Intel's X722, of i40e, speaks iWARP only (drivers/infiniband/hw/irdma/i40iw_if.c).
    let fix = match nic.filter(|nic| nic.driver.as_deref() == Some("ice")) {
        Some(nic) => machine.setting.on_host(&format!(
            "have it speak RoCEv2: devlink dev param set pci/{0} name enable_iwarp value false cmode runtime && devlink dev param set pci/{0} name enable_roce value true cmode runtime (with Intel's own irdma: its parameter roce_ena=1)",
            nic.address
        )),
        None => "use a NIC with RoCE or InfiniBand".to_owned(),
    };
    let others = machine.rdma.iter().filter(|other| other.can_connect() && !other.iwarp && !other.software);
    let check = match others.map(|other| &other.name).next() {
        Some(other) => Check::skip(ID, format!("{name} {what}; {other} is none")),
        None => Check::warn(ID, format!("{name} {what}"), fix),
    };
    check.about(Kind::Nic, name, many).seen(format!("{} in /sys/class/infiniband/{name}", rdma::KIND))
}

/// Returns the network interface of a NIC in this network namespace.
fn own_interface(machine: &Machine, device: &RdmaDevice) -> Option<String> {
    let own = machine.root.names(&format!("/sys/class/infiniband/{}/device/net", device.name)).into_iter().next();
    own.or_else(|| device.netdev.clone())
}

/// Returns the name of that interface, or what tells it.
fn interface(machine: &Machine, device: &RdmaDevice) -> String {
    own_interface(machine, device).unwrap_or_else(|| format!("INTERFACE (rdma link show {}/1 names it)", device.name))
}

/// Returns what gives a port of RoCE a GID: each is an address of a network interface of that NIC.
fn give_interface(machine: &Machine, device: &RdmaDevice) -> String {
    let name = &device.name;
    let is_here = own_interface(machine, device).is_some();
    match Giver::of(machine) {
        Giver::Pod if !is_here => format!("hostNetwork: true in the pod's specification, or a network interface of {name} for the pod: macvlan or host-device by Multus, or a virtual function by the SR-IOV and RDMA CNI"),
        _ if !is_here && machine.setting.container.is_some() => format!("start this container with --network=host, or give it a network interface of {name} (a macvlan network of it)"),
        _ => {
            let elsewhere = if is_here { "" } else { "; if none is named, another network namespace has it (ip netns list, or a container)" };
            format!("ip link set {} up, and give it an address{elsewhere}", interface(machine, device))
        }
    }
}
