// SPDX-License-Identifier: GPL-2.0
//! Loading and unloading nvidia-peermem, and leaving the machine as it was found.

use crate::kernel;
use crate::machine::{Machine, NAME, SYS};
use crate::module_file::{Maker, ModuleFile};
use crate::peermem;
use crate::root::Root;
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::Command;

/// The parameter that chooses the kind of pins.
const PERSISTENT: &str = "persistent_api_support";

/// The way in which a module is loaded.
#[derive(Clone)]
pub struct Load {
    /// The file; `None` for the one that modprobe takes.
    pub file: Option<PathBuf>,
    /// The parameters as `name=value`.
    pub parameters: Vec<String>,
}

impl Load {
    pub fn load(&self) -> Result<()> {
        let parameters = self.parameters.iter().map(String::as_str);
        match &self.file {
            None => run("modprobe", &[NAME].into_iter().chain(parameters).collect::<Vec<_>>()),
            Some(file) => {
                let file = file.to_str().with_context(|| format!("{}: no plain text", file.display()))?;
                run("insmod", &[file].into_iter().chain(parameters).collect::<Vec<_>>())
            }
        }
    }
}

/// Unloads the module. Returns an error if somebody uses it.
pub fn unload() -> Result<()> {
    run("rmmod", &[NAME])
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let out =
        Command::new(program).args(args).env("PATH", path).output().with_context(|| format!("start {program}"))?;
    if !out.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

fn is_loaded(root: &Root) -> bool {
    kernel::loaded_modules(root).contains_key(NAME)
}

/// Returns how often the loaded module is used.
pub fn references(root: &Root) -> Option<i64> {
    kernel::loaded_modules(root).get(NAME)?.refcount
}

/// The promise of a module for registered memory that is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pins {
    /// The memory stays pinned until it is deregistered.
    Persistent,
    /// The NIC is stopped before the memory is freed.
    Revocable,
    /// One of the two happens, as the driver can.
    Either,
}

/// Returns what the loaded module promises for registered memory that is freed.
pub fn pins(root: &Root) -> Pins {
    if let Ok(stats) = peermem::stats(root) {
        return match stats.text("mode") {
            Some("persistent") => Pins::Persistent,
            Some("legacy") => Pins::Revocable,
            _ => Pins::Either,
        };
    }
    // NVIDIA's module has the parameter from 560 on, and pins persistently if the driver can.
    match root.line(&format!("{SYS}/parameters/{PERSISTENT}")).as_deref() {
        None | Some("0") => Pins::Revocable,
        Some(_) => Pins::Either,
    }
}

/// Returns whether the loaded module is this project's.
pub fn is_ours(root: &Root) -> bool {
    root.exists(peermem::DIR)
}

/// Describes the loaded module: whose it is, its version and its parameters; `None` if none is
/// loaded. `whose` says whose it is, if that is known.
pub fn words(root: &Root, whose: Option<&str>) -> Option<String> {
    if !is_loaded(root) {
        return None;
    }
    let known = if is_ours(root) { "this project's" } else { "not this project's" };
    let whose = whose.unwrap_or(known);
    let line = |file: &str| root.line(&format!("{SYS}/{file}")).unwrap_or_else(|| "unknown".to_owned());
    let parameters: Vec<String> = parameters(root).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let parameters = if parameters.is_empty() { "no parameters".to_owned() } else { parameters.join(" ") };
    Some(format!(
        "nvidia_peermem, {whose}, version {}, srcversion {}, {parameters}",
        line("version"),
        line("srcversion")
    ))
}

fn parameters(root: &Root) -> BTreeMap<String, String> {
    let dir = format!("{SYS}/parameters");
    let value = |name: &String| root.line(&format!("{dir}/{name}"));
    root.names(&dir).into_iter().filter_map(|name| Some((name.clone(), value(&name)?))).collect()
}

/// The state of the module before the tests.
pub struct Found {
    /// The load that brings it back; `None` if it was not loaded.
    load: Option<Load>,
    /// The reason why it cannot be unloaded here.
    pub stays: Option<String>,
}

impl Found {
    pub fn look(machine: &Machine) -> Self {
        let root = machine.root;
        let Some(loaded) = &machine.loaded else { return Self { load: None, stays: not_root() } };
        let parameters = loaded.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let installed = machine.file.as_ref().and_then(|file| file.field("srcversion"));
        let stays = not_root().or_else(|| match references(root) {
            Some(0) => (installed != loaded.srcversion.as_deref()).then(|| {
                "the loaded nvidia_peermem is not the file that modprobe would load, so nothing could bring it back"
                    .to_owned()
            }),
            Some(count) => Some(format!("others have registered GPU memory: nvidia_peermem is used {count} times")),
            None => Some("this kernel unloads no modules".to_owned()),
        });
        Self { load: Some(Load { file: None, parameters }), stays }
    }

    /// Returns how to load the module as it was, but with the other kind of pins; `None` if it
    /// knows one kind only.
    pub fn other_pins(&self, root: &Root) -> Option<Load> {
        let current = parameters(root).get(PERSISTENT)?.clone();
        let other = if pins(root) == Pins::Revocable { "1" } else { "0" };
        if current == other {
            return None;
        }
        // The fallback goes with persistent pins only.
        let is_kept = |word: &&String| !word.starts_with(PERSISTENT) && !word.starts_with("revocable_fallback");
        let kept = self.load.iter().flat_map(|load| &load.parameters).filter(is_kept).cloned();
        Some(Load { file: None, parameters: kept.chain([format!("{PERSISTENT}={other}")]).collect() })
    }

    /// Returns how to load the module, for the first time or again.
    pub fn again(&self) -> Load {
        self.load.clone().unwrap_or(Load { file: None, parameters: Vec::new() })
    }

    /// Restores the machine as it was found.
    pub fn restore(&self, root: &Root) -> Result<()> {
        if is_loaded(root) {
            unload()?;
        }
        self.load.as_ref().map_or(Ok(()), Load::load)
    }
}

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root loads and unloads modules".to_owned())
}

/// Says whose module a file is, for the question whether it may be loaded.
pub fn file_words(root: &Root, file: &std::path::Path) -> Result<String> {
    let path = file.canonicalize().with_context(|| format!("--compare {}", file.display()))?;
    let module = ModuleFile::read(root, &path.to_string_lossy()).context("--compare")?;
    let whose = match module.maker() {
        Maker::Ours => "this project's, from a file",
        Maker::Nvidia => "NVIDIA's",
        Maker::Other => bail!("--compare {}: no nvidia-peermem", file.display()),
    };
    Ok(whose.to_owned())
}

/// Asks on the terminal. Without a terminal the answer is no.
pub fn agreed(yes: bool, question: &str) -> bool {
    if yes || !std::io::stdin().is_terminal() {
        return yes;
    }
    eprint!("{question} [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).is_ok() && ["y", "yes"].contains(&answer.trim())
}
