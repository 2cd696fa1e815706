// SPDX-License-Identifier: GPL-2.0
//! Section 11: each way in which GPU memory reaches a NIC, and the verdict over all of them.

use super::{api, cure, driver, fabric, hardware};
use crate::check::{Check, Level, Section};
use crate::consumer::{self, Consumer, Does};
use crate::environment::Environment;
use crate::machine::{Machine, REGISTER};
use crate::nvidia;
use crate::outcome::Outcome;
use crate::text;
use crate::way::{self, AttachRefusal, Judged, Pair, Way};
use schemars::JsonSchema;
use serde::Serialize;

/// One way, over all pairs.
#[derive(Clone, Serialize, JsonSchema)]
pub struct WayVerdict {
    pub way: Way,
    /// Whether a pair can use it; `null` if that is unknown.
    pub usable: Option<bool>,
    /// How many pairs of a GPU and a NIC can.
    pub pairs: usize,
    /// How many pairs there are.
    pub of: usize,
    pub because: String,
    /// The programs that take it by default.
    pub taken_by: &'static str,
}

/// Returns what is known of each way over all pairs.
pub fn verdicts(pairs: &[Pair]) -> Vec<WayVerdict> {
    let of_way = |way: Way| {
        let all: Vec<&Judged> = pairs.iter().map(|pair| pair.way(way)).collect();
        let yes = all.iter().filter(|judged| judged.is_yes()).count();
        let unknown = all.iter().find(|judged| matches!(judged, Judged::Unknown(_)));
        let told = all.iter().find(|judged| judged.is_yes()).or(unknown).or(all.first());
        WayVerdict {
            way,
            usable: match (yes, unknown) {
                (0, Some(_)) => None,
                (yes, _) => Some(yes > 0),
            },
            pairs: yes,
            of: all.len(),
            because: told.map_or("there is no pair of a GPU and an RDMA device", |judged| judged.because()).to_owned(),
            taken_by: way.taken_by(),
        }
    };
    let mut verdicts: Vec<WayVerdict> = Way::ALL.into_iter().map(of_way).collect();
    // A reason that closes all ways by dma-buf is told once.
    let plain = verdicts.iter().find(|verdict| verdict.way == Way::DmaBuf).map(|verdict| verdict.because.clone());
    let special = verdicts.iter_mut().filter(|verdict| ![Way::PeerMemory, Way::DmaBuf].contains(&verdict.way));
    for verdict in special.filter(|verdict| verdict.pairs == 0 && Some(&verdict.because) == plain.as_ref()) {
        verdict.because = match verdict.usable {
            Some(_) => "dma-buf does not work".to_owned(),
            None => "whether dma-buf works is not known".to_owned(),
        };
    }
    verdicts
}

impl WayVerdict {
    /// Returns whether a pair can use it, in words.
    pub fn words(&self) -> String {
        match self.usable {
            Some(true) => format!("yes, {} of {}", self.pairs, text::count(self.of, "pair")),
            Some(false) => format!("no, because {}", self.because),
            None => format!("unknown, because {}", self.because),
        }
    }
}

/// Returns a check for each way.
pub fn checks(verdicts: &[WayVerdict]) -> Vec<Check> {
    let check = |verdict: &WayVerdict| {
        let said = format!("{}: {}", verdict.way.text(), verdict.words());
        match verdict.usable {
            Some(true) => Check::ok("ways.pairs", format!("{said}; default of {}", verdict.taken_by)),
            _ => Check::skip("ways.pairs", said),
        }
        .seen(verdict.because.clone())
    };
    verdicts.iter().map(check).collect()
}

/// Returns what the GPU driver refused of dma-bufs, and what programs that prefer them need then.
/// Where the IOMMU is the cause, its own check, which is in `sections`, has the one cure of both.
pub fn refused(machine: &Machine, verdicts: &[WayVerdict], sections: &mut [Section]) -> Vec<Check> {
    const ID: &str = "ways.refused";
    const IOMMU: &str = "fabric.iommu";
    let works = |way: Way| verdicts.iter().any(|verdict| verdict.way == way && verdict.usable == Some(true));
    // What closes dma-buf is a failure where it leaves programs no way.
    let is_open =
        |verdict: &WayVerdict| [Way::PeerMemory, Way::DmaBuf].contains(&verdict.way) && verdict.usable != Some(false);
    let closed_by = way::closed_by(machine).filter(|_| !verdicts.iter().any(is_open));
    let mut checks = Vec::new();
    let coherent = way::has_coherent(machine);
    let forced = way::attach_refused(machine, AttachRefusal::ForcedPcie);
    let lines = [way::attach_refused(machine, AttachRefusal::Topology), forced.filter(|_| coherent)];
    if lines.iter().any(Option::is_some) {
        let how = match lines {
            [Some(_), Some(_)] => " (524, not supported), with the forced PCIe mapping and without",
            [None, _] => " with the forced PCIe mapping (524, not supported)",
            _ => " (524, not supported)",
        };
        let message =
            format!("the GPU driver refused to attach a dma-buf{how}: it does not approve of where GPU and NIC are");
        let lines = lines.into_iter().flatten().map(|line| format!("kernel log: {line}"));
        let seen = lines.chain(way::groups(machine));
        let check = Check::fail_unless(closed_by != Some(ID), ID, message, way::topology_cure(machine));
        checks.push(seen.fold(check, Check::seen));
    } else if way::topology_denied(machine) && machine.driver.is_some() {
        let message = "NVreg_GrdmaPciTopoCheckOverride is 2: the GPU driver gives its memory to no NIC";
        let check = Check::fail(ID, message, way::topology_cure(machine));
        checks.push(check.seen(nvidia::place_of(machine.root, "GrdmaPciTopoCheckOverride", 2)));
    }
    if let Some(line) = forced.filter(|_| !coherent) {
        let message = "a program asked for a dma-buf with the forced PCIe mapping, which the GPU driver refuses (524) where no GPU has a coherent link to a CPU";
        let fix = "have that program register without that mapping (flags 0 of cuMemGetHandleForAddressRange()); no parameter of nvidia.ko allows it here";
        checks.push(Check::warn(ID, message, fix).seen(format!("kernel log: {line}")));
    }
    if let Some(line) = way::attach_refused(machine, AttachRefusal::Importer) {
        let message = "the GPU driver refused a dma-buf (524) to a driver that cannot take memory without struct page: not the topology, but that driver is the cause";
        let fix = "have programs take peer memory until that driver is known (NCCL_DMABUF_ENABLE=0, UCX_CUDA_COPY_DMABUF=no): drivers that register with the RDMA core of Linux 5.12 and later can take it, and peermemctl selftest tries each NIC";
        checks.push(Check::warn(ID, message, fix).seen(format!("kernel log: {line}")));
    }
    let gpus = machine.gpus();
    let mut pairs =
        gpus.iter().flat_map(|gpu| machine.rdma.iter().map(move |nic| way::untranslated(machine, gpu, nic)));
    if let Some(Judged::No(because)) = pairs.find(Judged::is_no) {
        let message = format!("{because}; programs prefer dma-buf, and their transfers fault");
        let fix = fabric::through_iommu(machine);
        let mut check = Check::warn(ID, message, fix).seen("iommu_group/type of the NIC, /proc/sys/kernel/osrelease");
        let found = sections.iter_mut().flat_map(|section| &mut section.checks);
        if let Some(cause) = found.into_iter().find(|check| check.id == IOMMU && check.is_finding()) {
            if closed_by == Some(IOMMU) && way::no_peers(machine) {
                cause.level = Level::Fail;
                cause.message = format!("{}; without peer memory, this leaves programs no way", cause.message);
            }
            if let Some(fix) = cause.fix.as_mut().filter(|_| works(Way::PeerMemory)) {
                fix.push_str("; until then have programs take peer memory: NCCL_DMABUF_ENABLE=0, UCX_CUDA_COPY_DMABUF=no, NVSHMEM_IB_DISABLE_DMABUF=1, FI_HMEM_CUDA_USE_DMABUF=0");
            }
            check.follows = Some(IOMMU);
            check.fix.clone_from(&cause.fix);
        }
        checks.push(check);
    }
    checks
}

/// The name by which `--for` asks for programs that call `ibv_reg_mr()` themselves, such as
/// perftest and MPI.
pub const VERBS: &str = "verbs";

/// A program that registers as another one does.
struct AsAnother {
    name: &'static str,
    library: &'static str,
    /// The variable that it sets for the library, and the variable's value.
    sets: Option<(&'static str, &'static str)>,
}

/// The programs and their libraries ([`crate::facts::NIXL_UCX`], [`crate::facts::DEEPEP_NVSHMEM`]).
const AS_ANOTHER: [AsAnother; 2] = [
    AsAnother { name: "nixl", library: "ucx", sets: None },
    AsAnother { name: "deepep", library: "nvshmem", sets: Some(("NVSHMEM_IB_ENABLE_IBGDA", "1")) },
];

/// Returns the program whose rule is that of a name which `--for` takes.
fn consumer_of(name: &str) -> Option<&'static Consumer> {
    let name = AS_ANOTHER.iter().find(|program| program.name == name).map_or(name, |program| program.library);
    consumer::ALL.into_iter().find(|consumer| consumer.id.ends_with(&format!(".{name}")))
}

/// Returns the environment in which that program runs.
fn environment_of(name: &str, environment: &Environment) -> Environment {
    let mut own = environment.clone();
    let sets = AS_ANOTHER.iter().find(|program| program.name == name).and_then(|program| program.sets);
    sets.iter().for_each(|(variable, value)| own.set(variable, value));
    own
}

/// Returns the names that `--for` takes.
pub fn programs() -> Vec<&'static str> {
    let known = consumer::ALL.iter().filter_map(|consumer| consumer.id.split('.').nth(1));
    std::iter::once(VERBS).chain(known).chain(AS_ANOTHER.iter().map(|program| program.name)).collect()
}

/// The answer to whether there is a pair for those who were asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usable {
    Yes,
    No,
    Unknown,
}

impl Usable {
    /// Returns the verdict; `is_something_wrong` says whether anything else was found.
    pub fn outcome(self, is_something_wrong: bool) -> Outcome {
        match self {
            Self::Yes if is_something_wrong => Outcome::UsableWithWarnings,
            Self::Yes => Outcome::Usable,
            Self::No => Outcome::NotUsable,
            Self::Unknown => Outcome::Unknown,
        }
    }

    /// Returns the worse of two.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            _ => Self::Yes,
        }
    }
}

/// Returns whether each program that was asked about has a pair with a way that it takes; without
/// any, whether a pair has peer memory or dma-buf.
pub fn usable(
    machine: &Machine,
    environment: &Environment,
    pairs: &[Pair],
    asked: &[String],
    checks: &[&Check],
) -> Usable {
    let best = |found: &mut dyn Iterator<Item = Usable>| {
        let all: Vec<Usable> = found.collect();
        match (all.contains(&Usable::Yes), all.contains(&Usable::Unknown)) {
            (true, _) => Usable::Yes,
            (false, true) => Usable::Unknown,
            (false, false) => Usable::No,
        }
    };
    let of_way = |pair: &Pair, way: Way| match pair.way(way) {
        Judged::Yes(_) => Usable::Yes,
        Judged::No(_) => Usable::No,
        Judged::Unknown(_) => Usable::Unknown,
    };
    let plain = || best(&mut pairs.iter().map(|pair| of_way(pair, Way::PeerMemory)));
    let of_consumer = |consumer: &Consumer, environment: &Environment| {
        let pairings = consumer::pairings_for(machine, environment);
        let of = |pairing: &consumer::Pairing| {
            let is_it = |pair: &&Pair| pair.gpu.address == pairing.gpu.address && pair.nic.name == pairing.nic.name;
            match consumer.does(pairing, machine, environment) {
                Does::Direct(way, _) => pairs.iter().find(is_it).map_or(Usable::No, |pair| of_way(pair, way)),
                Does::Unknown(_) => Usable::Unknown,
                Does::Copies(_) => Usable::No,
            }
        };
        best(&mut pairings.iter().map(of))
    };
    let named = |name: &String| match name == VERBS {
        true => plain(),
        false => consumer_of(name)
            .map_or(Usable::Unknown, |consumer| of_consumer(consumer, &environment_of(name, environment))),
    };
    let found = match asked {
        [] => best(&mut pairs.iter().flat_map(|pair| [Way::PeerMemory, Way::DmaBuf].map(|way| of_way(pair, way)))),
        names => names.iter().map(named).fold(Usable::Yes, Usable::and),
    };
    match found {
        Usable::No if is_hidden(machine, checks) => Usable::Unknown,
        // Which program that is, and what it is given, is not known.
        Usable::Yes if environment.is_chosen && unsure_of(machine, environment, asked).is_some() => Usable::Unknown,
        other => other,
    }
}

/// Returns what was not understood: a launcher, a file or a variable of a command line or process, or
/// what a file says of each GPU and NIC.
fn unsure_of(machine: &Machine, environment: &Environment, asked: &[String]) -> Option<String> {
    let consumers: Vec<&Consumer> = match asked {
        [] => consumer::ALL.to_vec(),
        names => names.iter().filter_map(|name| consumer_of(name)).collect(),
    };
    let of_program = consumers.iter().find_map(|consumer| consumer.not_understood(environment));
    of_program.or_else(|| {
        let pairings = consumer::pairings_for(machine, environment);
        consumers.iter().find_map(|consumer| {
            // One pair that is understood is enough.
            let of = |pairing| (consumer.unsure_of)(machine, pairing, environment);
            pairings.iter().all(|pairing| of(pairing).is_some()).then(|| of(pairings.first()?)).flatten()
        })
    })
}

/// Why a program that was asked about does not use GPUDirect RDMA.
pub struct ProgramRefused {
    /// The check that is about it.
    pub id: &'static str,
    pub because: String,
    pub fix: Option<String>,
}

/// Returns the first program of those that were asked about which refuses each GPU and NIC, and why.
pub fn refused_to(
    machine: &Machine,
    environment: &Environment,
    pairs: &[Pair],
    asked: &[String],
) -> Option<ProgramRefused> {
    let of_verbs = || {
        let first = pairs.first()?.way(Way::PeerMemory);
        let is_closed = pairs.iter().all(|pair| pair.way(Way::PeerMemory).is_no());
        let no_api = machine.has_symbol(REGISTER) == Some(false);
        is_closed.then(|| ProgramRefused {
            id: "api.exported",
            because: format!("a plain ibv_reg_mr() takes peer memory alone, and {}", first.because()),
            fix: no_api.then(|| cure::chosen(machine, "api.exported", &api::api_cure(machine))),
        })
    };
    let of_program = |name: &String| {
        let (consumer, environment) = (consumer_of(name)?, environment_of(name, environment));
        let pairings = consumer::pairings_for(machine, &environment);
        let refusal = |pairing| match consumer.does(pairing, machine, &environment) {
            Does::Copies(refusal) => Some(refusal),
            _ => None,
        };
        let is_closed = pairings.iter().all(|pairing| refusal(pairing).is_some());
        let nearest = pairings.iter().min_by_key(|pairing| pairing.distance)?;
        let refusal = refusal(nearest).filter(|_| is_closed)?;
        // A user cannot take away a variable that the program sets itself.
        let sets = AS_ANOTHER.iter().find(|program| program.name == name).and_then(|program| program.sets);
        let fix = refusal.set.filter(|fix| !sets.is_some_and(|(variable, _)| fix.contains(variable)));
        Some(ProgramRefused { id: consumer.id, because: format!("{name}: {}", refusal.because), fix })
    };
    asked.iter().find_map(|name| if name == VERBS { of_verbs() } else { of_program(name) })
}

/// Returns whether what names GPUs and NICs could not be read, or is in another namespace, while
/// nothing that was read keeps GPUDirect RDMA from working.
fn is_hidden(machine: &Machine, checks: &[&Check]) -> bool {
    let skipped = |id: &str| checks.iter().any(|check| check.id == id && check.level == Level::Skip);
    // What a program does without peer memory it may do with the NICs that are hidden, too.
    let is_needless = machine.dma_buf() || hardware::with_own_way(machine).is_some();
    let closes = |id: &str| !is_needless || !way::of_peer_memory(id) && !id.starts_with("consumers.");
    let failed = checks.iter().any(|check| check.level == Level::Fail && closes(check.id));
    !failed && (machine.devices.is_empty() || skipped("fabric.rdma") || skipped("gpus.present"))
}

/// Returns why the verdict on the programs that were asked about is unknown.
pub fn why_unknown(
    machine: &Machine,
    environment: &Environment,
    asked: &[String],
    verdicts: &[WayVerdict],
    checks: &[&Check],
) -> String {
    let ids = ["gpus.present", "fabric.rdma", "setting.unread"];
    let skipped = |id: &&str| checks.iter().find(|check| *check.id == **id && check.level == Level::Skip);
    let of_program = unsure_of(machine, environment, asked).or_else(|| does_unknown(machine, environment, asked));
    let of_way = || verdicts.iter().find(|verdict| verdict.usable.is_none()).map(|verdict| verdict.because.clone());
    let no_pair = verdicts.iter().all(|verdict| verdict.of == 0);
    let hidden = ids.iter().find_map(skipped).filter(|_| no_pair).map(|check| check.message.clone());
    let told = hidden.or(of_program).or_else(of_way);
    told.or_else(|| ids.iter().find_map(skipped).map(|check| check.message.clone()))
        .unwrap_or_else(|| "what a program that was asked about does here is not known".to_owned())
}

/// Returns why doctor cannot say which way a program takes that was asked about: no way that is known
/// here works for it, but one that is not known may.
fn does_unknown(machine: &Machine, environment: &Environment, asked: &[String]) -> Option<String> {
    let pairings = consumer::pairings_for(machine, environment);
    asked.iter().find_map(|name| {
        let (consumer, environment) = (consumer_of(name)?, environment_of(name, environment));
        let mut unknown = None;
        for pairing in &pairings {
            match consumer.does(pairing, machine, &environment) {
                Does::Direct(..) => return None,
                Does::Unknown(why) => unknown = unknown.or(Some(why)),
                Does::Copies(_) => {}
            }
        }
        Some(format!("{}: {}", consumer.name, unknown?))
    })
}

/// Changes the level of findings where another way than the one that they are about works: what is
/// broken is a warning then, and what only a core with the peer-memory API needs is not needed. What
/// a machine has whose GPUs no NIC reaches needs nothing else.
pub fn reconsider(machine: &Machine, sections: &mut [Section], verdicts: &[WayVerdict], usable: &Usable) {
    let works = |way: Way| verdicts.iter().any(|verdict| verdict.way == way && verdict.usable == Some(true));
    let no_api =
        machine.has_symbol(REGISTER) == Some(false) && machine.api_to_load().is_none() && machine.loaded.is_none();
    let no_peers = way::no_peers(machine);
    // With an RDMA device it would work, and nothing else is missing.
    let only_a_device = machine.rdma.is_empty() && machine.dma_buf();
    // What closes it, if anything does, has a check of its own, whose cure is the first.
    let by_dma_buf = works(Way::DmaBuf) || machine.dma_buf();
    let by_nic = works(Way::PeerMemory) && machine.rdma.iter().all(|nic| machine.takes_by_itself(nic));
    let own_way = machine.rdma.is_empty() && hardware::with_own_way(machine).is_some()
        || !machine.rdma.is_empty() && machine.rdma.iter().all(|nic| way::takes_or_pins(machine, nic));
    // If nothing is known of dma-buf, nothing tells whether peer memory is missed.
    let is_unknown = |verdict: &WayVerdict| verdict.way == Way::DmaBuf && verdict.usable.is_none();
    // An nvidia.ko that is not loaded does not tell whether it offers dma-buf.
    let is_not_loaded = machine.driver.is_none() && machine.modules_read && driver::takes_open(machine);
    let perhaps = !by_nic && (verdicts.iter().any(is_unknown) || is_not_loaded && machine.core_takes_dma_buf());
    let gpus = machine.gpus();
    let only_own = gpus.is_empty() && machine.setting.tegra;
    let no_gpu_can = !gpus.is_empty() && gpus.iter().all(|gpu| machine.refusal(gpu).is_some());
    let is_of_family = |nic| machine.instance_without_gpudirect(nic).is_some();
    let no_nic_can = !machine.rdma.is_empty() && machine.rdma.iter().all(is_of_family);
    let in_vain = only_own || no_gpu_can || no_nic_can;
    for check in sections.iter_mut().flat_map(|section| &mut section.checks).filter(|check| check.is_finding()) {
        let of_peer_memory =
            way::of_peer_memory(check.id) || ["limits.autoload", "consumers.operator"].contains(&check.id);
        let not_needed = match check.id {
            // Programs reach such a NIC by a library of its own.
            _ if (by_nic || own_way) && !in_vain && check.id.starts_with("consumers.") => true,
            "consumers.sharp" | "consumers.mooncake" if !in_vain => no_peers && (by_dma_buf || perhaps),
            _ if in_vain => of_peer_memory || check.id.starts_with("consumers.") || check.id == "limits.memlock",
            _ => no_peers && (by_dma_buf || by_nic || own_way || perhaps) && of_peer_memory,
        };
        if not_needed {
            check.level = Level::Skip;
            let why = match (in_vain, only_a_device) {
                (true, _) => "no NIC gets memory of these GPUs",
                _ if own_way && !by_nic => "the NIC's own driver may take GPU memory",
                (false, true) => "dma-buf works with an RDMA device",
                _ if by_nic => "the NIC's own driver takes GPU memory",
                _ if perhaps => "peer memory cannot work here, and whether dma-buf does is not known",
                _ if !works(Way::DmaBuf) => {
                    "kernel and drivers offer dma-buf, and what keeps that from working is said elsewhere"
                }
                _ if !no_api => "no NIC here asks peers for memory, and dma-buf works",
                (false, false) => "the core has no peer-memory API, and dma-buf works",
            };
            let judged = if perhaps && !in_vain { "not judged" } else { "not needed" };
            check.message = format!("{judged}, as {why}: {}", check.message);
            check.fix = None;
        } else if *usable == Usable::Yes && check.level == Level::Fail {
            check.level = Level::Warn;
        }
    }
}
