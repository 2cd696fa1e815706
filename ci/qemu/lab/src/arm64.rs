//! docs/results/arm64.md: what passed on arm64, a line for each kernel, crate, core and IOMMU, a
//! column for each suite. `make soak` writes it after each boot; what it did not run again stays.

use clap::ValueEnum;
use lab::arch::Arch;
use lab::axes::{Core, Kernel, Named};
use lab::ktap::{Counts, Test};
use lab::page;
use std::collections::{BTreeMap, BTreeSet};

pub const FILE: &str = "docs/results/arm64.md";

const HEAD: &str = "# What passed on arm64

Tests that passed in the last run of each suite by `make soak`, which writes this page, in an
emulated machine; [soak.md](soak.md) has commits and dates. `boot` is what the console, the leak
scan and the unloading of all modules say. Emulation on x86-64 shows no fault in arm64's weaker
memory order.

";

/// Of a line, before the cells of its suites.
const KEYS: [&str; 5] = ["kernel", "pages", "`kernel` crate", "core", "IOMMU"];

/// What is the machine's and no suite's.
const BOOT: &str = "boot";

type Lines = BTreeMap<Vec<String>, BTreeMap<String, String>>;

/// The page with what this boot found in the place of what it had; `None` for a boot of another
/// architecture.
pub fn merged(old: &str, boot: &str, tests: &[Test]) -> Option<String> {
    let axes: Vec<&str> = boot.split('/').collect();
    let [kernel, core, _mode, topology, ref what @ ..] = axes[..] else { return None };
    let of = Kernel::from_str(kernel, false).ok().filter(|of| of.arch() == Arch::Arm64)?;
    let own = of.has_rust() && !what.iter().any(|what| what.starts_with("lite"));
    let iommu = match topology.split_once('-') {
        Some((_, "iommu")) => "translates",
        Some((_, "identity")) => "identity",
        _ => "off",
    };
    let cores: Vec<String> = Core::TESTED.iter().map(Named::name).collect();
    let mut of_suites: BTreeMap<(String, &str), Vec<&Test>> = BTreeMap::new();
    for test in tests {
        // Each begins with the boot's name.
        let mut parts = test.name.rsplit(": ").next().unwrap_or_default().split('/');
        let suite = parts.next().filter(|suite| !["end", "console"].contains(suite) && !suite.contains(' '));
        // A boot that goes from core to core names each in its tests.
        let named = parts.next().filter(|_| core == "both").filter(|part| cores.iter().any(|core| core == part));
        of_suites.entry((named.unwrap_or(core).to_string(), suite.unwrap_or(BOOT))).or_default().push(test);
    }
    let mut lines = read(old);
    for ((core, suite), tests) in of_suites {
        let cell = match Counts::of(tests) {
            Counts { passed: 0, failed: 0, .. } => continue,
            Counts { passed, failed: 0, .. } => passed.to_string(),
            Counts { passed, failed, .. } => format!("**{failed} failed**, {passed}"),
        };
        let crate_name = if own { "its own" } else { "kernel-lite" };
        let key = [kernel, of.pages(), crate_name, &core, iommu].map(str::to_string).to_vec();
        lines.entry(key).or_default().insert(suite.to_string(), cell);
    }
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

    #[test]
    fn a_suite_has_one_cell_and_others_keep_theirs() {
        let smoke = [Test::new("x/25.10: smoke/persistent/a", true, vec![]), Test::new("smoke/legacy/a", true, vec![])];
        assert_eq!(merged("", "debian-6.12/25.10/both/1gpu", &smoke), None);
        let first = merged("", "debian-6.12-arm64-16k/25.10/both/1gpu-iommu", &smoke).unwrap();
        let second = [
            Test::new("scenarios/24.10/legacy/a", true, vec![]),
            Test::failed("scenarios/25.10/legacy/a", ""),
            Test::new("x/both: console/no alarm", true, vec![]),
        ];
        let both = merged(&first, "debug-7.2-arm64-64k/both/both/1gpu/lite-scenarios", &second).unwrap();
        let smoke = [Test::failed("smoke/persistent/a", ""), Test::skipped("smoke/x", "")];
        let again = merged(&both, "debian-6.12-arm64-16k/25.10/both/1gpu-iommu", &smoke).unwrap();
        let rows: Vec<&str> = again.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(
            rows,
            [
                "| kernel | pages | `kernel` crate | core | IOMMU | boot | scenarios | smoke |",
                "| debian-6.12-arm64-16k | 16 KiB | kernel-lite | 25.10 | translates |  |  | **1 failed**, 0 |",
                "| debug-7.2-arm64-64k | 64 KiB | kernel-lite | 24.10 | off |  | 1 |  |",
                "| debug-7.2-arm64-64k | 64 KiB | kernel-lite | 25.10 | off |  | **1 failed**, 0 |  |",
                "| debug-7.2-arm64-64k | 64 KiB | kernel-lite | both | off | 1 |  |  |",
            ]
        );
    }
}
