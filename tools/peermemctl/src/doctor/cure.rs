// SPDX-License-Identifier: GPL-2.0
//! Fits each cure to the kind of machine. A command that helps on a host with its own modules does
//! nothing, or harm, in a container, in a virtual machine, or on a node whose modules come from
//! containers.

use crate::check::Section;
use crate::machine::{Machine, NAME};
use crate::module_file::{self, upkeep};

/// The part of a machine that a cure changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Variables, limits, programs, or how this container or machine is started: the check itself
    /// knows the setting.
    Here,
    /// Modules and packages of the kernel: built, installed, loaded and unloaded.
    Modules,
    /// The running kernel, its boot, services and devices.
    Host,
    /// Slots, cables, firmware and switches.
    Hardware,
}

const HERE: [&str; 23] = [
    "gpus.bar1",
    "gpus.present",
    "fabric.rdma",
    "setting.machine",
    "setting.unread",
    "limits.memlock",
    "limits.process",
    "limits.devices",
    "limits.pages",
    "gpus.shared",
    "gpus.context",
    "gpus.nodes",
    "fabric.nodes",
    "fabric.gid",
    "fabric.numa_balancing",
    "consumers.nccl",
    "consumers.gin",
    "consumers.sharp",
    "consumers.ucx",
    "consumers.nvshmem",
    "consumers.libfabric",
    "consumers.mooncake",
    "ways.pairs",
];
const MODULES: [&str; 25] = [
    "driver.loaded",
    "driver.version",
    "driver.licence",
    "driver.exports",
    "api.exported",
    "api.version",
    "api.driver",
    "module.file",
    "module.vermagic",
    "module.versions",
    "module.stub",
    "module.blocked",
    "module.signature",
    "module.loaded",
    "module.stale",
    "module.parameters",
    "module.kernels",
    "clients.registered",
    "clients.taken",
    "clients.nv_peer_mem",
    "clients.counters",
    "gpus.coherent",
    "limits.autoload",
    "limits.dkms",
    "consumers.operator",
];
const HOST: [&str; 26] = [
    "fabric.port",
    "module.shut",
    "module.taint",
    "clients.callbacks",
    "clients.put_errors",
    "registrations.live",
    "registrations.stale",
    "registrations.left_key",
    "registrations.orphan",
    "refusals.recent",
    "gpus.answers",
    "gpus.fabric",
    "gpus.recovery",
    "gpus.override",
    "gpus.dma_buf",
    "fabric.iommu",
    "log.hung",
    "log.pcie",
    "log.xid",
    "log.api",
    "log.fault",
    "log.mlx5",
    "log.nic",
    "log.iommu",
    "log.read",
    "ways.refused",
];
const HARDWARE: [&str; 6] =
    ["fabric.distance", "fabric.acs", "fabric.pairs", "fabric.link", "fabric.relaxed_ordering", "selftest"];

/// Returns what the cure of a check changes.
pub fn place(id: &str) -> Option<Place> {
    let all =
        [(&HERE[..], Place::Here), (&MODULES, Place::Modules), (&HOST, Place::Host), (&HARDWARE, Place::Hardware)];
    all.into_iter().find(|(ids, _)| ids.contains(&id)).map(|(_, place)| place)
}

/// Returns whether a cure builds, installs or loads the module from files of the host.
fn needs_files_of_host(fix: &str) -> bool {
    builds(fix) || ["modprobe nvidia", "install ", "modules-load.d"].iter().any(|word| fix.contains(word))
}

/// Returns whether a cure builds the module, or changes what is installed of it.
fn builds(fix: &str) -> bool {
    ["make", "depmod", "dkms"].iter().any(|word| fix.contains(word))
}

/// The commands by which checks have the module built in this project's folder and installed from there. A command
/// stands before those that are a part of it.
const IN_FOLDER: [&str; 5] = [
    "in this project's folder: make && make install",
    "make clean; make; make install",
    "make install && depmod",
    LITE,
    "make install",
];

/// The command that builds and installs the module without imports that a closed driver forbids.
pub(super) const LITE: &str = "make deps && make KERNEL_CRATE=lite && make install";

/// Returns the command that builds and installs the module of a package, if a machine has that package and uses it.
/// It does not where modprobe takes the file of an earlier `make install`, which only `make` replaces, or where
/// containers or an image bring the module. In a container nothing is known of the host's packages.
pub(super) fn package_command(machine: &Machine) -> Option<String> {
    let is_by_hand = |path: &str| path.contains("/updates/nvidia-peermem-rust/");
    let chosen = module_file::chosen(machine.root, machine.release.as_deref().unwrap_or_default(), NAME);
    let is_used = machine.setting.container.is_none() && !machine.setting.is_fixed();
    let has_package = is_used && machine.root.exists(&upkeep());
    (has_package && !chosen.is_some_and(|path| is_by_hand(&path))).then(|| format!("{} refresh", upkeep()))
}

/// Returns the cure by the package's own command, if a package brought the module. It chooses the crate `kernel` by
/// itself.
fn by_package(machine: &Machine, fix: &str) -> String {
    let found = IN_FOLDER.into_iter().find(|command| fix.contains(command)).zip(package_command(machine));
    let Some((command, instead)) = found else { return fix.to_owned() };
    let depmod = if command.ends_with("depmod") { " && depmod" } else { "" };
    fix.replacen(command, &format!("{instead}{depmod}"), 1)
}

/// Returns the cure of a GPU driver or RDMA core where the system is an image, in which nobody builds the module in this
/// project's folder.
fn in_image(machine: &Machine, fix: &str) -> String {
    let fix = match IN_FOLDER.into_iter().find(|command| fix.contains(command)) {
        Some(LITE) => fix.replacen(LITE, "this project's module, built with KERNEL_CRATE=lite", 1),
        Some(_) => return machine.install_it(),
        None => fix.to_owned(),
    };
    format!("the system of this node is an image that is not changed in place; have it bring what this says: {fix}")
}

/// Returns the cure of a check on this machine.
pub fn chosen(machine: &Machine, id: &str, fix: &str) -> String {
    let setting = &machine.setting;
    // A check that knows the setting has said so.
    if fix.contains("in this container")
        || fix.contains("virtual machine")
        || fix.contains("come from containers")
        || fix.contains("not changed in place")
    {
        return fix.to_owned();
    }
    match place(id).unwrap_or(Place::Host) {
        Place::Here => setting.by_image(fix).unwrap_or_else(|| setting.by_boot_loader(fix)),
        Place::Modules if setting.adds_packages().is_some() && !setting.modules_in_containers() => match builds(fix) {
            true => machine.install_it(),
            false if fix.contains("install ") => setting.install_packages(fix),
            false => fix.to_owned(),
        },
        // The host's file of the module does not fit a driver that a container brought.
        Place::Modules
            if setting.modules_in_containers()
                && needs_files_of_host(fix)
                && (setting.driver_container || machine.file.is_none() || builds(fix)) =>
        {
            match (id.starts_with("driver."), setting.driver_container) {
                (true, true) => setting.restart_driver(),
                // That driver is the host's.
                (true, false) if !builds(fix) => setting.on_node(fix),
                _ => machine.install_it(),
            }
        }
        Place::Modules if setting.fixed_system.is_some() && (id.starts_with("driver.") || id.starts_with("api.")) => {
            match fix.contains("install ") || builds(fix) {
                true => in_image(machine, fix),
                false => setting.on_node(fix),
            }
        }
        Place::Modules
            if setting.fixed_system.is_some()
                && (builds(fix) || machine.file.is_none() && needs_files_of_host(fix)) =>
        {
            machine.install_it()
        }
        Place::Modules | Place::Host => setting.on_node(&by_package(machine, fix)),
        Place::Hardware => setting.on_hardware(fix),
    }
}

/// Replaces the cure of each check by the one for this kind of machine.
pub fn choose(machine: &Machine, sections: &mut [Section]) {
    for check in sections.iter_mut().flat_map(|section| &mut section.checks) {
        let fix = check.fix.take();
        check.fix = fix.map(|fix| machine.setting.without_shell(&chosen(machine, check.id, &fix)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::root::Root;
    use crate::setting::Setting;

    #[test]
    fn every_check_has_one_place() {
        for entry in &catalogue::CHECKS {
            let lists = [&HERE[..], &MODULES, &HOST, &HARDWARE];
            let places = lists.iter().filter(|ids| ids.contains(&entry.id)).count();
            assert_eq!(places, 1, "{}", entry.id);
        }
        let all = HERE.len() + MODULES.len() + HOST.len() + HARDWARE.len();
        assert_eq!(all, catalogue::CHECKS.len());
    }

    /// Checks systems that take packages into their next boot, and two that take none.
    #[test]
    fn an_image_that_takes_packages_is_told_how() {
        let empty = tempfile::tempdir().unwrap();
        let root = Root::new(empty.path());
        const PACKAGE: &str = "install DOCA-OFED (package doca-ofed)";
        const LIST: &str = "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf";
        for (name, command) in [
            ("SL Micro", Some("transactional-update pkg install")),
            ("SLE Micro", Some("transactional-update pkg install")),
            ("openSUSE MicroOS", Some("transactional-update pkg install")),
            ("Fedora CoreOS", Some("rpm-ostree install")),
            ("this system of ostree", Some("rpm-ostree install")),
            ("Red Hat CoreOS", None),
            ("Talos", None),
        ] {
            let setting = Setting { fixed_system: Some(name.to_owned()), ..Setting::default() };
            let machine = Machine { setting, ..Machine::look(&root) };
            let fix = chosen(&machine, "api.exported", PACKAGE);
            let has = command.is_some_and(|command| fix.contains(command) && fix.ends_with(PACKAGE));
            assert_eq!(has, command.is_some(), "{name}: {fix}");
            let fix = chosen(&machine, "module.file", "make && make install");
            assert!(!fix.contains("make install") && fix.contains("not changed in place"), "{name}: {fix}");
            assert_eq!(command.is_some_and(|command| fix.contains(command)), command.is_some(), "{name}: {fix}");
            // On systems that take packages, /etc is changed as elsewhere.
            assert_eq!(chosen(&machine, "limits.autoload", LIST) == LIST, command.is_some(), "{name}");
        }
    }

    /// Checks that no host is told to build in this project's folder where a package has the module, unless modprobe
    /// takes the file of an earlier `make install`.
    #[test]
    fn a_module_of_a_package_is_built_by_the_package() {
        let there = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = there.path().join(&path[1..]);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        };
        file(&upkeep(), "");
        let root = Root::new(there.path());
        let release = Some("7.2.0".to_owned());
        let mut machine = Machine { setting: Setting::default(), release, ..Machine::look(&root) };
        let refresh = format!("{} refresh", upkeep());
        for command in IN_FOLDER {
            let fix = chosen(&machine, "module.vermagic", &format!("{command} (with headers)"));
            let depmod = if command.contains("&& depmod") { " && depmod" } else { "" };
            assert_eq!(fix, format!("{refresh}{depmod} (with headers)"));
            assert_eq!(chosen(&machine, "module.vermagic", &fix), fix);
        }
        assert_eq!(chosen(&machine, "fabric.iommu", IN_FOLDER[0]), refresh);
        // What a container brought is no affair of the host's package.
        let setting = Setting { driver_container: true, ..Setting::default() };
        let operator = Machine { setting, ..Machine::look(&root) };
        assert_eq!(chosen(&operator, "module.vermagic", IN_FOLDER[1]), operator.install_it());
        assert_eq!(package_command(&operator), None);
        file("/lib/modules/7.2.0/modules.dep", "updates/nvidia-peermem-rust/nvidia-peermem.ko:\n");
        assert_eq!(chosen(&machine, "module.vermagic", IN_FOLDER[1]), IN_FOLDER[1]);
        std::fs::remove_file(there.path().join("lib/modules/7.2.0/modules.dep")).unwrap();
        machine.setting.container = Some("it".to_owned());
        assert!(chosen(&machine, "module.vermagic", IN_FOLDER[1]).ends_with(&format!(": {}", IN_FOLDER[1])));
    }

    /// Checks commands that a node without a shell or systemd does not know.
    #[test]
    fn a_node_without_a_shell_is_told_another_way() {
        let setting = |name: &str| Setting { fixed_system: Some(name.to_owned()), ..Setting::default() };
        let (talos, bottlerocket) = (setting("Talos"), setting("Bottlerocket"));
        for (fix, said, unsaid) in [
            (
                "systemctl stop nvidia-persistenced (or nvidia-smi -pm 0); then nvidia-smi -r -i N",
                &["talosctl service ext-nvidia-persistenced stop", "kubectl debug node/NODE", "talosctl reboot"][..],
                "systemctl",
            ),
            ("journalctl -k | grep NVRM", &["talosctl dmesg | grep", "kubectl debug"], "talosctl reboot"),
            ("rmmod nvidia", &["modules at boot only", "talosctl reboot"], "systemctl"),
            ("reboot", &["talosctl reboot"], "kubectl debug"),
            ("set NCCL_NET_GDR_LEVEL=PHB", &["PHB"], "Talos"),
        ] {
            let told = talos.without_shell(fix);
            assert!(said.iter().all(|words| told.contains(words)) && !told.contains(unsaid), "{told}");
            assert_eq!(setting("Flatcar").without_shell(fix), fix);
        }
        assert!(bottlerocket.without_shell("systemctl stop nvidia-persistenced").contains("sheltie"));
    }

    /// Walks every check over every kind of machine, with a command that only fits a bare host.
    #[test]
    fn no_cure_of_a_bare_host_is_given_elsewhere() {
        let empty = tempfile::tempdir().unwrap();
        let root = Root::new(empty.path());
        let seen = || Some("it".to_owned());
        let container = Setting { container: seen(), ..Setting::default() };
        let virtual_machine = Setting { virtual_machine: seen(), ..Setting::default() };
        let operator = Setting { driver_container: true, ofed_container: true, ..Setting::default() };
        let ofed = Setting { ofed_container: true, ..Setting::default() };
        let pod = Setting { container: seen(), virtual_machine: seen(), driver_container: true, ..Setting::default() };
        let build = "in this project's folder: make && make install";
        let image = Setting { fixed_system: Some("Talos".to_owned()), ..Setting::default() };
        let micro = Setting { fixed_system: Some("SL Micro".to_owned()), ..Setting::default() };
        for setting in [Setting::default(), container, virtual_machine, operator, ofed, pod, image, micro] {
            let machine = Machine { setting: setting.clone(), ..Machine::look(&root) };
            for entry in &catalogue::CHECKS {
                let id = entry.id;
                let fix = chosen(&machine, id, build);
                let place = place(id).unwrap();
                let is_bare = fix == build;
                let plain = setting.container.is_none()
                    && !(setting.is_fixed() && place == Place::Modules)
                    && !(setting.virtual_machine.is_some() && place == Place::Hardware);
                assert_eq!(is_bare, place == Place::Here || plain, "{id}: {fix} ({})", setting.words());
                if setting.container.is_some() && place != Place::Here {
                    let says = ["not in this container", "come from containers", "virtual machine"]
                        .iter()
                        .any(|word| fix.contains(word));
                    assert!(says, "{id}: {fix}");
                }
                if setting.is_fixed() && place == Place::Modules {
                    assert!(!fix.contains("make &&"), "{id}: {fix}");
                }
                if setting.virtual_machine.is_some() && place == Place::Hardware {
                    assert!(fix.contains("virtual machine"), "{id}: {fix}");
                }
                // Choosing twice changes nothing.
                assert_eq!(chosen(&machine, id, &fix), fix);
            }
        }
    }
}
