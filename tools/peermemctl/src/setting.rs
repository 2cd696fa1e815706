// SPDX-License-Identifier: GPL-2.0
//! The kind of machine that this is. A cure for one kind is none for another, so this is read first.

use crate::kernel;
use crate::log_words::ENCRYPTION;
use crate::modprobe::{COMMAND_LINE, GRUB};
use crate::module_file::{self, ModuleFile};
use crate::rdma::RdmaDevice;
use crate::root::{Root, OS_RELEASE};
use schemars::JsonSchema;
use serde::Serialize;

/// The folder in which the GPU driver's container has its files.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";
/// The file that the GPU Operator's older validators write if they find a driver on the host. Newer
/// ones write the next file for each driver, with a line IS_HOST_DRIVER.
const HOST_DRIVER: &str = "/run/nvidia/validations/host-driver-ready";
pub const DRIVER_READY: &str = "/run/nvidia/validations/driver-ready";
/// The folder in which the container of DOCA-OFED has its files.
const OFED_CONTAINER: &str = "/run/mellanox/drivers";

/// A system whose modules stand in its configuration.
const NIXOS: &str = "NixOS";
/// Systems without a shell on the node.
const TALOS: &str = "Talos";
const BOTTLEROCKET: &str = "Bottlerocket";
const FLATCAR: &str = "Flatcar";
const COS: &str = "Container-Optimized OS";
/// Systems that take packages into their next boot.
const SL_MICRO: &str = "SL Micro";
const SLE_MICRO: &str = "SLE Micro";
const MICROOS: &str = "openSUSE MicroOS";
const LEAP_MICRO: &str = "openSUSE Leap Micro";
const TRANSACTIONAL: &str = "this system of transactional-update";
const FEDORA_COREOS: &str = "Fedora CoreOS";
const OSTREE: &str = "this system of ostree";
/// Systems whose image a Containerfile makes.
const BOOTC: &str = "this system of bootc";
const RHEL_AI: &str = "RHEL AI";
/// A system with the programs for both, where nothing tells which of them made it.
const OSTREE_OR_BOOTC: &str = "this system of ostree or bootc";
/// Systems whose images are made of other distributions, and keep the id of those (kairos-io/kairos#1259).
const KAIROS: &str = "Kairos";
/// The file in which newer ones have a name of their own, and the key that others have it by in os-release.
pub const KAIROS_RELEASE: &str = "/etc/kairos-release";
pub const KAIROS_ID: &str = "KAIROS_ID=";
/// The system of Harvester and Elemental.
const SLE_RANCHER: &str = "SLE Micro for Rancher";

/// The counterpart of [`GRUB`] where boot entries are files of their own (Boot Loader Specification), which grub2-mkconfig leaves
/// as they are, and where systemd-boot or kernel-install writes them.
const GRUBBY: &str = " (grubby --update-kernel=ALL --remove-args='...')";
const ENTRIES: &str =
    " (options in /boot/loader/entries/*.conf, or /etc/kernel/cmdline and then kernel-install add-all)";
/// The same where Proxmox's own program copies kernels and their command line to where systemd-boot finds them.
const OF_PROXMOX: &str = " (in /etc/kernel/cmdline, then proxmox-boot-tool refresh)";
/// That program.
pub const PROXMOX_BOOT: &str = "/usr/sbin/proxmox-boot-tool";
/// The distributions with grubby.
const OF_RED_HAT: [&str; 7] = ["rhel", "centos", "rocky", "almalinux", "ol", "fedora", "amzn"];
/// The file from which kernel-install takes the command line of new entries.
pub const KERNEL_COMMAND_LINE: &str = "/etc/kernel/cmdline";
/// The means by which systems that are images are told what others have on the kernel's command
/// line, and in modules-load.d, modprobe.d, limits.d and other files below /etc.
const MEANS: [(&[&str], [&str; 5]); 7] = [
    (
        &[TALOS],
        [
            "machine.install.extraKernelArgs of the machine configuration, then an upgrade or reboot",
            "machine.kernel.modules of the machine configuration",
            "machine.kernel.modules of the machine configuration, which has parameters, too",
            "machine.files of the machine configuration",
            "machine.files of the machine configuration",
        ],
    ),
    (
        &[NIXOS],
        [
            "boot.kernelParams and nixos-rebuild boot",
            "boot.kernelModules and nixos-rebuild switch",
            "boot.extraModprobeConfig or boot.blacklistedKernelModules, and nixos-rebuild switch",
            "security.pam.loginLimits and nixos-rebuild switch",
            "its configuration and nixos-rebuild switch",
        ],
    ),
    (
        &["Red Hat CoreOS", "CoreOS"],
        [
            "kernelArguments of a MachineConfig",
            "a file of modules-load.d in a MachineConfig",
            "a file of modprobe.d in a MachineConfig",
            "a file in a MachineConfig",
            "a file in a MachineConfig",
        ],
    ),
    (
        &[BOTTLEROCKET],
        [
            "settings.boot.kernel-parameters",
            "autoload of settings.kernel.modules",
            "settings.boot.kernel-parameters (MODULE.PARAMETER=VALUE)",
            "settings of the container runtime",
            "its settings",
        ],
    ),
    (
        &[BOOTC, RHEL_AI],
        [
            "a file of /usr/lib/bootc/kargs.d in its Containerfile, then bootc upgrade",
            "a file of modules-load.d in its Containerfile, then bootc upgrade",
            "a file of modprobe.d in its Containerfile, then bootc upgrade",
            "a file in its Containerfile, then bootc upgrade",
            "a file in its Containerfile, then bootc upgrade",
        ],
    ),
    (
        &[OSTREE_OR_BOOTC],
        [
            "rpm-ostree kargs, or, if rpm-ostree status names a container image, a file of /usr/lib/bootc/kargs.d in its Containerfile and bootc upgrade,",
            "a file of modules-load.d (in its Containerfile, if rpm-ostree status names a container image)",
            "a file of modprobe.d (in its Containerfile, if rpm-ostree status names a container image)",
            "a file (in its Containerfile, if rpm-ostree status names a container image)",
            "a file (in its Containerfile, if rpm-ostree status names a container image)",
        ],
    ),
    (
        &[FLATCAR, KAIROS, SLE_RANCHER],
        [
            "the configuration of its boot loader (grub.cfg of its OEM partition)",
            "a file of modules-load.d in its Ignition or cloud-config",
            "a file of modprobe.d in its Ignition or cloud-config",
            "a file in its Ignition or cloud-config",
            "a file in its Ignition or cloud-config",
        ],
    ),
];

/// How a system that is an image, and gives nobody a shell on the node itself, is told what others are by commands.
struct Remote {
    name: &'static str,
    /// Commands, and those that do the same from elsewhere.
    instead: &'static [(&'static str, &'static str)],
    /// The way to other commands.
    commands: &'static str,
    /// The command that reboots the node.
    reboot: &'static str,
    /// Whether no program there may load or unload a module.
    keeps_modules: bool,
}

const REMOTES: [Remote; 2] = [
    // Services of its extensions have names of their own (docs.siderolabs.com, "Extension Services"), and containers
    // have neither CAP_SYS_MODULE nor CAP_SYS_BOOT.
    Remote {
        name: TALOS,
        instead: &[
            (
                "systemctl stop nvidia-persistenced nvidia-fabricmanager",
                "talosctl service ext-nvidia-persistenced stop and talosctl service ext-nvidia-fabricmanager stop",
            ),
            ("systemctl stop nvidia-persistenced", "talosctl service ext-nvidia-persistenced stop"),
            ("systemctl enable --now nvidia-fabricmanager", "talosctl service ext-nvidia-fabricmanager start"),
            ("systemctl restart nvidia-fabricmanager", "talosctl service ext-nvidia-fabricmanager restart"),
            ("install nvidia-fabricmanager", "add the system extension nvidia-fabricmanager"),
            ("journalctl -u nvidia-fabricmanager", "talosctl logs ext-nvidia-fabricmanager"),
            ("journalctl -k", "talosctl dmesg"),
            ("dmesg |", "talosctl dmesg |"),
        ],
        commands: "in a privileged pod of it (kubectl debug node/NODE -it -n kube-system --profile=sysadmin --image=IMAGE, with an image that has them)",
        reboot: "talosctl reboot",
        keeps_modules: true,
    },
    Remote {
        name: BOTTLEROCKET,
        instead: &[],
        commands: "in a root shell of its admin container (apiclient exec admin bash, then sheltie), or in a privileged pod for those that the system has not",
        reboot: "apiclient reboot",
        keeps_modules: false,
    },
];

/// Commands that cures name.
const COMMANDS: [&str; 17] = [
    "fuser ",
    "setpci ",
    "ip link ",
    "devlink ",
    "rmmod ",
    "modprobe ",
    "nvidia-smi -",
    "grep ",
    "rdma ",
    "lsmod",
    "ibstat",
    "systemctl ",
    "mokutil ",
    "journalctl ",
    "nvidia-modprobe",
    "echo ",
    "mlxfw",
];

/// The file that says that a system was booted from an image of ostree, the program that adds
/// packages to it, and the one that takes images made by a Containerfile.
pub const OSTREE_BOOTED: &str = "/run/ostree-booted";
pub const RPM_OSTREE: &str = "/usr/bin/rpm-ostree";
pub const BOOTC_PROGRAM: &str = "/usr/bin/bootc";
/// The folder of ostree's deployments, and the key that a deployment's origin has where bootc takes it from a
/// container image.
pub const DEPLOYMENTS: &str = "/ostree/deploy";
pub const OF_IMAGE: &str = "container-image-reference";
/// The program by which systems of SUSE's change their next boot, and the file that tells whether the present
/// root can be written to.
pub const TRANSACTIONAL_UPDATE: &str = "/usr/sbin/transactional-update";
pub const MOUNTS: &str = "/proc/self/mounts";

/// What this program runs on.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Setting {
    /// `x86_64`, `aarch64` or `ppc64le`, where that can be told.
    pub architecture: Option<String>,
    /// What says that this is a virtual machine; `null` if nothing does.
    pub virtual_machine: Option<String>,
    /// What says that this is a container; `null` if nothing does.
    pub container: Option<String>,
    /// The namespaces of this container that are not the host's, as far as that can be told.
    pub namespaces: Vec<String>,
    /// Whether nvidia.ko comes from the GPU Operator's driver container.
    pub driver_container: bool,
    /// Whether the RDMA core comes from the container of DOCA-OFED.
    pub ofed_container: bool,
    /// The name of this node's system, if that is an image which is not changed in place.
    pub fixed_system: Option<String>,
    /// The word by which os-release names the distribution (`ubuntu`); `None` in a container, whose file is its
    /// image's.
    #[serde(skip)]
    pub distribution: Option<String>,
    /// Says whether kernel-install writes the entries of this system's boot loader.
    #[serde(skip)]
    pub has_boot_entries: bool,
    /// Says whether Proxmox's program does that in the place of kernel-install.
    #[serde(skip)]
    pub has_proxmox_boot: bool,
    /// Whether RDMA devices are seen only in the network namespace that has them.
    pub rdma_by_namespace: bool,
    /// Says whether this container has a virtual machine of its own, made by Kata Containers: the kernel is the
    /// guest's, and that of the host is another one.
    pub kata: bool,
    /// Whether this is a Tegra (Jetson, IGX Orin): its own GPU shares the CPU's memory.
    pub tegra: bool,
}

impl Setting {
    /// Reads the kind of machine.
    pub fn look(root: &Root) -> Self {
        let (container, namespaces) = container(root);
        let kata = kata(root);
        // Nothing but a pod runs in such a guest.
        let container = container.or_else(|| kata.clone());
        // In a container that file is of its own image.
        let release = root.text(OS_RELEASE).ok().filter(|_| container.is_none());
        let by_program = || if container.is_none() { fixed_by_program(root) } else { None };
        // The kernel of a node has Talos's name, whoever asks.
        let is_talos = root.line("/proc/sys/kernel/osrelease").is_some_and(|release| release.ends_with("-talos"));
        let by_kernel = || is_talos.then_some(TALOS);
        Self {
            fixed_system: release
                .as_deref()
                .and_then(Self::fixed_system)
                .or_else(by_program)
                .or_else(by_kernel)
                .map(str::to_owned),
            has_boot_entries: container.is_none() && root.exists(KERNEL_COMMAND_LINE),
            has_proxmox_boot: container.is_none() && root.exists(PROXMOX_BOOT),
            distribution: release.as_deref().and_then(|release| field(release, "ID=")).map(str::to_owned),
            architecture: architecture(root),
            virtual_machine: virtual_machine(root).or_else(|| kata.clone()),
            kata: kata.is_some(),
            container,
            namespaces,
            // With a driver of the host, the GPU Operator may have that folder all the same, or have left it.
            driver_container: !is_host_driver(root)
                && (root.exists("/run/nvidia/validations/.driver-ctr-ready")
                    || is_there(root, DRIVER_CONTAINER) && !is_file_of_host(root)),
            ofed_container: is_there(root, OFED_CONTAINER),
            rdma_by_namespace: root.line("/sys/module/ib_core/parameters/netns_mode").as_deref() == Some("N"),
            tegra: is_tegra(root),
        }
    }

    /// Returns whether modules of this machine come from containers, so that nothing can be built or
    /// installed on the host for them.
    pub fn modules_in_containers(&self) -> bool {
        self.driver_container || self.ofed_container
    }

    /// Returns the name of a system that is an image, by its os-release.
    pub fn fixed_system(os_release: &str) -> Option<&'static str> {
        const SYSTEMS: [(&str, &str); 13] = [
            ("talos", TALOS),
            ("bottlerocket", BOTTLEROCKET),
            ("cos", COS),
            ("flatcar", FLATCAR),
            ("rhcos", "Red Hat CoreOS"),
            ("ubuntu-core", "Ubuntu Core"),
            ("sl-micro", SL_MICRO),
            ("sle-micro", SLE_MICRO),
            ("sle-micro-rancher", SLE_RANCHER),
            ("opensuse-microos", MICROOS),
            ("opensuse-leap-micro", LEAP_MICRO),
            ("kairos", KAIROS),
            ("nixos", NIXOS),
        ];
        let id = field(os_release, "ID=")?;
        // Harvester from 1.6 on has the id of the system that its image is made from (harvester/tests#2492).
        if field(os_release, KAIROS_ID).is_some() {
            return Some(KAIROS);
        }
        let of_harvester = field(os_release, "VARIANT_ID=").is_some_and(|variant| variant.starts_with("Harvester"));
        if of_harvester {
            return Some(SLE_RANCHER);
        }
        let name = SYSTEMS.iter().find(|(of, _)| *of == id).map(|(_, name)| *name);
        name.or_else(|| match field(os_release, "VARIANT_ID=")? {
            // Fedora CoreOS, and Red Hat's as of 4.19.
            "coreos" if id == "fedora" => Some(FEDORA_COREOS),
            "coreos" => Some("CoreOS"),
            // rhel_ai, rhel_ai1
            variant if variant.starts_with("rhel_ai") => Some(RHEL_AI),
            _ => None,
        })
    }

    /// Returns whether nothing can be built or installed on the node itself.
    pub fn is_fixed(&self) -> bool {
        self.modules_in_containers() || self.fixed_system.is_some()
    }

    /// Returns the command by which the node's system, an image, takes packages into its next boot.
    pub fn adds_packages(&self) -> Option<&'static str> {
        match self.fixed_system.as_deref()? {
            SL_MICRO | SLE_MICRO | MICROOS | LEAP_MICRO | TRANSACTIONAL => Some("transactional-update pkg install"),
            FEDORA_COREOS | OSTREE => Some("rpm-ostree install"),
            _ => None,
        }
    }

    /// Returns whether the node's system is an image that takes no packages of others at all.
    pub fn has_no_packages(&self) -> bool {
        self.fixed_system
            .as_deref()
            .is_some_and(|name| [NIXOS, TALOS, BOTTLEROCKET, FLATCAR, COS, KAIROS, SLE_RANCHER].contains(&name))
    }

    /// Returns what brings the open kernel modules of the GPU driver.
    pub fn open_modules(&self) -> &'static str {
        match self.fixed_system.as_deref() {
            Some(NIXOS) => "set hardware.nvidia.open = true (nixos-rebuild boot, and reboot)",
            _ if self.has_no_packages() => {
                "have the image bring the open kernel modules of the GPU driver, as later ones may"
            }
            _ => "install the open kernel modules of the GPU driver (package nvidia-open)",
        }
    }

    /// Returns what to do where `fix` installs packages and the system takes them so.
    pub fn install_packages(&self, fix: &str) -> String {
        match (&self.fixed_system, self.adds_packages()) {
            (Some(name), Some(command)) => {
                format!("{name} is not changed in place: install packages by {command}, then reboot: {fix}")
            }
            _ => fix.to_owned(),
        }
    }

    /// Returns what this is, in a word.
    pub fn what(&self) -> &'static str {
        match (&self.container, &self.virtual_machine) {
            (Some(_), _) => "container",
            (_, Some(_)) => "virtual machine",
            _ => "machine",
        }
    }

    /// Returns the setting in words.
    pub fn words(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.architecture.clone());
        words.push(match &self.virtual_machine {
            Some(seen) => format!("a virtual machine ({seen}), whose distances and switches are the hypervisor's"),
            None => "nothing says that it is a virtual machine".to_owned(),
        });
        if let Some(seen) = &self.container {
            let own = match self.namespaces.as_slice() {
                [] => String::new(),
                names => format!(", with namespaces of its own: {}", names.join(", ")),
            };
            words.push(format!("in a container ({seen}){own}"));
        }
        if self.kata {
            words.push("the virtual machine is this pod's own, made by Kata Containers".to_owned());
        }
        words.push(match (self.driver_container, self.ofed_container) {
            (true, true) => "nvidia.ko and the RDMA core come from containers".to_owned(),
            (true, false) => "nvidia.ko comes from a container".to_owned(),
            (false, true) => "the RDMA core comes from a container".to_owned(),
            (false, false) => "modules are the host's".to_owned(),
        });
        words.extend(self.fixed_system.as_ref().map(|name| format!("{name}, an image that is not changed in place")));
        if self.tegra {
            words.push("a Tegra".to_owned());
        }
        if self.rdma_by_namespace {
            words.push("RDMA devices are seen in their own network namespace only".to_owned());
        }
        words.join("; ")
    }

    /// Returns what builds or installs this project's module here, where programs can take dma-buf or not.
    pub fn install_it(&self, dma_buf: bool) -> String {
        let or = if dma_buf { "have programs take dma-buf, which needs no module, or " } else { "" };
        if self.modules_in_containers() {
            return self.reload_it();
        }
        if self.fixed_system.as_deref() == Some(NIXOS) {
            return format!("NixOS is not changed in place: {or}add a package of the module to boot.extraModulePackages and nvidia_peermem to boot.kernelModules, then nixos-rebuild switch");
        }
        if let (Some(name), Some(command)) = (&self.fixed_system, self.adds_packages()) {
            return format!(
                "{name} is not changed in place: {or}{command} a package that has the module for this kernel, then reboot"
            );
        }
        if let Some(name) = self.fixed_system.as_deref().filter(|name| [BOOTC, RHEL_AI].contains(name)) {
            return format!(
                "{name} is not changed in place: {or}have a Containerfile of its image install a package of the module, then bootc upgrade (or bootc switch to that image) and reboot"
            );
        }
        if self.fixed_system.as_deref() == Some(OSTREE_OR_BOOTC) {
            return format!(
                "{OSTREE_OR_BOOTC} is not changed in place: {or}if rpm-ostree status names a container image, have its Containerfile install a package of the module, then bootc upgrade (which refuses a system to which rpm-ostree has added packages), else rpm-ostree install one; then reboot"
            );
        }
        if let Some(name) = &self.fixed_system {
            return format!(
                "{name} is an image that is not changed in place: {or}have the image bring the module; where it lets containers load modules, packaging/container of this project builds one"
            );
        }
        self.on_host("in this project's folder: make && make install")
    }

    /// Returns what brings the module back on a node whose modules come from containers.
    fn reload_it(&self) -> String {
        let from = match (self.driver_container, self.ofed_container) {
            (true, true) => format!("{DRIVER_CONTAINER}, {OFED_CONTAINER}"),
            (true, false) => DRIVER_CONTAINER.to_owned(),
            _ => OFED_CONTAINER.to_owned(),
        };
        let ours = format!(
            "the modules of this node come from containers ({from}): use packaging/container of this project (a DaemonSet)"
        );
        match self.driver_container {
            true => format!(
                "{ours}; for NVIDIA's own sidecar set driver.rdma.enabled=true (and driver.rdma.useHostMofed=true for a core of the host) in the values of the GPU Operator; \
                 if it is set, delete the driver pod, with FORCE_REINSTALL=true in the environment of its k8s-driver-manager. \
                 A build on the host has neither headers nor exports of those"
            ),
            // No sidecar of NVIDIA's runs beside a driver of the host.
            false => format!(
                "{ours}, which builds against that core and the host's GPU driver. A build on the host does not see the core"
            ),
        }
    }

    /// Returns what brings another GPU driver than that of the container: `what` says which.
    pub fn other_driver(&self, what: &str) -> String {
        format!(
            "the modules of this node come from containers ({DRIVER_CONTAINER}): have the GPU Operator bring {what} (driver.version and driver.kernelModuleType of its ClusterPolicy or NVIDIADriver)"
        )
    }

    /// Returns what brings back a GPU driver that a container brought.
    pub fn restart_driver(&self) -> String {
        format!(
            "the modules of this node come from containers ({DRIVER_CONTAINER}): delete the pod of the GPU driver, which loads nvidia.ko again; one that is loaded it leaves as it is, unless FORCE_REINSTALL=true is in the environment of the pod's k8s-driver-manager"
        )
    }

    /// Returns what gives the module other parameters: `change` says which, and goes before the file.
    pub fn change_parameters(&self, change: &str) -> String {
        // Those that take packages have an /etc that is changed in place.
        if let Some(name) = self.fixed_system.as_ref().filter(|_| self.adds_packages().is_none()) {
            return format!("{change} the module's options in the image of {name}, which is not changed in place");
        }
        match self.modules_in_containers() {
            true => format!("{change} nvidia-peermem.conf of the ConfigMap nvidia-peermem-rust (packaging/container); that applies as soon as nobody uses the module"),
            false => format!("{change} /etc/modprobe.d, then rmmod nvidia_peermem && modprobe nvidia-peermem"),
        }
    }

    /// Returns what makes BAR1 larger.
    pub fn larger_bar(&self) -> &'static str {
        match &self.virtual_machine {
            Some(_) => "have the hypervisor of this virtual machine give the GPU a larger BAR1",
            None => {
                "switch on Resizable BAR / Above 4G Decoding in the firmware, which makes BAR1 as large as the memory"
            }
        }
    }

    /// Returns who changes slots, firmware or switches by `command`.
    pub fn on_hardware(&self, command: &str) -> String {
        match &self.virtual_machine {
            Some(_) => format!("this is a virtual machine; on the host of its hypervisor: {command}"),
            None => self.on_host(command),
        }
    }

    /// Returns by what a system that is an image, and shows no file of it, is told which modules it loads at boot.
    pub fn loads_by_itself(&self) -> Option<String> {
        let name = self.fixed_system.as_deref()?;
        match name {
            TALOS => {
                Some(format!("{name} loads at boot what is in machine.kernel.modules of its machine configuration"))
            }
            BOTTLEROCKET => Some(format!("{name} loads at boot what is in its settings.kernel.modules")),
            _ => None,
        }
    }

    /// Returns what `fix` means on a system that is an image: how such a system is told what others have in
    /// files below /etc or on the line of their boot loader. `None` where it is no such system, or `fix` changes
    /// none of these.
    pub fn by_image(&self, fix: &str) -> Option<String> {
        let name = self.fixed_system.as_deref().filter(|_| self.adds_packages().is_none())?;
        let has = |words: &[&str]| words.iter().any(|word| fix.contains(word));
        let kind = match () {
            () if has(&["command line"]) => 0,
            () if has(&["/etc/modprobe.d", "blacklist"]) => 2,
            () if has(&["modules-load.d", "modprobe nvidia"]) => 1,
            () if has(&["limits.d"]) => 3,
            () if has(&["/etc/"]) => 4,
            () => return None,
        };
        let by = MEANS.iter().find(|(of, _)| of.contains(&name)).and_then(|(_, by)| by.get(kind).copied());
        let by = by.unwrap_or("its own configuration, or a new image");
        let fix = fix.replace(GRUB, "");
        Some(match kind {
            1 => format!("{name} is not changed in place: have it load what this says by {by}, and reboot: {fix}"),
            _ => format!("{name} is not changed in place: by {by} in the place of files of the host: {fix}"),
        })
    }

    /// Returns what `fix` means on this node: on a system that is an image, on a host, or in a container of it.
    pub fn on_node(&self, fix: &str) -> String {
        self.by_image(fix).unwrap_or_else(|| self.on_host(fix))
    }

    /// Returns `fix` as it is done on a node whose system gives nobody a shell.
    pub fn without_shell(&self, fix: &str) -> String {
        let Some(remote) = REMOTES.iter().find(|remote| Some(remote.name) == self.fixed_system.as_deref()) else {
            return fix.to_owned();
        };
        let fix = remote.instead.iter().fold(fix.to_owned(), |fix, (command, other)| fix.replace(command, other));
        let has = |words: &[&str]| words.iter().any(|word| fix.contains(word));
        let mut notes = Vec::new();
        let for_modules = remote.keeps_modules && has(&["rmmod ", "modprobe "]);
        if for_modules {
            notes.push("loads and unloads modules at boot only".to_owned());
        }
        // What is done in another way than by the commands of a cure says so.
        if has(&COMMANDS) && !has(&["not changed in place"]) {
            notes.push(format!("has no shell: commands of a host work {}", remote.commands));
        }
        if has(&["nvidia-smi -r"]) {
            notes.push(format!("resets its GPUs at a reboot, too: {}", remote.reboot));
        } else if for_modules || has(&["reboot"]) {
            notes.push(format!("is rebooted by {}", remote.reboot));
        }
        match notes.is_empty() {
            true => fix,
            false => format!("{fix}. {} {}", remote.name, notes.join("; it ")),
        }
    }

    /// Returns what to do before `command`, which changes the host's kernel.
    pub fn on_host(&self, command: &str) -> String {
        match &self.container {
            // The host has given its GPU away, and has another kernel.
            Some(_) if self.kata => format!(
                "this pod has a virtual machine of its own (Kata Containers), and nothing on the host changes its kernel: have the image of that guest, or kernel_modules and kernel_params of the runtime's configuration, bring what this says: {command}"
            ),
            Some(_) => format!("on the host, not in this container: {command}"),
            None => self.by_boot_loader(command),
        }
    }

    /// Returns a cure with the words on how the boot loader of this system is told its command line.
    pub fn by_boot_loader(&self, fix: &str) -> String {
        let is_of_red_hat = self.distribution.as_deref().is_some_and(|name| OF_RED_HAT.contains(&name));
        let words = match (is_of_red_hat, self.has_boot_entries) {
            (true, _) => GRUBBY,
            (false, true) if self.has_proxmox_boot => OF_PROXMOX,
            (false, true) => ENTRIES,
            (false, false) => GRUB,
        };
        fix.replace(GRUB, words)
    }
}

/// The words of the kernel's command line that have the IOMMU let addresses through.
pub const IDENTITY: [&str; 2] = [OF_X86, "iommu.passthrough=1"];
/// The one that kernels for x86 alone know.
pub const OF_X86: &str = "iommu=pt";

/// The file in which Xen says what its domain may do.
pub const XEN: &str = "/proc/xen/capabilities";

/// The devices by which an encrypted guest speaks with what protects it, and the flag of its processor.
pub const CONFIDENTIAL_NODES: [&str; 2] = ["/dev/tdx_guest", "/dev/sev-guest"];
pub const TDX_FLAG: &str = "tdx_guest";

/// The folder that Apptainer and Singularity put into each container.
pub const APPTAINER: &str = "/.singularity.d";
/// The script that each container of Enroot is started with.
pub const ENROOT: &str = "/etc/rc";
/// Words in the names of containers' control groups.
const CGROUPS: [&str; 12] = [
    "kubepods",
    "/docker/",
    "docker-",
    "libpod-",
    "nerdctl-",
    // The namespace in which ctr makes containers.
    "/default/",
    "/lxc/",
    "lxc.payload",
    "cri-containerd",
    "crio-",
    "/garden/",
    "/ecs/",
];
/// Returns the word by which a control group is that of a container. A service of the host may be called
/// docker-registry.service.
pub fn container_of(cgroup: &str) -> Option<&'static str> {
    let folders = || cgroup.split(['/', '\n']).filter(|folder| !folder.ends_with(".service"));
    let is_it = |word: &&str| match word.contains('/') {
        true => cgroup.contains(*word),
        false => folders().any(|folder| folder.contains(*word)),
    };
    CGROUPS.into_iter().find(is_it)
}

/// The folder that Kubernetes puts into each container of a pod, unless it is told not to.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The file in which the manager of a container says what it is, as systemd asks for it, and the
/// file in which Podman says it.
pub const NSPAWN: &str = "/run/systemd/container";
pub const PODMAN: &str = "/run/.containerenv";

/// The namespace of this program's control groups, and the folder that is there where systemd runs.
pub const CGROUP_NAMESPACE: &str = "/proc/self/ns/cgroup";
pub const SYSTEMD: &str = "/run/systemd/system";

/// Returns a field of an os-release; `key` ends with its equals sign.
fn field<'a>(os_release: &'a str, key: &str) -> Option<&'a str> {
    let value = os_release.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().trim_matches(['"', '\'']))
}

/// Returns the name of a system that is an image by what it was booted from, or by the program that changes it.
fn fixed_by_program(root: &Root) -> Option<&'static str> {
    // bootc upgrades no system to which rpm-ostree has added packages (bootc-dev/bootc#597).
    let of_ostree = || match (root.exists(RPM_OSTREE), root.exists(BOOTC_PROGRAM)) {
        (true, true) => match is_of_image(root) {
            Some(true) => BOOTC,
            Some(false) => OSTREE,
            None => OSTREE_OR_BOOTC,
        },
        (true, false) => OSTREE,
        (false, true) => BOOTC,
        (false, false) => "this deployment of ostree",
    };
    if root.exists(OSTREE_BOOTED) {
        return Some(of_ostree());
    }
    if root.exists(KAIROS_RELEASE) {
        return Some(KAIROS);
    }
    // Where the root can be written to, it is a package among others.
    (root.exists(TRANSACTIONAL_UPDATE) && root_options(root).is_none_or(|options| is_read_only(&options)))
        .then_some(TRANSACTIONAL)
}

/// Returns the files that tell where ostree's deployments come from.
pub fn origins(root: &Root) -> Vec<String> {
    let folders = root.names(DEPLOYMENTS).into_iter().map(|name| format!("{DEPLOYMENTS}/{name}/deploy"));
    let of = |folder: String| {
        let names = root.names(&folder).into_iter().filter(|name| name.ends_with(".origin"));
        names.map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
    };
    folders.flat_map(of).collect()
}

/// Returns whether this system was made from a container image; `None` if nothing tells.
fn is_of_image(root: &Root) -> Option<bool> {
    let texts: Vec<String> = origins(root).iter().filter_map(|file| root.text(file).ok()).collect();
    let of_images = texts.iter().filter(|text| text.contains(OF_IMAGE)).count();
    match of_images {
        0 if texts.is_empty() => None,
        0 => Some(false),
        count => (count == texts.len()).then_some(true),
    }
}

/// Returns how the root is mounted: `ro,relatime`.
pub fn root_options(root: &Root) -> Option<String> {
    let text = root.text(MOUNTS).ok()?;
    let options = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        (words.next() == Some("/")).then(|| words.nth(1).map(str::to_owned)).flatten()
    };
    text.lines().rev().find_map(options)
}

/// Returns whether options of a mount have it read only.
fn is_read_only(options: &str) -> bool {
    options.split(',').any(|option| option == "ro")
}

/// Returns whether the GPU Operator says that the driver is the host's.
fn is_host_driver(root: &Root) -> bool {
    let ready = root.text(DRIVER_READY).unwrap_or_default();
    root.exists(HOST_DRIVER) || ready.lines().any(|line| line.trim() == "IS_HOST_DRIVER=true")
}

/// Returns whether the loaded nvidia.ko is the one that is installed on the host.
fn is_file_of_host(root: &Root) -> bool {
    let of_file = || {
        let path = module_file::chosen(root, &kernel::release(root)?, "nvidia")?;
        ModuleFile::read(root, &path).ok()?.field("srcversion").map(str::to_owned)
    };
    let loaded = root.line("/sys/module/nvidia/srcversion").filter(|version| !version.is_empty());
    loaded.is_some() && loaded == of_file()
}

/// Returns whether there is a folder, and something in it.
fn is_there(root: &Root, path: &str) -> bool {
    !root.names(path).is_empty()
}

fn architecture(root: &Root) -> Option<String> {
    if let Some(arch) = root.line("/proc/sys/kernel/arch").filter(|arch| !arch.is_empty()) {
        return Some(arch);
    }
    let version = root.text("/proc/driver/nvidia/version").unwrap_or_default();
    let cpu = root.text("/proc/cpuinfo").unwrap_or_default();
    let of = |arch: &str| version.lines().next().is_some_and(|line| line.contains(arch));
    if of("aarch64") || cpu.contains("CPU implementer") {
        return Some("aarch64".to_owned());
    }
    if of("ppc64le") || cpu.contains("POWER") {
        return Some("ppc64le".to_owned());
    }
    (of("x86_64") || cpu.contains("vendor_id")).then(|| "x86_64".to_owned())
}

/// Returns what says that this is a virtual machine. The names are those by which systemd-detect-virt knows
/// one (`dmi_vendor_table` of src/basic/virt.c), the name that Microsoft gives its guests, Cloud
/// Hypervisor's, and the one of CloudStack's libvirt domains. The processor's flag tells of others on x86.
fn virtual_machine(root: &Root) -> Option<String> {
    const MAKERS: [&str; 18] = [
        "QEMU",
        "KVM",
        "KubeVirt",
        "OpenStack",
        "VMware",
        "VMW",
        "innotek",
        "VirtualBox",
        "Xen",
        "Bochs",
        "Parallels",
        "BHYVE",
        "Virtual Machine",
        "Cloud Hypervisor",
        "CloudStack",
        "Apple Virtualization",
        // Nutanix's hypervisor, and DigitalOcean's guests.
        "AHV",
        "Droplet",
    ];
    // Xen's own first domain has the hardware.
    let has_hardware = root.line(XEN).is_some_and(|words| words.contains("control_d"));
    if has_hardware {
        return None;
    }
    if let Some(kind) = root.line("/sys/hypervisor/type").filter(|kind| !kind.is_empty()) {
        return Some(format!("/sys/hypervisor/type is {kind}"));
    }
    let dmi = |name: &str| root.line(&format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
    let (maker, product) = (dmi("sys_vendor"), dmi("product_name"));
    // Amazon's bare metal calls itself so in its product's name; Google's and Oracle's too.
    let metal = product.contains("metal");
    let cloud = ["Amazon EC2", "Google"].contains(&maker.as_str()) && !metal && !product.is_empty();
    if cloud || MAKERS.iter().any(|word| maker.contains(word) || product.contains(word)) {
        return Some(format!("{maker} {product} in /sys/class/dmi/id"));
    }
    // QEMU's and Firecracker's machines for arm64 without a table of SMBIOS.
    let tree = root.text("/proc/device-tree/compatible").unwrap_or_default();
    if tree.contains("linux,dummy-virt") {
        return Some("/proc/device-tree/compatible is linux,dummy-virt".to_owned());
    }
    if root.exists("/proc/device-tree/hypervisor/compatible") {
        return Some("/proc/device-tree/hypervisor".to_owned());
    }
    let cpu = root.text("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags
        .split_ascii_whitespace()
        .any(|flag| flag == "hypervisor")
        .then(|| "flag hypervisor in /proc/cpuinfo".to_owned())
}

/// The unit that systemd starts in a guest of Kata Containers, and the name of the file system that the guest has
/// its containers' files from.
pub const KATA_UNIT: &str = "systemd.unit=kata-containers.target";
pub const KATA_FILES: &str = "kataShared";

/// Returns what says that this is a guest of Kata Containers, which has one pod.
fn kata(root: &Root) -> Option<String> {
    let words = root.line(COMMAND_LINE).unwrap_or_default();
    if words.split_ascii_whitespace().any(|word| word == KATA_UNIT) {
        return Some(format!("{KATA_UNIT} in {COMMAND_LINE}"));
    }
    let mounts = root.text(MOUNTS).unwrap_or_default();
    let has_files = mounts.lines().any(|line| line.split_ascii_whitespace().next() == Some(KATA_FILES));
    has_files.then(|| format!("{KATA_FILES} in {MOUNTS}"))
}

/// Returns what says that the memory of this virtual machine is encrypted, so that devices reach only what of it
/// was opened for them.
pub fn encrypted<'a>(root: &Root, mut log: impl Iterator<Item = &'a String>) -> Option<String> {
    if let Some(node) = CONFIDENTIAL_NODES.into_iter().find(|node| root.exists(node)) {
        return Some(format!("{node} exists"));
    }
    // A host has the flags of SEV, too.
    let cpu = root.text("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    if flags.split_ascii_whitespace().any(|flag| flag == TDX_FLAG) {
        return Some(format!("flag {TDX_FLAG} in /proc/cpuinfo"));
    }
    let of_guest = |line: &&String| line.contains(ENCRYPTION) && ["SEV", "TDX"].iter().any(|word| line.contains(word));
    log.find(of_guest).map(|line| format!("kernel log: {line}"))
}

/// Returns whether this process is in the namespace of the first process, `None` where that cannot be read.
pub fn is_in_first(root: &Root, name: &str) -> Option<bool> {
    let of = |pid: &str| root.link_name(&format!("/proc/{pid}/ns/{name}"));
    Some(of("1")? == of("self")?)
}

/// Returns what says that this is a container, and its namespaces that are not the initial ones.
fn container(root: &Root) -> (Option<String>, Vec<String>) {
    let mut namespaces = Vec::new();
    if !kernel::has_initial_pids(root) {
        namespaces.push("pid".to_owned());
    }
    let map = root.text("/proc/self/uid_map").unwrap_or_default();
    if !map.is_empty() && !map.split_ascii_whitespace().eq(["0", "0", "4294967295"]) {
        namespaces.push("user".to_owned());
    }
    for name in ["net", "mnt"] {
        // A service of systemd may have a mount namespace of its own; only the first counts alone.
        if is_in_first(root, name) == Some(false) && (name == "net" || !namespaces.is_empty()) {
            namespaces.push(name.to_owned());
        }
    }
    // NSPAWN is systemd's own note of what it runs in.
    let files = ["/.dockerenv", PODMAN, SERVICE_ACCOUNT, NSPAWN, APPTAINER];
    let seen = files.iter().find(|path| root.exists(path)).map(|path| format!("{path} exists"));
    let cgroup = root.text("/proc/self/cgroup").unwrap_or_default();
    let seen = seen.or_else(|| Some(format!("{} in /proc/self/cgroup", container_of(&cgroup)?.trim_matches('/'))));
    // A service of systemd may have such namespaces (PrivatePIDs=, PrivateUsers=), and so may a shell of a login.
    let is_of_systemd =
        root.exists(SYSTEMD) && ["/system.slice/", "/user.slice/"].iter().any(|slice| cgroup.contains(slice));
    let by_namespace = match namespaces.first().map(String::as_str).filter(|_| !is_of_systemd) {
        Some("pid") => Some("its /proc is not of the initial pid namespace".to_owned()),
        // As Enroot, Charliecloud and rootless ones have it: nobody in there may load a module.
        Some("user") => Some("its user namespace is not the initial one (/proc/self/uid_map)".to_owned()),
        _ => None,
    };
    let seen = seen.or(by_namespace);
    // PROC_CGROUP_INIT_INO: the same in every kernel. Where the host's processes are seen, too, only this tells of
    // a container; a service of systemd may have such a namespace, and sees that systemd runs.
    let control_groups = root.link_name(CGROUP_NAMESPACE).filter(|name| name != "cgroup:[4026531835]");
    if control_groups.is_some() {
        namespaces.push("cgroup".to_owned());
    }
    let by_groups = control_groups.filter(|_| !root.exists(SYSTEMD));
    (
        seen.or_else(|| by_groups.map(|name| format!("its control groups are of a namespace of their own ({name})"))),
        namespaces,
    )
}

fn is_tegra(root: &Root) -> bool {
    let compatible = root.text("/proc/device-tree/compatible").unwrap_or_default();
    compatible.contains("nvidia,tegra") || root.exists("/etc/nv_tegra_release") || root.exists("/sys/module/nvgpu")
}

/// Kinds of GPUs that differ in what NVIDIA's driver lets a NIC do with their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuClass {
    /// Data-centre and professional boards.
    Full,
    /// GeForce: the driver gives their memory to no NIC.
    Geforce,
    /// The GPU shares the CPU's memory (GB10, Orin, Thor).
    Integrated,
}

impl GpuClass {
    /// Returns why no NIC gets memory of such a GPU, and what to do instead.
    pub fn refusal(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Full => None,
            Self::Geforce => Some((
                "is a GeForce board, which NVIDIA's driver gives no GPUDirect RDMA: neither peer memory nor dma-buf",
                "use a data-centre or RTX professional GPU",
            )),
            Self::Integrated => Some((
                "shares the CPU's memory: NVIDIA gives it neither peer memory nor dma-buf",
                "allocate buffers by cudaHostAlloc() and register them by a plain ibv_reg_mr(): no module is needed",
            )),
        }
    }
}

/// Makers of RDMA devices whose drivers differ in how they take GPU memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    Mellanox,
    Broadcom,
    Efa,
    /// Their kernel's own driver never asks peers for memory.
    NeverAsks,
    Software,
    Other,
}

/// Returns whose an RDMA device is.
pub fn vendor(nic: &RdmaDevice) -> Vendor {
    match nic.module.as_deref() {
        _ if nic.software => Vendor::Software,
        Some("mlx5_ib" | "mlx4_ib") => Vendor::Mellanox,
        Some("bnxt_re") => Vendor::Broadcom,
        Some("efa") => Vendor::Efa,
        Some("mana_ib" | "hfi1" | "qedr" | "ocrdma" | "vmw_pvrdma" | "ionic_rdma") => Vendor::NeverAsks,
        _ => Vendor::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_systems_that_are_changed_in_place() {
        for (release, wanted) in [
            ("ID=talos\nVERSION_ID=v1.11", Some("Talos")),
            ("NAME=\"Red Hat Enterprise Linux CoreOS\"\nID=\"rhcos\"\n", Some("Red Hat CoreOS")),
            ("ID=\"rhel\"\r\nVARIANT_ID=coreos\r\n", Some("CoreOS")),
            ("ID=fedora\nVARIANT_ID=coreos\n", Some("Fedora CoreOS")),
            ("ID=fedora\nVARIANT_ID=server\n", None),
            ("ID=nixos\n", Some("NixOS")),
            ("ID=\"sl-micro\"\n", Some("SL Micro")),
            ("ID=\"sle-micro-rancher\"\nID_LIKE=\"suse\"\n", Some("SLE Micro for Rancher")),
            ("ID=\"sl-micro\"\nVARIANT_ID=\"Harvester-v1.7-20260209\"\n", Some("SLE Micro for Rancher")),
            ("ID=debian\nKAIROS_ID=\"kairos\"\n", Some("Kairos")),
            ("ID=\"opensuse-leap-micro\"\n", Some("openSUSE Leap Micro")),
            ("ID=\"rhel\"\nVARIANT_ID=rhel_ai1\n", Some("RHEL AI")),
            ("ID=ubuntu\n", None),
            ("", None),
        ] {
            assert_eq!(Setting::fixed_system(release), wanted, "{release}");
        }
    }
}
