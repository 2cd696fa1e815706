// SPDX-License-Identifier: GPL-2.0
//! Mooncake's transfer engine. It registers as `ibv_reg_mr()` does, unless it is told not to.

use super::{as_it_is, sure, sure_of, Consumer, Refusal, Registers};
use crate::environment::Environment;
use crate::machine::{Machine, NAME, OLD_MODULE};
use crate::way::{Judged, Way};

const VARIABLE: &str = "WITH_NVIDIA_PEERMEM";

pub const MOONCAKE: Consumer = Consumer {
    id: "consumers.mooncake",
    name: "Mooncake",
    source: "registerMemoryRegionInternal in mooncake-transfer-engine/src/transport/rdma_transport/rdma_context.cpp, and mooncake-common/src/environ.cpp, of Mooncake 78297b7b8050",
    unsure: sure,
    unsure_of: sure_of,
    told_by: sure_of,
    maps: as_it_is,
    registers,
    refuses: |_, _, environment| {
        let named = ["MC_DISABLE_GPU_DIRECT_RDMA", "MC_FORCE_TCP"];
        let name = named.into_iter().find(|name| environment.says_yes(name))?;
        Some(Refusal {
            because: format!("{name} has it copy through host memory"),
            set: Some(format!("unset {name}")),
            seen: format!("environment of {}", environment.whose),
        })
    },
};

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
