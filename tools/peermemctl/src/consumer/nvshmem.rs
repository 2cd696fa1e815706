// SPDX-License-Identifier: GPL-2.0
//! NVSHMEM. Of its NICs it takes the nearest, however far that is.

use super::rule::{as_it_is, by_file, lists, put_back, sure_of, without_gid, Consumer, Keeps, Pairing, Refusal};
use crate::environment::{Environment, Given};
use crate::facts;
use crate::machine::Machine;
use crate::nvidia;
use crate::setting::{vendor, Vendor};

const FILES: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nvidia-peermem/version",
    "/sys/module/nvidia_peermem/version",
];

const TRANSPORT: &str = "NVSHMEM_REMOTE_TRANSPORT";
const IBGDA: &str = "NVSHMEM_IB_ENABLE_IBGDA";
const NO_SUCH: &str =
    "the published sources of NVSHMEM know no transport of that name, and what newer ones do is not known";

pub const NVSHMEM: Consumer = Consumer {
    id: "consumers.nvshmem",
    name: "NVSHMEM",
    source: "nvshmemt_ib_common_nv_peer_mem_available in src/modules/transport/common/transport_ib_common.cpp, and env_defs.h beside it, of NVSHMEM 0c409c02ac81",
    unsure: |environment| {
        let value = environment.get(TRANSPORT).filter(|value| !value.is_empty())?;
        let name = value.to_ascii_lowercase();
        match name.as_str() {
            "ibrc" | "ibdevx" | "none" => None,
            "ucx" | "libfabric" => {
                Some(format!("{TRANSPORT}={value} has it register as {name} does, which is judged by itself"))
            }
            "gpunetio" => {
                Some(format!("{TRANSPORT}={value} (from 3.7 on) is a transport that is not judged here"))
            }
            // IBGDA comes beside the transport, by its own variable.
            "ibgda" if has_ibgda(environment) => None,
            "ibgda" => Some(format!("{TRANSPORT}={value}: {NO_SUCH}; set {IBGDA}=1 for IBGDA")),
            _ => Some(format!("{TRANSPORT}={value}: {NO_SUCH}")),
        }
    },
    unsure_of: sure_of,
    told_by: sure_of,
    maps: as_it_is,
    registers: |machine, environment, offered| {
        let yes = environment.given("NVSHMEM_IB_DISABLE_DMABUF").filter(Given::says_yes);
        let dma_buf = yes.map_or(Ok(()), |yes| Err(Keeps::by(&yes, "0")));
        by_file(machine, &FILES, dma_buf, offered, "skips its InfiniBand transports")
    },
    refuses: |pairing, machine, environment| {
        let nic = &pairing.nic.name;
        let seen = format!("environment of {}", environment.whose);
        // IBGDA is loaded all the same.
        if names_transport(environment, "none") && !has_ibgda(environment) {
            return Some(Refusal {
                because: format!("{TRANSPORT}=none leaves no NIC"),
                set: Some(format!("unset {TRANSPORT}")),
                seen,
            });
        }
        let by_gid = || without_gid(environment.given("NVSHMEM_IB_GID_INDEX"), machine, pairing);
        if let Some(refusal) = by_kind(pairing, environment).or_else(by_gid) {
            return Some(refusal);
        }
        let module = pairing.nic.module.as_deref().unwrap_or("another driver");
        if let Some((asked, unset)) = mlx5_transport(environment).filter(|_| module != "mlx5_ib") {
            return Some(Refusal {
                because: format!("{asked} takes devices of mlx5 only, and {nic} is one of {module} ({})", facts::IBGDA_MLX5.source),
                set: Some(format!("unset {unset}: the default transport IBRC takes it")),
                seen: format!("{seen}; driver of the NIC"),
            });
        }
        let mapped = environment.says_yes("NVSHMEM_ENABLE_NIC_PE_MAPPING");
        for (name, missing) in [("NVSHMEM_HCA_LIST", ":1"), ("NVSHMEM_HCA_PE_MAPPING", ":1:1")] {
            let Some(list) = environment.get(name).filter(|list| mapped && !list.is_empty()) else { continue };
            // Entries of the second variable are NAME:PORT:COUNT.
            let entries = list.split(',').map(|entry| entry.splitn(3, ':').take(2).collect::<Vec<_>>().join(":"));
            if !lists(&entries.collect::<Vec<_>>().join(","), pairing.nic) {
                return Some(Refusal {
                    because: format!("{name}={list} takes {nic} away"),
                    set: Some(put_back(name, list, &format!("{nic}{missing}"), &format!("unset {name}"))),
                    seen,
                });
            }
        }
        let prefix = environment.get("NVSHMEM_HCA_PREFIX").filter(|prefix| !prefix.is_empty());
        if let Some(prefix) = prefix.filter(|prefix| !has_prefix(prefix, nic)) {
            return Some(Refusal {
                because: format!("NVSHMEM_HCA_PREFIX={prefix} takes {nic} away"),
                set: Some("unset NVSHMEM_HCA_PREFIX".to_owned()),
                seen,
            });
        }
        // The default of the newest version: all but those of Mellanox's sub-functions.
        if prefix.is_none() && nic.starts_with("smi") {
            return Some(Refusal {
                because: format!("NVSHMEM leaves out devices whose names begin with smi, as {nic} does"),
                set: Some(format!("set NVSHMEM_HCA_PREFIX={nic}")),
                seen: "name of the device in /sys/class/infiniband".to_owned(),
            });
        }
        None
    },
};

/// Returns why the transport IBRC, which is the default, leaves out a NIC for its kind.
pub fn by_kind(pairing: &Pairing, environment: &Environment) -> Option<Refusal> {
    let is_default = environment.get(TRANSPORT).is_none_or(|value| value.is_empty());
    let is_ibrc = is_default || names_transport(environment, "ibrc");
    (is_ibrc && vendor(pairing.nic) == Vendor::Efa).then(|| Refusal {
        because: format!(
            "its transport IBRC needs reliable connections, which {}, an EFA, does not make",
            pairing.nic.name
        ),
        set: Some(format!("set {TRANSPORT}=libfabric")),
        seen: "driver of the NIC".to_owned(),
    })
}

/// Returns the variable that has NVSHMEM take a transport for mlx5 devices only, and its name.
fn mlx5_transport(environment: &Environment) -> Option<(String, &'static str)> {
    if names_transport(environment, "ibdevx") {
        return Some((format!("{TRANSPORT}=ibdevx"), TRANSPORT));
    }
    has_ibgda(environment).then(|| (format!("{IBGDA}=1"), IBGDA))
}

/// Returns whether a transport is asked for by name, which NVSHMEM compares without case.
fn names_transport(environment: &Environment, name: &str) -> bool {
    environment.get(TRANSPORT).is_some_and(|value| value.eq_ignore_ascii_case(name))
}

/// Returns whether the GPU posts by itself. src/host/transport/transport.cpp loads IBGDA by this
/// variable alone, beside the transport that the other one names.
fn has_ibgda(environment: &Environment) -> bool {
    environment.says_yes(IBGDA)
}

/// Returns the value of NVSHMEM_HCA_PREFIX that takes all of these devices: the letters that their
/// names begin with, or the name of the only one; `None` where names have nothing in common.
fn prefix_for<'a>(nics: &[&'a str]) -> Option<&'a str> {
    let letters = |nic: &'a str| nic.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let (first, rest) = nics.split_first()?;
    match letters(first) {
        "" => Some(*first).filter(|first| rest.iter().all(|nic| nic == first)),
        prefix => Some(prefix).filter(|prefix| rest.iter().all(|nic| letters(nic) == *prefix)),
    }
}

/// Returns whether NVSHMEM_HCA_PREFIX takes a device: names that begin so, or with `^` all others.
fn has_prefix(prefix: &str, nic: &str) -> bool {
    match prefix.strip_prefix('^') {
        Some(others) => !nic.starts_with(others),
        None => nic.starts_with(prefix),
    }
}

/// The means by which the GPU driver lets a GPU write to a NIC's registers.
pub const OVERRIDE: &str = "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d/nvidia.conf, then load nvidia.ko again when nobody uses it";

/// Returns whether the GPU driver lets a GPU write to a NIC's registers.
pub fn is_peer_mapping_overridden(machine: &Machine) -> bool {
    let params = nvidia::params(machine.root);
    let words = params.get("RegistryDwords").map_or("", |words| words.as_str());
    let value = words.split("PeerMappingOverride=").nth(1).map(|rest| rest.split([';', '"']).next().unwrap_or(rest));
    value.is_some_and(|value| !["", "0", "0x0"].contains(&value.trim()))
}

/// Returns what other versions of NVSHMEM than the one whose rules are known do here.
pub fn by_version(machine: &Machine, environment: &Environment, nics: &[&str]) -> Vec<String> {
    let mut notes = Vec::new();
    let no_peers = !machine.root.exists("/sys/kernel/mm/memory_peers/nv_mem/version");
    if no_peers && machine.loaded.is_some() && !machine.dma_buf() {
        let rule = &facts::NVSHMEM_PEERS_ONLY;
        let what = "looks only at /sys/kernel/mm/memory_peers, and skips InfiniBand here";
        notes.push(format!("{} {} {what}", rule.of, rule.range()));
    }
    let other = nics.iter().find(|nic| !nic.starts_with("mlx5"));
    if let (Some(nic), None) = (other, environment.get("NVSHMEM_HCA_PREFIX")) {
        let set = match prefix_for(nics) {
            Some(prefix) => format!("set NVSHMEM_HCA_PREFIX={prefix}, which"),
            None => {
                "set NVSHMEM_HCA_PREFIX to the common beginning of the names of the devices that it should take, which"
                    .to_owned()
            }
        };
        let first = facts::NVSHMEM_NAMES.before.unwrap_or_default();
        notes.push(format!("versions that have no ^smi as the default of NVSHMEM_HCA_PREFIX take mlx5* only, not {nic}: {set} {first} and later know; before, give the device such a name (rdma dev set {nic} name mlx5_N)"));
    }
    // With the CPU as the handler, nothing is needed of the driver to ring the NIC.
    let handler = environment.get("NVSHMEM_IBGDA_NIC_HANDLER").unwrap_or("auto").to_ascii_lowercase();
    if has_ibgda(environment) && !handler.starts_with("cpu") && !is_peer_mapping_overridden(machine) {
        let first = facts::IBGDA_BY_GPU.before.unwrap_or_default();
        notes.push(format!(
            "IBGDA has the CPU ring the NIC, from {first} on; before, it needs PeerMappingOverride=1 of nvidia.ko: {OVERRIDE}"
        ));
    }
    notes
}
