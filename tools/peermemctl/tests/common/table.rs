// SPDX-License-Identifier: GPL-2.0
//! The table of situations in docs/results/checks.md, which recorded trees (tests/trees.rs) and
//! live machines (tests/guest) are held against.

use std::collections::BTreeSet;

/// One situation.
pub struct Row {
    pub tree: String,
    /// Made in the lab by suite `doctor` of tests/guest, too.
    pub live: bool,
    pub exit: i32,
    /// `FAIL module.file`; `-` for a machine without findings.
    pub finding: String,
    pub message: String,
    pub fix: String,
    pub also: BTreeSet<String>,
}

/// Reads the page.
pub fn rows(page: &str) -> Vec<Row> {
    page.lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| {
            let line = line.replace(r"\|", "\u{1}");
            line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect::<Vec<_>>()
        })
        .filter(|cells| cells.len() == 8 && cells[1].starts_with('`'))
        .map(|cells| Row {
            tree: cells[1].trim_matches('`').to_owned(),
            live: cells[2] == "yes",
            exit: cells[3].parse().unwrap_or_else(|_| panic!("{}: exit is {:?}", cells[1], cells[3])),
            finding: cells[4].replace('`', ""),
            message: cells[5].clone(),
            fix: cells[6].trim_matches('`').to_owned(),
            also: cells[7].replace('`', "").split(", ").filter(|cell| !cell.is_empty()).map(str::to_owned).collect(),
        })
        .collect()
}
