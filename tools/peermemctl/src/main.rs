// SPDX-License-Identifier: GPL-2.0
//! peermemctl: status and doctor of GPUDirect RDMA by nvidia-peermem.

use anyhow::{bail, Context, Result};
use clap::Parser;
use peermemctl::answer::{self, Answer, Document, Failed, Output, FORMAT};
use peermemctl::cli::{Cli, Command};
use peermemctl::machine::Machine;
use peermemctl::peermem::{Stats, DIR, KNOW_IT, UNKNOWN};
use peermemctl::print;
use peermemctl::root::{Missing, Root};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // A program that reads JSON finds the reason where it reads.
            if cli.json {
                let _ = json(&cli, &Document::Failed(Failed { format: FORMAT, error: format!("{error:#}") }))
                    .and_then(|text| write(&text));
            }
            let _ = anstream::stderr().write_all(print::failed(&error).as_bytes());
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<u8> {
    if !cli.root.is_dir() {
        bail!("--root {}: no such directory", cli.root.display());
    }
    let root = Root::new(&cli.root);
    if let Command::Watch { interval, count } = cli.command {
        return watch(cli, &root, Duration::from_secs(interval), count);
    }
    let answer = match &cli.command {
        Command::Status => Answer::Status(Box::new(answer::status(&Machine::look(&root)))),
        Command::Doctor => {
            let mut machine = Machine::look(&root);
            machine.ask_tools();
            Answer::Doctor(peermemctl::doctor::examine(&machine))
        }
        Command::List => Answer::List(answer::list(&root)?),
        Command::Failures => Answer::Failures(answer::failures(&root)?),
        Command::Topo => Answer::Topo(answer::topo(&Machine::look(&root))),
        Command::Selftest { device, gpu } => {
            if !root.is_live() {
                bail!("selftest works on this machine only, not on a recorded tree");
            }
            Answer::Selftest(peermemctl::selftest::run(&Machine::look(&root), device.as_deref(), *gpu)?)
        }
        Command::Watch { .. } => unreachable!("answered above"),
    };
    let code = answer.exit_code();
    show(cli, answer)?;
    Ok(code)
}

/// A JSON document: of `watch` one per line.
fn json(cli: &Cli, document: &Document) -> Result<String> {
    let text = match cli.command {
        Command::Watch { .. } => serde_json::to_string(document),
        _ => serde_json::to_string_pretty(document),
    };
    Ok(text.context("make JSON")? + "\n")
}

/// Writes to stdout. A reader that has gone away (`| head`) is no error, but `false`.
fn write(text: &str) -> Result<bool> {
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).context("print"),
    }
}

/// Prints an answer; `false` if nobody reads any more.
fn show(cli: &Cli, answer: Answer) -> Result<bool> {
    match cli.json {
        true => write(&json(cli, &Document::Output(Output { format: FORMAT, answer }))?),
        false => write(&print::text(&answer)),
    }
}

fn watch(cli: &Cli, root: &Root, interval: Duration, count: Option<u64>) -> Result<u8> {
    const HEAD_EVERY: u64 = 20;
    let mut before: Option<(Stats, Instant)> = None;
    let mut code = 0;
    for round in 0u64.. {
        if count.is_some_and(|count| round >= count) {
            break;
        }
        if round > 0 {
            std::thread::sleep(interval);
        }
        let stats = match Stats::read(root) {
            Ok(stats) => stats,
            Err(Missing::Unknown) => bail!("{UNKNOWN}; {KNOW_IT}"),
            Err(_) => bail!("there is no {DIR}/stats: nvidia_peermem is not loaded, or is not this project's"),
        };
        let now = Instant::now();
        let tick = answer::tick(&stats, before.as_ref().map(|(old, then)| (old, (now - *then).as_secs_f64())));
        if !cli.json && round % HEAD_EVERY == 0 && !write(&print::watch_head())? {
            break;
        }
        let answer = Answer::Watch(tick);
        code = code.max(answer.exit_code());
        if !show(cli, answer)? {
            break;
        }
        before = Some((stats, now));
    }
    Ok(code)
}
