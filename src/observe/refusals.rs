// SPDX-License-Identifier: GPL-2.0

//! Refusals: counted, the last ones remembered, and logged with one line per cause and burst. So
//! are pins that the provider did not take back.

use crate::ffi::shim::{self, Kind, Process};
use crate::num;
use crate::observe::burst::Burst;
use crate::observe::reason::Reason;
use crate::observe::stats::{self, Counter};
use crate::observe::trace;
use crate::range::Span;
use core::fmt::{self, Write};
use kernel::prelude::*;
use kernel::sync::global_lock;

/// A counter for each reason, in the order of [`Reason::ALL`].
type PerReason = [Counter; Reason::ALL.len()];

static PERSISTENT: PerReason = [const { Counter::new() }; Reason::ALL.len()];
static REVOCABLE: PerReason = [const { Counter::new() }; Reason::ALL.len()];

fn counters(kind: Kind) -> &'static PerReason {
    match kind {
        Kind::Persistent => &PERSISTENT,
        Kind::Revocable => &REVOCABLE,
    }
}

/// Returns each reason with the number of its refusals by the owner that pins as `kind` says.
pub(crate) fn by_reason(kind: Kind) -> impl Iterator<Item = (Reason, u64)> + Clone {
    Reason::ALL.into_iter().zip(counters(kind).iter().map(Counter::value))
}

/// The owner that was asked, as it is shown.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Its name, for people.
    pub(crate) name: &'static str,
    /// How it pins.
    pub(crate) kind: Kind,
    /// Says why a registration is refused, and what to do about it, to those who use the driver:
    /// [`Reason::words`], or words that know the driver.
    pub(crate) words: fn(Reason) -> &'static str,
}

/// A refusal as it is remembered.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    /// From 1.
    pub(crate) seq: u64,
    /// Nanoseconds since 1970.
    pub(crate) time_ns: u64,
    pub(crate) process: Process,
    pub(crate) comm: [u8; 16],
    pub(crate) client: Asked,
    pub(crate) user: Span,
    pub(crate) reason: Reason,
}

/// Refusals that are remembered.
const REMEMBERED: usize = 64;

/// The last refusals: number `seq` is at `seq % REMEMBERED`.
struct Failures {
    count: u64,
    last: [Option<Failure>; REMEMBERED],
    /// What was logged, in the order of [`Reason::ALL`].
    bursts: [Burst; Reason::ALL.len()],
    /// What was logged of pins that were not taken back.
    puts: Burst,
}

global_lock! {
    // SAFETY: Initialised in `init()`, before anything is pinned.
    unsafe(uninit) static FAILURES: Mutex<Failures> = Failures {
        count: 0,
        last: [None; REMEMBERED],
        bursts: [Burst::new(); Reason::ALL.len()],
        puts: Burst::new(),
    };
}

/// Initialises what this file keeps for the whole module.
///
/// # Safety
///
/// To be called once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { FAILURES.init() };
}

fn place_of(seq: u64) -> usize {
    num::usize_from(seq).checked_rem(REMEMBERED).unwrap_or(0)
}

/// Returns the first remembered refusal whose number is at least `seq`.
pub(crate) fn failure_from(seq: u64) -> Option<Failure> {
    let failures = FAILURES.lock();
    let oldest = failures.count.saturating_sub(num::u64_from(REMEMBERED)).saturating_add(1);
    let seq = seq.max(oldest);
    (*failures.last.get(place_of(seq))?).filter(|failure| failure.seq == seq)
}

/// Counts and remembers a refusal, and logs it unless its reason was logged just now.
///
/// Takes a lock of its own and prints: never under a state lock or the registry lock, never in the
/// free callback.
pub(crate) fn refused(reason: Reason, client: &Asked, user: Span) {
    trace::failure(reason, user);
    let at = reason.index();
    if let Some(counter) = counters(client.kind).get(at) {
        counter.add(1);
    }
    let mut failure = Failure {
        seq: 0,
        time_ns: shim::real_ns(),
        process: Process::current(),
        comm: shim::current_comm(),
        client: *client,
        user,
        reason,
    };
    let unsaid = {
        let mut failures = FAILURES.lock();
        failures.count = failures.count.saturating_add(1);
        failure.seq = failures.count;
        if let Some(slot) = failures.last.get_mut(place_of(failure.seq)) {
            *slot = Some(failure);
        }
        failures.bursts.get_mut(at).and_then(|burst| burst.happened(shim::now_ns()))
    };
    if let Some(unsaid) = unsaid {
        say(&failure, unsaid);
    }
}

/// Logs one line: what, who, which value, what to do.
fn say(failure: &Failure, unsaid: u64) {
    let (comm, mut rest) = (shown(&failure.comm), Text::new());
    if let Some(found) = failure.reason.found() {
        let _ = write!(rest, " (found {found:#x})");
    }
    if unsaid != 0 {
        let _ = write!(rest, " ({unsaid} more for this reason were not logged)");
    }
    pr_warn!(
        "process {} ({}): {} registration of {} bytes at {:#x} was refused with {}: {}{}\n",
        failure.process.tgid(),
        comm.as_str(),
        failure.client.kind.text(),
        failure.user.len(),
        failure.user.start(),
        failure.reason.errno_name(),
        (failure.client.words)(failure.reason),
        rest.as_str()
    );
}

/// Counts `puts` that the provider failed and that are not tried again, and logs whose pins they were
/// unless one was logged just now.
///
/// Takes a lock of its own and prints: never under a state lock or the registry lock, never in the
/// free callback.
pub(crate) fn not_taken_back(error: Error, puts: u64, kind: Kind, user: Span) {
    stats::add_put_errors(puts);
    let unsaid = FAILURES.lock().puts.happened(shim::now_ns());
    let Some(unsaid) = unsaid else { return };
    let mut rest = Text::new();
    if unsaid != 0 {
        let _ = write!(rest, " ({unsaid} more were not logged)");
    }
    let fate = match kind {
        Kind::Persistent => {
            "is lost: it keeps GPU memory and BAR1 until the driver shuts this GPU down (end its other users, stop nvidia-persistenced) or the machine reboots"
        }
        Kind::Revocable => "stays pinned, and this module loaded, until the process frees the memory or ends",
    };
    pr_warn!(
        "process {} ({}): the GPU driver failed with error {} to take back the {} pin of {} bytes at {:#x}, which {}; see the driver's NVRM lines in this log{}\n",
        Process::current().tgid(),
        shown(&shim::current_comm()).as_str(),
        error.to_errno(),
        kind.text(),
        user.len(),
        user.start(),
        fate,
        rest.as_str()
    );
}

/// Returns a task's name as a log may show it.
fn shown(comm: &[u8; 16]) -> Text {
    let mut text = Text::new();
    for byte in comm.iter().take_while(|byte| **byte != 0) {
        let _ = text.write_char(if byte.is_ascii_graphic() { char::from(*byte) } else { '?' });
    }
    text
}

/// A short text on the stack. What does not fit is left out.
struct Text {
    bytes: [u8; 80],
    length: usize,
}

impl Text {
    fn new() -> Self {
        Self { bytes: [0; 80], length: 0 }
    }

    fn as_str(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or("")
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length.checked_add(text.len()).ok_or(fmt::Error)?;
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
