// SPDX-License-Identifier: GPL-2.0
//! `doctor`: ten sections of checks, from the GPU driver to a registration of our own.

mod api;
mod clients;
mod consumers;
mod driver;
mod fabric;
mod gpus;
pub mod limits;
mod module;
mod registrations;
mod selftest;

use crate::check::{Level, Section};
use crate::machine::Machine;
use schemars::JsonSchema;
use serde::Serialize;

/// What `doctor --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// The worst level of all checks.
    pub verdict: Level,
    pub sections: Vec<Section>,
}

/// Looks at everything.
pub fn examine(machine: &Machine) -> Report {
    let sections = vec![
        Section { title: "GPU driver", checks: driver::checks(machine) },
        Section { title: "Peer-memory API", checks: api::checks(machine) },
        Section { title: "Module", checks: module::checks(machine) },
        Section { title: "Who finds it", checks: consumers::checks(machine) },
        Section { title: "Clients and counters", checks: clients::checks(machine) },
        Section { title: "Registrations and refusals", checks: registrations::checks(machine) },
        Section { title: "GPUs", checks: gpus::checks(machine) },
        Section { title: "Fabric", checks: fabric::checks(machine) },
        Section { title: "Limits and boot", checks: limits::checks(machine) },
        Section { title: "Self-test", checks: selftest::checks(machine) },
    ];
    let verdict = sections.iter().map(Section::level).max().unwrap_or(Level::Ok);
    // A skipped check is no finding.
    let verdict = if verdict == Level::Skip { Level::Ok } else { verdict };
    Report { verdict, sections }
}
