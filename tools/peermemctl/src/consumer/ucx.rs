// SPDX-License-Identifier: GPL-2.0
//! UCX. It registers at any distance, and chooses by what it believes each way to carry.

use super::{as_it_is, by_file, lists, put_back, sure, sure_of, Consumer, Refusal};
use crate::facts;
use crate::machine::Machine;
use crate::pci::Distance;

const FILES: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/module/nvidia_peermem/version",
    "/sys/module/nv_peer_mem/version",
];

pub const UCX: Consumer = Consumer {
    id: "consumers.ucx",
    name: "UCX",
    source: "uct_ib_md_open_common in src/uct/ib/base/ib_md.c of UCX 9466d104a3; ucs_topo_update_distance_sysfs in src/ucs/sys/topo/base/topo.c of 020e2aa88aba",
    unsure: sure,
    unsure_of: sure_of,
    told_by: sure_of,
    maps: as_it_is,
    registers: |machine, environment, offered| {
        let dma_buf = match environment.says_no("UCX_CUDA_COPY_DMABUF") {
            true => Err("UCX_CUDA_COPY_DMABUF=no".to_owned()),
            false => Ok(()),
        };
        by_file(machine, &FILES, dma_buf, offered, "copies through host memory")
    },
    refuses: |pairing, _, environment| {
        let nic = &pairing.nic.name;
        let off = |variable: &str, set: String| Refusal {
            because: format!("{variable} takes {nic} away"),
            set: Some(set),
            seen: format!("environment of {}", environment.whose),
        };
        if environment.says_no("UCX_IB_GPU_DIRECT_RDMA") {
            return Some(off("UCX_IB_GPU_DIRECT_RDMA=no", "unset UCX_IB_GPU_DIRECT_RDMA".to_owned()));
        }
        if let Some(list) = environment.get("UCX_NET_DEVICES").filter(|list| *list != "all" && !lists(list, nic)) {
            return Some(off(&format!("UCX_NET_DEVICES={list}"), put_back("UCX_NET_DEVICES", list, &format!("{nic}:1"))));
        }
        (pairing.distance == Distance::Sys).then(|| Refusal {
            because: "it believes that 220 MB/s pass from one NUMA node to another, and takes another way".to_owned(),
            set: Some("set UCX_NET_DEVICES to a NIC of the GPU's own NUMA node".to_owned()),
            seen: "paths in /sys/bus/pci/devices".to_owned(),
        })
    },
};

/// Returns what other versions of UCX than the one whose rules are known do here.
pub fn by_version(machine: &Machine) -> Vec<String> {
    let rule = &facts::UCX_PEERS_ONLY;
    let by_module = machine.loaded.is_some() && !machine.dma_buf();
    let no_peers = !machine.root.exists("/sys/kernel/mm/memory_peers/nv_mem/version");
    let note = || format!("{} {} looks only at /sys/kernel/mm/memory_peers, and copies here", rule.of, rule.range());
    (by_module && no_peers).then(note).into_iter().collect()
}
