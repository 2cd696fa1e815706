// SPDX-License-Identifier: GPL-2.0
//! Every recorded machine is judged as docs/doctor.md says: exactly these findings, with these words and this mend.

mod common;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn peermemctl(root: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peermemctl")).arg("--root").arg(root).args(args).output().unwrap()
}

/// A row of the table in docs/doctor.md.
struct Row {
    tree: String,
    exit: i32,
    /// `FAIL module.file`; `-` for a machine without findings.
    finding: String,
    message: String,
    mend: String,
    also: BTreeSet<String>,
}

fn table() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let text = fs::read_to_string(path).unwrap();
    let rows: Vec<Row> = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| {
            let line = line.replace(r"\|", "\u{1}");
            line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect::<Vec<_>>()
        })
        .filter(|cells| cells.len() == 7 && cells[1].starts_with('`'))
        .map(|cells| Row {
            tree: cells[1].trim_matches('`').to_owned(),
            exit: cells[2].parse().unwrap(),
            finding: cells[3].replace('`', ""),
            message: cells[4].clone(),
            mend: cells[5].trim_matches('`').to_owned(),
            also: cells[6].replace('`', "").split(", ").filter(|cell| !cell.is_empty()).map(str::to_owned).collect(),
        })
        .collect();
    assert!(rows.len() >= 25, "the table has only {} rows", rows.len());
    rows
}

/// Warnings and failures, but for the consumers, who follow from the rest: `LEVEL id`, message, mend.
fn findings(report: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["checks"].as_array().unwrap())
        .filter(|check| matches!(check["level"].as_str(), Some("WARN" | "FAIL")) && check["id"] != "consumers.finds")
        .map(|check| {
            (format!("{} {}", text(&check["level"]), text(&check["id"])), text(&check["message"]), text(&check["mend"]))
        })
        .collect()
}

#[test]
fn doctor_finds_what_the_table_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for row in table() {
        let dir = common::unpack(&row.tree);
        let output = peermemctl(dir.path(), &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = findings(&report);
        let names: BTreeSet<String> = found.iter().map(|(name, ..)| name.clone()).collect();
        let mut expected = row.also.clone();
        if row.finding != "-" {
            expected.insert(row.finding.clone());
            if !found.contains(&(row.finding.clone(), row.message.clone(), row.mend.clone())) {
                wrong.push(format!(
                    "{}: no {} \"{}\" mend \"{}\" in {found:#?}",
                    row.tree, row.finding, row.message, row.mend
                ));
            }
        }
        if names != expected {
            wrong.push(format!("{}: found {names:?}, expected {expected:?}", row.tree));
        }
        if output.status.code() != Some(row.exit) {
            wrong.push(format!("{}: exit {:?}, expected {}", row.tree, output.status.code(), row.exit));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_tree_is_in_the_table() {
    let in_table: BTreeSet<String> = table().into_iter().map(|row| row.tree).collect();
    let recorded: BTreeSet<String> = fs::read_dir(common::trees())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".tree").to_owned())
        .collect();
    assert_eq!(in_table, recorded);
}

#[test]
fn text_fits_100_columns_and_has_no_colour_outside_a_terminal() {
    for row in table() {
        let dir = common::unpack(&row.tree);
        for command in ["status", "doctor", "list", "failures", "topo"] {
            let output = peermemctl(dir.path(), &[command]);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(!text.contains('\u{1b}'), "{} {command} is coloured", row.tree);
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{} {command}: {line}", row.tree);
            }
        }
    }
}

#[test]
fn status_says_no_exactly_where_registering_cannot_work() {
    let usable = |tree: &str| {
        let dir = common::unpack(tree);
        let output = peermemctl(dir.path(), &["status", "--json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(if answer["usable"] == true { 0 } else { 2 }), "{tree}");
        answer["usable"].as_bool().unwrap()
    };
    for tree in ["healthy", "healthy-idle", "legacy", "fresh", "port-down", "refused-busy"] {
        assert!(usable(tree), "{tree}");
    }
    for tree in ["h200-no-api", "nothing-loaded", "module-not-loaded", "no-rdma-device", "name-taken", "nvidia-stub"] {
        assert!(!usable(tree), "{tree}");
    }
}

#[test]
fn list_names_the_process_that_keeps_rmmod_from_working() {
    let dir = common::unpack("healthy");
    let output = peermemctl(dir.path(), &["list", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["processes"][0]["comm"], "hold-memory");
    assert_eq!(list["processes"][0]["bytes"], 4 << 20);
    assert_eq!(list["references"], 1);
}

#[test]
fn failures_are_in_words() {
    let dir = common::unpack("bar1-refused");
    let output = peermemctl(dir.path(), &["failures"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ENOMEM") && text.contains("BAR1 is full") && text.contains("hold-memory"), "{text}");
}

#[test]
fn a_command_without_its_module_says_why() {
    let dir = common::unpack("module-not-loaded");
    for command in ["list", "failures", "watch"] {
        let output = peermemctl(dir.path(), &[command]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("nvidia_peermem is not loaded"), "{command}");
    }
}

#[test]
fn the_committed_schema_is_that_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/peermemctl.schema.json");
    let committed: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let current = serde_json::to_value(schemars::schema_for!(peermemctl::answer::Output)).unwrap();
    assert_eq!(committed, current, "cargo run --example generate -- DIR, and copy DIR/peermemctl.schema.json to docs/");
}

#[test]
fn the_parser_is_consistent() {
    peermemctl::cli::parser().debug_assert();
}
