// SPDX-License-Identifier: GPL-2.0
//! `verify`: tries on this machine what users of GPU memory and RDMA count on, by libcuda, libibverbs,
//! /proc and the kernel log alone, and writes one report: each way with each GPU and NIC, or
//! (`--module`) the module in depth.

pub mod checks;
mod interrupt;
mod log;
mod module;
mod process;
mod rig;
mod watchdog;
pub mod ways;

use crate::answer::{self, Fact, Matrix, Verify, VerifyCheck, VerifyPair, VerifyPass};
use crate::check::Level;
use crate::cuda::{Cuda, Mapping};
use crate::doctor;
use crate::environment::Environment;
use crate::kernel;
use crate::machine::{Machine, REGISTER};
use crate::nvidia::Flavour;
use crate::peermem;
use crate::print::{Detail, Page};
use crate::recorded;
use crate::root::Root;
use crate::select;
use crate::text;
use crate::verbs::{PortAddress, Verbs};
use anyhow::{anyhow, bail, Context, Result};
use checks::{Check, Held, CHECKS};
use interrupt::{go_on, interrupted};
use log::Mark;
use module::{Found, Load};
use rig::{Conditions, Place};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use watchdog::Watchdog;
use ways::{Depth, WayWord};

/// The options of `verify`.
pub struct Wanted<'a> {
    /// Whether the module is tested in depth, in place of each way.
    pub module: bool,
    /// The ways that are tried; if there are none, each one that exists.
    pub ways: &'a [WayWord],
    pub quick: bool,
    /// The GPU as [`select`] reads it. `None` means all of them, or for the module's test the first
    /// one.
    pub gpu: Option<&'a str>,
    pub nic: Option<&'a str>,
    /// The beginnings of the names of the checks that are run; if there are none, all checks are
    /// run.
    pub only: &'a [String],
    pub storm: Duration,
    pub seed: Option<u64>,
    pub compare: Option<PathBuf>,
    /// Whether modules may be loaded and unloaded without asking.
    pub yes: bool,
    /// The report's file; `None` for a file of this folder that is named by the time.
    pub report: Option<PathBuf>,
    /// The words that say what machine this is.
    pub about: &'a str,
}

/// The file of the report, and its path.
type ReportFile = (File, PathBuf);

/// Opens the report before anything is tried: what takes minutes must not be lost for want of a
/// folder. Without a name the report goes into this folder, or where temporary files go. Returns
/// `None` if neither takes a file, which says nothing about GPUs and NICs: what was found is told
/// all the same.
fn report_file(wanted: &Wanted, time: &str) -> Result<Option<ReportFile>> {
    let open = |path: PathBuf| {
        let file = File::create_new(&path).with_context(|| format!("write the report {}", path.display()));
        file.map(|file| (file, path))
    };
    if let Some(path) = &wanted.report {
        return open(path.clone()).map(Some);
    }
    let time = time.get(..19).unwrap_or("").replace([':', ' '], "-");
    // Another run may have begun in the same second.
    let names =
        [format!("peermemctl-verify-{time}.txt"), format!("peermemctl-verify-{time}-{}.txt", std::process::id())];
    let folders = [PathBuf::new(), std::env::temp_dir()];
    let paths = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    let mut last = None;
    for path in paths {
        match open(path) {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => last = Some(error),
        }
    }
    no_report(&last.context("no folder")?);
    Ok(None)
}

fn no_report(why: &anyhow::Error) {
    eprintln!("peermemctl: no report is kept: {why:#}; --report FILE names another place");
}

/// Writes the report into its file, and returns its path. A full disk is an error if the file was
/// asked for; otherwise the verdict does not depend on it.
fn keep(report: &str, opened: Option<ReportFile>, asked: bool) -> Result<Option<PathBuf>> {
    let Some((mut file, path)) = opened else { return Ok(None) };
    let written = file.write_all(report.as_bytes()).with_context(|| format!("write the report {}", path.display()));
    match written {
        Err(error) if !asked => {
            no_report(&error);
            Ok(None)
        }
        written => written.map(|()| Some(path)),
    }
}

/// Runs the checks and writes the report. Returns what was found, and the report's path if it was
/// kept.
pub fn run(root: &Root, wanted: &Wanted) -> Result<(Verify, Option<PathBuf>)> {
    let chosen = chosen(wanted.only)?;
    let machine = Machine::look(root);
    let (gpu, place) = places(&machine, wanted)?;
    let comparison = wanted.compare.as_ref().map(|file| module::file_words(root, file)).transpose()?;
    let begun = Instant::now();
    let time = wall_clock();
    let opened = report_file(wanted, &time)?;

    let seed = wanted.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut verify = Verify { arguments: arguments(), ..Verify::begun(time, seed) };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: The handler stores to an atomic and calls signal(), no more.
        unsafe { libc::signal(signal, interrupted as *const () as libc::sighandler_t) };
    }
    let copy = |(file, path): &ReportFile| Ok::<_, std::io::Error>((file.try_clone()?, path.clone()));
    let late = opened.as_ref().map(copy).transpose().context("the report")?;
    let watchdog = Watchdog::new({
        let about = wanted.about.to_owned();
        move |mut verify: Verify, hung: VerifyCheck| hang(&mut verify, hung, &about, late)
    });
    let all = Run { root, wanted, chosen: &chosen, place: place.as_ref(), watchdog: &watchdog };
    let ran = match wanted.module {
        true => passes(&all, machine, gpu.as_deref(), comparison.as_deref(), &mut verify),
        false => each_way(&machine, wanted, begun, &watchdog, &mut verify),
    };
    verify.seconds = begun.elapsed().as_secs_f64();
    verify.level = verify.worst();
    let error = ran.as_ref().err().map(|error| format!("{error:#}"));
    let kept = keep(&report(root, &verify, wanted.about, error.as_deref()), opened, wanted.report.is_some())?;
    ran.with_context(|| match &kept {
        Some(path) => format!("the report {} has what was found until then", path.display()),
        None => "what was found until then is lost".to_owned(),
    })?;
    Ok((verify, kept))
}

/// Ends the program when a check does not end, and maybe never will: writes down what is known, and
/// leaves the module as it is.
fn hang(verify: &mut Verify, hung: VerifyCheck, about: &str, opened: Option<ReportFile>) {
    let root = Root::new(Path::new("/"));
    eprintln!("peermemctl: {} {}", hung.id, hung.message);
    match verify.passes.last_mut() {
        Some(pass) => {
            // A check that stands still counts with any module.
            pass.counts = true;
            pass.checks.push(hung);
        }
        None => verify.passes.push(VerifyPass { module: "the ways".to_owned(), counts: true, checks: vec![hung] }),
    }
    verify.level = verify.worst();
    let text = report(&root, verify, about, Some("a check hangs; nvidia_peermem was left as it is"));
    // The process ends here. If no report can be written, that is said, and changes nothing.
    match keep(&text, opened, false) {
        Ok(Some(path)) => eprintln!("report: {}", path.display()),
        _ => eprintln!("report: none"),
    }
    std::process::exit(2);
}

/// Returns date and time in UTC.
fn wall_clock() -> String {
    text::time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64()))
}

/// Returns the command line, without the names of files, which may be anybody's.
fn arguments() -> Vec<String> {
    let mut words = std::env::args().skip(1);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default().to_owned();
        match ["--report", "--compare", "--root"].contains(&name.as_str()) {
            true if word.contains('=') => kept.push(format!("{name}=FILE")),
            true => {
                kept.extend([name, "FILE".to_owned()]);
                words.next();
            }
            false => kept.push(word),
        }
    }
    kept
}

/// Tries each way, or what can be tried of GPUs or NICs alone.
fn each_way(
    machine: &Machine,
    wanted: &Wanted,
    begun: Instant,
    watchdog: &Watchdog<Verify>,
    verify: &mut Verify,
) -> Result<()> {
    verify.facts = facts(machine, None);
    verify.missing = missing_hardware(machine);
    verify.nics_without_a_link = without_a_link(machine, wanted.nic);
    let (gpus, nics) = devices(machine, wanted.gpu, wanted.nic)?;
    if !verify.missing.is_empty() {
        alone(machine, &gpus, &nics, watchdog, verify);
        return Ok(());
    }
    ways::run(machine, &plan(wanted, begun, verify.seed), &gpus, &nics, watchdog, verify)
}

fn plan<'a>(wanted: &'a Wanted, begun: Instant, seed: u64) -> ways::Plan<'a> {
    // This leaves time for a NIC that hangs, and for the report, which takes seconds on a busy
    // machine.
    let (depth, seconds) = if wanted.quick { (Depth::Quick, 7) } else { (Depth::Normal, 45) };
    ways::Plan { words: wanted.ways, depth, until: begun + Duration::from_secs(seconds), seed }
}

/// Returns the GPUs and the NICs that are asked for. Without a name these are all GPUs, or all NICs
/// with an active port.
pub fn devices<'a>(
    machine: &'a Machine,
    gpu: Option<&str>,
    nic: Option<&str>,
) -> Result<(Vec<&'a crate::pci::Device>, Vec<&'a crate::rdma::RdmaDevice>)> {
    let gpus = match gpu {
        Some(text) => vec![select::gpu(machine, text)?],
        None => machine.gpus(),
    };
    let nics = match nic {
        Some(text) => vec![select::nic(machine, text)?],
        None => machine.rdma.iter().filter(|rdma| rdma.is_active()).collect(),
    };
    Ok((gpus, nics))
}

/// Returns the NICs that [`devices`] leaves out.
fn without_a_link(machine: &Machine, nic: Option<&str>) -> Vec<String> {
    let left_out = machine.rdma.iter().filter(|rdma| nic.is_none() && !rdma.is_active());
    left_out.map(|rdma| rdma.name.clone()).collect()
}

/// Answers `matrix`: measures this machine, or says of a recorded one what doctor expects.
pub fn matrix(root: &Root, gpu: Option<&str>, nic: Option<&str>) -> Result<Matrix> {
    let machine = Machine::look(root);
    if root.is_live() {
        return measured(&machine, gpu, nic);
    }
    let (gpus, nics) = devices(&machine, gpu, nic)?;
    Ok(expected(&machine, nic, ways::expected(&machine, &gpus, &nics), Vec::new()))
}

fn expected(machine: &Machine, nic: Option<&str>, pairs: Vec<VerifyPair>, missing: Vec<String>) -> Matrix {
    let topo = answer::topo(machine);
    Matrix {
        message_bytes: u64::from(ways::PIECE),
        measured: false,
        missing,
        nics_without_a_link: without_a_link(machine, nic),
        gpus: topo.gpus,
        nics: topo.nics,
        pairs,
    }
}

/// Measures each GPU with each NIC.
pub fn measured(machine: &Machine, gpu: Option<&str>, nic: Option<&str>) -> Result<Matrix> {
    /// The time after which nothing more begins; eight GPUs with eight NICs take half of it.
    const LIMIT: Duration = Duration::from_secs(300);
    let (gpus, nics) = devices(machine, gpu, nic)?;
    let missing = missing_hardware(machine);
    if !missing.is_empty() {
        return Ok(expected(machine, nic, ways::expected(machine, &gpus, &nics), missing));
    }
    let mut verify = Verify::begun(wall_clock(), fastrand::u64(..));
    let watchdog = Watchdog::new(|_: Verify, hung: VerifyCheck| {
        eprintln!("peermemctl: {} {}", hung.id, hung.message);
        std::process::exit(2);
    });
    let plan = ways::Plan { words: &[], depth: Depth::Rates, until: Instant::now() + LIMIT, seed: verify.seed };
    ways::run(machine, &plan, &gpus, &nics, &watchdog, &mut verify)?;
    Ok(Matrix { measured: true, ..expected(machine, nic, verify.pairs, missing) })
}

/// Tries what can be tried of a GPU without a NIC, and of a NIC without a GPU.
fn alone(
    machine: &Machine,
    gpus: &[&crate::pci::Device],
    nics: &[&crate::rdma::RdmaDevice],
    watchdog: &Watchdog<Verify>,
    verify: &mut Verify,
) {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut pass = |module: String, checks: &[(&str, &dyn Fn() -> Result<Held>)]| {
        verify.passes.push(VerifyPass { module, counts: true, checks: Vec::new() });
        for (id, run) in checks {
            watchdog.begin(verify.clone(), *id, LIMIT);
            let result = judged(id, run);
            watchdog.end();
            verify.passes.last_mut().into_iter().for_each(|pass| pass.checks.push(result.clone()));
        }
    };
    if Cuda::open().is_ok() {
        for gpu in gpus {
            let at = &gpu.address;
            let memory = || gpu_memory(at);
            let exported = || exports(at, machine.has_c2c(gpu));
            pass(format!("none: GPU {at} alone"), &[("gpu.memory", &memory), ("gpu.dma_buf", &exported)]);
        }
    }
    if Verbs::open().is_ok() {
        for nic in nics {
            let looped = || nic_alone(machine, nic);
            pass(format!("none: {} alone", nic.name), &[("nic.loopback", &looped)]);
        }
    }
}

/// Exports GPU memory as a dma-buf, in the ways in which programs ask for it.
fn exports(address: &str, coherent: bool) -> Result<Held> {
    const SIZE: usize = 2 * rig::MIB;
    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(address)?;
    if !gpu.has_dma_buf() {
        return Ok(Held::Skipped("the GPU driver does not offer dma-bufs".to_owned()));
    }
    let memory = gpu.allocate(SIZE)?;
    let mut details = Vec::new();
    for (mapping, name) in [(Mapping::Default, "as the driver likes"), (Mapping::Pcie, "with the forced PCIe mapping")]
    {
        let start = Instant::now();
        let exported = memory.dma_buf(mapping).map(drop);
        let took = start.elapsed().as_secs_f64() * 1e6;
        match exported {
            Ok(()) => details.push(format!("{name}: {took:.1} µs")),
            // Without a coherent link no program asks for the PCIe mapping.
            Err(error) if mapping == Mapping::Pcie && !coherent => details.push(format!("{name}: {error:#}")),
            Err(error) => return Err(error.context(name)),
        }
    }
    Ok(Held::Yes(format!("a dma-buf of {}", text::bytes(SIZE as u64)), details))
}

/// Sends bytes of the host's memory through a NIC and back, and compares them.
fn nic_alone(machine: &Machine, nic: &crate::rdma::RdmaDevice) -> Result<Held> {
    const SIZE: usize = 4 * rig::KIB;
    let verbs = Verbs::open()?;
    let device = verbs.device(&nic.name)?;
    let domain = device.domain()?;
    let port = PortAddress::read(machine.root, &nic.name, &nic.port().context("no port")?.number)?;
    let mut bytes: Vec<u8> = (0..2 * SIZE).map(|n| (n % 251) as u8).collect();
    let at = bytes.as_mut_ptr() as u64;
    let region = domain.register(at, 2 * SIZE).context("register host memory")?;
    let link = domain.loopback(&port)?.within(Duration::from_secs(10));
    link.write((&region, at), (&region, at + SIZE as u64), u32::try_from(SIZE)?)?;
    region.deregister().context("deregister host memory")?;
    let (from, to) = bytes.split_at(SIZE);
    rig::same("the host's memory", to, from, 0)?;
    Ok(Held::Yes(format!("{} of host memory, written by the NIC to itself", text::bytes(SIZE as u64)), Vec::new()))
}

/// Runs a process that a check started, and returns its exit code.
pub fn process(root: &Root, kind: &str, wanted: &Wanted) -> Result<u8> {
    process::end_with_parent()?;
    if kind == ways::PRELOAD {
        let seed = wanted.seed.context("--seed")?;
        return ways::preload_process(root, &plan(wanted, Instant::now(), seed), wanted.gpu.context("--gpu")?);
    }
    let (gpu, nic) = (wanted.gpu.context("--gpu")?.to_owned(), wanted.nic.context("--nic")?.to_owned());
    let devices = crate::rdma::devices(root);
    let device = devices.iter().find(|device| device.name == nic).with_context(|| format!("no NIC {nic}"))?;
    let port = device.port().context("no port")?.number.clone();
    Ok(process::run(root, kind, &Place { gpu, nic, port }, wanted.seed.context("--seed")?))
}

fn chosen(only: &[String]) -> Result<Vec<&'static Check>> {
    for word in only {
        if !CHECKS.iter().any(|check| check.id.starts_with(word.as_str())) {
            let ids: Vec<&str> = CHECKS.iter().map(|check| check.id).collect();
            bail!("--only {word}: there is no such check; there are {}", ids.join(", "));
        }
    }
    let is_wanted = |check: &&Check| only.is_empty() || only.iter().any(|word| check.id.starts_with(word.as_str()));
    Ok(CHECKS.iter().filter(is_wanted).collect())
}

/// Returns the GPU's address, and that GPU with a NIC if there are both. Returns an error if what
/// was asked for is not there.
fn places(machine: &Machine, wanted: &Wanted) -> Result<(Option<String>, Option<Place>)> {
    let gpu = match wanted.gpu {
        Some(text) => Some(select::gpu(machine, text)?),
        None => machine.gpus().first().copied(),
    };
    let nic = match wanted.nic {
        Some(text) => Some(select::nic(machine, text)?),
        None => crate::rdma::to_use(&machine.rdma),
    };
    let both = |(gpu, nic): (&crate::pci::Device, &crate::rdma::RdmaDevice)| {
        Some(Place { gpu: gpu.address.clone(), nic: nic.name.clone(), port: nic.port()?.number.clone() })
    };
    Ok((gpu.map(|gpu| gpu.address.clone()), gpu.zip(nic).and_then(both)))
}

/// Runs all passes that are wanted, with results in `verify`. An error means that the module could
/// not be brought back, or that somebody interrupted the program.
fn passes(run: &Run, machine: Machine, gpu: Option<&str>, comparison: Option<&str>, verify: &mut Verify) -> Result<()> {
    let (root, wanted) = (run.root, run.wanted);
    verify.facts = facts(&machine, run.place);
    verify.missing = missing(&machine);
    // What can be said of the GPU alone.
    if let Some(gpu) = gpu.filter(|_| Cuda::open().is_ok()) {
        verify.passes.push(VerifyPass {
            module: "none: the GPU alone".to_owned(),
            counts: true,
            checks: vec![judged("gpu.memory", || gpu_memory(gpu))],
        });
    }

    let found = Found::look(&machine);
    let before = module::words(root, None);
    drop(machine);
    let Some(place) = run.place.filter(|_| verify.missing.is_empty()) else { return Ok(()) };
    if before.is_none() {
        if let Some(why) = &found.stays {
            verify.missing.push(format!("nvidia_peermem is not loaded, and {why}"));
            return Ok(());
        }
        if !module::agreed(wanted.yes, "nvidia_peermem is not loaded. Load it for the tests, and unload it afterwards?")
        {
            verify.missing.push("nvidia_peermem is not loaded, and was not to be (--yes loads it)".to_owned());
            return Ok(());
        }
        if let Err(error) = found.again().load() {
            verify.missing.push(format!("nvidia_peermem cannot be loaded: {error:#}; peermemctl doctor says why"));
            return Ok(());
        }
    }
    let done = run.loaded(place, &found, comparison, verify);
    let restored = match module::words(root, None) == before {
        true => Ok(()),
        false => found.restore(root).context("bring nvidia_peermem back as it was found"),
    };
    done.and(restored)
}

/// The things that all passes have in common.
struct Run<'a> {
    root: &'a Root,
    wanted: &'a Wanted<'a>,
    chosen: &'a [&'a Check],
    place: Option<&'a Place>,
    watchdog: &'a Watchdog<Verify>,
}

impl Run<'_> {
    /// Runs the passes that need the module, which is loaded.
    fn loaded(&self, place: &Place, found: &Found, comparison: Option<&str>, verify: &mut Verify) -> Result<()> {
        let question =
            "May nvidia_peermem be unloaded and loaded again for the tests, also with the other kind of pins? \
                        Programs that register GPU memory meanwhile fail.";
        let stays = match &found.stays {
            Some(why) => Some(why.clone()),
            None if module::agreed(self.wanted.yes, question) => None,
            None => Some("the module was not to be unloaded (--yes allows it)".to_owned()),
        };
        let again = |load: Load| stays.clone().map_or(Ok(load), Err);
        self.pass(place, again(found.again()), None, verify)?;
        if let (Some(load), None) = (found.other_pins(self.root), &stays) {
            module::unload()?;
            load.load()?;
            self.pass(place, again(load), None, verify)?;
        }
        let Some(whose) = comparison else { return Ok(()) };
        if let Some(why) = &stays {
            bail!("--compare: {why}");
        }
        let question = format!(
            "May the module of --compare, {whose}, be loaded instead? One that does not stand these tests may stop \
             this machine."
        );
        if module::agreed(self.wanted.yes, &question) {
            let load = Load { file: self.wanted.compare.clone(), parameters: Vec::new() };
            module::unload()?;
            load.load()?;
            self.pass(place, Ok(load), Some(whose), verify)?;
        }
        Ok(())
    }

    /// Runs all checks with the loaded module. `comparison` says whose module that is, if it does
    /// not count.
    fn pass(
        &self,
        place: &Place,
        again: Result<Load, String>,
        comparison: Option<&str>,
        verify: &mut Verify,
    ) -> Result<()> {
        /// The time after which a check counts as hanging.
        const LIMIT: Duration = Duration::from_secs(600);
        let root = self.root;
        let conditions = Conditions {
            root,
            place,
            pins: module::pins(root),
            ours: module::is_ours(root),
            again: again.as_ref().map_err(String::as_str),
            storm: self.wanted.storm,
            seed: verify.seed,
        };
        let module = module::words(root, comparison).context("nvidia_peermem is not loaded")?;
        eprintln!("{module}");
        verify.passes.push(VerifyPass { module, counts: comparison.is_none(), checks: Vec::new() });
        rig::with(root, place, |rig| {
            for check in self.chosen {
                go_on()?;
                self.watchdog.begin(verify.clone(), check.id, LIMIT + self.wanted.storm);
                let result = judged(check.id, || one(rig, &conditions, check));
                self.watchdog.end();
                eprintln!("  {:<4}  {:<17} {:>6.1} s", result.level.text(), result.id, result.ms as f64 / 1000.0);
                verify.passes.last_mut().context("no pass")?.checks.push(result);
            }
            Ok(())
        })
    }
}

/// Runs one check, and looks at what it left behind and at what the kernel said meanwhile.
fn one(rig: &rig::Rig, conditions: &Conditions, check: &Check) -> Result<Held> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let before = checks::Level::now(conditions.root);
    let put_errors = || peermem::stats(conditions.root).ok().and_then(|stats| stats.number("put_errors")).unwrap_or(0);
    let errors = put_errors();
    let mark = Mark::now(conditions.root);
    let mut ran = (check.run)(rig, conditions);
    if ran.is_ok() {
        if let Err(error) = checks::settle(conditions.root, &before, PATIENCE) {
            ran = Err(error);
        }
    }
    if let (Ok(Held::Yes(..)), Some(more)) = (&ran, put_errors().checked_sub(errors).filter(|more| *more > 0)) {
        ran = Err(anyhow!("the GPU driver failed {}: peermemctl doctor says more", text::count(more, "unpin")));
    }
    let alarms = mark.map(|mark| mark.alarms(conditions.root)).unwrap_or_default();
    match (ran, alarms.first()) {
        (ran, None) => ran,
        (Ok(_), Some(first)) => bail!("the kernel says: {first}"),
        (Err(error), Some(first)) => Err(error.context(format!("the kernel says: {first}"))),
    }
}

/// Runs a check and returns how it ended.
fn judged(id: &str, run: impl FnOnce() -> Result<Held>) -> VerifyCheck {
    let start = Instant::now();
    let (level, message, details) = match run() {
        Ok(Held::Yes(message, details)) => (Level::Ok, message, details),
        Ok(Held::Skipped(why)) => (Level::Skip, why, Vec::new()),
        Err(error) => (Level::Fail, format!("{error:#}"), Vec::new()),
    };
    let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    VerifyCheck { id: id.to_owned(), level, message, details, ms }
}

/// Allocates, writes, reads and frees GPU memory, which shows that libcuda and the driver work.
fn gpu_memory(address: &str) -> Result<Held> {
    const SIZE: usize = 16 * rig::MIB;
    let cuda = Cuda::open()?;
    let gpu = cuda.gpu(address)?;
    let (free, total) = gpu.memory()?;
    let size = SIZE.min(free / 4);
    let start = Instant::now();
    let memory = gpu.allocate(size)?;
    let allocated = start.elapsed();
    let bytes: Vec<u8> = (0..size).map(|n| (n % 251) as u8 ^ (n >> 8) as u8).collect();
    memory.write(0, &bytes)?;
    rig::same("GPU memory", &memory.read()?, &bytes, 0)?;
    let start = Instant::now();
    memory.free()?;
    let details = vec![format!(
        "allocated in {:.1} µs, freed in {:.1} µs; {} of {} free",
        allocated.as_secs_f64() * 1e6,
        start.elapsed().as_secs_f64() * 1e6,
        text::bytes(free as u64),
        text::bytes(total as u64)
    )];
    Ok(Held::Yes(format!("{} written and read by the CPU", text::bytes(size as u64)), details))
}

/// Lists what the tests of the module need and this machine lacks.
fn missing(machine: &Machine) -> Vec<String> {
    let mut missing = missing_hardware(machine);
    if machine.loaded.is_none() {
        if machine.has_symbol(REGISTER) == Some(false) && machine.api_to_load().is_none() {
            missing.push("the peer-memory API: no RDMA core that exports ib_register_peer_memory_client".to_owned());
        }
        if machine.file.is_none() {
            missing.push("the module: nvidia_peermem is not loaded, and not installed for this kernel".to_owned());
        }
    }
    missing
}

/// Lists what every test needs and this machine lacks.
pub fn missing_hardware(machine: &Machine) -> Vec<String> {
    let mut missing = Vec::new();
    match (machine.gpus().is_empty(), Cuda::open()) {
        (true, _) => missing.push("a GPU: no PCI function of NVIDIA's with the class of a GPU".to_owned()),
        (false, Err(error)) => missing.push(format!("CUDA: {error:#}")),
        _ => {}
    }
    if machine.rdma.is_empty() {
        missing.push("a NIC: /sys/class/infiniband has no RDMA device".to_owned());
    } else if !machine.rdma.iter().any(|rdma| rdma.is_active()) {
        missing.push("a NIC with a link: no RDMA device has an active port".to_owned());
    }
    if let Err(error) = Verbs::open() {
        missing.push(format!("libibverbs: {error:#}"));
    }
    missing
}

/// Lists versions, and where the devices are.
fn facts(machine: &Machine, place: Option<&Place>) -> Vec<Fact> {
    let root = machine.root;
    let mut facts = Vec::new();
    let mut say = |name: &str, value: Option<String>| {
        facts.push(Fact { name: name.to_owned(), value: value.unwrap_or_else(|| "none".to_owned()) });
    };
    say("kernel", machine.release.clone());
    let tainted = root.line("/proc/sys/kernel/tainted").filter(|flags| flags != "0");
    say("kernel log", Some(if Mark::now(root).is_ok() { "read" } else { "not readable: run it as root" }.to_owned()));
    say("taint flags", tainted.or_else(|| Some("0".to_owned())));
    say("processors", std::thread::available_parallelism().ok().map(|count| count.to_string()));
    say(
        "GPU driver",
        machine.driver.as_ref().map(|driver| {
            let flavour = driver.flavour.map_or("of unknown flavour", Flavour::text);
            format!("{}, {flavour}", driver.version.as_deref().unwrap_or("unknown"))
        }),
    );
    say("CUDA", Cuda::open().and_then(|cuda| cuda.version()).ok().map(|n| format!("{}.{}", n / 1000, n % 1000 / 10)));
    for gpu in machine.gpus() {
        say("GPU", Some(format!("{} {}", gpu.address, gpu.name())));
    }
    for device in &machine.rdma {
        let line = |file: &str| root.line(&format!("/sys/class/infiniband/{}/{file}", device.name));
        let at = device.pci.as_deref().unwrap_or("no PCI function");
        let firmware = line("fw_ver").filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned());
        let ports: Vec<String> =
            device.ports.iter().map(|port| format!("{} {} {}", port.link_layer, port.rate, port.state)).collect();
        say("NIC", Some(format!("{} at {at}, firmware {firmware}, {}", device.name, ports.join(", "))));
    }
    for name in ["ib_core", "mlx5_ib"] {
        let version = |file: &str| root.line(&format!("/sys/module/{name}/{file}"));
        if let Some(version) = version("version").or_else(|| version("srcversion")) {
            say(name, Some(version));
        }
    }
    say("peer-memory API", machine.owner_of_symbol(REGISTER));
    if let Some(place) = place {
        let topo = answer::topo(machine);
        let nic = topo.nics.iter().find(|nic| nic.name == place.nic).map(|nic| nic.address.as_str());
        let pair = topo.pairs.iter().find(|pair| pair.gpu == place.gpu && Some(pair.nic.as_str()) == nic);
        let distance = pair.map_or("unknown distance", |pair| pair.distance.text());
        let iommu = |name: &str| {
            let place = topo.gpus.iter().chain(&topo.nics).find(|place| place.address == name || place.name == name);
            place.map_or("unknown", |place| place.iommu)
        };
        say("tested", Some(format!("GPU {} and {} port {}, {distance}", place.gpu, place.nic, place.port)));
        say("IOMMU", Some(format!("GPU: {}; NIC: {}", iommu(&place.gpu), iommu(&place.nic))));
    }
    if !kernel::has_initial_pids(root) {
        say("container", Some("yes: process numbers are not the host's".to_owned()));
    }
    facts
}

/// Returns the report: a recorded machine, for `--root`, with the results in front of it.
fn report(root: &Root, verify: &Verify, about: &str, error: Option<&str>) -> String {
    let mut results = Page::of_width(100, Detail::Verbose).show(&answer::Answer::Verify(Box::new(verify.clone())));
    if let Some(error) = error {
        results += &format!("ended early: {error}\n");
    }
    let machine = Machine::look(root);
    let doctor = doctor::examine(&machine, &Environment::own(root), &[]);
    let findings = doctor.sections.iter().flat_map(|section| &section.checks).filter(|check| check.is_finding());
    // What applications do follows from the rest.
    let findings = findings.filter(|check| !check.id.starts_with("consumers."));
    for check in findings {
        results += &format!("doctor: {} {}: {}\n", check.level.text(), check.id, check.message);
    }
    let about = if about.is_empty() { "a machine that was verified" } else { about };
    let host = root.line("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = recorded::anonymous::anonymous(&recorded::record(root, about), &host);
    let results = anstream::adapter::strip_str(&results).to_string();
    let results = recorded::anonymous::anonymous(&results, &host);
    let head = "The results, and then the machine: peermemctl --root FILE doctor (or topo) looks at it.";
    let lines = std::iter::once(head).chain(results.lines());
    lines.map(|line| format!("# {line}\n")).collect::<String>() + &machine
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full takes the file, and then nothing of the report.
    #[test]
    fn a_full_disk_is_an_error_only_where_the_report_was_asked_for() {
        let full = || {
            let path = PathBuf::from("/dev/full");
            Some((File::options().write(true).open(&path).unwrap(), path))
        };
        assert_eq!(keep("found", full(), false).unwrap(), None);
        let said = format!("{:#}", keep("found", full(), true).unwrap_err());
        assert!(said.starts_with("write the report /dev/full: No space left"), "{said}");
        assert_eq!(keep("found", None, false).unwrap(), None);
    }
}
