// SPDX-License-Identifier: GPL-2.0
//! The command line. Man pages and completions are made from this (examples/generate.rs).

use crate::complete;
use crate::doctor;
use crate::manual;
use crate::print::{Detail, WIDTH};
use crate::verify::ways::WayWord;
use crate::verify::Wanted;
use crate::VERSION;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::ArgValueCandidates;
use std::path::PathBuf;
use std::time::Duration;

/// The end of the text that --help prints.
const AFTER_HELP: &str = "Exit codes of status, doctor and check: 0 usable, 1 usable with warnings, 2 not usable (or the command failed), 3 unknown. \
    Of check --plugin: 0 usable, 1 not usable, 2 unknown. Of verify and matrix: as of check, by what was tried; \
    of verify --module: 0 all held, 1 something was not tried, 2 something does not hold, 3 the machine lacks what it needs. Of the others: 0 fine, 1 warning, 2 broken (or the command failed).";

/// Says whether GPUDirect RDMA works on this machine by peer memory (nvidia-peermem) or by dma-buf,
/// and if not, why and what fixes it.
#[derive(Parser)]
#[command(
    name = "peermemctl",
    version = VERSION,
    max_term_width = WIDTH,
    after_help = AFTER_HELP
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Print JSON; share/peermemctl/peermemctl.schema.json describes it
    #[arg(short, long, global = true)]
    pub json: bool,

    /// With -j: print it over several lines
    #[arg(short, long, global = true)]
    pub pretty: bool,

    /// Look at another machine: a FILE that record wrote, or a folder with its sysfs, procfs and
    /// /etc
    #[arg(long, global = true, value_name = "FILE", default_value = "/", env = complete::ROOT)]
    pub root: PathBuf,
}

#[derive(Subcommand)]
pub enum Command {
    /// Is GPUDirect RDMA usable, by which ways, and why not; in a moment, without root
    #[command(after_help = exit_codes("status"))]
    Status {
        #[command(flatten)]
        programs: Programs,
    },
    /// Every check there is, with evidence and the command that fixes it; complete as root
    #[command(after_help = exit_codes("doctor"))]
    Doctor {
        #[command(flatten)]
        more: More,
        #[command(flatten)]
        programs: Programs,
        /// Judge what applications do by the environment of this process
        #[arg(long, value_name = "PID", conflicts_with = "launched", add = ArgValueCandidates::new(complete::processes))]
        pid: Option<u32>,
        /// Judge it by the environment that this command line would have, such as mpirun -x
        /// NCCL_IB_HCA=mlx5_0 ./app; it is not run
        #[arg(last = true, value_name = "COMMAND")]
        launched: Vec<String>,
    },
    /// Live registrations by process, those of the most bytes first; as root
    List {
        /// Only those of this process
        #[arg(long, add = ArgValueCandidates::new(complete::registrants))]
        pid: Option<u32>,
        /// Only those of this GPU, by index or address
        #[arg(long, add = ArgValueCandidates::new(complete::gpus))]
        gpu: Option<String>,
        /// Only those of this NIC, by name, index or address
        #[arg(long, add = ArgValueCandidates::new(complete::nics))]
        nic: Option<String>,
    },
    /// Live view of the counters with rates, until interrupted
    Watch {
        /// Seconds between two lines
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        interval: u64,
        /// Stop after this many lines
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// The last 64 refused registrations and why; as root
    Failures,
    /// How near each NIC is to each GPU, the best NIC for each, ACS and IOMMU
    Topo {
        /// Print a picture (SVG)
        #[arg(long, conflicts_with = "json")]
        svg: bool,
        /// Tell the bridges on each way, too
        #[arg(short, long)]
        verbose: bool,
    },
    /// Each GPU with each NIC: the way, how near, the bandwidth by each way against what the link can
    /// do, and NCCL's choice
    #[command(after_help = exit_codes("matrix"))]
    Matrix {
        /// Print a picture (SVG)
        #[arg(long, conflicts_with = "json")]
        svg: bool,
        /// Only those of this GPU, by index or address
        #[arg(long, add = ArgValueCandidates::new(complete::gpus))]
        gpu: Option<String>,
        /// Only those of this NIC, by name, index or address
        #[arg(long, add = ArgValueCandidates::new(complete::nics))]
        nic: Option<String>,
    },
    /// Allocate GPU memory, register it, write to it through the NIC, compare; by peer memory and
    /// by dma-buf
    Selftest {
        /// GPU to use, by index or address; the first without this
        #[arg(long, add = ArgValueCandidates::new(complete::gpus))]
        gpu: Option<String>,
        /// NIC to use, by name, index or address; the first with an active port without this
        #[arg(long, add = ArgValueCandidates::new(complete::nics))]
        nic: Option<String>,
        /// Measure the bandwidth, too: registers 16 MiB and moves them for about a second each way
        #[arg(long)]
        bandwidth: bool,
    },
    /// Try each way of registering with each GPU and NIC: compare bytes, free, measure, within a
    /// minute; write a report; without root
    #[command(after_help = exit_codes("verify"))]
    Verify(Box<Verify>),
    /// For scripts: the verdict in one line, and as the exit code
    #[command(after_help = exit_codes("check"))]
    Check {
        #[command(flatten)]
        programs: Programs,
        /// Exit as Node Problem Detector expects of a plugin: 0 usable (with warnings or without), 1 not
        /// usable, 2 unknown or the command failed; serves a prolog of Slurm, too
        #[arg(long)]
        plugin: bool,
    },
    /// Counters and verdicts in Prometheus' text format, for node_exporter's textfile collector;
    /// complete as root
    Metrics {
        #[command(flatten)]
        programs: Programs,
        /// Write to this file, in one step
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Write down all that this program looks at, for --root elsewhere; complete as root
    Record {
        /// Leave out names of hosts, users and programs, and addresses of the network
        #[arg(long)]
        anonymous: bool,
        /// What is wrong with this machine
        about: String,
    },
    /// What a check looks at and why it matters; without an id: all of them
    Explain {
        /// Such as api.exported
        #[arg(add = ArgValueCandidates::new(complete::checks))]
        id: Option<String>,
    },
}

/// Whom the verdict is for.
#[derive(Args)]
pub struct Programs {
    /// Usable means that each of these programs has a way: verbs (those that call ibv_reg_mr()
    /// themselves, such as perftest and MPI), nccl, gin, sharp, ucx, nixl, nvshmem, deepep, libfabric,
    /// mooncake. Without this, one way is enough
    #[arg(long = "for", value_name = "PROGRAMS", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(doctor::ways::programs()))]
    pub asked: Vec<String>,
}

/// What `verify` does.
#[derive(Args)]
pub struct Verify {
    /// Try these ways only; without this each one that exists
    #[arg(long, value_name = "WAYS", value_delimiter = ',', value_enum, conflicts_with = "module")]
    pub way: Vec<WayWord>,
    /// Take 10 seconds at most: fewer registrations, no bandwidth, no free
    #[arg(long, conflicts_with = "module")]
    pub quick: bool,
    /// GPU to use, by index or address; without this all, with --module the first
    #[arg(long, add = ArgValueCandidates::new(complete::gpus))]
    pub gpu: Option<String>,
    /// NIC to use, by name, index or address; without this all that have an active port, with --module
    /// the first
    #[arg(long, add = ArgValueCandidates::new(complete::nics))]
    pub nic: Option<String>,
    /// Test nvidia_peermem in depth instead, with one GPU and one NIC: processes, a storm, unloading,
    /// both kinds of pins; best as root
    #[arg(long)]
    pub module: bool,
    /// Only the checks whose names begin so, such as bytes,free.traffic
    #[arg(long, value_name = "CHECKS", value_delimiter = ',', requires = "module", add = ArgValueCandidates::new(complete::verifications))]
    pub only: Vec<String>,
    /// Seconds that the storm takes, each time
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "module")]
    pub storm: u64,
    /// Repeat what was random in the run with this seed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Test this module file afterwards, such as NVIDIA's own, in place of the loaded module; its
    /// failures do not count
    #[arg(long, value_name = "FILE", requires = "module", value_hint = clap::ValueHint::FilePath)]
    pub compare: Option<PathBuf>,
    /// Load and unload nvidia_peermem without asking
    #[arg(long, requires = "module")]
    pub yes: bool,
    /// Write the report to this new file; without it: peermemctl-verify-TIME.txt in this folder, or where
    /// temporary files go
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Be a process that a check needs
    #[arg(long, hide = true)]
    pub process: Option<String>,
    /// What machine this is, for those who read the report
    #[arg(default_value = "")]
    pub about: String,
}

impl Verify {
    /// Returns what the command line asks for.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted {
            module: self.module,
            ways: &self.way,
            quick: self.quick,
            gpu: self.gpu.as_deref(),
            nic: self.nic.as_deref(),
            only: &self.only,
            storm: Duration::from_secs(self.storm),
            seed: self.seed,
            compare: self.compare.clone(),
            yes: self.yes,
            report: self.report.clone(),
            about: &self.about,
        }
    }
}

/// How much is told.
#[derive(Args)]
pub struct More {
    /// Problems only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Everything: each device by itself, with what was read
    #[arg(short, long)]
    pub verbose: bool,
}

impl More {
    pub fn detail(&self) -> Detail {
        match (self.quiet, self.verbose) {
            (true, _) => Detail::Quiet,
            (_, true) => Detail::Verbose,
            _ => Detail::Normal,
        }
    }
}

/// Returns the parser, from which man pages and completions are made.
pub fn parser() -> clap::Command {
    Cli::command()
}

/// Returns what a command exits with, as its manual page says.
fn exit_codes(command: &str) -> String {
    let codes =
        manual::exit_status(command).iter().map(|(code, what)| format!("{code} {}", what.trim_end_matches('.')));
    format!("Exit codes: {}.", codes.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_takes_ten_minutes_unless_another_time_is_given() {
        let seconds = |words: &[&str]| {
            let found = parser().try_get_matches_from([&["peermemctl", "verify", "--module"], words].concat()).unwrap();
            found.subcommand_matches("verify").unwrap().get_one::<u64>("storm").copied()
        };
        assert_eq!(seconds(&[]), Some(600));
        assert_eq!(seconds(&["--storm", "60"]), Some(60));
    }
}
