// SPDX-License-Identifier: GPL-2.0
//! NCCL: its InfiniBand transport, its GPU-initiated networking (GIN), and its SHARP plugin.

use super::{by_file, lists, Consumer, Refusal, Setting};
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
    registers: |machine, environment| {
        by_file(machine, &[NV_MEM, NV_MEM_NC, SYS_VERSION], dma_buf(environment), "copies through host memory")
    },
    refuses,
};

pub const GIN: Consumer = Consumer {
    id: "consumers.gin",
    name: "NCCL GIN",
    source: "ncclGinIbGdrSupport in src/transport/net_ib/gin.cc of NCCL 0c7f8a8a3db5",
    registers: |machine, environment| by_file(machine, &[SYS_VERSION], dma_buf(environment), "is not available"),
    refuses: |setting, _, environment| {
        let mlx5 = setting.nic.module.as_deref() == Some("mlx5_ib");
        off(setting, environment).or_else(|| {
            (!mlx5).then(|| Refusal {
                because: format!("{} is not an mlx5 NIC, and only these serve GPU-initiated queues", setting.nic.name),
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
    registers: |machine, environment| by_file(machine, &[NV_MEM], dma_buf(environment), "copies through host memory"),
    refuses,
};

/// Whether it may use dma-buf, or the variable that says no.
fn dma_buf(environment: &Environment) -> Result<bool, String> {
    match environment.nccl("NCCL_DMABUF_ENABLE") {
        Some(("0", _)) => Err("NCCL_DMABUF_ENABLE=0".to_owned()),
        _ => Ok(true),
    }
}

/// Variables that take the NIC away.
fn off(setting: &Setting, environment: &Environment) -> Option<Refusal> {
    let refusal = |name: &str, value: &str, place: &str, set: String| Refusal {
        because: format!("{name}={value} takes {} away", setting.nic.name),
        set: Some(set),
        seen: format!("{name} of {place}"),
    };
    match environment.nccl("NCCL_IB_DISABLE") {
        None | Some(("0", _)) => {}
        Some((value, place)) => {
            return Some(refusal("NCCL_IB_DISABLE", value, place, "unset NCCL_IB_DISABLE".to_owned()))
        }
    }
    if let Some((value @ "Socket", place)) = environment.nccl("NCCL_NET") {
        return Some(refusal("NCCL_NET", value, place, "unset NCCL_NET".to_owned()));
    }
    let (value, place) = environment.nccl("NCCL_IB_HCA")?;
    let set = format!("set NCCL_IB_HCA={value},{}", setting.nic.name);
    (!lists(value, &setting.nic.name)).then(|| refusal("NCCL_IB_HCA", value, place, set))
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
    fn between(setting: &Setting) -> Self {
        match setting.distance {
            Distance::Pix => Self::Pix,
            Distance::Pxb => Self::Pxb,
            Distance::Phb | Distance::Node if setting.c2c && setting.nearest => Self::P2c,
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

fn refuses(setting: &Setting, _: &Machine, environment: &Environment) -> Option<Refusal> {
    if let Some(refusal) = off(setting, environment) {
        return Some(refusal);
    }
    let c2c = environment.nccl("NCCL_NET_GDR_C2C").is_none_or(|(value, _)| value != "0");
    let default = if c2c { Path::P2c } else { Path::Pxb };
    let given =
        environment.nccl("NCCL_NET_GDR_LEVEL").and_then(|(value, place)| Some((Path::parse(value)?, value, place)));
    let level = given.map_or(default, |(path, ..)| path);
    let path = Path::between(setting);
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
