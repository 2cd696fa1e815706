// SPDX-License-Identifier: GPL-2.0
//! `matrix` as text: a row for each GPU, a column for each NIC, and why a pair is slow or has no way.

use super::page::{style, table, without_a_link, Page};
use crate::answer::{Matrix, Place, VerifyPair, VerifyWay};
use crate::check::Level;
use crate::text;
use crate::way::Way;
use anstyle::Style;

/// The marks behind a figure, with what they mean.
const SLOW: (char, &str) = ('<', "below half of what the link between the two can do");
const UNEVEN: (char, &str) = ('~', "its rounds differ by more than 10 %: measure again when the machine is idle");
const WRONG: (char, &str) = ('!', "a way registers, and then does not work");

/// Returns the letter for a way, as the cells have it.
fn letter(way: Way) -> &'static str {
    match way {
        Way::PeerMemory => "p",
        Way::DmaBuf => "d",
        Way::DmaBufPcie => "f",
        Way::DataDirect => "D",
        Way::Preload => "l",
    }
}

/// Returns the way that moves most, or without figures one that works.
pub(crate) fn best(pair: &VerifyPair) -> Option<&VerifyWay> {
    let works = pair.ways.iter().filter(|way| way.works());
    let rate = |way: &VerifyWay| way.slower().unwrap_or_default();
    works.max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

/// Says what the figures of a matrix are.
pub(crate) fn head(matrix: &Matrix) -> String {
    match matrix.measured {
        true => format!(
            "GB/s of the slower direction between host and GPU, and its part of what the link between the two can do; \
             RDMA writes of {}, medians",
            text::bytes(matrix.message_bytes)
        ),
        false => "not measured: what doctor expects".to_owned(),
    }
}

/// Returns a pair in short: distance, way, GB/s, their part of what the link can do, marks.
pub(crate) fn cell(pair: &VerifyPair) -> String {
    let distance = pair.distance.map_or("-", |distance| distance.text());
    let mut said = match best(pair) {
        Some(way) => match way.slower() {
            Some(rate) => {
                let part = way.limit.map_or(String::new(), |limit| format!(" {:.0}%", rate / limit * 100.0));
                format!("{distance} {}{:.1}{part}", letter(way.way), rate / 1e9)
            }
            None => format!("{distance} {}", letter(way.way)),
        },
        None if pair.ways.iter().any(|way| way.message.as_deref().is_some_and(|why| why.contains("expected: yes"))) => {
            format!("{distance} ?")
        }
        None => format!("{distance} -"),
    };
    if best(pair).is_some_and(|way| way.level == Level::Warn && way.slower() < way.limit.map(|limit| limit / 2.0)) {
        said.push(SLOW.0);
    }
    if best(pair).is_some_and(VerifyWay::is_uneven) {
        said.push(UNEVEN.0);
    }
    if pair.ways.iter().any(VerifyWay::deceives) {
        said.push(WRONG.0);
    }
    said
}

pub(super) fn print(page: &mut Page, matrix: &Matrix) {
    let plain = Style::new();
    for missing in &matrix.missing {
        page.behind("MISSING ", style(Level::Fail), missing, plain);
    }
    page.wrapped("", &head(matrix), plain);
    let names: Vec<&str> = nics(&matrix.pairs);
    let room = page.width.saturating_sub(30) / 18;
    for some in names.chunks(room.max(1)) {
        rows(page, matrix, some);
        page.line("");
    }
    for gpu in &matrix.gpus {
        page.wrapped(&format!("{:<6} ", gpu.label), &format!("{}  {}", gpu.address, gpu.name), plain);
    }
    let used = |way: Way| matrix.pairs.iter().filter_map(best).any(|best| best.way == way);
    for way in Way::ALL.into_iter().filter(|way| used(*way)) {
        page.wrapped(&format!("{:<6} ", letter(way)), way.text(), plain);
    }
    let cells: String = matrix.pairs.iter().map(cell).collect();
    let marks = [SLOW, UNEVEN, WRONG, ('?', "not tried; doctor expects that it works")];
    for (mark, words) in marks.into_iter().filter(|(mark, _)| cells.contains(*mark)) {
        page.wrapped(&format!("{mark:<6} "), words, style(Level::Warn));
    }
    without_a_link(page, &matrix.nics_without_a_link);
    if matrix.measured {
        causes(page, matrix);
    }
    page.wrapped("matrix: ", matrix.outcome().text(), Style::new().bold());
}

/// Prints why a way is slow or wrong, and why a pair has none. What is the same of several pairs is said once.
fn causes(page: &mut Page, matrix: &Matrix) {
    const MOST: usize = 12;
    let mut told: Vec<(Level, String, Vec<String>)> = Vec::new();
    for pair in &matrix.pairs {
        let has_one = best(pair).is_some();
        for way in pair.ways.iter().filter(|way| way.level >= Level::Warn || !has_one) {
            let why = format!("{}: {}", way.way.text(), way.message.as_deref().unwrap_or_default());
            let gpu = matrix.gpus.iter().find(|gpu| gpu.address == pair.gpu).map_or(&pair.gpu, |gpu| &gpu.label);
            let name = format!("{gpu} with {}", pair.nic);
            match told.iter_mut().find(|(level, known, _)| *level == way.level && *known == why) {
                Some((.., pairs)) => pairs.push(name),
                None => told.push((way.level, why, vec![name])),
            }
        }
    }
    for (level, why, pairs) in told.iter().take(MOST) {
        let more = match pairs.len() {
            1 => String::new(),
            count => format!(" and {}", text::count(count - 1, "other")),
        };
        let first = pairs.first().map_or("", String::as_str);
        page.behind(&format!("  {:<5}", level.text()), style(*level), &format!("{first}{more}, {why}"), Style::new());
    }
    if told.len() > MOST {
        page.line("         --json has more of them");
    }
}

/// Returns the NICs in the order of their numbers.
pub(crate) fn nics(pairs: &[VerifyPair]) -> Vec<&str> {
    let mut names: Vec<&str> = pairs.iter().map(|pair| pair.nic.as_str()).collect();
    names.sort_by_key(|name| (name.len(), *name));
    names.dedup();
    names
}

/// Prints a table of all GPUs with some of the NICs.
fn rows(page: &mut Page, matrix: &Matrix, names: &[&str]) {
    let mut head = vec![""];
    head.extend(names);
    head.push("NCCL");
    let mut table = table(&head, &[]);
    for gpu in &matrix.gpus {
        let pairs: Vec<&VerifyPair> = matrix.pairs.iter().filter(|pair| pair.gpu == gpu.address).collect();
        if pairs.is_empty() {
            continue;
        }
        let mut row = vec![gpu.label.clone()];
        row.extend(
            names
                .iter()
                .map(|name| pairs.iter().find(|pair| pair.nic == *name).map_or(String::new(), |pair| cell(pair))),
        );
        row.push(nccl(gpu, &pairs));
        table.add_row(row);
    }
    page.table(&mut table);
}

/// Returns what NCCL does with a GPU: its best NIC, and how NCCL uses that.
pub(crate) fn nccl(gpu: &Place, pairs: &[&VerifyPair]) -> String {
    let best = pairs.iter().find(|pair| Some(&pair.nic) == gpu.best_nic.as_ref()).or(pairs.first());
    best.map_or("-".to_owned(), |pair| format!("{}, {}", pair.nic, pair.nccl.as_deref().unwrap_or("unknown")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::pci::Distance;
    use crate::print::fits;

    #[test]
    fn a_slow_way_and_one_that_loses_bytes_are_marked() {
        let way = |way: Way, level: Level, rate: f64| VerifyWay {
            level,
            register_us: Some(1.0),
            to_gpu: Some(rate),
            spread: Some(0.09),
            from_gpu: Some(rate + 1e9),
            limit: Some(5e10),
            ..VerifyWay::of(way)
        };
        let pair = |gpu: usize, nic: usize, ways: Vec<VerifyWay>| VerifyPair {
            gpu: format!("0000:{gpu:02x}:00.0"),
            nic: format!("mlx5_{nic}"),
            distance: Some(Distance::Pix),
            nccl: Some("dma-buf".to_owned()),
            ways,
        };
        let place = |n: usize| Place {
            label: format!("GPU{n}"),
            address: format!("0000:{n:02x}:00.0"),
            name: "GH100 [H200 SXM 141GB]".to_owned(),
            numa_node: None,
            way: Vec::new(),
            iommu: "off",
            c2c: false,
            best_nic: Some("mlx5_1".to_owned()),
        };
        let ways = |gpu: usize, nic: usize| match (gpu, nic) {
            (0, 0) => vec![VerifyWay { message: Some("slow: 2.00".to_owned()), ..way(Way::DmaBuf, Level::Warn, 2e9) }],
            // Pairs of the last NIC have no way.
            (_, 15) => vec![VerifyWay::skipped(Way::DmaBuf, "refused".to_owned())],
            (1, 0) => vec![VerifyWay { spread: Some(0.11), ..way(Way::DmaBuf, Level::Ok, 3e10) }],
            (2, 0) => vec![VerifyWay { spread: Some(0.1), ..way(Way::DmaBuf, Level::Ok, 2.9e10) }],
            (0, 1) => vec![way(Way::DmaBuf, Level::Ok, 4e10), way(Way::PeerMemory, Level::Fail, 0.0)],
            _ => vec![way(Way::DmaBuf, Level::Ok, 4e10), way(Way::PeerMemory, Level::Ok, 4.5e10)],
        };
        let pairs = (0..8).flat_map(|gpu| (0..16).map(move |nic| (gpu, nic)));
        let matrix = Matrix {
            message_bytes: 1 << 20,
            measured: true,
            missing: Vec::new(),
            nics_without_a_link: vec!["mlx5_16".to_owned()],
            gpus: (0..8).map(place).collect(),
            nics: Vec::new(),
            pairs: pairs.map(|(gpu, nic)| pair(gpu, nic, ways(gpu, nic))).collect(),
        };
        let text = fits(&Answer::Matrix(matrix));
        for words in [
            "PIX d2.0 4%<",
            "PIX d40.0 80%!",
            "PIX d30.0 60%~",
            "PIX d29.0 58% ",
            "WARN GPU0 with mlx5_0, dma-buf: slow: 2.00",
            "SKIP GPU0 with mlx5_15 and 7 others, dma-buf: refused",
            "no link: mlx5_16 (not tried: no port is active)",
            "~      its rounds differ by more than 10 %",
            "PIX p45.0 90%",
            "mlx5_1, dma-buf",
            "matrix: NOT USABLE",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert_eq!((text.matches("PIX p45.0").count(), text.matches("PIX -").count()), (116, 8), "{text}");
    }
}
