// SPDX-License-Identifier: GPL-2.0
//! A part of section 9: whether this process may open the nodes of GPUs and NICs, and who keeps it from that.

use crate::check::Check;
use crate::giver::{device_nodes, is_of_nic, Giver};
use crate::machine::Machine;
use crate::nvidia;
use crate::rights::{is_root, may_override_modes};
use crate::root::{Forbidden, Root};
use crate::runtime::Runtime;

/// Returns who may not open which nodes, and what gives them. A cgroup that leaves a GPU and an RDMA device does
/// what it is for.
pub fn check(machine: &Machine) -> Option<Check> {
    const ID: &str = "limits.devices";
    let root = machine.root;
    let all = device_nodes(root);
    if all.is_empty() {
        return None;
    }
    let giver = Giver::of(machine);
    let word = giver.word();
    let is_closed = |path: &&String| machine.forbidden.contains(path);
    let of = |is_it: &dyn Fn(&str) -> bool| {
        all.iter().filter(|path| is_it(path)).partition::<Vec<&String>, _>(|path| is_closed(path))
    };
    let numbered = |path: &str| path.strip_prefix("/dev/nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let (closed_gpus, open_gpus) = of(&numbered);
    let (closed_nics, open_nics) = of(&is_of_nic);
    // Each program opens these.
    let (closed_common, _) = of(&|path| !numbered(path) && !is_of_nic(path));
    let no_gpu = !closed_common.is_empty() || !closed_gpus.is_empty() && open_gpus.is_empty();
    let no_nic = !closed_nics.is_empty() && open_nics.is_empty();
    let named = |paths: &[&String]| paths.iter().map(|path| path.as_str()).collect::<Vec<_>>().join(", ");
    if no_gpu || no_nic {
        let gpus = named(&[closed_gpus, closed_common].concat());
        let nics = named(&closed_nics);
        let (what, nodes) = match (no_gpu, no_nic) {
            (true, true) => ("GPU and no RDMA device", format!("{gpus}, {nics}")),
            (true, false) => ("GPU", gpus.clone()),
            _ => ("RDMA device", nics.clone()),
        };
        let fix = match (no_gpu, no_nic) {
            // Systemd takes both in one list.
            _ if matches!(giver, Giver::Container(Runtime::Nspawn) | Giver::Service(_) | Giver::Session) => {
                giver.gives_gpus(&nodes, false)
            }
            (true, true) => format!("{}; {}", giver.gives_gpus(&gpus, false), giver.gives_nics(&nics)),
            (true, false) => giver.gives_gpus(&gpus, false),
            _ => giver.gives_nics(&nics),
        };
        let why = match giver {
            Giver::Pod | Giver::Container(Runtime::Docker | Runtime::Podman { .. } | Runtime::Containerd) if no_gpu => "; where it had GPUs before, systemd took them away, as it does whenever its units are read again on the host (NVIDIA/nvidia-container-toolkit#48)",
            _ => "",
        };
        let message = format!("this {word} may use no {what}: its device cgroup forbids {nodes}{why}");
        let brief = format!("this {word} may use no {what}");
        return Some(Check::fail(ID, message, fix).brief(brief).seen("access() says EPERM"));
    }
    let by_mode: Vec<&str> = all.iter().map(String::as_str).filter(|path| by_mode(root, path)).collect();
    if !by_mode.is_empty() {
        let (who, fix) = opened(machine, &by_mode);
        let message = format!("{who} may not open {}", by_mode.join(", "));
        return Some(Check::warn(ID, message, fix).seen("access() says EACCES"));
    }
    let seen = named(&all.iter().filter(|path| !is_closed(path)).collect::<Vec<_>>());
    let message = match machine.forbidden.is_empty() {
        true => "the device nodes of GPUs and NICs may be opened".to_owned(),
        false => format!(
            "this {word} may open what it was given of GPUs and NICs; its device cgroup forbids the others: {}",
            machine.forbidden.join(", ")
        ),
    };
    Some(Check::ok(ID, message).seen(seen))
}

fn by_mode(root: &Root, path: &str) -> bool {
    root.forbidden(path) == Some(Forbidden::ByMode)
}

/// The file in which the kernel tells the context that a security module gives this process.
pub const CONTEXT: &str = "/proc/self/attr/current";

/// Returns the type that SELinux has this process in.
pub fn selinux_type(root: &Root) -> Option<String> {
    let context = root.line(CONTEXT)?;
    let of = context.split(':').nth(2)?.trim_matches('\0');
    of.ends_with("_t").then(|| of.to_owned())
}

/// Returns who may not open nodes for their mode or for a security module, and what opens them.
fn opened(machine: &Machine, nodes: &[&str]) -> (String, String) {
    let root = machine.root;
    let context = selinux_type(root);
    let params = nvidia::params(root);
    let number = |key: &str| params.get(key).and_then(|value| value.parse::<u32>().ok());
    let (mode, group) = (number("DeviceFileMode"), number("DeviceFileGID").filter(|group| *group != 0));
    let is_for_all = mode.is_none_or(|mode| mode & 0o006 == 0o006);
    let (nics, gpus): (Vec<&str>, Vec<&str>) = nodes.iter().partition(|node| is_of_nic(node));
    // No mode binds root, and by default each of these nodes is everybody's.
    let is_confined = context.as_deref().is_some_and(|of| of.contains("container") && of != "spc_t");
    if is_root(root) && may_override_modes(root) || is_confined && (gpus.is_empty() || is_for_all) {
        let who = match &context {
            Some(of) => format!("SELinux has this process in {of}, which"),
            None => "a security module confines root here, which".to_owned(),
        };
        let fix = match (&context, &machine.setting.container) {
            (Some(_), Some(_)) => "podman or docker run --security-opt label=disable (Kubernetes: seLinuxOptions.type: spc_t in the securityContext); for all containers: on the host, not in this container: setsebool -P container_use_devices=1",
            (None, Some(_)) => "docker run --security-opt apparmor=unconfined; dmesg | grep -E 'apparmor|avc' on the host names the rule",
            _ => "ausearch -m avc -ts recent, or dmesg | grep -E 'apparmor|avc', names the rule: have the policy of this process allow it",
        };
        return (who, fix.to_owned());
    }
    let given = machine.setting.container.is_some();
    let of_group = |group: u32| {
        match given {
        true => format!("give this container the group {group}, which may open them (docker run --group-add {group}; podman run --group-add keep-groups; Kubernetes: supplementalGroups: [{group}])"),
        false => format!("usermod -aG \"$(getent group {group} | cut -d: -f1)\" USER and log in again: nvidia.ko gives them to the group {group} (DeviceFileGID)"),
    }
    };
    let on_host = |fix: String| machine.setting.on_host(&fix);
    let of_gpus = match (mode, group) {
        _ if params.get("ModifyDeviceFiles").is_some_and(|value| value == "0") => on_host(format!(
            "chmod a+rw {}; for good: a udev rule, as nvidia.ko leaves these nodes alone (ModifyDeviceFiles: 0)",
            gpus.join(" ")
        )),
        (Some(mode), _) if is_for_all => on_host(format!(
            "nvidia-modprobe -c 0 -u as root gives them the mode {mode:04o} again that nvidia.ko has for them (DeviceFileMode); for good, take out what changed it, such as a udev rule"
        )),
        (Some(mode), Some(group)) if mode & 0o060 == 0o060 => of_group(group),
        _ => machine.setting.on_node(
            "options nvidia NVreg_DeviceFileMode=0666 in /etc/modprobe.d (or NVreg_DeviceFileMode=0660 and NVreg_DeviceFileGID of a group), then load nvidia.ko again: chmod and udev rules do not last, as the driver sets the mode of these nodes",
        ),
    };
    let of_nics = on_host(format!(
        "chmod a+rw {}; for good: a udev rule (SUBSYSTEM==\"infiniband_verbs\", MODE=\"0666\"), or the user into the group that has them",
        nics.join(" ")
    ));
    let parts = [(gpus.is_empty(), of_gpus), (nics.is_empty(), of_nics)];
    let fixes: Vec<String> = parts.into_iter().filter(|(is_empty, _)| !is_empty).map(|(_, fix)| fix).collect();
    ("this user".to_owned(), fixes.join("; "))
}
