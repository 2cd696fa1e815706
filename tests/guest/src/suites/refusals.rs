// SPDX-License-Identifier: GPL-2.0
//! Loads the module where something is missing or wrong. The module stays out, and one line says
//! why and what to do.

use anyhow::{bail, ensure, Context, Result};

use crate::common::{Bench, MIB};
use crate::lab;
use crate::machine::{self, Level};
use crate::modules::{self, Outcome, PEERMEM};
use crate::test::{skip, Env, NvidiaC, Suite, Test};

pub fn suite() -> Suite {
    let tests = [
        ("no_rdma_stack", Level::Bare, no_rdma_stack as fn(&Env) -> Result<()>),
        ("no_uverbs", Level::Bare, no_uverbs),
        ("mainline_rdma_stack", Level::Bare, mainline_rdma_stack),
        ("no_gpu_driver", Level::Bare, no_gpu_driver),
        ("both_neighbours_missing", Level::Bare, both_neighbours_missing),
        ("name_taken", Level::Devices, name_taken),
        ("bad_parameters", Level::Devices, bad_parameters),
        ("loads_after_all_that", Level::Devices, loads_after_all_that),
        ("pulls_in_what_it_needs", Level::Bare, pulls_in_what_it_needs),
    ];
    Suite {
        name: "refusals",
        tests: tests
            .into_iter()
            .map(|(name, level, run)| Test::new(name, level, run).nvidia_c(NvidiaC::Recorded))
            .collect(),
    }
}

/// Loads the file alone, as `insmod` does. No dependency is loaded with it.
fn insmod() -> Result<Outcome> {
    modules::try_insmod(&modules::file_of("nvidia-peermem")?, &[])
}

/// Checks that the module stayed out, and that exactly one of its lines contains all the words.
fn refused(outcome: &Outcome, errno: &str, words: &[&str]) -> Result<()> {
    ensure!(!outcome.ok, "it was loaded; the kernel said {:?}", outcome.kernel);
    ensure!(!modules::loaded(PEERMEM)?, "refused, but in lsmod");
    ensure!(outcome.said.contains(errno), "the program said {:?}, wanted {errno:?}", outcome.said);
    let ours: Vec<&String> = outcome.kernel.iter().filter(|l| l.starts_with("nvidia_peermem: ")).collect();
    for line in &ours {
        println!("{line}");
    }
    ensure!(
        !outcome.kernel.iter().any(|l| l.contains("Unknown symbol")),
        "\"Unknown symbol\" is no reason for an admin: {:?}",
        outcome.kernel
    );
    outcome.one_line(words)?;
    ensure!(ours.len() == 1, "{} lines, wanted one", ours.len());
    Ok(())
}

fn no_rdma_stack(_: &Env) -> Result<()> {
    modules::modprobe("nvidia", &[])?;
    refused(&insmod()?, "Operation not supported", &["ib_uverbs is not loaded", "modprobe ib_uverbs"])
}

/// ib_core is loaded, but the module that exports the API is not.
fn no_uverbs(_: &Env) -> Result<()> {
    if machine::peer_memory_core()? == "ib_core" {
        skip("on this kernel ib_core exports the peer-memory API");
        return Ok(());
    }
    modules::modprobe("nvidia", &[])?;
    modules::modprobe("ib_core", &[])?;
    refused(&insmod()?, "Operation not supported", &["ib_uverbs is not loaded", "modprobe ib_uverbs"])
}

/// The distribution's own RDMA stack has no peer-memory API.
fn mainline_rdma_stack(_: &Env) -> Result<()> {
    modules::modprobe("nvidia", &[])?;
    let core = modules::tree()?.join("kernel/drivers/infiniband/core");
    for name in ["ib_core", "ib_uverbs_support", "ib_uverbs"] {
        let file = core.join(format!("{name}.ko"));
        // ib_uverbs_support is newer than 6.12.
        if name == "ib_uverbs_support" && !file.exists() {
            continue;
        }
        let loaded = modules::try_insmod(&file, &[])?;
        ensure!(loaded.ok, "insmod {name}: {}{}", loaded.said, loaded.kernel.join("\n"));
    }
    refused(&insmod()?, "Operation not supported", &["no peer-memory API", "install DOCA-OFED or MLNX_OFED"])
}

fn no_gpu_driver(_: &Env) -> Result<()> {
    machine::load_rdma()?;
    ensure!(!modules::loaded("nvidia")?, "nvidia.ko is loaded");
    refused(&insmod()?, "No such device", &["GPU driver is not loaded", "modprobe nvidia"])
}

/// If both are missing, there is still one line.
fn both_neighbours_missing(_: &Env) -> Result<()> {
    refused(&insmod()?, "Operation not supported", &["ib_uverbs is not loaded"])
}

/// Another vendor's client (or NVIDIA's module) has the name. A core that makes
/// /sys/kernel/mm/memory_peers from the names accepts no name twice.
fn name_taken(_: &Env) -> Result<()> {
    modules::modprobe("lab_second_client", &["name=nv_mem"])?;
    if !lab::has_memory_peers() {
        return name_shared();
    }
    let outcome = modules::try_modprobe("nvidia-peermem", &[]);
    let clients = lab::clients();
    modules::rmmod("lab_second_client")?;
    refused(&outcome?, "resource busy", &["client nv_mem", "registered that name", "rmmod"])?;
    ensure!(clients? == ["nv_mem"], "a client of ours stayed registered");
    Ok(())
}

/// Checks that, with both loaded, the core asks the one that came first, and ours if that one does
/// not want the memory.
fn name_shared() -> Result<()> {
    modules::modprobe("nvidia-peermem", &[])?;
    let clients = lab::clients()?;
    let of_that_name = clients.iter().filter(|name| *name == "nv_mem").count();
    ensure!(of_that_name == 2, "the core knows {clients:?}, wanted two called nv_mem");
    let before = lab::second_client_asked()?;
    let bench = Bench::new()?;
    let (_memory, mr) = bench.registered(MIB)?;
    let asked = lab::second_client_asked()? - before;
    ensure!(asked == 1, "the client that came first was asked {asked} times, wanted once");
    mr.dereg()?;
    modules::rmmod(PEERMEM)?;
    modules::rmmod("lab_second_client")
}

fn bad_parameters(_: &Env) -> Result<()> {
    let mut wrong = Vec::new();
    for (parameter, value) in [
        ("peerdirect_support", "2"),
        ("peerdirect_support", "-1"),
        ("persistent_api_support", "7"),
        ("persistent_api_support", "-2147483648"),
        ("revocable_fallback", "2"),
    ] {
        let outcome = modules::try_modprobe("nvidia-peermem", &[&format!("{parameter}={value}")])?;
        // The message has the name, the value and the right values.
        if let Err(e) = refused(&outcome, "Invalid argument", &[&format!("{parameter}={value}:"), "use ", "0", "1"]) {
            wrong.push(format!("{parameter}={value}: {e:#}"));
        }
    }
    // These two exclude each other.
    let both = modules::try_modprobe("nvidia-peermem", &["persistent_api_support=0", "revocable_fallback=1"])?;
    if let Err(e) =
        refused(&both, "Invalid argument", &["revocable_fallback=1", "persistent_api_support=0", "leave one"])
    {
        wrong.push(format!("both: {e:#}"));
    }
    // The kernel itself refuses what is not a number, with a line of its own.
    let outcome = modules::try_modprobe("nvidia-peermem", &["peerdirect_support=yes"])?;
    if outcome.ok {
        wrong.push("peerdirect_support=yes was taken".into());
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// No refusal left anything behind that prevents the next attempt.
fn loads_after_all_that(_: &Env) -> Result<()> {
    modules::modprobe("nvidia-peermem", &[])?;
    let count = modules::use_count(PEERMEM)?.context("it is not in lsmod")?;
    ensure!(count == 0, "{count} users right after loading");
    modules::rmmod(PEERMEM)
}

/// One modprobe is enough on a bare machine, because depmod knows the GPU driver and the RDMA core.
fn pulls_in_what_it_needs(_: &Env) -> Result<()> {
    for name in ["nvidia", "ib_core"] {
        ensure!(!modules::loaded(name)?, "{name} is loaded already");
    }
    modules::modprobe("nvidia-peermem", &[])?;
    for name in ["nvidia", "ib_core", PEERMEM] {
        ensure!(modules::loaded(name)?, "modprobe nvidia-peermem did not load {name}");
    }
    modules::rmmod(PEERMEM)
}
