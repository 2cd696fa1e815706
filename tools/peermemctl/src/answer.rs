// SPDX-License-Identifier: GPL-2.0
//! What each command answers: the types behind the text and behind `--json`.

use crate::check::{Check, Level};
use crate::doctor;
use crate::kernel;
use crate::machine::{Machine, REGISTER};
use crate::nvidia::Flavour;
use crate::pci::{self, Acs, Distance};
use crate::peermem::{self, Failure, Registration, Stats};
use crate::root::{Missing, Root};
use anyhow::{bail, Result};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The format of `--json`.
pub const FORMAT: u32 = 2;

/// One JSON document; `watch` prints one per line.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Document {
    Output(Output),
    Failed(Failed),
}

/// In place of an answer: what the command failed of. The program exits with 2.
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
    Doctor(doctor::Report),
    List(List),
    Watch(Tick),
    Failures(Failures),
    Topo(Topo),
    Selftest(Selftest),
}

impl Answer {
    /// What the program exits with.
    pub fn exit_code(&self) -> u8 {
        let level = match self {
            Self::Status(status) => status.level,
            Self::Doctor(report) => report.verdict,
            Self::List(list) if list.processes.iter().any(Process::is_stale) => Level::Warn,
            Self::Watch(tick) => tick.level(),
            Self::Topo(topo) => topo.level(),
            Self::Failures(failures) if !failures.failures.is_empty() => Level::Warn,
            Self::Selftest(selftest) => selftest.level,
            _ => Level::Ok,
        };
        level.exit_code()
    }
}

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

/// Live registrations.
#[derive(Serialize, JsonSchema)]
pub struct List {
    /// The most bytes first.
    pub processes: Vec<Process>,
    /// How often the module is in use; it can be unloaded at 0. `null` on a kernel that unloads no module.
    pub references: Option<i64>,
    /// One of these is the module's own, until the next boot: this build cannot tell when the last free callback has
    /// left it.
    pub stays_loaded: bool,
}

/// A process and what it has registered.
#[derive(Serialize, JsonSchema)]
pub struct Process {
    pub pid: u32,
    pub comm: String,
    /// `null` in a container, whose process numbers are not those that the module writes.
    pub alive: Option<bool>,
    pub bytes: u64,
    pub registrations: Vec<Registration>,
}

impl Process {
    /// Whether it holds what nobody will use again: the process is gone, or another one deregistered it.
    fn is_stale(&self) -> bool {
        self.alive == Some(false) || self.registrations.iter().any(|row| row.state == "orphan")
    }
}

/// The rows of one of the module's files, or why it cannot be read. Of the rest of the machine, nothing is looked at as
/// long as there are rows: the reason for a refusal is there at once.
fn told<T>(root: &Root, rows: Result<T, Missing>) -> Result<T> {
    let missing = match rows {
        Ok(rows) => return Ok(rows),
        Err(missing) => missing,
    };
    match (missing, &Machine::look(root).loaded) {
        (Missing::Denied, _) => bail!("only root may see that: run it as root"),
        (Missing::Unknown, _) => bail!("{}; {}", peermem::UNKNOWN, peermem::KNOW_IT),
        (_, None) => bail!("nvidia_peermem is not loaded; peermemctl doctor says why"),
        (_, Some(loaded)) => bail!(
            "the loaded nvidia_peermem ({}) does not tell: there is no {}",
            match loaded.maker {
                crate::module_file::Maker::Nvidia => "NVIDIA's",
                _ => "a build without it",
            },
            crate::peermem::DIR
        ),
    }
}

/// Answers `list`.
pub fn list(root: &Root) -> Result<List> {
    let registrations = told(root, peermem::registrations(root))?;
    let mut by_process: BTreeMap<(u32, String), Process> = BTreeMap::new();
    for row in &registrations {
        let process = by_process.entry((row.pid, row.comm.clone())).or_insert_with(|| Process {
            pid: row.pid,
            comm: row.comm.clone(),
            alive: row.process_alive,
            bytes: 0,
            registrations: Vec::new(),
        });
        process.bytes = process.bytes.saturating_add(row.pinned_bytes);
        process.registrations.push(row.clone());
    }
    let mut processes: Vec<Process> = by_process.into_values().collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
    let references = kernel::loaded_modules(root).get(crate::machine::NAME).map_or(Some(0), |module| module.refcount);
    let stays_loaded = Stats::read(root).is_ok_and(|stats| stats.number("stays_loaded") == Some(1));
    Ok(List { processes, references, stays_loaded })
}

/// One look at the counters, with what happened since the last one.
#[derive(Serialize, JsonSchema)]
pub struct Tick {
    /// Seconds since the last look; 0 at the first.
    pub seconds: f64,
    pub live: u64,
    pub live_bytes: u64,
    pub orphans: u64,
    pub callbacks_in_flight: u64,
    pub oldest_callback_ms: u64,
    pub pins_per_second: f64,
    pub unpins_per_second: f64,
    pub revocations_per_second: f64,
    pub refused_per_second: f64,
    /// Mean time of the provider's get since the last look, in microseconds.
    pub get_mean_us: Option<f64>,
    /// All counters.
    pub counters: BTreeMap<String, u64>,
}

impl Tick {
    /// Broken while a free callback is stuck, a warning if something was refused since the last look or is an orphan.
    fn level(&self) -> Level {
        if self.oldest_callback_ms >= peermem::STUCK_MS {
            Level::Fail
        } else if self.refused_per_second > 0.0 || self.orphans > 0 {
            Level::Warn
        } else {
            Level::Ok
        }
    }
}

/// Answers one round of `watch`.
pub fn tick(stats: &Stats, before: Option<(&Stats, f64)>) -> Tick {
    let number = |key: &str| stats.number(key).unwrap_or(0);
    let grown = |key: &str| {
        let (old, _) = before?;
        Some(number(key).saturating_sub(old.number(key).unwrap_or(0)) as f64)
    };
    let seconds = before.map_or(0.0, |(_, seconds)| seconds);
    let rate = |key: &str| match grown(key) {
        Some(grown) if seconds > 0.0 => grown / seconds,
        _ => 0.0,
    };
    let calls = grown("provider.get.calls").filter(|calls| *calls > 0.0);
    Tick {
        seconds,
        live: number("total.live"),
        live_bytes: number("total.live_bytes"),
        orphans: number("total.orphans"),
        callbacks_in_flight: number("callbacks_in_flight"),
        oldest_callback_ms: number("oldest_callback_ms"),
        pins_per_second: rate("total.pins"),
        unpins_per_second: rate("total.unpins"),
        revocations_per_second: rate("total.revocations"),
        refused_per_second: rate("total.refused"),
        get_mean_us: calls.and_then(|calls| Some(grown("provider.get.total_ns")? / calls / 1000.0)),
        counters: stats.numbers(),
    }
}

/// The last refusals.
#[derive(Serialize, JsonSchema)]
pub struct Failures {
    /// The oldest first.
    pub failures: Vec<Failure>,
}

/// Answers `failures`.
pub fn failures(root: &Root) -> Result<Failures> {
    Ok(Failures { failures: told(root, peermem::failures(root))? })
}

/// GPUs, NICs, and the ways between them.
#[derive(Serialize, JsonSchema)]
pub struct Topo {
    pub gpus: Vec<Place>,
    pub nics: Vec<Place>,
    pub pairs: Vec<Pair>,
}

/// Where a device sits.
#[derive(Serialize, JsonSchema)]
pub struct Place {
    /// PCI address.
    pub address: String,
    /// Name of the RDMA device, or of the GPU's model.
    pub name: String,
    pub numa_node: Option<i32>,
    /// Host bridge, then the bridges down to the device.
    pub way: Vec<String>,
}

/// A GPU and a NIC.
#[derive(Serialize, JsonSchema)]
pub struct Pair {
    pub gpu: String,
    pub nic: String,
    pub distance: Distance,
    /// The bridge where their ways meet; `null` if they share none.
    pub meet: Option<String>,
    /// Bridges on the way that send peer-to-peer traffic up to the CPU (ACS redirect); none where it goes there anyway.
    pub acs_redirects: Vec<String>,
    /// Whether the ACS words of all bridges on the way could be read (root only).
    pub acs_known: bool,
    /// What the GPU driver says of the two, once they met in a registration: `supported`, `unsupported`, or `unasked`
    /// (revocable pins only).
    pub driver_says: Option<String>,
}

impl Topo {
    /// A warning, as doctor's, if the driver refuses two, ACS redirects, or a GPU has no NIC nearby.
    fn level(&self) -> Level {
        let hindered =
            |pair: &Pair| !pair.acs_redirects.is_empty() || pair.driver_says.as_deref() == Some("unsupported");
        let far = |gpu: &Place| {
            let nearest = self.pairs.iter().filter(|pair| pair.gpu == gpu.address).map(|pair| pair.distance).min();
            nearest.is_some_and(|distance| distance > Distance::Phb)
        };
        match self.pairs.iter().any(hindered) || self.gpus.iter().any(far) {
            true => Level::Warn,
            false => Level::Ok,
        }
    }
}

/// Answers `topo`.
pub fn topo(machine: &Machine) -> Topo {
    let gpus = machine.gpus();
    let nics: Vec<_> =
        machine.rdma.iter().filter_map(|device| Some((device, machine.pci(device.pci.as_deref()?)?))).collect();
    let place = |name: String, device: &pci::Device| Place {
        address: device.address.clone(),
        name,
        numa_node: device.numa,
        way: device.way.clone(),
    };
    let mut pairs = Vec::new();
    for gpu in &gpus {
        for (_, nic) in &nics {
            let way = gpu.way_to(nic);
            let states: Vec<(String, Acs)> = match way.shares_a_switch() {
                true => way.between.iter().map(|bridge| (bridge.clone(), pci::acs(machine.root, bridge))).collect(),
                false => Vec::new(),
            };
            let driver_says = machine.stats.as_ref().ok().and_then(|stats| {
                stats.pairs().find(|(a, b, _)| *a == gpu.address && *b == nic.address).map(|(.., says)| says.to_owned())
            });
            pairs.push(Pair {
                driver_says,
                gpu: gpu.address.clone(),
                nic: nic.address.clone(),
                distance: way.distance,
                meet: way.meet,
                acs_known: states.iter().all(|(_, state)| *state != Acs::Unreadable),
                acs_redirects: states
                    .into_iter()
                    .filter(|(_, state)| *state == Acs::Redirects)
                    .map(|(bridge, _)| bridge)
                    .collect(),
            });
        }
    }
    Topo {
        gpus: gpus.into_iter().map(|gpu| place(gpu.name(), gpu)).collect(),
        nics: nics.into_iter().map(|(device, nic)| place(device.name.clone(), nic)).collect(),
        pairs,
    }
}

/// What `selftest` did.
#[derive(Serialize, JsonSchema)]
pub struct Selftest {
    pub level: Level,
    pub gpu: String,
    pub device: String,
    pub bytes: u64,
    /// By peer memory, then by dma-buf.
    pub ways: Vec<SelftestWay>,
}

/// One way of registering.
#[derive(Serialize, JsonSchema)]
pub struct SelftestWay {
    /// `peer-memory` or `dma-buf`.
    pub way: &'static str,
    pub level: Level,
    /// What went wrong, or why it was not tried.
    pub message: Option<String>,
    pub register_us: Option<f64>,
    pub write_us: Option<f64>,
    pub deregister_us: Option<f64>,
    /// Whether the bytes that the NIC wrote are in GPU memory.
    pub bytes_equal: Option<bool>,
}
