// SPDX-License-Identifier: GPL-2.0
//! Judges a program by its rule: how it registers memory, and what of a GPU and a NIC keeps it from
//! that.

use crate::doctor::hardware;
use crate::environment::{Environment, Given, OFI_PLUGINS};
use crate::facts;
use crate::machine::Machine;
use crate::pci::{Device, Distance};
use crate::rdma::{self, RdmaDevice};
use crate::setting::{vendor, Vendor};
use crate::variables::{ORDER, VISIBLE};
use crate::way::{self, Judged, Way};
use schemars::JsonSchema;
use serde::Serialize;

/// The variable that lets the EFA provider use the NIC's RDMA, or not.
const EFA_READS: &str = "FI_EFA_USE_DEVICE_RDMA";

/// The cure if a NIC, or the lack of one, is the cause.
const BY_RDMA: &str = "what [fabric.rdma] says";
/// The cures if a GPU or a NIC itself is the cause.
const BY_GPU: &str = "what [gpus.present] says of that GPU";
const BY_PORT: &str = "what [fabric.port] says of that NIC";
/// The cure if the kind of a NIC is the cause.
const BY_KIND: &str = "what [fabric.gid] says of that NIC";
/// The cures if something else than GPU and NIC closes dma-buf, or if no IOMMU knows the addresses of
/// the loaded module.
const BY_IOMMU: &str = "what [fabric.iommu] says";
const BY_REFUSED: &str = "what [ways.refused] says";

/// Returns the check whose cure is that of a program.
pub fn cured_by(fix: &str) -> Option<&'static str> {
    let all = [
        (BY_RDMA, "fabric.rdma"),
        (BY_GPU, "gpus.present"),
        (BY_PORT, "fabric.port"),
        (BY_KIND, "fabric.gid"),
        (BY_IOMMU, "fabric.iommu"),
        (BY_REFUSED, "ways.refused"),
    ];
    all.into_iter().find(|(cure, _)| *cure == fix).map(|(_, id)| id)
}

/// A program, and its rule.
pub struct Consumer {
    pub id: &'static str,
    pub name: &'static str,
    /// The place where its rule was read.
    pub source: &'static str,
    /// Returns how the program registers GPU memory on this machine. The last argument says whether
    /// dma-buf is offered.
    pub registers: fn(&Machine, &Environment, &Judged) -> Registers,
    /// Returns what of the variables is not understood, so that the program may do otherwise.
    pub unsure: fn(&Environment) -> Option<String>,
    /// Returns what is not understood of a GPU and a NIC, so that the program may treat them otherwise.
    pub unsure_of: fn(&Machine, &Pairing, &Environment) -> Option<String>,
    /// Returns where the program takes the distance of a GPU and a NIC from, if not from this machine.
    pub told_by: fn(&Machine, &Pairing, &Environment) -> Option<String>,
    /// Returns the way that a dma-buf takes when the program has it mapped for a GPU and a NIC.
    pub maps: fn(&Pairing, &Environment, Way) -> Way,
    /// Returns what of a GPU and a NIC keeps the program from GPUDirect RDMA.
    pub refuses: fn(&Pairing, &Machine, &Environment) -> Option<Refusal>,
}

/// The way by which a program registers GPU memory, if it finds one.
pub enum Registers {
    By(Way, String),
    No(Refusal),
    /// It is unknown, because what decides it could not be read or was not understood.
    Unknown(String),
}

/// Why a program does not use GPUDirect RDMA.
pub struct Refusal {
    /// The reason, which follows "because".
    pub because: String,
    /// The command that changes that; `None` if what makes the module work changes it.
    pub set: Option<String>,
    /// The text or file that was read.
    pub seen: String,
}

/// A GPU and a NIC, as a program sees them.
pub struct Pairing<'a> {
    pub gpu: &'a Device,
    pub nic: &'a RdmaDevice,
    pub distance: Distance,
    /// Says whether the GPU has a coherent link (NVLink-C2C) to the processor that the NIC hangs below.
    pub c2c: bool,
    /// Says whether the GPU has such a link, wherever the NIC hangs.
    pub has_link: bool,
    /// Says whether that link is only supposed: nothing that this machine shows of the GPU tells of it.
    pub link_is_supposed: bool,
    /// Says whether no other NIC is nearer to the GPU.
    pub nearest: bool,
}

/// What a program does with a GPU and a NIC.
#[derive(Serialize, JsonSchema)]
pub struct Verdict {
    pub consumer: &'static str,
    /// PCI address.
    pub gpu: String,
    /// Name of the RDMA device.
    pub nic: String,
    pub distance: Distance,
    /// Whether it uses GPUDirect RDMA; `null` if that is unknown.
    pub direct: Option<bool>,
    /// The way in which it does; `null` if it copies through host memory, or that is unknown.
    pub direct_by: Option<Way>,
    pub because: String,
    /// What changes that.
    pub set: Option<String>,
}

/// Returns each pair of a GPU and a NIC with an active port, which is what all programs look for, and
/// with a GID where the NIC needs one to connect by. Leaves out software devices: with them the CPU
/// moves every byte.
pub fn pairings<'a>(machine: &'a Machine) -> Vec<Pairing<'a>> {
    let mut pairings = Vec::new();
    let gpus = machine.gpus().into_iter().filter(|gpu| machine.was_given_gpu(gpu) != Some(false));
    for gpu in gpus.filter(|gpu| !machine.is_for_display(gpu)) {
        // A board whose name nothing tells may have the link.
        let coherent = machine.is_coherent(gpu);
        let has_link = coherent.unwrap_or(!gpu.has_known_name());
        let is_guest = machine.setting.virtual_machine.is_some();
        let link_is_supposed = has_link && (coherent.is_none() || is_guest && !machine.shows_c2c(gpu));
        let pairs: Vec<_> = nics(machine).map(|(device, nic)| (device, nic, gpu.distance_to(nic))).collect();
        let nearest = pairs.iter().map(|(.., distance)| *distance).min();
        pairings.extend(pairs.into_iter().map(|(nic, at, distance)| Pairing {
            gpu,
            nic,
            distance,
            has_link,
            link_is_supposed,
            c2c: has_link && gpu.numa.is_some() && gpu.numa == at.numa,
            nearest: nearest == Some(distance),
        }));
    }
    pairings
}

/// Returns the NICs of such pairs, and what they are on the PCI bus.
fn nics<'a>(machine: &'a Machine) -> impl Iterator<Item = (&'a RdmaDevice, &'a Device)> {
    let is_here = |device: &&RdmaDevice| !device.software && machine.was_given_nic(device) != Some(false);
    let nics = machine.rdma.iter().filter(move |device| is_here(device)).filter(|device| device.can_connect());
    nics.filter_map(|device| Some((device, machine.pci(device.pci.as_deref()?)?)))
}

/// Returns a NIC of a GPU's own NUMA node, which programs can take.
pub(super) fn of_own_node<'a>(machine: &'a Machine, gpu: &Device) -> Option<&'a RdmaDevice> {
    nics(machine).find(|(_, nic)| gpu.distance_to(nic) < Distance::Sys).map(|(nic, _)| nic)
}

/// Returns how a program registers where the drivers of all NICs take GPU memory by themselves.
pub fn by_driver(machine: &Machine) -> Option<Registers> {
    let mut nics = machine.rdma.iter().filter(|nic| !nic.software).peekable();
    nics.peek()?;
    nics.all(|nic| machine.takes_by_itself(nic)).then(|| {
        Registers::By(Way::PeerMemory, "the NIC's own driver says in sysfs that it takes GPU memory".to_owned())
    })
}

/// What a program does with a GPU and a NIC, and why.
pub enum Does {
    Direct(Way, String),
    Copies(Refusal),
    Unknown(String),
}

impl Consumer {
    /// Returns what the program does with a GPU and a NIC.
    pub fn does(&self, pairing: &Pairing, machine: &Machine, environment: &Environment) -> Does {
        match self.does_here(pairing, machine, environment) {
            Does::Copies(refusal) => {
                match hardware::nearer_without_device(machine, pairing.gpu, pairing.distance) {
                    // The program may run in that network namespace.
                    Some(nic) if machine.setting.rdma_by_namespace => Does::Unknown(format!(
                        "the nearer NIC {} has its RDMA device in another network namespace; here {}",
                        nic.address, refusal.because
                    )),
                    Some(_) => Does::Copies(Refusal { set: Some(BY_RDMA.to_owned()), ..refusal }),
                    None => Does::Copies(refusal),
                }
            }
            does => does,
        }
    }

    fn does_here(&self, pairing: &Pairing, machine: &Machine, environment: &Environment) -> Does {
        match Visible::of(machine, environment) {
            Visible::None(refusal) => return Does::Copies(refusal),
            Visible::Unknown(why) => return Does::Unknown(why),
            Visible::All | Visible::Some(_) => {}
        }
        // Its provider for verbs connects by the connection manager.
        if pairing.nic.iwarp && self.id != "consumers.libfabric" {
            return Does::Copies(Refusal {
                because: format!("{} is an iWARP device, with which it does not connect", pairing.nic.name),
                set: Some(BY_KIND.to_owned()),
                seen: format!("{} of the device in /sys/class/infiniband", rdma::KIND),
            });
        }
        let can = |way| way::possible(machine, pairing.gpu, pairing.nic, way);
        let offered = can(Way::DmaBuf);
        let does = match (self.registers)(machine, environment, &offered) {
            Registers::By(way, seen) => {
                let way = (self.maps)(pairing, environment, way);
                match (can(way), (self.refuses)(pairing, machine, environment)) {
                    (_, Some(refusal)) => return Does::Copies(refusal),
                    (Judged::No(because), _) => {
                        let cure = cure(machine, pairing, way);
                        return Does::Copies(Refusal { because, set: cure, seen });
                    }
                    (Judged::Unknown(why), _) => Does::Unknown(why),
                    _ => Does::Direct(way, seen),
                }
            }
            Registers::No(refusal) => return Does::Copies(or_closed(machine, pairing, &offered, refusal)),
            Registers::Unknown(why) => Does::Unknown(why),
        };
        match self.not_understood(environment).or_else(|| (self.unsure_of)(machine, pairing, environment)) {
            Some(why) => Does::Unknown(why),
            None if vendor(pairing.nic) == Vendor::Efa => self.with_efa(pairing, machine, environment, does),
            None => does,
        }
    }

    /// Returns what the program does with an EFA, which makes no reliable connections of InfiniBand.
    fn with_efa(&self, pairing: &Pairing, machine: &Machine, environment: &Environment, does: Does) -> Does {
        let by_itself = machine.takes_by_itself(pairing.nic);
        let by_provider = ["consumers.nccl", "consumers.gin", "consumers.libfabric"].contains(&self.id);
        if by_provider && environment.says_no(EFA_READS) {
            return Does::Unknown(format!(
                "{}=0 has libfabric's EFA provider leave out the NIC's RDMA, without which its versions before 1.18 do not know GPU memory (aws/aws-ofi-nccl#313)",
                EFA_READS
            ));
        }
        let rule = match self.id {
            "consumers.nccl" if OFI_PLUGINS.iter().any(|file| machine.root.exists(file)) => return does,
            "consumers.nccl" => &facts::EFA_NCCL,
            "consumers.gin" => &facts::EFA_GIN,
            "consumers.ucx" => &facts::EFA_UCX,
            "consumers.libfabric" if !by_itself => &facts::EFA_LIBFABRIC,
            "consumers.sharp" => {
                return Does::Copies(Refusal {
                    because: "it makes reliable connections, which an EFA does not".to_owned(),
                    set: None,
                    seen: "driver of the NIC".to_owned(),
                })
            }
            _ => return does,
        };
        Does::Unknown(format!("{} is an EFA: {} ({})", pairing.nic.name, rule.what, rule.source))
    }

    /// Returns what of the command line or the variables is not understood.
    pub fn not_understood(&self, environment: &Environment) -> Option<String> {
        let first = environment.not_understood.first().cloned();
        first.or_else(|| (self.unsure)(environment))
    }

    /// Judges a GPU and a NIC as `does` does, as one row of the report.
    pub(super) fn judge(&self, pairing: &Pairing, machine: &Machine, environment: &Environment) -> Verdict {
        let (direct, direct_by, because, set) = match self.does(pairing, machine, environment) {
            Does::Direct(way, seen) => (Some(true), Some(way), seen, None),
            Does::Copies(refusal) => (Some(false), None, refusal.because, refusal.set),
            Does::Unknown(why) => (None, None, why, None),
        };
        Verdict {
            consumer: self.name,
            gpu: pairing.gpu.address.clone(),
            nic: pairing.nic.name.clone(),
            distance: pairing.distance,
            direct,
            direct_by,
            because,
            set,
        }
    }
}

/// Returns what opens a way that is closed for a GPU and a NIC. `None` means that what makes the
/// module work opens it.
fn cure(machine: &Machine, pairing: &Pairing, way: Way) -> Option<String> {
    let gpu = pairing.gpu;
    if let Some((_, cure)) = machine.refusal(gpu) {
        return Some(cure.to_owned());
    }
    if machine.waits_for_fabric(gpu).is_some() {
        return Some("what [gpus.fabric] says".to_owned());
    }
    if machine.no_context(gpu).is_some() {
        return Some("what [gpus.context] says of that GPU".to_owned());
    }
    if machine.instance_without_gpudirect(pairing.nic).is_some() {
        return Some(BY_RDMA.to_owned());
    }
    let is_foreign = gpu.driver.as_deref().is_some_and(|driver| driver != "nvidia");
    let has_none = gpu.driver.is_none() && machine.driver.is_some() && !machine.drivers_are_hidden();
    if is_foreign || has_none || gpu.is_gone || hardware::why_not_started(machine, gpu).is_some() {
        return Some(BY_GPU.to_owned());
    }
    let nic = pairing.nic.pci.as_deref().and_then(|address| machine.pci(address));
    if nic.is_some_and(|nic| nic.is_gone) {
        return Some(BY_PORT.to_owned());
    }
    if way == Way::PeerMemory && way::maps_for_no_iommu(machine, pairing.nic) {
        return Some(BY_IOMMU.to_owned());
    }
    if way == Way::DmaBufPcie {
        return Some(way::topology_cure(machine));
    }
    if way == Way::DmaBuf && way::topology(machine, gpu, pairing.nic).is_no() {
        return way::cure_of_refusal(machine, gpu, pairing.nic).or_else(|| Some(BY_REFUSED.to_owned()));
    }
    // Where peer memory can work, the module is another way out.
    if way == Way::DmaBuf && way::no_peers(machine) && way::untranslated(machine, gpu, pairing.nic).is_no() {
        return Some(BY_IOMMU.to_owned());
    }
    if let Some(cure) = way::cure_of_refusal(machine, gpu, pairing.nic).filter(|_| way == Way::PeerMemory) {
        return Some(cure);
    }
    if way == Way::PeerMemory && way::refuses_pins(machine, gpu).is_some() {
        return Some("have it register by dma-buf (Mooncake: WITH_NVIDIA_PEERMEM=0)".to_owned());
    }
    let never_asks = way == Way::PeerMemory && way::nic_asks_peers(machine, pairing.nic).is_no();
    never_asks.then(|| "use dma-buf, or another NIC: what [api.driver] says".to_owned())
}

/// Returns why a program copies that found neither the module nor dma-buf: what closes dma-buf for a GPU and a NIC
/// is the reason, and not the module, where another check has its cure.
fn or_closed(machine: &Machine, pairing: &Pairing, offered: &Judged, refusal: Refusal) -> Refusal {
    match (offered, cure(machine, pairing, Way::DmaBuf)) {
        (Judged::No(why), Some(cure)) => Refusal { because: why.clone(), set: Some(cure), ..refusal },
        _ => refusal,
    }
}

/// The reason why a program does not take a NIC that is nearer to a GPU.
pub(super) struct Nearer {
    /// The reason, which follows that of the program.
    pub(super) because: String,
    pub(super) set: String,
}

/// Returns why a program does not take a NIC of this machine that is at most `within` from the GPU of a pairing, and
/// nearer than its NIC: no port of it is active, no driver makes it an RDMA device, this container was not given it,
/// or it seems to be lost.
pub(super) fn nearer(machine: &Machine, pairing: &Pairing, within: Distance) -> Option<Nearer> {
    let gpu = pairing.gpu;
    if let Some(other) = hardware::nearer_not_given(machine, gpu, pairing.distance, within) {
        return Some(Nearer {
            because: format!("this container was not given {}, which is nearer", other.name),
            set: hardware::NEARER_TO_GIVE.to_owned(),
        });
    }
    if let Some((other, fix)) = hardware::nearer_unbound(machine, gpu, pairing.distance, within) {
        let driver = other.driver.as_deref().unwrap_or("no driver");
        return Some(Nearer { because: format!("{}, which is nearer, belongs to {driver}", other.address), set: fix });
    }
    if let Some(other) = hardware::nearer_down(machine, gpu, pairing.distance, within) {
        let why = match machine.pci(other.pci.as_deref()?)?.is_gone {
            true => "has fallen off the bus",
            false => "has no active port",
        };
        return Some(Nearer { because: format!("{}, which is nearer, {why}", other.name), set: BY_PORT.to_owned() });
    }
    let because = "no NIC is below the GPU's switch, as with the other GPUs".to_owned();
    Some(Nearer { because, set: hardware::nearer_lost(machine, gpu, pairing.distance)? })
}

/// The GPUs that CUDA shows a program.
enum Visible<'a> {
    /// All that this process was given, or some of them that are all alike.
    All,
    Some(Vec<&'a Device>),
    None(Refusal),
    /// Some of several kinds, and nothing tells which.
    Unknown(String),
}

impl<'a> Visible<'a> {
    /// Reads the variables that pick GPUs. CUDA takes the entries before the first that names none, and counts from 0
    /// among the GPUs that the process was given: by their speed, unless it is told to go by their addresses.
    fn of(machine: &'a Machine, environment: &Environment) -> Self {
        let Some(list) = environment.get(VISIBLE) else { return Self::All };
        let given = machine.gpus_given();
        let by_name = |entry: &str| ["GPU-", "MIG-"].iter().any(|start| entry.starts_with(start));
        let number = |entry: &str| entry.parse::<usize>().ok().filter(|at| *at < given);
        let entries = list.split(',').map(str::trim);
        let entries: Vec<&str> = entries.take_while(|entry| by_name(entry) || number(entry).is_some()).collect();
        if entries.is_empty() {
            return Self::None(Refusal {
                because: format!("{VISIBLE}={list} leaves it no GPU"),
                set: Some(format!("unset {VISIBLE}")),
                seen: format!("environment of {}", environment.whose),
            });
        }
        let gpus: Vec<&Device> =
            machine.gpus().into_iter().filter(|gpu| machine.was_given_gpu(gpu) == Some(true)).collect();
        let numbers: Vec<usize> = entries.iter().filter_map(|entry| number(entry)).collect();
        let is_by_address = environment.get(ORDER) == Some("PCI_BUS_ID") && gpus.len() == given;
        if is_by_address && numbers.len() == entries.len() {
            return Self::Some(numbers.into_iter().filter_map(|at| gpus.get(at).copied()).collect());
        }
        let has_all = (0..given).all(|at| numbers.contains(&at));
        let all = machine.gpus();
        let are_alike = all.iter().all(|gpu| all.first().is_some_and(|first| first.device == gpu.device));
        match has_all || are_alike {
            true => Self::All,
            false => Self::Unknown(format!(
                "{VISIBLE}={list} names some of several kinds of GPUs, and which is not known here: with {ORDER}=PCI_BUS_ID numbers go by the address"
            )),
        }
    }
}

/// Returns whether a program may find a GPU.
pub fn may_see(machine: &Machine, environment: &Environment, gpu: &str) -> bool {
    match Visible::of(machine, environment) {
        Visible::Some(gpus) => gpus.iter().any(|visible| visible.address == gpu),
        _ => true,
    }
}

/// Returns the pairs whose GPU a program may find.
pub fn pairings_for<'a>(machine: &'a Machine, environment: &Environment) -> Vec<Pairing<'a>> {
    let mut pairings = pairings(machine);
    if let Visible::Some(gpus) = Visible::of(machine, environment) {
        pairings.retain(|pairing| gpus.iter().any(|gpu| gpu.address == pairing.gpu.address));
    }
    pairings
}

/// Says of a GPU and a NIC that nothing beside this machine decides.
pub(super) fn sure_of(_: &Machine, _: &Pairing, _: &Environment) -> Option<String> {
    None
}

/// Says that a program never asks for the forced PCIe mapping.
pub(super) fn as_it_is(_: &Pairing, _: &Environment, way: Way) -> Way {
    way
}

/// Judges what all programs look at: a file by which they know the module, and dma-buf, which they
/// prefer. `wanted` says whether the program may use dma-buf, or what keeps it from it.
pub(super) fn by_file(
    machine: &Machine,
    files: &[&str],
    wanted: Result<(), Keeps>,
    offered: &Judged,
    else_it: &str,
) -> Registers {
    if wanted.is_ok() && offered.is_yes() {
        return Registers::By(Way::DmaBuf, "the kernel, the GPU's and the NIC's driver offer dma-buf".to_owned());
    }
    if let Some(path) = files.iter().find(|path| machine.root.exists(path)) {
        return Registers::By(Way::PeerMemory, format!("{path} exists"));
    }
    let seen = format!("none of {}", files.join(", "));
    match (wanted, offered) {
        (Ok(()), Judged::Unknown(why)) => Registers::Unknown(why.clone()),
        (Err(keeps), Judged::Yes(_) | Judged::Unknown(_)) => Registers::No(Refusal {
            because: format!("it does not find the module, {} keeps it from dma-buf, and it {else_it}", keeps.words),
            set: Some(keeps.cure),
            seen,
        }),
        _ => Registers::No(Refusal { because: format!("it does not find the module and {else_it}"), set: None, seen }),
    }
}

/// A variable that keeps a program from dma-buf.
pub(super) struct Keeps {
    /// The variable with its value.
    pub(super) words: String,
    /// The command that undoes it.
    pub(super) cure: String,
}

impl Keeps {
    /// Returns a variable that keeps a program from dma-buf, and how to undo it; `value` would not.
    pub(super) fn by(given: &Given, value: &str) -> Self {
        Self { words: given.words(), cure: given.take_out_or(value) }
    }
}

/// Returns the refusal by a variable that takes a NIC away; `set` gives the NIC back.
pub(super) fn takes_away(given: &Given, nic: &RdmaDevice, set: String) -> Refusal {
    let set = match given.value.ends_with('\r') {
        true => format!("take the carriage returns out of {0}: sed -i 's/\\r$//' {0}", given.place),
        false => set,
    };
    Refusal { because: format!("{} takes {} away", given.words(), nic.name), set: Some(set), seen: given.place.clone() }
}

/// Returns the refusal by a variable that has a program connect by a GID that a NIC does not have: memory is registered
/// then, and no connection is made (kvcache-ai/Mooncake#3538, NVIDIA/nccl#890). A number below 0 has it choose.
pub(super) fn without_gid(given: Option<Given>, machine: &Machine, pairing: &Pairing) -> Option<Refusal> {
    let nic = pairing.nic;
    let given = given.filter(|_| vendor(nic) != Vendor::Efa)?;
    let others = rdma::gids_but(machine.root, nic, given.value.trim().parse().ok()?)?;
    let others = others.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let set = match others.is_empty() {
        true => BY_KIND.to_owned(),
        false => format!("{}; {} has GIDs of the numbers {others} (show_gids, rdma link)", given.take_out(), nic.name),
    };
    Some(Refusal {
        because: format!("{} is a GID that {} does not have here: it cannot connect", given.words(), nic.name),
        set: Some(set),
        seen: format!("gids in /sys/class/infiniband/{}/ports/*, {}", nic.name, given.place),
    })
}

/// Returns what puts a NIC back that a list takes away: an entry more, or for a list of those that are
/// left out (`^`) no list, which `take_out` says.
pub(super) fn put_back(variable: &str, list: &str, entry: &str, take_out: &str) -> String {
    match list.starts_with('^') {
        true => format!(
            "take {} out of the list that {variable} leaves out, or {take_out}",
            entry.split(':').next().unwrap_or(entry)
        ),
        false => format!("set {variable}={list},{entry}"),
    }
}

/// Returns whether a list such as `mlx5_0:1,mlx5_3` names an active port of a NIC. A `^` in front means
/// all others, a `=` (NCCL) whole names only.
pub(super) fn lists(list: &str, nic: &RdmaDevice) -> bool {
    let mut active = nic.ports.iter().filter(|port| port.state == "ACTIVE");
    active.any(|port| lists_port(list, &nic.name, &port.number))
}

fn lists_port(list: &str, nic: &str, port: &str) -> bool {
    let (others, list) = match list.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, list),
    };
    let (exact, list) = match list.strip_prefix('=') {
        Some(list) => (true, list),
        None => (false, list),
    };
    let is_it = |entry: &str| {
        // NCCL keeps the carriage return of a file of Windows.
        let mut fields = entry.trim_matches(' ').split(':');
        let name = fields.next().unwrap_or_default();
        let is_name = !name.is_empty() && (name == nic || !exact && nic.starts_with(name));
        is_name && fields.next().is_none_or(|wanted| wanted.is_empty() || wanted == port)
    };
    list.split(',').any(is_it) != others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nics() {
        let lists = |list: &str, nic: &str| lists_port(list, nic, "1");
        assert!(lists("mlx5_0:1,mlx5_3", "mlx5_3") && !lists("mlx5_0", "mlx5_3"));
        assert!(lists("mlx5", "mlx5_3") && !lists("=mlx5", "mlx5_3") && lists("=mlx5_3:1", "mlx5_3"));
        assert!(!lists("^mlx5_3", "mlx5_3") && lists("^mlx5_3", "mlx5_4") && lists("^=mlx5_1", "mlx5_10"));
        assert!(!lists("mlx5_3:2", "mlx5_3") && lists("^mlx5_3:2", "mlx5_3") && lists("mlx5_3:1:0", "mlx5_3"));
    }
}
