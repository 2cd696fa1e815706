// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example checks`: writes docs/results/checks.md, which lists every check and rule, and
//! tests/situations, where stands what doctor says of every recorded machine.

use peermemctl::catalogue;
use peermemctl::consumer;
use peermemctl::doctor;
use peermemctl::environment::Environment;
use peermemctl::facts;
use peermemctl::machine::Machine;
use peermemctl::recorded::{self, tree::Tree};
use serde_json::{json, Value};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, text) in files()? {
        std::fs::write(root.join(file), text)?;
    }
    Ok(())
}

/// The files that this writes, below the package's folder.
pub const PAGE: &str = "../../docs/results/checks.md";
/// The machines that suite `doctor` of tests/guest makes, too. The guest is built with this file.
pub const LIVE: &str = "tests/situations/live.json";
pub const RECORDED: &str = "tests/situations/recorded.json";

/// Returns each of the files and its text.
pub fn files() -> anyhow::Result<[(&'static str, String); 3]> {
    let [live, recorded] = situations()?;
    let text = |rows: Vec<Value>| Ok::<_, anyhow::Error>(serde_json::to_string_pretty(&rows)? + "\n");
    Ok([(PAGE, page()?), (LIVE, text(live)?), (RECORDED, text(recorded)?)])
}

const HEAD: &str = "# What doctor looks at

Written by `cargo run --example checks` in tools/peermemctl; do not edit. `peermemctl explain` prints the
first table. What doctor says of each recorded machine stands in tools/peermemctl/tests/situations.

| check | looks at | why, and how it is judged |
|---|---|---|
";

const SOURCES: &str = "
The rules of applications were read in these files (repository's commit):

";

const RULES: &str = "
## Rules that hold for some versions

| of | versions | what holds | where that was read |
|---|---|---|---|
";

/// The recorded machines, by name.
pub fn machines() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let mut machines: Vec<(String, PathBuf)> = names.map(|path| (name(&path), path)).collect();
    machines.sort();
    machines
}

fn page() -> anyhow::Result<String> {
    let mut page = HEAD.to_owned();
    for entry in &catalogue::CHECKS {
        writeln!(page, "| `{}` | {} | {} |", entry.id, cell(entry.looks), cell(entry.why))?;
    }
    page += SOURCES;
    for consumer in consumer::ALL {
        writeln!(page, "- `{}`: {}", consumer.id, consumer.source)?;
    }
    page += RULES;
    for rule in facts::ALL {
        writeln!(page, "| {} | {} | {} | {} |", rule.of, rule.range(), cell(rule.what), cell(rule.source))?;
    }
    for (driver, from, source) in facts::DMA_BUF_DRIVERS {
        writeln!(page, "| Linux | from {from} | its own {driver} registers dma-bufs | {source} |")?;
    }
    writeln!(
        page,
        "| Linux | all | its own {} register no dma-bufs | their sources |",
        facts::NO_DMA_BUF_DRIVERS.join(", ")
    )?;
    Ok(page)
}

/// Returns what doctor says of the recorded machines: of those that the guest makes, too, and of the
/// others.
fn situations() -> anyhow::Result<[Vec<Value>; 2]> {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/src/suites/doctor.rs");
    let suite = std::fs::read_to_string(suite)?;
    let mut both = [Vec::new(), Vec::new()];
    for (name, file) in machines() {
        let tree = Tree::read(&file)?;
        let root = recorded::open(&file)?;
        let mut machine = Machine::look(&root);
        machine.ask_tools();
        let report = doctor::examine(&machine, &Environment::own(&root), &[]);
        let mut findings = tree.findings.iter().filter(|finding| *finding != "UNKNOWN");
        let first = findings.next();
        let found = first.and_then(|first| {
            let is_it = |check: &&peermemctl::check::Check| format!("{} {}", check.level.text(), check.id) == *first;
            report.checks().find(is_it)
        });
        let is_live = suite.contains(&format!("\"{name}\""));
        both[usize::from(!is_live)].push(json!({
            "tree": name,
            "exit": report.outcome.exit_code(),
            "finding": first,
            "message": found.map(|check| &check.message),
            "fix": found.and_then(|check| check.fix.as_ref()),
            "also": findings.collect::<Vec<_>>(),
        }));
    }
    Ok(both)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
