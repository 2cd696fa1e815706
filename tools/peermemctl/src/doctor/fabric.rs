// SPDX-License-Identifier: GPL-2.0
//! Section 8: NICs, and the way between them and the GPUs.

use crate::check::Check;
use crate::kernel;
use crate::machine::Machine;
use crate::module_file::Maker;
use crate::pci::{self, Acs, Device, Distance, Iommu};
use crate::rdma::RdmaDevice;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    if machine.rdma.is_empty() {
        checks.push(no_device(machine));
    } else {
        checks.extend(nodes(machine));
        checks.extend(machine.rdma.iter().map(|device| ports(machine, device)));
        checks.extend(ways(machine));
        checks.extend(pairs(machine));
    }
    checks.extend(iommu(machine));
    checks.extend(links(machine));
    checks.extend(relaxed_ordering(machine));
    checks.extend(numa_balancing(machine));
    checks
}

fn no_device(machine: &Machine) -> Check {
    // Class 02 is network, 0207 InfiniBand.
    let nic = machine
        .devices
        .iter()
        .find(|device| [0x15b3, 0x14e4, 0x1dd8].contains(&device.vendor) && device.kind() >> 8 == 2);
    let message = "there is no RDMA device";
    let seen = "/sys/class/infiniband is empty";
    match nic {
        Some(nic) => Check::fail(
            "fabric.rdma",
            format!("{message}, although there is a NIC that may be one: {} ({})", nic.address, nic.name()),
            "modprobe mlx5_ib (bnxt_re for Broadcom's, ionic_rdma for AMD's)",
        ),
        None => Check::fail(
            "fabric.rdma",
            format!("{message} in this machine"),
            "install an RDMA NIC, or pass one through to this VM; lspci shows what is there",
        ),
    }
    .seen(seen)
}

/// What libibverbs opens.
fn nodes(machine: &Machine) -> Option<Check> {
    let some = machine.root.names("/dev/infiniband").iter().any(|name| name.starts_with("uverbs"));
    (!some).then(|| {
        Check::fail(
            "fabric.nodes",
            "there is an RDMA device, but no /dev/infiniband/uverbs*: no program can open it",
            "modprobe ib_uverbs; in a container, start it with --device=/dev/infiniband",
        )
        .seen("/dev/infiniband")
    })
}

fn ports(machine: &Machine, device: &RdmaDevice) -> Check {
    const ID: &str = "fabric.port";
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
    match device.ports.iter().any(|port| port.state == "ACTIVE") {
        true => Check::ok(ID, format!("{name}: {what}")),
        false => Check::warn(
            ID,
            format!("{name}: no port is active: {what}"),
            match &device.netdev {
                Some(netdev) => format!("ip link set {netdev} up; if that does not do it, plug in the cable"),
                None => format!("ibstat {}; plug in the cable; InfiniBand needs a subnet manager as well", device.name),
            },
        ),
    }
    .seen(seen)
}

fn hardware<'a>(machine: &'a Machine) -> Vec<(&'a RdmaDevice, &'a Device)> {
    machine.rdma.iter().filter_map(|device| Some((device, machine.pci(device.pci.as_deref()?)?))).collect()
}

/// What the GPU driver says of each GPU and NIC that met in a registration.
fn pairs(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.pairs";
    let pairs = machine.stats.as_ref().ok().into_iter().flat_map(|stats| stats.pairs());
    pairs
        .map(|(gpu, nic, says)| {
            let two = format!("GPU {gpu} and NIC {nic}");
            match says {
                "supported" => Check::ok(ID, format!("{two}: the GPU driver supports the two together")),
                "unsupported" => Check::warn(
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

/// For each GPU the nearest NIC, and what lies between them.
fn ways(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.distance";
    let mut checks = Vec::new();
    for gpu in machine.gpus() {
        let nearest = hardware(machine)
            .into_iter()
            .map(|(device, nic)| (gpu.way_to(nic), device))
            .min_by_key(|(way, _)| way.distance);
        let Some((way, device)) = nearest else {
            checks.push(Check::skip(ID, format!("GPU {}: no NIC has a PCI address", gpu.address)));
            continue;
        };
        let what = format!(
            "GPU {}: the nearest NIC is {}, {} ({})",
            gpu.address,
            device.name,
            way.distance.text(),
            way.distance.words()
        );
        checks.push(
            match way.distance {
                Distance::Pix | Distance::Pxb | Distance::Phb => Check::ok(ID, what),
                Distance::Node | Distance::Sys => Check::warn(
                    ID,
                    format!("{what}: every byte crosses the CPUs, at a fraction of the speed"),
                    "put a NIC into a slot next to the GPU (peermemctl topo), or run on GPUs that have one",
                ),
            }
            .seen("paths in /sys/bus/pci/devices"),
        );
        checks.extend(redirected(machine, gpu));
    }
    checks
}

/// ACS on the way from a GPU to the NICs that share a switch with it.
fn redirected(machine: &Machine, gpu: &Device) -> Option<Check> {
    const ID: &str = "fabric.acs";
    let ways: Vec<_> =
        hardware(machine).into_iter().map(|(_, nic)| gpu.way_to(nic)).filter(pci::Way::shares_a_switch).collect();
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
        let off = redirecting.split(", ").map(|bridge| format!("setpci -s {bridge} ECAP_ACS+6.w=0"));
        let off = off.collect::<Vec<_>>().join(" && ");
        return Some(
            Check::warn(
                ID,
                format!(
                    "GPU {}: ACS sends traffic between it and its NIC up to the CPU, at {redirecting}",
                    gpu.address
                ),
                format!("{off}, which holds until the next boot; for good, switch ACS off in the firmware"),
            )
            .seen("request or completion redirect in the ACS control word of the configuration space"),
        );
    }
    Some(match of(Acs::Unreadable) {
        unreadable if unreadable.is_empty() => {
            Check::ok(ID, format!("GPU {}: no ACS redirect between it and its NICs", gpu.address))
        }
        unreadable => Check::skip(
            ID,
            format!(
                "GPU {}: the ACS word of {unreadable} cannot be read (by others than root, or on this kernel)",
                gpu.address
            ),
        ),
    })
}

fn iommu(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.iommu";
    let mut devices: Vec<(String, &Device)> =
        hardware(machine).into_iter().map(|(device, nic)| (format!("NIC {}", device.name), nic)).collect();
    devices.extend(machine.gpus().into_iter().map(|gpu| (format!("GPU {}", gpu.address), gpu)));
    let translated: Vec<&str> = devices
        .iter()
        .filter(|(_, device)| device.iommu == Iommu::Translating)
        .map(|(name, _)| name.as_str())
        .collect();
    let seen = "/sys/bus/pci/devices/*/iommu_group/type";
    let fix = "boot with iommu=pt on the kernel command line (or intel_iommu=off in a machine without VMs)";
    if translated.is_empty() {
        let words = match devices.iter().map(|(_, device)| device.iommu).next() {
            Some(Iommu::Off) => "no IOMMU",
            Some(Iommu::Identity) => "the IOMMU lets addresses through (identity)",
            _ => "the IOMMU translates neither GPUs nor NICs as far as sysfs tells",
        };
        return vec![Check::ok(ID, words).seen(seen)];
    }
    let what = format!("the IOMMU translates for {}", translated.join(", "));
    let nic_translated = translated.iter().any(|name| name.starts_with("NIC"));
    let new_kernel = machine.release.as_deref().is_some_and(|release| kernel::at_least(release, 6, 12));
    let nvidia_loaded = machine.loaded.as_ref().is_some_and(|loaded| loaded.maker == Maker::Nvidia);
    vec![if nvidia_loaded && nic_translated && new_kernel {
        Check::fail(
            ID,
            format!("{what}; NVIDIA's module hands the NIC untranslated addresses on kernels from 6.12 on: every transfer faults"),
            format!("{fix}, or load this project's module, which maps by itself: make install"),
        )
    } else {
        Check::warn(ID, format!("{what}: peer-to-peer traffic goes up to the CPU and is slower"), fix)
    }
    .seen(seen)]
}

/// Links narrower or slower than both ends could be.
fn links(machine: &Machine) -> Vec<Check> {
    const ID: &str = "fabric.link";
    let mut devices: Vec<(String, &Device)> = hardware(machine)
        .into_iter()
        .filter(|(device, _)| !device.software)
        .map(|(device, nic)| (format!("NIC {}", device.name), nic))
        .collect();
    devices.extend(machine.gpus().into_iter().map(|gpu| (format!("GPU {}", gpu.address), gpu)));
    let mut checks = Vec::new();
    for (name, device) in devices {
        let Some(link) = &device.link else {
            checks.push(Check::skip(ID, format!("{name}: its link does not tell width and speed")));
            continue;
        };
        let what = format!("{name}: x{} at {}", link.width, link.speed);
        let is_gpu = name.starts_with("GPU");
        checks.push(
            if link.width < link.width_max {
                Check::warn(
                    ID,
                    format!("{what}, and it could be x{}", link.width_max),
                    "reseat the card, or put it into a slot with all lanes (dmidecode -t slot)",
                )
            } else if link.speed != link.speed_max && !is_gpu {
                Check::warn(
                    ID,
                    format!("{what}, and it could be {}", link.speed_max),
                    "reseat the card, or put it into a slot of its own generation; see the firmware's PCIe speed setting",
                )
            } else if link.speed != link.speed_max {
                Check::ok(ID, format!("{what} (up to {}; an idle GPU slows its link down)", link.speed_max))
            } else {
                Check::ok(ID, what)
            }
            .seen(format!("/sys/bus/pci/devices/{}/current_link_*", device.address)),
        );
    }
    checks
}

/// Writes that may not overtake each other are slower on some platforms; the kernel switches it off on those where it is broken.
fn relaxed_ordering(machine: &Machine) -> Vec<Check> {
    let mut devices: Vec<(String, &Device)> =
        hardware(machine).into_iter().map(|(device, nic)| (format!("NIC {}", device.name), nic)).collect();
    devices.extend(machine.gpus().into_iter().map(|gpu| (format!("GPU {}", gpu.address), gpu)));
    let states = devices.iter().filter_map(|(name, device)| {
        let address = &device.address;
        let what = match pci::relaxed_ordering(machine.root, address)? {
            true => format!("{name} may use relaxed ordering"),
            false => {
                format!("{name} may not use relaxed ordering; where writes are slow, try setpci -s {address} CAP_EXP+8.w=10:10")
            }
        };
        Some(Check::ok("fabric.relaxed_ordering", what).seen(format!("DevCtl in /sys/bus/pci/devices/{address}/config")))
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
