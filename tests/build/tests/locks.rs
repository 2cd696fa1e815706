// SPDX-License-Identifier: GPL-2.0

//! Tests that the workspaces agree on the versions of what they take from others: they share a
//! target folder, so that a machine compiles each of them once.

use build_tests::repository;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use toml::Table;

/// Returns the part of a version that Cargo takes for compatible: `1` of 1.2.3, `0.4` of 0.4.5.
fn compatible(version: &str) -> String {
    let parts = if version.starts_with("0.") { 2 } else { 1 };
    version.split('.').take(parts).collect::<Vec<_>>().join(".")
}

#[test]
fn no_two_lock_files_have_different_versions_of_a_crate() {
    let out = Command::new("git").current_dir(repository()).args(["ls-files", "*Cargo.lock"]).output().expect("git");
    let files = String::from_utf8(out.stdout).expect("UTF-8");
    let mut versions: BTreeMap<(String, String), BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for file in files.lines() {
        let lock: Table = fs::read_to_string(repository().join(file)).expect("readable").parse().expect("TOML");
        for package in lock["package"].as_array().expect("a list") {
            // Our own have no source.
            if package.get("source").is_some() {
                let field = |name: &str| package[name].as_str().expect("text").to_string();
                let key = (field("name"), compatible(&field("version")));
                versions.entry(key).or_default().entry(field("version")).or_default().push(file);
            }
        }
    }
    assert!(files.lines().count() > 2 && versions.len() > 200, "{files}: {} crates", versions.len());
    let different: Vec<_> = versions.iter().filter(|(_, versions)| versions.len() > 1).collect();
    assert!(different.is_empty(), "cargo update --precise brings them together: {different:#?}");
}
