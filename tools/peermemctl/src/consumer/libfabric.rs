// SPDX-License-Identifier: GPL-2.0
//! libfabric's verbs provider. It looks for functions of the kernel, not for a client.

use super::{as_it_is, sure, sure_of, Consumer, Refusal, Registers};
use crate::machine::REGISTER;
use crate::way::Way;

const DMA_BUF: &str = "ib_umem_dmabuf_get";

pub const LIBFABRIC: Consumer = Consumer {
    id: "consumers.libfabric",
    name: "libfabric",
    source: "vrb_os_mem_support in prov/verbs/include/linux/verbs_osd.h of libfabric 32dfaf9dadd7, cuda_hmem_init in src/hmem_cuda.c",
    unsure: sure,
    unsure_of: sure_of,
    told_by: sure_of,
    maps: as_it_is,
    registers: |machine, environment, offered| {
        let no_dma_buf = environment.says_no("FI_HMEM_CUDA_USE_DMABUF");
        let seen = format!("no {REGISTER} in /proc/kallsyms");
        let refusal = |because: &str, set: Option<String>| {
            Registers::No(Refusal { because: because.to_owned(), set, seen: seen.clone() })
        };
        match (machine.has_symbol(REGISTER), machine.has_symbol(DMA_BUF)) {
            (_, Some(true)) if !no_dma_buf && offered.is_yes() => Registers::By(Way::DmaBuf, format!("{DMA_BUF} in /proc/kallsyms")),
            (Some(true), _) => Registers::By(Way::PeerMemory, format!("{REGISTER} in /proc/kallsyms")),
            (None, _) | (_, None) => Registers::Unknown("/proc/kallsyms cannot be read".to_owned()),
            (_, Some(true)) if no_dma_buf && offered.is_yes() => refusal(
                "the kernel has no peer-memory API, and FI_HMEM_CUDA_USE_DMABUF=0 keeps it from dma-buf",
                Some("unset FI_HMEM_CUDA_USE_DMABUF".to_owned()),
            ),
            _ => refusal(
                "it finds neither the peer-memory API nor dma-buf and copies through host memory",
                machine.api_to_load().map(|module| format!("modprobe {module}")),
            ),
        }
    },
    refuses: |_, _, environment| {
        environment.says_yes("FI_HMEM_DISABLE_P2P").then(|| Refusal {
            because: "FI_HMEM_DISABLE_P2P=1 has it copy through host memory".to_owned(),
            set: Some("unset FI_HMEM_DISABLE_P2P".to_owned()),
            seen: format!("environment of {}", environment.whose),
        })
    },
};
