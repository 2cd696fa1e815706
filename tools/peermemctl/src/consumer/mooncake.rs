// SPDX-License-Identifier: GPL-2.0
//! Mooncake's transfer engine. It registers as `ibv_reg_mr()` does, unless it is told not to.

use super::{as_it_is, sure_of, Consumer, Pairing, Refusal, Registers};
use crate::environment::Environment;
use crate::machine::{Machine, NAME, OLD_MODULE};
use crate::setting::{vendor, Vendor};
use crate::way::{Judged, Way};

const VARIABLE: &str = "WITH_NVIDIA_PEERMEM";
/// The variables that choose a transport. mooncake-transfer-engine/src/transfer_engine_impl.cpp looks at
/// MC_FORCE_HCA first.
const TCP: &str = "MC_FORCE_TCP";
const HCA: &str = "MC_FORCE_HCA";
const FILTERS: &str = "MC_MS_FILTERS";

pub const MOONCAKE: Consumer = Consumer {
    id: "consumers.mooncake",
    name: "Mooncake",
    source: "registerMemoryRegionInternal in mooncake-transfer-engine/src/transport/rdma_transport/rdma_context.cpp, and mooncake-common/src/environ.cpp, of Mooncake 78297b7b8050",
    unsure: |environment| {
        let value = environment.get(TCP).filter(|_| environment.get(HCA).is_none() && !environment.says_yes(TCP))?;
        Some(format!("{TCP}={value} has older versions take TCP, which ask only whether it is set, and newer ones not"))
    },
    unsure_of: |_, pairing, environment| {
        let list = environment.get(FILTERS).filter(|list| !list.is_empty())?;
        let nic = &pairing.nic.name;
        let is_in_it = list.split(',').any(|name| name.trim() == nic);
        (!is_in_it).then(|| format!("{FILTERS}={list} leaves out {nic} where Mooncake looks for NICs itself"))
    },
    told_by: sure_of,
    maps: as_it_is,
    registers,
    refuses: |pairing, _, environment| {
        if let Some(refusal) = by_kind(pairing) {
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
