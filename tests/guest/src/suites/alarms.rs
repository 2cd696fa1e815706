// SPDX-License-Identifier: GPL-2.0
//! A throw-away boot that raises each of the kernel's alarms once, so that the host can show that
//! it would notice. Passing here means that the alarm was asked for; whether it was heard is the
//! host's test.

use anyhow::Result;

use super::end::kmemleak_scan;
use crate::kmsg::Mark;
use crate::machine::Level;
use crate::modules::{modprobe, rmmod};
use crate::test::{Env, Suite, Test};

pub const NAME: &str = "alarms";
const MODULE: &str = "lab_alarms";

/// lockdep first: any report switches it off.
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

/// Two threads race until KCSAN tells of it: on a busy machine their processors may not run at the
/// same time.
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
