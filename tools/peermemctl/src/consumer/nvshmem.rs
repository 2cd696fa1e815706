// SPDX-License-Identifier: GPL-2.0
//! NVSHMEM. Of its NICs it takes the nearest, however far that is.

use super::{by_file, lists, Consumer, Refusal};
use crate::nvidia;

const FILES: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nvidia-peermem/version",
    "/sys/module/nvidia_peermem/version",
];

pub const NVSHMEM: Consumer = Consumer {
    id: "consumers.nvshmem",
    name: "NVSHMEM",
    source: "nvshmemt_ib_common_nv_peer_mem_available in src/modules/transport/common/transport_ib_common.cpp, and env_defs.h beside it, of NVSHMEM 0c409c02ac81",
    registers: |machine, environment| {
        let dma_buf = match environment.says_yes("NVSHMEM_IB_DISABLE_DMABUF") {
            true => Err("NVSHMEM_IB_DISABLE_DMABUF=1".to_owned()),
            false => Ok(true),
        };
        by_file(machine, &FILES, dma_buf, "skips its InfiniBand transports")
    },
    refuses: |setting, machine, environment| {
        let nic = &setting.nic.name;
        let seen = format!("environment of {}", environment.whose);
        let mapped = environment.says_yes("NVSHMEM_ENABLE_NIC_PE_MAPPING");
        let list = environment.get("NVSHMEM_HCA_LIST").filter(|list| mapped && !list.is_empty() && !lists(list, nic));
        if let Some(list) = list {
            return Some(Refusal {
                because: format!("NVSHMEM_HCA_LIST={list} takes {nic} away"),
                set: Some(format!("set NVSHMEM_HCA_LIST={list},{nic}:1")),
                seen,
            });
        }
        let params = nvidia::params(machine.root);
        let overridden = params.get("RegistryDwords").is_some_and(|words| words.contains("PeerMappingOverride=1"));
        (environment.says_yes("NVSHMEM_IB_ENABLE_IBGDA") && !overridden).then(|| Refusal {
            because: "NVSHMEM_IB_ENABLE_IBGDA=1 needs PeerMappingOverride=1 of the GPU driver".to_owned(),
            set: Some("write options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d/nvidia.conf, then load nvidia.ko again".to_owned()),
            seen: "RegistryDwords in /proc/driver/nvidia/params".to_owned(),
        })
    },
};
