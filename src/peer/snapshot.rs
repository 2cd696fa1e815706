// SPDX-License-Identifier: GPL-2.0

//! What `/proc/driver/nvidia-peermem` shows of the module's state: collected here when `proc.c`
//! asks, and written by [`crate::peer::proc`].

use crate::ffi::raw;
use crate::ffi::shim;
use crate::gpu::topology;
use crate::invalidate;
use crate::observe::refusals;
use crate::peer::client::{self, Client};
use crate::peer::proc::{self, Module, Pair, Seq};
use crate::pin::registration::Registration;
use crate::pin::registry;
use crate::pin::shown::Snapshot;
use crate::pin::state::Phase;
use kernel::prelude::*;

/// Returns what `stats` shows beside the counters.
fn module() -> Module<impl Iterator<Item = Pair>> {
    let callback = invalidate::start_ns();
    Module {
        version: client::version(),
        mode: client::mode_name(),
        core_client: if client::are_plain() { "plain" } else { "extended" },
        clients: [Some(Client::first()), Client::second()].map(|client| client.map(|client| client.owner.asked)),
        refusing: client::refusing_name(),
        callbacks_in_flight: callback.is_some().into(),
        oldest_callback_ms: callback.map_or(0, proc::age_ms),
        pairs: topology::pairs().map(|pair| Pair { gpu: pair.gpu, nic: pair.device, reach: pair.reach.text() }),
    }
}

/// Returns what `list` shows of `registration`, if it belongs there.
fn listed(list: u32, registration: &Registration) -> Option<Snapshot> {
    shim::read_shortly(
        || registration.inner().try_lock(),
        |inner| {
            let listed = match list {
                raw::NVPM_PROC_CALLBACKS => inner.callback_ns != 0,
                _ => inner.state.phase() != Phase::Gone,
            };
            listed.then(|| registration.snapshot(&inner))
        },
    )
}

/// Returns the first row of `list` from index `at` on, with its index.
fn row_from(list: u32, at: u64) -> Option<(u64, Snapshot)> {
    let mut at = u32::try_from(at).ok()?;
    loop {
        let (index, registration) = registry::from_index(at)?;
        if let Some(row) = listed(list, &registration) {
            return Some((u64::from(index), row));
        }
        at = index.checked_add(1)?;
        shim::cond_resched();
    }
}

/// Writes the file `stats`.
///
/// # Safety
///
/// Called by `proc.c` while the file is read: `seq` is valid.
#[no_mangle]
unsafe extern "C" fn nvpm_proc_stats(seq: *mut raw::seq_file) {
    // SAFETY: By this function's contract.
    let mut f = unsafe { Seq::new(seq) };
    let _ = proc::stats(&mut f, module());
}

/// Moves `*at` to the first row of `list` from there on. 0 if there is none.
///
/// # Safety
///
/// Called by `proc.c` while the file is read: `at` is valid.
#[no_mangle]
unsafe extern "C" fn nvpm_proc_seek(list: u32, at: *mut u64) -> c_int {
    // SAFETY: By this function's contract.
    let at = unsafe { &mut *at };
    let found = match list {
        // Failures are numbered from 1, rows from 0.
        raw::NVPM_PROC_FAILURES => refusals::failure_from(at.saturating_add(1)).map(|f| f.seq.saturating_sub(1)),
        _ => row_from(list, *at).map(|(index, _)| index),
    };
    match found {
        Some(index) => {
            *at = index;
            1
        }
        None => 0,
    }
}

/// Writes row `at` of `list`, unless it is gone by now.
///
/// # Safety
///
/// Called by `proc.c` while the file is read: `seq` is valid.
#[no_mangle]
unsafe extern "C" fn nvpm_proc_row(list: u32, at: u64, seq: *mut raw::seq_file) {
    // SAFETY: By this function's contract.
    let mut f = unsafe { Seq::new(seq) };
    let _ = match list {
        raw::NVPM_PROC_FAILURES => match refusals::failure_from(at.saturating_add(1)) {
            Some(found) if found.seq.checked_sub(1) == Some(at) => proc::failure(&mut f, &found),
            _ => Ok(()),
        },
        _ => match row_from(list, at) {
            Some((index, row)) if index == at => match list {
                raw::NVPM_PROC_CALLBACKS => proc::callback(&mut f, &row),
                _ => proc::registration(&mut f, &row),
            },
            _ => Ok(()),
        },
    };
}
