// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example checks > ../../docs/results/checks.md`: every check, and what doctor says
//! of every recorded machine.

use peermemctl::catalogue;
use peermemctl::consumer;
use peermemctl::doctor;
use peermemctl::environment::Environment;
use peermemctl::facts;
use peermemctl::machine::Machine;
use peermemctl::recorded::{self, tree::Tree};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() -> anyhow::Result<()> {
    print!("{}", page()?);
    Ok(())
}

const HEAD: &str = "# What doctor looks at, and what it says

Written by `cargo run --example checks` in tools/peermemctl; do not edit. `peermemctl explain` prints the
first table.

| check | looks at | why, and how it is judged |
|---|---|---|
";

const SITUATIONS: &str = "
The rules of applications were read in these files (repository's commit):

";

const RULES: &str = "
## Rules that hold for some versions

| of | versions | what holds | where that was read |
|---|---|---|---|
";

const TABLE: &str = "
## Situations

Each row is a machine that was brought into that state in the lab, or is one as it is (`h200-no-api`),
recorded in `tools/peermemctl/tests/trees`; `hgx*`, `slots` and `gb*` are made up. The head of each file
says which findings doctor must have there; the words are doctor's. Live: suite `doctor` of tests/guest
brings a machine there and asks again.

| situation | recorded as | live | exit | finding | message | fix | also found |
|---|---|---|---|---|---|---|---|
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

pub fn page() -> anyhow::Result<String> {
    let mut page = HEAD.to_owned();
    for entry in &catalogue::CHECKS {
        writeln!(page, "| `{}` | {} | {} |", entry.id, cell(entry.looks), cell(entry.why))?;
    }
    page += SITUATIONS;
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
    page += TABLE;
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/src/suites/doctor.rs");
    let suite = std::fs::read_to_string(suite)?;
    for (name, file) in machines() {
        let tree = Tree::read(&file)?;
        let root = recorded::open(&file)?;
        let mut machine = Machine::look(&root);
        machine.ask_tools();
        let report = doctor::examine(&machine, &Environment::own(&root), &[]);
        let live = if suite.contains(&format!("\"{name}\"")) { "yes" } else { "" };
        let mut findings = tree.findings.iter().filter(|finding| *finding != "UNKNOWN");
        let first = findings.next();
        let found = first.and_then(|first| {
            let is_it = |check: &&peermemctl::check::Check| format!("{} {}", check.level.text(), check.id) == *first;
            report.checks().find(is_it)
        });
        writeln!(
            page,
            "| {} | `{name}` | {live} | {} | {} | {} | {} | {} |",
            cell(&tree.about),
            report.outcome.exit_code(),
            first.map_or("-".to_owned(), |first| format!("`{first}`")),
            cell(found.map_or("", |check| &check.message)),
            found.and_then(|check| check.fix.as_ref()).map_or(String::new(), |fix| format!("`{}`", cell(fix))),
            findings.map(|finding| format!("`{finding}`")).collect::<Vec<_>>().join(", "),
        )?;
    }
    Ok(page)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
