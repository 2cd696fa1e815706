// SPDX-License-Identifier: GPL-2.0
//! NCCL: its InfiniBand transport, its GPU-initiated networking (GIN), and its SHARP plugin.

use super::nvshmem;
use super::rule::{
    as_it_is, by_file, lists, nearer, put_back, sure_of, takes_away, without_gid, Consumer, Keeps, Pairing, Refusal,
};
use crate::environment::{Environment, Given};
use crate::facts;
use crate::machine::Machine;
use crate::pci::Distance;
use crate::setting::{vendor, Vendor};
use crate::topology_file::Apart;
use crate::way::{self, Way};

/// The variable that names the GID to connect by.
const GID: &str = "NCCL_IB_GID_INDEX";
const NV_MEM: &str = "/sys/kernel/mm/memory_peers/nv_mem/version";
const NV_MEM_NC: &str = "/sys/kernel/mm/memory_peers/nv_mem_nc/version";
const SYS_VERSION: &str = "/sys/module/nvidia_peermem/version";

pub const NCCL: Consumer = Consumer {
    id: "consumers.nccl",
    name: "NCCL",
    source: "ncclTopoCheckGdr in src/graph/paths.cc of NCCL 04cdb808a107; ncclIbGdrSupport in src/transport/net_ib/gdr.cc of 276b2fe477ac",
    unsure: |environment| unsure(environment).or_else(|| topology_not_understood(environment)),
    unsure_of: path_not_known,
    told_by,
    maps,
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
    unsure_of: sure_of,
    told_by: sure_of,
    maps: as_it_is,
    registers: |machine, environment, offered| {
        by_file(machine, &[SYS_VERSION], dma_buf(environment), offered, "is not available")
    },
    refuses: |pairing, machine, environment| {
        if let Some((Number::Is(0), given)) = Number::of("NCCL_GIN_ENABLE", environment) {
            return Some(Refusal {
                because: format!("{} switches it off", given.words()),
                set: Some(given.take_out_or("1")),
                seen: given.place,
            });
        }
        off(pairing, environment)
            .or_else(|| without_gid(environment.nccl(GID), machine, pairing))
            .or_else(|| by_type(pairing, machine, environment))
    },
};

/// Returns why nobody posts to the queues of a NIC: NCCL_GIN_TYPE has a thread of the CPU do it (2), or the GPU
/// to an EFA (5).
fn by_type(pairing: &Pairing, machine: &Machine, environment: &Environment) -> Option<Refusal> {
    let given = Number::of("NCCL_GIN_TYPE", environment);
    let asks_for = |wanted: i64| given.as_ref().filter(|(number, _)| *number == Number::Is(wanted));
    let nic = &pairing.nic.name;
    if vendor(pairing.nic) == Vendor::Efa {
        let (_, given) = asks_for(5).filter(|_| !nvshmem::is_peer_mapping_overridden(machine))?;
        return Some(Refusal {
            because: format!(
                "{} has the GPU post to {nic}, which nvidia.ko refuses without PeerMappingOverride=1",
                given.words()
            ),
            set: Some(format!("{}; or have a thread of the CPU do it: {}", nvshmem::OVERRIDE, given.take_out_or("2"))),
            seen: "RegistryDwords in /proc/driver/nvidia/params".to_owned(),
        });
    }
    let is_served = pairing.nic.module.as_deref() == Some("mlx5_ib") || asks_for(2).is_some();
    (!is_served).then(|| Refusal {
        because: format!("{nic} is not an mlx5 NIC, and only these serve GPU-initiated queues"),
        set: Some("set NCCL_GIN_TYPE=2, which has a CPU thread do it".to_owned()),
        seen: "driver of the NIC".to_owned(),
    })
}

pub const SHARP: Consumer = Consumer {
    id: "consumers.sharp",
    name: "NCCL SHARP plugin",
    source: "nccl_p2p_gdr_support in src/p2p_plugin.c of nccl-rdma-sharp-plugins 8eb729dd136b",
    unsure: |environment| unsure(environment).or_else(|| topology_not_understood(environment)),
    unsure_of: path_not_known,
    told_by,
    maps,
    registers: |machine, environment, offered| {
        by_file(machine, &[NV_MEM], dma_buf(environment), offered, "copies through host memory")
    },
    refuses,
};

/// Returns what other versions of NCCL than the one whose rules are known do here, and what it does by halves.
pub fn notes(machine: &Machine, environment: &Environment) -> Vec<String> {
    let rule = &facts::NCCL_PEERS_ONLY;
    let by_module = machine.loaded.is_some() && !machine.dma_buf();
    let no_peers = !machine.root.exists(NV_MEM);
    let note = || format!("{} {} looks only at /sys/kernel/mm/memory_peers, and copies here", rule.of, rule.range());
    let reads = match Number::of("NCCL_NET_GDR_READ", environment) {
        Some((Number::Is(0), given)) => Some(format!("what it sends it reads from host memory ({})", given.words())),
        _ => None,
    };
    (by_module && no_peers).then(note).into_iter().chain(reads).collect()
}

/// The number that a variable of NCCL's has (ncclLoadParam in src/misc/param.cc).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Number {
    Is(i64),
    /// A text that is no number: older versions take it for 0, newer ones for the default.
    NoNumber,
}

impl Number {
    /// Reads a value as strtoll() with base 0 does; what follows the number does not matter.
    /// Returns `None` for an empty value, which NCCL ignores.
    fn parse(value: &str) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        let text = value.trim_start();
        let (sign, text) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let hex = hex.filter(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()));
        let (radix, text) = match hex {
            Some(rest) => (16, rest),
            None => (if text.starts_with('0') { 8 } else { 10 }, text),
        };
        let digits: String = text.chars().take_while(|c| c.is_digit(radix)).collect();
        let number = i64::from_str_radix(&digits, radix).map(|number| Self::Is(sign * number));
        Some(number.unwrap_or(Self::NoNumber))
    }

    /// Returns what a variable is, and the variable.
    fn of<'a>(name: &'a str, environment: &'a Environment) -> Option<(Self, Given<'a>)> {
        let given = environment.nccl(name)?;
        Some((Self::parse(given.value)?, given))
    }
}

/// Returns whether NCCL may use dma-buf, or the variable that forbids it.
fn dma_buf(environment: &Environment) -> Result<(), Keeps> {
    match Number::of("NCCL_DMABUF_ENABLE", environment) {
        Some((Number::Is(0), given)) => Err(Keeps::by(&given, "1")),
        _ => Ok(()),
    }
}

/// Returns why a variable takes the NIC away, if one does.
fn off(pairing: &Pairing, environment: &Environment) -> Option<Refusal> {
    // The default is 0, so a value that is no number does not disable it.
    match Number::of("NCCL_IB_DISABLE", environment) {
        None | Some((Number::Is(0) | Number::NoNumber, _)) => {}
        Some((_, given)) => return Some(takes_away(&given, pairing.nic, given.take_out_or("0"))),
    }
    // NCCL compares the names of networks without case. An EFA's is that of a plugin, which changes.
    if let Some(given) = environment.nccl("NCCL_NET").filter(|given| given.value.eq_ignore_ascii_case("socket")) {
        let set = match vendor(pairing.nic) {
            Vendor::Efa => given.take_out(),
            _ => given.take_out_or("IB"),
        };
        return Some(takes_away(&given, pairing.nic, set));
    }
    let given = environment.nccl("NCCL_IB_HCA").filter(|given| !given.value.is_empty())?;
    let set = put_back("NCCL_IB_HCA", given.value, &pairing.nic.name, &given.take_out());
    (!lists(given.value, pairing.nic)).then(|| takes_away(&given, pairing.nic, set))
}

/// Returns what of NCCL's variables is not understood: another network plugin decides by itself.
fn unsure(environment: &Environment) -> Option<String> {
    let is_own = |given: &Given| ["", "ib", "socket"].iter().any(|name| given.value.eq_ignore_ascii_case(name));
    if let Some(given) = environment.nccl("NCCL_NET").filter(|given| !is_own(given)) {
        return Some(another(&given));
    }
    for name in ["NCCL_DMABUF_ENABLE", "NCCL_NET_GDR_C2C"] {
        if let Some((Number::NoNumber, given)) = Number::of(name, environment) {
            return Some(format!(
                "{} is no number: older versions take it for 0, newer ones for the default 1",
                given.words()
            ));
        }
    }
    let is_named = |given: &Given| !["", "none"].contains(&given.value);
    if let Some(given) = environment.nccl("NCCL_ENV_PLUGIN").filter(is_named) {
        return Some(format!("{} is a plugin that sets variables, which is not judged here", given.words()));
    }
    match environment.nccl("NCCL_NET_PLUGIN") {
        Some(plugin) => is_named(&plugin).then(|| another(&plugin)),
        // Its own network has a name.
        None if environment.nccl("NCCL_NET").is_some_and(|given| !given.value.is_empty()) => None,
        None => environment.nccl_plugin.as_ref().map(|file| {
            format!("NCCL takes the network plugin {file} by itself, which is not judged here: NCCL_NET_PLUGIN=none keeps it from that")
        }),
    }
}

/// Says of a variable that it names a plugin whose rule is not known.
fn another(given: &Given) -> String {
    format!("{} is another network plugin, which is not judged here", given.words())
}

/// Returns why the file from which NCCL takes the distances is not understood.
fn topology_not_understood(environment: &Environment) -> Option<String> {
    let file = environment.topology.as_ref()?;
    let why = file.read.as_ref().err()?;
    Some(format!("distances come from {}, which is not understood: {why}", file.setting))
}

/// Returns how far a GPU and a NIC are apart by the file that NCCL is given.
fn by_topology(pairing: &Pairing, environment: &Environment) -> Option<Result<Apart, String>> {
    let topology = environment.topology.as_ref()?.read.as_ref().ok()?;
    Some(topology.apart(&pairing.gpu.address, pairing.nic.pci.as_deref(), &pairing.nic.name))
}

/// Returns why that file says nothing of a GPU and a NIC.
fn not_in_topology(_: &Machine, pairing: &Pairing, environment: &Environment) -> Option<String> {
    let file = environment.topology.as_ref()?;
    let told = |why: &str| format!("distances come from {}, and {why}", file.setting);
    match by_topology(pairing, environment)? {
        Err(why) => Some(told(&why)),
        Ok(Apart { distance: Distance::Phb, .. }) if pairing.c2c => {
            Some(told("what NCCL makes of it for a GPU with a coherent link is not known"))
        }
        Ok(_) => None,
    }
}

/// Returns why the path of a GPU and a NIC is not known.
fn path_not_known(machine: &Machine, pairing: &Pairing, environment: &Environment) -> Option<String> {
    let by_link = || {
        let level = given_level(environment).map_or_else(|| default_level(environment), |(level, _)| level);
        let decides = Path::between(pairing, environment) == Path::P2c && (Path::P2c..Path::Phb).contains(&level);
        let address = &pairing.gpu.address;
        (pairing.link_is_supposed && decides).then(|| match &machine.setting.virtual_machine {
            Some(_) => format!(
                "this virtual machine shows no root port of Grace: if NVML tells NCCL of the coherent link (NVLink-C2C) of GPU {address}, they are P2C apart, else PHB, which is too far; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH shows which"
            ),
            None => format!(
                "whether GPU {address} has a coherent link (NVLink-C2C) to the CPU is not known here, and without it NCCL finds the two too far apart"
            ),
        })
    };
    not_in_topology(machine, pairing, environment).or_else(by_link)
}

/// Returns where the distance of a GPU and a NIC comes from, if from a file that NCCL is given.
fn told_by(_: &Machine, pairing: &Pairing, environment: &Environment) -> Option<String> {
    let apart = by_topology(pairing, environment)?.ok()?;
    let file = environment.topology.as_ref()?;
    Some(format!("distances come from {}, where the two are {} apart", file.setting, apart.distance.text()))
}

/// Returns how NCCL has a dma-buf mapped: with a coherent link through PCIe, unless the path takes that
/// link.
fn maps(pairing: &Pairing, environment: &Environment, way: Way) -> Way {
    match way {
        Way::DmaBuf if pairing.has_link && Path::between(pairing, environment) != Path::P2c => Way::DmaBufPcie,
        way => way,
    }
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
    /// The paths that the numbers of old scripts mean.
    const OLD: [Self; 6] = [Self::Loc, Self::Pix, Self::Pxb, Self::Phb, Self::Sys, Self::Sys];

    fn text(self) -> &'static str {
        Self::NAMES.iter().find(|(_, path)| *path == self).map_or("", |(name, _)| name)
    }

    /// Returns the path between a GPU and a NIC as NCCL sees it: NCCL knows no host bridges, only
    /// the processors' NUMA nodes.
    fn between(pairing: &Pairing, environment: &Environment) -> Self {
        let apart = by_topology(pairing, environment).and_then(Result::ok);
        match apart.map_or(pairing.distance, |apart| apart.distance) {
            Distance::Pix => Self::Pix,
            Distance::Pxb => Self::Pxb,
            Distance::Phb | Distance::Node if pairing.c2c && pairing.nearest => Self::P2c,
            Distance::Phb | Distance::Node => Self::Phb,
            Distance::Sys => Self::Sys,
        }
    }

    /// Parses a value of NCCL_NET_GDR_LEVEL. Returns `None` for what NCCL does not understand, and
    /// ignores.
    fn parse(value: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == value).map(|(_, path)| *path);
        let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
        named.or_else(|| Some(*Self::OLD.get(digits.parse::<usize>().ok()?.min(Self::OLD.len() - 1))?))
    }
}

/// The cure in a virtual machine, whose distances are its hypervisor's.
const VIRTUAL: &str = "this is a virtual machine, and distances here are the hypervisor's, not the hardware's: give NCCL the platform's topology file by NCCL_TOPO_FILE; NCCL_NET_GDR_LEVEL={} only after ACS redirect and ATS of the host are right, else transfers end in local protection errors";

/// The cure if the platform's file says that they are far apart.
const VIRTUAL_FILE: &str = "this is a virtual machine, and the topology file says how far they are apart: take the nearest NIC of that file; NCCL_NET_GDR_LEVEL={} only after ACS redirect and ATS of the host are right, else transfers end in local protection errors";

/// The cure on a desktop's chipset, over which transfers may fail.
const DESKTOP: &str = "put GPU and NIC below one PCIe switch; NCCL_NET_GDR_LEVEL={} only after peermemctl verify has found that both directions work here";

/// Returns the path up to which NCCL takes GPUDirect RDMA unless it is told another one.
fn default_level(environment: &Environment) -> Path {
    let c2c = Number::of("NCCL_NET_GDR_C2C", environment).is_none_or(|(number, _)| number != Number::Is(0));
    if c2c {
        Path::P2c
    } else {
        Path::Pxb
    }
}

/// Returns the path of NCCL_NET_GDR_LEVEL, and the variable.
fn given_level(environment: &Environment) -> Option<(Path, Given<'_>)> {
    let given = environment.nccl("NCCL_NET_GDR_LEVEL")?;
    Some((Path::parse(given.value)?, given))
}

/// Returns whether Amazon's plugin, without which NCCL takes no EFA, has NCCL read a topology in which a GPU and its
/// nearest EFA are below one switch ([`facts::EFA_TOPOLOGY`]).
fn by_plugin(pairing: &Pairing, environment: &Environment) -> bool {
    vendor(pairing.nic) == Vendor::Efa && pairing.nearest && environment.topology.is_none()
}

fn refuses(pairing: &Pairing, machine: &Machine, environment: &Environment) -> Option<Refusal> {
    let refusal = off(pairing, environment).or_else(|| without_gid(environment.nccl(GID), machine, pairing));
    if refusal.is_some() {
        return refusal;
    }
    // This case is reported as unknown elsewhere.
    if topology_not_understood(environment).is_some() || path_not_known(machine, pairing, environment).is_some() {
        return None;
    }
    let file = told_by(machine, pairing, environment);
    if by_topology(pairing, environment).and_then(Result::ok).is_some_and(|apart| apart.without_gdr) {
        let setting = environment.topology.as_ref().map_or("", |file| &file.setting);
        return Some(Refusal {
            because: "the file of NCCL_TOPO_FILE has gdr=\"0\" for one of the two".to_owned(),
            set: Some("take gdr=\"0\" out of that file, or ask the platform for another one".to_owned()),
            seen: setting.to_owned(),
        });
    }
    let default = default_level(environment);
    let given = given_level(environment);
    let level = given.as_ref().map_or(default, |(path, _)| *path);
    let path = match by_plugin(pairing, environment) {
        true => Path::Pix,
        false => Path::between(pairing, environment),
    };
    // What this machine has nearer than that is the cause, and not the level.
    let within = if pairing.has_link { Distance::Node } else { Distance::Pxb };
    let is_lowered = given.is_some() && path <= default;
    let nearer = nearer(machine, pairing, within).filter(|_| !is_lowered && path > level);
    let also = nearer.as_ref().map_or(String::new(), |nearer| format!("; {}", nearer.because));
    let seen = match &given {
        Some((_, given)) => format!("NCCL_NET_GDR_LEVEL of {}", given.place),
        None => format!("distance {} > {}", path as u8, level as u8),
    };
    let seen = file.as_ref().map_or(seen.clone(), |file| format!("{seen}; {file}"));
    (path > level).then(|| Refusal {
        because: match &given {
            Some((_, given)) => format!("they are {} apart, and {}{also}", path.text(), given.words()),
            None => format!("they are {} apart, and it goes up to {} only{also}", path.text(), level.text()),
        },
        set: Some(match given {
            _ if nearer.is_some() => nearer.map(|nearer| nearer.set).unwrap_or_default(),
            Some((_, given)) if path <= default => given.take_out_or(path.text()),
            _ if machine.setting.virtual_machine.is_some() && file.is_none() => VIRTUAL.replace("{}", path.text()),
            _ if machine.setting.virtual_machine.is_some() => VIRTUAL_FILE.replace("{}", path.text()),
            _ if way::on_desktop(machine, pairing.gpu, pairing.nic).is_some() => DESKTOP.replace("{}", path.text()),
            _ => format!("set NCCL_NET_GDR_LEVEL={}", path.text()),
        }),
        seen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_nccl_does() {
        for (value, wanted) in [
            ("", None),
            ("0", Some(Number::Is(0))),
            ("00", Some(Number::Is(0))),
            ("0x1", Some(Number::Is(1))),
            ("0x", Some(Number::Is(0))),
            (" 1 # was 0", Some(Number::Is(1))),
            ("0 # was 1", Some(Number::Is(0))),
            ("-1", Some(Number::Is(-1))),
            ("true", Some(Number::NoNumber)),
            ("99999999999999999999", Some(Number::NoNumber)),
        ] {
            assert_eq!(Number::parse(value), wanted, "{value:?}");
        }
    }

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
