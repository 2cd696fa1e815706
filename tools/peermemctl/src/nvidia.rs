// SPDX-License-Identifier: GPL-2.0
//! The GPU driver and the GPUs.

use crate::pci::{self, Device};
use crate::root::Root;
use std::collections::BTreeMap;

/// PCI vendor id of NVIDIA.
const NVIDIA: u16 = 0x10de;
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

/// The driver that is loaded, if one is.
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

/// `/proc/driver/nvidia/params`.
pub fn params(root: &Root) -> BTreeMap<String, String> {
    let text = root.text("/proc/driver/nvidia/params").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

/// GPUs of NVIDIA, and whatever else the driver drives.
pub fn gpus(devices: &[Device]) -> Vec<&Device> {
    devices
        .iter()
        .filter(|device| {
            device.driver.as_deref() == Some("nvidia") || (device.vendor == NVIDIA && DISPLAYS.contains(&device.kind()))
        })
        .collect()
}

/// Size of BAR1, through which NICs reach video memory: the second 64-bit BAR of NVIDIA's GPUs, and the largest of all.
pub fn bar1_size(gpu: &Device) -> u64 {
    gpu.bars.into_iter().max().unwrap_or(0)
}

/// BAR1 in use, as the driver tells.
pub struct Bar1 {
    pub total: u64,
    pub used: u64,
}

/// BAR1 use of each GPU by PCI address, from `nvidia-smi`; empty where that is not installed.
pub fn bar1_use(root: &Root) -> BTreeMap<String, Bar1> {
    let text = root.tool("nvidia-smi", &["-q", "-d", "MEMORY"]).unwrap_or_default();
    let mut uses = BTreeMap::new();
    let (mut gpu, mut in_bar1, mut total) = (None, false, None);
    for line in text.lines() {
        let mebibytes = |value: &str| {
            value.trim().strip_suffix(" MiB").and_then(|n| n.parse::<u64>().ok()).and_then(|n| n.checked_mul(1 << 20))
        };
        if let Some(address) = line.strip_prefix("GPU ") {
            gpu = short_address(address.trim());
        } else if let Some((key, value)) = line.split_once(':') {
            match (in_bar1, key.trim(), mebibytes(value)) {
                (true, "Total", size) => total = size,
                (true, "Used", Some(used)) => {
                    if let (Some(gpu), Some(total)) = (gpu.clone(), total) {
                        uses.insert(gpu, Bar1 { total, used });
                    }
                }
                _ => {}
            }
        } else {
            in_bar1 = line.trim() == "BAR1 Memory Usage";
        }
    }
    uses
}

/// nvidia-smi writes domains with eight digits and upper case.
fn short_address(long: &str) -> Option<String> {
    let (domain, rest) = long.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let address = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
    pci::is_address(&address).then_some(address)
}
