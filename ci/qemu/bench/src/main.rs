// SPDX-License-Identifier: GPL-2.0

//! `make bench`: measures our module beside NVIDIA's C module in three boots, and reports the
//! numbers. `make bench-ways`: measures peer memory beside dma-buf in one boot.

mod figures;
mod plot;
mod profile;
mod report;
mod targets;
mod ways;
mod words;

use anyhow::{bail, Context, Result};
use clap::Parser;
use figures::Figures;
use lab::artefacts::{self, Built};
use lab::axes::{Also, Clock, Kernel, Module};
use lab::ctx::Lab;
use lab::ktap::Outcome;
use lab::machine::{Boot, COUNTED_CPU};
use lab::parts;
use lab::sh::{self, human, say};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use ways::Ways;

/// The memory of the card. All of it is one sparse BAR, twice as large as what is registered,
/// because NVIDIA's module cannot map a BAR's end.
const GPU_MIB: u64 = 128 << 10;
/// The time limit of a boot. The longest takes about twenty minutes on two idle cores.
const LIMIT: Duration = Duration::from_secs(3600);

/// The number of processors on the wall clock, large enough for threads to meet at locks.
const PROCESSORS: u32 = 8;

/// An image with both modules, which are loaded in turns.
const BOTH: artefacts::Kind = (Module::Ours, Also::NvidiaC);

/// The comparison that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Our module beside NVIDIA's C module.
    Modules,
    /// Peer memory beside dma-buf.
    Ways,
}

impl What {
    fn command(self) -> &'static str {
        match self {
            Self::Modules => "make bench",
            Self::Ways => "make bench-ways",
        }
    }

    /// Returns the kernel to boot. Only the first can count memory by the code that allocates it.
    fn kernel(self) -> Kernel {
        match self {
            Self::Modules => Kernel::Fast72,
            Self::Ways => Kernel::Debian612,
        }
    }

    /// Returns the file with the numbers.
    fn file(self, lab: &Lab) -> PathBuf {
        lab.repo.join(match self {
            Self::Modules => "build/bench.json",
            Self::Ways => "build/bench-ways.json",
        })
    }

    fn text(self, all: &Value) -> Result<String> {
        Ok(match self {
            Self::Modules => {
                let figures = Figures::new(all)?;
                report::text(&figures.machine, report::tables(&figures))
            }
            Self::Ways => {
                let ways = Ways::new(all)?;
                report::text(&ways.machine, ways.tables())
            }
        })
    }

    /// Returns the files below `docs/results/bench`.
    fn docs(self, all: &Value) -> Result<Vec<(&'static str, String)>> {
        Ok(match self {
            Self::Modules => {
                let figures = Figures::new(all)?;
                let how = "`make bench-docs` from `build/bench.json` of `make bench`";
                let tables = report::markdown(how, &figures.commit, &figures.machine, report::tables(&figures));
                vec![
                    ("tables.md", tables),
                    ("time.svg", plot::time(&figures)?),
                    ("memory.svg", plot::memory(&figures)?),
                ]
            }
            Self::Ways => {
                let ways = Ways::new(all)?;
                let how = "`make bench-ways-docs` from `build/bench-ways.json` of `make bench-ways`";
                let tables = report::markdown(how, &ways.commit, &ways.machine, ways.tables());
                vec![("ways.md", tables), ("ways.svg", ways.plot()?)]
            }
        })
    }
}

/// The paths that a measurement depends on. A change there makes the last measurement out of date.
const MEASURED: [&str; 5] = ["src", "bindings", "Kbuild", "ci/qemu", "tests/guest"];

fn git(lab: &Lab, words: &[&str]) -> Command {
    let mut cmd = sh::command("git");
    cmd.current_dir(&lab.repo).args(words).arg("--").args(MEASURED).arg(":!*.md");
    cmd
}

/// The boots, which run one after the other, with the guests' rows. `whole` is `false` if anything
/// failed.
struct Boots<'a> {
    lab: &'a Lab,
    kernel: Kernel,
    built: &'a Built,
    rows: BTreeMap<String, Vec<Value>>,
    alarms: Vec<String>,
    whole: bool,
}

impl Boots<'_> {
    fn run(&mut self, name: &str, clock: Clock, plugin: Option<String>) -> Result<()> {
        let cpus = PROCESSORS;
        let cpu = Some(COUNTED_CPU.to_string());
        let new = Boot::new(name, name);
        let mut boot =
            Boot { gpu_mib: GPU_MIB, nics: 2, memory_mib: 4096, cpu, cpus, limit: LIMIT, clock, plugin, ..new };
        // The processor's own counter is the clock, and without KASLR functions are at the
        // addresses in System.map.
        boot.append.extend(["tsc=reliable", "nokaslr"].map(String::from));
        if self.kernel == Kernel::Fast72 {
            // The guest switches this accounting on later.
            boot.append.push("sysctl.vm.mem_profiling=0".to_string());
        }
        let report = boot.run(self.lab, self.built, BOTH)?;
        self.whole &= report.tests.iter().all(|t| t.outcome != Outcome::Failed) && !report.tests.is_empty();
        for alarm in &report.alarms {
            println!("FAILED  the kernel: {}", alarm.line);
            self.alarms.push(alarm.line.clone());
            self.whole = false;
        }
        say(&format!("boot {name}: {}", human(report.elapsed)));
        self.rows.extend(report.json);
        Ok(())
    }

    /// Counts instructions in a boot of its own, because the plugin slows the machine down.
    fn profile(&mut self) -> Result<()> {
        let file = self.lab.build.join("profile.txt");
        self.run("bench_profile", Clock::Instructions, Some(artefacts::plugin(self.lab, Kernel::Fast72, &file)?))?;
        let map = self.built.part("kernel/build/System.map");
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let listed = self.rows.remove("functions").unwrap_or_default();
        let marked = self.rows.remove("profile").unwrap_or_default();
        let module = profile::Module::new(self.lab, self.built.part("ours").join("nvidia-peermem.ko"))?;
        match profile::rows(&read(&file)?, &read(&map)?, &marked, &listed, Some(&module)) {
            Ok(rows) => drop(self.rows.insert("profile".to_string(), rows)),
            Err(e) => {
                println!("FAILED  profile: {e:#}");
                self.whole = false;
            }
        }
        Ok(())
    }
}

/// Measures. Returns `false` if something could not be measured; the rest is reported all the same.
fn run(lab: &Lab, what: What) -> Result<bool> {
    let start = Instant::now();
    let commit = sh::git(lab, &["rev-parse", "HEAD"])?;
    let dirty = !sh::output(&mut git(lab, &["status", "--porcelain"]))?.is_empty();
    let kernel = what.kernel();
    let built = artefacts::build(lab, kernel, &[BOTH], &[])?;
    // Remove older figures now, so that a run that ends early does not leave them behind.
    let file = what.file(lab);
    if file.exists() {
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    let mut boots = Boots { lab, kernel, built: &built, rows: BTreeMap::new(), alarms: Vec::new(), whole: true };
    match what {
        What::Modules => {
            boots.run("bench", Clock::Instructions, None)?;
            boots.profile()?;
            boots.run("bench_threads", Clock::Wall, None)?;
        }
        What::Ways => boots.run("bench_ways", Clock::Instructions, None)?,
    }
    let Boots { rows, alarms, whole, .. } = boots;
    let all = json!({
        "command": what.command(), "kernel": built.release, "seconds": start.elapsed().as_secs(),
        "commit": commit, "nvidia": parts::line(&built.nvidia(BOTH)), "dirty": dirty, "whole": whole, "alarms": alarms, "rows": rows,
    });
    fs::write(&file, serde_json::to_string(&all)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", what.text(&all)?);
    say(&format!("took {}; every sample: {}", human(start.elapsed()), lab.short(&file)));
    if !whole {
        println!("bench: not everything could be measured");
    }
    Ok(whole)
}

/// Returns the reason why a measurement must not be checked in, if there is one.
fn unfit(all: &Value, changed_since: impl FnOnce(&str) -> Result<bool>) -> Result<Option<String>> {
    let alarms = all["alarms"].as_array().map_or(0, Vec::len);
    let commit = all["commit"].as_str().unwrap_or_default();
    Ok(if all["whole"] != true || alarms != 0 {
        Some(format!("not everything could be measured ({alarms} alarms of the kernel)"))
    } else if all["dirty"] != false || commit.is_empty() {
        Some("it was measured with changes that are in no commit".to_string())
    } else if changed_since(commit)? {
        Some(format!("what was measured has changed since ({commit})"))
    } else {
        None
    })
}

/// Writes the pages that are checked in, from the last measurement.
fn docs(lab: &Lab, what: What) -> Result<bool> {
    let (file, command) = (what.file(lab), what.command());
    let text = fs::read_to_string(&file).with_context(|| format!("{}: run `{command}` first", lab.short(&file)))?;
    let all: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", lab.short(&file)))?;
    let changed = |commit: &str| {
        let status = git(lab, &["diff", "--quiet", commit]).status().context("cannot run git")?;
        Ok(!status.success())
    };
    if let Some(why) = unfit(&all, changed)? {
        bail!("{}: {why}; run `{command}` again", lab.short(&file));
    }
    let dir = lab.repo.join("docs/results/bench");
    fs::create_dir_all(&dir)?;
    for (name, text) in what.docs(&all)? {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", lab.short(&path));
    }
    Ok(true)
}

/// Measures our module beside NVIDIA's C module; prints a table and writes build/bench.json and the
/// plots.
#[derive(Parser)]
struct Args {
    /// Boot nothing: write the tables and plots under docs/ from build/bench.json.
    #[arg(long)]
    docs: bool,
    /// Measure peer memory beside dma-buf instead.
    #[arg(long)]
    ways: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let measured = Lab::locate().and_then(|lab| {
        sh::clean_environment(&lab);
        let what = if args.ways { What::Ways } else { What::Modules };
        if args.docs {
            docs(&lab, what)
        } else {
            run(&lab, what)
        }
    });
    match measured {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_run_of_what_is_there_is_fit_for_docs() {
        let good = json!({"whole": true, "dirty": false, "commit": "abc", "alarms": []});
        let why = |all: &Value, changed: bool| unfit(all, |_| Ok(changed)).unwrap();
        assert_eq!(why(&good, false), None);
        assert!(why(&good, true).is_some_and(|why| why.contains("changed since (abc)")));
        for (name, value) in [
            ("whole", json!(false)),
            ("whole", Value::Null),
            ("dirty", json!(true)),
            ("dirty", Value::Null),
            ("commit", Value::Null),
            ("alarms", json!(["WARNING: x"])),
        ] {
            let mut bad = good.clone();
            bad[name] = value;
            assert!(why(&bad, false).is_some(), "{bad}");
        }
    }
}
