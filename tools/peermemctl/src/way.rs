// SPDX-License-Identifier: GPL-2.0
//! The ways in which a program can give GPU memory to a NIC, and whether each works for a pair of a
//! GPU and a NIC.

use crate::check::{Check, Kind, Level};
use crate::doctor::hardware;
use crate::facts;
use crate::giver::Giver;
use crate::kernel::{self, REGISTERS_DMA_BUF};
use crate::machine::{Machine, OLD_MODULE, REGISTER};
use crate::modprobe;
use crate::module_file::Maker;
use crate::nvidia::{self, Flavour};
use crate::pci::{Device, Distance, Iommu};
use crate::rdma::{self, RdmaDevice};
use crate::root::Root;
use crate::setting::{vendor, Vendor};
use crate::unload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How GPU memory gets registered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
pub enum Way {
    #[serde(rename = "peer memory")]
    PeerMemory,
    #[serde(rename = "dma-buf")]
    DmaBuf,
    /// A dma-buf that the GPU driver maps through PCIe, also where the GPU has a coherent link.
    #[serde(rename = "dma-buf, forced PCIe")]
    DmaBufPcie,
    #[serde(rename = "Data Direct")]
    DataDirect,
    /// This project's library, which registers a dma-buf where a plain registration failed.
    #[serde(rename = "preload library")]
    Preload,
}

impl Way {
    pub const ALL: [Self; 5] = [Self::PeerMemory, Self::DmaBuf, Self::DmaBufPcie, Self::DataDirect, Self::Preload];

    pub fn text(self) -> &'static str {
        match self {
            Self::PeerMemory => "peer memory",
            Self::DmaBuf => "dma-buf",
            Self::DmaBufPcie => "dma-buf, forced PCIe",
            Self::DataDirect => "Data Direct",
            Self::Preload => "preload library",
        }
    }

    /// Returns the value of label `way` in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::PeerMemory => "peer_memory",
            Self::DmaBuf => "dma_buf",
            Self::DmaBufPcie => "dma_buf_pcie",
            Self::DataDirect => "data_direct",
            Self::Preload => "preload",
        }
    }

    /// Returns the programs that take this way by default, where it works.
    pub fn taken_by(self) -> &'static str {
        match self {
            Self::PeerMemory => "plain ibv_reg_mr() (perftest, MPI)",
            Self::DmaBuf => "NCCL, UCX, NVSHMEM, libfabric, NIXL",
            Self::DmaBufPcie => "NCCL with coherent GPUs",
            Self::DataDirect => "NCCL and UCX with ConnectX-8",
            Self::Preload => "programs that LD_PRELOAD it",
        }
    }
}

/// Whether something works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judged {
    Yes(String),
    No(String),
    /// What decides it could not be read.
    Unknown(String),
}

impl Judged {
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes(_))
    }

    /// Returns the reason in words.
    pub fn because(&self) -> &str {
        match self {
            Self::Yes(why) | Self::No(why) | Self::Unknown(why) => why,
        }
    }

    pub fn text(&self) -> &'static str {
        match self {
            Self::Yes(_) => "yes",
            Self::No(_) => "no",
            Self::Unknown(_) => "unknown",
        }
    }

    pub fn is_no(&self) -> bool {
        matches!(self, Self::No(_))
    }

    /// Returns the first of two that is not a yes.
    fn and(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Yes(_) => other(),
            Self::No(_) => self,
            Self::Unknown(_) => match other() {
                no @ Self::No(_) => no,
                _ => self,
            },
        }
    }
}

/// A pair of a GPU and a NIC, and each way.
pub struct Pair<'a> {
    pub gpu: &'a Device,
    pub nic: &'a RdmaDevice,
    pub ways: Vec<(Way, Judged)>,
}

impl Pair<'_> {
    /// Returns what is known of one way.
    pub fn way(&self, wanted: Way) -> &Judged {
        static NEVER: Judged = Judged::Unknown(String::new());
        self.ways.iter().find(|(way, _)| *way == wanted).map_or(&NEVER, |(_, judged)| judged)
    }
}

/// Judges each pair of a GPU and an RDMA device, software devices too. `checks` are those that doctor
/// has made: a failure of one closes the ways that it breaks.
pub fn pairs<'a>(machine: &'a Machine, checks: &[&Check]) -> Vec<Pair<'a>> {
    let mut pairs = Vec::new();
    for gpu in machine.gpus() {
        for nic in &machine.rdma {
            let ways = Way::ALL.into_iter().map(|way| (way, judge(machine, gpu, nic, way, checks))).collect();
            pairs.push(Pair { gpu, nic, ways });
        }
    }
    pairs
}

fn judge(machine: &Machine, gpu: &Device, nic: &RdmaDevice, way: Way, checks: &[&Check]) -> Judged {
    let own = possible(machine, gpu, nic, way);
    if matches!(own, Judged::No(_)) {
        return own;
    }
    let closed = checks.iter().find(|check| {
        let about = check.subject.as_ref().is_none_or(|subject| match subject.kind {
            Kind::Gpu => subject.name == gpu.address,
            Kind::Nic => subject.name == nic.name,
        });
        let needs_core = way != Way::PeerMemory || !takes_or_pins(machine, nic);
        check.level == Level::Fail && about && breaks(check.id, way) && (needs_core || !of_peer_memory(check.id))
    });
    match closed {
        Some(check) => Judged::No(format!("[{}] {}", check.id, check.headline())),
        None => own,
    }
}

/// Returns whether the driver of a NIC takes GPU memory without the peer-memory API, or may do so.
pub fn takes_or_pins(machine: &Machine, nic: &RdmaDevice) -> bool {
    machine.takes_by_itself(nic) || pins(machine, nic)
}

/// Returns whether the driver of a NIC calls the GPU driver's functions that pin memory, as Omni-Path's does
/// for programs that speak with it (PSM2, opx).
fn pins(machine: &Machine, nic: &RdmaDevice) -> bool {
    let Some(module) = nic.module.as_deref() else { return false };
    let uses = |name: &str| machine.modules.get(name).is_some_and(|of| of.used_by.iter().any(|user| user == module));
    machine.drivers.get(module).is_some_and(|driver| driver.pins) || uses("nvidia")
}

/// Returns whether a check is about peer memory alone.
pub fn of_peer_memory(id: &str) -> bool {
    let starts = ["api.", "module.", "clients.", "driver.exports", "driver.licence"];
    let all = ["module.taint", "clients.callbacks"];
    starts.iter().any(|start| id.starts_with(start)) && !all.contains(&id)
}

/// Returns whether a failure of a check closes a way: those of the peer-memory API, of the module and
/// its clients close one way, all others each.
fn breaks(id: &str, way: Way) -> bool {
    match id {
        // Only by peer memory does NVIDIA's driver hand out addresses that an IOMMU does not know.
        "fabric.iommu" => way == Way::PeerMemory,
        _ if of_peer_memory(id) => way == Way::PeerMemory,
        // Each such check is about one pair, which is judged by itself.
        "fabric.pairs" => false,
        _ => !id.starts_with("consumers."),
    }
}

/// Returns whether a pair can have a way, by what hardware and drivers offer.
pub fn possible(machine: &Machine, gpu: &Device, nic: &RdmaDevice, way: Way) -> Judged {
    if let Some((refusal, _)) = machine.refusal(gpu) {
        return Judged::No(format!("GPU {} {refusal}", gpu.address));
    }
    if let Some(driver) = gpu.driver.as_deref().filter(|driver| *driver != "nvidia") {
        return Judged::No(format!("GPU {} belongs to the driver {driver}", gpu.address));
    }
    if gpu.is_gone {
        return Judged::No(format!("GPU {} has fallen off the bus", gpu.address));
    }
    if gpu.driver.is_none() && machine.driver.is_some() && !machine.drivers_are_hidden() {
        return Judged::No(format!("GPU {} has no driver", gpu.address));
    }
    if machine.was_given_nic(nic) == Some(false) {
        return Judged::No(machine.not_given(&nic.name, "/dev/infiniband"));
    }
    match machine.was_given_gpu(gpu) {
        Some(false) => return Judged::No(machine.not_given(&format!("GPU {}", gpu.address), "/dev")),
        None => {
            return Judged::Unknown(format!(
                "this {} was given some of the GPUs, and nothing tells whether GPU {} is one",
                Giver::of(machine).word(),
                gpu.address
            ))
        }
        Some(true) => {}
    }
    if machine.drivers_are_hidden() {
        return Judged::Unknown(format!(
            "which driver has GPU {} cannot be read: sysfs shows none of any device",
            gpu.address
        ));
    }
    if let Some(state) = machine.waits_for_fabric(gpu) {
        return Judged::No(not_in_fabric(gpu, state));
    }
    if let Some(none) = machine.no_context(gpu) {
        return Judged::No(format!("GPU {} {}", gpu.address, none.what()));
    }
    if let Some((why, ..)) = hardware::why_not_started(machine, gpu) {
        return Judged::No(format!("GPU {} could not be initialised by nvidia.ko, as {why}", gpu.address));
    }
    let nic_at = nic.pci.as_deref().and_then(|address| machine.pci(address)).filter(|_| !nic.software);
    if nic_at.is_some_and(|nic| nic.is_gone) {
        return Judged::No(format!("{} has fallen off the bus", nic.name));
    }
    if machine.may_manage_switches(nic) {
        return Judged::Unknown(format!(
            "only root may read whether {} is a NIC, or manages NVSwitches ({} in sysfs)",
            nic.name,
            rdma::PRODUCT_DATA
        ));
    }
    if let Some(instance) = machine.instance_without_gpudirect(nic) {
        return Judged::No(format!(
            "{} is an EFA of an instance of {instance}, whose hardware has no GPUDirect RDMA ({})",
            nic.name,
            facts::EFA_FAMILIES.source
        ));
    }
    let judged = match way {
        Way::PeerMemory => peer_memory(machine, gpu, nic),
        Way::DmaBuf => dma_buf(machine, gpu, nic),
        Way::DmaBufPcie => dma_buf(machine, gpu, nic).and(|| forced_pcie(machine, gpu, nic)),
        Way::DataDirect => {
            dma_buf(machine, gpu, nic).and(|| data_direct(machine, nic)).and(|| reaches_directly(machine, gpu))
        }
        Way::Preload => preload(machine, gpu, nic),
    };
    // A reason from above holds for every board, so an unknown board is judged last.
    let unknown = || not_told(machine, gpu).or_else(|| on_desktop(machine, gpu, nic));
    match judged.is_yes().then(unknown).flatten() {
        Some(why) => Judged::Unknown(why),
        None => judged,
    }
}

/// Returns why only a trial tells whether transfers between a GPU and a NIC arrive: they go from one root port of a
/// desktop's chipset to another ([`facts::DESKTOP_CHIPSET`]). That memory was registered is no proof.
pub fn on_desktop(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Option<String> {
    let cpu = machine.root.text_once("/proc/cpuinfo").ok()?;
    let is_desktop = cpu.lines().any(|line| line.starts_with("model name") && line.contains(facts::DESKTOP_WORD));
    let is_meant = is_desktop && machine.setting.virtual_machine.is_none() && !nic.software;
    (is_meant && !shares_a_switch(machine, gpu, nic)).then(|| {
        format!(
            "GPU {} and {} share no PCIe switch, and {} ({}): peermemctl verify tries both directions",
            gpu.address,
            nic.name,
            facts::DESKTOP_CHIPSET.what,
            facts::DESKTOP_CHIPSET.source
        )
    })
}

/// Says in words that a GPU waits to be registered with the fabric of NVLink.
pub fn not_in_fabric(gpu: &Device, state: &str) -> String {
    format!(
        "GPU {} is not registered with its NVLink fabric ({state}), and until it is CUDA fails with error 802, \"system not yet initialized\"",
        gpu.address
    )
}

/// Returns why nothing tells whether memory of a GPU may be pinned, unless some is or was.
fn not_told(machine: &Machine, gpu: &Device) -> Option<String> {
    if has_been_pinned(machine, gpu) {
        return None;
    }
    let address = &gpu.address;
    if let Some(why) = machine.confidential(gpu) {
        return Some(format!(
            "{why}: NVIDIA's driver gives memory of a GPU that computes confidentially to no NIC, and peermemctl selftest tries it"
        ));
    }
    if machine.is_vgpu(gpu) {
        return Some(format!(
            "GPU {address} is a vGPU: its profile and the host decide whether its memory may be pinned, and peermemctl selftest tries it"
        ));
    }
    if machine.is_host_of_vgpus(gpu) {
        return Some(format!(
            "GPU {address} is shared among virtual machines by this host's vGPU driver, which brings no CUDA for the host: run this in the virtual machines"
        ));
    }
    if machine.may_lack_instance(gpu) {
        return Some(format!(
            "GPU {address} has MIG on, and nothing tells whether it has an instance, without which CUDA does not find it: nvidia-smi -L lists those that there are"
        ));
    }
    let line = machine.unnamed_line(gpu)?;
    Some(format!(
        "GPU {address} is {line}, and NVIDIA names data-centre and professional GPUs only: peermemctl selftest tries it"
    ))
}

/// Returns whether memory of a GPU is pinned now, or was.
pub fn has_been_pinned(machine: &Machine, gpu: &Device) -> bool {
    let now = machine.registrations.iter().flatten().any(|row| row.gpu.as_deref() == Some(&gpu.address));
    now || asked_of(machine).any(|(of, _, says)| of == gpu.address && says == "supported")
}

/// Returns the GPUs and NICs (PCI addresses) that met in a registration, and what the GPU driver said of
/// each two.
fn asked_of<'a>(machine: &'a Machine) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    machine.stats.as_ref().ok().into_iter().flat_map(|stats| stats.pairs())
}

/// Returns what the GPU driver said of a GPU and a NIC: `supported`, `unsupported` or `unasked`.
fn said_of<'a>(machine: &'a Machine, gpu: &Device, nic: &RdmaDevice) -> Option<&'a str> {
    let is_it = |of: &str, with: &str| of == gpu.address && Some(with) == nic.pci.as_deref();
    asked_of(machine).find(|(of, with, _)| is_it(of, with)).map(|(.., says)| says)
}

/// Returns whether the driver of a NIC asks peers for memory.
pub fn nic_asks_peers(machine: &Machine, nic: &RdmaDevice) -> Judged {
    let module = nic.module.as_deref().unwrap_or("its driver");
    let name = &nic.name;
    match (nic.module.as_deref().and_then(|module| machine.drivers.get(module)), vendor(nic)) {
        (Some(driver), _) if driver.asks_peers => Judged::Yes(format!("{module} asks peers for memory")),
        (Some(driver), _) => Judged::No(format!("{name}: {module} never asks peers for memory ({})", driver.path)),
        (None, Vendor::Efa) => Judged::No(format!("{name} is an EFA, whose driver never asks peers for memory")),
        (None, Vendor::NeverAsks) => Judged::No(format!("{name}: {module} never asks peers for memory")),
        (None, _) => Judged::Unknown(format!("{name}: the file of {module} cannot be read")),
    }
}

fn peer_memory(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Judged {
    if machine.takes_by_itself(nic) {
        return Judged::Yes(format!("{}'s own driver takes GPU memory (device/p2p in sysfs)", nic.name));
    }
    if pins(machine, nic) {
        return Judged::Unknown(format!(
            "the driver of {} pins GPU memory by itself: whether a plain registration does, or only programs that speak with that driver, is not known",
            nic.name
        ));
    }
    match (&machine.loaded, machine.has_symbol(REGISTER)) {
        (None, _) if machine.old_module_serves() => {}
        (Some(loaded), _) if loaded.state != "Live" => {
            return Judged::No(format!("nvidia_peermem is {}", loaded.state.to_lowercase()));
        }
        (Some(_), _) => {}
        (None, Some(false)) => return Judged::No("the RDMA core has no peer-memory API".to_owned()),
        (None, _) if !machine.modules_read => {
            return Judged::Unknown("whether nvidia_peermem is loaded cannot be read".to_owned());
        }
        (None, _) => return Judged::No("nvidia_peermem is not loaded".to_owned()),
    }
    if let Some(why) = refuses_pins(machine, gpu) {
        return Judged::No(why);
    }
    if maps_for_no_iommu(machine, nic) {
        return Judged::No(format!(
            "the IOMMU translates for {}, and the loaded module hands out addresses that the NIC cannot use",
            nic.name
        ));
    }
    let asks = match (nic_asks_peers(machine, nic), vendor(nic)) {
        // The core has registered the module, and the drivers of these came with it.
        (Judged::Unknown(_), Vendor::Mellanox | Vendor::Broadcom) => Judged::Yes(String::new()),
        (asks, _) => asks,
    };
    let approved = || match said_of(machine, gpu, nic) {
        Some("supported") => Judged::Yes(String::new()),
        Some("unsupported") => Judged::No(unsupported(gpu, nic)),
        _ => match topology(machine, gpu, nic) {
            // A line in the kernel log is about a dma-buf and names no pair: it is no proof here.
            Judged::No(line) if !topology_denied(machine) => match shares_a_switch(machine, gpu, nic) {
                true => Judged::Yes(String::new()),
                false => Judged::Unknown(line),
            },
            judged => judged,
        },
    };
    asks.and(approved).and(|| {
        Judged::Yes(match machine.loaded {
            Some(_) => "nvidia_peermem is loaded".to_owned(),
            None => format!("{OLD_MODULE} is loaded"),
        })
    })
}

/// Returns why the GPU driver refuses the pins that the loaded module asks for, unless some were granted.
pub fn refuses_pins(machine: &Machine, gpu: &Device) -> Option<String> {
    if has_been_pinned(machine, gpu) {
        return None;
    }
    if machine.is_coherent(gpu) == Some(true) && is_in_cdmm(machine) {
        let from = facts::CDMM.from.unwrap_or_default();
        return Some(format!(
            "GPU {} is in CDMM mode, in which drivers from {from} on map its memory for no NIC by peer memory",
            gpu.address
        ));
    }
    refuses_parts(machine, gpu).then(|| {
        format!(
            "GPU {} is not the whole one (MIG, vGPU), of which drivers before {} refuse persistent pins",
            gpu.address,
            facts::PERSISTENT_OF_PARTS.before.unwrap_or_default()
        )
    })
}

/// Returns whether the GPU driver keeps coherent memory to itself, with a version that maps none of it then.
fn is_in_cdmm(machine: &Machine) -> bool {
    let mode = nvidia::params(machine.root).remove("CoherentGPUMemoryMode").unwrap_or_default();
    mode.trim_matches('"') == "driver" && facts::CDMM.holds(version(machine)) == Some(true)
}

/// Returns whether this machine has a part of a GPU, of which the GPU driver refuses the persistent pins that
/// the loaded module asks for.
pub fn refuses_parts(machine: &Machine, gpu: &Device) -> bool {
    let is =
        |name: &str| machine.loaded.as_ref().is_some_and(|loaded| loaded.params.get(name).is_some_and(|v| v == "1"));
    (machine.is_mig(gpu) || machine.is_vgpu(gpu))
        && is("persistent_api_support")
        && !is("revocable_fallback")
        && facts::PERSISTENT_OF_PARTS.holds(version(machine)) == Some(true)
        && !has_been_pinned(machine, gpu)
}

/// Returns what to do where the GPU driver refuses to give a GPU's memory to a NIC by peer memory.
pub fn cure_of_refusal(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Option<String> {
    if topology_denied(machine) && machine.is_coherent(gpu) != Some(true) {
        return Some(topology_cure(machine));
    }
    (said_of(machine, gpu, nic) == Some("unsupported"))
        .then(|| "use a NIC that the GPU can reach: peermemctl topo".to_owned())
}

/// Says in words that the GPU driver has refused a pair.
fn unsupported(gpu: &Device, nic: &RdmaDevice) -> String {
    format!(
        "the GPU driver says that GPU {} and {} cannot reach each other (/proc/driver/nvidia-peermem/stats)",
        gpu.address, nic.name
    )
}

/// Judges a GPU and a NIC by the GPU driver's check of the PCI topology, which from 580 on it makes for
/// both ways ([`facts::TOPOLOGY`]): by its parameter, by what it said of the two, or else by the kernel
/// log, whose line names no pair.
pub fn topology(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Judged {
    let fine = Judged::Yes(String::new());
    if machine.is_coherent(gpu) == Some(true) || facts::TOPOLOGY.holds(version(machine)) == Some(false) {
        return fine;
    }
    if topology_denied(machine) {
        return Judged::No(DENIED.to_owned());
    }
    match said_of(machine, gpu, nic) {
        Some("unsupported") => return Judged::No(unsupported(gpu, nic)),
        Some("supported") => return fine,
        _ => {}
    }
    // If other pairs are not below one switch, the line is not about a pair that is.
    let all = || machine.gpus().into_iter().flat_map(|gpu| machine.rdma.iter().map(move |nic| (gpu, nic)));
    let is_of_others = || {
        shares_a_switch(machine, gpu, nic)
            && all().any(|(gpu, nic)| !nic.software && !shares_a_switch(machine, gpu, nic))
    };
    match attach_refused(machine, AttachRefusal::Topology) {
        Some(line) if !is_of_others() => {
            Judged::No(format!("the GPU driver refused to attach a dma-buf (524): {line}"))
        }
        _ => fine,
    }
}

/// Returns whether a GPU and a NIC are below one PCIe switch.
fn shares_a_switch(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> bool {
    let device = nic.pci.as_deref().and_then(|address| machine.pci(address));
    device.is_some_and(|device| gpu.distance_to(device) < Distance::Phb)
}

/// Returns whether the driver of a NIC registers dma-bufs.
pub fn nic_takes_dma_buf(machine: &Machine, nic: &RdmaDevice) -> Judged {
    let name = &nic.name;
    let Some(module) = nic.module.as_deref() else {
        return Judged::Unknown(format!("{name}: its driver is not known to this program"));
    };
    if let no @ Judged::No(_) = mlx5_can(machine, nic) {
        return no;
    }
    // The loaded module decides; the file may be from another build.
    let is_its = |(symbol, owner): (&String, &Option<String>)| {
        symbol.ends_with(REGISTERS_DMA_BUF) && owner.as_deref() == Some(module)
    };
    if machine.symbols.iter().flatten().any(is_its) {
        return Judged::Yes(format!("{module} registers dma-bufs (/proc/kallsyms)"));
    }
    if let Some(driver) = machine.drivers.get(module) {
        return match driver.takes_dma_buf {
            true => Judged::Yes(format!("{module} registers dma-bufs ({})", driver.path)),
            false => Judged::No(format!("{name}: {module} does not register dma-bufs ({})", driver.path)),
        };
    }
    if facts::NO_DMA_BUF_DRIVERS.contains(&module) {
        return Judged::No(format!("{name}: {module} does not register dma-bufs"));
    }
    let since = facts::DMA_BUF_DRIVERS.iter().find(|(driver, ..)| *driver == module);
    let release = machine.release.as_deref().unwrap_or_default();
    let of_ofed = machine.modules.contains_key("mlx_compat");
    match since {
        Some((_, from, _)) if !of_ofed && facts::at_least(release, from) => {
            Judged::Yes(format!("{module} registers dma-bufs from Linux {from} on"))
        }
        Some((_, from, _)) if !of_ofed && facts::is_backported(release) => Judged::Unknown(format!(
            "{name}: {module} registers dma-bufs from Linux {from} on, {release} has drivers of later kernels, and the file of {module} cannot be read"
        )),
        // Only a kernel without the core's part of it is sure: makers have drivers of their own.
        Some((_, from, _)) if !of_ofed && !release.is_empty() && is_of_kernel(machine, module) => {
            Judged::No(format!("{name}: {module} registers dma-bufs from Linux {from} on only, and this is {release}"))
        }
        _ => Judged::Unknown(format!("{name}: the file of its driver {module} cannot be read")),
    }
}

/// Returns whether the loaded driver of a NIC is the running kernel's own, as far as that tells. No kernel
/// before the one whose ionic_rdma has dma-buf had that driver at all.
pub fn is_of_kernel(machine: &Machine, module: &str) -> bool {
    module != "ionic_rdma" && machine.modules.get(module).is_none_or(|loaded| !loaded.out_of_tree)
}

fn dma_buf(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Judged {
    let driver = match machine.driver.as_ref().map(|driver| driver.flavour) {
        None if !machine.modules_read => Judged::Unknown("whether nvidia.ko is loaded cannot be read".to_owned()),
        None => Judged::No("nvidia.ko is not loaded".to_owned()),
        Some(Some(Flavour::Open)) => Judged::Yes(String::new()),
        Some(Some(Flavour::Closed)) => Judged::No("the closed nvidia.ko exports no dma-bufs".to_owned()),
        Some(None) => Judged::Unknown("the flavour of nvidia.ko cannot be read".to_owned()),
    };
    let core = || match machine.has_symbol("ib_umem_dmabuf_get") {
        Some(true) => Judged::Yes(String::new()),
        Some(false) => Judged::No("the RDMA core registers no dma-bufs (Linux 5.12 and later do)".to_owned()),
        None => Judged::Unknown("/proc/kallsyms cannot be read".to_owned()),
    };
    let all = driver.and(core).and(|| nic_takes_dma_buf(machine, nic));
    let all = all.and(|| untranslated(machine, gpu, nic));
    all.and(|| topology(machine, gpu, nic)).and(|| match attach_refused(machine, AttachRefusal::Importer) {
        Some(line) => Judged::Unknown(format!(
            "a driver that cannot take GPU memory attached a dma-buf, and the kernel log does not tell whose it is: {line}"
        )),
        None => Judged::Yes(format!("nvidia.ko is open, and the RDMA core and {} register dma-bufs", nic.name)),
    })
}

/// The option of the kernel by which mlx5 registers dma-bufs.
pub const ON_DEMAND: &str = "CONFIG_INFINIBAND_ON_DEMAND_PAGING";

/// Judges whether mlx5 can register dma-bufs: it does so by on-demand paging, which the kernel must
/// be built with.
pub fn mlx5_can(machine: &Machine, nic: &RdmaDevice) -> Judged {
    let fine = Judged::Yes(String::new());
    let (Some("mlx5_ib"), Some(release)) = (nic.module.as_deref(), machine.release.as_deref()) else { return fine };
    // OFED's core has its own configuration.
    if machine.modules.contains_key("mlx_compat") {
        return fine;
    }
    let found = kernel::configuration(machine.root, release);
    match found {
        Some((file, text))
            if !text.lines().any(|line| line == format!("{ON_DEMAND}=y")) && text.contains("CONFIG_") =>
        {
            Judged::No(format!(
                "the kernel is built without {ON_DEMAND}, and mlx5_ib registers dma-bufs by that only ({file})"
            ))
        }
        _ => fine,
    }
}

/// Returns whether peer memory has addresses that a NIC cannot use: an IOMMU translates for it, and the loaded
/// module takes addresses of nvidia.ko that no IOMMU knows ([`facts::UNTRANSLATED`], [`facts::PEERS_UNMAPPED`]).
pub fn maps_for_no_iommu(machine: &Machine, nic: &RdmaDevice) -> bool {
    let is_nvidias = machine.loaded.as_ref().is_some_and(|loaded| loaded.maker == Maker::Nvidia);
    let is_new = facts::UNTRANSLATED.holds(machine.release.as_deref().unwrap_or_default()) == Some(true);
    let unmapped = peers_unmapped(machine);
    let by_driver = is_nvidias && (is_new || unmapped) || machine.old_module_serves() && unmapped;
    let at = nic.pci.as_deref().and_then(|address| machine.pci(address));
    by_driver && at.is_some_and(|device| device.iommu == Iommu::Translating)
}

/// Returns whether nvidia.ko is told to map GPU memory for no IOMMU ([`facts::PEERS_UNMAPPED`]).
pub fn peers_unmapped(machine: &Machine) -> bool {
    nvidia::option(machine.root, "DmaRemapPeerMmio") == Some(0)
}

/// Judges whether a NIC can use the addresses that the open driver exports: a translating IOMMU does not know
/// those of new kernels, nor those of a driver that is told not to map.
pub fn untranslated(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Judged {
    let fine = Judged::Yes(String::new());
    // Memory with a `struct page` is mapped as the CPU's is.
    if machine.is_coherent(gpu) == Some(true) {
        return fine;
    }
    let Some(device) = nic.pci.as_deref().and_then(|address| machine.pci(address)).filter(|_| !nic.software) else {
        return fine;
    };
    let unmapped = peers_unmapped(machine);
    if unmapped && device.iommu == Iommu::Unknown {
        return Judged::Unknown(format!(
            "NVreg_DmaRemapPeerMmio is 0, and whether the IOMMU translates for {} cannot be read",
            nic.name
        ));
    }
    if device.iommu != Iommu::Translating {
        return fine;
    }
    let release = machine.release.as_deref().unwrap_or_default();
    // A driver without a known version counts as a new one.
    let is_new = facts::DMA_BUF_IOMMU_DRIVER.holds(version(machine)) != Some(false);
    let is_old = facts::DMA_BUF_IOMMU_OLD_DRIVER.holds(version(machine)) == Some(true);
    let rules = [(&facts::DMA_BUF_IOMMU, is_new), (&facts::DMA_BUF_IOMMU_OLD, is_old)];
    let of_kernel = rules.into_iter().find(|(rule, of_driver)| *of_driver && rule.holds(release) == Some(true));
    let why = match of_kernel {
        _ if unmapped => format!(
            "the IOMMU translates for {}, and NVreg_DmaRemapPeerMmio is 0, with which the open nvidia.ko exports addresses that the NIC cannot use",
            nic.name
        ),
        Some((rule, _)) => format!(
            "the IOMMU translates for {}, and on Linux {} and later the open nvidia.ko exports addresses that the NIC cannot use ({})",
            nic.name,
            rule.from.unwrap_or_default(),
            rule.source
        ),
        None => return fine,
    };
    match machine.may_have_c2c(gpu) {
        true => Judged::Unknown(format!("{why}, unless its memory is coherent, which nothing tells here")),
        false => Judged::No(why),
    }
}

/// Returns whether peer memory cannot work here, whatever is loaded: no core has the API, or no NIC's driver asks it.
pub fn no_peers(machine: &Machine) -> bool {
    let no_api =
        machine.has_symbol(REGISTER) == Some(false) && machine.api_to_load().is_none() && machine.loaded.is_none();
    no_api || !machine.rdma.is_empty() && machine.rdma.iter().all(|nic| nic_asks_peers(machine, nic).is_no())
}

/// Returns the check that says what closes dma-buf for every GPU and NIC where kernel and drivers offer it; of several
/// the first one's.
pub fn closed_by(machine: &Machine) -> Option<&'static str> {
    let is_here = |gpu: &&Device| !gpu.is_gone && machine.was_given_gpu(gpu) != Some(false);
    let gpus: Vec<&Device> = machine.gpus().into_iter().filter(is_here).collect();
    let nics = machine.rdma.iter().filter(|nic| nic_takes_dma_buf(machine, nic).is_yes());
    let nics: Vec<&RdmaDevice> = nics.filter(|nic| machine.was_given_nic(nic) != Some(false)).collect();
    let of = |gpu: &Device, nic: &RdmaDevice| {
        let in_fabric = machine.waits_for_fabric(gpu).is_none();
        match (in_fabric, untranslated(machine, gpu, nic).is_no()) {
            (false, _) => Some("gpus.fabric"),
            (true, true) => Some("fabric.iommu"),
            (true, false) => topology(machine, gpu, nic).is_no().then_some("ways.refused"),
        }
    };
    let all = gpus.iter().flat_map(|gpu| nics.iter().map(move |nic| of(gpu, nic)));
    let all: Option<Vec<&str>> = all.collect();
    all.filter(|_| machine.dma_buf())?.first().copied()
}

/// Returns whether a GPU is or may be coherent with a CPU.
pub fn has_coherent(machine: &Machine) -> bool {
    machine.gpus().iter().any(|gpu| machine.is_coherent(gpu) != Some(false))
}

/// Why the GPU driver refuses to attach a dma-buf, as its line in the kernel log says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachRefusal {
    /// Its check of the PCI topology does not approve of the pair.
    Topology,
    /// The same check with the forced PCIe mapping does not approve of the pair.
    ForcedPcie,
    /// Whoever attached the dma-buf cannot take memory that has no `struct page`.
    Importer,
}

/// Returns the last line in which the GPU driver refused to attach a dma-buf for such a reason.
pub fn attach_refused<'a>(machine: &'a Machine, why: AttachRefusal) -> Option<&'a str> {
    // Parameters stay as they are until nvidia.ko is loaded again, so the line counts whatever they allow.
    machine.log_of_driver().iter().rev().find(|line| refusal(line) == Some(why)).map(String::as_str)
}

/// Returns what a line of the kernel log says of a dma-buf that the GPU driver refused.
fn refusal(line: &str) -> Option<AttachRefusal> {
    let words = line.to_lowercase();
    let has = |any: &[&str]| any.iter().any(|word| words.contains(word));
    let refused = ["fail", "not supported", "refus", "unsupported", "denied", "unable", "invalid", "not permitted"];
    if !words.contains("nvrm")
        || !has(&["dma-buf", "dmabuf", "dma_buf"]) && !has(&["dynamic attachment"])
        || !has(&refused)
    {
        return None;
    }
    match words {
        _ if has(&["importer", "no p2p support"]) => Some(AttachRefusal::Importer),
        _ if has(&["force_pcie", "forced pcie", "force pcie", "force-pcie"]) => Some(AttachRefusal::ForcedPcie),
        _ if has(&["attach", "topolog"]) => Some(AttachRefusal::Topology),
        _ => None,
    }
}

/// The setting of the GPU driver's check of the PCI topology, by NVreg_GrdmaPciTopoCheckOverride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopologyCheck {
    /// The value is 0: pairs pass that NVIDIA approves of.
    Asked,
    /// The value is 1: every pair passes.
    Off,
    /// The value is 2: no pair passes.
    Refuses,
}

/// The parameter of nvidia.ko that decides.
const OVERRIDE: &str = "GrdmaPciTopoCheckOverride";

/// Returns whether the loaded driver has that parameter, by what it lists or by its version; `None` if neither
/// tells.
fn has_override(machine: &Machine) -> Option<bool> {
    let is_listed = nvidia::params(machine.root).contains_key(OVERRIDE);
    is_listed.then_some(true).or_else(|| facts::TOPOLOGY_OVERRIDE.holds(version(machine)))
}

/// Returns what the loaded driver does; `None` if it has no such parameter.
pub fn topology_check(machine: &Machine) -> Option<TopologyCheck> {
    // Where the driver has none, nobody reads that word of RegistryDwords.
    let value = (has_override(machine) == Some(true)).then(|| nvidia::option(machine.root, OVERRIDE)).flatten();
    Some(match value? {
        // Before 580 each value but 0 lets all through (nv_pci_is_valid_topology_for_direct_pci).
        2 if facts::TOPOLOGY.holds(version(machine)) != Some(false) => TopologyCheck::Refuses,
        1 | 2 => TopologyCheck::Off,
        _ => TopologyCheck::Asked,
    })
}

/// Returns the version of nvidia.ko, or no word.
fn version<'a>(machine: &'a Machine) -> &'a str {
    machine.driver.as_ref().and_then(|driver| driver.version.as_deref()).unwrap_or_default()
}

/// Returns whether that check is switched off.
fn topology_is_free(machine: &Machine) -> bool {
    topology_check(machine) == Some(TopologyCheck::Off)
}

/// The words that say that no pair is let through.
pub const DENIED: &str = "NVreg_GrdmaPciTopoCheckOverride is 2, so that the GPU driver refuses every NIC";

/// Returns whether that check is told to refuse every pair.
pub fn topology_denied(machine: &Machine) -> bool {
    topology_check(machine) == Some(TopologyCheck::Refuses)
}

/// Returns what has the GPU driver accept a pair that its check of the topology refuses.
pub fn topology_cure(machine: &Machine) -> String {
    const ON: &str = "NVreg_GrdmaPciTopoCheckOverride=1";
    const BESIDE: &str = "use a NIC in the GPU's IOMMU group or below the same switch (peermemctl topo)";
    match topology_check(machine) {
        Some(TopologyCheck::Refuses) => {
            return unload::take_out_parameter(
                machine,
                "NVreg_GrdmaPciTopoCheckOverride=2",
                " (1 accepts every pair, 0 those that NVIDIA approves of)",
            );
        }
        Some(TopologyCheck::Off) => return format!("{ON} is set, and the driver refuses all the same: {BESIDE}"),
        _ => {}
    }
    let file = override_file(machine).filter(|_| !machine.setting.driver_container);
    match (has_override(machine), file) {
        (Some(false), _) => {
            let in_vain = match nvidia::option(machine.root, OVERRIDE) {
                Some(_) => ", and what RegistryDwords says of it nobody reads",
                None => "",
            };
            let or = if machine.is_known_to_580() { format!(", or driver 580 with {ON}") } else { String::new() };
            format!("driver {} has no parameter for it{in_vain}: {BESIDE}{or}", version(machine))
        }
        (_, Some(file)) => machine.setting.on_node(&format!(
            "{file} has {ON}, and the loaded nvidia.ko does not: build the initial RAM disk again (update-initramfs -u, dracut -f), then end all users of the GPUs and load nvidia.ko again, or reboot"
        )),
        (Some(true), None) => unload::set_parameter(machine, ON),
        (None, None) => format!(
            "{} (drivers before 595; where a later one has no such parameter, {BESIDE})",
            unload::set_parameter(machine, ON)
        ),
    }
}

/// Returns the file of modprobe.d that has nvidia.ko let every pair through.
fn override_file(machine: &Machine) -> Option<String> {
    let options = modprobe::options(machine.root, "nvidia").into_iter();
    let is_on = |word: &str| nvidia::word_of(word, OVERRIDE) == Some("1");
    let is_it = |name: &str, value: &str| match name.strip_prefix("NVreg_") {
        Some("RegistryDwords") => value.trim_matches('"').split(';').any(is_on),
        Some(name) => name == OVERRIDE && value == "1",
        None => false,
    };
    options.filter(|(_, name, value)| is_it(name, value)).map(|(line, ..)| line.file).next()
}

/// Returns the IOMMU groups of each GPU and its nearest NIC where they differ, and the parameter
/// that lets them, as evidence.
pub fn groups(machine: &Machine) -> Vec<String> {
    let nics: Vec<(&RdmaDevice, &Device)> =
        machine.rdma.iter().filter_map(|nic| Some((nic, machine.pci(nic.pci.as_deref()?)?))).collect();
    let of = |gpu: &&Device| {
        let (nic, at) = nics.iter().min_by_key(|(_, at)| gpu.distance_to(at))?;
        let (mine, theirs) = (gpu.iommu_group.as_deref()?, at.iommu_group.as_deref()?);
        let (gpu, nic) = (&gpu.address, &nic.name);
        (mine != theirs).then(|| format!("GPU {gpu} is in IOMMU group {mine}, {nic} in {theirs}"))
    };
    let mut seen: Vec<String> = machine.gpus().iter().filter_map(of).collect();
    let value = topology_check(machine).map(|check| check as u8);
    seen.extend(value.map(|value| format!("GrdmaPciTopoCheckOverride: {value} in /proc/driver/nvidia/params")));
    seen
}

/// Judges the forced PCIe mapping, which must not leave the IOMMU group of the GPU.
fn forced_pcie(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Judged {
    // The driver asks this first, whatever its parameter says.
    if machine.is_coherent(gpu) == Some(false) {
        return Judged::No(format!("GPU {} has no coherent link", gpu.address));
    }
    if topology_denied(machine) {
        return Judged::No(DENIED.to_owned());
    }
    if let Some(line) = attach_refused(machine, AttachRefusal::ForcedPcie) {
        return Judged::No(format!(
            "the GPU driver refused to attach a dma-buf with the forced PCIe mapping (524): {line}"
        ));
    }
    if machine.may_have_c2c(gpu) {
        return Judged::Unknown(format!("whether GPU {} has a coherent link is not known here", gpu.address));
    }
    if topology_is_free(machine) {
        return Judged::Yes("NVreg_GrdmaPciTopoCheckOverride is 1".to_owned());
    }
    let device = nic.pci.as_deref().and_then(|address| machine.pci(address));
    if is_approved(machine, gpu, device) {
        return Judged::Yes("nothing forbids the forced PCIe mapping".to_owned());
    }
    Judged::No(format!(
        "GPU {} is in {} and {} in {}{}: the GPU driver refuses it (524)",
        gpu.address,
        group_of(Some(gpu)),
        nic.name,
        group_of(device),
        not_overridden(machine)
    ))
}

/// Returns whether the GPU driver maps memory of a GPU through PCIe for a PCI function that attaches a
/// dma-buf.
fn is_approved(machine: &Machine, gpu: &Device, function: Option<&Device>) -> bool {
    let theirs = function.and_then(|function| function.iommu_group.as_deref());
    // Without the parameter, a function in no group needs a common switch.
    let by_switch = has_override(machine) != Some(true)
        && theirs.is_none()
        && function.is_some_and(|function| gpu.distance_to(function) < Distance::Phb);
    gpu.iommu_group.as_deref() == theirs || by_switch
}

/// Returns the IOMMU group of a PCI function in words.
fn group_of(function: Option<&Device>) -> String {
    let group = function.and_then(|function| function.iommu_group.as_deref());
    group.map_or("no IOMMU group".to_owned(), |group| format!("IOMMU group {group}"))
}

/// Says that a parameter which the driver has would let a pair through.
fn not_overridden(machine: &Machine) -> &'static str {
    match has_override(machine) {
        Some(false) => "",
        _ => ", and NVreg_GrdmaPciTopoCheckOverride is not 1",
    }
}

/// Judges whether a function for Data Direct may have memory of a GPU: that function attaches the
/// dma-buf, and not the NIC's own (mlx5_ib's reg_user_mr_dmabuf_by_data_direct()). Product data,
/// which root sees, says which NIC each function belongs to.
fn reaches_directly(machine: &Machine, gpu: &Device) -> Judged {
    let fine = Judged::Yes("a ConnectX has a function for Data Direct".to_owned());
    if machine.is_coherent(gpu) != Some(true) || topology_is_free(machine) {
        return fine;
    }
    if topology_denied(machine) {
        return Judged::No(DENIED.to_owned());
    }
    if direct_functions(machine).any(|function| is_approved(machine, gpu, Some(function))) {
        return fine;
    }
    Judged::No(format!(
        "GPU {} is in {} and no function for Data Direct with it ({}){}: the GPU driver refuses it (524)",
        gpu.address,
        group_of(Some(gpu)),
        direct_functions(machine)
            .map(|function| format!("{} in {}", function.address, group_of(Some(function))))
            .collect::<Vec<_>>()
            .join(", "),
        not_overridden(machine)
    ))
}

/// Returns the functions for Data Direct.
fn direct_functions<'a>(machine: &'a Machine) -> impl Iterator<Item = &'a Device> {
    machine.devices.iter().filter(|device| device.is_dma_direct())
}

/// Returns why some versions of UCX fail to register memory of a GPU with a NIC ([`facts::UCX_DIRECT_NIC`]).
pub fn mapped_for_another(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Option<String> {
    let is_beside = |function: &&Device| gpu.distance_to(function) < Distance::Phb;
    let beside = direct_functions(machine).find(is_beside)?;
    if data_direct(machine, nic).is_yes() || !forced_pcie(machine, gpu, nic).is_no() {
        return None;
    }
    Some(format!(
        "the function {} for Data Direct is beside GPU {}: some versions map the GPU's memory for that through PCIe, which the GPU driver refuses to {} (524; {}); set UCX_IB_DIRECT_NIC=n, or bring up the ports of the NIC that the function belongs to",
        beside.address,
        gpu.address,
        nic.name,
        facts::UCX_DIRECT_NIC.source
    ))
}

/// Judges whether a NIC has a function for Data Direct.
pub fn data_direct(machine: &Machine, nic: &RdmaDevice) -> Judged {
    let device = nic.pci.as_deref().and_then(|address| machine.pci(address));
    let is_older = device.is_some_and(|device| facts::CONNECTX_WITHOUT_DATA_DIRECT.contains(&device.device));
    let release = machine.release.as_deref().unwrap_or_default();
    let rule = &facts::DATA_DIRECT;
    match (vendor(nic), direct_functions(machine).next().is_some()) {
        (Vendor::Mellanox, true) if is_older => Judged::No(format!("{} is no ConnectX-8", nic.name)),
        // OFED's mlx5 is newer than the kernel's.
        (Vendor::Mellanox, true)
            if !machine.modules.contains_key("mlx_compat") && rule.holds(release) == Some(false) =>
        {
            Judged::Unknown(format!(
                "mlx5_ib knows Data Direct from {} {} on, and whether that of {release} does is not known",
                rule.of,
                rule.from.unwrap_or_default()
            ))
        }
        (Vendor::Mellanox, true) => Judged::Yes("a ConnectX has a function for Data Direct".to_owned()),
        _ => Judged::No("there is no ConnectX-8".to_owned()),
    }
}

/// The file of the preload library.
const PRELOAD_LIBRARY: &str = "libgpumr-preload.so";

/// Returns where the preload library is installed.
pub fn preload_library(root: &Root) -> Option<String> {
    let mut folders = vec!["/usr/local/lib".to_owned(), "/usr/lib64".to_owned(), "/usr/lib".to_owned()];
    folders.extend(["x86_64", "aarch64"].map(|arch| format!("/usr/lib/{arch}-linux-gnu")));
    let files = folders.into_iter().map(|folder| format!("{folder}/{PRELOAD_LIBRARY}"));
    files.into_iter().find(|file| root.exists(file))
}

/// Judges the preload library, which registers a dma-buf in the place of a plain registration that failed.
fn preload(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Judged {
    dma_buf(machine, gpu, nic).and(|| match preload_library(machine.root) {
        Some(file) => Judged::Yes(format!("{file} is installed")),
        None => Judged::No(format!("{PRELOAD_LIBRARY} is not installed")),
    })
}
