// SPDX-License-Identifier: GPL-2.0

//! `packages neighbours --root ROOT --out DIR` makes a machine with stand-ins for the GPU driver and
//! the RDMA core out of a Debian in ROOT. `packages test --chroot bookworm=DIR --archive FILE`
//! installs the packages on such machines, takes these through every transition, and asks modprobe.
//! It prints a line per transition as libtest does.
//!
//! `PACKAGES_VERBOSE=1` shows every script with what it says.

mod container;
mod machine;
mod stubs;
mod table;
mod transitions;

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Parser};
use machine::{Built, Layers, Machine, Resolved, Said};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use stubs::{deb, ours, NVIDIA, OFED};
use transitions::{started, Transition, ALL, INSTALLED, WITHOUT_OURS};

#[derive(Parser)]
enum Words {
    /// Makes a machine with both neighbours, to be kept.
    Neighbours {
        /// The machine's root folder without the neighbours.
        #[arg(long)]
        root: PathBuf,
        /// The folder in which the machine is kept.
        #[arg(long)]
        out: PathBuf,
    },
    /// Takes machines through the transitions.
    Test(Options),
}

#[derive(Args)]
struct Options {
    /// NAME=DIR: a distribution, and the folder of a kept machine of it that has both neighbours.
    #[arg(long, required = true)]
    chroot: Vec<String>,
    /// A further distribution, on which only the installation is tested, for its compiler.
    #[arg(long)]
    compiler: Option<String>,
    /// The crates that cargo needs for peermemctl and the libraries, as `cargo vendor` leaves them.
    #[arg(long)]
    vendor: Option<PathBuf>,
    /// The archive that `make dist` made.
    #[arg(long)]
    archive: PathBuf,
    /// Run also the transitions that build our module, which take minutes.
    #[arg(long)]
    whole: bool,
    /// Run only these transitions.
    #[arg(long)]
    only: Vec<String>,
    /// The folder of the pages to which the results are written.
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Words::parse() {
        Words::Neighbours { root, out } => neighbours(&root, &out).map(|()| true),
        Words::Test(options) => test(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("packages: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes a machine with stand-ins for the GPU driver and the RDMA core, and their packages.
fn neighbours(root: &Path, out: &Path) -> Result<()> {
    let machine = Machine::keep(root, out)?;
    stubs::build(&machine)?;
    machine.must(&format!("dpkg -i {} {}", deb("nvidia", NVIDIA[0]), deb("mlnx-ofed-kernel", OFED[0])))?;
    let kernel = machine.kernels()?.pop().context("the machine has no kernel")?;
    match machine.resolved(&kernel)? {
        Resolved::Nvidia(_) => Ok(()),
        other => bail!("before ours is installed modprobe takes {other}"),
    }
}

/// A distribution whose transitions run.
struct Distribution<'a> {
    name: &'a str,
    rustc: String,
    version: &'a str,
    /// A machine with both neighbours and packages of ours, none of which is installed.
    neighbours: Machine,
    /// The same machine with our package, and the exit code of dpkg that installed it.
    ready: (Machine, i32),
}

fn test(options: &Options) -> Result<bool> {
    let mut good = true;
    let mut pages = Pages::default();
    let version = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../VERSION"))?.trim().to_string();
    for chroot in options.chroot.iter().chain(&options.compiler) {
        let (name, dir) = chroot.split_once('=').context("NAME=DIR")?;
        let compiler = options.compiler.as_ref() == Some(chroot);
        let whole = options.whole && !compiler;
        let neighbours = Machine::new(&Layers::kept(dir.as_ref())?)?;
        let vendor = options.vendor.as_deref().filter(|_| whole);
        stubs::build_ours(&neighbours, &options.archive, &version, whole, vendor)
            .with_context(|| format!("{name}: our packages"))?;
        let rustc = neighbours.must("rustc --version | cut -d ' ' -f 2")?.trim().to_string();
        let ready = with_ours(&neighbours, &version).with_context(|| format!("{name}, rustc {rustc}"))?;
        let wanted = |transition: &&Transition| {
            if compiler {
                transition.name == INSTALLED
            } else if options.only.is_empty() {
                whole || transition.quick
            } else {
                options.only.iter().any(|only| only == transition.name)
            }
        };
        let transitions: Vec<&Transition> = ALL.iter().filter(wanted).collect();
        let distribution = Distribution { name, rustc, version: &version, neighbours, ready };
        good &= distribution.run(&transitions, &mut pages, options.results.as_deref())?;
    }
    if let Some(results) = &options.results {
        table::write(results, container::FILE, &container::fast_path())?;
        println!("test container/fast_path ... ok");
    }
    Ok(good)
}

/// Collects what the pages of results show, in the order of distributions and transitions.
#[derive(Clone, Default)]
struct Pages {
    rows: Vec<String>,
    /// Holds what programs of others have said, by page.
    shown: BTreeMap<&'static str, String>,
}

impl Pages {
    fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        for (page, text) in other.shown {
            *self.shown.entry(page).or_default() += &text;
        }
    }

    fn write(&self, results: &Path) -> Result<()> {
        table::write(results, table::FILE, &table::page(&self.rows))?;
        self.shown.iter().try_for_each(|(page, text)| {
            table::write(results, page, &format!("Written by `make soak ONLY=packages`.\n\n{text}"))
        })
    }
}

impl Distribution<'_> {
    /// Runs these transitions, some of them side by side, and adds what they show in the order of the
    /// transitions. Returns whether all are good.
    fn run(&self, transitions: &[&Transition], pages: &mut Pages, results: Option<&Path>) -> Result<bool> {
        let next = AtomicUsize::new(0);
        let done: Mutex<(bool, BTreeMap<usize, Pages>)> = Mutex::new((true, BTreeMap::new()));
        let with = |found: &BTreeMap<usize, Pages>| {
            let mut all = pages.clone();
            found.values().cloned().for_each(|page| all.add(page));
            all
        };
        let work = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Relaxed);
                let Some(transition) = transitions.get(index) else { return Ok(()) };
                let (good, shows) = self.one(transition)?;
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.0 &= good;
                done.1.insert(index, shows);
                // Write the pages now, so that a run that is stopped keeps its findings.
                if let Some(results) = results {
                    with(&done.1).write(results)?;
                }
            }
        };
        let beside = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..beside).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        let (good, found) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        *pages = with(&found);
        Ok(good)
    }

    /// Runs a transition and prints its result. Returns whether it is good, and what it shows.
    fn one(&self, transition: &Transition) -> Result<(bool, Pages)> {
        let from = if WITHOUT_OURS.contains(&transition.name) { &self.neighbours } else { &self.ready.0 };
        let (name, start) = (format!("{}/{}", self.name, transition.name), Instant::now());
        let mut test = started(&from.layers()?, self.version)?;
        if transition.name == INSTALLED {
            test.exit = Some(self.ready.1);
        }
        let result = (transition.run)(&mut test);
        let rows = test.rows.iter().map(|row| table::line(self.name, &self.rustc, row)).collect();
        let shown =
            test.shown.iter().map(|(page, text)| (*page, format!("# {}, {}\n\n{text}\n", self.name, transition.name)));
        let shows = Pages { rows, shown: shown.collect() };
        match &result {
            Ok(()) => println!("test {name} ... ok, {} s", start.elapsed().as_secs()),
            Err(error) => println!("test {name} ... FAILED\n{error:#}"),
        }
        Ok((result.is_ok(), shows))
    }
}

/// Returns the machine with our package, and the exit code of dpkg.
fn with_ours(neighbours: &Machine, version: &str) -> Result<(Machine, i32)> {
    let machine = Machine::new(&neighbours.layers()?)?;
    let Said { ok, code, text: said } = machine.run(&format!("dpkg -i {}", ours(version)))?;
    ensure!(ok, "installation of ours:\n{said}");
    let kernel = machine.kernels()?.pop().context("the machine has no kernel")?;
    match machine.resolved(&kernel)? {
        Resolved::Ours { built: Built::Whole, .. } => Ok((machine, code)),
        other => bail!("after the installation of ours modprobe takes {other}:\n{said}"),
    }
}
