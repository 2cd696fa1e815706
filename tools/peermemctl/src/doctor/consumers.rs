// SPDX-License-Identifier: GPL-2.0
//! Section 4: who finds the module, by the very paths that each looks at.

use crate::check::Check;
use crate::machine::{Machine, NAME, REGISTER};

const SYS_VERSION: &str = "/sys/module/nvidia_peermem/version";
const NV_MEM: &str = "/sys/kernel/mm/memory_peers/nv_mem/version";
const NV_MEM_NC: &str = "/sys/kernel/mm/memory_peers/nv_mem_nc/version";
const NVIDIA_PEERMEM: &str = "/sys/kernel/mm/memory_peers/nvidia-peermem/version";
const NV_PEER_MEM: &str = "/sys/module/nv_peer_mem/version";

/// A program that looks for the module before it uses it.
struct Consumer {
    name: &'static str,
    /// It takes any of these files for the module.
    any_of: &'static [&'static str],
    /// Whether it takes dma-buf as well.
    dma_buf: bool,
    /// What it does if it finds neither.
    else_it: &'static str,
}

const CONSUMERS: [Consumer; 5] = [
    Consumer {
        name: "NCCL",
        any_of: &[NV_MEM, NV_MEM_NC, SYS_VERSION],
        dma_buf: true,
        else_it: "copies through host memory",
    },
    Consumer { name: "NCCL GIN", any_of: &[SYS_VERSION], dma_buf: false, else_it: "is not available" },
    Consumer {
        name: "UCX",
        any_of: &[NV_MEM, SYS_VERSION, NV_PEER_MEM],
        dma_buf: true,
        else_it: "copies through host memory",
    },
    Consumer {
        name: "NVSHMEM",
        any_of: &[NV_MEM, NVIDIA_PEERMEM, SYS_VERSION],
        dma_buf: true,
        else_it: "skips its InfiniBand transports",
    },
    Consumer { name: "NCCL SHARP plugin", any_of: &[NV_MEM], dma_buf: false, else_it: "copies through host memory" },
];

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<Check> = CONSUMERS.iter().map(|consumer| verdict(machine, consumer)).collect();
    checks.push(libfabric(machine));
    checks.push(operator(machine));
    checks
}

fn verdict(machine: &Machine, consumer: &Consumer) -> Check {
    const ID: &str = "consumers.finds";
    let name = consumer.name;
    if let Some(path) = consumer.any_of.iter().find(|path| machine.root.exists(path)) {
        return Check::ok(ID, format!("{name}: finds the module")).seen(format!("{path} exists"));
    }
    let seen = format!("none of {}", consumer.any_of.join(", "));
    if consumer.dma_buf && machine.dma_buf() {
        return Check::ok(ID, format!("{name}: does not find the module, and {} use dma-buf", can(machine))).seen(seen);
    }
    // The directory is the core's, and new kernels have it no more: nothing on this machine fixes that.
    if machine.loaded.is_some() && !machine.root.exists(crate::machine::PEERS) {
        return Check::skip(
            ID,
            format!("{name}: looks only where this kernel shows no clients, and {}", consumer.else_it),
        )
        .seen(seen);
    }
    Check::warn(ID, format!("{name}: does not find the module, and {}", consumer.else_it), machine.load_it()).seen(seen)
}

/// Nothing is registered without a device that does it.
fn can(machine: &Machine) -> &'static str {
    match machine.rdma.is_empty() {
        true => "could, with an RDMA device,",
        false => "can",
    }
}

/// libfabric's verbs provider looks for the core's function, not for a client.
fn libfabric(machine: &Machine) -> Check {
    const ID: &str = "consumers.finds";
    const LOOKS: &str = "ib_register_peer_memory_client and ib_umem_dmabuf_get in /proc/kallsyms";
    match (machine.has_symbol(REGISTER), machine.has_symbol("ib_umem_dmabuf_get")) {
        (None, _) => Check::skip(ID, "libfabric: /proc/kallsyms cannot be read"),
        (Some(true), _) => Check::ok(ID, "libfabric: finds the peer-memory API").seen(LOOKS),
        (_, Some(true)) => {
            Check::ok(ID, format!("libfabric: finds no peer-memory API, and {} use dma-buf", can(machine))).seen(LOOKS)
        }
        _ => {
            let fix = machine
                .api_to_load()
                .map_or("install DOCA-OFED (package doca-ofed) or a linux-nvidia kernel".to_owned(), |module| {
                    format!("modprobe {module}")
                });
            let message = "libfabric: finds neither the peer-memory API nor dma-buf, and copies through host memory";
            Check::warn(ID, message, fix).seen(LOOKS)
        }
    }
}

/// The validator greps lsmod for the module's name.
fn operator(machine: &Machine) -> Check {
    const ID: &str = "consumers.finds";
    let seen = "nvidia_peermem in /proc/modules, as lsmod prints it";
    if machine.modules.contains_key(NAME) {
        Check::ok(ID, "GPU Operator, Mooncake, cloud health checks: find the module").seen(seen)
    } else {
        Check::warn(ID, "GPU Operator, Mooncake, cloud health checks: report the module missing", machine.load_it())
            .seen(seen)
    }
}
