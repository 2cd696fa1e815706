// SPDX-License-Identifier: GPL-2.0
//! UCX. It registers at any distance, and chooses by what it believes each way to carry.

use super::rule::{as_it_is, by_file, nearer, put_back, sure_of, takes_away, without_gid, Consumer, Keeps, Refusal};
use crate::environment::{Environment, Given};
use crate::facts;
use crate::machine::Machine;
use crate::pci::Distance;
use crate::rdma::RdmaDevice;
use crate::way;

const FILES: [&str; 3] = [
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/module/nvidia_peermem/version",
    "/sys/module/nv_peer_mem/version",
];

pub const UCX: Consumer = Consumer {
    id: "consumers.ucx",
    name: "UCX",
    source: "uct_ib_md_open_common in src/uct/ib/base/ib_md.c of UCX 9466d104a3; ucs_topo_update_distance_sysfs in src/ucs/sys/topo/base/topo.c of 020e2aa88aba; ucs_config_parse_config_files in src/ucs/config/parser.c of 017c771c899a",
    unsure: |environment| environment.doubt_of_ucx().or_else(|| elsewhere(environment)),
    unsure_of: |machine, pairing, environment| {
        let ports = environment.ucx("UCX_NET_DEVICES").filter(|given| {
            takes(given.value, pairing.nic) != takes_as_ever(given.value, pairing.nic)
        });
        let by_ports = ports.map(|given| {
            format!(
                "{} means another thing to versions before 2026, which know {}:1 alone ({})",
                given.words(),
                pairing.nic.name,
                facts::UCX_PORTS.source
            )
        });
        let is_off = environment.ucx("UCX_IB_DIRECT_NIC").is_some_and(|given| given.says_no());
        let by_direct = || way::mapped_for_another(machine, pairing.gpu, pairing.nic).filter(|_| !is_off);
        by_ports.or_else(by_direct)
    },
    told_by: sure_of,
    maps: as_it_is,
    registers: |machine, environment, offered| {
        let no = environment.ucx("UCX_CUDA_COPY_DMABUF").filter(Given::says_no);
        let dma_buf = no.map_or(Ok(()), |no| Err(Keeps::by(&no, "try")));
        by_file(machine, &FILES, dma_buf, offered, "copies through host memory")
    },
    refuses: |pairing, machine, environment| {
        if let Some(given) = environment.ucx("UCX_IB_GPU_DIRECT_RDMA").filter(Given::says_no) {
            return Some(takes_away(&given, pairing.nic, given.take_out_or("try")));
        }
        let is_out = |given: &Given| {
            let list = given.value;
            !list.is_empty() && !takes(list, pairing.nic) && !takes_as_ever(list, pairing.nic)
        };
        if let Some(given) = environment.ucx("UCX_NET_DEVICES").filter(is_out) {
            let entry = format!("{}:1", pairing.nic.name);
            let set = put_back("UCX_NET_DEVICES", given.value, &entry, &given.take_out_or("all"));
            return Some(takes_away(&given, pairing.nic, set));
        }
        if let Some(refusal) = without_gid(environment.ucx("UCX_IB_GID_INDEX"), machine, pairing) {
            return Some(refusal);
        }
        if let Some(refusal) = environment.ucx("UCX_TLS").and_then(|given| transports(&given)) {
            return Some(refusal);
        }
        (pairing.distance == Distance::Sys).then(|| {
            let near = super::rule::of_own_node(machine, pairing.gpu);
            let closed = nearer(machine, pairing, Distance::Node).filter(|_| near.is_none());
            let also = closed.as_ref().map_or(String::new(), |nearer| format!("; {}", nearer.because));
            Refusal {
                because: format!("it believes that 220 MB/s pass from one NUMA node to another, and takes another way{also}"),
                set: Some(match closed {
                    Some(nearer) => nearer.set,
                    None => of_own_node(near, machine),
                }),
                seen: "paths in /sys/bus/pci/devices".to_owned(),
            }
        })
    },
};

/// Returns what may have UCX leave its module for InfiniBand out, or a program leave UCX out.
fn elsewhere(environment: &Environment) -> Option<String> {
    if let Some(given) = environment.ucx("UCX_MODULES").filter(|given| !["", "all"].contains(&given.value)) {
        return Some(format!("{} picks its modules, which is not judged here", given.words()));
    }
    let pml = environment.get("OMPI_MCA_pml").filter(|pml| !pml.is_empty())?;
    let (others, names) = pml.strip_prefix('^').map_or((false, pml), |names| (true, names));
    let is_taken = names.split(',').any(|name| name.trim() == "ucx") != others;
    (!is_taken).then(|| format!("with the pml {pml} (OMPI_MCA_pml) Open MPI does not take UCX"))
}

/// Returns what brings a GPU a NIC of its own NUMA node.
fn of_own_node(near: Option<&RdmaDevice>, machine: &Machine) -> String {
    match (near, &machine.setting.virtual_machine) {
        (Some(near), _) => format!("set UCX_NET_DEVICES={}:1, a NIC of the GPU's own NUMA node", near.name),
        (None, Some(_)) => {
            "NUMA nodes are the hypervisor's here: have it show GPU and NIC in one node, as they are".to_owned()
        }
        (None, None) => "no NIC here is of the GPU's own NUMA node: put one into a slot of that node".to_owned(),
    }
}

/// Returns whether UCX_NET_DEVICES takes an active port of a NIC, by the rules of the newest version: an
/// entry is `NAME:PORT` or `NAME`, a number in it may be a range (`mlx5_[0-2]`), and `^` means all others.
fn takes(list: &str, nic: &RdmaDevice) -> bool {
    is_taken(list, nic, |entry, name, port| {
        let (wanted, at) = entry.split_once(':').map_or((entry, None), |(wanted, at)| (wanted, Some(at)));
        let ranged = || {
            let (before, rest) = wanted.split_once('[')?;
            let (range, after) = rest.split_once(']')?;
            let (first, last) = range.split_once('-')?;
            let number: u64 = name.strip_prefix(before)?.strip_suffix(after)?.parse().ok()?;
            Some((first.parse().ok()?..=last.parse().ok()?).contains(&number))
        };
        (wanted == name || ranged() == Some(true)) && at.is_none_or(|at| at == port)
    })
}

/// Returns whether UCX_NET_DEVICES takes a NIC by what every version understands: `NAME:PORT`
/// alone.
fn takes_as_ever(list: &str, nic: &RdmaDevice) -> bool {
    is_taken(list, nic, |entry, name, port| entry.split_once(':') == Some((name, port)))
}

/// Returns whether a list takes an active port of a NIC. `is_it` compares an entry with its name and port.
fn is_taken(list: &str, nic: &RdmaDevice, is_it: impl Fn(&str, &str, &str) -> bool) -> bool {
    let (others, names) = list.strip_prefix('^').map_or((false, list), |names| (true, names));
    let mut active = nic.ports.iter().filter(|port| port.state == "ACTIVE");
    let named = |port: &str| names.split(',').any(|entry| entry == "all" || is_it(entry.trim(), &nic.name, port));
    active.any(|port| named(&port.number) != others)
}

/// Returns what a list of transports (UCX_TLS) lacks: one of InfiniBand, or CUDA's.
fn transports(given: &Given) -> Option<Refusal> {
    // srd is an EFA's.
    const RDMA: [&str; 18] = [
        "all", "ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "rc_gda", "ud", "ud_v", "ud_x", "ud_verbs",
        "ud_mlx5", "dc", "dc_x", "dc_mlx5", "gga_mlx5", "srd",
    ];
    const CUDA: [&str; 3] = ["all", "cuda", "cuda_copy"];
    let list = given.value;
    let (others, list) = list.strip_prefix('^').map_or((false, list), |list| (true, list));
    let names: Vec<&str> = list
        .split(',')
        .map(|name| name.trim().trim_start_matches('\\').split(':').next().unwrap_or_default())
        .collect();
    let named = |group: &[&str]| names.iter().any(|name| group.contains(name));
    let (has_rdma, has_cuda) = match others {
        // Leaving out one kind leaves the others.
        true => (!named(&["all", "ib"]) && !["rc", "ud", "dc"].iter().all(|kind| names.contains(kind)), !named(&CUDA)),
        false => (named(&RDMA), named(&CUDA)),
    };
    let refusal = |lacks: &str| Refusal {
        because: format!("{} {lacks}", given.words()),
        set: Some(given.take_out_or("all")),
        seen: given.place.clone(),
    };
    match (has_rdma, has_cuda) {
        (false, _) => Some(refusal("leaves no transport of InfiniBand")),
        (_, false) => Some(refusal("leaves cuda_copy out, without which UCX does not know GPU memory")),
        _ => None,
    }
}

/// Returns what other versions of UCX than the one whose rules are known do here with these NICs.
pub fn by_version(machine: &Machine, environment: &Environment, nics: &[&RdmaDevice]) -> Vec<String> {
    let rule = &facts::UCX_PEERS_ONLY;
    // These versions know no dma-buf, so what the machine offers of that does not matter.
    let by_module = machine.loaded.is_some();
    let no_peers = !machine.root.exists("/sys/kernel/mm/memory_peers/nv_mem/version");
    let note = || format!("{} {} looks only at /sys/kernel/mm/memory_peers, and copies here", rule.of, rule.range());
    let by_file = (by_module && no_peers).then(note);
    by_file.into_iter().chain(dropped(environment, nics)).collect()
}

/// Says that versions of UCX drop each datagram that such a NIC receives ([`facts::UCX_UD`]).
fn dropped(environment: &Environment, nics: &[&RdmaDevice]) -> Option<String> {
    const CHECK: &str = "UCX_UD_VERBS_ETH_DGID_CHECK";
    const SILENT: [&str; 2] = ["irdma", "rdma_rxe"];
    let module = nics.iter().filter_map(|nic| nic.module.as_deref()).find(|module| SILENT.contains(module))?;
    let is_off = environment.ucx(CHECK).is_some_and(|given| given.says_no());
    (!is_off).then(|| {
        format!("versions before openucx/ucx#10209, whose first release is not known here, drop what their UD transport receives from {module}, and connections hang: set {CHECK}=n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_that_reach_gpu_memory() {
        for (list, wanted) in [
            ("all", true),
            ("rc,cuda", true),
            ("rc_x,sm,self,cuda_copy,cuda_ipc", true),
            ("ud:aux,rc_mlx5,cuda", true),
            ("ud:aux,rc_mlx5,gpu", false),
            ("srd,cuda_copy", true),
            ("^tcp", true),
            ("^rc", true),
            ("tcp,cuda_copy", false),
            ("rc,sm,self", false),
            ("^ib", false),
            ("^rc,ud,dc", false),
            ("^cuda_copy", false),
            ("self", false),
        ] {
            let given = Given::of_environment("UCX_TLS", list, "");
            assert_eq!(transports(&given).is_none(), wanted, "{list}");
        }
    }
}
