// SPDX-License-Identifier: GPL-2.0
//! What each command answers: the types behind the text and behind `--json`.

mod explain;
mod failures;
mod list;
mod matrix;
mod selftest;
mod status;
mod told;
mod topo;
mod verify;
mod watch;

pub use explain::{explain, Explanation, Explanations};
pub use failures::{failures, Failures};
pub use list::{list, List, Process, Wanted};
pub use matrix::Matrix;
pub use selftest::{Bandwidth, Selftest, SelftestWay};
pub use status::{status, Status};
pub use topo::{topo, Pair, Place, Topo};
pub use verify::{Fact, Verify, VerifyCheck, VerifyPair, VerifyPass, VerifyWay, NOT_TRIED};
pub use watch::{tick, Tick};

use crate::check::Level;
use crate::doctor;
use schemars::JsonSchema;
use serde::Serialize;

/// The format of `--json`.
pub const FORMAT: u32 = 4;

/// One JSON document; `watch` prints one per line.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Document {
    Output(Output),
    Failed(Failed),
}

/// The answer of a command that failed: it says why. The program exits with 2.
#[derive(Serialize, JsonSchema)]
pub struct Failed {
    pub format: u32,
    pub error: String,
}

/// The answer to a command.
#[derive(Serialize, JsonSchema)]
pub struct Output {
    /// Raised when an existing field changes its meaning or goes; new fields may come any time.
    pub format: u32,
    #[serde(flatten)]
    pub answer: Answer,
}

/// The answer to one command.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Answer {
    Status(Box<Status>),
    Doctor(Box<doctor::Report>),
    List(List),
    Watch(Tick),
    Failures(Failures),
    Topo(Topo),
    Matrix(Matrix),
    Selftest(Selftest),
    Verify(Box<Verify>),
    Explain(Explanations),
}

impl Answer {
    /// Returns the exit code that the program ends with after this answer.
    pub fn exit_code(&self) -> u8 {
        let level = match self {
            Self::Status(status) => return status.outcome.exit_code(),
            Self::Doctor(report) => return report.outcome.exit_code(),
            Self::List(list) if list.processes.iter().any(Process::is_stale) => Level::Warn,
            Self::Watch(tick) => tick.level(),
            Self::Topo(topo) => topo.level(),
            Self::Failures(failures) if !failures.failures.is_empty() => Level::Warn,
            Self::Matrix(matrix) => return matrix.outcome().exit_code(),
            Self::Selftest(selftest) => selftest.level,
            Self::Verify(verify) => return verify.exit_code(),
            _ => Level::Ok,
        };
        level.exit_code()
    }
}
