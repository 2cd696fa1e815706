// SPDX-License-Identifier: GPL-2.0
//! Tells what made a container, and gave its processes a /dev and limits of their own.

use crate::batch::{has_component, SESSION};
use crate::kernel;
use crate::machine::Machine;
use crate::setting::{container_of, APPTAINER, ENROOT, NSPAWN, PODMAN};

/// Names what made a container. A pod's is that of its Kubernetes, which others know by its control group.
#[derive(PartialEq, Eq)]
pub enum Runtime {
    Apptainer,
    Enroot,
    /// One that a user starts in a shell, without a daemon: Charliecloud, bubblewrap and their like.
    OfShell,
    /// LXC, LXD or Incus.
    Lxc,
    /// Amazon ECS.
    Ecs,
    Nspawn,
    Podman {
        is_rootless: bool,
        /// The unit of a .container file that starts it.
        unit: Option<String>,
    },
    /// nerdctl or ctr.
    Containerd,
    /// Docker, or one that nothing tells.
    Docker,
}

impl Runtime {
    /// Returns what made the container of a process, which is `self` or a number. Files tell of this program's alone.
    pub fn of(machine: &Machine, pid: &str) -> Option<Self> {
        let root = machine.root;
        let cgroup = root.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let is_own = is_here(machine, pid);
        // What a manager of containers says of itself is there where control groups have a namespace, too.
        let manager = root.line(NSPAWN).filter(|_| is_own).unwrap_or_default();
        // CRI-O makes an empty file of that name (cri-o/cri-o#5463).
        let podman = root.text(PODMAN).ok().filter(|_| is_own).unwrap_or_default();
        let is_container = is_own && machine.setting.container.is_some();
        let has_own_users = machine.setting.namespaces.iter().any(|name| name == "user");
        Some(match () {
            () if is_own && root.exists(APPTAINER) => Self::Apptainer,
            () if cgroup.contains("/lxc") || manager.starts_with("lxc") => Self::Lxc,
            () if cgroup.contains("/ecs/") => Self::Ecs,
            () if manager == "systemd-nspawn" => Self::Nspawn,
            () if podman.lines().any(|line| line.starts_with("engine=\"podman")) || cgroup.contains("libpod-") => {
                let is_rootless = podman.lines().any(|line| line.trim() == "rootless=1");
                let mut folders = cgroup.split(['/', '\n']);
                let unit = folders.find(|folder| folder.ends_with(".service") && !folder.starts_with("user@"));
                Self::Podman {
                    is_rootless: is_rootless || cgroup.contains("/user.slice/"),
                    unit: unit.filter(|_| cgroup.contains("libpod-")).map(str::to_owned),
                }
            }
            () if ["nerdctl-", "/default/"].iter().any(|word| cgroup.contains(word)) => Self::Containerd,
            () if is_own && has_own_users && root.exists(ENROOT) => Self::Enroot,
            () if is_container && has_own_users && has_component(&cgroup, SESSION) => Self::OfShell,
            () if is_container || container_of(&cgroup).is_some() => Self::Docker,
            () => return None,
        })
    }

    /// Returns whether it has devices and limits of its own for a container, and not those of whoever starts it.
    pub fn confines(&self) -> bool {
        !matches!(self, Self::Apptainer | Self::Enroot | Self::OfShell)
    }

    /// Returns what raises the limit of locked memory, where that is another thing than with Docker.
    pub fn memlock(&self) -> Option<String> {
        const RUN: &str = "podman run --ulimit memlock=-1:-1";
        Some(match self {
            Self::Apptainer | Self::Enroot | Self::OfShell | Self::Docker => return None,
            Self::Lxc => "LXC, LXD and Incus: limits.kernel.memlock=unlimited (LXC: lxc.prlimit.memlock = unlimited) of this container, set on the host; then start it again".to_owned(),
            Self::Ecs => "Amazon ECS: ulimits with name memlock, softLimit -1 and hardLimit -1 in the container's definition of the task, then start a new task".to_owned(),
            Self::Nspawn => "systemd-nspawn: LimitMEMLOCK=infinity in section [Exec] of the container's .nspawn file (or --rlimit=RLIMIT_MEMLOCK=infinity), then start it again".to_owned(),
            Self::Podman { unit: Some(unit), .. } => format!("Ulimit=memlock=-1:-1 in section [Container] of the .container file of {unit} (where it has none: {RUN}), then systemctl daemon-reload and restart it"),
            Self::Podman { is_rootless: true, .. } => format!("{RUN}, which without root gets no further than the hard limit of the user who starts it: raise that on the host (memlock in /etc/security/limits.d, and LimitMEMLOCK=infinity in user@.service), then log in again there"),
            Self::Podman { .. } => format!("{RUN}; no file of a container raises it"),
            Self::Containerd => "nerdctl run --ulimit memlock=-1; a container of ctr has the limit of its daemon: LimitMEMLOCK=infinity in containerd.service, then restart that and start the container again".to_owned(),
        })
    }
}

/// Returns whether a process is in the container that this one is in, or on the host that it is on.
pub fn is_here(machine: &Machine, pid: &str) -> bool {
    let root = machine.root;
    let cgroup = |pid: &str| root.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let in_same = || !kernel::has_initial_pids(root) || cgroup(pid) == cgroup("self");
    pid == "self" || machine.setting.container.is_some() && in_same()
}
