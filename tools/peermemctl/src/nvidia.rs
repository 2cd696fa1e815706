// SPDX-License-Identifier: GPL-2.0
//! The GPU driver and the GPUs.

use crate::facts;
use crate::pci::{self, Device};
use crate::root::{Root, Silent};
use std::collections::BTreeMap;

/// PCI vendor id of NVIDIA.
pub const NVIDIA: u16 = 0x10de;
/// Class and subclass of GPUs with and without a display.
const DISPLAYS: [u32; 2] = [0x0300, 0x0302];

/// The two kinds of kernel modules that NVIDIA ships.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// Dual MIT/GPL; its exports are GPL-only.
    Open,
    /// Proprietary.
    Closed,
}

impl Flavour {
    pub fn text(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// The loaded `nvidia.ko`.
pub struct Driver {
    pub version: Option<String>,
    pub flavour: Option<Flavour>,
}

/// Returns the loaded driver, if there is one.
pub fn driver(root: &Root) -> Option<Driver> {
    let version_file = root.text("/proc/driver/nvidia/version").ok();
    if version_file.is_none() && !root.exists("/sys/module/nvidia") {
        return None;
    }
    let text = version_file.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    let is_version = |word: &&str| {
        word.contains('.')
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word.split('.').all(|n| n.parse::<u32>().is_ok())
    };
    let version =
        root.line("/sys/module/nvidia/version").or_else(|| text.split_whitespace().find(is_version).map(str::to_owned));
    let flavour = if text.contains("Open Kernel Module") {
        Some(Flavour::Open)
    } else if text.contains("Kernel Module") || root.line("/sys/module/nvidia/taint").is_some_and(|t| t.contains('P')) {
        Some(Flavour::Closed)
    } else {
        None
    };
    Some(Driver { version, flavour })
}

/// Returns the name that the GPU driver has for the GPU at `address`.
pub fn model(root: &Root, address: &str) -> Option<String> {
    let text = root.text_once(&format!("/proc/driver/nvidia/gpus/{address}/information")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(line.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns the number of the node in /dev of the GPU at `address`.
pub fn minor(root: &Root, address: &str) -> Option<u32> {
    let text = root.text_once(&format!("/proc/driver/nvidia/gpus/{address}/information")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?.trim().parse().ok()
}

/// Reads `/proc/driver/nvidia/params`.
pub fn params(root: &Root) -> BTreeMap<String, String> {
    let text = root.text_once("/proc/driver/nvidia/params").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

/// Returns the value of an option of nvidia.ko. A word of RegistryDwords overrides the option of that name ("Option:
/// RegistryDwords" in nv-reg.h).
pub fn option(root: &Root, name: &str) -> Option<u64> {
    let params = params(root);
    let number = |value: &str| match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    };
    let words = params.get("RegistryDwords").map_or("", |words| words.trim_matches('"'));
    let of_word = words.split(';').rev().find_map(|word| word_of(word, name));
    number(of_word.or_else(|| params.get(name).map(String::as_str))?)
}

/// Returns the value of a word `NAME=VALUE`, if it has that name.
pub fn word_of<'a>(word: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = word.split_once('=')?;
    (key.trim() == name).then(|| value.trim())
}

/// Returns whether a word of RegistryDwords sets an option.
pub fn is_of_words(root: &Root, name: &str) -> bool {
    let params = params(root);
    let words = params.get("RegistryDwords").map_or("", |words| words.trim_matches('"'));
    words.split(';').any(|word| word_of(word, name).is_some())
}

/// Returns where the value of an option was read.
pub fn place_of(root: &Root, name: &str, value: u64) -> String {
    match is_of_words(root, name) {
        true => format!("{name}={value} in RegistryDwords of /proc/driver/nvidia/params"),
        false => format!("{name}: {value} in /proc/driver/nvidia/params"),
    }
}

/// Returns whether nvidia.ko was told to leave the GPU at `address` alone.
pub fn is_excluded(root: &Root, address: &str) -> bool {
    let text = root.text_once(&format!("/proc/driver/nvidia/gpus/{address}/information")).unwrap_or_default();
    // The second is of old drivers.
    let is_it = |line: &str| {
        ["GPU Excluded:", "Blacklisted:"]
            .iter()
            .any(|key| line.strip_prefix(key).is_some_and(|value| value.trim() == "Yes"))
    };
    text.lines().any(is_it)
}

/// Returns NVIDIA's GPUs, and whatever else the driver drives.
pub fn gpus(devices: &[Device]) -> Vec<&Device> {
    devices
        .iter()
        .filter(|device| {
            device.driver.as_deref() == Some("nvidia") || (device.vendor == NVIDIA && DISPLAYS.contains(&device.kind()))
        })
        .collect()
}

/// Returns the size of BAR1, through which NICs reach video memory: BAR1 is the second 64-bit BAR
/// of NVIDIA's GPUs, and the largest of all.
pub fn bar1_size(gpu: &Device) -> u64 {
    gpu.bars.into_iter().max().unwrap_or(0)
}

/// A BAR1 up to this size holds no buffer of today's programs.
pub const SMALL_BAR1: u64 = 256 << 20;

/// Returns whether a GPU is of a generation that can make its BAR1 larger, from Ampere on: Turing's boards, whose
/// ids are in these two ranges, cannot.
pub fn may_resize_bar1(gpu: &Device) -> bool {
    gpu.vendor != NVIDIA || !(0x1e00..0x2080).contains(&gpu.device) && !(0x2180..0x2200).contains(&gpu.device)
}

/// Returns whether a board of that name has displays that can be switched off for a large BAR1.
pub fn has_display_modes(name: &str) -> bool {
    let words = |text: &str| format!(" {} ", text.replace(|c: char| !c.is_ascii_alphanumeric(), " "));
    facts::DISPLAY_MODE_BOARDS.iter().any(|board| words(name).contains(&words(board)))
}

/// Returns whether a GPU is older than Maxwell, so that drivers from 495 on do not support it any more
/// ([`crate::facts::LAST_OF_KEPLER`]). Maxwell's ids begin at 0x1340.
pub fn is_before_maxwell(gpu: &Device) -> bool {
    gpu.vendor == NVIDIA && gpu.device < 0x1340
}

/// Returns whether NVIDIA's open kernel modules know a GPU: they need what GPUs have from Turing on, whose ids
/// begin with 1e02 (the GPU System Processor).
pub fn has_open_modules(gpu: &Device) -> bool {
    gpu.vendor != NVIDIA || gpu.device >= 0x1e00
}

/// Returns whether a GPU may be one with NVLink 5, whose NVSwitches are no PCI functions: those of Blackwell for data
/// centres and later ones, whose ids begin with 2900.
pub fn may_have_nvlink5(gpu: &Device) -> bool {
    gpu.vendor == NVIDIA && gpu.kind() == 0x0302 && gpu.device >= 0x2900
}

/// The lines of nvidia-smi -q that stand in no block, or in one of which nothing else is looked at.
pub const LINES: [&str; 8] = [
    "Compute Mode",
    "Compute Instance ID",
    "Drain and Reset Recommended",
    "GPU C2C Mode",
    "GPU Instance ID",
    "GPU Recovery Action",
    "MIG Device",
    "Reset Required",
];

/// The block of nvidia-smi -q that tells how much memory of a GPU is protected.
pub const PROTECTED: &str = "Conf Compute Protected Memory Usage";

/// Returns the folder in which the GPU driver shows the MIG instances of the GPU at `address`.
pub fn mig_folder(root: &Root, address: &str) -> Option<String> {
    Some(format!("/proc/driver/nvidia/capabilities/gpu{}/mig", minor(root, address)?))
}

/// The file that has the minor number of each capability's node: `gpu0/gi1/ci0/access 13`. It has those of instances
/// that were not made, too.
pub const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";
/// The folder of these nodes, and the beginning of their names.
pub const CAPS: &str = "/dev/nvidia-caps";
pub const CAP: &str = "nvidia-cap";

/// Returns the nodes that a program opens to use a MIG instance of the GPU at `address`, for each instance with a
/// compute instance that was made: that of the first and that of the second.
pub fn mig_nodes(root: &Root, address: &str) -> Vec<[String; 2]> {
    let (Some(folder), Some(gpu)) = (mig_folder(root, address), minor(root, address)) else { return Vec::new() };
    let minors = root.text_once(MIG_MINORS).unwrap_or_default();
    let node = |capability: String| {
        let number = minors.lines().find_map(|line| line.strip_prefix(&capability)?.strip_prefix(' '))?;
        Some(format!("{CAPS}/{CAP}{}", number.trim()))
    };
    let named = |folder: &str, start: &str| {
        root.names(folder).into_iter().filter(|name| name.starts_with(start)).collect::<Vec<_>>()
    };
    let of_instance = |gi: String| {
        let all = named(&format!("{folder}/{gi}"), "ci").into_iter();
        let nodes = all.filter_map(|ci| {
            Some([node(format!("gpu{gpu}/{gi}/access"))?, node(format!("gpu{gpu}/{gi}/{ci}/access"))?])
        });
        nodes.collect::<Vec<_>>()
    };
    named(&folder, "gi").into_iter().flat_map(of_instance).collect()
}

/// The arguments with which `nvidia-smi` is asked for everything at once.
pub const SMI: &[&str] = &["-q"];

/// The facts that nvidia-smi tells of one GPU.
#[derive(Default)]
pub struct Told {
    /// The name, such as `NVIDIA GB10`.
    pub name: Option<String>,
    pub bar1: Option<Bar1>,
    /// `Enabled`, `Disabled` or `N/A`.
    pub mig: Option<String>,
    /// Whether it has an instance of MIG that CUDA finds.
    pub has_mig_device: bool,
    /// `Default`, `Exclusive_Process` or `Prohibited`.
    pub compute_mode: Option<String>,
    /// The action that it needs after a fault: `Reset`, `Reboot`, `Drain P2P`, ...
    pub recovery: Option<String>,
    /// Says whether the driver, from R570 on, reports that it needs none.
    pub is_recovered: bool,
    /// Whether it has a coherent link to the CPU: `Enabled`, `Disabled` or `N/A`.
    pub c2c: Option<String>,
    /// `None`, `Pass-Through`, `VGPU`, `Host VGPU` or `Host VSGA`.
    pub virtualization: Option<String>,
    pub fabric: Fabric,
    /// Whether memory of it is protected, as in the mode for confidential computing.
    pub protected: bool,
}

/// How far the registration of a GPU with the fabric of NVLink is.
#[derive(Clone, Default)]
pub struct Fabric {
    /// `Not Started`, `In Progress`, `Completed`, or `N/A` without NVSwitches; GPUs before Hopper have none.
    pub state: String,
    /// The end of the registration: `Success` or an error.
    pub status: String,
}

/// BAR1 in use, in bytes.
#[derive(Clone, Copy)]
pub struct Bar1 {
    pub total: u64,
    pub used: u64,
}

/// The words that nvidia-smi writes in the place of values of a GPU that has to be recovered: the words of NVML for
/// NVML_ERROR_RESET_REQUIRED and NVML_ERROR_GPU_IS_LOST, each with what recovers the GPU.
pub const LOST: [(&str, &str); 2] = [("GPU requires reset", "Reset"), ("GPU is lost", "Reboot")];

/// Asks nvidia-smi and returns what it tells of each GPU, by PCI address.
pub fn told(root: &Root) -> Result<BTreeMap<String, Told>, Silent> {
    let text = root.tool("nvidia-smi", SMI)?;
    let mut gpus: BTreeMap<String, Told> = BTreeMap::new();
    let (mut gpu, mut block, mut total) = (None, "", None);
    for line in text.lines() {
        if let Some(address) = line.strip_prefix("GPU ") {
            gpu = short_address(address.trim());
            continue;
        }
        if let Some(((_, action), gpu)) = LOST.iter().find(|(words, _)| line.contains(words)).zip(gpu.as_ref()) {
            let of: &mut Told = gpus.entry(gpu.clone()).or_default();
            of.recovery = Some((*action).to_owned());
            continue;
        }
        let Some((key, value)) = line.split_once(':') else {
            block = line.trim();
            continue;
        };
        let Some(gpu) = &gpu else { continue };
        let mebibytes = || value.trim().strip_suffix(" MiB")?.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << 20));
        let of = gpus.entry(gpu.clone()).or_default();
        match (block, key.trim()) {
            ("BAR1 Memory Usage", "Total") => total = mebibytes(),
            ("BAR1 Memory Usage", "Used") => {
                of.bar1 = total.zip(mebibytes()).map(|(total, used)| Bar1 { total, used });
            }
            (_, "Product Name") => of.name = Some(value.trim().to_owned()),
            (PROTECTED, "Total") => of.protected = mebibytes().is_some_and(|bytes| bytes > 0),
            ("MIG Mode", "Current") => of.mig = Some(value.trim().to_owned()),
            ("MIG Device", "Compute Instance ID") => of.has_mig_device = true,
            (_, "Compute Mode") => of.compute_mode = Some(value.trim().to_owned()),
            (_, "GPU C2C Mode") => of.c2c = Some(value.trim().to_owned()),
            (_, "GPU Recovery Action") => {
                of.recovery = recovery(value).or(of.recovery.take());
                of.is_recovered = value.trim() == "None";
            }
            // Drivers before R570 have these in its place.
            (_, "Reset Required") if value.trim() == "Yes" => of.recovery = Some("Reset".to_owned()),
            (_, "Drain and Reset Recommended") if value.trim() == "Yes" => {
                of.recovery = Some("Drain and Reset".to_owned());
            }
            ("Fabric", "State") => of.fabric.state = value.trim().to_owned(),
            ("Fabric", "Status") => of.fabric.status = value.trim().to_owned(),
            ("GPU Virtualization Mode", "Virtualization Mode") => of.virtualization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Ok(gpus)
}

/// Returns what a GPU needs after a fault, unless that is nothing, or not known.
fn recovery(value: &str) -> Option<String> {
    const ACTIONS: [&str; 6] = ["reset", "reboot", "drain", "recover", "flr", "imex"];
    let words = value.to_lowercase();
    ACTIONS.iter().any(|action| words.contains(action)).then(|| value.trim().to_owned())
}

/// Returns whether a GPU tells of its registration with the fabric of NVLink, as those from Hopper on do.
pub fn tells_of_fabric(gpu: &Device) -> bool {
    const HOPPER: u16 = 0x2300;
    gpu.vendor == NVIDIA && gpu.device >= HOPPER
}

/// Shortens an address of nvidia-smi, which writes domains with eight digits and upper case.
fn short_address(long: &str) -> Option<String> {
    let (domain, rest) = long.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let address = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
    pci::is_address(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_registry_dwords_override_options() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("proc/driver/nvidia/params");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let judge = |text: &str| {
            std::fs::write(&file, text).unwrap();
            option(&Root::new(dir.path()), "DmaRemapPeerMmio")
        };
        assert_eq!(judge("DmaRemapPeerMmio: 1\nRegistryDwords: \"\"\n"), Some(1));
        assert_eq!(judge("DmaRemapPeerMmio: 1\nRegistryDwords: \"ForceP2P=0x11; DmaRemapPeerMmio=0x0\"\n"), Some(0));
        assert_eq!(judge("RegistryDwords: \"NoDmaRemapPeerMmio=1;DmaRemapPeerMmio\"\n"), None);
    }

    #[test]
    fn recovery_is_what_asks_for_something() {
        for (value, asks) in [
            (" None", false),
            (" N/A", false),
            (" Requested functionality has been deprecated", false),
            (" Reset", true),
            (" Reboot", true),
            (" Drain P2P", true),
            (" Recover IMEX Domain", true),
        ] {
            assert_eq!(recovery(value).as_deref(), asks.then_some(value.trim()), "{value}");
        }
    }

    /// Each name stands whole: an A4000 is no A40, and a Quadro RTX 6000 no RTX 6000 Ada.
    #[test]
    fn boards_whose_displays_can_be_switched_off() {
        for (name, wanted) in [
            ("NVIDIA A40", true),
            ("GA102GL [RTX A5000]", true),
            ("NVIDIA RTX 5000 Ada Generation", true),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", true),
            ("AD102GL [L40S]", true),
            ("NVIDIA RTX A4000", false),
            ("NVIDIA RTX 4000 Ada Generation", false),
            ("TU102GL [Quadro RTX 6000/8000]", false),
            ("Tesla T4", false),
        ] {
            assert_eq!(has_display_modes(name), wanted, "{name}");
        }
    }
}
