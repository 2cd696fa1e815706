// SPDX-License-Identifier: GPL-2.0

//! The contents of `/proc/driver/nvidia-peermem`. Formats: docs/proc.md. The files themselves are in `shim.c`.

use crate::ffi::raw;
use crate::ffi::shim::{self, Breath};
use crate::gpu::pin::Kind;
use crate::gpu::topology;
use crate::invalidate;
use crate::observe::reason::Reason;
use crate::observe::refusals::{self, Failure};
use crate::observe::stats::{self, Call, Counter, PerClient, Summary};
use crate::registration::{Place, Row};
use crate::registry;
use crate::state::Stage;
use core::fmt::{self, Write};
use kernel::error::to_result;
use kernel::prelude::*;

/// The folder and its files, while this exists.
pub(crate) struct Folder(());

impl Folder {
    /// Creates them. Reading may begin at once.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Module init, where everything that the files show is initialised already.
        to_result(unsafe { raw::nvpm_proc_create() })?;
        Ok(Self(()))
    }
}

impl Drop for Folder {
    /// Waits until nobody reads any more.
    fn drop(&mut self) {
        // SAFETY: `new()` created them.
        unsafe { raw::nvpm_proc_remove() };
    }
}

/// A file that is being read.
///
/// # Invariants
///
/// The pointer is the one of the `seq_file` whose `show` is running.
struct Seq(*mut raw::seq_file);

impl Write for Seq {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: By the invariant; `text` is valid for its length. An overflow makes seq_file repeat the row.
        unsafe { raw::nvpm_proc_write(self.0, text.as_ptr(), text.len()) };
        Ok(())
    }
}

/// A PCI address; 0, which no GPU and no HCA has, is "none".
struct Bdf(u64);

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("-");
        }
        let (domain, bus) = (self.0 >> 16, self.0 >> 8 & 0xff);
        write!(f, "{domain:04x}:{bus:02x}:{:02x}.{}", self.0 >> 3 & 0x1f, self.0 & 7)
    }
}

/// A task's name, zero-terminated, with everything escaped that would end a field.
struct Comm<'a>(&'a [u8; 16]);

impl fmt::Display for Comm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take_while(|byte| **byte != 0) {
            match *byte {
                b' ' | b'\\' => write!(f, "\\{byte:03o}")?,
                byte if byte.is_ascii_graphic() => f.write_char(char::from(byte))?,
                byte => write!(f, "\\{byte:03o}")?,
            }
        }
        Ok(())
    }
}

const PLACES: [Place; 2] = [Place::First, Place::Second];

/// One line of `stats` for each client and their total.
fn per_client(f: &mut Seq, name: &str, value: impl Fn(Kind) -> u64) -> fmt::Result {
    let values = PLACES.map(|place| (crate::client_name(place), value(crate::client_kind(place))));
    writeln!(f, "total.{name} {}", values.iter().fold(0u64, |sum, (_, value)| sum.wrapping_add(*value)))?;
    for (client, value) in values {
        writeln!(f, "{client}.{name} {value}")?;
    }
    Ok(())
}

fn stats(f: &mut Seq) -> fmt::Result {
    let (mode, core_client) = crate::mode_names();
    writeln!(f, "format 1")?;
    writeln!(f, "version {}", crate::version())?;
    writeln!(f, "mode {mode}")?;
    writeln!(f, "core_client {core_client}")?;
    write!(f, "clients {} {}", crate::client_name(Place::First), crate::client_name(Place::Second))?;
    if let Some(last) = crate::last_client_name() {
        write!(f, " {last}")?;
    }
    writeln!(f)?;
    counters(f)?;
    writeln!(f, "late_callbacks {}", stats::late_callbacks())?;
    writeln!(f, "stays_loaded {}", u8::from(invalidate::stays_loaded()))?;
    writeln!(f, "callbacks_in_flight {}", invalidate::in_flight())?;
    writeln!(f, "oldest_callback_ms {}", oldest_callback_ms())?;
    writeln!(f, "put_errors {}", stats::put_errors())?;
    let kinds = PLACES.map(crate::client_kind);
    refusals_and_times(f, "", "", &kinds)?;
    for place in PLACES {
        refusals_and_times(f, crate::client_name(place), ".", &[crate::client_kind(place)])?;
    }
    let mut index = 0;
    while let Some(pair) = topology::pair(index) {
        writeln!(f, "pair.{}/{} {}", Bdf(pair.gpu), Bdf(pair.nic), pair.reach.text())?;
        index = index.saturating_add(1);
    }
    Ok(())
}

/// What only grows, and what exists now.
fn counters(f: &mut Seq) -> fmt::Result {
    type Select = fn(&PerClient) -> &Counter;
    let grown: [(&str, Select); 6] = [
        ("unpins", |c| &c.unpins),
        ("pins", |c| &c.pins),
        ("pinned_bytes", |c| &c.pinned_bytes),
        ("maps", |c| &c.maps),
        ("unmaps", |c| &c.unmaps),
        ("revocations", |c| &c.revocations),
    ];
    for (name, select) in grown {
        per_client(f, name, |kind| stats::sum(kind, select))?;
    }
    let living: [(&str, Select, Select); 5] = [
        ("live", |c| &c.unpins, |c| &c.pins),
        ("live_bytes", |c| &c.unpinned_bytes, |c| &c.pinned_bytes),
        ("live_pages", |c| &c.unpinned_pages, |c| &c.pinned_pages),
        ("live_runs", |c| &c.unmapped_runs, |c| &c.mapped_runs),
        ("orphans", |c| &c.adopted, |c| &c.orphaned),
    ];
    for (name, end, begin) in living {
        per_client(f, name, |kind| {
            // The end first: what begins in between makes the difference too large for a moment, never negative.
            let ended = stats::sum(kind, end);
            stats::sum(kind, begin).saturating_sub(ended)
        })?;
    }
    per_client(f, "refused", |kind| refusals::by_reason(kind).fold(0u64, |sum, (_, count)| sum.wrapping_add(count)))
}

/// Refusals by reason and errno, and times of provider calls, of the clients that pin as `kinds` say.
fn refusals_and_times(f: &mut Seq, client: &str, dot: &str, kinds: &[Kind]) -> fmt::Result {
    let count = |wanted: &dyn Fn(Reason) -> bool| {
        let all = kinds.iter().flat_map(|kind| refusals::by_reason(*kind));
        all.filter(|(reason, _)| wanted(*reason)).fold(0u64, |sum, (_, count)| sum.wrapping_add(count))
    };
    for reason in Reason::ALL {
        writeln!(f, "{client}{dot}refused.{} {}", reason.key(), count(&|other| other.key() == reason.key()))?;
    }
    for (index, reason) in Reason::ALL.iter().enumerate() {
        let name = reason.errno_name();
        if Reason::ALL.iter().take(index).all(|before| before.errno_name() != name) {
            writeln!(f, "{client}{dot}errno.{name} {}", count(&|other| other.errno_name() == name))?;
        }
    }
    for (name, call) in [("get", Call::Get), ("put", Call::Put), ("map", Call::Map)] {
        let mut times = Summary::new();
        for kind in kinds {
            times.add(*kind, call);
        }
        writeln!(f, "{client}{dot}provider.{name}.calls {}", times.calls)?;
        writeln!(f, "{client}{dot}provider.{name}.total_ns {}", times.total_ns)?;
        writeln!(f, "{client}{dot}provider.{name}.longest_ns {}", times.longest_ns)?;
        write!(f, "{client}{dot}provider.{name}.histogram")?;
        for bucket in times.histogram {
            write!(f, " {bucket}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Milliseconds since `then`, 0 for "never".
fn age_ms(then: u64) -> u64 {
    match then {
        0 => 0,
        then => shim::now_ns().saturating_sub(then).checked_div(1_000_000).unwrap_or(0),
    }
}

/// Age of the oldest callback that has found its registration. Nothing is looked at while no callback runs.
fn oldest_callback_ms() -> u64 {
    let mut oldest = 0;
    if invalidate::in_flight() != 0 {
        let mut at = 0;
        let mut breath = Breath::default();
        while let Some((index, registration)) = registry::from_index(at) {
            breath.step();
            oldest = oldest.max(age_ms(registration.row().callback_ns));
            at = index.saturating_add(1);
        }
    }
    oldest
}

fn who(f: &mut Seq, row: &Row) -> fmt::Result {
    write!(f, "pid={} comm={} client={}", row.owner.tgid(), Comm(&row.comm), crate::client_name(row.client.place))
}

fn registration(f: &mut Seq, row: &Row) -> fmt::Result {
    who(f, row)?;
    write!(f, " kind={} state={}", row.client.kind.text(), row.stage.text())?;
    write!(f, " va={:#x} length={} pinned_bytes={}", row.user.start(), row.user.len(), row.pinned.len())?;
    match row.shape {
        Some(shape) => write!(f, " pages={} page_size={}", shape.entries, shape.page_size)?,
        None => f.write_str(" pages=- page_size=-")?,
    }
    write!(f, " runs={} gpu={} nic={}", row.runs, Bdf(row.gpu), Bdf(row.nic))?;
    match row.since_ns {
        0 => writeln!(f, " age_ms=-"),
        since => writeln!(f, " age_ms={}", age_ms(since)),
    }
}

fn callback(f: &mut Seq, row: &Row) -> fmt::Result {
    who(f, row)?;
    let stage = if row.invalidating { "invalidating" } else { "entered" };
    writeln!(
        f,
        " va={:#x} length={} stage={stage} age_ms={}",
        row.user.start(),
        row.user.len(),
        age_ms(row.callback_ns)
    )
}

fn failure(f: &mut Seq, failure: &Failure) -> fmt::Result {
    let ms = failure.time_ns.checked_div(1_000_000).unwrap_or(0);
    let (seconds, ms) = (ms.checked_div(1000).unwrap_or(0), ms.checked_rem(1000).unwrap_or(0));
    write!(f, "seq={} time={seconds}.{ms:03} pid={}", failure.seq, failure.process.tgid())?;
    write!(f, " comm={} client={}", Comm(&failure.comm), crate::client_name(failure.client.place))?;
    write!(f, " va={:#x} length={}", failure.user.start(), failure.user.len())?;
    let reason = failure.reason;
    write!(f, " errno={} reason={}", reason.errno().to_errno().unsigned_abs(), reason.key())?;
    match reason.found() {
        Some(found) => write!(f, " found={found:#x}")?,
        None => f.write_str(" found=-")?,
    }
    writeln!(f, " text={}", reason.words())
}

/// The first row of `list` from index `at` on, with its index.
fn row_from(list: u32, at: u64) -> Option<(u64, Row)> {
    let mut at = u32::try_from(at).ok()?;
    loop {
        let (index, registration) = registry::from_index(at)?;
        let row = registration.row();
        let listed = match list {
            raw::NVPM_PROC_CALLBACKS => row.callback_ns != 0,
            _ => row.stage != Stage::Gone,
        };
        if listed {
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
/// Called by `shim.c` while the file is read: `seq` is valid.
#[no_mangle]
unsafe extern "C" fn nvpm_proc_stats(seq: *mut raw::seq_file) {
    // INVARIANT: By this function's contract.
    let _ = stats(&mut Seq(seq));
}

/// Moves `*at` to the first row of `list` from there on; 0 if there is none.
///
/// # Safety
///
/// Called by `shim.c` while the file is read: `at` is valid.
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
/// Called by `shim.c` while the file is read: `seq` is valid.
#[no_mangle]
unsafe extern "C" fn nvpm_proc_row(list: u32, at: u64, seq: *mut raw::seq_file) {
    // INVARIANT: By this function's contract.
    let mut f = Seq(seq);
    let _ = match list {
        raw::NVPM_PROC_FAILURES => match refusals::failure_from(at.saturating_add(1)) {
            Some(found) if found.seq.checked_sub(1) == Some(at) => failure(&mut f, &found),
            _ => Ok(()),
        },
        _ => match row_from(list, at) {
            Some((index, row)) if index == at => match list {
                raw::NVPM_PROC_CALLBACKS => callback(&mut f, &row),
                _ => registration(&mut f, &row),
            },
            _ => Ok(()),
        },
    };
}
