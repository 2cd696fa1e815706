// SPDX-License-Identifier: GPL-2.0
//! `status`: is it usable? As doctor judges, and without the programs that doctor asks.

use crate::check::{Check, Level};
use crate::doctor::Report;
use crate::machine::{Machine, REGISTER};
use crate::module_file::Maker;
use crate::nvidia::Flavour;
use schemars::JsonSchema;
use serde::Serialize;

/// Is it usable?
#[derive(Serialize, JsonSchema)]
pub struct Status {
    /// Doctor's verdict.
    pub level: Level,
    /// Whether a plain `ibv_reg_mr()` on GPU memory can work by a loaded nvidia-peermem.
    pub usable: bool,
    /// `yes`; `yes, 1 warning: rxe0 port DOWN`; `no: ...`.
    pub verdict: String,
    /// What keeps it from working; or what is wrong with it, though it works. What follows from
    /// others is left out.
    pub because: Vec<Check>,
    pub kernel: Option<String>,
    /// `rust` (this project's), `nvidia`, `other`; `null` if none is loaded.
    pub module: Option<&'static str>,
    pub module_version: Option<String>,
    /// `persistent`, `fallback` or `legacy`.
    pub mode: Option<String>,
    pub driver_version: Option<String>,
    /// `open` or `closed`.
    pub driver_flavour: Option<&'static str>,
    /// Who exports the peer-memory API.
    pub api: Option<String>,
    /// Whether registration by dma-buf is possible instead.
    pub dma_buf: bool,
    pub clients: Vec<String>,
    pub gpus: Vec<String>,
    pub rdma_devices: Vec<String>,
    /// Live registrations, as far as the loaded module tells.
    pub live: Option<u64>,
    pub live_bytes: Option<u64>,
    pub refused: Option<u64>,
}

/// Answers `status` with what doctor found.
pub fn status(machine: &Machine, report: Report) -> Status {
    let level = report.verdict;
    let usable = level != Level::Fail;
    let begin = report.begin_with.as_ref().map(|step| step.id);
    let mut because: Vec<Check> = report.sections.into_iter().flat_map(|section| section.checks).collect();
    because.retain(|check| check.is_finding() && check.level == level && check.follows.is_none());
    // What doctor begins with comes first.
    because.sort_by_key(|check| Some(check.id) != begin);
    let stats = machine.stats.as_ref().ok();
    let loaded = machine.loaded.as_ref();
    let number = |key: &str| stats.and_then(|stats| stats.number(key));
    Status {
        level,
        usable,
        verdict: verdict(usable, &because),
        because,
        kernel: machine.release.clone(),
        module: loaded.map(|loaded| match loaded.maker {
            Maker::Ours => "rust",
            Maker::Nvidia => "nvidia",
            Maker::Other => "other",
        }),
        module_version: loaded.and_then(|loaded| loaded.version.clone()),
        mode: stats.and_then(|stats| stats.text("mode").map(str::to_owned)).or_else(|| {
            // NVIDIA's module has no counters.
            let persistent = loaded?.params.get("persistent_api_support")? != "0";
            Some(if persistent { "persistent" } else { "legacy" }.to_owned())
        }),
        driver_version: machine.driver.as_ref().and_then(|driver| driver.version.clone()),
        driver_flavour: machine.driver.as_ref().and_then(|driver| driver.flavour.map(Flavour::text)),
        api: machine.owner_of_symbol(REGISTER),
        dma_buf: machine.dma_buf(),
        clients: match stats {
            Some(stats) => stats.clients().into_iter().map(str::to_owned).collect(),
            None => machine.peers.clone(),
        },
        gpus: machine.gpus().into_iter().map(|gpu| format!("{} {}", gpu.address, gpu.name())).collect(),
        rdma_devices: machine.rdma.iter().map(|device| device.name.clone()).collect(),
        live: number("total.live").or_else(|| {
            let refcount = machine.modules.get(crate::machine::NAME)?.refcount?;
            u64::try_from(refcount).ok()
        }),
        live_bytes: number("total.live_bytes"),
        refused: number("total.refused"),
    }
}

/// The answer in a line.
fn verdict(usable: bool, because: &[Check]) -> String {
    let first = because.first().map_or("", Check::headline);
    match (usable, because.len()) {
        (true, 0) => "yes".to_owned(),
        (true, 1) => format!("yes, 1 warning: {first}"),
        (true, n) => format!("yes, {n} warnings: {first}; ..."),
        (false, 0 | 1) => format!("no: {first}"),
        (false, _) => format!("no: {first}; ..."),
    }
}
