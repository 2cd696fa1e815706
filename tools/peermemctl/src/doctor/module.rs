// SPDX-License-Identifier: GPL-2.0
//! Section 4: which nvidia-peermem modprobe would load, which one is loaded, and what keeps it out.

use super::{cure, driver};
use crate::check::Check;
use crate::facts;
use crate::kernel;
use crate::machine::{Machine, NAME, OLD_MODULE, REGISTER, SYS};
use crate::modprobe::{self, Block};
use crate::module_file::{self, Maker, ModuleFile};
use crate::root::Root;
use crate::text;
use crate::unload::unload;

/// Returns whether a loaded module serves now, whatever the next load brings.
fn works(machine: &Machine) -> bool {
    machine.loaded.as_ref().is_some_and(|loaded| loaded.state == "Live")
}

pub fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = file(machine);
    checks.extend(shut(machine));
    checks.extend(blocked(machine));
    checks.extend(signature(machine));
    checks.push(loaded(machine));
    checks.extend(stale(machine));
    checks.extend(taint(machine));
    checks.extend(parameters(machine));
    checks.extend(other_kernels(machine));
    checks
}

fn whose(maker: Maker) -> &'static str {
    match maker {
        Maker::Ours => "this project's",
        Maker::Nvidia => "NVIDIA's C module",
        Maker::Other => "neither this project's nor NVIDIA's",
    }
}

fn file(machine: &Machine) -> Vec<Check> {
    const ID: &str = "module.file";
    let Some(release) = machine.release.as_deref() else {
        return vec![Check::skip(ID, "the kernel's release cannot be read")];
    };
    let list = format!("{}/modules.dep", kernel::modules_dir(release));
    // A container's own files do not show what the host would load.
    if machine.file.is_none() && machine.setting.container.is_some() && !machine.root.exists(&list) {
        return vec![Check::skip(ID, "which module the host would load cannot be seen from this container").seen(list)];
    }
    // A service with ProtectKernelModules= finds no file there at all.
    let folder = kernel::modules_dir(release);
    if machine.file.is_none() && !machine.setting.is_fixed() && machine.root.names(&folder).is_empty() {
        let message = format!("whether nvidia-peermem.ko is installed cannot be read: nothing of {folder} is seen here, as in a service with ProtectKernelModules=yes");
        return vec![Check::skip(ID, message).seen(folder)];
    }
    let Some(file) = &machine.file else {
        return vec![match module_file::chosen(machine.root, release, NAME) {
            Some(path) => {
                let message = format!("modprobe would load {path}, which cannot be read");
                Check::fail_unless(works(machine), ID, message, "make install && depmod").seen(list)
            }
            None if machine.old_module_serves() => {
                Check::skip(ID, format!("no nvidia-peermem.ko is installed for kernel {release}; {OLD_MODULE} is loaded"))
            }
            // The module's file is in a container, or in the image of the system.
            None if works(machine) && machine.setting.is_fixed() => {
                Check::ok(ID, "nvidia_peermem is loaded, and its file is not among those of this node, whose modules come from elsewhere")
            }
            None => Check::fail_unless(
                works(machine),
                ID,
                match machine.setting.modules_in_containers() {
                    true => format!("no nvidia-peermem.ko is loaded, and none is installed on this node for kernel {release}, whose driver or RDMA core comes from containers"),
                    false => format!("no nvidia-peermem.ko is installed for kernel {release}"),
                },
                machine.install_it(),
            )
            .seen(format!("no nvidia-peermem in {list}")),
        }];
    };
    let others: Vec<ModuleFile> = module_file::all(machine.root, release, NAME)
        .into_iter()
        .filter(|path| *path != file.path)
        .filter_map(|path| ModuleFile::read(machine.root, &path).ok())
        .collect();
    let ours = others.iter().find(|other| other.maker() == Maker::Ours);
    let version = file.field("version").unwrap_or("without version");
    let what = format!("modprobe would load {} ({}, {version})", file.path, whose(file.maker()));
    let of_container = machine.setting.driver_container;
    let verdict = match (file.maker(), ours) {
        (Maker::Ours, _) => Check::ok(ID, what),
        (maker, _) if of_container && works(machine) => {
            let file = format!("{} ({}, {version})", file.path, whose(maker));
            Check::ok(ID, format!("nvidia_peermem is loaded; {file} is not needed beside the container of the driver"))
        }
        _ if of_container => {
            let driver = machine.driver.as_ref().and_then(|driver| driver.version.as_deref());
            let message = format!(
                "{what}, which does not fit the nvidia.ko {}that a container brought",
                driver.map_or(String::new(), |version| format!("{version} "))
            );
            Check::fail(ID, message, machine.install_it())
        }
        (_, Some(ours)) => Check::fail_unless(
            works(machine),
            ID,
            format!("{what}, although ours is installed as {}", ours.path),
            match cure::package_command(machine) {
                Some(command) => {
                    format!("{command}, which has depmod prefer ours, or says what in depmod.d prefers the other file")
                }
                None => "make install, which has depmod prefer ours".to_owned(),
            },
        ),
        (Maker::Nvidia, None) if driver::is_other_architecture(machine) => {
            Check::ok(ID, format!("{what}; ours is for {}", facts::ARCHITECTURES.join(" and ")))
        }
        (Maker::Nvidia, None) if driver::is_too_old(machine) => {
            let oldest = facts::DRIVER_TOO_OLD.before.unwrap_or_default();
            Check::ok(ID, format!("{what}; ours is for drivers from {oldest} on"))
        }
        (Maker::Nvidia, None) => Check::warn(
            ID,
            format!("{what}; ours is not installed for kernel {release}"),
            "in this project's folder: make && make install",
        ),
        (_, None) => Check::warn(ID, what, machine.install_it()),
    };
    let verdict = others.iter().fold(verdict.seen(list), |check, other| {
        check.seen(format!("also there: {} ({})", other.path, whose(other.maker())))
    });
    let mut checks = vec![verdict];
    if !of_container {
        checks.extend(vermagic(machine, release, file));
        checks.extend(versions(machine, release, file));
        checks.extend(stub(machine, file));
    }
    checks
}

/// Reports a kernel that takes no modules any more.
fn shut(machine: &Machine) -> Option<Check> {
    let shut = machine.root.line("/proc/sys/kernel/modules_disabled").as_deref() == Some("1");
    (shut && machine.loaded.is_none()).then(|| {
        Check::fail(
            "module.shut",
            "this kernel takes no more modules until it is booted again",
            "take kernel.modules_disabled=1 out of /etc/sysctl.d (or what sets it at boot), and reboot",
        )
        .seen("/proc/sys/kernel/modules_disabled is 1")
    })
}

fn vermagic(machine: &Machine, release: &str, file: &ModuleFile) -> Option<Check> {
    let vermagic = file.field("vermagic")?;
    let mut words = vermagic.split_ascii_whitespace();
    let built_for = words.next()?;
    // With versions of symbols the kernel compares those, and not its release: RHEL links such files from one
    // kernel to the next (weak-modules).
    let base = |release: &str| release.split('-').next().map(str::to_owned);
    let by_symbols = words.any(|word| word == "modversions") && base(built_for) == base(release);
    (built_for != release && !by_symbols).then(|| {
        Check::fail_unless(
            works(machine),
            "module.vermagic",
            format!("the module file is built for kernel {built_for}, this one is {release}: modprobe fails with \"Exec format error\""),
            "make clean; make; make install (with the headers of the running kernel)",
        )
        .seen(format!("vermagic={vermagic} in {}", file.path))
    })
}

/// The cure that binds the module to what is installed now.
pub(super) const REBUILD: &str = "rebuild it against what is installed now: make clean; make; make install";

/// Compares the versions of symbols that the file wants with those that the installed RDMA core and GPU driver
/// export: the loader refuses others, and takes a symbol unchecked for which the file has none. What the kernel
/// itself exports stands in no file that is sure to be of the running one.
fn versions(machine: &Machine, release: &str, file: &ModuleFile) -> Option<Check> {
    const ID: &str = "module.versions";
    let (mut same, mut without) = (Vec::new(), Vec::new());
    // What is not this project's is not rebuilt by its make.
    let is_ours = file.maker() == Maker::Ours;
    for name in module_file::PROVIDERS {
        let Some(path) = module_file::chosen(machine.root, release, name) else { continue };
        // A packed nvidia.ko takes seconds to unpack, so it is left alone unless something is missing.
        let is_packed = name == "nvidia" && !path.ends_with(".ko");
        let missing = without_any(file).filter(|_| is_packed && is_ours);
        if is_packed && missing.is_none() {
            continue;
        }
        let Ok(provider) = ModuleFile::read(machine.root, &path) else {
            without.extend(missing.map(|symbols| (name, path, symbols)));
            continue;
        };
        let both = || {
            file.versions.iter().filter_map(|(symbol, wanted)| Some((symbol, wanted, provider.exports.get(symbol)?)))
        };
        let others: Vec<&str> =
            both().filter(|(_, wanted, has)| wanted != has).map(|(symbol, ..)| symbol.as_str()).collect();
        let Some(first) = others.first() else {
            let imported = file.needs.iter().filter(|symbol| provider.exports.contains_key(*symbol));
            let symbols: Vec<&str> =
                imported.filter(|symbol| !file.versions.contains_key(*symbol)).map(String::as_str).collect();
            match symbols.is_empty() || !is_ours {
                true => same.extend(both().next().map(|_| name)),
                false => without.push((name, provider.path, symbols)),
            }
            continue;
        };
        let loaded = machine.root.line(&format!("/sys/module/{name}/srcversion"));
        let is_another = loaded.is_some_and(|loaded| provider.field("srcversion").is_some_and(|file| file != loaded));
        let but = match is_another {
            true => format!("; the {name} that is loaded is another build, whose versions nothing tells"),
            false => String::new(),
        };
        let message = format!(
            "the module file was built against another {name} than the installed one ({} of other versions): modprobe fails with \"Invalid argument\"{but}",
            text::count(others.len(), "symbol")
        );
        let check = Check::fail_unless(works(machine) || is_another, ID, message, REBUILD);
        return Some(check.seen(format!("versions of {first} in {} and {}", file.path, provider.path)));
    }
    if !without.is_empty() {
        let of = |(name, _, symbols): &(&str, String, Vec<&str>)| {
            format!("{} of the installed {name}", text::count(symbols.len(), "symbol"))
        };
        let message = format!(
            "the module file has no version of {}, probably because it was built where they were not found: the kernel loads it unchecked, and does not notice if it does not fit",
            without.iter().map(of).collect::<Vec<_>>().join(" and ")
        );
        let check = Check::warn(ID, message, REBUILD);
        return Some(without.iter().fold(check, |check, (_, path, symbols)| {
            check.seen(format!("{} in {} and not in __versions of {}", symbols.join(", "), path, file.path))
        }));
    }
    (!same.is_empty()).then(|| {
        Check::ok(ID, format!("the module file was built against the installed {}", same.join(", ")))
            .seen(format!("__versions of {}, __crc_ symbols of the others", file.path))
    })
}

/// Returns the symbols of nvidia.ko that a file needs, if it has a version of none, although its kernel has
/// versions: then the driver exports each with one.
fn without_any(file: &ModuleFile) -> Option<Vec<&str>> {
    let has_versions = |vermagic: &str| vermagic.split_ascii_whitespace().any(|word| word == "modversions");
    let symbols: Vec<&str> =
        file.needs.iter().map(String::as_str).filter(|symbol| symbol.starts_with("nvidia_p2p_")).collect();
    let is_without = !symbols.is_empty() && !symbols.iter().any(|symbol| file.versions.contains_key(*symbol));
    (is_without && file.field("vermagic").is_some_and(has_versions)).then_some(symbols)
}

/// Reports NVIDIA's empty module file. NVIDIA's build leaves out the whole client when it did not
/// see the API, and such a module can only fail.
fn stub(machine: &Machine, file: &ModuleFile) -> Option<Check> {
    (file.maker() == Maker::Nvidia && !file.needs(REGISTER)).then(|| {
        Check::fail_unless(
            works(machine),
            "module.stub",
            "NVIDIA's nvidia-peermem.ko is an empty one, built where the peer-memory API was not seen: modprobe says \"Invalid argument\"",
            driver::other_client(machine).unwrap_or_else(|| {
                let driver = match is_prebuilt(file) {
                    // NVIDIA/nccl#1939: "I reinstalled my driver after installing OFED [...]. However, no improvements."
                    true => "have DKMS build the GPU driver beside the RDMA stack that is there (package nvidia-dkms-* in the place of linux-modules-nvidia-*, which brings the same built file again)",
                    false => "install the GPU driver again now that the RDMA stack is there",
                };
                format!("make install (ours decides at load time), or {driver}")
            }),
        )
        .seen(format!("no ib_register_peer_memory_client in {}", file.path))
    })
}

/// Returns whether a module file of NVIDIA's comes from Ubuntu's packages of built modules.
fn is_prebuilt(file: &ModuleFile) -> bool {
    file.path.contains("/kernel/nvidia-")
}

/// A setting that has the kernel take signed modules only.
pub(super) struct Demand {
    pub(super) seen: String,
    /// The message of modprobe about a module that is not signed.
    modprobe: &'static str,
}

pub(super) fn signatures_demanded(machine: &Machine) -> Option<Demand> {
    let root = machine.root;
    if root.line("/sys/module/module/parameters/sig_enforce").as_deref() == Some("Y") {
        let seen = "/sys/module/module/parameters/sig_enforce is Y".to_owned();
        return Some(Demand { seen, modprobe: "Key was rejected by service" });
    }
    let mode = lockdown(root)?;
    Some(Demand { seen: format!("/sys/kernel/security/lockdown: {mode}"), modprobe: "Operation not permitted" })
}

/// Returns the mode of the kernel's lockdown, if it is locked down.
pub(super) fn lockdown(root: &Root) -> Option<&'static str> {
    let modes = root.line("/sys/kernel/security/lockdown").unwrap_or_default();
    ["[integrity]", "[confidentiality]"].into_iter().find(|mode| modes.contains(mode))
}

/// Returns whether a line is the kernel's word on a module whose signature it does not accept. The
/// line names no module. There are two such lines: one where sig_enforce demands a signature, and
/// one where lockdown does.
pub(super) fn is_rejection(line: &str) -> bool {
    line.contains("Loading of ") && line.contains("is rejected") || line.contains("module loading is restricted")
}

/// Returns whether what the module needs is loaded. Until then a rejection may be of that.
fn has_neighbours(machine: &Machine) -> bool {
    machine.driver.is_some() && machine.modules.contains_key("ib_core")
}

fn signature(machine: &Machine) -> Option<Check> {
    const ID: &str = "module.signature";
    let demand = signatures_demanded(machine);
    let Some(file) = machine.file.as_ref() else {
        return Some(
            Check::skip(ID, "this kernel takes signed modules only: what you install must be signed")
                .seen(demand?.seen),
        );
    };
    let Some(signature) = &file.signature else {
        return Some(match demand {
            Some(demand) => Check::fail_unless(
                works(machine),
                ID,
                format!(
                    "this kernel takes signed modules only, and the module file is not signed: modprobe says \"{}\"",
                    demand.modprobe
                ),
                format!(
                    "/lib/modules/{}/build/scripts/sign-file sha256 MOK.priv MOK.der {} (a key that mokutil --import made known)",
                    machine.release.as_deref().unwrap_or("$(uname -r)"),
                    // What a package installs is a link, which would be replaced by a signed copy.
                    machine.root.resolved(&file.path).as_ref().unwrap_or(&file.path)
                ),
            )
            .seen(demand.seen),
            None => Check::ok(ID, "the module file is not signed, and this kernel does not ask for that"),
        });
    };
    let signer = signature.signer.as_deref().unwrap_or("somebody whose name cannot be read");
    let rejected = machine.log.iter().flatten().rfind(|line| is_rejection(line)).filter(|_| has_neighbours(machine));
    match (rejected, demand, machine.loaded.is_none()) {
        (Some(line), Some(demand), true) => Some(
            Check::fail(
                ID,
                format!("this kernel does not know the key of {signer}, who signed the module file"),
                "mokutil --import MOK.der (the certificate of that key; DKMS keeps its own in /var/lib/dkms/mok.pub), then reboot and confirm",
            )
            .seen(demand.seen)
            .seen(format!("kernel log: {line}")),
        ),
        _ => Some(Check::ok(ID, format!("the module file is signed by {signer}"))),
    }
}

/// Reports the kernel's taint. The letters are those of the kernel's documentation.
fn taint(machine: &Machine) -> Option<Check> {
    const ID: &str = "module.taint";
    const LETTERS: &str = "PFSRMBUDAWCIOELKXTNJ";
    const OOPS: u64 = 1 << 7;
    const SEEN: &str = "/proc/sys/kernel/tainted";
    let bits: u64 = machine.root.line(SEEN)?.parse().ok()?;
    let letters: String =
        LETTERS.chars().enumerate().filter(|(n, _)| bits & (1 << n) != 0).map(|(_, letter)| letter).collect();
    let ours = machine.root.line(&format!("{SYS}/taint")).filter(|letters| !letters.is_empty());
    let seen = format!("{bits} in {SEEN}");
    if bits & OOPS != 0 {
        let message = format!("the kernel has had a fault (oops) since it was booted (taint {letters}): what a process held then, it still holds");
        let fix = "journalctl -k | grep -A 30 -E 'BUG:|Oops:' for what it was, then reboot";
        return Some(Check::warn(ID, message, fix).seen(seen));
    }
    let what = match letters.as_str() {
        "" => "the kernel is not tainted".to_owned(),
        _ => format!("the kernel's taint is {letters}"),
    };
    let by = ours.map_or(String::new(), |ours| {
        format!("; nvidia_peermem adds {ours} (O: not part of the kernel, E: not signed)")
    });
    Some(Check::ok(ID, what + &by).seen(seen))
}

fn loaded(machine: &Machine) -> Check {
    const ID: &str = "module.loaded";
    if let Some(loaded) = &machine.loaded {
        let version = loaded.version.as_deref().unwrap_or("without version");
        let what = format!("nvidia_peermem {version} is loaded ({})", whose(loaded.maker));
        if loaded.state != "Live" {
            return Check::fail(
                ID,
                format!("nvidia_peermem is being loaded or unloaded ({})", loaded.state),
                "wait; if it stays so, see peermemctl list for who keeps it, and the kernel log",
            )
            .seen("/proc/modules");
        }
        let ours_installed = machine.file.as_ref().is_some_and(|file| file.maker() == Maker::Ours);
        return match loaded.maker {
            Maker::Nvidia if ours_installed => Check::warn(
                ID,
                format!("{what}; ours is installed and not used"),
                unload(machine, NAME, "modprobe nvidia-peermem"),
            ),
            _ => Check::ok(ID, what),
        }
        .seen("/proc/modules, /sys/module/nvidia_peermem/version");
    }
    if !machine.modules_read {
        return Check::skip(
            ID,
            "unknown whether nvidia_peermem is loaded: neither /proc/modules nor /sys/module can be read",
        )
        .seen("/proc/modules");
    }
    if machine.old_module_serves() {
        return Check::skip(
            ID,
            format!("nvidia_peermem is not loaded; {OLD_MODULE} answers for GPU memory in its place"),
        )
        .seen("/proc/modules");
    }
    let message = "nvidia_peermem is not loaded: plain ibv_reg_mr() on GPU memory fails with \"Bad address\"";
    // A module that is kept out was not tried; older lines in the log do not matter.
    if let Some((line, block @ (Block::Always | Block::Kernel | Block::Unsupported))) = effective_block(machine) {
        let (told, fix) = match block {
            Block::Kernel => ("the kernel is told to refuse it", line.take_out()),
            Block::Unsupported => (
                "modprobe refuses it as one that SUSE does not support",
                format!("{}, then modprobe nvidia-peermem", line.undo(block)),
            ),
            _ => (
                "a line of modprobe.d replaces its loading by another command",
                format!("{}, then modprobe nvidia-peermem", line.take_out()),
            ),
        };
        let check = Check::fail(ID, format!("{message}; {told}"), fix);
        return check.seen(format!("{}: {}", line.file, line.text));
    }
    match why_not(machine) {
        Some((why, fix, line)) => {
            Check::fail(ID, format!("{message}; the last try failed: {why}"), fix).seen(format!("kernel log: {line}"))
        }
        None => Check::fail(ID, message, machine.load_it()).seen("not in /proc/modules"),
    }
}

/// Returns what the kernel log says about the last try to load the module: the reason in words,
/// what fixes it, and the line.
pub(super) fn why_not(machine: &Machine) -> Option<(&'static str, String, String)> {
    const SIGN: &str = "sign the module file: module.signature says how";
    const NO_DRIVER: &str = "the GPU driver is not loaded";
    const GPL_ONLY: &str = "GPL-only symbols";
    const NO_API: &str = "has no peer-memory API";
    const AGAIN: &str = "make clean; make; make install";
    const HEADERS: &str = "make clean; make; make install, with the headers of the running kernel";
    const VALUE: &str = "correct the options line in /etc/modprobe.d, then modprobe nvidia-peermem";
    const CAUSES: [(&str, &str, &str); 14] = [
        (
            "is blacklisted",
            "the kernel is told to refuse it by module_blacklist= on its command line",
            "take the module out of module_blacklist= on the kernel's command line, and reboot",
        ),
        (
            // kernel/module/main.c of 7.2.
            "section size must match",
            "it was built against the headers of another kernel",
            HEADERS,
        ),
        ("symbol module_layout", "it was built against the headers of another kernel", HEADERS),
        ("is rejected", "the kernel did not accept its signature", SIGN),
        ("module loading is restricted", "the kernel did not accept its signature", SIGN),
        (NO_DRIVER, "nvidia.ko was not loaded", "modprobe nvidia && modprobe nvidia-peermem"),
        (
            "another module has registered that name",
            "another module serves the client name nv_mem",
            "lsmod | grep -E 'nv_peer_mem|ib_core|ib_uverbs' tells who serves nv_mem and what uses it: end its users, rmmod it (nv_peer_mem as a rule), then modprobe nvidia-peermem",
        ),
        ("disagrees about version of symbol", "it was built against another RDMA core or GPU driver", AGAIN),
        ("(err -22)", "it was built against another RDMA core or GPU driver", AGAIN),
        (
            "Unknown symbol",
            "a module that it needs is not loaded",
            "modprobe nvidia ib_uverbs; make clean; make; make install",
        ),
        ("version magic", "it was built for another kernel", AGAIN),
        // kernel/params.c of 7.2, and this project's own.
        ("for parameter `", "a parameter has a wrong value", VALUE),
        ("invalid parameter", "a parameter has a wrong value", VALUE),
        (
            "compiled without IB peer memory symbols",
            "it is NVIDIA's, built where the peer-memory API was not seen",
            "make install (ours decides at load time)",
        ),
    ];
    let demanded = signatures_demanded(machine).is_some() && has_neighbours(machine);
    let lines = machine.log.as_ref().ok()?.iter().rev();
    let about_us =
        lines.filter(|line| line.contains(NAME) || line.contains("nvidia-peermem") || demanded && is_rejection(line));
    let mut tries = since_last_load(about_us).peekable();
    while let Some(line) = tries.next() {
        // If the kernel keeps the driver's symbols from the module, the module sees no driver.
        let kept = tries.peek().is_some_and(|before| before.contains(GPL_ONLY));
        if line.contains(NO_DRIVER) && kept {
            continue;
        }
        // The module was built where the API was, and is loaded where it is not.
        let no_api = line.contains(NO_API)
            || lacks(line).is_some_and(|symbol| symbol.ends_with("register_peer_memory_client"))
                && machine.has_symbol(REGISTER) == Some(false);
        if no_api && machine.api_to_load().is_some() {
            return Some(("the module with the peer-memory API was not loaded", machine.load_it(), line.clone()));
        }
        if no_api {
            return Some(("the RDMA core has no peer-memory API", super::api::api_cure(machine), line.clone()));
        }
        let driver_lacks = |symbol: &str| machine.driver.is_some() && machine.has_symbol(symbol) == Some(false);
        if lacks(line).is_some_and(|symbol| symbol.ends_with("_persistent")) && driver_lacks(PERSISTENT) {
            let fix = driver::newer_driver(machine);
            return Some(("the loaded nvidia.ko is too old: it lacks that function", fix, line.clone()));
        }
        if line.contains(GPL_ONLY) {
            let why = "the closed nvidia.ko takes no module with GPL-only imports";
            return Some((why, super::driver::no_gpl_imports(machine), line.clone()));
        }
        if let Some((_, why, fix)) = CAUSES.into_iter().find(|(text, _, _)| line.contains(text)) {
            return Some((why, fix.to_owned(), line.clone()));
        }
    }
    None
}

/// Returns the lines about this module, the newest first, until one says that it was loaded: it
/// registered a client. What failed before that is history. Older versions had no "is".
fn since_last_load<'a>(lines: impl Iterator<Item = &'a String>) -> impl Iterator<Item = &'a String> {
    lines.take_while(|line| !line.contains(") is registered") && !line.contains(") registered"))
}

/// The function by which the driver pins persistently. Only drivers from 550 on have it.
const PERSISTENT: &str = "nvidia_p2p_get_pages_persistent";

/// Returns the symbol that a line says nobody has: "nvidia_peermem: Unknown symbol NAME (err -2)",
/// with 0 in the place of -2 in older kernels.
fn lacks(line: &str) -> Option<&str> {
    let (symbol, why) = line.split_once("Unknown symbol ")?.1.split_once(' ')?;
    ["(err -2)", "(err 0)"].iter().any(|none| why.starts_with(none)).then_some(symbol)
}

/// Reports that the file was replaced after the module was loaded.
fn stale(machine: &Machine) -> Option<Check> {
    let (loaded, file) = (machine.loaded.as_ref()?, machine.file.as_ref()?);
    let (running, installed) = (loaded.srcversion.as_deref()?, file.field("srcversion")?);
    let of_container = machine.setting.driver_container;
    let is_other_maker = loaded.maker == Maker::Nvidia && file.maker() == Maker::Ours;
    (running != installed && !is_other_maker && !of_container).then(|| {
        Check::warn(
            "module.stale",
            format!(
                "the loaded module ({}) is not the installed file ({}), but another build",
                loaded.version.as_deref().unwrap_or("without version"),
                file.field("version").unwrap_or("without version")
            ),
            unload(machine, NAME, "modprobe nvidia-peermem"),
        )
        .seen(format!("srcversion {running} in /sys/module/nvidia_peermem, {installed} in {}", file.path))
    })
}

fn parameters(machine: &Machine) -> Vec<Check> {
    const ID: &str = "module.parameters";
    const KNOWN: [&str; 3] = ["peerdirect_support", "persistent_api_support", "revocable_fallback"];
    let mut checks = Vec::new();
    let options = modprobe::options(machine.root, NAME);
    let set = |name: &str, value: &str| options.iter().find(|(_, other, is)| other == name && is == value);
    if let (Some(_), Some((line, ..))) = (set("persistent_api_support", "0"), set("revocable_fallback", "1")) {
        checks.push(
            Check::fail_unless(
                works(machine),
                ID,
                "persistent_api_support=0 and revocable_fallback=1 exclude each other: modprobe says \"Invalid argument\"",
                format!("take one of the two out of {}, then modprobe nvidia-peermem", line.file),
            )
            .seen(format!("{}: {}", line.file, line.text)),
        );
    }
    for (line, name, value) in &options {
        let seen = format!("{}: {}", line.file, line.text);
        if !KNOWN.contains(&name.as_str()) {
            checks.push(
                Check::warn(
                    ID,
                    format!("nvidia-peermem has no parameter {name}; the kernel ignores it"),
                    format!("take {name} out of {}; known are {}", line.file, KNOWN.join(", ")),
                )
                .seen(seen),
            );
        } else if !matches!(value.as_str(), "0" | "1") {
            checks.push(
                Check::fail_unless(
                    works(machine),
                    ID,
                    format!("{name}={value} is not 0 or 1: modprobe says \"Invalid argument\""),
                    format!("write {name}=0 or {name}=1 in {}, then modprobe nvidia-peermem", line.file),
                )
                .seen(seen),
            );
        }
    }
    let Some(loaded) = &machine.loaded else { return checks };
    let value = |name: &str| loaded.params.get(name).map_or("?", String::as_str);
    let (plain, persistent) = (value("peerdirect_support"), value("persistent_api_support"));
    let falls_back = value("revocable_fallback") == "1";
    let more = if falls_back { ", revocable_fallback=1" } else { "" };
    let what = format!("persistent_api_support={persistent}, peerdirect_support={plain}{more}");
    let seen = "/sys/module/nvidia_peermem/parameters";
    checks.push(
        if plain == "1" {
            Check::warn(
                ID,
                format!("{what}: no RDMA core of this kernel needs the plain client, and with it revoked memory is not unmapped in time"),
                format!(
                    "take peerdirect_support=1 out of /etc/modprobe.d; {}",
                    unload(machine, NAME, "modprobe nvidia-peermem")
                ),
            )
        } else if persistent == "0" {
            Check::ok(ID, format!("{what}: legacy mode, a free kills the registration"))
        } else if falls_back {
            Check::ok(ID, format!("{what}: persistent pins, and revocable ones where the GPU driver refuses these"))
        } else {
            Check::ok(ID, format!("{what}: persistent pins"))
        }
        .seen(seen),
    );
    checks
}

/// Checks whether newer kernels have the module as well: it must be there after the next boot, too.
fn other_kernels(machine: &Machine) -> Option<Check> {
    const ID: &str = "module.kernels";
    let running = machine.release.as_deref()?;
    machine.file.as_ref()?;
    let missing: Vec<String> = kernel::newer(machine.root, running)
        .into_iter()
        .filter(|release| module_file::chosen(machine.root, release, NAME).is_none())
        .collect();
    let make = |release: &String| {
        format!("make KDIR=/lib/modules/{release}/build && make install KDIR=/lib/modules/{release}/build")
    };
    (!missing.is_empty()).then(|| {
        Check::warn(
            ID,
            format!("newer kernels are installed without nvidia-peermem: {}", missing.join(", ")),
            cure::package_command(machine).unwrap_or_else(|| missing.iter().map(make).collect::<Vec<_>>().join(" && ")),
        )
        .seen("modules.dep of each kernel in /lib/modules")
    })
}

/// Returns the line that keeps modprobe from loading the module. Leaves out an install line of a
/// module with soft dependencies: modprobe heeds no install line of such a module.
fn effective_block(machine: &Machine) -> Option<(modprobe::Line, Block)> {
    let by_name = modprobe::blocked(machine.root, NAME);
    let (line, block) = by_name.or_else(|| Some((unsupported(machine, NAME)?, Block::Unsupported)))?;
    let has_softdep = machine.file.as_ref().is_some_and(|file| file.field("softdep").is_some());
    (block != Block::Always || !has_softdep).then_some((line, block))
}

/// Returns the line by which SUSE's modprobe refuses the file of a module, as its maker has not marked it as supported.
fn unsupported(machine: &Machine, module: &str) -> Option<modprobe::Line> {
    let line = modprobe::keeps_unsupported_out(machine.root)?;
    let path = module_file::chosen(machine.root, machine.release.as_deref()?, module)?;
    let file = ModuleFile::read(machine.root, &path).ok()?;
    // "external" is a partner's module that SUSE supports together with that partner.
    (!file.field("supported").is_some_and(|value| ["yes", "external"].contains(&value))).then_some(line)
}

/// Returns the line that keeps another module that is not loaded from being loaded, at boot or at all, and what
/// to do then: `load` loads it.
pub(super) fn kept_out(machine: &Machine, module: &str, load: &str) -> Option<(modprobe::Line, String)> {
    let is_loaded = machine.modules.contains_key(module);
    if is_loaded || machine.setting.container.is_some() || machine.setting.driver_container {
        return None;
    }
    let by_name = modprobe::blocked(machine.root, module);
    let (line, block) = by_name.or_else(|| Some((unsupported(machine, module)?, Block::Unsupported)))?;
    let fix = match block {
        // This cure reboots, so nothing follows it.
        Block::Kernel => line.take_out(),
        _ => format!("{}, then {load}", line.undo(block)),
    };
    Some((line, fix))
}

/// Checks for a configuration that keeps modprobe from loading the module.
fn blocked(machine: &Machine) -> Option<Check> {
    const ID: &str = "module.blocked";
    let (line, block) = effective_block(machine)?;
    let fix = match block {
        Block::Unsupported if machine.loaded.is_none() => format!("{}, then modprobe nvidia-peermem", line.undo(block)),
        _ => line.undo(block),
    };
    let seen = format!("{}: {}", line.file, line.text);
    if block == Block::Alias && machine.setting.driver_container {
        let message = "nvidia-peermem is blacklisted here; the container of the driver loads it by its name, which heeds no blacklist";
        return Some(Check::ok(ID, message).seen(seen));
    }
    if let Some(by) = modprobe::loaded_by_name(machine.root, NAME).filter(|_| block == Block::Alias) {
        let message =
            format!("nvidia-peermem is blacklisted, and {} loads it by its name, which heeds no blacklist", by.file);
        return Some(Check::ok(ID, message).seen(seen).seen(format!("{}: {}", by.file, by.text)));
    }
    let check = match (block, machine.loaded.is_some()) {
        (Block::Kernel, loaded) => Check::fail_unless(
            loaded,
            ID,
            "the kernel is told to refuse nvidia_peermem: modprobe says \"Operation not permitted\"",
            fix,
        ),
        (Block::Alias, true) => {
            Check::warn(ID, "nvidia-peermem is blacklisted: it is loaded now, and will not be after the next boot", fix)
        }
        (Block::Alias, false) => Check::fail(ID, "nvidia-peermem is blacklisted: it is not loaded at boot", fix),
        (Block::Always, loaded) => {
            Check::fail_unless(loaded, ID, "a line of modprobe.d replaces the loading of nvidia-peermem by another command", fix)
        }
        (Block::Unsupported, loaded) => Check::fail_unless(
            loaded,
            ID,
            "modprobe is told to refuse modules that SUSE does not support, and the file of nvidia-peermem is not marked as supported: modprobe says \"module is unsupported\"",
            fix,
        ),
    };
    Some(check.seen(seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_before_a_load_that_worked_is_history() {
        for said in [
            "nvidia_peermem: the extended client nv_mem (persistent) is registered",
            "nvidia_peermem: extended client nv_mem (persistent) registered",
            "nvidia_peermem: clients nv_mem (persistent) and nv_mem_rv (revocable) registered as plain clients",
        ] {
            let refused = "ib_core refused the client nv_mem: most likely another module has registered that name";
            let lines = [refused, said, "an older refusal"].map(str::to_owned);
            assert_eq!(since_last_load(lines.iter()).collect::<Vec<_>>(), [refused], "{said}");
        }
    }
}
