// SPDX-License-Identifier: GPL-2.0
//! Measures processor time. Unlike elapsed time, it does not grow on a busy machine.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;

/// Returns the processor time that this process has used itself.
pub fn own() -> Result<Duration> {
    of(UsageWho::RUSAGE_SELF)
}

/// Returns the processor time of those of its children that it has waited for.
pub fn children() -> Result<Duration> {
    of(UsageWho::RUSAGE_CHILDREN)
}

fn of(who: UsageWho) -> Result<Duration> {
    let usage = getrusage(who).context("getrusage")?;
    let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(us.try_into()?))
}
