// SPDX-License-Identifier: GPL-2.0
//! RDMA devices and their ports.

use crate::pci;
use crate::root::{Missing, Root};

const CLASS: &str = "/sys/class/infiniband";

/// An RDMA device.
pub struct RdmaDevice {
    pub name: String,
    /// The PCI function that does its DMA; of a software device that of its network interface.
    pub pci: Option<String>,
    /// Whether it is software over a network interface (rxe, siw).
    pub software: bool,
    /// Says whether it speaks iWARP, by which only the RDMA connection manager makes connections.
    pub iwarp: bool,
    /// The kernel module that makes its memory regions, where that is known.
    pub module: Option<String>,
    /// The network interface that it is software over.
    pub netdev: Option<String>,
    pub ports: Vec<Port>,
}

impl RdmaDevice {
    /// Returns whether a port is of InfiniBand, or of Omni-Path, which calls its link layer so, too.
    pub fn is_infiniband(&self) -> bool {
        self.ports.iter().any(|port| port.link_layer == "InfiniBand")
    }

    /// Returns whether one of the device's ports is active.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(Port::is_active)
    }

    /// Returns whether programs may connect by one of its ports, as far as that can be told: it is active, and has
    /// a GID where it needs one.
    pub fn can_connect(&self) -> bool {
        self.ports.iter().any(Port::can_connect)
    }

    /// Returns the port to move data by: one that programs may connect by, or else one that is active, or else the
    /// first.
    pub fn port(&self) -> Option<&Port> {
        let usable = self.ports.iter().find(|port| port.can_connect());
        usable.or_else(|| self.ports.iter().find(|port| port.is_active())).or(self.ports.first())
    }
}

/// Returns the device to move data by: one that programs may connect by, or else one with an active port.
pub fn to_use(devices: &[RdmaDevice]) -> Option<&RdmaDevice> {
    devices.iter().find(|device| device.can_connect()).or_else(|| devices.iter().find(|device| device.is_active()))
}

/// One port.
pub struct Port {
    pub number: String,
    /// `ACTIVE`, `DOWN`, ...
    pub state: String,
    /// `LinkUp`, `Polling`, `Disabled`, ...: what the link itself does; empty if that is not known.
    pub link: String,
    /// Of Ethernet: whether it has a GID that programs in this network namespace can connect by; `None` if that is
    /// not known.
    pub has_gid: Option<bool>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    pub rate: String,
}

impl Port {
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    fn can_connect(&self) -> bool {
        self.is_active() && self.has_gid != Some(false)
    }
}

/// The file of an RDMA device that tells whether it speaks iWARP.
pub const KIND: &str = "node_type";

/// The beginning of the names of nodes of RDMA devices in /dev/infiniband.
pub const NODE: &str = "uverbs";
/// The folder in which the kernel shows which RDMA device each node belongs to.
pub const VERBS: &str = "/sys/class/infiniband_verbs";

/// Returns the name of a device's node.
pub fn node(root: &Root, device: &str) -> Option<String> {
    let mut nodes = root.names(VERBS).into_iter().filter(|node| node.starts_with(NODE));
    nodes.find(|node| root.text_once(&format!("{VERBS}/{node}/ibdev")).is_ok_and(|name| name.trim() == device))
}

/// Returns all RDMA devices in the order of nvidia-smi: mlx5_2 before mlx5_10.
pub fn devices(root: &Root) -> Vec<RdmaDevice> {
    let mut names = root.names(CLASS);
    names
        .sort_by_key(|name| (name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), name.len(), name.clone()));
    names.into_iter().map(|name| device(root, name)).collect()
}

fn device(root: &Root, name: String) -> RdmaDevice {
    let dir = format!("{CLASS}/{name}");
    let own = root.resolved(&format!("{dir}/device"));
    let software = own.is_none();
    let netdev = root.line(&format!("{dir}/parent"));
    let path = match own {
        Some(path) => Some(path),
        None => netdev.as_ref().and_then(|netdev| root.resolved(&format!("/sys/class/net/{netdev}/device"))),
    };
    let pci = path.and_then(|path| path.split('/').rev().find(|part| pci::is_address(part)).map(str::to_owned));
    let module = match software {
        true => ["rdma_rxe", "siw"].into_iter().find(|module| root.exists(&format!("/sys/module/{module}"))),
        false => root.link_name(&format!("{dir}/device/driver")).and_then(|driver| memory_module(&driver)),
    };
    let ports = root.names(&format!("{dir}/ports")).into_iter().map(|number| port(root, &dir, number)).collect();
    // "4: RNIC"
    let iwarp = match root.line(&format!("{dir}/{KIND}")) {
        Some(kind) => kind.ends_with("RNIC"),
        None => module.is_some_and(|module| ["iw_cxgb4", "siw"].contains(&module)),
    };
    RdmaDevice { module: module.map(str::to_owned), name, pci, software, netdev, iwarp, ports }
}

/// The file of a PCI function that has its vital product data, and the words by which a ConnectX says there that it
/// manages NVSwitches.
pub const PRODUCT_DATA: &str = "vpd";
pub const MANAGES_SWITCHES: &str = "SMDL=SW_MNG";

/// Returns whether a device is a function by which NVSwitches of NVLink 5 are managed, and that carries no traffic of
/// programs (bottlerocket-os/bottlerocket-core-kit#499); `None` where only root may read that.
pub fn manages_switches(root: &Root, device: &RdmaDevice) -> Option<bool> {
    let dir = format!("{CLASS}/{}/device", device.name);
    let is_infiniband = root.line(&format!("{dir}/class")).is_some_and(|class| class.starts_with("0x0207"));
    if !is_infiniband || device.module.as_deref() != Some("mlx5_ib") {
        return Some(false);
    }
    match root.text(&format!("{dir}/{PRODUCT_DATA}")) {
        Ok(text) => Some(text.contains(MANAGES_SWITCHES)),
        Err(Missing::Denied) => None,
        Err(_) => Some(false),
    }
}

/// Returns the module that registers memory, by the driver of the PCI function.
pub fn memory_module(driver: &str) -> Option<&'static str> {
    Some(match driver {
        // The second is that of a sub-function.
        "mlx5_core" | "mlx5_core.sf" => "mlx5_ib",
        "mlx4_core" => "mlx4_ib",
        "bnxt_en" => "bnxt_re",
        "ice" | "i40e" | "idpf" => "irdma",
        "mana" => "mana_ib",
        "ionic" => "ionic_rdma",
        "hfi1" => "hfi1",
        "efa" => "efa",
        "erdma" => "erdma",
        "cxgb4" => "iw_cxgb4",
        "qede" => "qedr",
        "hns3" => "hns_roce_hw_v2",
        "vmw_pvrdma" => "vmw_pvrdma",
        "ocrdma" | "be2net" => "ocrdma",
        _ => return None,
    })
}

fn port(root: &Root, dir: &str, number: String) -> Port {
    let port = format!("{dir}/ports/{number}");
    let file = |name: &str| root.line(&format!("{port}/{name}")).unwrap_or_default();
    // "4: ACTIVE"
    let word = |name: &str| {
        let line = file(name);
        line.split_once(": ").map_or(line.as_str(), |(_, word)| word).to_owned()
    };
    Port {
        state: word("state"),
        link: word("phys_state"),
        has_gid: has_gid(root, &port),
        link_layer: file("link_layer"),
        rate: file("rate"),
        number,
    }
}

/// A GID that is not set.
pub const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// Returns whether the port in a folder of sysfs has a GID that programs in this network namespace can connect by;
/// `None` if that cannot be read, or does not matter, as with InfiniBand. Each GID of RoCE is an address of a network
/// interface: a container without that one sees zeroes, or a GID of an interface that it does not have.
pub fn has_gid(root: &Root, port: &str) -> Option<bool> {
    if root.line(&format!("{port}/link_layer"))? != "Ethernet" {
        return None;
    }
    let mut found = None;
    for number in root.names(&format!("{port}/gids")) {
        match is_of_use(root, port, &number) {
            Some(true) => return Some(true),
            Some(false) => found = Some(false),
            None => {}
        }
    }
    found
}

/// Returns whether programs in this network namespace can connect by a GID of a port in a folder of sysfs; `None` if
/// that GID cannot be read.
fn is_of_use(root: &Root, port: &str, number: &str) -> Option<bool> {
    const INTERFACES: &str = "/sys/class/net";
    let is_here = || {
        let interface = root.line(&format!("{port}/gid_attrs/ndevs/{number}")).filter(|name| !name.is_empty());
        interface.is_none_or(|name| root.exists(&format!("{INTERFACES}/{name}")) || root.names(INTERFACES).is_empty())
    };
    let gid = root.line(&format!("{port}/gids/{number}"))?;
    Some(is_set(&gid) && is_here())
}

/// Returns the numbers of the GIDs that programs can connect by, of the RoCE port by which a device moves data, if that
/// has none of the number `wanted`. `None` if it has that one, or nothing tells: a recorded machine has the first alone.
pub fn gids_but(root: &Root, device: &RdmaDevice, wanted: u32) -> Option<Vec<u32>> {
    let port = device.port().filter(|port| port.link_layer == "Ethernet")?;
    let folder = format!("{CLASS}/{}/ports/{}", device.name, port.number);
    let mut numbers: Vec<u32> =
        root.names(&format!("{folder}/gids")).iter().filter_map(|name| name.parse().ok()).collect();
    let is_told = numbers.contains(&wanted) || numbers.len() > 1;
    numbers.sort_unstable();
    numbers.retain(|number| is_of_use(root, &folder, &number.to_string()) == Some(true));
    (is_told && !numbers.contains(&wanted)).then_some(numbers)
}

/// Returns whether a GID has more than the prefix of link-local addresses.
fn is_set(gid: &str) -> bool {
    let own = gid.strip_prefix("fe80").unwrap_or(gid);
    own.bytes().any(|byte| !matches!(byte, b'0' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ports: &[(&str, Option<bool>)]) -> RdmaDevice {
        let ports = ports.iter().zip(1..).map(|((state, has_gid), number)| Port {
            number: number.to_string(),
            state: (*state).to_owned(),
            link: String::new(),
            has_gid: *has_gid,
            link_layer: "Ethernet".to_owned(),
            rate: String::new(),
        });
        RdmaDevice {
            name: String::new(),
            pci: None,
            software: false,
            netdev: None,
            iwarp: false,
            module: None,
            ports: ports.collect(),
        }
    }

    #[test]
    fn data_is_moved_by_a_port_that_has_an_address() {
        let chosen = |ports: &[(&str, Option<bool>)]| device(ports).port().map(|port| port.number.clone());
        assert_eq!(chosen(&[("ACTIVE", Some(false)), ("ACTIVE", Some(true))]).as_deref(), Some("2"));
        assert_eq!(chosen(&[("DOWN", Some(true)), ("ACTIVE", Some(false))]).as_deref(), Some("2"));
        assert_eq!(chosen(&[("DOWN", None), ("DOWN", None)]).as_deref(), Some("1"));
        assert_eq!(chosen(&[]), None);
        let devices = [device(&[("ACTIVE", Some(false))]), device(&[("ACTIVE", None)])];
        assert!(std::ptr::eq(to_use(&devices).unwrap(), &devices[1]));
        assert!(std::ptr::eq(to_use(&devices[..1]).unwrap(), &devices[0]));
        assert!(to_use(&[device(&[("DOWN", Some(true))])]).is_none());
    }
}
