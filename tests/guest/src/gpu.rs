// SPDX-License-Identifier: GPL-2.0
//! The GPU stand-in's books as the suites read them.

use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nvlab::{Books, Lab};

pub fn lab() -> Result<Lab> {
    Lab::open().context("the GPU stand-in's debugfs")
}

pub fn books() -> Result<Books> {
    Ok(lab()?.books()?)
}

/// Live pins of both kinds.
pub fn pins() -> Result<i64> {
    let b = books()?;
    Ok(b.get("live_pins") + b.get("live_persistent"))
}

/// Calls that pin and calls that unpin, of both kinds.
pub fn provider_calls() -> Result<(i64, i64)> {
    let b = books()?;
    Ok((b.get("gets") + b.get("persistent_gets"), b.get("puts") + b.get("persistent_puts")))
}

/// Bus address of the GPU page at `va`: whether two processes had the same memory. Module nvlab_gdr is loaded.
pub fn place(va: u64) -> Result<u64> {
    let gdr = nvlab::Gdr::open()?;
    let pin = gdr.pin(va, 64 << 10, nvlab::Kind::Persistent)?;
    let first = pin.first;
    pin.unpin()?;
    Ok(first)
}

/// Until nothing is pinned and nothing allocated.
pub fn wait_clean(limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let b = books()?;
        if b.is_clean() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("not clean after {limit:?}: {:?}", b.dirt());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
