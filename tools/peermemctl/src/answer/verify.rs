// SPDX-License-Identifier: GPL-2.0
//! What `verify` found.

use crate::check::Level;
use crate::outcome::Outcome;
use crate::pci::Distance;
use crate::way::Way;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The seed of everything random; `--seed` repeats a run with it.
    pub seed: u64,
    /// What this machine lacks, and what was therefore not tried; empty if everything was.
    pub missing: Vec<String>,
    /// NICs that were left out because none of their ports is active.
    pub nics_without_a_link: Vec<String>,
    /// Versions, and where the devices are.
    pub facts: Vec<Fact>,
    /// Each GPU with each NIC, the nearest first; empty with `--module`.
    pub pairs: Vec<VerifyPair>,
    /// With `--module`, one pass for each module and each of its settings that was tried; without
    /// it, what could be tried of a GPU or a NIC alone.
    pub passes: Vec<VerifyPass>,
}

/// A GPU and a NIC.
#[derive(Clone, Serialize, JsonSchema)]
pub struct VerifyPair {
    /// PCI address.
    pub gpu: String,
    /// Name of the RDMA device.
    pub nic: String,
    /// `null` where one of them has no PCI address.
    pub distance: Option<Distance>,
    /// What NCCL does with the two: a way, `copies through host memory` or `unknown`.
    pub nccl: Option<String>,
    pub ways: Vec<VerifyWay>,
}

/// One way with a GPU and a NIC.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct VerifyWay {
    pub way: Way,
    /// `SKIP`: not possible here, or not tried; `WARN`: works, but is slow or lacks atomics; `FAIL`: is
    /// refused, or registers and then does not work.
    pub level: Level,
    /// What is wrong, or why it was not tried.
    pub message: Option<String>,
    /// `null` if it did not register.
    pub register_us: Option<f64>,
    pub deregister_us: Option<f64>,
    /// How long a free of registered memory takes.
    pub free_us: Option<f64>,
    /// Bytes of each page in which the memory was pinned, as nvidia-peermem tells root; `null` if
    /// that is unknown, as for each dma-buf, whose page size no kernel tells reliably.
    pub page_bytes: Option<u64>,
    /// Registrations of different begin and length, each written and compared.
    pub offsets: u64,
    /// What else was done, and the bytes compared.
    pub operations: Vec<String>,
    /// Bytes per second, in RDMA writes of 1 MiB; `null` if it was not measured.
    pub to_gpu: Option<f64>,
    pub from_gpu: Option<f64>,
    /// The spread of the rounds: the fastest round less the slowest, as a part of the median, in the direction
    /// where that is more; `null` if each direction was measured once.
    pub spread: Option<f64>,
    /// What the slowest link between the two carries, or the NIC itself if that is less.
    pub limit: Option<f64>,
    /// The link that this is, or the NIC.
    pub limit_by: Option<String>,
    pub details: Vec<String>,
}

impl VerifyWay {
    /// Returns the result of a way of which nothing is known yet.
    pub fn of(way: Way) -> Self {
        Self {
            way,
            level: Level::Ok,
            message: None,
            register_us: None,
            deregister_us: None,
            free_us: None,
            page_bytes: None,
            offsets: 0,
            operations: Vec::new(),
            to_gpu: None,
            from_gpu: None,
            spread: None,
            limit: None,
            limit_by: None,
            details: Vec::new(),
        }
    }

    /// Returns the result of a way that was not tried.
    pub fn skipped(way: Way, message: String) -> Self {
        Self { level: Level::Skip, message: Some(message), ..Self::of(way) }
    }

    /// Returns the slower of both directions.
    pub fn slower(&self) -> Option<f64> {
        Some(self.to_gpu?.min(self.from_gpu?))
    }

    /// Returns whether the figures may be others next time, because the rounds lie far apart.
    pub fn is_uneven(&self) -> bool {
        self.spread.is_some_and(|spread| spread > UNEVEN)
    }

    /// Returns whether bytes get through.
    pub fn works(&self) -> bool {
        self.register_us.is_some() && self.level <= Level::Warn
    }

    /// Returns whether it registers, and loses or changes bytes, or hangs: programs do not notice.
    pub fn deceives(&self) -> bool {
        self.register_us.is_some() && self.level == Level::Fail
    }
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
    /// Returns the result of a run of which nothing is known yet.
    pub fn begun(begun: String, seed: u64) -> Self {
        Self {
            level: Level::Ok,
            version: crate::VERSION.to_owned(),
            arguments: Vec::new(),
            begun,
            seconds: 0.0,
            seed,
            missing: Vec::new(),
            nics_without_a_link: Vec::new(),
            facts: Vec::new(),
            pairs: Vec::new(),
            passes: Vec::new(),
        }
    }

    /// Returns the exit code. A run that tried the ways has the codes of `check`. A run with
    /// `--module` has 0 if everything was tried and held, 1 if something was not tried, 2 if
    /// something does not hold, and 3 if no check of the module could be tried.
    pub fn exit_code(&self) -> u8 {
        match (self.outcome(), self.level, self.missing.is_empty()) {
            (Some(outcome), ..) => outcome.exit_code(),
            (None, Level::Fail, _) => 2,
            (None, _, false) => 3,
            (None, Level::Ok, true) => 0,
            _ => 1,
        }
    }

    /// Returns what the ways say; `None` where there is no pair.
    pub fn outcome(&self) -> Option<Outcome> {
        let hung = self.passes.iter().flat_map(|pass| &pass.checks).any(|check| check.level == Level::Fail);
        of_pairs(&self.pairs).map(|outcome| if hung { Outcome::NotUsable } else { outcome })
    }

    /// Returns the worst level of all results that count.
    pub fn worst(&self) -> Level {
        if let Some(outcome) = self.outcome() {
            return outcome.level();
        }
        let checks = self.passes.iter().filter(|pass| pass.counts).flat_map(|pass| &pass.checks);
        checks.map(|check| check.level).max().unwrap_or(Level::Ok)
    }
}

/// Returns what the ways of pairs say together; `None` where there is no pair.
pub fn of_pairs(pairs: &[VerifyPair]) -> Option<Outcome> {
    let all = || pairs.iter().flat_map(|pair| &pair.ways);
    let untried = |way: &VerifyWay| way.message.as_deref().is_some_and(|why| why.starts_with(NOT_TRIED));
    let works = |pair: &VerifyPair| pair.ways.iter().any(VerifyWay::works);
    Some(match pairs.iter().filter(|pair| works(pair)).count() {
        _ if pairs.is_empty() => return None,
        _ if all().any(VerifyWay::deceives) => Outcome::NotUsable,
        0 if all().all(untried) => Outcome::Unknown,
        0 => Outcome::NotUsable,
        some if some < pairs.len() || all().any(|way| way.level >= Level::Warn) => Outcome::UsableWithWarnings,
        _ => Outcome::Usable,
    })
}

/// A figure whose rounds lie further apart than this part of it is not called repeatable.
pub const UNEVEN: f64 = 0.1;

/// The beginning of the message of a way that was not tried.
pub const NOT_TRIED: &str = "not tried";
