// SPDX-License-Identifier: GPL-2.0
//! The command line. Man page and completions are made from this (examples/generate.rs).

use crate::print::WIDTH;
use clap::{CommandFactory, Parser, Subcommand};
use std::path::PathBuf;

/// Says whether GPUDirect RDMA by nvidia-peermem works on this machine, and if not, why and what fixes it.
#[derive(Parser)]
#[command(
    name = "peermemctl",
    version = include_str!("../../../VERSION").trim_ascii(),
    max_term_width = WIDTH,
    after_help = "Exit codes: 0 fine, 1 warning, 2 broken (or the command failed)."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Print JSON; docs/peermemctl.schema.json describes it
    #[arg(long, global = true)]
    pub json: bool,

    /// Look at the sysfs, procfs and /etc below DIR, such as a tree recorded on another machine
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

#[derive(Subcommand)]
pub enum Command {
    /// Is GPUDirect RDMA usable, yes or no, and why; in a second, without root
    Status,
    /// Every check there is, with evidence and the command that fixes it; complete as root
    Doctor,
    /// Live registrations by process, those of the most bytes first; as root
    List,
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
    /// Which NIC is how near to which GPU, where their ways meet, and ACS
    Topo,
    /// Allocate GPU memory, register it, write to it through the NIC, compare; by peer memory and by dma-buf
    Selftest {
        /// RDMA device to use; the first with an active port without this
        #[arg(long, value_name = "NAME")]
        device: Option<String>,
        /// Number of the GPU, as CUDA counts
        #[arg(long, default_value_t = 0)]
        gpu: i32,
    },
}

/// The parser, for man page and completions.
pub fn parser() -> clap::Command {
    Cli::command()
}
