// SPDX-License-Identifier: GPL-2.0
//! A boot in which all umem mapping locks are one lock class, as on a real core
//! (`ib_core.one_lock_class`). The module takes the RM API lock while it holds the umem mapping
//! lock of a persistent registration, to ask about a pair of GPU and NIC. The freeing thread holds
//! the RM API lock when it takes the umem mapping lock of a revocable registration. With one class,
//! lockdep cannot tell the two mapping locks apart (docs/rules.md). It must report that once, where
//! both kinds meet, and nothing before.

use anyhow::{ensure, Result};
use nvlab::Layout;

use super::end;
use crate::common::{Bench, KIB, MIB};
use crate::kmsg::Mark;
use crate::lab;
use crate::machine::{peer_memory_core, Level, Mode};
use crate::modules;
use crate::test::{Env, NvidiaC, Suite, Test};

pub const NAME: &str = "one_class";

/// Returns the tests in this order, because a report switches lockdep off, and a module that is
/// unloaded takes its lock classes along.
pub fn suite() -> Suite {
    let tests = [
        ("persistent/quiet", Level::Peermem(Mode::Persistent), persistent as fn(&Env) -> Result<()>),
        ("all_is_unloaded", Level::Bare, |_: &Env| quiet()),
        ("legacy/quiet", Level::Peermem(Mode::Legacy), revocable),
        ("legacy/a_queue_beside", Level::Peermem(Mode::Legacy), a_queue_beside),
    ];
    let means = NvidiaC::Skip("what is quiet and what is not is known of ours");
    Suite { name: NAME, tests: tests.map(|(name, level, run)| Test::new(name, level, run).nvidia_c(means)).into() }
}

fn quiet() -> Result<()> {
    ensure!(end::lockdep_works()? == Some(true), "lockdep is there and has said nothing");
    Ok(())
}

fn one_class() -> Result<()> {
    let core = peer_memory_core()?;
    let set = modules::attribute(&core, "parameters/one_lock_class")?;
    ensure!(set == "Y", "{core}.one_lock_class is {set}: the boot must set it");
    Ok(())
}

/// Uses persistent pins alone. The module asks about the pair, coherent memory is refused or mapped
/// by the provider, and ranges are registered, freed and deregistered in both orders.
fn persistent(_: &Env) -> Result<()> {
    one_class()?;
    every_order()?;
    quiet()
}

/// Uses revocable pins alone, freed before and after their deregistration.
fn revocable(_: &Env) -> Result<()> {
    one_class()?;
    every_order()?;
    quiet()
}

fn every_order() -> Result<()> {
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    for (layout, len) in [(Layout::Contiguous, 4 * KIB), (Layout::Contiguous, MIB), (Layout::Broken64K, MIB)] {
        let memory = rm.request(0, MIB as u64).layout(layout).alloc()?;
        bench.reg(memory.va(), len)?.dereg()?;
        let mr = bench.reg(memory.va(), len)?;
        memory.free()?;
        mr.dereg()?;
    }
    Ok(())
}

/// A queue's umem is served persistently, beside revocable MRs. lockdep then reports NVIDIA's
/// module as well as ours.
fn a_queue_beside(_: &Env) -> Result<()> {
    one_class()?;
    quiet()?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let mut mark = Mark::now()?;
    lab::set_nic("no_invalidation", 1)?;
    bench.reg(memory.va(), MIB)?.dereg()?;
    ensure!(end::lockdep_works()? == Some(false), "lockdep took no notice: one class is not one class");
    let said = mark.since()?;
    let reports = said.iter().filter(|l| l.contains("possible circular locking dependency")).count();
    ensure!(reports == 1, "{reports} reports of a circle: {}", said.join("\n"));
    // The line names first the lock that is asked for, then the one that is held.
    for lock in ["api_lock", "ib_peer_mem mapping_lock"] {
        ensure!(said.iter().any(|l| l.contains(lock)), "{lock} is in no line of it: {}", said.join("\n"));
    }
    ensure!(said.iter().any(|l| l.contains("nvidia_p2p_")), "not in a call of the provider: {}", said.join("\n"));
    Ok(())
}
