// SPDX-License-Identifier: GPL-2.0

//! Writes and reads tables in Markdown, as the pages of docs/results have them.

pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows = rows.into_iter().map(|row| format!("| {} |\n", row.join(" | ")));
    format!("| {} |\n|{}\n{}", head.join(" | "), "---|".repeat(head.len()), rows.collect::<String>())
}

/// Returns the cells of each row of each table, including the heads.
pub fn rows(page: &str) -> impl Iterator<Item = Vec<String>> + '_ {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    rows.map(|row| row.trim_end_matches('|').split('|').map(|cell| cell.trim().to_string()).collect())
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
