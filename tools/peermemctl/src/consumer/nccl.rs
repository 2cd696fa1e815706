// SPDX-License-Identifier: GPL-2.0
//! NCCL: its InfiniBand transport, its GPU-initiated networking (GIN), and its SHARP plugin.

use super::{by_file, lists, put_back, Consumer, Pairing, Refusal};
use crate::environment::Environment;
use crate::machine::Machine;
use crate::pci::Distance;

const NV_MEM: &str = "/sys/kernel/mm/memory_peers/nv_mem/version";
const NV_MEM_NC: &str = "/sys/kernel/mm/memory_peers/nv_mem_nc/version";
const SYS_VERSION: &str = "/sys/module/nvidia_peermem/version";

pub const NCCL: Consumer = Consumer {
    id: "consumers.nccl",
    name: "NCCL",
    source: "ncclTopoCheckGdr in src/graph/paths.cc of NCCL 04cdb808a107; ncclIbGdrSupport in src/transport/net_ib/gdr.cc of 276b2fe477ac",
    unsure: |environment| unsure(environment).or_else(|| other_topology(environment)),
    registers: |machine, environment, offered| {
        by_file(machine, &[NV_MEM, NV_MEM_NC, SYS_VERSION], dma_buf(environment), offered, "copies through host memory")
    },
    refuses,
};

pub const GIN: Consumer = Consumer {
    id: "consumers.gin",
    name: "NCCL GIN",
    source: "ncclGinIbGdrSupport in src/transport/net_ib/gin.cc of NCCL 0c7f8a8a3db5",
    unsure,
    registers: |machine, environment, offered| {
        by_file(machine, &[SYS_VERSION], dma_buf(environment), offered, "is not available")
    },
    refuses: |pairing, _, environment| {
        let mlx5 = pairing.nic.module.as_deref() == Some("mlx5_ib");
        off(pairing, environment).or_else(|| {
            (!mlx5).then(|| Refusal {
                because: format!("{} is not an mlx5 NIC, and only these serve GPU-initiated queues", pairing.nic.name),
                set: Some("set NCCL_GIN_TYPE=2, which has a CPU thread do it".to_owned()),
                seen: "driver of the NIC".to_owned(),
            })
        })
    },
};

pub const SHARP: Consumer = Consumer {
    id: "consumers.sharp",
    name: "NCCL SHARP plugin",
    source: "nccl_p2p_gdr_support in src/p2p_plugin.c of nccl-rdma-sharp-plugins 8eb729dd136b",
    unsure: |environment| unsure(environment).or_else(|| other_topology(environment)),
    registers: |machine, environment, offered| {
        by_file(machine, &[NV_MEM], dma_buf(environment), offered, "copies through host memory")
    },
    refuses,
};

/// Whether it may use dma-buf, or the variable that says no.
fn dma_buf(environment: &Environment) -> Result<(), String> {
    match environment.nccl("NCCL_DMABUF_ENABLE") {
        Some(("0", _)) => Err("NCCL_DMABUF_ENABLE=0".to_owned()),
        _ => Ok(()),
    }
}

/// Variables that take the NIC away.
fn off(pairing: &Pairing, environment: &Environment) -> Option<Refusal> {
    let refusal = |name: &str, value: &str, place: &str, set: String| Refusal {
        because: format!("{name}={value} takes {} away", pairing.nic.name),
        set: Some(set),
        seen: format!("{name} of {place}"),
    };
    match environment.nccl("NCCL_IB_DISABLE") {
        None | Some(("0", _)) => {}
        Some((value, place)) => {
            return Some(refusal("NCCL_IB_DISABLE", value, place, "unset NCCL_IB_DISABLE".to_owned()))
        }
    }
    // NCCL compares the names of networks without case.
    let net = environment.nccl("NCCL_NET").filter(|(value, _)| value.eq_ignore_ascii_case("socket"));
    if let Some((value, place)) = net {
        return Some(refusal("NCCL_NET", value, place, "unset NCCL_NET".to_owned()));
    }
    let (value, place) = environment.nccl("NCCL_IB_HCA")?;
    let set = put_back("NCCL_IB_HCA", value, &pairing.nic.name);
    (!value.is_empty() && !lists(value, &pairing.nic.name)).then(|| refusal("NCCL_IB_HCA", value, place, set))
}

/// Returns what of NCCL's variables is not understood: another network plugin decides by itself.
fn unsure(environment: &Environment) -> Option<String> {
    if let Some((value, place)) = environment.nccl("NCCL_NET") {
        let own = ["", "ib", "socket"].iter().any(|name| value.eq_ignore_ascii_case(name));
        if !own {
            return Some(format!("NCCL_NET={value} of {place} is another network plugin, which is not judged here"));
        }
    }
    if let Some((value, place)) = environment.nccl("NCCL_NET_PLUGIN") {
        if !["", "none"].contains(&value) {
            return Some(format!(
                "NCCL_NET_PLUGIN={value} of {place} is another network plugin, which is not judged here"
            ));
        }
    }
    None
}

/// Returns what keeps this program from knowing the distances that NCCL believes in.
fn other_topology(environment: &Environment) -> Option<String> {
    let (value, place) = environment.nccl("NCCL_TOPO_FILE").filter(|(value, _)| !value.is_empty())?;
    Some(format!("distances come from NCCL_TOPO_FILE={value} of {place}, which is not judged here"))
}

/// The kinds of paths, in NCCL's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Path {
    Loc,
    Nvl,
    Nvb,
    C2c,
    Pix,
    Pxb,
    Pxn,
    P2c,
    Phb,
    Sys,
}

impl Path {
    const NAMES: [(&'static str, Self); 10] = [
        ("LOC", Self::Loc),
        ("NVL", Self::Nvl),
        ("NVB", Self::Nvb),
        ("C2C", Self::C2c),
        ("PIX", Self::Pix),
        ("PXB", Self::Pxb),
        ("PXN", Self::Pxn),
        ("P2C", Self::P2c),
        ("PHB", Self::Phb),
        ("SYS", Self::Sys),
    ];
    /// What the numbers of old scripts mean.
    const OLD: [Self; 6] = [Self::Loc, Self::Pix, Self::Pxb, Self::Phb, Self::Sys, Self::Sys];

    fn text(self) -> &'static str {
        Self::NAMES.iter().find(|(_, path)| *path == self).map_or("", |(name, _)| name)
    }

    /// NCCL knows no host bridges, only the processors' NUMA nodes.
    fn between(pairing: &Pairing) -> Self {
        match pairing.distance {
            Distance::Pix => Self::Pix,
            Distance::Pxb => Self::Pxb,
            Distance::Phb | Distance::Node if pairing.c2c && pairing.nearest => Self::P2c,
            Distance::Phb | Distance::Node => Self::Phb,
            Distance::Sys => Self::Sys,
        }
    }

    /// What NCCL_NET_GDR_LEVEL says; `None` for what NCCL does not understand, and ignores.
    fn parse(value: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == value).map(|(_, path)| *path);
        let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
        named.or_else(|| Some(*Self::OLD.get(digits.parse::<usize>().ok()?.min(Self::OLD.len() - 1))?))
    }
}

/// What to do in a virtual machine, whose distances are its hypervisor's.
const VIRTUAL: &str = "this is a virtual machine, and distances here are the hypervisor's, not the hardware's: give NCCL the platform's topology file by NCCL_TOPO_FILE; NCCL_NET_GDR_LEVEL={} only after ACS redirect and ATS of the host are right, else transfers end in local protection errors";

fn refuses(pairing: &Pairing, machine: &Machine, environment: &Environment) -> Option<Refusal> {
    if let Some(refusal) = off(pairing, environment) {
        return Some(refusal);
    }
    // The file, not this machine, says how far they are apart.
    if other_topology(environment).is_some() {
        return None;
    }
    let c2c = environment.nccl("NCCL_NET_GDR_C2C").is_none_or(|(value, _)| value != "0");
    let default = if c2c { Path::P2c } else { Path::Pxb };
    let given =
        environment.nccl("NCCL_NET_GDR_LEVEL").and_then(|(value, place)| Some((Path::parse(value)?, value, place)));
    let level = given.map_or(default, |(path, ..)| path);
    let path = Path::between(pairing);
    let seen = match given {
        Some((_, value, place)) => format!("NCCL_NET_GDR_LEVEL={value} of {place}"),
        None => format!("distance {} > {}", path as u8, level as u8),
    };
    (path > level).then(|| Refusal {
        because: match given {
            Some((_, value, _)) => format!("they are {} apart, and NCCL_NET_GDR_LEVEL={value}", path.text()),
            None => format!("they are {} apart, and it goes up to {} only", path.text(), level.text()),
        },
        set: Some(match given.is_some_and(|_| path <= default) {
            false if machine.setting.virtual_machine.is_some() => VIRTUAL.replace("{}", path.text()),
            true => "unset NCCL_NET_GDR_LEVEL".to_owned(),
            false => format!("set NCCL_NET_GDR_LEVEL={}", path.text()),
        }),
        seen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_name_and_by_old_number() {
        assert_eq!(Path::parse("PHB"), Some(Path::Phb));
        assert_eq!(
            (Path::parse("0"), Path::parse("2"), Path::parse("9")),
            (Some(Path::Loc), Some(Path::Pxb), Some(Path::Sys))
        );
        assert_eq!(Path::parse("phb"), None);
        // NCCL's own message: "distance 8 > 7".
        assert_eq!((Path::Phb as u8, Path::P2c as u8), (8, 7));
    }
}
