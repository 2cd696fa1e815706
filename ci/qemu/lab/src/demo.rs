//! `make demo`: one boot, one table, one verdict.

use crate::ctx::Lab;
use crate::image::{self, Module, More};
use crate::judge::judge;
use crate::kernel::Flavour;
use crate::ktap::Outcome;
use crate::machine::{print_test, Boot};
use crate::prepare;
use anyhow::{Context, Result};
use comfy_table::{presets, CellAlignment, Table};
use serde_json::{json, Value};
use std::fs;

pub fn run(lab: &Lab, module: Module) -> Result<bool> {
    let ready = prepare(lab, Flavour::Debug)?;
    let kernel = &ready.kernel;
    let image = image::build(lab, kernel, &ready.parts, module, More::Nothing)?;
    let (name, what) = match module {
        Module::Ours => ("demo", "nvidia-peermem in Rust"),
        Module::Rival => ("demo-rival", "NVIDIA's C nvidia-peermem"),
    };
    let mut boot = Boot::new(name, "demo");
    boot.append.extend(module.word());
    let report = boot.run(lab, kernel, &image, "")?;
    let mut tests = report.tests.clone();
    for test in judge(&report, &[], module) {
        print_test(&test);
        tests.push(test);
    }
    let empty = Vec::new();
    let rows = report.json.get("demo").unwrap_or(&empty);
    let mut reasons: Vec<String> = missing(rows, modes(module));
    reasons.extend(tests.iter().filter(|t| t.outcome == Outcome::Failed).map(|t| t.name.clone()));
    let passed = reasons.is_empty();

    println!("\n{what}, Linux {} in a virtual machine (emulated: read the MB/s side by side only)\n", kernel.release);
    println!("{}\n", table(rows));
    let file = lab.repo.join("build").join(format!("{name}.json"));
    let all = json!({
        "result": if passed { "PASS" } else { "FAIL" },
        "reasons": reasons,
        "module": what,
        "kernel": kernel.release,
        "seconds": report.elapsed.as_secs(),
        "tests": { "passed": count(&tests, |o| *o == Outcome::Passed), "failed": count(&tests, |o| *o == Outcome::Failed) },
        "alarms": report.alarms.iter().map(|a| a.line.clone()).collect::<Vec<_>>(),
        "guest": report.json,
    });
    fs::write(&file, serde_json::to_string_pretty(&all)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("numbers: {}   console: {}", lab.short(&file), lab.short(&report.console));
    if passed {
        println!("demo: PASS");
    } else {
        println!("demo: FAIL {} (console: {})", reasons.join("; "), report.console.display());
    }
    Ok(passed)
}

fn count(tests: &[crate::ktap::Test], want: impl Fn(&Outcome) -> bool) -> usize {
    tests.iter().filter(|t| want(&t.outcome)).count()
}

const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_read_bw", "ib_send_bw"];

fn text(row: &Value, name: &str) -> String {
    match &row[name] {
        Value::Null => "-".to_string(),
        Value::String(s) => s.clone(),
        Value::Number(n) if n.is_f64() => format!("{:.1}", n.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// NVIDIA's module of driver 550 has one mode only, revocable pins.
fn modes(module: Module) -> usize {
    match module {
        Module::Ours => 2,
        Module::Rival => 1,
    }
}

/// A demo that did not show what it is there to show has not passed, whatever the guest says.
fn missing(rows: &[Value], wanted: usize) -> Vec<String> {
    let mut modes: Vec<String> = rows.iter().map(|r| text(r, "mode")).collect();
    modes.sort();
    modes.dedup();
    modes.retain(|m| m != "-");
    let mut missing = Vec::new();
    if modes.len() < wanted {
        missing.push(format!("{wanted} modes were to be shown, these were: {}", modes.join(" ")));
    }
    for mode in &modes {
        for program in PROGRAMS {
            for buffer in ["gpu", "host"] {
                // Host memory does not know of modes: once is enough.
                let shown = rows.iter().any(|r| {
                    r["test"] == program
                        && r["buffer"] == buffer
                        && (buffer == "host" || r["mode"] == mode.as_str())
                        && r["mb_s"].as_f64() > Some(0.0)
                });
                if !shown {
                    missing.push(format!("{program} with a {buffer} buffer in mode {mode} was not shown"));
                }
            }
        }
    }
    missing
}

fn table(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["mode", "program", "buffer", "MB/s", "MRs", "sg entries", "bytes pinned"]);
    for row in rows {
        // Host memory does not pass through the module: it has no mode.
        let mode = if row["buffer"] == "host" { "-".to_string() } else { text(row, "mode") };
        let rest = ["test", "buffer", "mb_s", "mrs", "sg_entries", "bytes_pinned"].map(|name| text(row, name));
        table.add_row([mode].into_iter().chain(rest));
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Value> {
        let mut rows = Vec::new();
        for mode in ["persistent", "legacy"] {
            for test in PROGRAMS {
                for buffer in ["gpu", "host"] {
                    rows.push(json!({"mode": mode, "test": test, "buffer": buffer, "mb_s": 10.0}));
                }
            }
        }
        rows
    }

    #[test]
    fn everything_promised_must_be_shown() {
        assert!(missing(&rows(), 2).is_empty());
        let mut short = rows();
        short.retain(|r| !(r["mode"] == "legacy" && r["test"] == "ib_send_bw" && r["buffer"] == "gpu"));
        assert_eq!(missing(&short, 2), ["ib_send_bw with a gpu buffer in mode legacy was not shown"]);
        short.retain(|r| r["mode"] == "persistent");
        assert_eq!(missing(&short, 1), [] as [&str; 0]);
        assert_eq!(missing(&short, 2), ["2 modes were to be shown, these were: persistent"]);
        let mut still = rows();
        still[0]["mb_s"] = json!(0.0);
        assert_eq!(missing(&still, 2).len(), 1, "a row without any data moved counts as shown");
        assert!(!missing(&[], 1).is_empty());
    }

    #[test]
    fn the_table_has_a_dash_for_what_is_not_known() {
        let table =
            table(&[json!({"mode": "legacy", "test": "ib_read_bw", "buffer": "host", "mb_s": 12.345})]).to_string();
        assert!(table.contains("12.3") && table.contains(" - ") && !table.contains("legacy"), "{table}");
    }
}
