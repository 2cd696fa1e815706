// SPDX-License-Identifier: GPL-2.0
//! Section 7: the GPUs, and how much of BAR1 is left.

use crate::check::Check;
use crate::machine::Machine;
use crate::nvidia;
use crate::pci::Device;
use crate::text;

pub fn checks(machine: &Machine) -> Vec<Check> {
    let gpus = machine.gpus();
    if gpus.is_empty() {
        return vec![Check::fail(
            "gpus.present",
            "there is no GPU of NVIDIA's in this machine",
            "lspci -d 10de: shows what the firmware found; in a VM or container, pass the GPU through",
        )
        .seen("/sys/bus/pci/devices")];
    }
    let mut checks = Vec::new();
    for gpu in gpus {
        checks.push(present(gpu));
        checks.push(bar1(machine, gpu));
    }
    checks.extend(nodes(machine));
    checks.push(dma_buf(machine));
    checks.extend(override_parameter(machine));
    checks
}

fn present(gpu: &Device) -> Check {
    const ID: &str = "gpus.present";
    let name = format!("GPU {} ({})", gpu.address, gpu.name());
    match gpu.driver.as_deref() {
        Some("nvidia") if gpu.name().contains("GeForce") => Check::warn(
            ID,
            format!("{name} is a GeForce board, which NVIDIA's driver gives no GPUDirect RDMA"),
            "use a data-centre or RTX professional GPU",
        ),
        Some("nvidia") => Check::ok(ID, format!("{name} belongs to nvidia.ko")),
        Some(other) => Check::warn(
            ID,
            format!("{name} belongs to the driver {other}"),
            format!(
                "echo {0} > /sys/bus/pci/drivers/{other}/unbind && echo {0} > /sys/bus/pci/drivers/nvidia/bind",
                gpu.address
            ),
        ),
        None => Check::warn(ID, format!("{name} has no driver"), "modprobe nvidia"),
    }
    .seen(format!("/sys/bus/pci/devices/{}/driver", gpu.address))
}

fn bar1(machine: &Machine, gpu: &Device) -> Check {
    const ID: &str = "gpus.bar1";
    let size = nvidia::bar1_size(gpu);
    let pinned: Option<u64> = machine.registrations.as_ref().ok().map(|rows| {
        rows.iter().filter(|row| row.gpu.as_deref() == Some(gpu.address.as_str())).map(|row| row.pinned_bytes).sum()
    });
    let (total, used, seen) = match (machine.bar1.get(&gpu.address), pinned) {
        (Some(bar1), _) => (bar1.total, bar1.used, "nvidia-smi -q -d MEMORY"),
        (None, Some(pinned)) => {
            (size, pinned, "size of the BAR in sysfs, pinned_bytes in /proc/driver/nvidia-peermem/registrations")
        }
        (None, None) => {
            return Check::skip(
                ID,
                format!(
                    "GPU {}: BAR1 has {}; what is in use is told by nvidia-smi, or to root",
                    gpu.address,
                    text::bytes(size)
                ),
            );
        }
    };
    let ours = pinned.map_or(String::new(), |pinned| format!(", {} of it by registrations", text::bytes(pinned)));
    let what = format!("GPU {}: {} of {} of BAR1 in use{ours}", gpu.address, text::bytes(used), text::bytes(total));
    let percent = used.saturating_mul(100).checked_div(total).unwrap_or(0);
    let mend = "peermemctl list shows who holds it; Resizable BAR / Above 4G Decoding in the firmware makes it as large as the memory";
    match percent {
        95.. => Check::fail(ID, format!("{what}: the next registration will fail"), mend),
        80.. => Check::warn(ID, what, mend),
        _ => Check::ok(ID, what),
    }
    .seen(seen)
}

/// CUDA opens these; a container that lacks them has no GPU.
fn nodes(machine: &Machine) -> Option<Check> {
    machine.driver.as_ref()?;
    (!machine.root.exists("/dev/nvidiactl")).then(|| {
        Check::fail(
            "gpus.nodes",
            "/dev/nvidiactl is missing: no program can use a GPU",
            "nvidia-modprobe -c 0 -u; in a container, start it with --gpus all",
        )
        .seen("/dev/nvidiactl")
    })
}

fn dma_buf(machine: &Machine) -> Check {
    const ID: &str = "gpus.dma_buf";
    match (&machine.driver, machine.symbols.is_ok()) {
        (None, _) | (_, false) => Check::skip(ID, "whether dma-buf works cannot be told"),
        _ if machine.dma_buf() && machine.rdma.is_empty() => {
            Check::ok(ID, "nvidia.ko and the RDMA core offer registration by dma-buf to an RDMA device")
        }
        _ if machine.dma_buf() => Check::ok(
            ID,
            "registration by dma-buf should work as well: nvidia.ko is open, the RDMA core and the NIC's driver have it",
        ),
        _ if !machine.nic_dma_buf => {
            Check::ok(ID, "registration by dma-buf cannot work here: the drivers of the RDMA devices do not have it")
        }
        _ => Check::ok(
            ID,
            "registration by dma-buf cannot work here: it needs the open nvidia.ko and an RDMA core of kernel 5.12 or later",
        ),
    }
}

/// What GPU-driven communication needs of the driver.
fn override_parameter(machine: &Machine) -> Option<Check> {
    let params = nvidia::params(machine.root);
    let words = params.get("RegistryDwords")?;
    Some(
        match words.contains("PeerMappingOverride=1") {
            true => Check::ok("gpus.override", "PeerMappingOverride=1 is set, as NVSHMEM IBGDA and UCX GDAKI want it"),
            false => {
                Check::ok("gpus.override", "PeerMappingOverride is not set; only NVSHMEM IBGDA and UCX GDAKI need it")
            }
        }
        .seen(format!("RegistryDwords: {words} in /proc/driver/nvidia/params")),
    )
}
