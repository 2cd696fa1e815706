// SPDX-License-Identifier: GPL-2.0
//! Records what tells the kind of machine, and what loads the module at boot.

use super::record::Recorder;
use crate::batch::{is_adopted, is_of_slurm, Batch, ADOPTED, SESSION};
use crate::doctor::devices::{selinux_type, CONTEXT};
use crate::doctor::hardware::WSL;
use crate::environment::{Environment, LINKER};
use crate::facts::DESKTOP_WORD;
use crate::giver::has_own_dev;
use crate::machine::NAME;
use crate::modprobe::{self, is_read_at_boot};
use crate::nvidia::{self, CAP, MIG_MINORS};
use crate::root::OS_RELEASE;
use crate::setting::{
    self, container_of, root_options, APPTAINER, BOOTC_PROGRAM, CGROUP_NAMESPACE, CONFIDENTIAL_NODES, DRIVER_READY,
    ENROOT, KAIROS_ID, KAIROS_RELEASE, KATA_FILES, KATA_UNIT, KERNEL_COMMAND_LINE, MOUNTS, NSPAWN, OF_IMAGE,
    OSTREE_BOOTED, PODMAN, PROXMOX_BOOT, RPM_OSTREE, SERVICE_ACCOUNT, SYSTEMD, TDX_FLAG, TRANSACTIONAL_UPDATE, XEN,
};
use crate::topology_file;

impl Recorder<'_> {
    /// Records what `Setting::look` reads.
    pub(super) fn setting(&mut self) {
        for path in [
            "/proc/sys/kernel/arch",
            "/proc/self/status",
            "/proc/self/uid_map",
            "/sys/hypervisor/type",
            XEN,
            "/sys/class/dmi/id/sys_vendor",
            "/sys/class/dmi/id/product_name",
            "/sys/module/ib_core/parameters/netns_mode",
        ] {
            self.file(path);
        }
        for pid in ["1", "self"] {
            for name in ["pid", "net", "mnt"] {
                self.link(&format!("/proc/{pid}/ns/{name}"));
            }
        }
        self.link(CGROUP_NAMESPACE);
        if let Some(of) = selinux_type(self.root) {
            self.text(CONTEXT, &format!("::{of}\n"));
        }
        // The processor's maker, whether it is a desktop's, and whether a hypervisor says that it is there.
        let cpu = self.root.text("/proc/cpuinfo").unwrap_or_default();
        let words = |line: &str| ["vendor_id", "CPU implementer"].iter().any(|start| line.starts_with(start));
        let mut kept: Vec<&str> = cpu.lines().find(|line| words(line)).into_iter().collect();
        let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let has = |wanted: &str| flags.split_ascii_whitespace().any(|flag| flag == wanted);
        let flags = match (has("hypervisor"), has(TDX_FLAG)) {
            (true, true) => Some("flags : hypervisor tdx_guest"),
            (true, false) => Some("flags : hypervisor"),
            _ => None,
        };
        let is_desktop = |line: &&str| line.starts_with("model name") && line.contains(DESKTOP_WORD);
        kept.extend(cpu.lines().find(is_desktop));
        kept.extend(flags);
        if !kept.is_empty() {
            self.text("/proc/cpuinfo", &(kept.join("\n") + "\n"));
        }
        let cgroup = self.root.text("/proc/self/cgroup").unwrap_or_default();
        // What is more particular comes first: Flux's jobs are in /system.slice, too.
        let batch = || Batch::of(&cgroup).map(Batch::folder);
        let of_slurm = if is_adopted(&cgroup) { ADOPTED } else { "slurm" };
        let kind = Some(of_slurm).filter(|_| is_of_slurm(&cgroup)).or_else(batch).or_else(|| container_of(&cgroup));
        let kind =
            kind.or_else(|| ["/user@", "/system.slice/", SESSION].into_iter().find(|word| cgroup.contains(word)));
        if let Some(kind) = kind {
            self.text("/proc/self/cgroup", &format!("0::/{}/\n", kind.trim_matches('/')));
        }
        for path in [
            "/.dockerenv",
            APPTAINER,
            "/run/nvidia/validations/host-driver-ready",
            SERVICE_ACCOUNT,
            "/run/nvidia/validations/.driver-ctr-ready",
            "/proc/device-tree/hypervisor/compatible",
            "/etc/nv_tegra_release",
            "/sys/module/nvgpu",
            WSL,
            CONFIDENTIAL_NODES[0],
            CONFIDENTIAL_NODES[1],
            OSTREE_BOOTED,
            RPM_OSTREE,
            BOOTC_PROGRAM,
            TRANSACTIONAL_UPDATE,
            SYSTEMD,
            KERNEL_COMMAND_LINE,
            PROXMOX_BOOT,
            KAIROS_RELEASE,
            ENROOT,
        ] {
            self.existence(path);
        }
        // The name of an image may be that of a registry.
        for file in setting::origins(self.root) {
            let is_of_image = self.root.text(&file).is_ok_and(|text| text.contains(OF_IMAGE));
            self.text(&file, &if is_of_image { format!("{OF_IMAGE}=\n") } else { "refspec=\n".to_owned() });
        }
        // The names of devices may be those of hosts.
        if has_own_dev(self.root) {
            self.text(MOUNTS, "tmpfs /dev tmpfs rw 0 0\n");
        }
        if let Some(options) = root_options(self.root).filter(|_| self.root.exists(TRANSACTIONAL_UPDATE)) {
            let kind = if options.split(',').any(|option| option == "ro") { "ro" } else { "rw" };
            self.text(MOUNTS, &format!("root / none {kind} 0 0\n"));
        }
        let is_of_kata = |line: &str| line.starts_with(KATA_FILES);
        if self.root.text(MOUNTS).is_ok_and(|text| text.lines().any(is_of_kata)) {
            self.text(MOUNTS, &format!("{KATA_FILES} / virtiofs rw 0 0\n"));
        }
        if self.root.exists(DRIVER_READY) {
            self.lines(DRIVER_READY, |line| line.starts_with("IS_HOST_DRIVER="));
        }
        // That file names the container and its image, too.
        if self.root.exists(PODMAN) {
            self.lines(PODMAN, |line| line.starts_with("engine=") || line.starts_with("rootless="));
        }
        self.file(NSPAWN);
        self.lines(OS_RELEASE, |line| {
            ["ID=", "ID_LIKE=", "VARIANT_ID=", KAIROS_ID].iter().any(|key| line.starts_with(key))
        });
        // This is the file that a program finds whose user sets nothing.
        let environment = Environment::of_command(self.root, &["env".to_owned(), "-i".to_owned()]);
        if let Some(file) = environment.nccl("NCCL_TOPO_FILE").map(|given| given.value.to_owned()) {
            if let Ok(text) = self.root.text(&file) {
                self.text(&file, &topology_file::without_ids(&text));
            }
        }
        if let Some(file) = &environment.nccl_plugin {
            self.existence(file);
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            for list in self.root.names(LINKER) {
                let list = format!("{LINKER}/{list}");
                if self.root.text(&list).is_ok_and(|text| text.lines().any(|line| line.trim() == folder)) {
                    self.lines(&list, |line| line.trim() == folder);
                }
            }
        }
        for folder in ["/run/nvidia/driver", "/run/mellanox/drivers"] {
            for name in self.root.names(folder) {
                self.existence(&format!("{folder}/{name}"));
            }
        }
        let compatible = self.root.text("/proc/device-tree/compatible").unwrap_or_default();
        if compatible.contains("linux,dummy-virt") {
            self.text("/proc/device-tree/compatible", "linux,dummy-virt\n");
        }
        if compatible.contains("nvidia,tegra") {
            self.text("/proc/device-tree/compatible", "nvidia,tegra\n");
        }
        let mut mig_nodes: Vec<String> = Vec::new();
        for gpu in self.root.names("/proc/driver/nvidia/gpus") {
            self.lines(&format!("/proc/driver/nvidia/gpus/{gpu}/information"), |line| {
                ["Model:", "Device Minor:", "GPU Excluded:", "Blacklisted:"].iter().any(|key| line.starts_with(key))
            });
            if let Some(folder) = nvidia::mig_folder(self.root, &gpu) {
                self.folder(&folder);
            }
            mig_nodes.extend(nvidia::mig_nodes(self.root, &gpu).into_iter().flatten());
        }
        if !mig_nodes.is_empty() {
            self.mig_minors(&mig_nodes);
        }
    }

    /// Records the minor numbers of those nodes of MIG instances.
    fn mig_minors(&mut self, nodes: &[String]) {
        let is_of = |node: &String, number: &str| node.strip_suffix(number).is_some_and(|start| start.ends_with(CAP));
        self.lines(MIG_MINORS, |line| {
            let number = line.trim_end().rsplit(' ').next().unwrap_or_default();
            nodes.iter().any(|node| is_of(node, number))
        });
    }

    /// Records what is in a folder, or the folder alone if it is empty.
    fn folder(&mut self, path: &str) {
        let names = self.root.names(path);
        if names.is_empty() {
            self.existence(path);
        }
        for name in names {
            self.folder(&format!("{path}/{name}"));
        }
    }

    /// Records rules of udev and enabled services that load the module.
    pub(super) fn loaders(&mut self) {
        for script in modprobe::scripts(self.root) {
            if is_read_at_boot(self.root, &script) && self.root.text(&script).is_ok_and(|text| is_of_module(&text)) {
                self.lines(&script, |line| is_of_module(line) || loads_a_variable(line));
            }
        }
        self.link(modprobe::LISTS_SERVICE);
        if let Some(list) = modprobe::loaded_at_boot(self.root, NAME) {
            self.lines(&list, is_of_module);
        }
        for dir in modprobe::UDEV {
            for name in self.root.names(dir) {
                self.rules(&format!("{dir}/{name}"));
            }
        }
        let of_folder = self.root.names(modprobe::CRON_FOLDER).into_iter();
        let jobs = of_folder.map(|name| format!("{}/{name}", modprobe::CRON_FOLDER));
        for path in modprobe::CRON.into_iter().map(str::to_owned).chain(jobs) {
            if self.root.text(&path).is_ok_and(|text| is_of_module(&text)) {
                self.lines(&path, is_of_module);
            }
        }
        if let Some(script) = modprobe::loaded_by_prolog(self.root, NAME) {
            for path in modprobe::SLURM {
                self.lines(path, |line| line.trim().get(..6).is_some_and(|key| key.eq_ignore_ascii_case("prolog")));
            }
            self.script(&script);
        }
        let words = self.root.line(modprobe::COMMAND_LINE).unwrap_or_default();
        let is_kept = |word: &&str| {
            modprobe::is_list_of(word, NAME)
                || word.starts_with("nvidia.NVreg_")
                || setting::IDENTITY.contains(word)
                || *word == KATA_UNIT
        };
        let lists: Vec<&str> = words.split_ascii_whitespace().filter(is_kept).collect();
        if !lists.is_empty() {
            self.text(modprobe::COMMAND_LINE, &format!("{}\n", lists.join(" ")));
        }
        let root = self.root;
        for unit in modprobe::enabled_units(root) {
            self.service(&unit);
        }
        for file in modprobe::drop_ins(root) {
            self.unit(&file);
        }
        // These links say which units want one of those.
        for dir in modprobe::UNITS {
            let folders = self.root.names(dir).into_iter();
            for folder in folders.filter(|name| name.ends_with(".wants") || name.ends_with(".requires")) {
                for unit in self.root.names(&format!("{dir}/{folder}")) {
                    let is_known = modprobe::UNITS.iter().any(|dir| self.has(&format!("{dir}/{unit}")));
                    if is_known || modprobe::is_template_of(&unit, NAME) {
                        self.existence(&format!("{dir}/{folder}/{unit}"));
                    }
                }
            }
        }
    }

    /// Records the rules of udev in a file that have the module loaded, and what they start for that.
    fn rules(&mut self, path: &str) {
        let root = self.root;
        let text = root.text(path).unwrap_or_default();
        let loads = |line: &str| is_of_module(line) || modprobe::rule_loads(root, line, NAME);
        let rules: Vec<&str> = text.lines().filter(|line| loads(line)).collect();
        if rules.is_empty() {
            return;
        }
        self.lines(path, |line| loads(line) || line.trim_end().ends_with('\\'));
        for rule in rules {
            modprobe::rule_units(rule).for_each(|unit| self.service(unit));
            modprobe::rule_scripts(rule).for_each(|script| self.script(script));
        }
    }

    /// Records the service that a unit starts, if that loads the module, and the unit.
    fn service(&mut self, unit: &str) {
        let root = self.root;
        let Some(service) = modprobe::service_of(root, unit) else { return };
        for dir in modprobe::UNITS {
            self.unit(&format!("{dir}/{service}"));
        }
        let is_recorded = modprobe::UNITS.iter().any(|dir| self.has(&format!("{dir}/{service}")));
        if is_recorded && service != unit {
            for path in modprobe::UNITS.iter().map(|dir| format!("{dir}/{unit}")).filter(|path| root.exists(path)) {
                self.lines(&path, |line| line.trim().starts_with('[') || line.trim().starts_with("Unit="));
            }
        }
    }

    /// Records what has a unit or a drop-in of systemd load the module, and the script or the other unit that
    /// does so for it.
    fn unit(&mut self, path: &str) {
        let root = self.root;
        let Ok(text) = root.text(path) else { return };
        let of_script = |line: &str| modprobe::script_that_loads(root, line, NAME);
        let is_template = |text: &str| text.split_ascii_whitespace().any(|word| modprobe::is_template_of(word, NAME));
        let pulls = |line: &str| modprobe::pulls(root, line, NAME);
        let loads = |line: &str| is_of_module(line) || of_script(line).is_some() || pulls(line);
        // A variable names the module where no line does. Values of other variables are nobody's business.
        let by_variable = modprobe::by_unit_file(root, path.to_owned(), "", NAME).filter(|line| !loads(&line.text));
        let files: Vec<&str> =
            text.lines().filter(|line| line.trim().starts_with(modprobe::ENVIRONMENT_FILE)).collect();
        if !is_template(&text.replace('=', " ")) && !text.lines().any(loads) && by_variable.is_none() {
            return;
        }
        let is_needed = |line: &str| {
            by_variable.as_ref().is_some_and(|needed| line.trim() == needed.text || files.contains(&line.trim_end()))
        };
        self.lines(path, |line| {
            loads(line) || is_needed(line) || line.trim_end().ends_with('\\') || is_template(&line.replace('=', " "))
        });
        for (_, file) in files.iter().filter_map(|line| line.split_once('=')).filter(|_| by_variable.is_some()) {
            self.lines(&modprobe::environment_file(file), is_of_module);
        }
        for line in text.lines() {
            of_script(line).iter().for_each(|script| self.script(script));
            // Each unit is recorded once, since units may want each other.
            let new = |unit: &&str| !modprobe::UNITS.iter().any(|dir| self.has(&format!("{dir}/{unit}")));
            let units: Vec<&str> = modprobe::pulled(line).filter(|_| pulls(line)).filter(new).collect();
            units.into_iter().for_each(|unit| self.service(unit));
        }
    }

    /// Records the lines of a script that load the module.
    fn script(&mut self, path: &str) {
        if self.root.script(path).is_some() {
            self.lines(path, |line| line.starts_with("#!") || is_of_module(line) || loads_a_variable(line));
        }
    }
}

/// Returns whether a line loads what a variable names, which a loop or another line gives it.
fn loads_a_variable(line: &str) -> bool {
    line.contains("modprobe ") && line.contains('$')
}

/// Returns whether a line names the module.
fn is_of_module(line: &str) -> bool {
    line.contains("nvidia_peermem") || line.contains("nvidia-peermem")
}
