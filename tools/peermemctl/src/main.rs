// SPDX-License-Identifier: GPL-2.0
//! peermemctl: status and doctor of GPUDirect RDMA by nvidia-peermem.

use anyhow::{bail, Context, Result};
use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use peermemctl::answer::{self, Answer, Document, Failed, Output, Status, Wanted, FORMAT};
use peermemctl::cli::{Cli, Command};
use peermemctl::doctor;
use peermemctl::environment::Environment;
use peermemctl::machine::Machine;
use peermemctl::peermem::{self, Stats, DIR, KNOW_IT, UNKNOWN};
use peermemctl::print::{self, Detail, Page};
use peermemctl::root::{Missing, Root};
use peermemctl::{metrics, picture, recorded, select, selftest, verify};
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    // The shell asks what may follow.
    CompleteEnv::with_factory(Cli::command).complete();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // A program that reads JSON finds the reason where it reads.
            if cli.json {
                let _ = json(&cli, &Document::Failed(Failed { format: FORMAT, error: format!("{error:#}") }))
                    .and_then(|text| write(&text));
            }
            let _ = anstream::stderr().write_all(Page::new(Detail::Normal).failed(&error).as_bytes());
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<u8> {
    let root = recorded::open(&cli.root)?;
    let own = || Environment::own(&root);
    let answer = match &cli.command {
        Command::Watch { interval, count } => return watch(cli, &root, Duration::from_secs(*interval), *count),
        Command::Status { programs } => Answer::Status(Box::new(status(&root, &programs.asked))),
        Command::Check { plugin, programs } => return check(cli, status(&root, &programs.asked), *plugin),
        Command::Metrics { output, programs } => {
            let mut machine = Machine::look(&root);
            machine.ask_tools();
            let text = metrics::text(&machine, &doctor::examine(&machine, &own(), &programs.asked))?;
            match output {
                Some(file) => metrics::write(&text, file)?,
                None => drop(write(&text)?),
            }
            return Ok(0);
        }
        Command::Record { anonymous, about } => {
            let text = recorded::record(&root, about);
            let host = root.line("/proc/sys/kernel/hostname").unwrap_or_default();
            write(&if *anonymous { recorded::anonymous::anonymous(&text, &host) } else { text })?;
            return Ok(0);
        }
        Command::Doctor { pid, launched, programs, .. } => {
            let environment = match (pid, launched.as_slice()) {
                (Some(pid), _) => Environment::of_process(&root, *pid)?,
                (None, []) => own(),
                (None, words) => Environment::of_command(&root, words),
            };
            let mut machine = Machine::look(&root);
            machine.ask_tools();
            Answer::Doctor(Box::new(doctor::examine(&machine, &environment, &programs.asked)))
        }
        Command::List { pid, gpu, nic } => Answer::List(answer::list(&root, &wanted(&root, *pid, gpu, nic)?)?),
        Command::Failures => Answer::Failures(answer::failures(&root)?),
        Command::Topo { svg, .. } => {
            let topo = answer::topo(&Machine::look(&root));
            if *svg {
                write(&picture::of(&topo))?;
                return Ok(0);
            }
            Answer::Topo(topo)
        }
        Command::Matrix { svg, gpu, nic } => {
            let matrix = verify::matrix(&root, gpu.as_deref(), nic.as_deref())?;
            if *svg {
                let code = matrix.outcome().exit_code();
                write(&picture::of_matrix(&matrix))?;
                return Ok(code);
            }
            Answer::Matrix(matrix)
        }
        Command::Selftest { gpu, nic, bandwidth } => {
            if !root.is_live() {
                bail!("selftest works on this machine only, not on a recorded one");
            }
            let wanted = selftest::Wanted { gpu: gpu.as_deref(), nic: nic.as_deref(), bandwidth: *bandwidth };
            Answer::Selftest(selftest::run(&Machine::look(&root), &wanted)?)
        }
        Command::Verify(asked) => return verified(cli, &root, asked),
        Command::Explain { id } => Answer::Explain(answer::explain(id.as_deref())?),
    };
    let code = answer.exit_code();
    show(cli, answer)?;
    Ok(code)
}

/// Runs `verify`, shows what it found, which its report has as well, and returns the exit code.
fn verified(cli: &Cli, root: &Root, asked: &peermemctl::cli::Verify) -> Result<u8> {
    if !root.is_live() {
        bail!("verify works on this machine only, not on a recorded one");
    }
    let wanted = asked.wanted();
    if let Some(kind) = &asked.process {
        return verify::process(root, kind, &wanted);
    }
    let (found, report) = verify::run(root, &wanted)?;
    let answer = Answer::Verify(Box::new(found));
    let code = answer.exit_code();
    show(cli, answer)?;
    eprintln!("report: {}", report.map_or("none".into(), |path| path.display().to_string()));
    Ok(code)
}

fn status(root: &Root, asked: &[String]) -> Status {
    let mut machine = Machine::look(root);
    machine.ask_tools();
    let report = doctor::examine(&machine, &Environment::own(root), asked);
    answer::status(&machine, report)
}

/// Prints the verdict in one line and returns it as the exit code.
fn check(cli: &Cli, status: Status, plugin: bool) -> Result<u8> {
    let code = match plugin {
        true => status.outcome.plugin_code(),
        false => status.outcome.exit_code(),
    };
    match cli.json {
        true => drop(show(cli, Answer::Status(Box::new(status)))?),
        false => drop(write(&format!("GPUDirect RDMA: {}\n", status.verdict))?),
    }
    Ok(code)
}

/// Returns which registrations `list` is asked for. Looks at the rest of the machine only if that
/// is needed.
fn wanted(root: &Root, pid: Option<u32>, gpu: &Option<String>, nic: &Option<String>) -> Result<Wanted> {
    if gpu.is_none() && nic.is_none() {
        return Ok(Wanted { pid, ..Wanted::default() });
    }
    let machine = Machine::look(root);
    let gpu = gpu.as_ref().map(|text| select::gpu(&machine, text)).transpose()?;
    let nic = nic.as_ref().map(|text| select::nic(&machine, text)).transpose()?;
    let nic = nic.map(|nic| nic.pci.clone().with_context(|| format!("{} has no PCI address", nic.name))).transpose()?;
    Ok(Wanted { pid, gpu: gpu.map(|gpu| gpu.address.clone()), nic })
}

/// Returns a JSON document on one line, or on several.
fn json(cli: &Cli, document: &Document) -> Result<String> {
    let text = match cli.pretty {
        false => serde_json::to_string(document),
        true => serde_json::to_string_pretty(document),
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

/// Returns how much of the answer is told as text.
fn detail(cli: &Cli) -> Detail {
    match &cli.command {
        Command::Doctor { more, .. } => more.detail(),
        Command::Topo { verbose: true, .. } => Detail::Verbose,
        _ => Detail::Normal,
    }
}

/// Prints an answer. Returns `false` if nobody reads any more.
fn show(cli: &Cli, answer: Answer) -> Result<bool> {
    match cli.json {
        true => write(&json(cli, &Document::Output(Output { format: FORMAT, answer }))?),
        false => write(&Page::new(detail(cli)).show(&answer)),
    }
}

fn watch(cli: &Cli, root: &Root, interval: Duration, count: Option<u64>) -> Result<u8> {
    const HEAD_EVERY: u64 = 20;
    const BARS: usize = 9;
    let mut before: Option<(Stats, Instant)> = None;
    let mut recent = VecDeque::new();
    let mut code = 0;
    for round in 0u64.. {
        if count.is_some_and(|count| round >= count) {
            break;
        }
        if round > 0 {
            std::thread::sleep(interval);
        }
        let stats = match peermem::stats(root) {
            Ok(stats) => stats,
            Err(Missing::Unknown) => bail!("{UNKNOWN}; {KNOW_IT}"),
            Err(_) => bail!("there is no {DIR}/stats: nvidia_peermem is not loaded, or is not this project's"),
        };
        let now = Instant::now();
        let mut tick = answer::tick(&stats, before.as_ref().map(|(old, then)| (old, (now - *then).as_secs_f64())));
        recent.push_back(tick.pins_per_second);
        if recent.len() > BARS {
            recent.pop_front();
        }
        tick.recent = recent.iter().copied().collect();
        if !cli.json && round % HEAD_EVERY == 0 && !write(&print::watch_head(Page::new(Detail::Normal)))? {
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
