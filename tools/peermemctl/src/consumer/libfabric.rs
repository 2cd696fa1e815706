// SPDX-License-Identifier: GPL-2.0
//! libfabric's verbs provider. It looks for functions of the kernel, not for a client.

use super::rule::{as_it_is, by_driver, sure_of, Consumer, Pairing, Refusal, Registers};
use crate::facts;
use crate::machine::{Machine, REGISTER};
use crate::setting::{vendor, Vendor};
use crate::way::Way;

const DMA_BUF: &str = "ib_umem_dmabuf_get";

pub const LIBFABRIC: Consumer = Consumer {
    id: "consumers.libfabric",
    name: "libfabric",
    source: "vrb_os_mem_support in prov/verbs/include/linux/verbs_osd.h of libfabric 32dfaf9dadd7, cuda_hmem_init in src/hmem_cuda.c, ofi_hmem_init in src/hmem.c",
    unsure: |environment| {
        let iface = environment.get("FI_VERBS_IFACE").filter(|value| !value.is_empty())?;
        Some(format!("FI_VERBS_IFACE={iface} picks NICs by their network interfaces, which is not judged here"))
    },
    unsure_of: sure_of,
    told_by: sure_of,
    maps: as_it_is,
    registers: |machine, environment, offered| {
        if let Some(by_itself) = by_driver(machine) {
            return by_itself;
        }
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
            (_, Some(true)) if !no_dma_buf && !offered.is_no() => Registers::Unknown(offered.because().to_owned()),
            _ => refusal(
                "it finds neither the peer-memory API nor dma-buf and copies through host memory",
                machine.api_to_load().map(|module| machine.setting.on_host(&format!("modprobe {module}"))),
            ),
        }
    },
    refuses: |pairing, machine, environment| {
        if let Some(refusal) = by_name(pairing, machine) {
            return Some(refusal);
        }
        let off = |because: String, variable: &str| {
            Some(Refusal {
                because,
                set: Some(format!("unset {variable}")),
                seen: format!("environment of {}", environment.whose),
            })
        };
        let list = |variable: &str| environment.get(variable).filter(|list| !list.is_empty());
        // The list has names of providers and of layers over them: "verbs;ofi_rxm".
        let wanted = if vendor(pairing.nic) == Vendor::Efa { ["efa", "verbs"] } else { ["verbs", "ofi_rxm"] };
        if let Some(list) = list("FI_PROVIDER").filter(|list| leaves_out(list, &wanted)) {
            return off(format!("FI_PROVIDER={list} takes its verbs provider away"), "FI_PROVIDER");
        }
        // vrb_init_info() compares the beginning of a name, without case.
        let name = pairing.nic.name.to_ascii_lowercase();
        let is_other = |wanted: &&str| !name.starts_with(&wanted.to_ascii_lowercase());
        if let Some(wanted) = list("FI_VERBS_DEVICE_NAME").filter(is_other).filter(|_| vendor(pairing.nic) != Vendor::Efa) {
            return off(format!("FI_VERBS_DEVICE_NAME={wanted} takes {} away", pairing.nic.name), "FI_VERBS_DEVICE_NAME");
        }
        // hmem.c reads names with a semicolon between them.
        let has_cuda = |list: &str| list.split(';').any(|kind| kind.eq_ignore_ascii_case("cuda"));
        if let Some(list) = list("FI_HMEM").filter(|list| !has_cuda(list)) {
            return off(format!("FI_HMEM={list} leaves out cuda, without which it does not know GPU memory"), "FI_HMEM");
        }
        match environment.says_yes("FI_HMEM_DISABLE_P2P") {
            true => off("FI_HMEM_DISABLE_P2P=1 has it copy through host memory".to_owned(), "FI_HMEM_DISABLE_P2P"),
            false => None,
        }
    },
};

/// Returns why the verbs provider leaves out a NIC by its name. An EFA has a provider of its own.
pub fn by_name(pairing: &Pairing, machine: &Machine) -> Option<Refusal> {
    let name = &pairing.nic.name;
    let is_taken = name.contains("mlx5") || name.contains("mlx") && machine.has_symbol(REGISTER) == Some(true);
    (!is_taken && vendor(pairing.nic) != Vendor::Efa).then(|| Refusal {
        because: format!(
            "its verbs provider takes GPU memory only of devices with mlx in their names, mlx5 for dma-buf ({})",
            facts::LIBFABRIC_NAMES.source
        ),
        set: Some(match pairing.nic.module.as_deref() {
            Some("mlx5_ib") => format!("give the device such a name (rdma dev set {name} name mlx5_N), or use UCX"),
            _ => "use UCX".to_owned(),
        }),
        seen: "name of the device in /sys/class/infiniband".to_owned(),
    })
}

/// Returns whether a list of providers (FI_PROVIDER) leaves out all of those that are wanted; with a `^`
/// in front it names those that are left out. libfabric compares without case.
fn leaves_out(list: &str, wanted: &[&str]) -> bool {
    let (others, list) = list.strip_prefix('^').map_or((false, list), |list| (true, list));
    let named = |name: &str| list.split([',', ';']).any(|entry| entry.trim().eq_ignore_ascii_case(name));
    match others {
        true => wanted.first().is_some_and(|name| named(name)),
        false => !wanted.iter().any(|name| named(name)),
    }
}
