// SPDX-License-Identifier: GPL-2.0

//! The lab builds a virtual machine in which nvidia-peermem meets real rdma-core and perftest, runs
//! it, and judges the results. `make demo`, `make test` and `make shell` call it.

mod arm64;
mod boots;
mod demo;
mod host;
mod judge;
mod keep;
mod lanes;
mod later;
mod pair;
mod planted;
mod programs;
mod scenarios;
mod soak;
mod suite;
mod verdict;

use anyhow::Result;
use clap::{Parser, Subcommand};
use keep::Keep;
use lab::arch::{Arch, Iommu};
use lab::axes::{Also, Kernel, Module, Run};
use lab::ctx::Lab;
use lab::machine::Boot;
use lab::{artefacts, sh};
use std::process::ExitCode;

/// Builds and runs the virtual machine in which nvidia-peermem is shown and tested.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Fetch and build everything, and make the machine's image.
    Build {
        #[arg(long, value_enum, default_value_t = Kernel::debug())]
        kernel: Kernel,
        /// Further targets of ci/qemu/artefacts.mk to build.
        targets: Vec<String>,
    },
    /// Move bytes by RDMA between two processes with GPU memory and check each byte; print a table
    /// and `demo: PASS`.
    Demo {
        /// Use NVIDIA's C module in place of ours.
        #[arg(long)]
        nvidia_c: bool,
        /// The kernel: Debian's own, for this machine's architecture or for arm64, or the lab's,
        /// which has every alarm on.
        #[arg(long, value_enum)]
        kernel: Option<Kernel>,
    },
    /// Run host tests, lint gates and every guest suite; end with `N passed, N failed`.
    Test {
        /// Use NVIDIA's C module in place of ours; run guest suites only, and record differences
        /// without judging them.
        #[arg(long)]
        nvidia_c: bool,
        /// Run only these, separated by commas: what ci/qemu/README.md lists for ONLY=.
        #[arg(long)]
        only: Option<String>,
    },
    /// Run what takes hours; end with `soak: PASS`, and leave build/soak.json and
    /// docs/results/soak.md.
    Soak {
        /// Run only these, separated by commas: what ci/qemu/README.md lists for ONLY=.
        #[arg(long)]
        only: Option<String>,
        /// Repeat for this many hours, with new seeds in each round.
        #[arg(long)]
        hours: Option<f64>,
        /// The seed of the boots, as an earlier run printed it. Later rounds, and runs without it,
        /// use a new one.
        #[arg(long)]
        seed: Option<u32>,
    },
    /// Try the scenario table with our module and with NVIDIA's; write docs/results/scenarios.md.
    Scenarios,
    /// List the boots with their seconds, runs and suites.
    Boots {
        /// List only these: names, first axes or patterns, separated by commas.
        #[arg(long)]
        only: Option<String>,
    },
    /// Open a prompt in the machine with everything loaded.
    Shell {
        #[arg(long)]
        nvidia_c: bool,
        #[arg(long, default_value_t = 1)]
        gpus: u32,
        #[arg(long, default_value_t = 1)]
        nics: u32,
        #[arg(long, value_enum, default_value = "off")]
        iommu: Iommu,
        #[arg(long, value_enum, default_value_t = Kernel::debug())]
        kernel: Kernel,
        /// Further words for the kernel's command line.
        #[arg(last = true)]
        append: Vec<String>,
    },
    /// Take an artefact from the cache or build it; ci/qemu/artefacts.mk calls this.
    Keep(Keep),
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all was well. An error says what kept the lab from finding out.
fn run(args: Args) -> Result<bool> {
    let lab = Lab::locate()?;
    sh::clean_environment(&lab);
    match args.command {
        Cmd::Build { kernel, targets } => {
            let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
            let ours = (Module::Ours, Also::Nothing);
            println!("{}", lab.short(&artefacts::build(&lab, kernel, &[ours], &targets)?.image(ours)));
            Ok(true)
        }
        Cmd::Demo { nvidia_c, kernel } => demo::run(&lab, module(nvidia_c), kernel.unwrap_or_else(Kernel::debian)),
        Cmd::Test { nvidia_c, only } => {
            suite::run(&lab, if nvidia_c { Run::NvidiaC } else { Run::Test }, only.as_deref())
        }
        Cmd::Soak { only, hours, seed } => soak::run(&lab, only.as_deref(), hours, seed),
        Cmd::Scenarios => scenarios::run(&lab),
        Cmd::Boots { only } => {
            print!("{}", boots::list(&boots::all()?, Arch::host(), only.as_deref()));
            Ok(true)
        }
        Cmd::Shell { nvidia_c, gpus, nics, iommu, kernel, append } => {
            let kind = (module(nvidia_c), Also::Nothing);
            let built = artefacts::build(&lab, kernel, &[kind], &[])?;
            let mut boot = Boot { gpus, nics, iommu, append, ..Boot::new("shell", "shell") };
            boot.append.extend(module(nvidia_c).word(kernel));
            boot.shell(&lab, &built, kind)
        }
        Cmd::Keep(keep) => keep.run(&lab).map(|()| true).inspect_err(artefacts::remember),
    }
}

fn module(nvidia_c: bool) -> Module {
    if nvidia_c {
        Module::NvidiaC
    } else {
        Module::Ours
    }
}
