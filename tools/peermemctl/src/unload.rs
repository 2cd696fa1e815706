// SPDX-License-Identifier: GPL-2.0
//! Says how a module is unloaded on this machine, and who uses it and has to end first.

use crate::machine::{Machine, NAME, OLD_MODULE};
use crate::modprobe::{self, GRUB};
use crate::nvidia;
use crate::text;
use std::collections::BTreeSet;

/// Returns the command that unloads a module and then does something, with what stands in its way.
pub fn unload(machine: &Machine, module: &str, then: &str) -> String {
    let rest = if then.is_empty() { String::new() } else { format!(" && {then}") };
    let command = format!("rmmod {module}{rest}");
    let Some(loaded) = machine.modules.get(module) else { return command };
    let count = loaded.refcount.filter(|count| *count > 0).and_then(|count| usize::try_from(count).ok());
    match (count, users(machine, module)) {
        (None, _) => command,
        (Some(count), Some(users)) => {
            format!("end who uses it ({}: {users}), as rmmod fails until then; then {command}", text::count(count, "use"))
        }
        (Some(count), None) => format!(
            "end who uses it ({}: fuser -v /dev/infiniband/uverbs* /dev/nvidia* names programs), as rmmod fails until then; then {command}",
            text::count(count, "use")
        ),
    }
}

/// Returns what has nvidia.ko loaded again. Its users and the modules above it go first.
pub fn reload_driver(machine: &Machine) -> String {
    if machine.setting.driver_container {
        return machine.setting.restart_driver();
    }
    machine.setting.on_host(&reload(machine))
}

/// Returns what has nvidia.ko loaded again, for somebody who is on the host.
pub fn reload(machine: &Machine) -> String {
    /// The modules above the GPU driver, in the order in which they can be unloaded.
    const ABOVE: [&str; 7] = [NAME, OLD_MODULE, "gdrdrv", "nvidia_fs", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"];
    let live = machine.registrations.as_ref().map_or(0, Vec::len);
    let uses = machine.modules.get("nvidia").and_then(|loaded| usize::try_from(loaded.refcount?).ok()).unwrap_or(0);
    let mut who = Vec::new();
    who.extend((uses > 0).then(|| format!("nvidia.ko has {}", text::count(uses, "use"))));
    who.extend((live > 0).then(|| format!("{} live: peermemctl list", text::count(live, "registration"))));
    who.push("fuser -v /dev/nvidia* names programs".to_owned());
    let above = ABOVE.into_iter().filter(|module| machine.modules.contains_key(*module));
    let modules: Vec<&str> = above.chain(["nvidia"]).collect();
    let fabric = if machine.has_nvswitch() { " nvidia-fabricmanager" } else { "" };
    format!(
        "end who uses the GPUs ({}), systemctl stop nvidia-persistenced{fabric}, then rmmod {} and load them again",
        who.join("; "),
        modules.join(" ")
    )
}

/// Returns what has nvidia.ko loaded with a parameter.
pub fn set_parameter(machine: &Machine, parameter: &str) -> String {
    by_operator(machine, &format!("write {parameter} in")).unwrap_or_else(|| {
        machine.setting.on_node(&format!(
            "write options nvidia {parameter} in /etc/modprobe.d/nvidia.conf, then end all users of the GPUs and load nvidia.ko again"
        ))
    })
}

/// Returns what has nvidia.ko loaded without a parameter, wherever that is given; `note` follows its place.
pub fn take_out_parameter(machine: &Machine, parameter: &str, note: &str) -> String {
    let option = parameter.split('=').next().unwrap_or(parameter);
    let bare = parameter.strip_prefix("NVreg_").unwrap_or(parameter);
    // A word of RegistryDwords has no prefix.
    let of_words = nvidia::is_of_words(machine.root, option.strip_prefix("NVreg_").unwrap_or(option));
    let (parameter, name, prefix) = match of_words {
        true => (format!("{bare} of NVreg_RegistryDwords"), "NVreg_RegistryDwords", ""),
        false => (parameter.to_owned(), option, "nvidia."),
    };
    by_operator(machine, &format!("take {parameter} out of")).unwrap_or_else(|| {
        machine.setting.on_node(&match modprobe::is_on_command_line(machine.root, &format!("nvidia.{name}")) {
            true => format!("take {prefix}{parameter} off the kernel command line{note}{GRUB}, and reboot"),
            false => {
                format!("take {parameter} out of /etc/modprobe.d{note}, then load nvidia.ko again: {}", reload(machine))
            }
        })
    })
}

/// Returns what the GPU Operator's users do for that. It loads nvidia.ko again only if its own configuration is
/// another one, of which it sees the name of that ConfigMap and not what is in it (NVIDIA/aicr#2459,
/// "validation" in the user documentation of NVIDIA/aicr).
fn by_operator(machine: &Machine, change: &str) -> Option<String> {
    machine.setting.driver_container.then(|| {
        format!(
            "the modules of this node come from containers: {change} nvidia.conf of the driver's ConfigMap, give that ConfigMap another name, and put the name into spec.driver.kernelModuleConfig.name of the ClusterPolicy; under its old name, and by deleting the pod of the driver, nvidia.ko stays loaded as it is, unless FORCE_REINSTALL=true is in the environment of the pod's k8s-driver-manager"
        )
    })
}

/// Returns who uses a module: other modules, or the processes that have registered.
fn users(machine: &Machine, module: &str) -> Option<String> {
    const SHOWN: usize = 3;
    let mut users: Vec<String> =
        machine.modules.get(module)?.used_by.iter().map(|user| format!("module {user}")).collect();
    if module == NAME {
        let rows = machine.registrations.iter().flatten();
        let processes: BTreeSet<String> = rows.map(|row| format!("process {} ({})", row.pid, row.comm)).collect();
        users.extend(processes);
    }
    let more = users.len().saturating_sub(SHOWN);
    users.truncate(SHOWN);
    users.extend((more > 0).then(|| format!("{more} more (peermemctl list)")));
    (!users.is_empty()).then(|| users.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;

    #[test]
    fn who_uses_a_module_is_named_before_it_is_unloaded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let lines =
            "nv_peer_mem 16384 2 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\nib_core 1 2 mlx5_ib,ib_uverbs Live 0x0\n";
        std::fs::write(dir.path().join("proc/modules"), lines).unwrap();
        let root = Root::new(dir.path());
        let machine = Machine::look(&root);
        let told = |module: &str| unload(&machine, module, "modprobe nvidia-peermem");
        assert_eq!(told("nvidia_peermem"), "rmmod nvidia_peermem && modprobe nvidia-peermem");
        assert!(told("nv_peer_mem").starts_with("end who uses it (2 uses: fuser -v"), "{}", told("nv_peer_mem"));
        assert!(told("ib_core").contains("2 uses: module mlx5_ib, module ib_uverbs"), "{}", told("ib_core"));
    }

    #[test]
    fn who_uses_the_gpus_ends_before_their_driver_is_loaded_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let lines = "nvidia_uvm 1 4 - Live 0x0\nnvidia_drm 1 1 - Live 0x0\nnvidia_modeset 1 1 nvidia_drm, Live 0x0\nnvidia_peermem 1 0 - Live 0x0\nnvidia 1 61 nvidia_uvm,nvidia_modeset,nvidia_peermem, Live 0x0\n";
        std::fs::write(dir.path().join("proc/modules"), lines).unwrap();
        let root = Root::new(dir.path());
        let told = reload_driver(&Machine::look(&root));
        assert!(told.starts_with("end who uses the GPUs (nvidia.ko has 61 uses; fuser -v"), "{told}");
        assert!(told.contains("systemctl stop nvidia-persistenced, then rmmod nvidia_peermem nvidia_drm nvidia_modeset nvidia_uvm nvidia and"), "{told}");
    }
}
