// SPDX-License-Identifier: GPL-2.0
//! `status`: is it usable? As doctor judges.

use crate::check::{Check, Level};
use crate::doctor::{Report, WayVerdict};
use crate::machine::{Machine, REGISTER};
use crate::module_file::Maker;
use crate::nvidia::Flavour;
use crate::outcome::Outcome;
use crate::setting::Setting;
use crate::way::Way;
use schemars::JsonSchema;
use serde::Serialize;

/// Is it usable?
#[derive(Serialize, JsonSchema)]
pub struct Status {
    /// Doctor's verdict.
    pub outcome: Outcome,
    /// The same as the level of a check: `SKIP` for unknown.
    pub level: Level,
    /// Whether a pair of a GPU and a NIC has a way that programs take; `null` if that is unknown.
    pub usable: Option<bool>,
    /// `yes, by peer memory`; `yes, by dma-buf; 1 warning: rxe0 port DOWN`; `no: ...`; `unknown: ...`.
    pub verdict: String,
    /// What keeps it from working; or what is wrong with it, though it works. What follows from
    /// others is left out.
    pub because: Vec<Check>,
    /// Each way in which GPU memory reaches a NIC.
    pub ways: Vec<WayVerdict>,
    /// The kind of machine that it is.
    pub setting: Setting,
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
    let (outcome, why) = (report.outcome, report.unknown.clone().or(report.refused.clone()));
    let gpus = (report.gpus_usable, report.gpus);
    let (ways, setting) = (report.ways.clone(), report.setting.clone());
    let begin = report.begin_with.as_ref().map(|step| step.id);
    let mut because: Vec<Check> = report.sections.into_iter().flat_map(|section| section.checks).collect();
    because.retain(|check| check.is_finding() && check.follows.is_none());
    let worst = because.iter().map(|check| check.level).max();
    because.retain(|check| Some(check.level) == worst);
    // The finding that doctor begins with comes first.
    because.sort_by_key(|check| Some(check.id) != begin);
    let stats = machine.stats.as_ref().ok();
    let loaded = machine.loaded.as_ref();
    let number = |key: &str| stats.and_then(|stats| stats.number(key));
    Status {
        outcome,
        level: outcome.level(),
        usable: outcome.usable(),
        verdict: verdict(outcome, &because, &ways, gpus, why.as_deref()),
        because,
        ways,
        setting,
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
        clients: match stats {
            Some(stats) => stats.clients().into_iter().map(str::to_owned).collect(),
            None => machine.peers.clone(),
        },
        gpus: machine.gpus().into_iter().map(|gpu| format!("{} {}", gpu.address, machine.gpu_name(gpu))).collect(),
        rdma_devices: machine.rdma.iter().map(|device| device.name.clone()).collect(),
        live: number("total.live").or_else(|| {
            let refcount = machine.modules.get(crate::machine::NAME)?.refcount?;
            u64::try_from(refcount).ok()
        }),
        live_bytes: number("total.live_bytes"),
        refused: number("total.refused"),
    }
}

/// Returns the answer in a line.
fn verdict(
    outcome: Outcome,
    because: &[Check],
    ways: &[WayVerdict],
    (some, all): (usize, usize),
    why: Option<&str>,
) -> String {
    let first = because.first().map_or("", Check::headline);
    let main = ways.iter().filter(|verdict| [Way::PeerMemory, Way::DmaBuf].contains(&verdict.way));
    let by: Vec<&str> = main.filter(|verdict| verdict.usable == Some(true)).map(|verdict| verdict.way.text()).collect();
    let by = by.join(" and ");
    let yes = match some < all {
        true => format!("yes for {some} of {all} GPUs, by {by}"),
        false => format!("yes, by {by}"),
    };
    match (outcome, because.len()) {
        (Outcome::Usable, _) => yes,
        (Outcome::UsableWithWarnings, 1) => format!("{yes}; 1 warning: {first}"),
        (Outcome::UsableWithWarnings, n) => format!("{yes}; {n} warnings: {first}; ..."),
        (Outcome::NotUsable, _) if why.is_some() => format!("no: {}", why.unwrap_or_default()),
        (Outcome::NotUsable, 0) => "no: no pair of a GPU and a NIC has a way that works".to_owned(),
        (Outcome::NotUsable, 1) => format!("no: {first}"),
        (Outcome::NotUsable, _) => format!("no: {first}; ..."),
        (Outcome::Unknown, _) => {
            format!("unknown: {}", why.unwrap_or("what decides could not be read: peermemctl doctor names it"))
        }
    }
}
