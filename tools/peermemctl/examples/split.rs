// SPDX-License-Identifier: GPL-2.0
//! `cargo run --example split -- OUT/*.txt`: puts the machines that tests/live/boot.sh recorded
//! into tests/trees. What was an overlay stays an overlay of the same base. All other machines stay
//! as they are, also those whose base is recorded again. A recording that the end of a boot cut off
//! is left out.

#[path = "../tests/common/overlay.rs"]
mod overlay;

use peermemctl::recorded::tree::Tree;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn main() {
    let trees = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees");
    let file = |name: &str| trees.join(format!("{name}.tree"));
    let names = fs::read_dir(&trees).unwrap().map(|entry| entry.unwrap().path());
    let mut machines: BTreeMap<String, Tree> = names
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), Tree::read(&path).unwrap()))
        .collect();
    for results in std::env::args().skip(1) {
        for (name, text) in recorded(&fs::read_to_string(results).unwrap().replace('\r', "")) {
            let old = machines.get(&name);
            let base = old.and_then(|machine| machine.base.clone());
            let findings = old.map_or(Vec::new(), |machine| machine.findings.clone());
            if base.is_none() {
                let expected: String = findings.iter().map(|finding| format!("? {finding}\n")).collect();
                let (about, rest) = text.split_once('\n').unwrap();
                fs::write(file(&name), format!("{about}\n{expected}{rest}")).unwrap();
            }
            machines.insert(name.clone(), Tree { base, findings, ..Tree::parse(&text, &file(&name)).unwrap() });
        }
    }
    for (name, machine) in &machines {
        if let Some(base) = &machine.base {
            fs::write(file(name), overlay::overlay(machine, base, &machines[base])).unwrap();
        }
    }
}

/// The machines in the results of one boot. What a program printed meanwhile is no line of a tree.
fn recorded(results: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut steps = results.split("\n=== ").skip(1).peekable();
    while let Some((head, text)) = steps.next().map(|step| step.split_once('\n').unwrap_or((step, ""))) {
        let (Some(name), Some(next)) = (head.strip_prefix("tree "), steps.peek()) else { continue };
        if next.lines().next() == Some(&format!("doctor {name}")) {
            let lines = text.lines().filter(|line| line.starts_with(['#', 'F', 'H', 'L', 'E', 'M', '|', '\\']));
            found.push((name.to_owned(), lines.map(|line| format!("{line}\n")).collect()));
        }
    }
    found
}
