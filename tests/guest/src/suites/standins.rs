// SPDX-License-Identifier: GPL-2.0
//! Runs the stand-ins' own tests, which are programs (ci/qemu/gpu/client, ci/qemu/cuda). They test
//! that the lab's GPU behaves as the reference pages say. The results of all other suites rest on
//! that.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::machine::{self, Level, RDMA_DEVICE};
use crate::modules;
use crate::test::{Env, NvidiaC, Suite, Test};

pub fn suite() -> Suite {
    let tests = [
        ("cuda_is_as_documented", cuda_is_as_documented as fn(&Env) -> Result<()>),
        ("gpu_driver_is_as_documented", gpu_driver_is_as_documented),
    ];
    let means = NvidiaC::Skip("it asks nothing of nvidia-peermem");
    Suite {
        name: "standins",
        tests: tests.into_iter().map(|(name, f)| Test::new(name, Level::Devices, f).nvidia_c(means)).collect(),
    }
}

fn cuda_is_as_documented(_: &Env) -> Result<()> {
    passes("cuda-selftest", &[])
}

/// Its last case leaves tables that the provider lost. Unloading the module gives them back.
fn gpu_driver_is_as_documented(_: &Env) -> Result<()> {
    modules::modprobe("nvlab_gdr", &[])?;
    let passed = passes("nvlab-selftest", &[&machine::pci_function(RDMA_DEVICE)?]);
    machine::unload_devices()?;
    passed
}

/// Runs each case of a program that prints KTAP.
fn passes(program: &str, args: &[&str]) -> Result<()> {
    let out = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    let said = String::from_utf8_lossy(&out.stdout);
    print!("{said}{}", String::from_utf8_lossy(&out.stderr));
    let bad = complaints(&said);
    ensure!(bad.is_empty(), "{program}: {}", bad.join("\n"));
    ensure!(out.status.success(), "{program}: {}", out.status);
    Ok(())
}

/// Returns the cases that failed, and those of the plan that did not report.
fn complaints(said: &str) -> Vec<String> {
    let results = || said.lines().filter(|l| l.starts_with("ok ") || l.starts_with("not ok "));
    let plan = said.lines().find_map(|l| l.strip_prefix("1..")?.parse::<usize>().ok());
    let mut bad: Vec<String> = results().filter(|l| l.starts_with("not ")).map(str::to_string).collect();
    if plan.is_none_or(|n| n == 0 || n != results().count()) {
        bad.push(format!("{} results of {plan:?} cases", results().count()));
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn a_case_that_failed_or_is_missing() {
        assert!(complaints("KTAP version 1\n1..2\nok 1 a\n# a note\nok 2 b\n").is_empty());
        assert_eq!(complaints("1..2\n# why\nnot ok 1 a\nok 2 b\n"), ["not ok 1 a"]);
        assert_eq!(complaints("1..2\nok 1 a\n"), ["1 results of Some(2) cases"]);
        assert_eq!(complaints("1..0\n").len(), 1);
        assert_eq!(complaints("").len(), 1);
    }
}
