// SPDX-License-Identifier: GPL-2.0
//! `verify`, `matrix` and `selftest` on a recorded machine, whose GPU and NIC are stand-ins of libcuda
//! and libibverbs (tests/stand-ins): for tests/verify.rs. The program itself refuses that.

use anyhow::{bail, Result};
use clap::Parser;
use peermemctl::answer::{Answer, Output, FORMAT};
use peermemctl::cli::{Cli, Command};
use peermemctl::machine::Machine;
use peermemctl::{recorded, selftest, verify};
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let root = recorded::open(&cli.root)?;
    let answer = match &cli.command {
        Command::Verify(asked) => {
            let wanted = asked.wanted();
            if let Some(kind) = &asked.process {
                return Ok(ExitCode::from(verify::process(&root, kind, &wanted)?));
            }
            Answer::Verify(Box::new(verify::run(&root, &wanted)?.0))
        }
        Command::Matrix { gpu, nic, .. } => {
            Answer::Matrix(verify::measured(&Machine::look(&root), gpu.as_deref(), nic.as_deref())?)
        }
        Command::Selftest { gpu, nic, bandwidth } => {
            let wanted = selftest::Wanted { gpu: gpu.as_deref(), nic: nic.as_deref(), bandwidth: *bandwidth };
            Answer::Selftest(selftest::run(&Machine::look(&root), &wanted)?)
        }
        _ => bail!("verify, matrix or selftest"),
    };
    let code = answer.exit_code();
    println!("{}", serde_json::to_string(&Output { format: FORMAT, answer })?);
    Ok(ExitCode::from(code))
}
