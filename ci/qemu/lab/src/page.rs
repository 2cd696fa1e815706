// SPDX-License-Identifier: GPL-2.0

//! Writes and reads tables in Markdown, as the pages of docs/results have them, and says when and on
//! which machine a page was made.

use crate::sh;
use anyhow::Result;
use std::fs;

pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows = rows.into_iter().map(|row| format!("| {} |\n", row.join(" | ")));
    format!("| {} |\n|{}\n{}", head.join(" | "), "---|".repeat(head.len()), rows.collect::<String>())
}

/// Returns the cells of each row of each table, including the heads.
pub fn rows(page: &str) -> impl Iterator<Item = Vec<String>> + '_ {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    rows.map(|row| row.trim_end_matches('|').split('|').map(|cell| cell.trim().to_string()).collect())
}

/// Returns the date of today as `YYYY-MM-DD`.
pub fn today() -> Result<String> {
    Ok(sh::output(sh::command("date").arg("+%F"))?.trim().to_string())
}

/// Describes the host's processors and memory in words.
pub fn machine() -> String {
    let value = |text: &str, key: &str| {
        text.lines().find(|l| l.starts_with(key)).and_then(|l| Some(l.split_once(':')?.1.trim().to_string()))
    };
    let processor = value(&sh::output(&mut sh::command("lscpu")).unwrap_or_default(), "Model name")
        .unwrap_or_else(|| "unknown".to_string());
    let memory = value(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal")
        .and_then(|m| m.split(' ').next()?.parse::<u64>().ok());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{processors} × {processor}, {} GiB", memory.unwrap_or(0) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let row = ["x", "", "7"].map(String::from).to_vec();
        let page = format!("# Page\n\n{}\nMore.\n", table(&["a", "b", "c"], [row.clone()]));
        assert!(page.contains("\n| a | b | c |\n|---|---|---|\n| x |  | 7 |\n"), "{page}");
        assert_eq!(rows(&page).nth(1), Some(row));
    }
}
