// SPDX-License-Identifier: GPL-2.0

//! `packages --chroot bookworm=DIR --archive FILE`: installs the packages on machines made of
//! Debian packages, takes these through every transition, and asks modprobe. Prints a line per
//! transition as libtest does.
//!
//! `PACKAGES_VERBOSE=1` shows every script with what it says.

mod machine;
mod stubs;
mod table;
mod transitions;

use anyhow::{bail, Context, Result};
use clap::Parser;
use machine::{Layers, Machine, Resolved};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use stubs::{deb, ours, NVIDIA, OFED};
use transitions::{Test, ALL, INSTALLED, RPM, RPM_INTERRUPTED};

#[derive(Parser)]
struct Words {
    /// NAME=DIR: a distribution, and the root folder of a machine of it.
    #[arg(long, required = true)]
    chroot: Vec<String>,
    /// One more, of which only the installation counts: for its compiler.
    #[arg(long)]
    compiler: Option<String>,
    /// What cargo needs for peermemctl and the libraries, as `cargo vendor` leaves it.
    #[arg(long)]
    vendor: Option<PathBuf>,
    /// What `make dist` made.
    #[arg(long)]
    archive: PathBuf,
    /// Also the transitions that build our module, which take minutes.
    #[arg(long)]
    whole: bool,
    /// Only these transitions.
    #[arg(long)]
    only: Vec<String>,
    /// The page that the results are written to.
    #[arg(long)]
    table: Option<PathBuf>,
}

fn main() -> ExitCode {
    let words = Words::parse();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("packages: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &Words) -> Result<bool> {
    let mut good = true;
    let mut rows = Vec::new();
    let version = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../VERSION"))?.trim().to_string();
    for chroot in words.chroot.iter().chain(&words.compiler) {
        let (distribution, root) = chroot.split_once('=').context("NAME=DIR")?;
        let compiler = words.compiler.as_ref() == Some(chroot);
        let whole = words.whole && !compiler;
        let neighbours = prepare(words, &Layers::of(root.as_ref()), &version, whole)
            .with_context(|| format!("{distribution}: the machine with both neighbours"))?;
        let rustc = neighbours.must("rustc --version | cut -d ' ' -f 2")?.trim().to_string();
        let ready = with_ours(&neighbours, &version).with_context(|| format!("{distribution}, rustc {rustc}"))?;
        for transition in ALL {
            let wanted = if compiler {
                transition.name == INSTALLED
            } else if words.only.is_empty() {
                whole || transition.quick
            } else {
                words.only.iter().any(|only| only == transition.name)
            };
            if !wanted {
                continue;
            }
            let from = if [RPM, RPM_INTERRUPTED].contains(&transition.name) { &neighbours } else { &ready };
            let (name, start) = (format!("{distribution}/{}", transition.name), Instant::now());
            let mut test = Test {
                machine: Machine::new(&from.layers()?)?,
                version: version.clone(),
                rows: Vec::new(),
                exit: None,
            };
            let result = (transition.run)(&mut test);
            rows.extend(test.rows.iter().map(|row| table::line(distribution, &rustc, row)));
            // A run that is stopped keeps what it has found.
            if let Some(table) = &words.table {
                fs::write(table, table::page(&rows)).with_context(|| format!("cannot write {}", table.display()))?;
            }
            match result {
                Ok(()) => println!("test {name} ... ok, {} s", start.elapsed().as_secs()),
                Err(error) => {
                    good = false;
                    println!("test {name} ... FAILED\n{error:#}");
                }
            }
        }
    }
    Ok(good)
}

/// A machine with stand-ins for the GPU driver and the RDMA core, and packages to install.
fn prepare(words: &Words, layers: &Layers, version: &str, whole: bool) -> Result<Machine> {
    let machine = Machine::new(layers)?;
    let vendor = words.vendor.as_deref().filter(|_| whole);
    stubs::build(&machine, &words.archive, version, whole, vendor)?;
    machine.must(&format!("dpkg -i {} {}", deb("nvidia", NVIDIA[0]), deb("mlnx-ofed-kernel", OFED[0])))?;
    let kernel = machine.kernels()?.pop().context("the machine has no kernel")?;
    match machine.resolved(&kernel)? {
        Resolved::Nvidia(_) => Ok(machine),
        other => bail!("before ours is installed modprobe takes {other}"),
    }
}

/// The same with our package.
fn with_ours(neighbours: &Machine, version: &str) -> Result<Machine> {
    let machine = Machine::new(&neighbours.layers()?)?;
    let said = machine.must(&format!("dpkg -i {}", ours(version))).context("installation of ours")?;
    let kernel = machine.kernels()?.pop().context("the machine has no kernel")?;
    match machine.resolved(&kernel)? {
        Resolved::Ours { fits: true, .. } => Ok(machine),
        other => bail!("after the installation of ours modprobe takes {other}:\n{said}"),
    }
}
