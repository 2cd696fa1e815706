// SPDX-License-Identifier: GPL-2.0
//! `doctor`: sections of checks, causes before what follows from them.

mod api;
mod cause;
mod clients;
mod consumers;
mod cure;
pub mod devices;
pub(crate) mod driver;
mod fabric;
mod gpus;
pub mod hardware;
pub mod limits;
mod load_refused;
pub mod log;
mod module;
mod registrations;
mod selftest;
mod setting;
pub mod ways;

pub use gpus::bar1_in_use;
pub use ways::WayVerdict;

use crate::check::{Check, Level, Section};
use crate::consumer::{self, Verdict};
use crate::environment::Environment;
use crate::machine::Machine;
use crate::outcome::Outcome;
use crate::setting::Setting;
use crate::way::{self, Way};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// What `doctor --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// Whether programs can use GPUDirect RDMA here, by any way.
    pub outcome: Outcome,
    /// The same as the level of a check: `OK`, `WARN`, `FAIL`, or `SKIP` for unknown.
    pub verdict: Level,
    /// Why the outcome is unknown; `null` if it is not.
    pub unknown: Option<String>,
    /// Why a program that was asked about does not use it, where nothing has failed; `null` otherwise.
    pub refused: Option<String>,
    /// The one step that helps most; `null` if nothing is wrong.
    pub begin_with: Option<Step>,
    /// The kind of machine that it is, which the fixes are for.
    pub setting: Setting,
    /// Each way in which GPU memory reaches a NIC.
    pub ways: Vec<WayVerdict>,
    /// How many GPUs have peer memory or dma-buf with a NIC, ...
    pub gpus_usable: usize,
    /// ... and how many there are.
    pub gpus: usize,
    /// The programs that were asked about; empty if any will do.
    pub asked: Vec<String>,
    /// Whose environment the consumers were judged by.
    pub environment: String,
    pub sections: Vec<Section>,
    /// What applications do with each GPU and each NIC that has an active port.
    pub pairs: Vec<Verdict>,
}

/// The step that helps most.
#[derive(Serialize, JsonSchema)]
pub struct Step {
    /// The check that asks for it.
    pub id: &'static str,
    pub fix: String,
}

impl Report {
    /// Returns all checks in order.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.sections.iter().flat_map(|section| &section.checks)
    }
}

/// Runs all checks, for a process with this environment. `asked` names the programs that are to
/// work; without any, one way that works is enough.
pub fn examine(machine: &Machine, environment: &Environment, asked: &[String]) -> Report {
    let mut sections = vec![
        Section { title: "Hardware", checks: [setting::checks(machine), hardware::checks(machine)].concat() },
        Section { title: "GPU driver", checks: driver::checks(machine) },
        Section { title: "Peer-memory API", checks: api::checks(machine) },
        Section { title: "Module", checks: module::checks(machine) },
        Section { title: "Clients and counters", checks: clients::checks(machine) },
        Section { title: "Registrations and refusals", checks: registrations::checks(machine) },
        Section { title: "GPUs", checks: gpus::checks(machine) },
        Section { title: "Fabric", checks: fabric::checks(machine) },
        Section { title: "Limits and boot", checks: limits::checks(machine) },
        Section { title: "Kernel log", checks: log::checks(machine) },
        Section { title: "Applications", checks: consumers::checks(machine, environment) },
        Section { title: "Self-test", checks: selftest::checks(machine) },
    ];
    if let Some(first) = sections.first_mut() {
        first.checks.extend(setting::unread(machine));
    }
    let found: Vec<&Check> = sections.iter().flat_map(|section| &section.checks).collect();
    let mut pairs = way::pairs(machine, &found);
    pairs.retain(|pair| consumer::may_see(machine, environment, &pair.gpu.address));
    let ways = ways::verdicts(&pairs);
    let has_way = |pair: &&way::Pair| [Way::PeerMemory, Way::DmaBuf].iter().any(|way| pair.way(*way).is_yes());
    let with_way: BTreeSet<&str> = pairs.iter().filter(has_way).map(|pair| pair.gpu.address.as_str()).collect();
    let gpus_usable = with_way.len();
    let usable = ways::usable(machine, environment, &pairs, asked, &found);
    let failed = found.iter().filter(|check| check.level == Level::Fail);
    let broken: Vec<&'static str> = failed.map(|check| check.id).collect();
    ways::reconsider(machine, &mut sections, &ways, &usable);
    cure::choose(machine, &mut sections);
    let place = sections.iter().position(|section| section.title == "Applications").unwrap_or(sections.len());
    let mut of_ways = ways::checks(&ways);
    of_ways.extend(ways::refused(machine, &ways, &mut sections));
    sections.insert(place, Section { title: "Ways", checks: of_ways });
    cause::trace(&mut sections.iter_mut().flat_map(|section| &mut section.checks).collect::<Vec<_>>(), &broken);
    let checks: Vec<&Check> = sections.iter().flat_map(|section| &section.checks).collect();
    let outcome = usable.outcome(checks.iter().any(|check| check.is_finding()));
    let first = cause::first(&checks);
    let has_failed = checks.iter().any(|check| check.level == Level::Fail);
    let refused = (outcome == Outcome::NotUsable && !has_failed)
        .then(|| ways::refused_to(machine, environment, &pairs, asked))
        .flatten();
    let begin_with = match &refused {
        Some(refused) => refused.fix.clone().map(|fix| {
            // Another check has the cure itself.
            let cause = consumer::cured_by(&fix);
            let cause = checks.iter().find(|check| Some(check.id) == cause && check.is_finding());
            let own = cause.and_then(|check| Some(Step { id: check.id, fix: check.fix.clone()? }));
            own.unwrap_or(Step { id: refused.id, fix })
        }),
        None => first.and_then(|check| Some(Step { id: check.id, fix: check.fix.clone()? })),
    };
    let unknown = (outcome == Outcome::Unknown).then(|| ways::why_unknown(machine, environment, asked, &ways, &checks));
    Report {
        outcome,
        verdict: outcome.level(),
        unknown,
        refused: refused.map(|refused| refused.because),
        begin_with,
        setting: machine.setting.clone(),
        ways,
        gpus_usable,
        gpus: machine.gpus().len(),
        asked: asked.to_vec(),
        environment: environment.whose.clone(),
        sections,
        pairs: consumer::verdicts(machine, environment),
    }
}
