// SPDX-License-Identifier: GPL-2.0
//! Records what tells the kind of machine, and what loads the module at boot.

use super::record::Recorder;
use crate::doctor::limits::BATCH;
use crate::environment::Environment;
use crate::modprobe::{is_read_at_boot, SCRIPTS};
use crate::setting::{Setting, APPTAINER, CGROUPS, OS_RELEASE};
use crate::topology_file;

impl Recorder<'_> {
    /// Records what `Setting::look` reads.
    pub(super) fn setting(&mut self) {
        for path in [
            "/proc/sys/kernel/arch",
            "/proc/self/status",
            "/proc/self/uid_map",
            "/sys/hypervisor/type",
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
        // The processor's maker, and whether a hypervisor says that it is there.
        let cpu = self.root.text("/proc/cpuinfo").unwrap_or_default();
        let words = |line: &str| ["vendor_id", "CPU implementer"].iter().any(|start| line.starts_with(start));
        let mut kept: Vec<&str> = cpu.lines().find(|line| words(line)).into_iter().collect();
        let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        kept.extend(flags.split_ascii_whitespace().any(|flag| flag == "hypervisor").then_some("flags : hypervisor"));
        if !kept.is_empty() {
            self.text("/proc/cpuinfo", &(kept.join("\n") + "\n"));
        }
        let cgroup = self.root.text("/proc/self/cgroup").unwrap_or_default();
        let kind = ["slurm", "/user@", "/system.slice/"]
            .iter()
            .chain(BATCH.iter().map(|(word, _)| word))
            .chain(&CGROUPS)
            .find(|word| cgroup.contains(**word));
        if let Some(kind) = kind {
            self.text("/proc/self/cgroup", &format!("0::/{}/\n", kind.trim_matches('/')));
        }
        for path in [
            "/.dockerenv",
            APPTAINER,
            "/run/nvidia/validations/host-driver-ready",
            "/run/.containerenv",
            "/run/systemd/container",
            "/var/run/secrets/kubernetes.io/serviceaccount",
            "/run/nvidia/validations/.driver-ctr-ready",
            "/proc/device-tree/hypervisor/compatible",
            "/etc/nv_tegra_release",
            "/sys/module/nvgpu",
        ] {
            self.existence(path);
        }
        if let Ok(text) = self.root.text(OS_RELEASE) {
            if Setting::fixed_system(&text).is_some() {
                self.lines(OS_RELEASE, |line| line.starts_with("ID="));
            }
        }
        // As somebody who sets nothing finds it.
        let environment = Environment::of_command(self.root, &["env".to_owned(), "-i".to_owned()]);
        if let Some(file) = environment.nccl("NCCL_TOPO_FILE").map(|(file, _)| file.to_owned()) {
            if let Ok(text) = self.root.text(&file) {
                self.text(&file, &topology_file::without_ids(&text));
            }
        }
        for folder in ["/run/nvidia/driver", "/run/mellanox/drivers"] {
            for name in self.root.names(folder) {
                self.existence(&format!("{folder}/{name}"));
            }
        }
        let compatible = self.root.text("/proc/device-tree/compatible").unwrap_or_default();
        if compatible.contains("nvidia,tegra") {
            self.text("/proc/device-tree/compatible", "nvidia,tegra\n");
        }
        for gpu in self.root.names("/proc/driver/nvidia/gpus") {
            self.lines(&format!("/proc/driver/nvidia/gpus/{gpu}/information"), |line| line.starts_with("Model:"));
        }
    }

    /// Records rules of udev and enabled services that load the module.
    pub(super) fn loaders(&mut self) {
        let is_it = |line: &str| line.contains("nvidia_peermem") || line.contains("nvidia-peermem");
        for script in SCRIPTS {
            if is_read_at_boot(self.root, script) && self.root.text(script).is_ok_and(|text| is_it(&text)) {
                self.lines(script, is_it);
            }
        }
        for dir in ["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"] {
            for name in self.root.names(dir) {
                let path = format!("{dir}/{name}");
                if self.root.text(&path).is_ok_and(|text| is_it(&text)) {
                    self.lines(&path, |line| is_it(line) || line.trim_end().ends_with('\\'));
                }
            }
        }
        for dir in ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"] {
            for name in self.root.names(dir).into_iter().filter(|name| name.ends_with(".service")) {
                let path = format!("{dir}/{name}");
                if self.root.text(&path).is_ok_and(|text| is_it(&text)) {
                    self.lines(&path, |line| line.starts_with("ExecStart") && is_it(line));
                }
            }
            for service in self.root.names(dir).into_iter().filter(|name| name.ends_with(".service.d")) {
                for name in self.root.names(&format!("{dir}/{service}")) {
                    let path = format!("{dir}/{service}/{name}");
                    if self.root.text(&path).is_ok_and(|text| is_it(&text)) {
                        self.lines(&path, |line| line.starts_with("ExecStart") && is_it(line));
                    }
                }
            }
            for wants in self.root.names(dir).into_iter().filter(|name| name.ends_with(".wants")) {
                for unit in self.root.names(&format!("{dir}/{wants}")) {
                    if unit.contains("peermem") {
                        self.existence(&format!("{dir}/{wants}/{unit}"));
                    }
                }
            }
        }
    }
}
