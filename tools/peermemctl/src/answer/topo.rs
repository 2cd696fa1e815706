// SPDX-License-Identifier: GPL-2.0
//! `topo`: GPUs, NICs, and the ways between them.

use crate::check::{Kind, Level};
use crate::machine::Machine;
use crate::pci::{self, Acs, Distance};
use schemars::JsonSchema;
use serde::Serialize;

/// GPUs, NICs, and the ways between them.
#[derive(Serialize, JsonSchema)]
pub struct Topo {
    pub gpus: Vec<Place>,
    pub nics: Vec<Place>,
    pub pairs: Vec<Pair>,
}

/// Where a device sits.
#[derive(Serialize, JsonSchema)]
pub struct Place {
    /// `GPU0`, `NIC3`: its number in these lists.
    pub label: String,
    /// PCI address.
    pub address: String,
    /// Name of the RDMA device, or of the GPU's model.
    pub name: String,
    pub numa_node: Option<i32>,
    /// Host bridge, then the bridges down to the device.
    pub way: Vec<String>,
    /// What the IOMMU does with its traffic: `off`, `identity`, `translates`, `unknown`.
    pub iommu: &'static str,
    /// Whether a GPU has a coherent link (NVLink-C2C) to its processor; `false` for a NIC.
    pub c2c: bool,
    /// The name of the NIC to use with a GPU: the nearest one, and of several the one that fewest
    /// GPUs have; `null` for a GPU that this container was not given, and of the NICs one that it was.
    pub best_nic: Option<String>,
}

/// A GPU and a NIC.
#[derive(Serialize, JsonSchema)]
pub struct Pair {
    pub gpu: String,
    pub nic: String,
    pub distance: Distance,
    /// The bridge where their ways meet; `null` if they share none.
    pub meet: Option<String>,
    /// Bridges on the way that send peer-to-peer traffic up to the CPU (ACS redirect); none where
    /// it goes there anyway.
    pub acs_redirects: Vec<String>,
    /// Whether the ACS words of all bridges on the way could be read (root only).
    pub acs_known: bool,
    /// What the GPU driver says of the two, once they met in a registration: `supported`,
    /// `unsupported`, or `unasked` (revocable pins only).
    pub driver_says: Option<String>,
}

impl Pair {
    /// Returns whether the GPU driver refuses the pair.
    pub fn is_refused(&self) -> bool {
        self.driver_says.as_deref() == Some("unsupported")
    }
}

impl Topo {
    /// Returns a warning, as doctor does, if the driver refuses a pair, ACS redirects, or a GPU has
    /// no NIC nearby.
    pub(super) fn level(&self) -> Level {
        let hindered = |pair: &Pair| !pair.acs_redirects.is_empty() || pair.is_refused();
        let far = |gpu: &Place| {
            let best = self.nics.iter().find(|nic| gpu.best_nic.as_ref() == Some(&nic.name));
            let is_it = |pair: &&Pair| pair.gpu == gpu.address && best.is_some_and(|nic| nic.address == pair.nic);
            let near = if gpu.c2c { Distance::Node } else { Distance::Phb };
            self.pairs.iter().find(is_it).is_some_and(|pair| pair.distance > near)
        };
        match self.pairs.iter().any(hindered) || self.gpus.iter().any(far) {
            true => Level::Warn,
            false => Level::Ok,
        }
    }
}

/// Answers `topo`.
pub fn topo(machine: &Machine) -> Topo {
    let gpus = machine.gpus();
    let nics: Vec<_> =
        machine.rdma.iter().filter_map(|device| Some((device, machine.pci(device.pci.as_deref()?)?))).collect();
    let place = |kind: Kind, n: usize, name: String, device: &pci::Device| Place {
        label: format!("{}{n}", kind.text()),
        address: device.address.clone(),
        name,
        numa_node: device.numa,
        way: device.way.clone(),
        iommu: device.iommu.text(),
        c2c: kind == Kind::Gpu && machine.has_c2c(device),
        best_nic: None,
    };
    let mut pairs = Vec::new();
    for gpu in &gpus {
        for (_, nic) in &nics {
            let way = gpu.way_to(nic);
            let states: Vec<(String, Acs)> = match way.shares_a_switch() {
                true => way.between.iter().map(|bridge| (bridge.clone(), pci::acs(machine.root, bridge))).collect(),
                false => Vec::new(),
            };
            let driver_says = machine.stats.as_ref().ok().and_then(|stats| {
                stats.pairs().find(|(a, b, _)| *a == gpu.address && *b == nic.address).map(|(.., says)| says.to_owned())
            });
            pairs.push(Pair {
                driver_says,
                gpu: gpu.address.clone(),
                nic: nic.address.clone(),
                distance: way.distance,
                meet: way.meet,
                acs_known: states.iter().all(|(_, state)| *state != Acs::Unreadable),
                acs_redirects: states
                    .into_iter()
                    .filter(|(_, state)| *state == Acs::Redirects)
                    .map(|(bridge, _)| bridge)
                    .collect(),
            });
        }
    }
    let mut gpus: Vec<Place> =
        gpus.into_iter().enumerate().map(|(n, gpu)| place(Kind::Gpu, n, gpu.name(), gpu)).collect();
    let nics: Vec<Place> =
        nics.into_iter().enumerate().map(|(n, (device, nic))| place(Kind::Nic, n, device.name.clone(), nic)).collect();
    let mut given: Vec<usize> = vec![0; nics.len()];
    let is_here = |gpu: &&mut Place| {
        let is_for_programs =
            |gpu: &pci::Device| machine.was_given_gpu(gpu) != Some(false) && !machine.is_for_display(gpu);
        machine.pci(&gpu.address).is_none_or(is_for_programs)
    };
    let was_given = |nic: &Place| {
        let device = machine.rdma.iter().find(|rdma| rdma.name == nic.name);
        device.and_then(|device| machine.was_given_nic(device)) != Some(false)
    };
    for gpu in gpus.iter_mut().filter(is_here) {
        let worth = |n: usize, nic: &Place| {
            let pair = pairs.iter().find(|pair| pair.gpu == gpu.address && pair.nic == nic.address)?;
            let is_down = !machine.rdma.iter().any(|rdma| rdma.name == nic.name && rdma.can_connect());
            Some((is_down, pair.distance, !pair.acs_redirects.is_empty(), given.get(n).copied()))
        };
        let best = nics.iter().enumerate().filter(|(_, nic)| was_given(nic)).min_by_key(|(n, nic)| worth(*n, nic));
        if let Some((n, nic)) = best {
            gpu.best_nic = Some(nic.name.clone());
            if let Some(given) = given.get_mut(n) {
                *given += 1;
            }
        }
    }
    Topo { gpus, nics, pairs }
}
