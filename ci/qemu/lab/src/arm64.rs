// SPDX-License-Identifier: GPL-2.0

//! Writes docs/results/arm64.md: what passed on arm64, with a line for each combination of kernel,
//! crate, core and IOMMU, and a column for each suite. `make soak` updates it after each boot and
//! keeps the cells of suites that did not run again.

use clap::ValueEnum;
use lab::arch::Arch;
use lab::axes::{Core, Kernel, Named};
use lab::ktap::{Counts, Test};
use lab::page;
use std::collections::{BTreeMap, BTreeSet};

pub const FILE: &str = "docs/results/arm64.md";

const HEAD: &str = "# What passed on arm64

Tests that passed in the last run of each suite by `make soak`, which writes this page, in an
emulated machine; [soak.md](soak.md) has commits and dates. A column `failed boots`, if there is one,
names what failed beside its suites: an alarm on the console, a leak, a module that stayed loaded, a
machine that stopped. Emulation on x86-64 shows no fault in arm64's weaker memory order.

";

/// The columns that stand before those of the suites and say what a line is about.
const KEYS: [&str; 5] = ["kernel", "pages", "`kernel` crate", "core", "IOMMU"];

/// The column that names boots which failed outside their suites, by the last axes of their names.
/// It exists only if there are such boots.
const FAILED: &str = "failed boots";

type Lines = BTreeMap<Vec<String>, BTreeMap<String, String>>;

/// Returns the page with the results of this boot in place of the boot's earlier ones, or `None`
/// for a boot of another architecture.
pub fn merged(old: &str, boot: &str, tests: &[Test]) -> Option<String> {
    let axes: Vec<&str> = boot.split('/').collect();
    let [kernel, core, mode, topology, ref what @ ..] = axes[..] else { return None };
    let of = Kernel::from_str(kernel, false).ok().filter(|of| of.arch() == Arch::Arm64)?;
    let own = of.has_rust() && !what.iter().any(|what| what.starts_with("lite"));
    let iommu = match topology.split_once('-') {
        Some((_, "iommu")) => "translates",
        Some((_, "identity")) => "identity",
        _ => "off",
    };
    let cores: Vec<String> = Core::TESTED.iter().map(Named::name).collect();
    let crate_name = if own { "its own" } else { "kernel-lite" };
    let key = |core: &str| [kernel, of.pages(), crate_name, core, iommu].map(str::to_string).to_vec();
    let mut boot_failed = false;
    let mut of_suites: BTreeMap<(&str, &str), Vec<&Test>> = BTreeMap::new();
    for test in tests {
        // Each test's name begins with the boot's name.
        let mut parts = test.name.rsplit(": ").next().unwrap_or_default().split('/');
        let suite = parts.next().filter(|suite| !["console", "end", "machine"].contains(suite) && !suite.contains(' '));
        // A boot that tests several cores puts the core into each test's name.
        let named = parts.next().filter(|_| core == "both").filter(|part| cores.iter().any(|core| core == part));
        match suite {
            Some(suite) => of_suites.entry((named.unwrap_or(core), suite)).or_default().push(test),
            None => boot_failed |= test.has_failed(),
        }
    }
    let mut lines = read(old);
    for ((core, suite), tests) in of_suites {
        let Counts { passed, failed, skipped } = Counts::of(tests);
        let failed = if failed == 0 { String::new() } else { format!("**{failed} failed**, ") };
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        let cell = format!("{failed}{passed}{skipped}");
        lines.entry(key(core)).or_default().insert(suite.to_string(), cell);
    }
    let name = [&[mode, topology], what].concat().join("/");
    let line = lines.entry(key(core)).or_default();
    let others = line.remove(FAILED).unwrap_or_default();
    let others = others.split(' ').filter(|other| !other.is_empty() && *other != name);
    let failed: Vec<&str> = others.chain(boot_failed.then_some(name.as_str())).collect();
    if !failed.is_empty() {
        line.insert(FAILED.to_string(), failed.join(" "));
    }
    lines.retain(|_, cells| !cells.is_empty());
    Some(write(&lines))
}

fn read(page: &str) -> Lines {
    let mut rows = page::rows(page);
    let suites = rows.next().unwrap_or_default();
    let line = |row: Vec<String>| {
        let found = suites.iter().zip(&row).skip(KEYS.len()).filter(|(_, cell)| !cell.is_empty());
        (row.iter().take(KEYS.len()).cloned().collect(), found.map(|(a, b)| (a.clone(), b.clone())).collect())
    };
    rows.map(line).collect()
}

fn write(lines: &Lines) -> String {
    let suites: BTreeSet<&str> = lines.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    let head: Vec<&str> = KEYS.into_iter().chain(suites.iter().copied()).collect();
    let row = |(key, found): (&Vec<String>, &BTreeMap<String, String>)| {
        let cells = suites.iter().map(|suite| found.get(*suite).cloned().unwrap_or_default());
        key.iter().cloned().chain(cells).collect()
    };
    format!("{HEAD}{}", page::table(&head, lines.iter().map(row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of the table.
    fn rows(page: &str) -> Vec<&str> {
        page.lines().filter(|line| line.starts_with("| ")).collect()
    }

    #[test]
    fn a_suite_has_one_cell_and_others_keep_theirs() {
        let smoke = [Test::new("x/25.10: smoke/persistent/a", true, vec![]), Test::new("smoke/legacy/a", true, vec![])];
        assert_eq!(merged("", "debian-6.12/25.10/both/1gpu", &smoke), None);
        let first = merged("", "debian-6.12-arm64-16k/25.10/both/1gpu-iommu", &smoke).unwrap();
        let second =
            [Test::new("scenarios/24.10/legacy/a", true, vec![]), Test::failed("scenarios/25.10/legacy/a", "")];
        let both = merged(&first, "debug-7.2-arm64-64k/both/both/1gpu/lite-scenarios", &second).unwrap();
        let smoke = [Test::failed("smoke/persistent/a", ""), Test::skipped("smoke/x", "")];
        let again = merged(&both, "debian-6.12-arm64-16k/25.10/both/1gpu-iommu", &smoke).unwrap();
        assert_eq!(
            rows(&again),
            [
                "| kernel | pages | `kernel` crate | core | IOMMU | scenarios | smoke |",
                "| debian-6.12-arm64-16k | 16 KiB | kernel-lite | 25.10 | translates |  | **1 failed**, 0, 1 skipped |",
                "| debug-7.2-arm64-64k | 64 KiB | kernel-lite | 24.10 | off | 1 |  |",
                "| debug-7.2-arm64-64k | 64 KiB | kernel-lite | 25.10 | off | **1 failed**, 0 |  |",
            ]
        );
    }

    #[test]
    fn an_alarm_stays_until_the_same_boot_is_without() {
        const BOOT: &str = "debian-6.12-arm64/25.10/both/2gpu";
        let with = |page: &str, boot: &str, name: &str, passed: bool| {
            merged(page, boot, &[Test::new(name, passed, vec![])]).unwrap()
        };
        let storm = format!("{BOOT}/storm");
        let page = with("", BOOT, "x/25.10: console/no alarm", false);
        let page = with(&page, &storm, "x/25.10: machine", false);
        let page = with(&page, "debian-6.12-arm64/25.10/both/1gpu", "x: console/no alarm", true);
        let row = "| debian-6.12-arm64 | 4 KiB | kernel-lite | 25.10 | off |";
        assert_eq!(rows(&page)[1], format!("{row} both/2gpu both/2gpu/storm |"));
        let page = with(&page, BOOT, "x: console/no alarm", true);
        assert_eq!(rows(&page)[1], format!("{row} both/2gpu/storm |"));
        let page = with(&page, &storm, "x: console/no alarm", true);
        assert_eq!(rows(&page).len(), 1);
    }
}
