// SPDX-License-Identifier: GPL-2.0
//! `topo` as text, after `nvidia-smi topo -m`: codes in a matrix, then who is who.

use super::page::{style, table, Detail, Page};
use crate::answer::{Pair, Place, Topo};
use crate::check::Level;
use crate::pci::Distance;
use crate::text;
use anstyle::Style;

/// Marks behind a code, with what they mean.
const ACS: (&str, &str) = ("*", "ACS sends this traffic up to the CPU");
const UNKNOWN: (&str, &str) = ("?", "the ACS word of a bridge on the way cannot be read; as root it can");
const REFUSED: (&str, &str) = ("!", "the GPU driver says that the two cannot reach each other");

fn marks(pair: &Pair) -> Vec<(&'static str, &'static str)> {
    let acs = match (pair.acs_redirects.is_empty(), pair.acs_known) {
        (false, _) => Some(ACS),
        (true, false) => Some(UNKNOWN),
        (true, true) => None,
    };
    acs.into_iter().chain(pair.is_refused().then_some(REFUSED)).collect()
}

pub(super) fn print(page: &mut Page, topo: &Topo) {
    if topo.gpus.is_empty() || topo.nics.is_empty() {
        page.line(&format!(
            "{}, {} with a PCI address.",
            text::count(topo.gpus.len(), "GPU"),
            text::count(topo.nics.len(), "RDMA device")
        ));
    }
    if !topo.pairs.is_empty() {
        // Columns beside the NICs': GPU, NUMA, IOMMU, best NIC.
        let names = topo.nics.iter().map(|nic| nic.name.len()).max().unwrap_or(0).max(8);
        let room = page.width.saturating_sub(7 + 6 + 12 + names) / 7;
        for nics in topo.nics.chunks(room.max(1)) {
            matrix(page, topo, nics);
            page.line("");
        }
    }
    for place in topo.gpus.iter().chain(&topo.nics) {
        let numa = place.numa_node.map_or("-".to_owned(), |node| node.to_string());
        let way = match page.detail {
            Detail::Verbose => format!(", below {}", place.way.join(" > ")),
            _ => String::new(),
        };
        let c2c = if place.c2c { ", NVLink-C2C to its CPU" } else { "" };
        let said = format!("{}  {}, NUMA node {numa}{c2c}, IOMMU {}{way}", place.address, place.name, place.iommu);
        page.wrapped(&format!("{:<6} ", place.label), &said, Style::new());
    }
    if topo.pairs.is_empty() {
        return;
    }
    page.line("");
    for distance in [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys] {
        if topo.pairs.iter().any(|pair| pair.distance == distance) {
            page.wrapped(&format!("{:<6} ", distance.text()), distance.words(), Style::new());
        }
    }
    let mut used: Vec<_> = topo.pairs.iter().flat_map(marks).collect();
    used.sort_unstable();
    used.dedup();
    for (mark, words) in used {
        page.wrapped(&format!("{mark:<6} "), words, style(Level::Warn));
    }
    if page.detail == Detail::Verbose {
        page.line("");
        for pair in &topo.pairs {
            bridges(page, topo, pair);
        }
    }
}

/// Prints a table of all GPUs, and of how far `nics` are from them.
fn matrix(page: &mut Page, topo: &Topo, nics: &[Place]) {
    let mut head: Vec<&str> = vec![""];
    head.extend(nics.iter().map(|nic| nic.label.as_str()));
    head.extend(["NUMA", "IOMMU", "BEST NIC"]);
    let mut table = table(&head, &[]);
    for gpu in &topo.gpus {
        let mut row = vec![gpu.label.clone()];
        for nic in nics {
            let pair = topo.pairs.iter().find(|pair| pair.gpu == gpu.address && pair.nic == nic.address);
            row.push(pair.map_or(String::new(), |pair| {
                let marks: String = marks(pair).into_iter().map(|(mark, _)| mark).collect();
                format!("{}{marks}", pair.distance.text())
            }));
        }
        row.push(gpu.numa_node.map_or("-".to_owned(), |node| node.to_string()));
        row.push(gpu.iommu.to_owned());
        row.push(gpu.best_nic.clone().unwrap_or_else(|| "-".to_owned()));
        table.add_row(row);
    }
    page.table(&mut table);
}

/// Prints where the ways of the two devices of a pair meet.
fn bridges(page: &mut Page, topo: &Topo, pair: &Pair) {
    let label = |places: &[Place], address: &str| {
        places.iter().find(|place| place.address == address).map_or(String::new(), |place| place.label.clone())
    };
    let meet = pair.meet.as_ref().map_or("no common bridge".to_owned(), |bridge| format!("they meet at {bridge}"));
    let acs = match pair.acs_redirects.as_slice() {
        [] => String::new(),
        some => format!(", ACS redirects at {}", some.join(", ")),
    };
    let first = format!("{}-{} ", label(&topo.gpus, &pair.gpu), label(&topo.nics, &pair.nic));
    page.wrapped(&first, &format!("{}, {meet}{acs}", pair.distance.text()), Style::new());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::print::fits;

    #[test]
    fn sixteen_nics_fit() {
        let place = |label: String, bus: usize, name: String| Place {
            label,
            address: format!("0000:{bus:02x}:00.0"),
            name,
            numa_node: Some(1),
            way: (0..6).map(|n| format!("0000:{bus:02x}:{n:02x}.0")).collect(),
            iommu: "translates",
            c2c: false,
            best_nic: Some("rocep24s0f0np0".to_owned()),
        };
        let gpus: Vec<Place> =
            (0..8).map(|n| place(format!("GPU{n}"), n + 16, "GH100 [H200 SXM 141GB]".to_owned())).collect();
        let nics: Vec<Place> = (0..16).map(|n| place(format!("NIC{n}"), n + 24, format!("rocep{n}s0f0np0"))).collect();
        let pairs = gpus.iter().flat_map(|gpu| nics.iter().map(move |nic| (gpu, nic)));
        let pairs = pairs.map(|(gpu, nic)| Pair {
            gpu: gpu.address.clone(),
            nic: nic.address.clone(),
            distance: Distance::Node,
            meet: Some("0000:00:01.0".to_owned()),
            acs_redirects: vec!["0000:00:02.0".to_owned()],
            acs_known: true,
            driver_says: Some("unsupported".to_owned()),
        });
        let pairs: Vec<Pair> = pairs.collect();
        let text = fits(&Answer::Topo(Topo { gpus, nics, pairs }));
        assert_eq!(text.matches("NODE*!").count(), 128, "{text}");
    }
}
