// SPDX-License-Identifier: GPL-2.0
//! Section 2: nvidia.ko, its flavour, and whether it lets us bind to it.

use super::load_refused::load_refused;
use super::{cure, limits, module};
use crate::check::Check;
use crate::facts;
use crate::machine::{Machine, REGISTER};
use crate::modprobe::{self, Block};
use crate::module_file::{self, Maker};
use crate::nvidia::{self, Flavour};

/// The cure that gives the kernel smaller pages.
const PAGES_4K: &str = "boot a kernel with pages of 4 KiB (Ubuntu: linux-nvidia in the place of linux-nvidia-64k; SUSE: kernel-default in the place of kernel-64kb; RHEL: grubby --set-default of kernel in the place of kernel-64k)";

/// Says what helps when a closed nvidia.ko refuses the module, wherever the refusal was seen.
pub(super) fn no_gpl_imports(machine: &Machine) -> String {
    let lite = format!("{}, a build without GPL-only imports", cure::LITE);
    if machine.setting.driver_container {
        return machine.setting.other_driver("the open kernel modules, where they know these GPUs");
    }
    match takes_open(machine) {
        true => format!("{lite}; or install the open kernel modules of the same driver (package nvidia-open)"),
        false => lite,
    }
}

/// Returns whether the open kernel modules know all GPUs of this machine: one that they do not know is lost
/// with them (NVIDIA/open-gpu-kernel-modules#696).
pub(super) fn takes_open(machine: &Machine) -> bool {
    machine.gpus().iter().all(|gpu| nvidia::has_open_modules(gpu))
}

/// Returns whether this machine is for this project's module: it is loaded, or modprobe would load it, or no module
/// is installed and this one is to be. Only this project's module has a use for what it needs of the GPU driver.
pub(super) fn is_for_ours(machine: &Machine) -> bool {
    let is_ours = machine.loaded.as_ref().is_some_and(|loaded| loaded.maker == Maker::Ours);
    let is_other = machine.loaded.is_some() && !is_ours || machine.old_module_serves();
    let is_used = machine.has_symbol(REGISTER) != Some(false) || machine.api_to_load().is_some() || !machine.dma_buf();
    let is_next = match &machine.file {
        // What the host has does not fit the driver of a container.
        Some(file) if !machine.setting.driver_container => file.maker() == Maker::Ours,
        _ => !is_other && (machine.setting.driver_container || other_client(machine).is_none()),
    };
    is_ours || is_used && is_next
}

/// Returns whether the loaded nvidia.ko is older than this project's module is written for.
pub(super) fn is_too_old(machine: &Machine) -> bool {
    let version = machine.driver.as_ref().and_then(|driver| driver.version.as_deref());
    version.and_then(|version| facts::DRIVER_TOO_OLD.holds(version)) == Some(true)
}

/// Returns whether this project's module is not written for this machine's architecture.
pub(super) fn is_other_architecture(machine: &Machine) -> bool {
    let architecture = machine.setting.architecture.as_deref();
    architecture.is_some_and(|architecture| !facts::ARCHITECTURES.contains(&architecture))
}

/// Returns what brings a client of the peer-memory API where this project's module is not written for the GPU driver
/// or the architecture.
pub(crate) fn other_client(machine: &Machine) -> Option<String> {
    let version = machine.driver.as_ref().and_then(|driver| driver.version.as_deref()).unwrap_or_default();
    let client = match facts::BRINGS_PEERMEM.holds(version) {
        Some(false) => "install nv_peer_mem (package nvidia-peer-memory-dkms), the client of drivers before 470, and modprobe nv_peer_mem",
        _ => "install the GPU driver again now that the RDMA stack is there, whose nvidia-peermem is the client here, and modprobe nvidia-peermem",
    };
    // What the system of a node that is an image has, its image brings.
    let client = match &machine.setting.fixed_system {
        Some(name) => format!("{name} is not changed in place: have its image do this: {client}"),
        None => client.to_owned(),
    };
    let is_older_kind = || machine.gpus().into_iter().any(nvidia::is_before_maxwell);
    match (is_other_architecture(machine), is_too_old(machine)) {
        (false, true) if machine.setting.driver_container => Some(newer_driver(machine)),
        (false, true) if !is_older_kind() => Some(
            machine.setting.on_host(&format!("{client}; or {}, then this project's module", newer_driver(machine))),
        ),
        (false, false) => None,
        _ => Some(machine.setting.on_host(&client)),
    }
}

/// Returns where to get a driver that this project's module is written for; drivers that know GPUs from before
/// Maxwell are all older.
pub(super) fn newer_driver(machine: &Machine) -> String {
    let oldest = facts::DRIVER_TOO_OLD.before.unwrap_or_default();
    if machine.gpus().into_iter().any(nvidia::is_before_maxwell) {
        return format!(
            "keep this driver, and take the nvidia-peermem that comes with it, or use GPUs from Maxwell on: {} ({}), and this project's module is for {oldest} and later",
            facts::LAST_OF_KEPLER.what,
            facts::LAST_OF_KEPLER.source
        );
    }
    match machine.setting.driver_container {
        true => machine.setting.other_driver(&format!("driver {oldest} or later")),
        false => format!("install driver {oldest} or later{}", flavour_to_install(machine)),
    }
}

/// Returns what follows "install driver 550 or later".
pub(super) fn flavour_to_install(machine: &Machine) -> &'static str {
    match takes_open(machine) {
        true => " with its open kernel modules (package nvidia-open)",
        false => " that still knows these GPUs; its open kernel modules do not know those before Turing",
    }
}

pub fn checks(machine: &Machine) -> Vec<Check> {
    let Some(driver) = &machine.driver else {
        return vec![not_loaded(machine)];
    };
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    let flavour = driver.flavour.map_or("unknown", Flavour::text);
    let what = format!("nvidia.ko {version} is loaded, {flavour} flavour");
    let seen = "/proc/driver/nvidia/version, /sys/module/nvidia";
    let holds = |rule: &facts::Rule| driver.version.as_deref().and_then(|version| rule.holds(version)) == Some(true);
    let version = if is_too_old(machine) && is_for_ours(machine) {
        let oldest = facts::DRIVER_TOO_OLD.before.unwrap_or_default();
        let message = format!("{what}; older than {oldest}, the oldest this project's module is written for");
        Check::warn("driver.version", message, newer_driver(machine))
    } else if let Some((64, seen)) = super::limits::page_kib(machine).filter(|_| holds(&facts::DRIVER_64K)) {
        let rule = facts::DRIVER_64K;
        Check::warn(
            "driver.version",
            format!("{what}; {}: {} ({})", rule.range(), rule.what, rule.source),
            match (machine.is_known_to_580(), machine.setting.driver_container) {
                (true, true) => machine.setting.other_driver("driver 580"),
                (true, false) => format!("install driver 580, or {PAGES_4K}"),
                // An older driver may not know it.
                (false, _) => machine.setting.on_host(PAGES_4K),
            },
        )
        .seen(format!("pages of 64 KiB, by {seen}"))
    } else {
        Check::ok("driver.version", what)
    };
    let mut checks = vec![version.seen(seen)];
    checks.extend(without_uvm(machine));
    checks.push(licence(machine, driver.flavour));
    checks.extend(exports(machine));
    checks
}

/// Finds a line that keeps modprobe from loading nvidia-uvm, without which CUDA starts in no program. nvidia-modprobe
/// loads it by its name, which heeds no blacklist.
fn without_uvm(machine: &Machine) -> Option<Check> {
    let (line, block) = modprobe::blocked(machine.root, "nvidia_uvm").filter(|(_, block)| *block != Block::Alias)?;
    let fix = match block {
        Block::Kernel => line.take_out(),
        _ => format!("{}, then modprobe nvidia-uvm", line.take_out()),
    };
    let is_meant =
        machine.modules_read && !machine.modules.contains_key("nvidia_uvm") && !machine.setting.driver_container;
    let what = "nvidia_uvm is not loaded and is kept out, and without it CUDA starts in no program";
    let check = Check::warn("driver.loaded", what, fix).seen(format!("{}: {}", line.file, line.text));
    (is_meant && machine.setting.container.is_none()).then_some(check)
}

fn not_loaded(machine: &Machine) -> Check {
    if machine.root.exists("/sys/module/nvidia_p2p") {
        return Check::fail(
            "driver.loaded",
            "this is an integrated GPU's driver (Tegra, nvidia-p2p), for which nvidia-peermem does nothing",
            "take memory of cudaHostAlloc() and plain ibv_reg_mr(), which need no nvidia-peermem",
        )
        .seen("/sys/module/nvidia_p2p, and no nvidia.ko loaded");
    }
    if !machine.modules_read {
        return Check::skip(
            "driver.loaded",
            "unknown whether nvidia.ko is loaded: neither /proc/modules nor /sys/module can be read",
        )
        .seen("/proc/modules, /proc/driver/nvidia/version");
    }
    let message = "nvidia.ko is not loaded: there is no GPU memory to register";
    let found = why_not_loaded(machine);
    let what = found.why.map_or(message.to_owned(), |why| format!("{message}; {why}"));
    Check::fail("driver.loaded", what, found.fix).seen(found.seen)
}

/// What is known of an nvidia.ko that is not loaded.
pub(super) struct NotLoaded {
    /// The reason, if anything tells it.
    pub why: Option<String>,
    /// The command that loads it.
    pub fix: String,
    pub seen: String,
}

/// Finds why nvidia.ko is not loaded, and what loads it.
pub(super) fn why_not_loaded(machine: &Machine) -> NotLoaded {
    if let Some((line, fix)) = module::kept_out(machine, "nvidia", &machine.load_driver()) {
        let why = Some(format!("modprobe is told to keep it out ('{}' in {})", line.text, line.file));
        return NotLoaded { why, fix, seen: format!("{}: {}", line.file, line.text) };
    }
    let on_disk = machine.release.as_deref().and_then(|release| module_file::chosen(machine.root, release, "nvidia"));
    match (on_disk, load_refused(machine, "nvidia")) {
        (Some(_), Some(refused)) => NotLoaded { why: Some(refused.why), fix: refused.fix, seen: refused.seen },
        (Some(path), None) => {
            NotLoaded { why: None, fix: machine.load_driver(), seen: format!("modprobe would load {path}") }
        }
        (None, _) => NotLoaded {
            why: Some("no nvidia.ko is installed for this kernel".to_owned()),
            fix: match limits::unbuilt(machine, "nvidia") {
                Some(unbuilt) => format!("{}, then modprobe nvidia", unbuilt.command()),
                None => format!("install NVIDIA's driver{}, then modprobe nvidia", flavour_to_install(machine)),
            },
            seen: format!(
                "no nvidia.ko in modules.dep of kernel {}",
                machine.release.as_deref().unwrap_or("(unknown)")
            ),
        },
    }
}

/// Checks whether nvidia.ko takes our module: the closed nvidia.ko takes no modules that import
/// GPL-only symbols.
fn licence(machine: &Machine, flavour: Option<Flavour>) -> Check {
    const ID: &str = "driver.licence";
    let refused = machine.log.iter().flatten().rev().find(|line| {
        line.contains("nvidia_peermem") && line.contains("GPL-only symbols") && line.contains("proprietary module")
    });
    let ours_is_gpl = machine.file.as_ref().is_some_and(|file| file.maker() == Maker::Ours && file.uses_kernel_rust());
    match (flavour, refused) {
        // The log may tell of an earlier build; the loaded one was taken.
        (Some(Flavour::Closed), _) if machine.loaded.is_some() => {
            Check::ok(ID, "nvidia.ko is of the closed flavour, and took the nvidia-peermem that is loaded")
                .seen("nvidia_peermem in /proc/modules")
        }
        (Some(Flavour::Closed), Some(line)) => {
            Check::fail(ID, "the closed nvidia.ko refused our module: it takes none that imports GPL-only symbols", no_gpl_imports(machine))
                .seen(format!("kernel log: {line}"))
        }
        (Some(Flavour::Closed), None) if ours_is_gpl => Check::fail(
            ID,
            "nvidia.ko is of the closed flavour, and this build of our module imports GPL-only symbols: it will be refused",
            no_gpl_imports(machine),
        )
        .seen("imports of the module file that modprobe would load"),
        (Some(Flavour::Closed), None) => Check::ok(ID, "nvidia.ko is of the closed flavour; no GPL-only import of ours is known"),
        (Some(Flavour::Open), _) => Check::ok(ID, "the open nvidia.ko takes our module (GPL)"),
        (None, _) => Check::skip(ID, "the flavour of nvidia.ko cannot be read"),
    }
}

fn exports(machine: &Machine) -> Vec<Check> {
    const ID: &str = "driver.exports";
    let fix = match is_too_old(machine) {
        true => newer_driver(machine),
        false if machine.setting.driver_container => machine.setting.other_driver("driver 550 or later"),
        false => "install a complete driver of NVIDIA's, 550 or later".to_owned(),
    };
    vec![match (machine.has_symbol("nvidia_p2p_get_pages"), machine.has_symbol("nvidia_p2p_get_pages_persistent")) {
        (None, _) => Check::skip(ID, "/proc/kallsyms cannot be read"),
        (Some(true), Some(false)) if !is_for_ours(machine) => Check::ok(
            ID,
            "nvidia.ko pins revocably; persistent pins, of which this project's module makes use, it does not have",
        )
        .seen("no nvidia_p2p_get_pages_persistent in /proc/kallsyms"),
        (Some(false), _) => Check::fail(ID, "nvidia.ko has no nvidia_p2p_get_pages: nobody can pin GPU memory", fix)
            .seen("/proc/kallsyms"),
        (_, Some(true)) => {
            Check::ok(ID, "nvidia.ko pins persistently and revocably").seen("nvidia_p2p_* in /proc/kallsyms")
        }
        _ => Check::warn(
            ID,
            "nvidia.ko cannot pin persistently: every free of registered memory kills its registration",
            fix,
        )
        .seen("no nvidia_p2p_get_pages_persistent in /proc/kallsyms"),
    }]
}
