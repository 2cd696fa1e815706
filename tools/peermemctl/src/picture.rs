// SPDX-License-Identifier: GPL-2.0
//! `topo --svg`: GPUs on the left, NICs on the right, a line from each GPU to its best NIC.
//! `matrix --svg`: a row for each GPU, a column for each NIC and one for NCCL's choice.

use crate::answer::{Matrix, Place, Topo};
use crate::check::Level;
use crate::pci::Distance;
use crate::print::matrix::{best, cell, head, nccl, nics};
use svg::node::element::{Group, Line, Rectangle, Text, Title};
use svg::Document;

const ROW: usize = 44;
const BOX: (usize, usize) = (300, 32);
const WIDTH: usize = 900;
const MARGIN: usize = 20;
const TOP: usize = 50;

/// Draws the GPUs, the NICs and the ways between them as SVG.
pub fn of(topo: &Topo) -> String {
    let rows = topo.gpus.len().max(topo.nics.len());
    let height = TOP + rows * ROW + MARGIN;
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"));
    document =
        document.add(text(MARGIN, 28, "GPUs, and the best NIC for each; dashed: ACS or the IOMMU is in the way"));
    for (n, gpu) in topo.gpus.iter().enumerate() {
        let best = topo.nics.iter().position(|nic| gpu.best_nic.as_ref() == Some(&nic.name));
        if let Some((m, nic)) = best.and_then(|m| Some((m, topo.nics.get(m)?))) {
            document = document.add(way(topo, (n, gpu), (m, nic)));
        }
    }
    for (n, gpu) in topo.gpus.iter().enumerate() {
        document = document.add(device(MARGIN, n, gpu, "#76b900"));
    }
    for (n, nic) in topo.nics.iter().enumerate() {
        document = document.add(device(WIDTH - MARGIN - BOX.0, n, nic, "#4a90d9"));
    }
    format!("{document}\n")
}

fn middle(n: usize) -> usize {
    TOP + n * ROW + BOX.1 / 2
}

fn text(x: usize, y: usize, words: impl Into<String>) -> Text {
    Text::new(words).set("x", x).set("y", y)
}

fn device(x: usize, n: usize, place: &Place, colour: &str) -> Group {
    let numa = place.numa_node.map_or(String::new(), |node| format!(", NUMA {node}"));
    let shape = Rectangle::new()
        .set("x", x)
        .set("y", TOP + n * ROW)
        .set("width", BOX.0)
        .set("height", BOX.1)
        .set("rx", 4)
        .set("fill", "white")
        .set("stroke", colour);
    Group::new()
        .add(Title::new(format!("below {}; IOMMU {}", place.way.join(" > "), place.iommu)))
        .add(shape)
        .add(text(x + 8, middle(n) + 4, format!("{} {} {}{numa}", place.label, place.address, place.name)))
}

fn way(topo: &Topo, (n, gpu): (usize, &Place), (m, nic): (usize, &Place)) -> Group {
    let pair = topo.pairs.iter().find(|pair| pair.gpu == gpu.address && pair.nic == nic.address);
    let distance = pair.map_or(Distance::Sys, |pair| pair.distance);
    let hindered = pair.is_some_and(|pair| !pair.acs_redirects.is_empty() || pair.is_refused())
        || [gpu, nic].iter().any(|place| place.iommu == "translates");
    let colour = match distance {
        Distance::Pix | Distance::Pxb => "#2e7d32",
        Distance::Phb => "#f9a825",
        Distance::Node | Distance::Sys => "#c62828",
    };
    let (left, right) = (MARGIN + BOX.0, WIDTH - MARGIN - BOX.0);
    let line = Line::new()
        .set("x1", left)
        .set("y1", middle(n))
        .set("x2", right)
        .set("y2", middle(m))
        .set("stroke", colour)
        .set("stroke-width", 2)
        .set("stroke-dasharray", if hindered { "6 4" } else { "none" });
    let label = text(left + 8, middle(n).saturating_sub(4), distance.text()).set("fill", colour);
    Group::new().add(line).add(label)
}

/// Draws what each GPU and each NIC can do together.
pub fn of_matrix(matrix: &Matrix) -> String {
    const CELL: (usize, usize) = (130, 32);
    const LEFT: usize = 200;
    const NCCL: usize = 260;
    let names = nics(&matrix.pairs);
    let right = LEFT + names.len() * CELL.0;
    let (width, height) = (right + NCCL + MARGIN, TOP + (matrix.gpus.len() + 1) * CELL.1 + MARGIN);
    let mut document = Document::new()
        .set("viewBox", (0, 0, width.max(WIDTH), height))
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"))
        .add(text(MARGIN, 28, head(matrix)))
        .add(text(right + 4, TOP + CELL.1 / 2, "NCCL"));
    for (column, name) in names.iter().enumerate() {
        document = document.add(text(LEFT + column * CELL.0 + 4, TOP + CELL.1 / 2, *name));
    }
    for (row, gpu) in matrix.gpus.iter().enumerate() {
        let y = TOP + (row + 1) * CELL.1;
        document = document.add(text(MARGIN, y + CELL.1 / 2 + 4, format!("{} {}", gpu.label, gpu.address)));
        let pairs: Vec<_> = matrix.pairs.iter().filter(|pair| pair.gpu == gpu.address).collect();
        document = document.add(text(right + 4, y + CELL.1 / 2 + 2, nccl(gpu, &pairs)));
        for (column, name) in names.iter().enumerate() {
            let Some(pair) = pairs.iter().find(|pair| pair.nic == *name) else { continue };
            let worst = pair.ways.iter().map(|way| way.level).max().filter(|_| best(pair).is_some());
            let deceives = pair.ways.iter().any(crate::answer::VerifyWay::deceives);
            let colour = match worst {
                _ if deceives => "#ef9a9a",
                None => "#eeeeee",
                Some(Level::Ok | Level::Skip) => "#c8e6c9",
                Some(Level::Warn | Level::Fail) => "#fff59d",
            };
            let said: Vec<String> = pair
                .ways
                .iter()
                .map(|way| {
                    let spread = way.spread.map_or(String::new(), |spread| format!(", spread {:.0} %", spread * 100.0));
                    let said = way.message.as_deref().unwrap_or("");
                    format!("{}: {}{spread} {said}", way.way.text(), way.level.text())
                })
                .collect();
            let shape = Rectangle::new()
                .set("x", LEFT + column * CELL.0)
                .set("y", y)
                .set("width", CELL.0 - 4)
                .set("height", CELL.1 - 4)
                .set("fill", colour);
            let label = text(LEFT + column * CELL.0 + 6, y + CELL.1 / 2 + 2, cell(pair));
            document = document.add(Group::new().add(Title::new(said.join("; "))).add(shape).add(label));
        }
    }
    format!("{document}\n")
}
