// SPDX-License-Identifier: GPL-2.0
//! `topo` as text.

use super::{print_table, table, wrapped};
use crate::answer::{Place, Topo};
use crate::pci::Distance;
use crate::text;
use anstyle::Style;
use comfy_table::Table;
use std::fmt::Write;

pub(super) fn print(out: &mut String, topo: &Topo) {
    if topo.gpus.is_empty() || topo.nics.is_empty() {
        let _ = writeln!(
            out,
            "{}, {} with a PCI address.",
            text::count(topo.gpus.len(), "GPU"),
            text::count(topo.nics.len(), "RDMA device")
        );
    }
    for (what, places) in [("GPU", &topo.gpus), ("NIC", &topo.nics)] {
        for place in places {
            let numa = place.numa_node.map_or("-".to_owned(), |node| node.to_string());
            wrapped(
                out,
                &format!("{what} {}  ", place.address),
                &format!("{}, NUMA node {numa}, below {}", place.name, place.way.join(" > ")),
                Style::new(),
            );
        }
    }
    if topo.pairs.is_empty() {
        return;
    }
    // As many NICs side by side as leave whole PCI addresses in their cells.
    for nics in topo.nics.chunks(4) {
        let _ = writeln!(out);
        print_table(out, &matrix(topo, nics));
    }
    let _ = writeln!(out);
    let words = [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys]
        .map(|distance| format!("{}: {}", distance.text(), distance.words()));
    wrapped(out, "", &words.join(" · "), Style::new());
}

/// All GPUs, and how far from them `nics` are.
fn matrix(topo: &Topo, nics: &[Place]) -> Table {
    let mut head = vec!["GPU \\ NIC".to_owned()];
    head.extend(nics.iter().map(|nic| nic.name.clone()));
    let mut table = table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    for gpu in &topo.gpus {
        let mut row = vec![gpu.address.clone()];
        for nic in nics {
            let pair = topo.pairs.iter().find(|pair| pair.gpu == gpu.address && pair.nic == nic.address);
            row.push(pair.map_or(String::new(), |pair| {
                let acs = match (pair.acs_redirects.is_empty(), pair.acs_known) {
                    (false, _) => ", ACS redirects",
                    (true, false) => ", ACS unknown",
                    (true, true) => "",
                };
                let driver = match pair.driver_says.as_deref() {
                    Some("unsupported") => ", the GPU driver refuses",
                    _ => "",
                };
                let meet = pair.meet.as_ref().map_or(", no common bridge".to_owned(), |bridge| format!(" at {bridge}"));
                format!("{}{meet}{acs}{driver}", pair.distance.text())
            }));
        }
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{Answer, Pair};
    use crate::print::fits;

    #[test]
    fn eight_gpus_and_eight_nics_fit() {
        let place = |bus: usize, name: String| Place {
            address: format!("0000:{bus:02x}:00.0"),
            name,
            numa_node: Some(1),
            way: (0..6).map(|n| format!("0000:{bus:02x}:{n:02x}.0")).collect(),
        };
        let gpus: Vec<Place> = (16..24).map(|n| place(n, "GH100 [H200 SXM 141GB]".to_owned())).collect();
        let nics: Vec<Place> = (24..32).map(|n| place(n, format!("rocep{n}s0f0np0"))).collect();
        let pairs = gpus.iter().flat_map(|gpu| nics.iter().map(move |nic| (gpu, nic)));
        let pairs = pairs.map(|(gpu, nic)| Pair {
            gpu: gpu.address.clone(),
            nic: nic.address.clone(),
            distance: Distance::Pxb,
            meet: Some("0000:00:01.0".to_owned()),
            acs_redirects: vec!["0000:00:02.0".to_owned()],
            acs_known: true,
            driver_says: Some("unsupported".to_owned()),
        });
        let pairs: Vec<Pair> = pairs.collect();
        let text = fits(&Answer::Topo(Topo { gpus, nics, pairs }));
        // No address is torn in two by its column.
        assert_eq!(text.matches("0000:00:01.0").count(), 64, "{text}");
    }
}
