// SPDX-License-Identifier: GPL-2.0
//! Processor time, which unlike time does not grow on a busy machine.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;

/// What this process has used itself.
pub fn own() -> Result<Duration> {
    of(UsageWho::RUSAGE_SELF)
}

/// What those of its children have used that it has waited for.
pub fn children() -> Result<Duration> {
    of(UsageWho::RUSAGE_CHILDREN)
}

fn of(who: UsageWho) -> Result<Duration> {
    let usage = getrusage(who).context("getrusage")?;
    let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(us.try_into()?))
}
