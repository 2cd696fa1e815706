// SPDX-License-Identifier: GPL-2.0
//! PID 1 of the lab's virtual machine, and the tests that it runs.
//!
//! `/init` (as PID 1) reads `guest.*` from the kernel command line, runs the suites named there,
//! reports KTAP on a serial line of its own and powers off. The same binary is each test's process
//! (`guest test SUITE NAME`) and the second process that some tests need (`guest helper NAME
//! ARGUMENTS`).

mod actor;
mod arch;
mod cmdline;
mod common;
mod complaint;
mod counters;
mod cuda;
mod edu;
mod fuzz;
mod gpu;
mod helper;
mod init;
mod inject;
mod kmsg;
mod ktap;
mod lab;
mod machine;
mod modules;
mod nixl;
mod peer;
mod peermem;
mod perftest;
mod runner;
mod rusage;
mod storm;
mod suites;
mod test;
mod verbs;

use std::process::ExitCode;

use anyhow::{bail, Context, Result};

use arch::KTAP_LINE;
use cmdline::Request;
use ktap::Ktap;
use machine::Generation;
use peer::Role;
use runner::Runner;
use test::{Env, Lacking};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if std::process::id() == 1 {
        // PID 1 must not end, not even by a panic: that would be the kernel's panic.
        match std::panic::catch_unwind(as_init) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => eprintln!("guest: {e:#}"),
            Err(_) => eprintln!("guest: the runner itself panicked"),
        }
        init::power_off();
    }
    match as_child(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if test::wants_other_flavour(&e) => {
            test::skip(&format!("only {} of the GPU driver has this switch", gpu::other_flavour()));
            ExitCode::SUCCESS
        }
        Err(e) => match e.downcast_ref::<Lacking>() {
            Some(why) => {
                test::skip(&why.to_string());
                ExitCode::SUCCESS
            }
            None => {
                test::fail(&e);
                ExitCode::FAILURE
            }
        },
    }
}

fn as_init() -> Result<()> {
    std::env::set_var("PATH", init::PATH);
    init::mount_all()?;
    let cmdline = std::fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let mut ktap = Ktap::open(KTAP_LINE).with_context(|| format!("open {KTAP_LINE}"))?;
    let request = Request::parse(&cmdline).inspect_err(|e| ktap.note(&format!("Bail out! {e:#}")))?;
    if let Err(e) = init::network(Role::of(&request.values)?.address()) {
        ktap.note(&format!("network: {e:#}"));
        return Err(e);
    }
    if request.suites == ["shell"] {
        if let Err(e) = Runner::new(&request, &mut ktap).load_everything() {
            println!("not everything could be loaded: {e:#}");
        }
        return init::shell();
    }
    match suites::chosen(&request) {
        Ok(suites) => {
            let all = Runner::new(&request, &mut ktap).suites(&suites);
            println!("guest: {}", if all { "all suites passed" } else { "FAILED" });
            Ok(())
        }
        Err(e) => {
            ktap.note(&format!("Bail out! {e:#}"));
            Err(e)
        }
    }
}

fn as_child(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [_, "test", suite, name] => {
            let nvidia_c = std::env::var("GUEST_NVIDIA_C").is_ok_and(|v| v == "1");
            let generation = std::env::var("GUEST_GENERATION").context("GUEST_GENERATION")?;
            let generation = Generation::parse(&generation)?;
            let values = std::env::var("GUEST_VALUES").unwrap_or_else(|_| "{}".into());
            let values = serde_json::from_str(&values).context("GUEST_VALUES")?;
            let mut env = Env { mode: None, generation, nvidia_c, values };
            runner::run_one(&suites::all(nvidia_c), suite, name, &mut env)
        }
        // The host asks for the scenario table.
        [_, "table"] => {
            println!("{}", suites::scenarios::table_for_the_host(&suites::all(false)));
            Ok(())
        }
        [_, "helper", name, rest @ ..] => helper::run(name, rest),
        _ => bail!("usage: guest test SUITE NAME | guest helper NAME [ARGUMENTS] | guest table; as PID 1: see tests/guest/README.md"),
    }
}
