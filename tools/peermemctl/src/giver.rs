// SPDX-License-Identifier: GPL-2.0
//! Tells who gives a process the nodes of GPUs and NICs, and how one asks that giver for them.

use crate::batch::{is_of_slurm, Batch};
use crate::machine::Machine;
use crate::rdma;
use crate::root::Root;
use crate::runtime::Runtime;
use crate::setting::{MOUNTS, SERVICE_ACCOUNT};

/// Returns the nodes that a program opens which registers GPU memory.
pub fn device_nodes(root: &Root) -> Vec<String> {
    let gpus = root.names("/dev").into_iter().filter(|name| match name.strip_prefix("nvidia") {
        Some("ctl" | "-uvm") => true,
        Some(number) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        None => false,
    });
    let gpus = gpus.map(|name| format!("/dev/{name}"));
    let nics = root.names("/dev/infiniband").into_iter().filter(|name| name.starts_with(rdma::NODE));
    gpus.chain(nics.map(|name| format!("/dev/infiniband/{name}"))).collect()
}

/// Returns whether a node is that of an RDMA device.
pub fn is_of_nic(path: &str) -> bool {
    path.starts_with("/dev/infiniband/")
}

/// A unit of systemd.
#[derive(PartialEq, Eq)]
pub struct Unit {
    pub name: String,
    /// Says whether it is gone when it has ended.
    is_transient: bool,
}

impl Unit {
    /// Returns the unit of a control group: a service, or a scope that systemd-run made.
    pub fn of(root: &Root, cgroup: &str) -> Option<Self> {
        let folders = || cgroup.split(['/', '\n']);
        let scope = || folders().find(|part| part.starts_with("run-") && part.ends_with(".scope"));
        let name = folders().find(|part| part.ends_with(".service")).or_else(scope)?.to_owned();
        let is_transient = name.starts_with("run-") || root.exists(&format!("/run/systemd/transient/{name}"));
        Some(Self { name, is_transient })
    }

    /// Returns whether it is that of a login by sshd: of all of them, or of one.
    pub fn is_sshd(&self) -> bool {
        ["ssh.service", "sshd.service"].contains(&self.name.as_str())
            || ["ssh@", "sshd@"].iter().any(|start| self.name.starts_with(start))
    }

    /// Returns whether it starts nothing by itself.
    pub fn is_scope(&self) -> bool {
        self.name.ends_with(".scope")
    }

    /// Returns whether JupyterHub's SystemdSpawner starts it.
    fn is_of_jupyter(&self) -> bool {
        self.name.starts_with("jupyter-") && self.name.ends_with("-singleuser.service")
    }

    /// Returns what gives it these lines.
    pub fn with(&self, lines: &[String]) -> String {
        let (name, all) = (&self.name, lines.join(" and "));
        if self.is_of_jupyter() {
            return format!(
                "{all} by c.SystemdSpawner.unit_extra_properties in jupyterhub_config.py, then start that server again"
            );
        }
        if self.is_transient {
            let options: Vec<String> = lines.iter().map(|line| format!("-p '{line}'")).collect();
            let scope = if self.is_scope() { " --scope" } else { "" };
            return format!(
                "{name} is gone when it ends: start it again with systemd-run{scope} {}",
                options.join(" ")
            );
        }
        format!("{all} in {name} (systemctl edit {name}), then restart it")
    }
}

/// Whoever gives a process its devices.
#[derive(PartialEq, Eq)]
pub enum Giver {
    Pod,
    Container(Runtime),
    Slurm,
    Batch(&'static Batch),
    /// A unit of systemd, whose name a recording does not have.
    Service(Option<Unit>),
    /// Whatever is around the session of a login.
    Session,
}

impl Giver {
    /// Returns who gives this process its devices, by its control group.
    pub fn of(machine: &Machine) -> Self {
        let root = machine.root;
        let cgroup = root.text_once("/proc/self/cgroup").unwrap_or_default();
        if let Some(manager) = Self::manager(&cgroup) {
            return manager;
        }
        if machine.setting.container.is_some() && root.exists(SERVICE_ACCOUNT) {
            return Self::Pod;
        }
        if let Some(runtime) = Runtime::of(machine, "self").filter(Runtime::confines) {
            return Self::Container(runtime);
        }
        match Unit::of(root, &cgroup) {
            unit if cgroup.contains("/system.slice/") => Self::Service(unit),
            // Units of a user's manager are below user.slice.
            Some(unit) if !cgroup.contains("/user.slice/") => Self::Service(Some(unit)),
            _ => Self::Session,
        }
    }

    /// Returns who made the /dev of this process.
    fn of_dev(machine: &Machine) -> Self {
        let runtime = Runtime::of(machine, "self").filter(|runtime| !runtime.confines());
        runtime.map_or_else(|| Self::of(machine), Self::Container)
    }

    /// Returns the manager of pods or jobs that has a control group, the innermost one: Slurm may run in pods, and a
    /// container in a job of it. With version 1 of control groups that for devices decides.
    fn manager(cgroup: &str) -> Option<Self> {
        let of_folder = |folder: &str| match () {
            () if folder.contains("kubepods") => Some(Self::Pod),
            () if is_of_slurm(folder) => Some(Self::Slurm),
            () => Batch::of(folder).map(Self::Batch),
        };
        let of_line = |line: &str| line.rsplit('/').find_map(of_folder);
        let is_of_devices =
            |line: &&str| line.split(':').nth(1).is_some_and(|of| of.split(',').any(|of| of == "devices"));
        cgroup.lines().find(is_of_devices).and_then(of_line).or_else(|| cgroup.lines().find_map(of_line))
    }

    /// Returns what devices are given to, in a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pod | Self::Container(_) => "container",
            Self::Slurm | Self::Batch(_) => "job",
            Self::Service(_) => "service",
            Self::Session => "session",
        }
    }

    /// Returns how a GPU is asked for. `nodes` are forbidden, or missing.
    pub fn gives_gpus(&self, nodes: &str, is_missing: bool) -> String {
        match self {
            Self::Pod if is_missing => "start this container with a limit of nvidia.com/gpu in the pod's specification".to_owned(),
            Self::Pod => "delete this pod, so that it is started again; so that it keeps its GPUs, cdi.enabled=true in the values of the GPU Operator; where its /dev is the node's, nobody gave it any: ask for a limit of nvidia.com/gpu".to_owned(),
            Self::Container(Runtime::Apptainer) => "start this container with --nv".to_owned(),
            Self::Container(Runtime::Enroot) => "start this container with NVIDIA_VISIBLE_DEVICES=all in its environment".to_owned(),
            Self::Container(Runtime::OfShell) => format!("start this container with these nodes of the host bound into it, as Charliecloud does by itself: {nodes}"),
            Self::Container(Runtime::Lxc) => "on the host, not in this container: incus (or lxc) config device add CONTAINER gpus gpu; of LXC alone: lxc.cgroup2.devices.allow and lxc.mount.entry for each node; then start this container again".to_owned(),
            Self::Container(Runtime::Nspawn) => nspawn(nodes),
            Self::Container(Runtime::Ecs) => "resourceRequirements with type GPU in the container's definition of the task, then start a new task".to_owned(),
            Self::Container(Runtime::Podman { .. }) => "start this container with --device nvidia.com/gpu=all".to_owned(),
            Self::Container(_) if is_missing => "start this container with --gpus all (Compose: gpus: all of its service; Kubernetes: a limit of nvidia.com/gpu)".to_owned(),
            Self::Container(_) => "start this container again; so that it keeps its GPUs, give them by CDI (docker run --device nvidia.com/gpu=all) or each node by --device (with /dev/nvidiactl and /dev/nvidia-uvm); where its /dev is the host's, nobody gave it any: docker run --gpus all".to_owned(),
            Self::Slurm => "ask for GPUs: --gpus=N or --gres=gpu:N of srun, sbatch or salloc; a job gets those alone that it asked for (ConstrainDevices=yes in cgroup.conf)".to_owned(),
            Self::Batch(batch) => format!("ask for GPUs ({})", batch.gpus),
            Self::Service(unit) => allow(unit.as_ref(), nodes),
            Self::Session => slice(nodes),
        }
    }

    /// Returns how a MIG instance is asked for, whose nodes are `closed`.
    pub fn gives_instances(&self, closed: &str) -> String {
        const LINE: &str = "DeviceAllow=char-nvidia-caps r";
        match self {
            Self::Pod => "ask for an instance of the GPU: a limit of nvidia.com/mig-PROFILE (or of nvidia.com/gpu, where the device plugin has the MIG strategy single)".to_owned(),
            Self::Container(Runtime::Lxc) => format!("on the host, not in this container: give it the nodes of an instance, too (incus or lxc config device add CONTAINER NAME unix-char source=NODE, or lxc.mount.entry and lxc.cgroup2.devices.allow): {closed}"),
            Self::Container(Runtime::Nspawn) => format!("on the host, not in this container: Bind=/dev/nvidia-caps in its .nspawn file and {LINE} in systemd-nspawn@NAME.service (systemctl edit), then start this container again"),
            Self::Container(_) => format!("start this container with an instance of the GPU: NVIDIA_VISIBLE_DEVICES=MIG-UUID (nvidia-smi -L tells it) or --device nvidia.com/gpu=MIG-UUID; where nodes are given one by one, those of the instance, too: {closed}"),
            Self::Slurm => "ask for an instance of the GPU: --gres=gpu:PROFILE:1, as gres.conf names it".to_owned(),
            Self::Batch(_) => "ask for an instance of the GPU, as the batch system names it".to_owned(),
            Self::Service(unit) => in_unit(unit.as_ref(), &[LINE.to_owned()]),
            Self::Session => slice("char-nvidia-caps"),
        }
    }

    /// Returns how an RDMA device is asked for.
    pub fn gives_nics(&self, closed: &str) -> String {
        match self {
            Self::Pod => "start this container with what the RDMA device plugin offers".to_owned(),
            Self::Container(Runtime::Apptainer) => "start this container with --bind /dev/infiniband".to_owned(),
            Self::Container(Runtime::Enroot) => "start this container with MELLANOX_VISIBLE_DEVICES=all in its environment".to_owned(),
            Self::Container(Runtime::OfShell) => format!("start this container with these nodes of the host bound into it, as Charliecloud does by itself: {closed}"),
            Self::Container(Runtime::Lxc) => format!("on the host, not in this container: a device of type unix-char for {closed} (incus or lxc config device add CONTAINER NAME unix-char source=NODE), or lxc.cgroup2.devices.allow"),
            Self::Container(Runtime::Nspawn) => nspawn(closed),
            Self::Container(Runtime::Ecs) => format!("linuxParameters.devices with hostPath {closed} in the container's definition of the task, then start a new task"),
            Self::Container(Runtime::Podman { .. }) => "start this container with --device=/dev/infiniband".to_owned(),
            Self::Container(_) => "start this container with --device=/dev/infiniband (Compose: devices: [/dev/infiniband] of its service; Kubernetes: what the RDMA device plugin offers)".to_owned(),
            Self::Slurm => format!("Slurm forbids what gres.conf names and a job did not ask for: ask for the resource that has {closed} in gres.conf (--gres=NAME:1), or take that line out of it"),
            Self::Batch(_) => format!("have the batch system let each job open {closed}, or ask for it as a resource"),
            Self::Service(unit) => allow(unit.as_ref(), closed),
            Self::Session => slice(closed),
        }
    }
}

/// Returns whether something else than the host's devtmpfs is at /dev: PrivateDevices= of a service.
pub fn has_own_dev(root: &Root) -> bool {
    let mounts = root.text_once(MOUNTS).unwrap_or_default();
    let of = |line: &str| line.split_ascii_whitespace().skip(1).take(2).eq(["/dev", "tmpfs"]);
    mounts.lines().any(of)
}

/// Returns whether this process is a service that systemd gave a /dev without devices.
pub fn is_without_devices(machine: &Machine) -> bool {
    let lacks_nodes = || {
        let nodes = machine.root.names("/dev/infiniband");
        let is_made = machine.modules.contains_key("ib_uverbs") && machine.rdma.iter().any(|nic| !nic.software);
        is_made && !nodes.iter().any(|node| node.starts_with(rdma::NODE))
    };
    machine.setting.container.is_none()
        && (has_own_dev(machine.root) || lacks_nodes())
        && matches!(Giver::of(machine), Giver::Service(_))
}

/// The nodes that are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    Gpus,
    Nics,
}

/// Returns what gives this process nodes that its /dev does not have; `None` on a host, where modules make them.
pub fn gives_missing(machine: &Machine, nodes: Nodes) -> Option<String> {
    const GPUS: &str = "/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm";
    const NICS: &str = "/dev/infiniband/uverbs0";
    let giver = Giver::of_dev(machine);
    Some(match (&giver, nodes) {
        (Giver::Service(unit), _) if is_without_devices(machine) => match unit {
            Some(unit) if unit.is_of_jupyter() => {
                "c.SystemdSpawner.isolate_devices = False in jupyterhub_config.py, then start that server again"
                    .to_owned()
            }
            _ => in_unit(unit.as_ref(), &["PrivateDevices=no".to_owned()]),
        },
        (Giver::Service(_) | Giver::Session, _) => return None,
        (Giver::Slurm | Giver::Batch(_), _) if machine.setting.container.is_none() => return None,
        (giver, Nodes::Gpus) => giver.gives_gpus(GPUS, true),
        (giver, Nodes::Nics) => giver.gives_nics(NICS),
    })
}

/// Returns what has systemd-nspawn let its container open nodes.
fn nspawn(nodes: &str) -> String {
    format!(
        "on the host, not in this container: {} in systemd-nspawn@NAME.service (systemctl edit), and Bind= of what is not there in its .nspawn file, then start this container again",
        lines(nodes).join(" and ")
    )
}

/// Returns the lines by which a unit may open nodes.
fn lines(nodes: &str) -> Vec<String> {
    nodes.split(", ").map(|node| format!("DeviceAllow={node} rw")).collect()
}

/// Returns what gives a unit these lines.
fn in_unit(unit: Option<&Unit>, lines: &[String]) -> String {
    let unnamed = || format!("{} in the unit of this service (systemctl edit), then restart it", lines.join(" and "));
    unit.map_or_else(unnamed, |unit| unit.with(lines))
}

/// Returns what has systemd let a service open nodes.
fn allow(unit: Option<&Unit>, nodes: &str) -> String {
    in_unit(unit, &lines(nodes))
}

/// Returns what lets those who log in open nodes.
fn slice(nodes: &str) -> String {
    format!("run this in a job that has GPUs, if this node is for logins only; else DeviceAllow= for {nodes} in a drop-in of user-.slice, whose rules systemctl show -p DevicePolicy -p DeviceAllow user-UID.slice tells")
}
