// SPDX-License-Identifier: GPL-2.0
//! Section 8: the way between GPUs and NICs.

use super::{hardware, module};
use crate::check::{Check, Kind};
use crate::giver::{self, Giver, Nodes};
use crate::machine::Machine;
use crate::nvidia;
use crate::pci::{self, Acs, Device, Distance, Iommu};
use crate::rdma::{self, RdmaDevice};
use crate::root::Missing;
use crate::text;
use crate::unload;
use crate::way;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    if !machine.rdma.is_empty() {
        checks.extend(nodes(machine));
        checks.extend(ways(machine));
        checks.extend(pairs(machine));
    }
    checks.extend(iommu(machine));
    checks.extend(links(machine));
    checks.extend(relaxed_ordering(machine));
    checks.extend(numa_balancing(machine));
    checks
}

/// Checks whether the device nodes are there that libibverbs opens.
fn nodes(machine: &Machine) -> Option<Check> {
    let may_reach = |nic: &&RdmaDevice| {
        !(way::nic_asks_peers(machine, nic).is_no() && way::nic_takes_dma_buf(machine, nic).is_no())
    };
    let of_use: Vec<&RdmaDevice> = machine.rdma.iter().filter(|nic| !nic.software).filter(may_reach).collect();
    if !of_use.is_empty() && of_use.iter().all(|nic| machine.was_given_nic(nic) == Some(false)) {
        let names = of_use.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join(", ");
        let giver = Giver::of(machine);
        let message = format!("this {} was not given {names}, and no other NIC here takes GPU memory", giver.word());
        let seen = "/dev/infiniband, ibdev in /sys/class/infiniband_verbs/uverbs*";
        let nodes =
            of_use.iter().filter_map(|nic| Some(format!("/dev/infiniband/{}", rdma::node(machine.root, &nic.name)?)));
        let nodes = nodes.collect::<Vec<_>>().join(", ");
        let fix = giver::gives_missing(machine, Nodes::Nics).unwrap_or_else(|| giver.gives_nics(&nodes));
        return Some(Check::fail("fabric.nodes", message, fix).seen(seen));
    }
    let some = machine.root.names("/dev/infiniband").iter().any(|name| name.starts_with("uverbs"));
    (!some).then(|| {
        Check::fail(
            "fabric.nodes",
            "there is an RDMA device, but no /dev/infiniband/uverbs*: no program can open it",
            giver::gives_missing(machine, Nodes::Nics).unwrap_or_else(|| "modprobe ib_uverbs".to_owned()),
        )
        .seen("/dev/infiniband")
    })
}

fn nics<'a>(machine: &'a Machine) -> Vec<(&'a RdmaDevice, &'a Device)> {
    machine.rdma.iter().filter_map(|device| Some((device, machine.pci(device.pci.as_deref()?)?))).collect()
}

/// Returns those of them that this container was given; elsewhere all.
fn nics_given<'a>(machine: &'a Machine) -> Vec<(&'a RdmaDevice, &'a Device)> {
    nics(machine).into_iter().filter(|(device, _)| machine.was_given_nic(device) != Some(false)).collect()
}

/// Returns the kind, the name and the PCI function of each NIC and GPU, and of NICs that are
/// software over a network interface, too.
fn with_software<'a>(machine: &'a Machine) -> Vec<(Kind, &'a str, &'a Device)> {
    let nics = nics(machine).into_iter().map(|(device, nic)| (Kind::Nic, device.name.as_str(), nic));
    nics.chain(machine.gpus().into_iter().map(|gpu| (Kind::Gpu, gpu.address.as_str(), gpu))).collect()
}

/// Reports what the GPU driver says of each GPU and NIC that met in a registration.
fn pairs(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.pairs";
    let pairs = machine.stats.as_ref().ok().into_iter().flat_map(|stats| stats.pairs());
    pairs
        .map(|(gpu, nic, says)| {
            let two = format!("GPU {gpu} and NIC {nic}");
            match says {
                "supported" => Check::ok(ID, format!("{two}: the GPU driver supports the two together")),
                // reconsider() makes this a warning where another pair works.
                "unsupported" => Check::fail(
                    ID,
                    format!("{two} cannot reach each other, says the GPU driver: registrations are refused"),
                    "use a NIC that the GPU can reach: peermemctl topo",
                ),
                _ => Check::skip(
                    ID,
                    format!("{two}: the GPU driver was not asked, which is possible with persistent pins only"),
                ),
            }
            .seen("/proc/driver/nvidia-peermem/stats")
        })
        .collect()
}

/// Reports the nearest NIC of each GPU, and what lies between the two.
fn ways(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.distance";
    let mut checks = Vec::new();
    let given = nics_given(machine);
    // [fabric.nodes] says so where no NIC of use was given.
    let is_for_nobody = nodes(machine).is_some();
    let gpus = machine.gpus().into_iter().filter(|gpu| machine.was_given_gpu(gpu) != Some(false));
    for gpu in gpus.filter(|gpu| !machine.is_for_display(gpu)) {
        // Of several such NICs, those of InfiniBand are there for programs.
        let nearest = given
            .iter()
            .map(|(device, nic)| (gpu.way_to(nic), *device))
            .min_by_key(|(way, device)| (way.distance, !device.is_infiniband()));
        let Some((way, device)) = nearest else {
            let why = match nics(machine).is_empty() {
                true => "no NIC with a PCI address",
                false => "no NIC, as this container was given none",
            };
            let skip = Check::skip(ID, format!("GPU {} has {why}", gpu.address));
            checks.push(skip.about(Kind::Gpu, &gpu.address, format!("have {why}")));
            continue;
        };
        let not_given = hardware::nearer_not_given(machine, gpu, way.distance, Distance::Node)
            .filter(|_| way.distance > Distance::Pxb && !is_for_nobody);
        let what = format!(
            "GPU {}: the nearest NIC is {}, {} ({})",
            gpu.address,
            device.name,
            way.distance.text(),
            way.distance.words()
        );
        let text = way.distance.text();
        let (check, many) = match way.distance {
            _ if not_given.is_some() => {
                let other = not_given.map_or("", |nic| nic.name.as_str());
                (
                    Check::warn(
                        ID,
                        format!("{what}; {other} is nearer, and this container was not given it"),
                        hardware::NEARER_TO_GIVE,
                    ),
                    format!("have a nearer NIC than they were given in this container ({text})"),
                )
            }
            Distance::Pix | Distance::Pxb | Distance::Phb => {
                (Check::ok(ID, what), format!("have a NIC nearby ({text})"))
            }
            Distance::Node if machine.has_c2c(gpu) => (
                Check::ok(ID, format!("{what}, by the coherent link (NVLink-C2C) that it has to the CPU")),
                format!("have a NIC at the CPU that they have a coherent link to (NVLink-C2C, {text})"),
            ),
            Distance::Node if machine.may_have_c2c(gpu) => (
                Check::skip(ID, format!("{what}; whether a coherent link to the CPU (NVLink-C2C) makes that near is not known of this GPU")),
                format!("have no NIC nearer than {text}; whether a coherent link to the CPU (NVLink-C2C) makes that near is not known of these GPUs"),
            ),
            distance if hardware::nearer_without_device(machine, gpu, distance).is_some() => (
                Check::skip(ID, format!("{what}; a nearer one has no RDMA device here, which [fabric.rdma] names")),
                format!("have a nearer NIC ({text}) than that, which has no RDMA device here and is named by [fabric.rdma]"),
            ),
            Distance::Node | Distance::Sys if machine.setting.virtual_machine.is_some() => (
                Check::skip(ID, format!("{what}; in a virtual machine such distances are the hypervisor's, not the hardware's")),
                format!("have no NIC nearby ({text}); in a virtual machine such distances are the hypervisor's, not the hardware's"),
            ),
            distance => {
                let unbound = hardware::nearer_unbound(machine, gpu, distance, Distance::Phb);
                let slot = "put a NIC into a slot next to the GPU (peermemctl topo), or run on GPUs that have one";
                let lost = || hardware::nearer_lost(machine, gpu, distance);
                let fix = unbound.map(|(_, fix)| fix).or_else(lost).unwrap_or_else(|| slot.to_owned());
                let costs = match distance {
                    Distance::Sys => "every byte crosses the CPUs, at a fraction of the speed",
                    _ => "every byte goes up through the CPU, at less speed than through a switch",
                };
                (
                    Check::warn(
                        ID,
                        format!("{what}: {costs}"),
                        fix,
                    ),
                    format!("have no NIC nearby ({text}): {costs}"),
                )
            }
        };
        checks.push(check.about(Kind::Gpu, &gpu.address, many).seen("paths in /sys/bus/pci/devices"));
        checks.extend(redirected(machine, gpu));
    }
    checks
}

/// Checks whether ACS redirects traffic on the way from a GPU to the NICs that share a switch with
/// it.
fn redirected(machine: &Machine, gpu: &Device) -> Option<Check> {
    const ID: &str = "fabric.acs";
    let ways: Vec<_> =
        nics_given(machine).into_iter().map(|(_, nic)| gpu.way_to(nic)).filter(pci::Way::shares_a_switch).collect();
    let mut bridges: Vec<&String> = ways.iter().flat_map(|way| &way.between).collect();
    bridges.sort();
    bridges.dedup();
    if bridges.is_empty() {
        return None;
    }
    let states: Vec<(&String, Acs)> =
        bridges.into_iter().map(|bridge| (bridge, pci::acs(machine.root, bridge))).collect();
    let of = |wanted: Acs| {
        states
            .iter()
            .filter(|(_, state)| *state == wanted)
            .map(|(bridge, _)| bridge.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let redirecting = of(Acs::Redirects);
    if !redirecting.is_empty() {
        let fix = without_redirect(machine, &redirecting);
        return Some(
            Check::warn(
                ID,
                format!(
                    "GPU {}: ACS sends traffic between it and its NIC up to the CPU, at {redirecting}",
                    gpu.address
                ),
                fix,
            )
            .about(Kind::Gpu, &gpu.address, "reach their NICs only through the CPU: ACS sends the traffic up")
            .seen("request or completion redirect in the ACS control word of the configuration space"),
        );
    }
    let (check, many) = match of(Acs::Unreadable) {
        unreadable if unreadable.is_empty() => (
            Check::ok(ID, format!("GPU {}: no ACS redirect between it and its NICs", gpu.address)),
            "have no ACS redirect between them and their NICs",
        ),
        unreadable => (
            Check::skip(
                ID,
                format!(
                    "GPU {}: the ACS word of {unreadable} cannot be read (by others than root, or on this kernel)",
                    gpu.address
                ),
            ),
            "have bridges on the way whose ACS word cannot be read (by others than root, or on this kernel)",
        ),
    };
    Some(check.about(Kind::Gpu, &gpu.address, many))
}

/// Returns what has a bridge refuse no transfer by ACS. The parameter that lifts the redirect leaves source
/// validation and translation blocking on.
pub fn without_acs(machine: &Machine, bridge: &str) -> String {
    let is_bare = machine.setting.virtual_machine.is_none() && !machine.devices.iter().any(Device::is_dma_direct);
    match module::lockdown(machine.root).filter(|_| is_bare) {
        Some(_) => format!(
            "boot with 'pci=config_acs=xxxxx00@{bridge}' on the kernel command line (Linux 6.12 and later; lockdown keeps setpci from it), or switch ACS off in the firmware"
        ),
        None => without_redirect(machine, bridge),
    }
}

/// Returns what ends the redirect of these bridges, which have a comma and a space between them.
fn without_redirect(machine: &Machine, bridges: &str) -> String {
    // The addresses are this guest's: on the host they are those of other devices.
    if machine.setting.virtual_machine.is_some() {
        return "this is a virtual machine, whose switches are the hypervisor's: have its host allow direct traffic between GPU and NIC (ATS of the NIC, and direct translated P2P in the ACS of the switch), as its guests are kept apart by ACS".to_owned();
    }
    // Some of the flags must stay on there.
    if machine.devices.iter().any(Device::is_dma_direct) {
        return "rdma_topo check, then rdma_topo write-grub-acs (rdma-core): a ConnectX with DMA Direct needs flags of its own"
            .to_owned();
    }
    let off = bridges.split(", ").map(|bridge| format!("setpci -s {bridge} ECAP_ACS+6.w=0"));
    let off = off.collect::<Vec<_>>().join(" && ");
    let off = match module::lockdown(machine.root) {
        Some(_) => format!(
            "boot with 'pci=disable_acs_redir={}' on the kernel command line, in these quotes also in /etc/default/grub, because GRUB ends a line at a bare semicolon (lockdown keeps setpci from it), or switch ACS off in the firmware",
            bridges.replace(", ", ";")
        ),
        None => format!("{off}, which holds until the next boot; for good, switch ACS off in the firmware"),
    };
    match machine.devices.iter().find_map(Device::driver_for_guests) {
        Some(driver) => format!("if no guest uses this host's devices ({driver}), as ACS keeps guests apart: {off}"),
        None => off,
    }
}

/// Returns what has NICs reach GPU memory behind an IOMMU that translates.
pub(super) fn through_iommu(machine: &Machine) -> String {
    let identity = machine.identity_iommu();
    match way::peers_unmapped(machine) {
        true => format!("{}; or {identity}", unload::take_out_parameter(machine, "NVreg_DmaRemapPeerMmio=0", "")),
        false => identity,
    }
}

fn iommu(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.iommu";
    let devices = with_software(machine);
    let translated: Vec<_> = devices.iter().filter(|(.., device)| device.iommu == Iommu::Translating).collect();
    let seen = "/sys/bus/pci/devices/*/iommu_group/type";
    let fix = through_iommu(machine);
    if translated.is_empty() {
        let words = match devices.iter().map(|(.., device)| device.iommu).next() {
            Some(Iommu::Off) => "no IOMMU",
            Some(Iommu::Identity) => "the IOMMU lets addresses through (identity)",
            _ => "the IOMMU translates neither GPUs nor NICs as far as sysfs tells",
        };
        return vec![Check::ok(ID, words).seen(seen)];
    }
    let of = |wanted: Kind| translated.iter().filter(move |(kind, ..)| *kind == wanted).map(|(_, name, _)| *name);
    let what = [Kind::Nic, Kind::Gpu].map(|kind| text::named(kind.text(), of(kind))).into_iter().flatten();
    let what = format!("the IOMMU translates for {}", what.collect::<Vec<_>>().join(", "));
    let unmapped = way::peers_unmapped(machine);
    let check = if machine.rdma.iter().any(|nic| way::maps_for_no_iommu(machine, nic)) {
        let when = match unmapped {
            true => "with NVreg_DmaRemapPeerMmio=0",
            false => "on kernels from 6.12 on",
        };
        Check::fail(
            ID,
            format!("{what}; NVIDIA's module hands the NIC untranslated addresses {when}: every transfer faults"),
            format!("{fix}, or load this project's module, which maps by itself: {}", machine.install_it()),
        )
    } else {
        Check::warn(ID, format!("{what}: peer-to-peer traffic goes up to the CPU and is slower"), fix)
    };
    let check = check.seen(seen);
    vec![match unmapped {
        true => check.seen(nvidia::place_of(machine.root, "DmaRemapPeerMmio", 0)),
        false => check,
    }]
}

/// Checks for links that are narrower or slower than both ends could be.
fn links(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.link";
    let mut checks = Vec::new();
    let is_software = |name: &str| machine.rdma.iter().any(|device| device.software && device.name == name);
    for (kind, name, device) in with_software(machine).into_iter().filter(|(_, name, _)| !is_software(name)) {
        let label = format!("{} {name}", kind.text());
        let Some(link) = &device.link else {
            let skip = Check::skip(ID, format!("{label}: its link does not tell width and speed"));
            checks.push(skip.about(kind, name, "have a link that does not tell width and speed"));
            continue;
        };
        let now = format!("x{} at {}", link.width, link.speed);
        let what = format!("{label}: {now}");
        let is_gpu = kind == Kind::Gpu;
        let (check, many) = if link.width < link.width_max {
            (
                Check::warn(
                    ID,
                    format!("{what}, and it could be x{}", link.width_max),
                    "reseat the card, or put it into a slot with all lanes (dmidecode -t slot)",
                ),
                format!("have a link of {now} that could be x{}", link.width_max),
            )
        } else if link.speed != link.speed_max && !is_gpu {
            (Check::warn(
                    ID,
                    format!("{what}, and it could be {}", link.speed_max),
                    "reseat the card, or put it into a slot of its own generation; see the firmware's PCIe speed setting",
                ), format!("have a link of {now} that could be {}", link.speed_max))
        } else if link.speed != link.speed_max {
            let more = format!("up to {}; an idle GPU slows its link down", link.speed_max);
            (Check::ok(ID, format!("{what} ({more})")), format!("have a link of {now} ({more})"))
        } else {
            (Check::ok(ID, what), format!("have a link of {now}"))
        };
        let seen = format!("/sys/bus/pci/devices/{}/current_link_*", device.address);
        checks.push(check.about(kind, name, many).seen(seen));
    }
    checks
}

/// Checks whether devices may mark their writes as free to overtake each other. Writes that may not
/// are slower on some platforms. The kernel switches this off on platforms where it is broken.
fn relaxed_ordering(machine: &Machine) -> Vec<Check> {
    let states = with_software(machine).into_iter().filter_map(|(kind, name, device)| {
        let (address, label) = (&device.address, format!("{} {name}", kind.text()));
        let file = format!("/sys/bus/pci/devices/{address}/config");
        let Some(may) = pci::relaxed_ordering(machine.root, address) else {
            // Others than root see the first 64 bytes; a recorded machine may have none.
            let head = match machine.root.bytes(&file) {
                Ok(bytes) => Some(bytes).filter(|bytes| bytes.len() <= 64)?,
                Err(Missing::Absent) if !machine.root.is_live() => return None,
                Err(_) => Vec::new(),
            };
            let why = match head.is_empty() {
                true => "whether it may use relaxed ordering is not readable",
                false => "only root can read whether it may use relaxed ordering",
            };
            let check = Check::skip("fabric.relaxed_ordering", format!("{label}: {why}"));
            let seen = format!("{} bytes of {file}", head.len());
            return Some(check.about(kind, name, format!("({why})")).seen(seen));
        };
        let (what, many) = match may {
            true => (format!("{label} may use relaxed ordering"), "may use relaxed ordering".to_owned()),
            false => {
                let may_not = "may not use relaxed ordering; where writes are slow, try setpci -s";
                (
                    format!("{label} {may_not} {address} CAP_EXP+8.w=10:10"),
                    format!("{may_not} ADDRESS CAP_EXP+8.w=10:10"),
                )
            }
        };
        let seen = format!("DevCtl in {file}");
        Some(Check::ok("fabric.relaxed_ordering", what).about(kind, name, many).seen(seen))
    });
    states.collect()
}

fn numa_balancing(machine: &Machine) -> Option<Check> {
    let on = machine.root.line("/proc/sys/kernel/numa_balancing")? != "0";
    let what = match on {
        true => "automatic NUMA balancing is on; switched off (kernel.numa_balancing=0) it costs less latency",
        false => "automatic NUMA balancing is off",
    };
    Some(Check::ok("fabric.numa_balancing", what).seen("/proc/sys/kernel/numa_balancing"))
}
