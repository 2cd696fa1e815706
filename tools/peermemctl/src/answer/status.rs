// SPDX-License-Identifier: GPL-2.0
//! `status`: is it usable?

use crate::check::{Check, Level};
use crate::doctor;
use crate::machine::{Machine, REGISTER};
use crate::nvidia::Flavour;
use schemars::JsonSchema;
use serde::Serialize;

/// Is it usable?
#[derive(Serialize, JsonSchema)]
pub struct Status {
    pub level: Level,
    /// Whether a plain `ibv_reg_mr()` on GPU memory can work by a loaded nvidia-peermem.
    pub usable: bool,
    /// What keeps it from working; or what is wrong with it, though it works.
    pub because: Vec<Check>,
    pub kernel: Option<String>,
    /// `rust` (this project's), `nvidia`, `other`; `null` if none is loaded.
    pub module: Option<&'static str>,
    pub module_version: Option<String>,
    /// `persistent` or `legacy`.
    pub mode: Option<&'static str>,
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

/// Checks that decide whether it works at all.
const DECISIVE: [&str; 17] = [
    "driver.loaded",
    "driver.licence",
    "driver.exports",
    "api.exported",
    "api.version",
    "api.driver",
    "module.loaded",
    "module.shut",
    "module.stub",
    "clients.taken",
    "clients.callbacks",
    "gpus.present",
    "gpus.nodes",
    "fabric.rdma",
    "fabric.nodes",
    "fabric.iommu",
    "limits.devices",
];

/// Checks that say, where all that is decisive is well, that it does not work for everybody, or not for long.
const WARNINGS: [&str; 5] =
    ["clients.counters", "clients.put_errors", "registrations.stale", "registrations.orphan", "gpus.bar1"];

/// Answers `status`.
pub fn status(machine: &Machine) -> Status {
    let checks = doctor::examine(machine).sections.into_iter().flat_map(|section| section.checks);
    let is_decisive = |check: &Check| check.level == Level::Fail && DECISIVE.contains(&check.id);
    let warns = |check: &Check| check.level >= Level::Warn && WARNINGS.contains(&check.id);
    let mut because: Vec<Check> = checks.filter(|check| is_decisive(check) || warns(check)).collect();
    let usable = machine.loaded.is_some() && !because.iter().any(is_decisive);
    if !usable {
        because.retain(is_decisive);
    }
    let stats = machine.stats.as_ref().ok();
    let loaded = machine.loaded.as_ref();
    let number = |key: &str| stats.and_then(|stats| stats.number(key));
    Status {
        level: match (usable, because.is_empty()) {
            (true, true) => Level::Ok,
            (true, false) => Level::Warn,
            (false, _) => Level::Fail,
        },
        usable,
        because,
        kernel: machine.release.clone(),
        module: loaded.map(|loaded| match loaded.maker {
            crate::module_file::Maker::Ours => "rust",
            crate::module_file::Maker::Nvidia => "nvidia",
            crate::module_file::Maker::Other => "other",
        }),
        module_version: loaded.and_then(|loaded| loaded.version.clone()),
        mode: loaded.and_then(|loaded| match loaded.params.get("persistent_api_support").map(String::as_str) {
            Some("1") => Some("persistent"),
            Some("0") => Some("legacy"),
            _ => None,
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
