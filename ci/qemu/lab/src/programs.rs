// SPDX-License-Identifier: GPL-2.0

//! docs/results/programs.md: what programs of others did in the lab, by each way. `make soak` writes it
//! after each boot that ran some of them; lines of what it did not run again stay.

use lab::page;
use serde_json::Value;

pub const FILE: &str = "docs/results/programs.md";

const HEAD: &str = "# Programs that people run

NIXL, UCX and Mooncake as they are published, and libfabric with its own tests, in the lab: what
moved, by which way, and what they looked at to choose it, out of their own logs. A pin, a
revocation: as the module counted them; NVIDIA's counts nothing. `no way`: neither the module nor
dma-buf was offered to the program. `make soak ONLY='*/programs-*,*/fabtests'` writes this page;
[consumers.md](../consumers.md) says what an admin sets.

";

const COLUMNS: [&str; 11] = [
    "program",
    "version",
    "way",
    "module",
    "mode",
    "what",
    "looked at",
    "bytes compared",
    "registrations",
    "pins",
    "revocations",
];
/// The columns that say what a line is about: a later run's line with the same takes its place.
const KEYS: [usize; 6] = [0, 1, 2, 3, 4, 5];

/// The page with these rows of the guest in the place of what it had; `None` for a boot without any.
pub fn merged(old: &str, rows: &[Value]) -> Option<String> {
    let new: Vec<Vec<String>> = rows.iter().map(line).collect();
    let key = |line: &[String]| KEYS.map(|at| line.get(at).cloned().unwrap_or_default());
    let kept = page::rows(old).filter(|line| line[0] != COLUMNS[0] && !new.iter().any(|new| key(new) == key(line)));
    let mut lines: Vec<_> = kept.chain(new.iter().cloned()).collect();
    lines.sort_unstable();
    lines.dedup();
    (!rows.is_empty()).then(|| format!("{HEAD}{}", page::table(&COLUMNS, lines)))
}

fn line(row: &Value) -> Vec<String> {
    let text = |name: &str| match &row[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let result = match row["refused"].as_str() {
        Some(why) => format!("refused: {why}"),
        None => text("compared"),
    };
    let cells = ["program", "version", "way", "module", "mode", "what", "looked_at"].map(text);
    cells.into_iter().chain([result]).chain(["registrations", "pins", "revocations"].map(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_new_run_takes_the_place_of_the_old() {
        let row = |compared: usize| {
            json!({
                "program": "nixl", "version": "1.5.1", "way": "dma-buf", "module": "none", "mode": "", "what": "a to b",
                "looked_at": "", "compared": compared, "refused": null, "registrations": 0, "pins": null, "revocations": null,
            })
        };
        let refused = json!({"program": "mooncake", "refused": "Bad address"});
        let page = merged("", &[row(1), refused]).unwrap();
        let page = merged(&page, &[row(2)]).unwrap();
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("| n") || line.starts_with("| m")).collect();
        assert_eq!(lines.len(), 2, "{page}");
        assert!(lines[0].contains("refused: Bad address"), "{page}");
        assert!(lines[1].contains("| 2 | 0 |"), "{page}");
        assert_eq!(merged(&page, &[]), None);
    }
}
