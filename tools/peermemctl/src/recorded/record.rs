// SPDX-License-Identifier: GPL-2.0
//! Records what this program looks at on a machine as one text file.
//!
//! Read-only. What is personal or not needed is left out on the way: serial numbers, MAC addresses
//! and GUIDs are not kept, of GIDs only whether a port has one, of logs and configuration only the lines about GPUs and RDMA are kept,
//! of module files only .modinfo, the names that matter and who signed. tree.rs describes the
//! format.

use crate::doctor::hardware::MASTER;
use crate::doctor::limits::DKMS;
use crate::doctor::log::{LIBCUDA, LIBRARIES};
use crate::giver::device_nodes;
use crate::kernel;
use crate::log_words;
use crate::machine::{NAME, PEERS, REGISTER};
use crate::modprobe::{MODPROBE, MODULES_LOAD};
use crate::module_file::{self, upkeep, ModuleFile, PROVIDERS};
use crate::nvidia::{CAPS, LINES, LOST, PROTECTED, SMI};
use crate::pci;
use crate::rdma;
use crate::root::{recorded_name, Root, FORBIDDEN, TOOLS};
use crate::ucx_conf;
use std::collections::BTreeSet;
use std::fs;

/// Returns the machine as text; `about` says what is wrong with it.
pub fn record(root: &Root, about: &str) -> String {
    let mut recorder = Recorder { root, done: BTreeSet::new(), text: format!("# {}\n", about.replace('\n', " ")) };
    recorder.all();
    recorder.text
}

/// What a recording has in the place of the GIDs of a port: that of 192.0.2.1, which is nobody's address.
const SOME_GID: &str = "0000:0000:0000:0000:0000:ffff:c000:0201";

pub(super) struct Recorder<'a> {
    pub(super) root: &'a Root,
    done: BTreeSet<String>,
    text: String,
}

/// Returns whether a line of modules.dep is about a module that this program looks at.
fn is_looked_at(line: &str) -> bool {
    let file = line.split(':').next().unwrap_or_default();
    let file = file.rsplit('/').next().unwrap_or_default();
    ["nvidia", "ib_", "mlx", "bnxt_re", "irdma", "efa", "erdma", "mana", "ionic", "rdma_rxe", "siw", "nv_peer"]
        .iter()
        .any(|name| file.starts_with(name))
}

/// Returns those blocks of nvidia-smi's output that this program looks at. The rest has serial
/// numbers, processes and the id of a cluster.
fn of_smi(text: &str) -> String {
    let mut kept = String::new();
    let (mut in_block, mut in_fabric) = (false, false);
    for line in text.split_inclusive('\n') {
        let depth = line.len() - line.trim_start().len();
        if depth < 8 {
            in_block = ["BAR1 Memory Usage", "MIG Mode", "GPU Virtualization Mode", PROTECTED].contains(&line.trim());
            in_fabric = line.trim() == "Fabric";
        }
        let of_fabric = in_fabric && ["Fabric", "State ", "Status "].iter().any(|word| line.trim().starts_with(word));
        let is_of_lines = LINES.iter().any(|start| line.trim().starts_with(start));
        let is_lost = LOST.iter().any(|(words, _)| line.contains(words));
        if in_block
            || of_fabric
            || is_of_lines
            || is_lost
            || line.starts_with("GPU ")
            || line.trim().starts_with("Product Name ")
        {
            kept += line;
        }
    }
    kept
}

/// Zeroes what follows id, next and length of each vendor-specific capability.
fn clear_vendors_words(config: &mut [u8]) {
    const VENDOR_SPECIFIC: u8 = 0x09;
    let mut at = usize::from(config.get(0x34).copied().unwrap_or(0));
    for _ in 0..48 {
        let Some(&[id, next, length]) = config.get(at..at + 3).and_then(|head| head.first_chunk()) else { break };
        if at == 0 {
            break;
        }
        if id == VENDOR_SPECIFIC {
            if let Some(body) = config.get_mut(at + 3..at + usize::from(length)) {
                body.fill(0);
            }
        }
        at = usize::from(next);
    }
}

impl Recorder<'_> {
    /// Returns whether a file is recorded.
    pub(super) fn has(&self, path: &str) -> bool {
        self.done.contains(path)
    }

    fn say(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(super) fn text(&mut self, path: &str, text: &str) {
        if !self.done.insert(path.to_owned()) {
            return;
        }
        self.say(&format!("F {path}"));
        for line in text.split_inclusive('\n') {
            match line.strip_suffix('\n') {
                Some(line) => self.say(&format!("|{line}")),
                None => self.say(&format!("\\{line}")),
            }
        }
    }

    pub(super) fn file(&mut self, path: &str) {
        if let Ok(text) = self.root.text(path) {
            self.text(path, &text);
        }
    }

    /// Records those lines of a file that `keep` accepts.
    pub(super) fn lines(&mut self, path: &str, keep: impl Fn(&str) -> bool) {
        if let Ok(text) = self.root.text(path) {
            let kept: String = text.split_inclusive('\n').filter(|line| keep(line)).collect();
            self.text(path, &kept);
        }
    }

    /// Records a PCI configuration space. A device that is no bridge may have a serial number
    /// beyond the first bytes, or in words of the vendor's own, so these are left out.
    fn config(&mut self, path: &str, is_bridge: bool) {
        if let Ok(mut bytes) = self.root.bytes(path) {
            if !is_bridge {
                bytes.truncate(256);
                clear_vendors_words(&mut bytes);
            }
            self.say(&format!("H {path} {}", bytes.len()));
            for (n, line) in bytes.chunks(32).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
                self.say(&format!(
                    "|{:04x} {}",
                    n * 32,
                    line.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
                ));
            }
        }
    }

    pub(super) fn link(&mut self, path: &str) -> bool {
        let Ok(target) = fs::read_link(self.root.at(path)) else { return false };
        if self.done.insert(path.to_owned()) {
            self.say(&format!("L {path} -> {}", target.display()));
        }
        true
    }

    pub(super) fn existence(&mut self, path: &str) {
        if self.root.exists(path) {
            self.say(&format!("E {path}"));
        }
    }

    fn all(&mut self) {
        self.proc();
        self.setting();
        self.loaders();
        self.pci();
        self.rdma();
        self.modules();
        self.configuration();
        for name in self.root.names("/dev") {
            if name.starts_with("nvidia") {
                self.existence(&format!("/dev/{name}"));
            }
        }
        for name in self.root.names("/dev/infiniband") {
            self.existence(&format!("/dev/infiniband/{name}"));
        }
        let caps: Vec<String> = self.root.names(CAPS).into_iter().map(|name| format!("{CAPS}/{name}")).collect();
        for path in &caps {
            self.existence(path);
        }
        let closed = device_nodes(self.root).into_iter().map(|path| (self.root.forbidden(&path), path));
        let closed = closed.chain(caps.into_iter().map(|path| (self.root.forbidden_to_read(&path), path)));
        let forbidden: String = closed.filter_map(|(why, path)| Some(format!("{} {path}\n", why?.text()))).collect();
        if !forbidden.is_empty() {
            self.text(&format!("{TOOLS}/{FORBIDDEN}"), &forbidden);
        }
        for folder in LIBRARIES {
            for name in self.root.names(folder).into_iter().filter(|name| name.starts_with(LIBCUDA)) {
                self.existence(&format!("{folder}/{name}"));
            }
        }
        if let Ok((log, _)) = self.root.kernel_log() {
            let kept: String = log.split_inclusive('\n').filter(|line| log_words::is_on_topic(line)).collect();
            self.text("/dev/kmsg", &kept);
        }
        if let Ok(text) = self.root.tool("nvidia-smi", SMI) {
            self.text(&format!("{TOOLS}/{}", recorded_name("nvidia-smi", SMI)), &of_smi(&text));
        }
    }

    fn proc(&mut self) {
        for path in [
            "/proc/modules",
            "/proc/sys/kernel/osrelease",
            "/proc/sys/kernel/numa_balancing",
            "/proc/sys/kernel/modules_disabled",
            "/proc/sys/kernel/tainted",
            "/proc/self/limits",
            "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
            "/proc/driver/nvidia/version",
            "/proc/driver/nvidia/params",
            "/etc/nccl.conf",
            ucx_conf::SYSTEM,
        ] {
            self.file(path);
        }
        self.lines("/proc/kallsyms", |line| line.split_ascii_whitespace().nth(2).is_some_and(kernel::is_wanted));
        let mut pids = BTreeSet::new();
        for name in self.root.names("/proc/driver/nvidia-peermem") {
            let path = format!("/proc/driver/nvidia-peermem/{name}");
            let text = self.root.text(&path).unwrap_or_default();
            let pid = |line: &str| line.split(' ').find_map(|field| field.strip_prefix("pid=")).map(str::to_owned);
            pids.extend(text.lines().filter_map(pid));
            self.file(&path);
        }
        for pid in self.root.names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            for fd in self.root.names(&format!("/proc/{pid}/fd")) {
                let path = format!("/proc/{pid}/fd/{fd}");
                let target = fs::read_link(self.root.at(&path)).unwrap_or_default();
                if target.to_string_lossy().contains("/dev/infiniband/uverbs") {
                    pids.insert(pid.clone());
                    self.link(&path);
                }
            }
        }
        for pid in pids {
            for file in ["comm", "limits"] {
                self.file(&format!("/proc/{pid}/{file}"));
            }
            self.file(&format!("/proc/{pid}/status"));
        }
    }

    fn pci(&mut self) {
        const DEVICES: &str = "/sys/bus/pci/devices";
        for address in self.root.names(DEVICES) {
            let dir = format!("{DEVICES}/{address}");
            let class = self.root.line(&format!("{dir}/class")).unwrap_or_default();
            let is_bridge = class.starts_with("0x06");
            let id = |name: &str| self.root.line(&format!("{dir}/{name}")).unwrap_or_default();
            let is_direct = (id("vendor").as_str(), id("device").as_str()) == pci::DMA_DIRECT_FILES;
            let is_ours = is_direct || self.root.link_name(&format!("{dir}/driver")).as_deref() == Some("nvidia");
            if !(is_bridge || is_ours || class.starts_with("0x02") || class.starts_with("0x03")) {
                continue;
            }
            self.link(&dir);
            let Some(real) = self.root.resolved(&dir) else { continue };
            for name in [
                "vendor",
                "device",
                "class",
                "resource",
                "numa_node",
                "current_link_speed",
                "current_link_width",
                "max_link_speed",
                "max_link_width",
            ] {
                self.file(&format!("{real}/{name}"));
            }
            self.link(&format!("{real}/driver"));
            if self.link(&format!("{real}/iommu_group")) {
                if let Some(group) = self.root.resolved(&format!("{real}/iommu_group")) {
                    self.file(&format!("{group}/type"));
                }
            }
            for name in self.root.names(&format!("{real}/net")) {
                self.link(&format!("{real}/net/{name}/{MASTER}"));
            }
            // A device that manages NVSwitches says so here, also without an RDMA device. The rest has serial numbers.
            let data = format!("{real}/{}", rdma::PRODUCT_DATA);
            if class.starts_with("0x0207") && self.root.text(&data).is_ok_and(|t| t.contains(rdma::MANAGES_SWITCHES)) {
                self.text(&data, rdma::MANAGES_SWITCHES);
            }
            self.config(&format!("{real}/config"), is_bridge);
        }
    }

    fn rdma(&mut self) {
        for name in self.root.names("/sys/class/infiniband") {
            let dir = format!("/sys/class/infiniband/{name}");
            self.link(&dir);
            let Some(real) = self.root.resolved(&dir) else { continue };
            self.link(&format!("{real}/device"));
            self.file(&format!("{real}/parent"));
            self.file(&format!("{real}/{}", rdma::KIND));
            if let Some(netdev) = self.root.line(&format!("{real}/parent")) {
                let net = format!("/sys/class/net/{netdev}");
                self.link(&net);
                if let Some(real) = self.root.resolved(&net) {
                    self.link(&format!("{real}/device"));
                    if let Some(device) = self.root.resolved(&format!("{real}/device")) {
                        self.existence(&format!("{device}/uevent"));
                    }
                }
            }
            for port in self.root.names(&format!("{real}/ports")) {
                for file in ["state", "phys_state", "link_layer", "rate"] {
                    self.file(&format!("{real}/ports/{port}/{file}"));
                }
                // A GID has the address of an interface.
                if let Some(has_gid) = rdma::has_gid(self.root, &format!("{real}/ports/{port}")) {
                    let gid = if has_gid { SOME_GID } else { rdma::NO_GID };
                    self.text(&format!("{real}/ports/{port}/gids/0"), &format!("{gid}\n"));
                }
            }
        }
        for node in self.root.names(rdma::VERBS) {
            self.file(&format!("{}/{node}/ibdev", rdma::VERBS));
        }
        for client in self.root.names(PEERS) {
            for file in self.root.names(&format!("{PEERS}/{client}")) {
                self.file(&format!("{PEERS}/{client}/{file}"));
            }
        }
    }

    fn modules(&mut self) {
        for module in
            ["nvidia", NAME, "ib_core", "ib_uverbs", "mlx5_core", "rdma_rxe", "siw", "nv_peer_mem", "efa_nv_peermem"]
        {
            let dir = format!("/sys/module/{module}");
            for file in ["version", "srcversion", "taint", "refcnt", "initstate"] {
                self.file(&format!("{dir}/{file}"));
            }
            if module == NAME {
                for parameter in self.root.names(&format!("{dir}/parameters")) {
                    self.file(&format!("{dir}/parameters/{parameter}"));
                }
            }
        }
        self.file("/sys/module/module/parameters/sig_enforce");
        self.file("/sys/kernel/security/lockdown");
        for release in self.root.names("/lib/modules") {
            let list = format!("/lib/modules/{release}/modules.dep");
            self.lines(&list, is_looked_at);
            self.lines(&format!("/lib/modules/{release}/modules.builtin"), is_looked_at);
        }
        let Some(release) = kernel::release(self.root) else { return };
        if let Some((file, _)) = kernel::configuration(self.root, &release) {
            self.lines(&file, kernel::is_of_configuration);
        }
        for other in kernel::others_that_export(self.root, &release, REGISTER) {
            for sources in kernel::OFED_SOURCES {
                for part in ["", "/x86_64", "/aarch64"] {
                    self.existence(&format!("{sources}{part}/{other}/Module.symvers"));
                }
            }
            self.lines(&format!("{}/modules.symbols", kernel::modules_dir(&other)), |line| {
                kernel::exported_symbol(line) == Some(REGISTER)
            });
        }
        self.lines(&format!("{}/modules.symbols", kernel::modules_dir(&release)), |line| {
            kernel::exported_symbol(line) == Some(REGISTER)
        });
        let mut paths = module_file::all(self.root, &release, NAME);
        let drivers =
            ["nvidia", "rdma_rxe", "mlx5_ib", "mlx4_ib", "bnxt_re", "irdma", "efa", "erdma", "mana_ib", "ionic_rdma"];
        for module in drivers.iter().chain(PROVIDERS.iter().filter(|name| !drivers.contains(*name))) {
            paths.extend(module_file::chosen(self.root, &release, module));
        }
        let files: Vec<ModuleFile> = paths.iter().filter_map(|path| ModuleFile::read(self.root, path).ok()).collect();
        let of_us = |path: &str| path.rsplit('/').next().is_some_and(|name| name.replace('-', "_").starts_with(NAME));
        let wanted: BTreeSet<String> =
            files.iter().filter(|file| of_us(&file.path)).flat_map(|file| file.versions.keys().cloned()).collect();
        let exported: BTreeSet<String> = files.iter().flat_map(|file| file.exports.keys().cloned()).collect();
        for file in files {
            let path = &file.path;
            self.say(&format!("M {path}"));
            for key in ["description", "license", "version", "srcversion", "softdep", "vermagic"] {
                if let Some(value) = file.field(key) {
                    self.say(&format!("|{key}={value}"));
                }
            }
            let matters = |name: &&String| {
                kernel::is_wanted(name) || name.starts_with("nvidia_p2p_") || name.starts_with("ib_umem_dmabuf_get")
            };
            for name in file.needs.iter().filter(matters) {
                self.say(&format!("|needs {name}"));
            }
            if let Some(name) = file.needs.iter().find(|name| name.starts_with("_R") && name.contains("6kernel")) {
                self.say(&format!("|needs {name}"));
            }
            let is_of_us = of_us(&file.path);
            for (name, version) in file.versions.iter().filter(|(name, _)| is_of_us && exported.contains(*name)) {
                self.say(&format!("|wants {name} {version:08x}"));
            }
            for (name, version) in file.exports.iter().filter(|(name, _)| wanted.contains(*name)) {
                self.say(&format!("|exports {name} {version:08x}"));
            }
            if let Some(signature) = file.signature {
                self.say(&format!("|signer {}", signature.signer.unwrap_or_default()));
            }
        }
    }

    fn configuration(&mut self) {
        let of_modules = MODPROBE.iter().chain(&MODULES_LOAD).copied();
        for dir in of_modules.chain(["/etc/depmod.d", "/etc/security/limits.d"]) {
            // /lib may be a link to /usr/lib.
            let names = self.root.names(dir).into_iter().filter(|_| self.root.resolved(dir).as_deref() == Some(dir));
            for name in names.collect::<Vec<_>>() {
                let path = format!("{dir}/{name}");
                let ours = self.root.text(&path).is_ok_and(|text| text.contains("peermem"));
                let goes_on = |line: &str| ours && line.trim_end().ends_with('\\');
                self.lines(&path, |line| log_words::is_on_topic(line) || goes_on(line));
            }
        }
        for package in self.root.names(DKMS) {
            for version in self.root.names(&format!("{DKMS}/{package}")) {
                for kernel in self.root.names(&format!("{DKMS}/{package}/{version}")) {
                    self.existence(&format!("{DKMS}/{package}/{version}/{kernel}"));
                }
            }
        }
        self.existence(&upkeep());
        self.lines("/etc/modules", log_words::is_on_topic);
        let is_memlock = |line: &str| line.starts_with("DefaultLimitMEMLOCK");
        self.lines("/etc/systemd/system.conf", is_memlock);
        for name in self.root.names("/etc/systemd/system.conf.d") {
            self.lines(&format!("/etc/systemd/system.conf.d/{name}"), is_memlock);
        }
        self.lines("/etc/security/limits.conf", |line| line.contains("memlock"));
    }
}
