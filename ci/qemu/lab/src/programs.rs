// SPDX-License-Identifier: GPL-2.0

//! Writes docs/results/programs.md: what programs of other projects did in the lab, by each way.
//! `make soak` updates it after each boot that ran some of them, and keeps the lines of programs
//! that did not run again.

use std::collections::BTreeMap;

use lab::page;
use serde_json::Value;

pub const FILE: &str = "docs/results/programs.md";

const HEAD: &str = "# Programs that people run

NIXL, UCX and Mooncake as they are published, and libfabric with its own tests, in the lab: what
moved, by which way, and what they looked at to choose it, out of their own logs. A pin, a
revocation: as the module counted them; NVIDIA's counts nothing. `no way`: neither the module nor
dma-buf was offered to the program. `make soak ONLY='*/programs-*,*/built'` writes this page;
[consumers.md](../consumers.md) says what an admin sets. How they choose, in their own words:
[NIXL](programs-nixl.txt), [ucx_perftest](programs-ucx.txt), [libfabric](programs-libfabric.txt).

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
/// The columns that say what a line is about. A later run's line with the same values replaces the
/// earlier line.
const KEYS: [usize; 6] = [0, 1, 2, 3, 4, 5];

/// Returns the page with these rows of the guest in place of the earlier ones, or `None` for a boot
/// without such rows.
pub fn merged(old: &str, rows: &[Value]) -> Option<String> {
    let new: Vec<Vec<String>> = rows.iter().map(line).collect();
    let key = |line: &[String]| KEYS.map(|at| line.get(at).cloned().unwrap_or_default());
    let kept = page::rows(old).filter(|line| line[0] != COLUMNS[0] && !new.iter().any(|new| key(new) == key(line)));
    let mut lines: Vec<_> = kept.chain(new.iter().cloned()).collect();
    lines.sort_unstable();
    lines.dedup();
    (!rows.is_empty()).then(|| format!("{HEAD}{}", page::table(&COLUMNS, lines)))
}

/// Returns, for each program with a log in these rows, a file beside the page and its text: the longest
/// log that each version wrote of choosing each way. A way that has no log in these rows keeps the one
/// in the present file, which `read` returns.
pub fn logs(rows: &[Value], read: impl Fn(&str) -> String) -> Vec<(String, String)> {
    let mut longest: BTreeMap<&str, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for row in rows {
        let log: Vec<&str> = row["log"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(program) = row["program"].as_str().filter(|_| !log.is_empty()) else { continue };
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        let title = format!("{}, {}, module: {} {}", text("version"), text("way"), text("module"), text("mode"));
        let known = longest.entry(program).or_default().entry(title.trim_end().to_string()).or_default();
        if log.len() > known.len() {
            *known = log;
        }
    }
    let file = |(program, of): (&str, BTreeMap<String, Vec<&str>>)| {
        let file = format!("docs/results/programs-{program}.txt");
        let old = read(&file);
        let parts: Vec<&str> = old.trim_end().split("\n\n").collect();
        let known = parts.chunks_exact(2).map(|part| (part[0].to_string(), part[1].to_string()));
        let new = of.into_iter().map(|(title, log)| (title, log.join("\n")));
        let sections: BTreeMap<String, String> = known.chain(new).collect();
        let sections: Vec<_> = sections.iter().map(|(title, log)| format!("{title}\n\n{log}\n")).collect();
        (file, sections.join("\n"))
    };
    longest.into_iter().map(file).collect()
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
    fn the_longest_log_of_each_way_is_kept_and_those_of_other_ways_and_versions_stay() {
        let row =
            |log: &[&str]| json!({"program": "nixl", "version": "2", "way": "dma-buf", "module": "none", "log": log});
        let rows = [row(&["a"]), row(&["b", "c"]), row(&[]), json!({"program": "ucx"})];
        let file = |text: &str| [("docs/results/programs-nixl.txt".to_string(), text.to_string())];
        let new = "2, dma-buf, module: none\n\nb\nc\n";
        assert_eq!(logs(&rows, |_| String::new()), file(new));
        let others = "1, dma-buf, module: none\n\nd\n\n2, peer memory, module: ours\n\ne\nf\n";
        let (before, after) = others.split_at(others.find("\n2").unwrap());
        let old = format!("2, dma-buf, module: none\n\ng\n\n{others}");
        let wanted = format!("{before}\n{new}{after}");
        assert_eq!(logs(&rows, |_| old.to_string()), file(&wanted));
    }

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
