// SPDX-License-Identifier: GPL-2.0

//! The contents of `/proc/driver/nvidia-peermem`. Formats: docs/proc.md.
//!
//! `proc.c` has the files themselves. What they show of the module's state is handed in, as a
//! [`Module`] or a [`Snapshot`].

use crate::ffi::raw;
use crate::ffi::shim::{self, Kind};
use crate::observe::reason::Reason;
use crate::observe::refusals::{self, Asked, Failure};
use crate::observe::stats::{self, Call, Counter, PerClient, Summary};
use crate::pin::registration::Tables;
use crate::pin::shown::Snapshot;
use crate::pin::state::Phase;
use core::fmt::{self, Write};
use kernel::error::to_result;
use kernel::prelude::*;

/// The folder and its files, while this exists.
pub(crate) struct Folder(());

impl Folder {
    /// Creates them. Reading may begin at once.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Module init, where everything that the files show is initialised already.
        to_result(unsafe { raw::nvpm_proc_create() }).inspect_err(|_| {
            pr_err!("the folder /proc/driver/nvidia-peermem cannot be made: there is no memory, or another module has made it (lsmod): free memory or unload that module, then load again\n");
        })?;
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
/// The pointer is that of the `seq_file` whose `show` is running.
pub(crate) struct Seq(*mut raw::seq_file);

impl Seq {
    /// Wraps the `seq_file` of a `show` that is running.
    ///
    /// # Safety
    ///
    /// The `show` of `seq` runs as long as the answer is used.
    pub(crate) unsafe fn new(seq: *mut raw::seq_file) -> Self {
        // INVARIANT: By this function's contract.
        Self(seq)
    }
}

impl Write for Seq {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: By the invariant; `text` is valid for its length. An overflow makes seq_file
        // repeat the row.
        unsafe { raw::nvpm_proc_write(self.0, text.as_ptr(), text.len()) };
        Ok(())
    }
}

/// A PCI address. 0, which no GPU and no NIC has, stands for none.
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

/// A task's name, zero-terminated. What would end a field is escaped.
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

/// What `stats` shows beside the counters.
pub(crate) struct Module<P> {
    pub(crate) version: &'static str,
    /// The two parameters in words: mode, and form of the clients.
    pub(crate) mode: &'static str,
    pub(crate) core_client: &'static str,
    /// The clients that pin, in the order in which the core asks them.
    pub(crate) clients: [Option<Asked>; 2],
    /// The client behind those, where there is one. It pins nothing, and counts for the first.
    pub(crate) refusing: Option<&'static str>,
    pub(crate) callbacks_in_flight: u64,
    pub(crate) oldest_callback_ms: u64,
    /// The pairs of GPU and NIC that met.
    pub(crate) pairs: P,
}

/// A GPU and a NIC by PCI number, and in a word whether they reach each other.
pub(crate) struct Pair {
    pub(crate) gpu: u64,
    pub(crate) nic: u64,
    pub(crate) reach: &'static str,
}

/// Returns the word for `phase` (docs/proc.md).
fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Pinning => "pinning",
        Phase::Pinned => "pinned",
        Phase::Mapped => "mapped",
        Phase::Unmapped => "key_not_destroyed",
        Phase::Revoked => "revoked",
        Phase::Orphan => "orphan",
        Phase::Ending => "ending",
        Phase::Gone => "gone",
    }
}

/// Writes one line of `stats` for each client and one for their total.
fn per_client(f: &mut Seq, clients: &[Option<Asked>], name: &str, value: impl Fn(Kind) -> u64) -> fmt::Result {
    let values = || clients.iter().flatten().map(|client| (client.name, value(client.kind)));
    writeln!(f, "total.{name} {}", values().fold(0u64, |sum, (_, value)| sum.wrapping_add(value)))?;
    for (client, value) in values() {
        writeln!(f, "{client}.{name} {value}")?;
    }
    Ok(())
}

/// Writes the file `stats`.
pub(crate) fn stats(f: &mut Seq, module: Module<impl Iterator<Item = Pair>>) -> fmt::Result {
    let clients = &module.clients;
    writeln!(f, "format 1")?;
    writeln!(f, "version {}", module.version)?;
    writeln!(f, "mode {}", module.mode)?;
    writeln!(f, "core_client {}", module.core_client)?;
    write!(f, "clients")?;
    for client in clients.iter().flatten() {
        write!(f, " {}", client.name)?;
    }
    if let Some(name) = module.refusing {
        write!(f, " {name}")?;
    }
    writeln!(f)?;
    counters(f, clients)?;
    writeln!(f, "unanswered {}", stats::unanswered_asks())?;
    writeln!(f, "late_callbacks {}", stats::late_callbacks())?;
    writeln!(f, "callbacks_in_flight {}", module.callbacks_in_flight)?;
    writeln!(f, "oldest_callback_ms {}", module.oldest_callback_ms)?;
    writeln!(f, "put_errors {}", stats::put_errors())?;
    refusals_and_times(f, "", "", clients)?;
    for client in clients.iter().flatten() {
        refusals_and_times(f, client.name, ".", &[Some(*client)])?;
    }
    for pair in module.pairs {
        writeln!(f, "pair.{}/{} {}", Bdf(pair.gpu), Bdf(pair.nic), pair.reach)?;
    }
    Ok(())
}

/// Writes what only grows, and what exists now.
fn counters(f: &mut Seq, clients: &[Option<Asked>]) -> fmt::Result {
    type Select = fn(&PerClient) -> &Counter;
    let grown: [(&str, Select); 8] = [
        ("unpins", |c| &c.unpins),
        ("pins", |c| &c.pins),
        ("pinned_bytes", |c| &c.pinned_bytes),
        ("maps", |c| &c.maps),
        ("unmaps", |c| &c.unmaps),
        ("revocations", |c| &c.revocations),
        ("lost", |c| &c.lost),
        ("lost_bytes", |c| &c.lost_bytes),
    ];
    for (name, select) in grown {
        per_client(f, clients, name, |kind| select(stats::client(kind)).value())?;
    }
    let living: [(&str, Select, Select); 5] = [
        ("live", |c| &c.unpins, |c| &c.pins),
        ("live_bytes", |c| &c.unpinned_bytes, |c| &c.pinned_bytes),
        ("live_pages", |c| &c.unpinned_pages, |c| &c.pinned_pages),
        ("live_runs", |c| &c.unmapped_runs, |c| &c.mapped_runs),
        ("orphans", |c| &c.adopted, |c| &c.orphaned),
    ];
    for (name, end, begin) in living {
        per_client(f, clients, name, |kind| {
            // The end first: what begins in between makes the difference too large for a moment,
            // never negative.
            let ended = end(stats::client(kind)).value();
            begin(stats::client(kind)).value().saturating_sub(ended)
        })?;
    }
    per_client(f, clients, "refused", |kind| {
        refusals::by_reason(kind).fold(0u64, |sum, (_, count)| sum.wrapping_add(count))
    })
}

/// Writes the refusals of `clients` by reason and errno, and the times of their provider calls.
fn refusals_and_times(f: &mut Seq, client: &str, dot: &str, clients: &[Option<Asked>]) -> fmt::Result {
    let kinds = || clients.iter().flatten().map(|client| client.kind);
    let count = |wanted: &dyn Fn(Reason) -> bool| {
        let all = kinds().flat_map(refusals::by_reason);
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
        for kind in kinds() {
            times.add(kind, call);
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

/// Returns the milliseconds since `then`, or 0 if `then` is 0, which stands for "never".
pub(crate) fn age_ms(then: u64) -> u64 {
    match then {
        0 => 0,
        then => shim::now_ns().saturating_sub(then).checked_div(1_000_000).unwrap_or(0),
    }
}

fn who(f: &mut Seq, row: &Snapshot) -> fmt::Result {
    write!(f, "pid={} comm={} client={}", row.process.tgid(), Comm(&row.comm), row.client.name)
}

/// Writes one line of `registrations`.
pub(crate) fn registration(f: &mut Seq, row: &Snapshot) -> fmt::Result {
    who(f, row)?;
    write!(f, " kind={} state={}", row.client.kind.text(), word(row.phase))?;
    write!(f, " va={:#x} length={} pinned_bytes={}", row.user.start(), row.user.len(), row.pinned_bytes)?;
    match row.tables {
        Some(Tables { pieces, pages, page_size }) => {
            write!(f, " pieces={pieces} pages={pages} page_size={page_size}")?;
        }
        None => f.write_str(" pieces=- pages=- page_size=-")?,
    }
    write!(f, " runs={} gpu={} nic={}", row.runs, Bdf(row.gpu), Bdf(row.device))?;
    match row.since_ns {
        0 => writeln!(f, " age_ms=-"),
        since => writeln!(f, " age_ms={}", age_ms(since)),
    }
}

/// Writes one line of `callbacks`.
pub(crate) fn callback(f: &mut Seq, row: &Snapshot) -> fmt::Result {
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

/// Writes one line of `failures`.
pub(crate) fn failure(f: &mut Seq, failure: &Failure) -> fmt::Result {
    let ms = failure.time_ns.checked_div(1_000_000).unwrap_or(0);
    let (seconds, ms) = (ms.checked_div(1000).unwrap_or(0), ms.checked_rem(1000).unwrap_or(0));
    write!(f, "seq={} time={seconds}.{ms:03} pid={}", failure.seq, failure.process.tgid())?;
    write!(f, " comm={} client={}", Comm(&failure.comm), failure.client.name)?;
    write!(f, " va={:#x} length={}", failure.user.start(), failure.user.len())?;
    let reason = failure.reason;
    write!(f, " errno={} reason={}", reason.errno().to_errno().unsigned_abs(), reason.key())?;
    match reason.found() {
        Some(found) => write!(f, " found={found:#x}")?,
        None => f.write_str(" found=-")?,
    }
    writeln!(f, " text={}", (failure.client.words)(reason))
}
