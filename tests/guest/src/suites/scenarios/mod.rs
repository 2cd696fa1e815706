// SPDX-License-Identifier: GPL-2.0
//! The scenario table: what may happen to a registration, in each mode and on each generation of
//! the core. [`TABLE`] is the only list. The suites `scenarios`, `pairwise` and `once`, `make
//! scenarios` and docs/results/scenarios.md are made from it.

mod afterwards;
pub mod beside;
mod free;
mod nic;
pub mod process;
mod provider;
mod table;
mod threads;

use crate::machine::{Generation, Level, Mode};
use crate::test::{NvidiaC, Suite, Test};

pub use nic::{fence_fails_in_dereg, key_not_destroyed, no_key};
pub use table::{By, Row, TABLE};

/// Returns every scenario in each of its modes on each generation: the full product.
pub fn suite(nvidia_c: bool) -> Suite {
    Suite { name: "scenarios", tests: tests(nvidia_c, |_, _| true) }
}

/// This scenario repeats rows, with each table at the address of the one before. None of the tables
/// is freed, so KASAN, for which `pairwise` and `once` are run, would see nothing in it. Faster
/// boots have it in `scenarios`.
const REPEATS: &str = "again_with_reused_tables";

/// Returns the fewest tests that show each scenario but [`REPEATS`] in each mode and on each
/// generation, and each mode on each generation.
pub fn pairwise(nvidia_c: bool) -> Suite {
    let mut tests = tests(nvidia_c, |row, column| (row + column) % 2 == 0);
    tests.retain(|test| !repeats(test));
    Suite { name: "pairwise", tests }
}

/// Returns each scenario but [`REPEATS`] once, with the generations in turn. A scenario that hangs
/// on one generation is there for both.
pub fn once(nvidia_c: bool) -> Suite {
    let mut tests = pairwise(nvidia_c).tests;
    tests.retain(|test| {
        let named = |row: &Row| matches!(row.by, By::Here { name, .. } if is_named(&test.name, name));
        TABLE.iter().enumerate().filter(|(_, row)| named(row)).any(|(r, row)| {
            matches!(row.by, By::Here { hangs: Some(_), .. })
                || test.generation == Some(Generation::ALL[r % Generation::ALL.len()])
        })
    });
    Suite { name: "once", tests }
}

/// Returns whether a test has this name, apart from generation and mode.
fn is_named(test: &str, name: &str) -> bool {
    test.rsplit('/').next() == Some(name)
}

fn repeats(test: &Test) -> bool {
    is_named(&test.name, REPEATS)
}

/// Returns tests. `wanted(row, generation + mode)` chooses among those of two modes.
fn tests(nvidia_c: bool, wanted: impl Fn(usize, usize) -> bool) -> Vec<Test> {
    let mut tests = Vec::new();
    // The order is by generation and mode, so that modules are loaded as seldom as possible.
    for (g, generation) in Generation::ALL.into_iter().enumerate() {
        for mode in Mode::all(nvidia_c) {
            for (r, row) in TABLE.iter().enumerate() {
                let By::Here { name, modes, hangs, run } = row.by else { continue };
                let hangs = hangs.filter(|(on, _)| *on == generation);
                let Some(m) = modes.iter().position(|m| m == mode) else { continue };
                // If only one of the two modes can run, take that one.
                let skew =
                    hangs.is_some_and(|(_, m)| modes.iter().position(|x| *x == m).is_some_and(|m| wanted(r, g + m)));
                if modes.len() > 1 && !wanted(r + usize::from(skew), g + m) {
                    continue;
                }
                let name = format!("{}/{}/{name}", generation.name(), mode.name());
                let mut test = Test::new(&name, Level::Peermem(*mode), run).nvidia_c(NvidiaC::Recorded);
                test.generation = Some(generation);
                if let Some((on, _)) = hangs.filter(|(_, m)| m == mode) {
                    test = test.not_on(on, "the core waits for a lock that it holds itself (inverted stop test)");
                }
                tests.push(test);
            }
        }
    }
    tests
}

/// Returns the row that a test stands for.
pub fn row_of(suite: &str, test: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| match row.by {
        By::Here { name, .. } => ["scenarios", "pairwise", "once"].contains(&suite) && is_named(test, name),
        By::There { suite: s, test: t } => s == suite && is_named(test, t),
    })
}

/// Returns what `guest table` prints: clause, suite and test of each row, and the modes and
/// generations in which `make scenarios` runs it. `suites` are all of them.
pub fn table_for_the_host(suites: &[Suite]) -> serde_json::Value {
    let rows = TABLE.iter().map(|row| {
        let (suite, test) = match row.by {
            By::Here { name, .. } => ("scenarios", name),
            By::There { suite, test } => (suite, test),
        };
        serde_json::json!({ "scenario": row.clause, "suite": suite, "test": test, "places": places(row, suites) })
    });
    rows.collect()
}

/// Returns mode and generation of each test that stands for the row. The mode is empty if
/// nvidia-peermem is not loaded for it. Other suites run on the newest core there.
fn places(row: &Row, suites: &[Suite]) -> Vec<[&'static str; 2]> {
    match row.by {
        By::Here { modes, hangs, .. } => {
            let all = Generation::ALL.into_iter().flat_map(|g| modes.iter().map(move |m| (g, *m)));
            all.filter(|(g, m)| hangs != Some((*g, *m))).map(|(g, m)| [m.name(), g.name()]).collect()
        }
        By::There { suite, test } => {
            let tests = suites.iter().filter(|s| s.name == suite).flat_map(|s| &s.tests);
            let standing = tests.filter(|t| t.name.rsplit('/').next() == Some(test));
            standing.map(|t| [t.level.mode().map_or("", Mode::name), Generation::ALL[0].name()]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites;
    use std::collections::BTreeSet;

    #[test]
    fn every_clause_has_a_test_that_exists() {
        let mut names = BTreeSet::new();
        for suite in suites::all(false) {
            for test in &suite.tests {
                // The names are without generation and mode.
                names.insert(format!("{}/{}", suite.name, test.name.rsplit('/').next().unwrap()));
            }
        }
        for row in TABLE {
            let name = match row.by {
                By::Here { name, .. } => format!("scenarios/{name}"),
                By::There { suite, test } => format!("{suite}/{test}"),
            };
            assert!(names.contains(&name), "{}: there is no test {name}", row.clause);
        }
    }

    /// `make scenarios`, which writes docs/results/scenarios.md, takes half an hour. This test
    /// finds a row that is missing there at once.
    #[test]
    fn the_page_has_these_rows() {
        let page = include_str!("../../../../../docs/results/scenarios.md");
        let rows = page.lines().filter(|l| l.contains("| `")).map(|l| l.splitn(4, '|').skip(1).take(2));
        let told: Vec<String> = rows.map(|r| r.map(str::trim).collect::<Vec<_>>().join(" ")).collect();
        let wanted = TABLE.iter().map(|row| match row.by {
            By::Here { name, .. } => format!("{} `scenarios/{name}`", row.clause),
            By::There { suite, test } => format!("{} `{suite}/{test}`", row.clause),
        });
        let wanted: Vec<String> = wanted.collect();
        let only_in = |a: &[String], b: &[String]| a.iter().filter(|x| !b.contains(x)).cloned().collect::<Vec<_>>();
        let (lacks, has) = (only_in(&wanted, &told), only_in(&told, &wanted));
        assert!(
            lacks.is_empty() && has.is_empty(),
            "docs/results/scenarios.md lacks {lacks:?} and has {has:?}: make scenarios"
        );
        let mut own = page.lines().filter(|l| l.contains("| `scenarios/"));
        let cores = |l: &str| l.split('|').nth(4).map(|c| c.split(',').count());
        assert!(own.all(|l| cores(l) == Some(Generation::ALL.len())), "docs/results/scenarios.md is of fewer cores");
    }

    #[test]
    fn each_pair_is_covered() {
        let pairs = |tests: Vec<Test>| -> BTreeSet<[String; 2]> {
            let mut pairs = BTreeSet::new();
            for test in tests {
                if test.not_on.zip(test.generation).is_some_and(|((not, _), generation)| not == generation) {
                    continue;
                }
                let words: Vec<&str> = test.name.split('/').collect();
                let [generation, mode, name] = words[..] else { panic!("{}", test.name) };
                for (a, b) in [(generation, mode), (generation, name), (mode, name)] {
                    pairs.insert([a.to_string(), b.to_string()]);
                }
            }
            pairs
        };
        let (repeated, all): (Vec<_>, Vec<_>) = suite(false).tests.into_iter().partition(repeats);
        assert_eq!(repeated.len(), 2 * Generation::ALL.len());
        let some = pairwise(false).tests;
        assert!(some.len() < all.len(), "{} of {}", some.len(), all.len());
        assert_eq!(pairs(all), pairs(some));
    }

    #[test]
    fn once_leaves_no_scenario_and_no_mode_out() {
        let last = |tests: Vec<Test>| -> BTreeSet<String> {
            let runs = tests.into_iter().filter(|t| t.not_on.map(|(not, _)| not) != t.generation);
            runs.filter_map(|t| t.name.rsplit('/').next().map(Into::into)).collect()
        };
        assert_eq!(last(once(false).tests), last(pairwise(false).tests));
        for place in ["25.10/persistent/", "25.10/legacy/", "24.10/persistent/", "24.10/legacy/"] {
            assert!(once(false).tests.iter().any(|test| test.name.starts_with(place)), "{place}");
        }
        let (few, some) = (once(false).tests.len(), pairwise(false).tests.len());
        assert!(few < some * 2 / 3, "{few} of {some}");
    }
}
