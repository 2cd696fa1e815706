// SPDX-License-Identifier: GPL-2.0
//! What differs on the older generations of the RDMA core, out of the suites that ask it of the boot's own: each mode,
//! the order of the callbacks, errors after them, and what an umem without a ticket is told. One boot for all.

use super::{callbacks, smoke, unfenced};
use crate::machine::{Generation, Mode};
use crate::test::{Suite, Test};

/// Parts of the names of what is asked.
const ASKED: [&str; 6] =
    ["callbacks/", "/mkey_fails", "/statistics", "/legacy/bytes_move", "/layouts", "/legacy/is_served"];

pub fn suite(rival: bool) -> Suite {
    let mut tests: Vec<Test> = Vec::new();
    for generation in [Generation::G55, Generation::G54, Generation::G51] {
        let mut asked = Vec::new();
        for suite in [smoke::suite(rival), callbacks::suite(rival), unfenced::suite(rival)] {
            for mut test in suite.tests {
                let name = format!("{}/{}", suite.name, test.name);
                if ASKED.iter().any(|word| name.contains(word)) {
                    test.name = format!("{}/{name}", generation.name());
                    test.generation = Some(generation);
                    asked.push(test);
                }
            }
        }
        // Each mode is loaded once.
        asked.sort_by_key(|t| t.level.mode().map(Mode::name));
        tests.append(&mut asked);
    }
    Suite { name: "older", tests }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_finds_a_test_on_each_generation() {
        let tests = suite(false).tests;
        for generation in ["5.5", "5.4", "5.1"] {
            for word in ASKED {
                let name = |t: &&Test| t.name.starts_with(generation) && t.name.contains(word);
                assert!(tests.iter().any(|t| name(&t)), "{generation} {word}");
            }
        }
        assert!(tests.len() < 80, "{}: these are to be few", tests.len());
    }
}
