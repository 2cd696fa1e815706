// SPDX-License-Identifier: GPL-2.0
//! What `verify` found.

use crate::check::Level;
use schemars::JsonSchema;
use serde::Serialize;

/// What `verify` found.
#[derive(Clone, Serialize, JsonSchema)]
pub struct Verify {
    pub level: Level,
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub arguments: Vec<String>,
    /// When it began, UTC.
    pub begun: String,
    pub seconds: f64,
    /// Of all that is random: `--seed` repeats it.
    pub seed: u64,
    /// What this machine lacks, and what was therefore not tried; empty if everything was.
    pub missing: Vec<String>,
    /// Versions, and where the devices are.
    pub facts: Vec<Fact>,
    /// One for each module and each of its settings that was tried.
    pub passes: Vec<VerifyPass>,
}

/// A version, or a place.
#[derive(Clone, Serialize, JsonSchema)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

/// All checks with one module.
#[derive(Clone, Serialize, JsonSchema)]
pub struct VerifyPass {
    /// Whose module, its version and its parameters.
    pub module: String,
    /// Whether it counts for the exit code. A module that is there for comparison does not.
    pub counts: bool,
    pub checks: Vec<VerifyCheck>,
}

/// One check.
#[derive(Clone, Serialize, JsonSchema)]
pub struct VerifyCheck {
    /// Stable name, such as `bytes.write`: `--only` takes it.
    pub id: String,
    pub level: Level,
    /// What was tried and held, what did not hold, or why it was not tried.
    pub message: String,
    /// Figures.
    pub details: Vec<String>,
    pub ms: u64,
}

impl Verify {
    /// 0: everything was tried and held; 1: something was not tried; 2: something does not hold; 3:
    /// no check of the module could be tried.
    pub fn exit_code(&self) -> u8 {
        match (self.level, self.missing.is_empty()) {
            (Level::Fail, _) => 2,
            (_, false) => 3,
            (Level::Ok, true) => 0,
            _ => 1,
        }
    }

    /// The worst that counts.
    pub fn worst(&self) -> Level {
        let checks = self.passes.iter().filter(|pass| pass.counts).flat_map(|pass| &pass.checks);
        checks.map(|check| check.level).max().unwrap_or(Level::Ok)
    }
}
