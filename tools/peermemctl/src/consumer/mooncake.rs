// SPDX-License-Identifier: GPL-2.0
//! Mooncake's transfer engine. It registers as `ibv_reg_mr()` does, unless it is told not to.

use super::rule::{as_it_is, sure_of, without_gid, Consumer, Pairing, Refusal, Registers};
use crate::environment::Environment;
use crate::machine::{Machine, NAME, OLD_MODULE};
use crate::setting::{vendor, Vendor};
use crate::variables::{SGLANG_DEVICES, VLLM_PROTOCOL};
use crate::way::{Judged, Way};

const VARIABLE: &str = "WITH_NVIDIA_PEERMEM";
/// The variables that choose a transport. mooncake-transfer-engine/src/transfer_engine_impl.cpp looks at
/// MC_FORCE_HCA first.
const TCP: &str = "MC_FORCE_TCP";
const HCA: &str = "MC_FORCE_HCA";
const FILTERS: &str = "MC_MS_FILTERS";
const DEVICES: &str = "MOONCAKE_DEVICE";
const RDMA: &str = "rdma";
/// The variables that have it take NVLink, where it was built so (Mooncake's page on supported protocols).
const NVLINK: [&str; 2] = ["MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"];

pub const MOONCAKE: Consumer = Consumer {
    id: "consumers.mooncake",
    name: "Mooncake",
    source: "registerMemoryRegionInternal in mooncake-transfer-engine/src/transport/rdma_transport/rdma_context.cpp, and mooncake-common/src/environ.cpp, of Mooncake 78297b7b8050",
    unsure: |environment| {
        let by_tcp = environment.get(TCP).filter(|_| environment.get(HCA).is_none() && !environment.says_yes(TCP));
        let by_tcp = by_tcp.map(|value| {
            format!("{TCP}={value} has older versions take TCP, which ask only whether it is set, and newer ones not")
        });
        let by_nvlink = || NVLINK.into_iter().find(|name| environment.get(name).is_some());
        let by_nvlink = || {
            by_nvlink().map(|name| {
                format!("{name} has builds with NVLink (USE_MNNVL, USE_INTRA_NVLINK) move data over that, whatever its value")
            })
        };
        let by_argument = || by_other_protocol(environment);
        by_tcp.or_else(by_nvlink).or_else(by_argument).or_else(|| by_configuration(environment))
    },
    unsure_of: |_, pairing, environment| {
        let nic = &pairing.nic.name;
        let leaves_out = |list: &&str| !list.is_empty() && !list.split(',').any(|name| name.trim() == nic);
        if let Some(list) = environment.get(FILTERS).filter(leaves_out) {
            return Some(format!("{FILTERS}={list} leaves out {nic} where Mooncake looks for NICs itself"));
        }
        let mut named = [DEVICES, SGLANG_DEVICES].into_iter().filter_map(|name| Some((name, environment.get(name)?)));
        let (name, list) = named.find(|(_, list)| leaves_out(list))?;
        Some(format!("{name} names other NICs than {nic}: {list}"))
    },
    told_by: sure_of,
    maps: as_it_is,
    registers,
    refuses: |pairing, machine, environment| {
        let by_gid = || without_gid(environment.given("MC_GID_INDEX"), machine, pairing);
        let by_kind = || by_kind(pairing).filter(|_| by_other_protocol(environment).is_none());
        if let Some(refusal) = by_argument(environment).or_else(by_kind).or_else(by_gid) {
            return Some(refusal);
        }
        let is_forced = |name: &&str| environment.says_yes(name) && (*name != TCP || environment.get(HCA).is_none());
        let name = ["MC_DISABLE_GPU_DIRECT_RDMA", TCP].into_iter().find(is_forced)?;
        Some(Refusal {
            because: format!("{name} has it copy through host memory"),
            set: Some(format!("unset {name}")),
            seen: format!("environment of {}", environment.whose),
        })
    },
};

/// Returns what vLLM's connector is told in its own arguments, where that is neither RDMA nor TCP.
fn by_other_protocol(environment: &Environment) -> Option<String> {
    let protocol = environment.get(VLLM_PROTOCOL).filter(|protocol| ![RDMA, "tcp"].contains(protocol))?;
    Some(format!("{VLLM_PROTOCOL} of kv_connector_extra_config is {protocol}, a transport that is not judged here"))
}

/// Returns why vLLM's connector, which is told in its own arguments, takes TCP.
fn by_argument(environment: &Environment) -> Option<Refusal> {
    environment.get(VLLM_PROTOCOL).filter(|protocol| *protocol == "tcp")?;
    Some(Refusal {
        because: format!("{VLLM_PROTOCOL} of kv_connector_extra_config is tcp"),
        set: Some(format!("give it \"{VLLM_PROTOCOL}\": \"{RDMA}\", or leave that out")),
        seen: environment.whose.clone(),
    })
}

/// Returns the protocol in Mooncake's configuration if it is not RDMA. The connectors of vLLM and SGLang name a
/// protocol of their own and do not read the configuration.
fn by_configuration(environment: &Environment) -> Option<String> {
    let (setting, protocol) = environment.mooncake.as_ref()?;
    let but = "which counts for what takes Mooncake's configuration (its store, LMCache), and not for connectors that give a protocol of their own";
    match protocol {
        Ok(protocol) if protocol == RDMA => None,
        Ok(protocol) => Some(format!("{setting} has it move data by {protocol} and not by RDMA, {but}")),
        Err(why) => Some(format!("{setting} tells the protocol, and {why}, {but}")),
    }
}

/// Returns why its RDMA transport, which is the default, leaves out a NIC for its kind (kvcache-ai/Mooncake#2070).
fn by_kind(pairing: &Pairing) -> Option<Refusal> {
    (vendor(pairing.nic) == Vendor::Efa).then(|| Refusal {
        because: format!(
            "its RDMA transport needs reliable connections, which {}, an EFA, does not make",
            pairing.nic.name
        ),
        set: Some("build Mooncake with USE_EFA, and choose protocol efa".to_owned()),
        seen: "driver of the NIC".to_owned(),
    })
}

fn registers(machine: &Machine, environment: &Environment, offered: &Judged) -> Registers {
    let seen = format!("{VARIABLE} in the environment of {}", environment.whose);
    if !environment.says_no(VARIABLE) {
        if machine.loaded.is_some() {
            return Registers::By(Way::PeerMemory, format!("{NAME} in /proc/modules"));
        }
        if machine.old_module_serves() {
            return Registers::By(Way::PeerMemory, format!("{OLD_MODULE} in /proc/modules"));
        }
        if !machine.modules_read {
            return Registers::Unknown(format!("whether {NAME} is loaded cannot be read"));
        }
        let plain = "it registers by a plain ibv_reg_mr(), and nvidia_peermem is not loaded";
        return Registers::No(match offered.is_yes() {
            true => Refusal {
                because: format!("{plain}; with {VARIABLE}=0 it registers by dma-buf"),
                set: Some(format!("set {VARIABLE}=0")),
                seen,
            },
            false => Refusal { because: plain.to_owned(), set: None, seen },
        });
    }
    match offered {
        Judged::Yes(_) => Registers::By(Way::DmaBuf, seen),
        Judged::Unknown(why) => Registers::Unknown(why.clone()),
        Judged::No(why) => Registers::No(Refusal {
            because: format!("{VARIABLE}=0 has it register by dma-buf, and {why}"),
            set: Some(format!("unset {VARIABLE}")),
            seen,
        }),
    }
}
