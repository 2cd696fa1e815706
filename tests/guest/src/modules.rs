// SPDX-License-Identifier: GPL-2.0
//! Loads and unloads kernel modules, and reads their use counts and what the kernel prints
//! meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::kmsg::Mark;

/// The name of our module (or NVIDIA's). The kernel writes it with an underscore.
pub const PEERMEM: &str = "nvidia_peermem";

/// The outcome of one call of modprobe, insmod or rmmod.
#[derive(Debug)]
pub struct Outcome {
    /// Whether the exit status was 0.
    pub ok: bool,
    /// The text that the program printed.
    pub said: String,
    /// The messages that the kernel printed meanwhile.
    pub kernel: Vec<String>,
}

impl Outcome {
    /// Returns the one kernel message that contains all of `words`. If there is none, or more than
    /// one, the error shows all messages.
    pub fn one_line(&self, words: &[&str]) -> Result<&str> {
        let hits: Vec<&String> = self.kernel.iter().filter(|l| words.iter().all(|w| l.contains(w))).collect();
        match hits.as_slice() {
            [line] => Ok(line),
            _ => bail!(
                "{} kernel messages with {words:?}, wanted exactly one, among:\n{}",
                hits.len(),
                self.kernel.join("\n")
            ),
        }
    }
}

fn call(program: &str, args: &[&str]) -> Result<Outcome> {
    let mut mark = Mark::now()?;
    let out = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    let mut said = String::from_utf8_lossy(&out.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&out.stderr));
    Ok(Outcome { ok: out.status.success(), said, kernel: mark.since()? })
}

/// Runs `modprobe NAME PARAMETERS`, as an admin types it.
pub fn try_modprobe(name: &str, parameters: &[&str]) -> Result<Outcome> {
    let mut args = vec![name];
    args.extend_from_slice(parameters);
    call("modprobe", &args)
}

pub fn modprobe(name: &str, parameters: &[&str]) -> Result<Outcome> {
    let o = try_modprobe(name, parameters)?;
    if !o.ok {
        bail!("modprobe {name} {}: {}{}", parameters.join(" "), o.said, o.kernel.join("\n"));
    }
    Ok(o)
}

/// Runs `modprobe` unless the module is loaded. modprobe would find that out itself, but on a
/// machine with all alarms each program takes half a second to start, and every test begins here.
pub fn load(name: &str, parameters: &[&str]) -> Result<()> {
    if loaded(name)? {
        return Ok(());
    }
    modprobe(name, parameters).map(drop)
}

/// Loads a file without its dependencies.
pub fn try_insmod(file: &Path, parameters: &[&str]) -> Result<Outcome> {
    let file = file.to_str().context("module path is not text")?;
    let mut args = vec![file];
    args.extend_from_slice(parameters);
    call("insmod", &args)
}

/// The place of NVIDIA's module in an image that has both.
const NVIDIA_C: &str = "/usr/lib/nvidia_c/nvidia-peermem.ko";

/// Loads NVIDIA's module in place of ours, which must not be loaded.
pub fn insmod_nvidia_c(pins: Pins) -> Result<()> {
    let parameters: &[&str] = match pins {
        Pins::Revocable if has_parameter(NVIDIA_C, "persistent_api_support")? => &["persistent_api_support=0"],
        _ => &[],
    };
    let o = try_insmod(Path::new(NVIDIA_C), parameters)?;
    if !o.ok {
        bail!("insmod {NVIDIA_C} {}: {}{}", parameters.join(" "), o.said, o.kernel.join("\n"));
    }
    Ok(())
}

/// The way in which NVIDIA's module is to pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pins {
    /// Its default: persistently from driver 560 on, revocably before.
    AsByDefault,
    /// Revocably first.
    Revocable,
}

/// Returns whether `module`, a name or a file, has this parameter.
pub fn has_parameter(module: &str, parameter: &str) -> Result<bool> {
    let all = crate::init::run("modinfo", &["-F", "parm", module])?;
    Ok(all.lines().any(|line| line.split(':').next() == Some(parameter)))
}

pub fn try_rmmod(name: &str) -> Result<Outcome> {
    call("rmmod", &[name])
}

pub fn rmmod(name: &str) -> Result<()> {
    let o = try_rmmod(name)?;
    if !o.ok {
        bail!("rmmod {name}: {}{}", o.said, o.kernel.join("\n"));
    }
    Ok(())
}

/// Returns the use count of a loaded module, as lsmod shows it, or `None` if it is not loaded.
pub fn use_count(name: &str) -> Result<Option<i32>> {
    Ok(procfs::modules().context("read /proc/modules")?.get(name).map(|m| m.refcount))
}

pub fn loaded(name: &str) -> Result<bool> {
    Ok(use_count(name)?.is_some())
}

/// Unloads a module and everything that uses it. Succeeds if it was not loaded.
pub fn unload_with_users(name: &str) -> Result<()> {
    while let Some(module) = procfs::modules().context("read /proc/modules")?.remove(name) {
        for user in &module.used_by {
            unload_with_users(user)?;
        }
        rmmod(name)?;
    }
    Ok(())
}

/// Returns the folder `/lib/modules/<release>`.
pub fn tree() -> Result<PathBuf> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("read osrelease")?;
    Ok(Path::new("/lib/modules").join(release.trim()))
}

/// Returns the installed module that exports `symbol`, as depmod knows it, or `None` if there is
/// none.
pub fn exporter(symbol: &str) -> Result<Option<String>> {
    let file = tree()?.join("modules.symbols");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let alias = format!("alias symbol:{symbol} ");
    Ok(text.lines().find_map(|line| line.strip_prefix(&alias)).map(str::to_string))
}

/// Returns the file that `modprobe name` would load.
pub fn file_of(name: &str) -> Result<PathBuf> {
    let out = crate::init::run("modinfo", &["-F", "filename", name])?;
    let file = PathBuf::from(out.trim());
    if !file.is_file() {
        bail!("modinfo names {}, which is not there", file.display());
    }
    Ok(file)
}

/// Reads `/sys/module/<name>/parameters/<parameter>`, or another attribute of the module.
pub fn attribute(name: &str, path: &str) -> Result<String> {
    let file = format!("/sys/module/{name}/{path}");
    Ok(fs::read_to_string(&file).with_context(|| format!("read {file}"))?.trim().to_string())
}
