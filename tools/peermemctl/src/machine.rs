// SPDX-License-Identifier: GPL-2.0
//! Everything that the verdicts need, read once.

use crate::doctor::driver;
use crate::facts;
use crate::giver::{self, Giver};
use crate::kernel::{self, Loaded};
use crate::modprobe::COMMAND_LINE;
use crate::module_file::{self, Maker, ModuleFile};
use crate::nvidia::{self, Driver, Told};
use crate::pci::{self, Device};
use crate::peermem::{self, Callback, Failure, Registration, Stats};
use crate::rdma::{self, RdmaDevice};
use crate::rights;
use crate::root::{Forbidden, Missing, Root, Silent};
use crate::setting::{self, vendor, GpuClass, Setting, Vendor, IDENTITY, OF_X86};
use crate::way;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Mellanox's module from before nvidia-peermem; it registers the same client name, which a core
/// without memory_peers takes twice.
pub const OLD_MODULE: &str = "nv_peer_mem";
/// A module that MLNX_OFED and DOCA-OFED load, and no other RDMA stack has.
pub const OFED_MODULE: &str = "mlx_compat";
/// The module's name as the kernel writes it.
pub const NAME: &str = "nvidia_peermem";
/// The folder in which the kernel shows the module.
pub const SYS: &str = "/sys/module/nvidia_peermem";
/// The folder in which some kernels show the clients of the peer-memory core.
pub const PEERS: &str = "/sys/kernel/mm/memory_peers";

/// The symbol that a core with the peer-memory API exports.
pub const REGISTER: &str = "ib_register_peer_memory_client";

/// The function that a driver of RDMA devices calls which lets peers answer for memory.
pub const ASK: &str = "ib_umem_get_peer";

/// The machine, as it was read.
pub struct Machine<'a> {
    pub root: &'a Root,
    /// The kind of machine that it is.
    pub setting: Setting,
    pub release: Option<String>,
    /// Symbols of interest, with their modules.
    pub symbols: Result<BTreeMap<String, Option<String>>, Missing>,
    pub modules: BTreeMap<String, Loaded>,
    /// Whether anything tells which modules are loaded.
    pub modules_read: bool,
    pub log: Result<Vec<String>, Missing>,
    /// The time when each line of the log was written, in microseconds since the kernel was booted.
    pub log_times: Vec<u64>,
    /// Whether only the end of the log was read.
    pub log_cut: bool,
    /// The words that say that the memory of this virtual machine is encrypted; `None` if nothing
    /// says so.
    pub encrypted: Option<String>,
    pub driver: Option<Driver>,
    pub devices: Vec<Device>,
    pub rdma: Vec<RdmaDevice>,
    /// The RDMA devices by which NVSwitches are managed. They are no NICs, and not among the others.
    pub switch_managers: Vec<RdmaDevice>,
    /// The facts that the files of the RDMA devices' drivers tell, by module, if they can be read.
    pub drivers: BTreeMap<String, NicDriver>,
    /// The module file that modprobe would load.
    pub file: Option<ModuleFile>,
    /// The nvidia-peermem that is loaded.
    pub loaded: Option<Peermem>,
    pub stats: Result<Stats, Missing>,
    pub registrations: Result<Vec<Registration>, Missing>,
    pub failures: Result<Vec<Failure>, Missing>,
    pub callbacks: Result<Vec<Callback>, Missing>,
    /// Clients that /sys/kernel/mm/memory_peers shows.
    pub peers: Vec<String>,
    /// Device nodes of GPUs and NICs that the device cgroup of this process forbids.
    pub forbidden: Vec<String>,
    /// The devices that this process was given. Each pair of a GPU and a NIC asks for them, and there may be
    /// thousands of pairs.
    pub(crate) given: Given,
    /// The facts that nvidia-smi tells of each GPU; [`Machine::ask_tools`] fills them in.
    pub smi: Result<BTreeMap<String, Told>, Silent>,
}

/// The reason why CUDA makes no context on a GPU that nvidia.ko has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoContext {
    /// A parameter has nvidia.ko leave it alone: no program can open it (nv_open_device in nv.c).
    Excluded,
    /// MIG is on, and no instance was made.
    WithoutInstance,
    /// MIG is on, and this process may open the nodes of no instance.
    InstanceNotGiven,
    /// Its compute mode forbids contexts.
    Prohibited,
}

impl NoContext {
    /// Returns what is so; the GPU's name goes before it.
    pub fn what(self) -> &'static str {
        match self {
            Self::Excluded => "is excluded (NVreg_ExcludedGpus of nvidia.ko), so that no program can open it",
            Self::WithoutInstance => "has MIG on and no instance that CUDA finds, so that no program can use it",
            Self::InstanceNotGiven => {
                "has MIG on, and this process may open no instance of it in /dev/nvidia-caps, so that CUDA finds none"
            }
            Self::Prohibited => "is in compute mode Prohibited, in which CUDA makes no context on it",
        }
    }
}

/// The devices that a process was given, once somebody has asked, and the NICs that should have an RDMA device here
/// and have none.
#[derive(Default)]
pub(crate) struct Given {
    all_devices: OnceLock<bool>,
    gpus: OnceLock<Option<Vec<u32>>>,
    nodes_of_nics: OnceLock<Vec<String>>,
    pub(crate) without_device: OnceLock<Vec<String>>,
}

/// The loaded nvidia-peermem.
pub struct Peermem {
    pub version: Option<String>,
    pub srcversion: Option<String>,
    pub maker: Maker,
    pub state: String,
    pub params: BTreeMap<String, String>,
}

impl<'a> Machine<'a> {
    /// Reads all that is known of the machine.
    pub fn look(root: &'a Root) -> Self {
        let release = kernel::release(root);
        let modules = kernel::loaded_modules(root);
        let driver = nvidia::driver(root);
        let chosen = release.as_deref().and_then(|release| module_file::chosen(root, release, NAME));
        let file = chosen.and_then(|path| ModuleFile::read(root, &path).ok());
        let stats = peermem::stats(root);
        let devices = pci::devices(root);
        // Vital product data takes its time, so it is read where there may be such devices.
        let may_manage = nvidia::gpus(&devices).into_iter().any(nvidia::may_have_nvlink5);
        let manages = |nic: &RdmaDevice| may_manage && rdma::manages_switches(root, nic) == Some(true);
        let (switch_managers, rdma): (Vec<_>, Vec<_>) = rdma::devices(root).into_iter().partition(manages);
        let drivers = nic_drivers(root, release.as_deref(), &rdma);
        let (log, log_cut) = kernel::log(root);
        let (log_times, log) = match log {
            Ok(lines) => {
                let (times, lines) = lines.into_iter().unzip();
                (times, Ok(lines))
            }
            Err(missing) => (Vec::new(), Err(missing)),
        };
        let loaded = peermem_loaded(root, &modules, release.as_deref(), driver.as_ref());
        let mut forbidden = giver::device_nodes(root);
        forbidden.retain(|path| root.forbidden(path) == Some(Forbidden::ByCgroup));
        Self {
            given: Given::default(),
            forbidden,
            encrypted: setting::encrypted(root, log.iter().flatten()),
            // A file that is masked in a sandbox is empty.
            symbols: match kernel::symbols(root) {
                Ok(found) if found.is_empty() && modules.contains_key("nvidia") => Err(Missing::Unknown),
                symbols => symbols,
            },
            log,
            log_times,
            log_cut,
            devices,
            switch_managers,
            registrations: peermem::registrations(root),
            failures: peermem::failures(root),
            callbacks: peermem::callbacks(root),
            peers: root.names(PEERS),
            smi: Err(Silent::Failed),
            setting: Setting::look(root),
            rdma,
            drivers,
            root,
            release,
            // A kernel without modules shows those that are built in.
            modules_read: root.exists("/proc/modules") || !root.names("/sys/module").is_empty(),
            modules,
            driver,
            file,
            loaded,
            stats,
        }
    }

    /// Asks the programs that take their time (nvidia-smi: a second and more).
    pub fn ask_tools(&mut self) {
        self.smi = nvidia::told(self.root);
    }

    /// Returns what nvidia-smi tells of a GPU.
    pub fn told(&self, gpu: &Device) -> Option<&Told> {
        self.smi.as_ref().ok()?.get(&gpu.address)
    }

    /// Returns the GPUs.
    pub fn gpus(&self) -> Vec<&Device> {
        nvidia::gpus(&self.devices)
    }

    /// Returns the PCI function at `address`.
    pub fn pci(&self, address: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.address == address)
    }

    /// Returns the lines of the kernel log since nvidia.ko was last loaded: what an earlier one said is over.
    pub fn log_of_driver(&self) -> &[String] {
        let log = self.log.as_deref().unwrap_or_default();
        let loaded = log.iter().rposition(|line| line.contains("NVRM: loading NVIDIA UNIX"));
        log.get(loaded.unwrap_or(0)..).unwrap_or_default()
    }

    /// Returns whether the driver's MIG instances are all that programs see of a GPU.
    pub fn is_mig(&self, gpu: &Device) -> bool {
        let told = self.told(gpu).and_then(|told| told.mig.as_deref());
        let folder = || nvidia::mig_folder(self.root, &gpu.address);
        let has_instances =
            || folder().is_some_and(|folder| self.root.names(&folder).iter().any(|name| name.starts_with("gi")));
        told == Some("Enabled") || has_instances()
    }

    /// Returns whether CUDA finds an instance of a GPU with MIG; `None` if nothing tells.
    fn has_mig_device(&self, gpu: &Device) -> Option<bool> {
        if self.told(gpu).is_some_and(|told| told.has_mig_device) || way::has_been_pinned(self, gpu) {
            return Some(true);
        }
        let folder = nvidia::mig_folder(self.root, &gpu.address).filter(|folder| self.root.exists(folder))?;
        // CUDA needs a compute instance in it. Older recordings have the folder alone.
        let is_usable = |instance: &String| {
            let inside = self.root.names(&format!("{folder}/{instance}"));
            inside.is_empty() || inside.iter().any(|name| name.starts_with("ci"))
        };
        Some(self.root.names(&folder).iter().filter(|name| name.starts_with("gi")).any(is_usable))
    }

    /// Returns the nodes of a GPU's MIG instances if this process may open those of no instance. On a host, those that
    /// are not there are made when a program asks for them.
    pub fn instances_not_given(&self, gpu: &Device) -> Option<Vec<String>> {
        let is_closed = |node: &String| match self.root.exists(node) {
            true => self.root.forbidden_to_read(node).is_some(),
            false => self.setting.container.is_some(),
        };
        let finds_one = || self.told(gpu).is_some_and(|told| told.has_mig_device) || way::has_been_pinned(self, gpu);
        let all = nvidia::mig_nodes(self.root, &gpu.address);
        let are_closed = !all.is_empty() && all.iter().all(|nodes| nodes.iter().any(is_closed));
        (are_closed && !rights::may_administer(self.root) && !finds_one()).then(|| {
            let mut nodes: Vec<String> = all.into_iter().flatten().collect();
            nodes.dedup();
            nodes
        })
    }

    /// Returns whether a GPU has MIG on, and nothing tells whether it has an instance.
    pub fn may_lack_instance(&self, gpu: &Device) -> bool {
        self.is_mig(gpu) && self.has_mig_device(gpu).is_none()
    }

    /// Returns what keeps CUDA from making a context on a GPU that nvidia.ko has.
    pub fn no_context(&self, gpu: &Device) -> Option<NoContext> {
        let mode = || self.told(gpu)?.compute_mode.as_deref();
        if nvidia::is_excluded(self.root, &gpu.address) {
            Some(NoContext::Excluded)
        } else if self.is_host_of_vgpus(gpu) {
            // Its driver brings no CUDA for this host, whatever the GPU's modes are.
            None
        } else if self.is_mig(gpu) && self.has_mig_device(gpu) == Some(false) {
            Some(NoContext::WithoutInstance)
        } else if self.is_mig(gpu) && self.was_given_gpu(gpu) != Some(false) && self.instances_not_given(gpu).is_some()
        {
            Some(NoContext::InstanceNotGiven)
        } else {
            (mode() == Some("Prohibited")).then_some(NoContext::Prohibited)
        }
    }

    /// Returns whether this machine shares a GPU among virtual machines by vGPU, by nvidia-smi or by the module
    /// that does so. The driver for that brings no CUDA (bigstack-oss/cubecos#312).
    pub fn is_host_of_vgpus(&self, gpu: &Device) -> bool {
        let mode = self.told(gpu).and_then(|told| told.virtualization.as_deref());
        let is_it = mode.map_or_else(|| self.modules.contains_key("nvidia_vgpu_vfio"), |mode| mode.starts_with("Host"));
        is_it && !way::has_been_pinned(self, gpu)
    }

    /// Returns why a NIC may not reach the memory of a GPU that computes confidentially, or may do so.
    pub fn confidential(&self, gpu: &Device) -> Option<String> {
        if self.told(gpu).is_some_and(|told| told.protected) {
            return Some(format!("GPU {} has protected memory (nvidia-smi -q)", gpu.address));
        }
        self.encrypted.as_ref().map(|seen| format!("the memory of this virtual machine is encrypted ({seen})"))
    }

    /// Returns what builds or installs this project's module here, or another client where that is not written for
    /// this machine.
    pub fn install_it(&self) -> String {
        driver::other_client(self).unwrap_or_else(|| self.setting.install_it(self.dma_buf()))
    }

    /// Returns why no NIC gets memory of a GPU for its class, and what to do instead, unless some is pinned.
    pub fn refusal(&self, gpu: &Device) -> Option<(&'static str, &'static str)> {
        self.gpu_class(gpu).refusal().filter(|_| !way::has_been_pinned(self, gpu))
    }

    /// Returns whether Mellanox's old module answers for GPU memory in the place of nvidia_peermem.
    pub fn old_module_serves(&self) -> bool {
        self.loaded.is_none() && self.modules.get(OLD_MODULE).is_some_and(|module| module.state == "Live")
    }

    /// Returns the state in which a GPU waits to be registered with the fabric of NVLink. Until it is, CUDA
    /// starts in no program (cudaErrorSystemNotReady).
    pub fn waits_for_fabric(&self, gpu: &Device) -> Option<&str> {
        let state = self.told(gpu)?.fabric.state.as_str();
        let is_in_use = self.registrations.iter().flatten().any(|row| row.gpu.as_deref() == Some(&gpu.address));
        (["Not Started", "In Progress"].contains(&state) && !is_in_use).then_some(state)
    }

    /// Returns whether sysfs shows no driver of any GPU or NIC, although nvidia.ko is loaded: then their links
    /// cannot be read.
    pub fn drivers_are_hidden(&self) -> bool {
        let cards = || self.devices.iter().filter(|device| [2, 3].contains(&(device.kind() >> 8)));
        self.driver.is_some() && cards().count() > 1 && cards().all(|device| device.driver.is_none())
    }

    /// Returns whether nothing keeps devices of this machine from this process: neither a container nor a device
    /// cgroup, as a job of Slurm has one, nor a /dev of a service's own.
    pub fn has_all_devices(&self) -> bool {
        *self.given.all_devices.get_or_init(|| {
            self.setting.container.is_none() && self.forbidden.is_empty() && !giver::is_without_devices(self)
        })
    }

    /// Returns that a device was not given to this process, in words; `folder` has the node of it.
    pub fn not_given(&self, device: &str, folder: &str) -> String {
        let why = match self.forbidden.is_empty() {
            true => format!("no node of it in {folder}"),
            false => format!("no node of it in {folder} that may be opened"),
        };
        format!("this {} was not given {device} ({why})", Giver::of(self).word())
    }

    /// Returns the numbers of those nodes of GPUs that this process may open, `None` if it has all GPUs: the kernel
    /// shows a container and a job all of the host's, and only nodes in /dev tell.
    fn open_gpus(&self) -> Option<&[u32]> {
        self.given.gpus.get_or_init(|| self.look_for_gpus()).as_deref()
    }

    fn look_for_gpus(&self) -> Option<Vec<u32>> {
        if self.has_all_devices() {
            return None;
        }
        let nodes = self.root.names("/dev").into_iter().filter_map(|name| name.strip_prefix("nvidia")?.parse().ok());
        let all: Vec<u32> = nodes.collect();
        let is_open = |number: &&u32| !self.forbidden.contains(&format!("/dev/nvidia{number}"));
        let nodes: Vec<u32> = all.iter().filter(is_open).copied().collect();
        let has_host_dev = self.setting.container.is_none() && !giver::is_without_devices(self);
        let is_host = has_host_dev && nodes.len() == all.len();
        (!is_host && nodes.len() < self.gpus().len()).then_some(nodes)
    }

    /// Returns how many GPUs this process was given.
    pub fn gpus_given(&self) -> usize {
        self.open_gpus().map_or(self.gpus().len(), |nodes| nodes.len())
    }

    /// Returns whether this process was given a GPU; `None` if nothing tells which node is whose.
    pub fn was_given_gpu(&self, gpu: &Device) -> Option<bool> {
        let Some(nodes) = self.open_gpus() else { return Some(true) };
        let minor = nvidia::minor(self.root, &gpu.address);
        match minor {
            Some(minor) => Some(nodes.contains(&minor)),
            // NVIDIA's container runtime shows only the given GPUs in /proc.
            None if self.gpus().iter().any(|gpu| nvidia::minor(self.root, &gpu.address).is_some()) => Some(false),
            None if nodes.is_empty() => Some(false),
            // If all GPUs are alike, it does not matter which node is whose.
            None => {
                let kind = |gpu: &Device| (gpu.vendor, gpu.device, gpu.driver.clone());
                self.gpus().iter().all(|other| kind(other) == kind(gpu)).then_some(true)
            }
        }
    }

    /// Returns whether this process was given an RDMA device, by its node in /dev/infiniband; `None` if nothing
    /// tells which node that is.
    pub fn was_given_nic(&self, nic: &RdmaDevice) -> Option<bool> {
        if self.has_all_devices() {
            return Some(true);
        }
        let nodes = self.given.nodes_of_nics.get_or_init(|| {
            let mut nodes = self.root.names("/dev/infiniband");
            nodes.retain(|node| {
                node.starts_with(rdma::NODE) && !self.forbidden.contains(&format!("/dev/infiniband/{node}"))
            });
            nodes
        });
        // Without any node, [fabric.nodes] or [limits.devices] says so.
        if nodes.is_empty() {
            return Some(true);
        }
        let node = rdma::node(self.root, &nic.name)?;
        Some(nodes.contains(&node))
    }

    /// Returns whether this machine has NVSwitches: PCI functions whose class is that of a bridge of no known kind, or
    /// with NVLink 5 devices that manage them.
    pub fn has_nvswitch(&self) -> bool {
        let is_switch = |device: &Device| device.vendor == nvidia::NVIDIA && device.kind() == 0x0680;
        !self.switch_managers.is_empty() || self.devices.iter().any(is_switch)
    }

    /// Returns whether an RDMA device may be one that manages NVSwitches, where only root may read that: four functions
    /// of one card beside GPUs with NVLink 5, and no NVSwitch to be seen.
    pub fn may_manage_switches(&self, nic: &RdmaDevice) -> bool {
        let card = |nic: &RdmaDevice| nic.pci.as_deref()?.rsplit_once('.').map(|(card, _)| card.to_owned());
        let of_card = || self.rdma.iter().filter(|other| card(other).is_some() && card(other) == card(nic));
        !self.has_nvswitch()
            && self.gpus().into_iter().any(nvidia::may_have_nvlink5)
            && of_card().count() == 4
            && rdma::manages_switches(self.root, nic).is_none()
    }

    /// Returns whether this machine shows that a GPU has a coherent link to its processor: by the root port of Grace
    /// above it, which virtual machines need not show, or by nvidia-smi.
    pub fn shows_c2c(&self, gpu: &Device) -> bool {
        let told = self.told(gpu).and_then(|told| told.c2c.as_deref());
        told == Some("Enabled") || gpu.way.iter().filter_map(|part| self.pci(part)).any(Device::is_grace_port)
    }

    /// Returns whether a GPU may have such a link all the same: it is a Vera Rubin, or a board whose name no list
    /// has, below a processor of NVIDIA's that is not known here.
    pub fn may_have_c2c(&self, gpu: &Device) -> bool {
        let told = self.told(gpu).and_then(|told| told.c2c.as_deref());
        let is_rubin = facts::VERA_RUBIN_IDS.contains(&gpu.device);
        let is_board = gpu.has_known_name() && !is_rubin || gpu.vendor != nvidia::NVIDIA;
        if is_board || self.setting.tegra || told == Some("Disabled") || self.shows_c2c(gpu) {
            return false;
        }
        let port = gpu.way.iter().find_map(|part| self.pci(part));
        let cpu = || self.root.text("/proc/cpuinfo").unwrap_or_default();
        let is_of_nvidia =
            || cpu().lines().any(|line| line.starts_with("CPU implementer") && line.ends_with("0x4e")) || is_rubin;
        let is_x86 = self.setting.architecture.as_deref() == Some("x86_64");
        port.is_some_and(|port| port.vendor == nvidia::NVIDIA) || !is_x86 && is_of_nvidia()
    }

    /// Returns whether driver 580 knows each GPU here, as far as names tell: later GPUs are in no list that it is
    /// known by.
    pub fn is_known_to_580(&self) -> bool {
        const FAMILIES: [&str; 4] = ["Blackwell", "B300", "GB10", "RTX PRO"];
        let is_known = |gpu: &&Device| {
            let name = self.gpu_name(gpu);
            gpu.has_known_name() || FAMILIES.iter().any(|family| name.contains(family))
        };
        self.gpus().iter().all(|gpu| is_known(gpu) && !facts::VERA_RUBIN_IDS.contains(&gpu.device))
    }

    /// Returns whether a GPU has a coherent link to its processor, so that the GPU driver takes its memory for the
    /// CPU's, too; `None` in a virtual machine that shows no root port of Grace and may have one all the same, and
    /// below a processor that is not known.
    pub fn is_coherent(&self, gpu: &Device) -> Option<bool> {
        let name = self.gpu_name(gpu);
        if self.shows_c2c(gpu) || ["GH200", "GB200", "GB300"].iter().any(|board| name.contains(board)) {
            return Some(true);
        }
        if self.may_have_c2c(gpu) {
            return None;
        }
        let is_x86 = self.setting.architecture.as_deref() == Some("x86_64");
        (is_x86 || self.setting.virtual_machine.is_none()).then_some(false)
    }

    /// Returns whether a GPU is known to have a coherent link to its processor.
    pub fn has_c2c(&self, gpu: &Device) -> bool {
        self.is_coherent(gpu) == Some(true)
    }

    /// Returns whether a GPU is there for displays alone: a board with displays and a small BAR1 beside another one
    /// for programs, such as the DGX Display of a DGX Station, of which no program has memory pinned.
    pub fn is_for_display(&self, gpu: &Device) -> bool {
        const VGA: u32 = 0x0300;
        let is_small = |gpu: &Device| (1..=nvidia::SMALL_BAR1).contains(&nvidia::bar1_size(gpu));
        let serves = |other: &&Device| {
            other.device != gpu.device && (other.kind() != VGA || !is_small(other)) && self.refusal(other).is_none()
        };
        gpu.kind() == VGA
            && is_small(gpu)
            && !nvidia::has_display_modes(&self.gpu_name(gpu))
            && self.gpus().iter().any(serves)
            && !way::has_been_pinned(self, gpu)
    }

    /// Returns whether the kernel has a symbol, or `None` if nobody can tell.
    pub fn has_symbol(&self, name: &str) -> Option<bool> {
        self.symbols.as_ref().ok().map(|symbols| symbols.contains_key(name))
    }

    /// Names the owner of a symbol in words.
    pub fn owner_of_symbol(&self, name: &str) -> Option<String> {
        let owner = self.symbols.as_ref().ok()?.get(name)?;
        Some(owner.as_ref().map_or("the kernel itself".to_owned(), |module| format!("module {module}")))
    }

    /// Returns the module that exports the peer-memory API and is not loaded, if no loaded module
    /// exports that API.
    pub fn api_to_load(&self) -> Option<String> {
        if self.has_symbol(REGISTER) != Some(false) {
            return None;
        }
        let module = kernel::exporter(self.root, self.release.as_deref()?, REGISTER)?;
        (!self.modules.contains_key(&module)).then_some(module)
    }

    /// Says how to have the module loaded. Nothing loads it while there is no core or no driver for
    /// it.
    pub fn load_it(&self) -> String {
        // What the host has does not fit a driver that a container brought.
        if self.setting.driver_container || self.setting.is_fixed() && self.file.is_none() {
            return self.install_it();
        }
        if self.old_module_serves() {
            return self.setting.on_host("what [clients.nv_peer_mem] says: nvidia-peermem in the place of nv_peer_mem");
        }
        self.setting.on_host(match self.has_symbol(REGISTER) == Some(false) || self.driver.is_none() {
            true => "then: modprobe nvidia-peermem",
            // Azure/aks-rdma-infiniband#50
            false if self.setting.ofed_container => {
                "modprobe nvidia-peermem, which holds until the container of DOCA-OFED loads its core again and takes the module out; packaging/container of this project (a DaemonSet) brings it back each time"
            }
            false => "modprobe nvidia-peermem",
        })
    }

    /// Returns what loads the GPU driver.
    pub fn load_driver(&self) -> String {
        match self.setting.driver_container {
            true => self.setting.restart_driver(),
            false => self.setting.on_host("modprobe nvidia"),
        }
    }

    /// Returns whether the kernel, the GPU driver and the driver of a NIC offer registration by dma-buf, if
    /// there is a NIC.
    pub fn dma_buf(&self) -> bool {
        // NVIDIA offers dma-buf in the open flavour only.
        let is_open = |driver: &Driver| driver.flavour == Some(nvidia::Flavour::Open);
        self.core_takes_dma_buf() && self.driver.as_ref().is_some_and(is_open)
    }

    /// Returns whether the kernel and the driver of a NIC, if there is one, take dma-bufs, whatever GPU driver there
    /// is.
    pub fn core_takes_dma_buf(&self) -> bool {
        let nic = self.rdma.is_empty() || self.rdma.iter().any(|nic| way::nic_takes_dma_buf(self, nic).is_yes());
        nic && self.has_symbol("ib_umem_dmabuf_get") == Some(true)
    }
}

impl Machine<'_> {
    /// Returns what has the IOMMU let addresses through.
    pub fn identity_iommu(&self) -> String {
        let given = self.root.line(COMMAND_LINE).unwrap_or_default();
        let is_arm = self.setting.architecture.as_deref() == Some("aarch64");
        let is_known = |word: &&str| IDENTITY.contains(word) && (*word != OF_X86 || !is_arm);
        let given = given.split_ascii_whitespace().find(is_known);
        let fix = match (given, is_arm) {
            (Some(word), _) => format!(
                "this kernel was booted with {word}, and the IOMMU translates all the same: see what has its group so (journalctl -k | grep -iE 'iommu|DMAR': a port that is marked as untrusted, a platform that asks for it, or what wrote to /sys/kernel/iommu_groups/N/type)"
            ),
            (None, true) => "boot with iommu.passthrough=1 on the kernel command line".to_owned(),
            (None, false) => "boot with iommu=pt on the kernel command line (or, on a machine without VMs, intel_iommu=off or amd_iommu=off)".to_owned(),
        };
        self.setting.on_host(&fix)
    }

    /// Returns a GPU's name: the list of PCI ids has it, or the GPU driver.
    pub fn gpu_name(&self, gpu: &Device) -> String {
        let own = gpu.name();
        if gpu.has_known_name() {
            return own;
        }
        let smi = self.smi.as_ref().ok().and_then(|smi| smi.get(&gpu.address)?.name.clone());
        let told = smi.or_else(|| nvidia::model(self.root, &gpu.address));
        told.unwrap_or_else(|| if is_gb10(gpu) { "NVIDIA GB10".to_owned() } else { own })
    }

    /// Returns whether this machine has a GPU as a vGPU, by nvidia-smi or by its name: A100-40C, GRID
    /// T4-16Q.
    pub fn is_vgpu(&self, gpu: &Device) -> bool {
        let told = self.smi.as_ref().ok().and_then(|smi| smi.get(&gpu.address)?.virtualization.clone());
        let smi = self.smi.as_ref().ok().and_then(|smi| smi.get(&gpu.address)?.name.clone());
        let names = smi.into_iter().chain(nvidia::model(self.root, &gpu.address));
        told.as_deref() == Some("VGPU") || names.into_iter().any(|name| is_name_of_vgpu(&name))
    }

    /// Returns the line of boards that a GPU is of, if NVIDIA names that neither among those whose memory it
    /// gives to NICs nor among the others.
    pub fn unnamed_line(&self, gpu: &Device) -> Option<&'static str> {
        const LINES: [(&str, &str); 6] = [
            ("TITAN", "a TITAN"),
            ("CMP ", "a CMP"),
            ("P102-", "a board for mining"),
            ("P104-", "a board for mining"),
            ("P106-", "a board for mining"),
            ("Graphics Device", "a board without a name"),
        ];
        let model = nvidia::model(self.root, &gpu.address);
        let names = [gpu.name(), self.gpu_name(gpu), model.unwrap_or_else(|| gpu.name())];
        let told = names.iter().any(|name| *name != gpu.name());
        if !gpu.has_known_name() && !told && gpu.vendor == nvidia::NVIDIA && !is_gb10(gpu) {
            return Some("a board whose name nothing tells here");
        }
        LINES.iter().find(|(word, _)| names.iter().any(|name| name.contains(word))).map(|(_, line)| *line)
    }

    /// Returns the class of a GPU.
    pub fn gpu_class(&self, gpu: &Device) -> GpuClass {
        let names = [gpu.name(), self.gpu_name(gpu), nvidia::model(self.root, &gpu.address).unwrap_or_default()];
        let named = |words: &[&str]| names.iter().any(|name| words.iter().any(|word| name.contains(word)));
        if is_gb10(gpu) || named(&["GB10", "Orin", "Thor", "Xavier", "Tegra"]) && !named(&["GB100", "GB102"]) {
            GpuClass::Integrated
        } else if named(&["GeForce"]) {
            GpuClass::Geforce
        } else {
            GpuClass::Full
        }
    }

    /// Returns whether the driver of an EFA takes GPU memory without a peer-memory core, as its own says in
    /// sysfs.
    pub fn takes_by_itself(&self, nic: &RdmaDevice) -> bool {
        if vendor(nic) != Vendor::Efa {
            return false;
        }
        // The second file is of older versions (amzn-drivers 4f19416cdea1, efa_sysfs.c).
        let of = |file: &str| self.root.line(&format!("/sys/class/infiniband/{}/device/{file}", nic.name));
        of("p2p").is_some_and(|p2p| p2p.starts_with("NVIDIA")) || of("gdr").as_deref() == Some("1")
    }

    /// Returns the family or the type of this instance of Amazon's, if its hardware lets no EFA reach GPU memory:
    /// `family g6e`, `type g7e.8xlarge`.
    pub fn instance_without_gpudirect(&self, nic: &RdmaDevice) -> Option<String> {
        if vendor(nic) != Vendor::Efa {
            return None;
        }
        let dmi = |name: &str| self.root.line(&format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
        let product = dmi("product_name");
        let family = product.split('.').next().filter(|family| facts::EFA_WITHOUT_GPUDIRECT.contains(family));
        let of_type = facts::EFA_TYPES_WITHOUT_GPUDIRECT.contains(&product.as_str());
        let named = family.map(|family| format!("family {family}")).or(of_type.then(|| format!("type {product}")))?;
        (dmi("sys_vendor") == "Amazon EC2").then_some(named)
    }
}

/// Returns whether a name ends with a vGPU's profile: a size in GB and a series, as in `-40C`.
fn is_name_of_vgpu(name: &str) -> bool {
    // With a MIG instance's media engines behind it: H100-1-10CME, and its graphics: ...-24QGFX.
    const MORE: [&str; 3] = ["", "ME", "GFX"];
    let profile = name.rsplit('-').next().filter(|profile| profile.len() < name.len()).unwrap_or_default();
    let series = profile.trim_start_matches(|c: char| c.is_ascii_digit());
    let more = series.strip_prefix(['A', 'B', 'C', 'Q']);
    series.len() < profile.len() && more.is_some_and(|more| MORE.contains(&more))
}

/// Returns whether a GPU is GB10's, whose ids go from 2e00 to 2eff.
fn is_gb10(gpu: &Device) -> bool {
    gpu.vendor == nvidia::NVIDIA && (0x2e00..0x2f00).contains(&gpu.device)
}

/// The facts that the file of an RDMA device's driver tells.
#[derive(Clone, Debug)]
pub struct NicDriver {
    pub path: String,
    /// Whether it asks peers for memory.
    pub asks_peers: bool,
    /// Whether it registers dma-bufs.
    pub takes_dma_buf: bool,
    /// Whether it pins GPU memory by itself.
    pub pins: bool,
}

fn nic_drivers(root: &Root, release: Option<&str>, rdma: &[RdmaDevice]) -> BTreeMap<String, NicDriver> {
    let mut drivers = BTreeMap::new();
    for module in rdma.iter().filter_map(|device| device.module.clone()) {
        let path = release.and_then(|release| module_file::chosen(root, release, &module));
        let file = path.and_then(|path| ModuleFile::read(root, &path).ok());
        if let Some(file) = file {
            let (asks_peers, takes_dma_buf) = (file.needs(ASK), file.takes_dma_buf());
            let pins = file.needs.iter().any(|name| name.starts_with("nvidia_p2p_"));
            drivers.insert(module, NicDriver { path: file.path, asks_peers, takes_dma_buf, pins });
        }
    }
    drivers
}

fn peermem_loaded(
    root: &Root,
    modules: &BTreeMap<String, Loaded>,
    release: Option<&str>,
    driver: Option<&Driver>,
) -> Option<Peermem> {
    // The directory alone also exists for a module whose init has not returned.
    let entry = modules.get(NAME)?;
    let version = root.line(&format!("{SYS}/version"));
    let srcversion = root.line(&format!("{SYS}/srcversion"));
    // Any installed file, not only the one that modprobe would load now.
    let same_file = || {
        let files = release.map(|release| module_file::all(root, release, NAME)).unwrap_or_default();
        let mut files = files.iter().filter_map(|path| ModuleFile::read(root, path).ok());
        files.find(|file| srcversion.is_some() && file.field("srcversion") == srcversion.as_deref())
    };
    let maker = if root.exists(peermem::DIR) {
        Maker::Ours
    } else if version.is_some() && version.as_deref() == driver.and_then(|driver| driver.version.as_deref()) {
        // NVIDIA versions its modules with its driver.
        Maker::Nvidia
    } else {
        same_file().map_or(Maker::Other, |file| file.maker())
    };
    let params = root
        .names(&format!("{SYS}/parameters"))
        .into_iter()
        .filter_map(|name| Some((name.clone(), root.line(&format!("{SYS}/parameters/{name}"))?)))
        .collect();
    Some(Peermem { version, srcversion, maker, state: entry.state.clone(), params })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks names that nvidia-smi has in guests, and names of boards that end alike.
    #[test]
    fn a_vgpu_is_known_by_its_name() {
        for (name, wanted) in [
            ("NVIDIA A100-40C", true),
            ("GRID T4-16Q", true),
            ("NVIDIA H100XM-7-80C", true),
            ("NVIDIA H100-1-10CME", true),
            ("NVIDIA RTX Pro 6000 Blackwell DC-1-24QGFX", true),
            ("NVIDIA A40-8A", true),
            ("NVIDIA A100-SXM4-40GB", false),
            ("NVIDIA H100 PCIe", false),
            ("Tesla V100-PCIE-16GB", false),
            ("NVIDIA A10", false),
        ] {
            assert_eq!(is_name_of_vgpu(name), wanted, "{name}");
        }
    }
}
