// SPDX-License-Identifier: GPL-2.0
//! What the links between a GPU and a NIC can carry, as sysfs tells.

use crate::machine::Machine;
use crate::pci::{Device, Link};
use crate::rdma::RdmaDevice;

/// Returns the bytes per second of a PCIe link, or `None` if its speed is no number.
fn pcie(link: &Link, speed: &str) -> Option<f64> {
    // "32.0 GT/s PCIe": transfers of one bit on each lane.
    let rate: f64 = speed.split(' ').next()?.parse().ok()?;
    let coding = match rate {
        rate if rate < 8.0 => 8.0 / 10.0,
        rate if rate < 64.0 => 128.0 / 130.0,
        // In flits of 256 bytes, 236 of which carry packets.
        _ => 236.0 / 256.0,
    };
    (link.width > 0 && rate > 0.0).then(|| rate * 1e9 * f64::from(link.width) * coding / 8.0)
}

/// Returns the bytes per second of a NIC's fastest active port: "400 Gb/sec (4X NDR)".
fn port(nic: &RdmaDevice) -> Option<f64> {
    let active = nic.ports.iter().filter(|port| port.state == "ACTIVE");
    let rates = active.filter_map(|port| port.rate.split(' ').next()?.parse::<f64>().ok());
    rates.reduce(f64::max).filter(|rate| *rate > 0.0).map(|rate| rate * 1e9 / 8.0)
}

/// Returns what the slowest link between a GPU and a NIC carries in bytes per second, and which that is;
/// `None` where the NIC is software, whose speed no link limits, or nothing is told.
pub fn limit(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Option<(f64, String)> {
    if nic.software {
        return None;
    }
    // An idle GPU slows its link down.
    let of_gpu = gpu.link.as_ref().and_then(|link| pcie(link, &link.speed_max));
    let at = nic.pci.as_deref().and_then(|address| machine.pci(address));
    let of_nic = at.and_then(|at| at.link.as_ref()).and_then(|link| pcie(link, &link.speed));
    let all = [
        (of_gpu, "PCIe link of the GPU".to_owned()),
        (of_nic, format!("PCIe link of {}", nic.name)),
        (port(nic), format!("port of {}", nic.name)),
    ];
    let known = all.into_iter().filter_map(|(rate, what)| Some((rate?, what)));
    known.min_by(|(a, _), (b, _)| a.total_cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_carry_what_their_generation_does() {
        let link = |width: u32| Link { speed: String::new(), speed_max: String::new(), width, width_max: width };
        let gigabytes = |width: u32, speed: &str| pcie(&link(width), speed).map(|rate| (rate / 1e8).round() / 10.0);
        assert_eq!(gigabytes(16, "32.0 GT/s PCIe"), Some(63.0));
        assert_eq!(gigabytes(16, "16.0 GT/s PCIe"), Some(31.5));
        assert_eq!(gigabytes(4, "5.0 GT/s PCIe"), Some(2.0));
        assert_eq!(gigabytes(16, "64.0 GT/s PCIe"), Some(118.0));
        assert_eq!((gigabytes(16, "Unknown"), gigabytes(0, "32.0 GT/s PCIe")), (None, None));
    }
}
