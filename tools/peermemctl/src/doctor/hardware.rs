// SPDX-License-Identifier: GPL-2.0
//! Section 1: the GPUs and NICs that are there, and whether their drivers have them.

use crate::check::{Check, Kind};
use crate::machine::Machine;
use crate::pci::Device;
use crate::rdma::RdmaDevice;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = match machine.gpus().as_slice() {
        [] => vec![no_gpu()],
        gpus => gpus.iter().map(|gpu| present(gpu)).collect(),
    };
    match machine.rdma.as_slice() {
        [] => checks.push(no_device(machine)),
        devices => checks.extend(devices.iter().map(|device| ports(machine, device))),
    }
    checks
}

fn no_gpu() -> Check {
    Check::fail(
        "gpus.present",
        "there is no GPU of NVIDIA's in this machine",
        "lspci -d 10de: shows what the firmware found; in a VM or container, pass the GPU through",
    )
    .seen("/sys/bus/pci/devices")
}

fn present(gpu: &Device) -> Check {
    const ID: &str = "gpus.present";
    let name = format!("GPU {} ({})", gpu.address, gpu.name());
    let (check, many) = match gpu.driver.as_deref() {
        Some("nvidia") if gpu.name().contains("GeForce") => (
            Check::warn(
                ID,
                format!("{name} is a GeForce board, which NVIDIA's driver gives no GPUDirect RDMA"),
                "use a data-centre or RTX professional GPU",
            ),
            "are GeForce boards, which NVIDIA's driver gives no GPUDirect RDMA".to_owned(),
        ),
        Some("nvidia") => {
            (Check::ok(ID, format!("{name} belongs to nvidia.ko")), format!("({}) belong to nvidia.ko", gpu.name()))
        }
        Some(other) => (
            Check::warn(
                ID,
                format!("{name} belongs to the driver {other}"),
                format!(
                    "echo {0} > /sys/bus/pci/drivers/{other}/unbind && echo {0} > /sys/bus/pci/drivers/nvidia/bind",
                    gpu.address
                ),
            ),
            format!("belong to the driver {other}"),
        ),
        None => (Check::warn(ID, format!("{name} has no driver"), "modprobe nvidia"), "have no driver".to_owned()),
    };
    check.about(Kind::Gpu, &gpu.address, many).seen(format!("/sys/bus/pci/devices/{}/driver", gpu.address))
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
    let (check, many) = match device.is_active() {
        true => (Check::ok(ID, format!("{name}: {what}")), "have an active port"),
        false => (
            Check::warn(
                ID,
                format!("{name}: no port is active: {what}"),
                match &device.netdev {
                    Some(netdev) => format!("ip link set {netdev} up; if that does not do it, plug in the cable"),
                    None => {
                        format!("ibstat {}; plug in the cable; InfiniBand needs a subnet manager as well", device.name)
                    }
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
