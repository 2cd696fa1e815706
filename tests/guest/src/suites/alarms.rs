// SPDX-License-Identifier: GPL-2.0
//! A throw-away boot that raises each of the kernel's alarms once, so that the host can show that
//! it would notice. A test here passes if it has raised its alarm. The host tests whether the alarm
//! was seen.

use anyhow::Result;

use super::end::kmemleak_scan;
use crate::kmsg::Mark;
use crate::machine::Level;
use crate::modules::{modprobe, rmmod};
use crate::test::{Env, Suite, Test};

pub const NAME: &str = "alarms";
const MODULE: &str = "lab_alarms";

/// Returns the tests. lockdep's come first, because any report switches lockdep off.
pub fn suite() -> Suite {
    Suite {
        name: NAME,
        tests: vec![
            Test::new("lockdep", Level::Bare, |_: &Env| raise("lockdep")),
            Test::new("kasan", Level::Bare, |_: &Env| raise("kasan")),
            Test::new("kcsan", Level::Bare, kcsan),
            Test::new("ubsan", Level::Bare, |_: &Env| raise("ubsan")),
            Test::new("debug_objects", Level::Bare, |_: &Env| raise("debug_objects")),
            Test::new("debug_vm", Level::Bare, |_: &Env| raise("debug_vm")),
            Test::new("kmemleak", Level::Bare, kmemleak),
        ],
    }
}

fn raise(which: &str) -> Result<()> {
    modprobe(MODULE, &[&format!("raise={which}")])?;
    rmmod(MODULE)
}

/// Lets two threads race until KCSAN reports it. On a busy machine their processors may not run at
/// the same time.
fn kcsan(_: &Env) -> Result<()> {
    for _ in 0..20 {
        let mut log = Mark::now()?;
        raise("kcsan")?;
        if log.since()?.iter().any(|line| line.contains("BUG: KCSAN:") && line.contains(MODULE)) {
            break;
        }
    }
    Ok(())
}

fn kmemleak(_: &Env) -> Result<()> {
    raise("kmemleak")?;
    kmemleak_scan()
}
