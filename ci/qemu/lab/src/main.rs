//! The lab: builds a virtual machine in which nvidia-peermem meets real rdma-core and perftest, runs it, and judges what
//! came out. `make demo`, `make test` and `make shell` call it.

mod alarms;
mod apt;
mod bench;
mod boots;
mod cargo;
mod consumers;
mod ctx;
mod demo;
mod fetch;
mod host;
mod image;
mod judge;
mod kernel;
mod key;
mod ktap;
mod lanes;
mod lock;
mod machine;
mod pair;
mod parts;
mod program;
mod ready;
mod scenarios;
mod sh;
mod soak;
mod stock;
mod suite;

use anyhow::Result;
use boots::Run;
use clap::{Parser, Subcommand};
use ctx::Lab;
use image::{Module, More};
use kernel::Flavour;
use machine::{Boot, Iommu};
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
        #[arg(long, value_enum, default_value = "debug")]
        flavour: Flavour,
    },
    /// RDMA between two processes with GPU memory, proven byte for byte; a table and `demo: PASS`.
    Demo {
        /// NVIDIA's C module in place of ours.
        #[arg(long)]
        rival: bool,
        /// The kernel: Debian's own, or the lab's with every alarm on.
        #[arg(long, value_enum, default_value = "stock")]
        flavour: Flavour,
    },
    /// Host tests, lint gates and every guest suite; ends with `N passed, N failed`.
    Test {
        /// NVIDIA's C module in place of ours; guest suites only, what differs is recorded, not judged.
        #[arg(long)]
        rival: bool,
        /// Only these: host, lint, suites of the guest, boots of the table; commas between.
        #[arg(long)]
        only: Option<String>,
        /// So many jobs beside each other, instead of one for each processor and at most two.
        #[arg(long)]
        lanes: Option<usize>,
    },
    /// What takes hours; ends with `soak: PASS`, and leaves build/soak.json and docs/results/soak.md.
    Soak {
        /// Only these: models, suites of the guest, boots of the table; commas between.
        #[arg(long)]
        only: Option<String>,
        /// Round after round with new seeds, until so many hours are over.
        #[arg(long)]
        hours: Option<f64>,
        /// Of the boots, as an earlier run printed it; without it, or in later rounds, a new one.
        #[arg(long)]
        seed: Option<u32>,
        /// So many jobs beside each other, instead of one for each processor and at most two.
        #[arg(long)]
        lanes: Option<usize>,
    },
    /// The scenario table against ours and against NVIDIA's module; writes build/scenarios.json and docs/results/scenarios.md.
    Scenarios {
        /// Boots beside each other.
        #[arg(long)]
        lanes: Option<usize>,
    },
    /// Ours beside NVIDIA's C module, measured: a table, build/bench.json and the plots.
    Bench {
        /// Boots nothing: writes the tables and plots under docs/ from build/bench.json.
        #[arg(long)]
        docs: bool,
    },
    /// A prompt in the machine with everything loaded.
    Shell {
        #[arg(long)]
        rival: bool,
        #[arg(long, default_value_t = 1)]
        gpus: u32,
        #[arg(long, default_value_t = 1)]
        nics: u32,
        #[arg(long, value_enum, default_value = "off")]
        iommu: Iommu,
        #[arg(long, value_enum, default_value = "debug")]
        flavour: Flavour,
        /// More of the kernel's command line.
        #[arg(last = true)]
        append: Vec<String>,
    },
    /// Remove what the lab built in this checkout; the cache stays.
    Clean,
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

/// Says whether all was well; an error is what kept it from finding out.
fn run(args: Args) -> Result<bool> {
    let lab = Lab::locate()?;
    match args.command {
        Cmd::Build { flavour } => {
            println!("{}", lab.short(&ready::prepare(&lab, flavour)?.image(&lab, (Module::Ours, More::Nothing))?));
            Ok(true)
        }
        Cmd::Demo { rival, flavour } => demo::run(&lab, module(rival), flavour),
        Cmd::Test { rival, only, lanes } => {
            let run = if rival { Run::Rival } else { Run::Test };
            suite::run(&lab, run, only.as_deref(), lanes.unwrap_or_else(lanes::default))
        }
        Cmd::Soak { only, hours, seed, lanes } => {
            soak::run(&lab, only.as_deref(), hours, seed, lanes.unwrap_or_else(lanes::default))
        }
        Cmd::Scenarios { lanes } => scenarios::run(&lab, lanes.unwrap_or_else(lanes::default)),
        Cmd::Bench { docs: true } => bench::docs(&lab),
        Cmd::Bench { docs: false } => bench::run(&lab),
        Cmd::Shell { rival, gpus, nics, iommu, flavour, append } => {
            let ready = ready::prepare(&lab, flavour)?;
            let image = ready.image(&lab, (module(rival), More::Nothing))?;
            let mut boot = Boot { gpus, nics, iommu, append, ..Boot::new("shell", "shell") };
            boot.append.extend(module(rival).word(flavour));
            boot.shell(&lab, &ready.kernel, &image)?;
            Ok(true)
        }
        Cmd::Clean => {
            if lab.build.exists() {
                std::fs::remove_dir_all(&lab.build)?;
            }
            Ok(true)
        }
    }
}

fn module(rival: bool) -> Module {
    if rival {
        Module::Rival
    } else {
        Module::Ours
    }
}
