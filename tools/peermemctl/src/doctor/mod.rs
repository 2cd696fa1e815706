// SPDX-License-Identifier: GPL-2.0
//! `doctor`: sections of checks, causes before what follows from them.

mod api;
mod cause;
mod clients;
mod consumers;
mod driver;
mod fabric;
mod gpus;
mod hardware;
pub mod limits;
mod module;
mod registrations;
mod selftest;

pub use gpus::bar1_in_use;

use crate::check::{Check, Level, Section};
use crate::consumer::{self, Verdict};
use crate::environment::Environment;
use crate::machine::Machine;
use schemars::JsonSchema;
use serde::Serialize;

/// What `doctor --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// The worst level of all checks.
    pub verdict: Level,
    /// The one step that helps most; `null` if nothing is wrong.
    pub begin_with: Option<Step>,
    /// Whose environment the consumers were judged by.
    pub environment: String,
    pub sections: Vec<Section>,
    /// What applications do with each GPU and each NIC that has an active port.
    pub pairs: Vec<Verdict>,
}

/// What to do.
#[derive(Serialize, JsonSchema)]
pub struct Step {
    /// The check that asks for it.
    pub id: &'static str,
    pub fix: String,
}

impl Report {
    /// All checks, in order.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.sections.iter().flat_map(|section| &section.checks)
    }
}

/// Looks at everything, for a process with this environment.
pub fn examine(machine: &Machine, environment: &Environment) -> Report {
    let mut sections = vec![
        Section { title: "Hardware", checks: hardware::checks(machine) },
        Section { title: "GPU driver", checks: driver::checks(machine) },
        Section { title: "Peer-memory API", checks: api::checks(machine) },
        Section { title: "Module", checks: module::checks(machine) },
        Section { title: "Clients and counters", checks: clients::checks(machine) },
        Section { title: "Registrations and refusals", checks: registrations::checks(machine) },
        Section { title: "GPUs", checks: gpus::checks(machine) },
        Section { title: "Fabric", checks: fabric::checks(machine) },
        Section { title: "Limits and boot", checks: limits::checks(machine) },
        Section { title: "Applications", checks: consumers::checks(machine, environment) },
        Section { title: "Self-test", checks: selftest::checks(machine) },
    ];
    cause::trace(&mut sections.iter_mut().flat_map(|section| &mut section.checks).collect::<Vec<_>>());
    let checks: Vec<&Check> = sections.iter().flat_map(|section| &section.checks).collect();
    let verdict = checks.iter().map(|check| check.level).filter(|level| *level != Level::Skip).max();
    let first = cause::first(&checks);
    Report {
        verdict: verdict.unwrap_or(Level::Ok),
        begin_with: first.and_then(|check| Some(Step { id: check.id, fix: check.fix.clone()? })),
        environment: environment.whose.clone(),
        sections,
        pairs: consumer::verdicts(machine, environment),
    }
}
