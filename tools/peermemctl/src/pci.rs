// SPDX-License-Identifier: GPL-2.0
//! PCI: who sits where, what the way between two devices looks like, and what is in the way.

use crate::root::Root;
use pci_ids::FromId;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

pub const DEVICES: &str = "/sys/bus/pci/devices";

/// One PCI function.
#[derive(Clone, Debug)]
pub struct Device {
    /// The address, such as `0000:01:00.0`.
    pub address: String,
    pub vendor: u16,
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    pub driver: Option<String>,
    /// Host bridge (`pci0000:00`), then the bridges down to this device.
    pub way: Vec<String>,
    /// NUMA node, where the firmware tells.
    pub numa: Option<i32>,
    pub link: Option<Link>,
    /// Sizes of the six BARs in bytes, 0 for none and for the upper half of a 64-bit one.
    pub bars: [u64; 6],
    pub iommu: Iommu,
    /// Number of its IOMMU group.
    pub iommu_group: Option<String>,
    /// Whether it answers nothing: then every byte of its configuration space is 0xff.
    pub is_gone: bool,
}

/// A PCIe link, as it is and as it could be.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    pub speed: String,
    pub speed_max: String,
    pub width: u32,
    pub width_max: u32,
}

/// The treatment of a device's DMA by the IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iommu {
    /// There is none, or it is off.
    Off,
    /// It lets addresses through unchanged.
    Identity,
    /// It translates.
    Translating,
    /// There is one, and it does not say what it does.
    Unknown,
}

impl Iommu {
    pub fn text(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Identity => "identity",
            Self::Translating => "translates",
            Self::Unknown => "unknown",
        }
    }
}

/// How far two devices are from each other; the words of `nvidia-smi topo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// One bridge or switch at the most.
    Pix,
    /// Several bridges, but not the host's.
    Pxb,
    /// Through the host bridge.
    Phb,
    /// Through two host bridges of one NUMA node.
    Node,
    /// From one NUMA node to another.
    Sys,
}

impl Distance {
    pub fn text(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Pix => "through one bridge or switch",
            Self::Pxb => "through several bridges, none of them the host's",
            Self::Phb => "through the host bridge (CPU)",
            Self::Node => "through two host bridges of one NUMA node",
            Self::Sys => "from one NUMA node to another",
        }
    }
}

/// The way between two devices.
pub struct Way {
    pub distance: Distance,
    /// The bridge below which both lie, which for the host bridge is `pci0000:00`; `None` if they
    /// do not even share that.
    pub meet: Option<String>,
    /// The bridges between either device and the meeting point, which is not among them.
    pub between: Vec<String>,
}

impl Way {
    /// Returns whether traffic can turn round below the host bridge, so that ACS there matters.
    pub fn shares_a_switch(&self) -> bool {
        self.distance <= Distance::Pxb
    }
}

/// The ACS bits of a bridge that matter for peer-to-peer traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acs {
    /// It has none, or they are off: traffic between devices below it turns round at it.
    Direct,
    /// It sends traffic between devices below it up to the host.
    Redirects,
    /// Its configuration space beyond the first bytes could not be read.
    Unreadable,
}

/// Returns whether a word is a PCI address: `0000:01:00.0`, with more digits in front for domains
/// above 16 bits.
pub fn is_address(word: &str) -> bool {
    let mut parts = word.split([':', '.']);
    let mut hex = |shortest: usize| {
        parts.next().is_some_and(|part| part.len() >= shortest && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    word.contains('.') && hex(4) && hex(2) && hex(2) && hex(1) && parts.next().is_none()
}

fn hex(root: &Root, path: &str) -> Option<u64> {
    u64::from_str_radix(root.line(path)?.trim_start_matches("0x"), 16).ok()
}

/// Returns all PCI functions in the order of their addresses.
pub fn devices(root: &Root) -> Vec<Device> {
    root.names(DEVICES).iter().filter_map(|address| device(root, address)).collect()
}

/// Reads one PCI function.
pub fn device(root: &Root, address: &str) -> Option<Device> {
    let dir = format!("{DEVICES}/{address}");
    let resolved = root.resolved(&dir)?;
    let mut way: Vec<String> =
        resolved.split('/').filter(|part| part.starts_with("pci") || is_address(part)).map(str::to_owned).collect();
    way.pop();
    let port = way.last().map(|port| format!("{DEVICES}/{port}"));
    Some(Device {
        address: address.to_owned(),
        vendor: u16::try_from(hex(root, &format!("{dir}/vendor"))?).ok()?,
        device: u16::try_from(hex(root, &format!("{dir}/device"))?).ok()?,
        class: u32::try_from(hex(root, &format!("{dir}/class"))?).ok()?,
        driver: root.link_name(&format!("{dir}/driver")),
        way,
        numa: root.line(&format!("{dir}/numa_node")).and_then(|node| node.parse().ok()).filter(|node| *node >= 0),
        link: link(root, &dir, port.as_deref()),
        bars: bars(root, &dir),
        iommu: iommu(root, &dir),
        iommu_group: root.link_name(&format!("{dir}/iommu_group")),
        is_gone: is_gone(root, &dir),
    })
}

/// Returns whether the GPU or NIC in a folder answers nothing. Each byte of a configuration space takes its
/// time, so others are not asked.
fn is_gone(root: &Root, dir: &str) -> bool {
    let class = root.line(&format!("{dir}/class")).unwrap_or_default();
    let is_asked = ["0x02", "0x03"].iter().any(|kind| class.starts_with(kind));
    let config = is_asked.then(|| root.bytes(&format!("{dir}/config")).ok()).flatten().unwrap_or_default();
    // A virtual function has ones in its first four bytes (PCI Express Base Specification, SR-IOV).
    config.len() >= 64 && config.iter().take(64).all(|byte| *byte == 0xff)
}

/// Reads the link of the device in a folder, which no slot makes faster than the `port` above can be.
fn link(root: &Root, dir: &str, port: Option<&str>) -> Option<Link> {
    let number = |name: &str| root.line(&format!("{dir}/{name}"))?.parse::<u32>().ok();
    // "16.0 GT/s PCIe"; "Unknown" where there is no real link (emulated devices).
    let speed = |dir: &str, name: &str| root.line(&format!("{dir}/{name}")).filter(|speed| speed.contains("GT/s"));
    let rate = |speed: &str| speed.split(' ').next().and_then(|rate| rate.parse::<f64>().ok()).unwrap_or(f64::MAX);
    let (now, own) = (speed(dir, "current_link_speed")?, speed(dir, "max_link_speed")?);
    let of_port = port.and_then(|port| speed(port, "max_link_speed"));
    // An emulated port may tell a speed that is less than the present one.
    let of_port = of_port.filter(|port| rate(port) < rate(&own) && rate(port) >= rate(&now));
    let link = Link {
        speed: now,
        speed_max: of_port.unwrap_or(own),
        width: number("current_link_width")?,
        width_max: number("max_link_width")?,
    };
    (link.width > 0 && link.width_max < 255).then_some(link)
}

fn bars(root: &Root, dir: &str) -> [u64; 6] {
    let mut bars = [0; 6];
    let text = root.text(&format!("{dir}/resource")).unwrap_or_default();
    for (bar, line) in bars.iter_mut().zip(text.lines()) {
        let mut numbers =
            line.split_ascii_whitespace().map(|n| u64::from_str_radix(n.trim_start_matches("0x"), 16).unwrap_or(0));
        let (start, end) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if end > start {
            *bar = end - start + 1;
        }
    }
    bars
}

fn iommu(root: &Root, dir: &str) -> Iommu {
    let group = format!("{dir}/iommu_group");
    if !root.exists(&group) {
        return Iommu::Off;
    }
    match root.line(&format!("{group}/type")).as_deref() {
        Some("identity") => Iommu::Identity,
        Some("DMA" | "DMA-FQ") => Iommu::Translating,
        _ => Iommu::Unknown,
    }
}

/// The vendor and device ids of a ConnectX's function for Data Direct; the second constant has them
/// as sysfs writes them.
const DMA_DIRECT: (u16, u16) = (0x15b3, 0x2100);
pub const DMA_DIRECT_FILES: (&str, &str) = ("0x15b3", "0x2100");

/// Returns whether a driver is VFIO's or a variant of it (drivers/vfio/pci of Linux).
pub fn is_of_vfio(driver: &str) -> bool {
    driver.replace('-', "_").ends_with("vfio_pci")
}

impl Device {
    /// Returns class and subclass.
    pub fn kind(&self) -> u32 {
        self.class >> 8
    }

    /// Returns whether the function is a root port of NVIDIA's Grace, whose GPUs have a coherent
    /// link (NVLink-C2C) to it. The ids are those of rdma-core's kernel-boot/rdma_topo
    /// (0434340c3bdb).
    pub fn is_grace_port(&self) -> bool {
        self.vendor == 0x10de && matches!(self.device, 0x22b1 | 0x22b2 | 0x22b8)
    }

    /// Returns whether this is the function by which a ConnectX reaches a GPU beside the CPU (DMA
    /// Direct). Its id is that of the same file.
    pub fn is_dma_direct(&self) -> bool {
        (self.vendor, self.device) == DMA_DIRECT
    }

    /// Returns whether this is a function of a BlueField, which has an Arm system of its own.
    pub fn is_bluefield(&self) -> bool {
        self.vendor == 0x15b3 && matches!(self.device, 0xa2d2 | 0xa2d6 | 0xa2d9 | 0xa2dc | 0xa2df)
    }

    /// Returns the driver that has the function for virtual machines: that of VFIO, or a variant of it for one kind of
    /// device, whose name ends like VFIO's (mlx5_vfio_pci, nvgrace_gpu_vfio_pci), that of Xen, or pci-stub.
    pub fn driver_for_guests(&self) -> Option<&str> {
        let is_it = |driver: &&str| is_of_vfio(driver) || ["pciback", "pci-stub"].contains(driver);
        self.driver.as_deref().filter(is_it)
    }

    /// Returns whether the list of PCI ids has its name.
    pub fn has_known_name(&self) -> bool {
        self.known_name().is_some()
    }

    /// Returns the name that the list of PCI ids has. Each pair of GPU and NIC asks for it, and the list is long.
    fn known_name(&self) -> Option<&'static str> {
        static KNOWN: Mutex<BTreeMap<(u16, u16), Option<&'static str>>> = Mutex::new(BTreeMap::new());
        let find = || pci_ids::Device::from_vid_pid(self.vendor, self.device).map(pci_ids::Device::name);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry((self.vendor, self.device)).or_insert_with(find)
    }

    /// Returns the name of the device.
    pub fn name(&self) -> String {
        match self.known_name() {
            Some(name) => name.to_owned(),
            None => match pci_ids::Vendor::from_id(self.vendor) {
                Some(vendor) => format!("{} {:04x}", vendor.name(), self.device),
                None => format!("{:04x}:{:04x}", self.vendor, self.device),
            },
        }
    }

    /// Returns the way to `other`.
    pub fn way_to(&self, other: &Self) -> Way {
        let shared = self.shared_with(other);
        let rest = |device: &Self| device.way.iter().skip(shared).cloned().collect::<Vec<_>>();
        let (mine, theirs) = (rest(self), rest(other));
        let meet = shared.checked_sub(1).and_then(|last| self.way.get(last)).cloned();
        let between = mine.into_iter().chain(theirs).filter(|part| is_address(part)).collect();
        Way { distance: self.distance_to(other), meet, between }
    }

    /// Returns how far another device is. Each pair of GPU and NIC is asked for it, many times.
    pub fn distance_to(&self, other: &Self) -> Distance {
        let shared = self.shared_with(other);
        match shared {
            // Where the firmware does not tell nodes apart there is one.
            0 if self.numa.unwrap_or(0) == other.numa.unwrap_or(0) => Distance::Node,
            0 => Distance::Sys,
            1 => Distance::Phb,
            _ if self.way.len() - shared <= 1 && other.way.len() - shared <= 1 => Distance::Pix,
            _ => Distance::Pxb,
        }
    }

    /// Returns how many parts of the ways to two devices are the same, from the host bridge on.
    fn shared_with(&self, other: &Self) -> usize {
        self.way.iter().zip(&other.way).take_while(|(a, b)| a == b).count()
    }
}

/// Returns what the ACS capability of the bridge at `address` says. Reads the extended
/// configuration space, which only root may do.
pub fn acs(root: &Root, address: &str) -> Acs {
    const EXTENDED: usize = 0x100;
    const ACS: u32 = 0x0d;
    /// Request redirect, completion redirect, egress control.
    const REDIRECTS: u16 = 0x04 | 0x08 | 0x20;
    let Ok(config) = root.bytes(&format!("{DEVICES}/{address}/config")) else { return Acs::Unreadable };
    // 64 bytes for others than root; 256 where the kernel has no way to the extended space.
    if config.len() <= EXTENDED {
        return Acs::Unreadable;
    }
    let word = |at: usize| Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?));
    let mut at = EXTENDED;
    // A list that runs in a circle ends here: the space has room for no more.
    for _ in 0..config.len() / 4 {
        let Some(head) = word(at) else { break };
        if head & 0xffff == ACS {
            let control = word(at + 4).map_or(0, |both| (both >> 16) as u16);
            return if control & REDIRECTS != 0 { Acs::Redirects } else { Acs::Direct };
        }
        at = (head >> 20) as usize;
        if at < EXTENDED {
            break;
        }
    }
    Acs::Direct
}

/// Returns whether a device may mark its writes as free to overtake each other (Enable Relaxed
/// Ordering in Device Control of its PCI Express capability). Returns `None` if the device has no
/// such capability or its configuration space may not be read.
pub fn relaxed_ordering(root: &Root, address: &str) -> Option<bool> {
    const FIRST: usize = 0x34;
    const EXPRESS: u8 = 0x10;
    const ENABLE: u8 = 0x10;
    let config = root.bytes(&format!("{DEVICES}/{address}/config")).ok()?;
    let mut at = usize::from(*config.get(FIRST)?);
    // A list that runs in a circle ends here: 192 bytes have room for no more.
    for _ in 0..48 {
        let (id, next) = (config.get(at)?, config.get(at + 1)?);
        if at != 0 && *id == EXPRESS {
            return Some(config.get(at + 8)? & ENABLE != 0);
        }
        at = usize::from(*next);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert!(is_address("0000:01:00.0"));
        assert!(is_address("10000:e1:00.0"));
        assert!(!is_address("pci0000:00"));
        assert!(!is_address("virtio0"));
        assert!(!is_address("0000:01:00"));
    }

    fn device_at(way: &[&str], numa: Option<i32>) -> Device {
        Device {
            address: "0000:ff:00.0".into(),
            vendor: 0,
            device: 0,
            class: 0,
            driver: None,
            way: way.iter().map(|part| (*part).to_owned()).collect(),
            numa,
            link: None,
            bars: [0; 6],
            iommu: Iommu::Off,
            iommu_group: None,
            is_gone: false,
        }
    }

    #[test]
    fn distances_are_nvidia_smis() {
        let switch = ["pci0000:00", "0000:00:01.0", "0000:01:00.0"];
        let port = |down: &str| device_at(&[switch.as_slice(), &[down]].concat(), Some(0));
        let under_one_switch = port("0000:02:00.0").way_to(&port("0000:02:01.0"));
        assert_eq!(under_one_switch.distance, Distance::Pix);
        assert_eq!(under_one_switch.meet.as_deref(), Some("0000:01:00.0"));
        assert_eq!(under_one_switch.between, ["0000:02:00.0", "0000:02:01.0"]);

        let deep = device_at(&[switch.as_slice(), &["0000:02:00.0", "0000:03:00.0", "0000:04:00.0"]].concat(), Some(0));
        assert_eq!(deep.way_to(&port("0000:02:01.0")).distance, Distance::Pxb);

        let other_port = device_at(&["pci0000:00", "0000:00:02.0"], Some(0));
        assert_eq!(deep.way_to(&other_port).distance, Distance::Phb);
        assert_eq!(deep.way_to(&other_port).meet.as_deref(), Some("pci0000:00"));

        let other_host = device_at(&["pci0000:80"], Some(0));
        assert_eq!(deep.way_to(&other_host).distance, Distance::Node);
        assert_eq!(deep.way_to(&device_at(&["pci0000:80"], Some(1))).distance, Distance::Sys);
    }

    #[test]
    fn relaxed_ordering_is_read_in_device_control() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let device = dir.path().join("sys/bus/pci/devices/0000:01:00.0");
        std::fs::create_dir_all(&device).unwrap();
        let judge = |config: &[u8]| {
            std::fs::write(device.join("config"), config).unwrap();
            relaxed_ordering(&root, "0000:01:00.0")
        };
        // MSI-X at 0x98, then PCI Express at 0x40.
        let mut config = vec![0u8; 256];
        config[0x34] = 0x98;
        config[0x98..0x9a].copy_from_slice(&[0x11, 0x40]);
        config[0x40..0x42].copy_from_slice(&[0x10, 0x00]);
        assert_eq!(judge(&config), Some(false));
        config[0x48] = 0x10;
        assert_eq!(judge(&config), Some(true));
        // What others than root get.
        assert_eq!(judge(&config[..64]), None);
        // No such capability, and a list that runs in a circle.
        config[0x40] = 0x05;
        assert_eq!(judge(&config), None);
        config[0x41] = 0x98;
        assert_eq!(judge(&config), None);
    }

    #[test]
    fn acs_is_found_behind_other_capabilities() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let device = dir.path().join("sys/bus/pci/devices/0000:02:00.0");
        std::fs::create_dir_all(&device).unwrap();
        let judge = |config: &[u8]| {
            std::fs::write(device.join("config"), config).unwrap();
            acs(&root, "0000:02:00.0")
        };
        let mut config = vec![0u8; 4096];
        // Advanced error reporting, next at 0x148: ACS, all of it possible, redirects switched on.
        config[0x100..0x104].copy_from_slice(&0x1481_0001u32.to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x0001_000du32.to_le_bytes());
        config[0x14c..0x150].copy_from_slice(&0x001d_00ffu32.to_le_bytes());
        assert_eq!(judge(&config), Acs::Redirects);
        // Source validation alone redirects nothing.
        config[0x14e] = 0x01;
        assert_eq!(judge(&config), Acs::Direct);
        // A list that runs in a circle.
        config[0x148..0x14c].copy_from_slice(&0x1001_0001u32.to_le_bytes());
        assert_eq!(judge(&config), Acs::Direct);
        assert_eq!(judge(&config[..64]), Acs::Unreadable);
        assert_eq!(judge(&config[..256]), Acs::Unreadable);
    }
}
