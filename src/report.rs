// SPDX-License-Identifier: GPL-2.0

//! Counters, and what was refused: kept here, formatted in [`crate::proc`].
//!
//! A counter is several, one for each few CPUs and in cache lines of its own, summed when it is read: registering
//! threads share no line. (alloc_percpu() is a GPL-only export.) Counters only grow; what exists now is a difference.

use crate::pin::Kind;
use crate::range::Span;
use crate::reason::Reason;
use crate::registration::Place;
use crate::shim::{self, Process};
use crate::trace;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::global_lock;

/// A number that only grows.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts `by` more. Allowed everywhere.
    pub(crate) fn add(&self, by: u64) {
        let _ = self.0.fetch_add(by, Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Raises the value to `to`, if it is lower.
    fn raise(&self, to: u64) {
        let mut now = self.value();
        while now < to {
            match self.0.cmpxchg(now, to, Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }
}

/// What is counted for each client. Meanings and units: docs/proc.md.
pub(crate) struct PerClient {
    pub(crate) pins: Counter,
    pub(crate) unpins: Counter,
    pub(crate) pinned_bytes: Counter,
    pub(crate) unpinned_bytes: Counter,
    pub(crate) pinned_pages: Counter,
    pub(crate) unpinned_pages: Counter,
    pub(crate) mapped_runs: Counter,
    pub(crate) unmapped_runs: Counter,
    pub(crate) maps: Counter,
    pub(crate) unmaps: Counter,
    pub(crate) orphaned: Counter,
    pub(crate) adopted: Counter,
    pub(crate) revocations: Counter,
    pub(crate) refused: Counter,
}

impl PerClient {
    const fn new() -> Self {
        Self {
            pins: Counter::new(),
            unpins: Counter::new(),
            pinned_bytes: Counter::new(),
            unpinned_bytes: Counter::new(),
            pinned_pages: Counter::new(),
            unpinned_pages: Counter::new(),
            mapped_runs: Counter::new(),
            unmapped_runs: Counter::new(),
            maps: Counter::new(),
            unmaps: Counter::new(),
            orphaned: Counter::new(),
            adopted: Counter::new(),
            revocations: Counter::new(),
            refused: Counter::new(),
        }
    }
}

/// A provider call that is timed.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    /// Either of the two gets.
    Get,
    /// Either of the two puts.
    Put,
    /// The provider's DMA mapping.
    Map,
}

/// Buckets of a histogram: powers of two of microseconds.
pub(crate) const BUCKETS: usize = 24;

/// Times of one kind of call, in nanoseconds.
struct Times {
    total: Counter,
    longest: Counter,
    histogram: [Counter; BUCKETS],
}

impl Times {
    const fn new() -> Self {
        Self { total: Counter::new(), longest: Counter::new(), histogram: [const { Counter::new() }; BUCKETS] }
    }

    fn add(&self, ns: u64) {
        self.total.add(ns);
        self.longest.raise(ns);
        let exponent = ns.checked_div(1000).and_then(u64::checked_ilog2).unwrap_or(0);
        let bucket = usize::try_from(exponent).unwrap_or(0).min(BUCKETS.saturating_sub(1));
        if let Some(counter) = self.histogram.get(bucket) {
            counter.add(1);
        }
    }
}

/// One copy of everything that the hot path counts.
#[repr(align(128))]
struct Shard {
    first: PerClient,
    second: PerClient,
    get: Times,
    put: Times,
    map: Times,
}

impl Shard {
    const fn new() -> Self {
        Self {
            first: PerClient::new(),
            second: PerClient::new(),
            get: Times::new(),
            put: Times::new(),
            map: Times::new(),
        }
    }

    /// The copy for the CPU that the caller runs on. Another one would do as well.
    fn here() -> &'static Self {
        let at = usize::try_from(shim::cpu()).unwrap_or(0).checked_rem(SHARDS.len()).unwrap_or(0);
        SHARDS.get(at).unwrap_or(&SPARE)
    }

    fn client(&self, place: Place) -> &PerClient {
        match place {
            Place::First => &self.first,
            Place::Second => &self.second,
        }
    }

    fn times(&self, call: Call) -> &Times {
        match call {
            Call::Get => &self.get,
            Call::Put => &self.put,
            Call::Map => &self.map,
        }
    }
}

static SHARDS: [Shard; 16] = [const { Shard::new() }; 16];
/// Never used: [`Shard::here`] cannot index beyond the array, but must not be able to panic either.
static SPARE: Shard = Shard::new();

/// The counters of the client at `place`, for counting.
pub(crate) fn client(place: Place) -> &'static PerClient {
    Shard::here().client(place)
}

/// Sums one counter of the client at `place`.
pub(crate) fn sum(place: Place, select: impl Fn(&PerClient) -> &Counter) -> u64 {
    SHARDS.iter().fold(0, |sum, shard| sum.wrapping_add(select(shard.client(place)).value()))
}

/// Times of one kind of provider call, summed.
pub(crate) struct Summary {
    pub(crate) calls: u64,
    pub(crate) total_ns: u64,
    pub(crate) longest_ns: u64,
    pub(crate) histogram: [u64; BUCKETS],
}

/// Sums the times of `call`.
pub(crate) fn times(call: Call) -> Summary {
    let mut summary = Summary { calls: 0, total_ns: 0, longest_ns: 0, histogram: [0; BUCKETS] };
    for shard in &SHARDS {
        let times = shard.times(call);
        summary.total_ns = summary.total_ns.wrapping_add(times.total.value());
        summary.longest_ns = summary.longest_ns.max(times.longest.value());
        for (sum, bucket) in summary.histogram.iter_mut().zip(&times.histogram) {
            *sum = sum.wrapping_add(bucket.value());
        }
    }
    summary.calls = summary.histogram.iter().fold(0, |calls, bucket| calls.wrapping_add(*bucket));
    summary
}

/// Runs `provider` and counts how long it took.
pub(crate) fn timed<T>(call: Call, provider: impl FnOnce() -> T) -> T {
    let start = shim::now_ns();
    let result = provider();
    Shard::here().times(call).add(shim::now_ns().saturating_sub(start));
    result
}

/// Callbacks that found nothing to do: late, repeated or stale.
static LATE: Counter = Counter::new();
/// Puts that the provider failed without keeping the pin.
static PUT_ERRORS: Counter = Counter::new();
/// Refusals by reason, in the order of [`Reason::ALL`].
static REFUSED: [Counter; Reason::ALL.len()] = [const { Counter::new() }; Reason::ALL.len()];

/// Counts a callback without a registration to revoke. Called in the callback: no print.
pub(crate) fn late_callback(ticket: u64) {
    trace::late_callback(ticket);
    LATE.add(1);
}

/// Late callbacks so far.
pub(crate) fn late_callbacks() -> u64 {
    LATE.value()
}

/// Counts a put whose error the provider did not explain.
pub(crate) fn put_error() {
    PUT_ERRORS.add(1);
}

/// Unexplained puts so far.
pub(crate) fn put_errors() -> u64 {
    PUT_ERRORS.value()
}

/// Each reason with the number of its refusals.
pub(crate) fn refusals() -> impl Iterator<Item = (Reason, u64)> + Clone {
    Reason::ALL.into_iter().zip(REFUSED.iter().map(Counter::value))
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
    pub(crate) place: Place,
    pub(crate) user: Span,
    pub(crate) reason: Reason,
}

/// Refusals that are remembered.
const REMEMBERED: usize = 64;

/// The last refusals: number `seq` is at `seq % REMEMBERED`.
struct Failures {
    count: u64,
    last: [Option<Failure>; REMEMBERED],
}

global_lock! {
    // SAFETY: Initialised in `init()`, before any client is registered.
    unsafe(uninit) static FAILURES: Mutex<Failures> = Failures { count: 0, last: [None; REMEMBERED] };
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
    usize::try_from(seq).unwrap_or(0).checked_rem(REMEMBERED).unwrap_or(0)
}

/// The first remembered refusal whose number is at least `seq`.
pub(crate) fn failure_from(seq: u64) -> Option<Failure> {
    let failures = FAILURES.lock();
    let oldest = failures.count.saturating_sub(u64::try_from(REMEMBERED).unwrap_or(0)).saturating_add(1);
    let seq = seq.max(oldest);
    (*failures.last.get(place_of(seq))?).filter(|failure| failure.seq == seq)
}

/// Counts and remembers a refusal, and says it in one line unless there were many just now.
///
/// Takes a lock of its own and prints: never under L or the registry lock, never in the callback.
pub(crate) fn refused(reason: Reason, place: Place, kind: Kind, user: Span) {
    let process = Process::current();
    trace::failure(reason, user);
    client(place).refused.add(1);
    for (each, counter) in Reason::ALL.iter().zip(&REFUSED) {
        if each.key() == reason.key() {
            counter.add(1);
        }
    }
    let mut failure =
        Failure { seq: 0, time_ns: shim::real_ns(), process, comm: shim::current_comm(), place, user, reason };
    {
        let mut failures = FAILURES.lock();
        failures.count = failures.count.saturating_add(1);
        failure.seq = failures.count;
        if let Some(slot) = failures.last.get_mut(place_of(failure.seq)) {
            *slot = Some(failure);
        }
    }
    if !shim::log_allowed() {
        return;
    }
    let errno = reason.errno_name();
    match reason.found() {
        None => pr_warn!(
            "process {}: {} registration of {} bytes at {:#x} refused with {}: {}\n",
            process.tgid(),
            kind.text(),
            user.len(),
            user.start(),
            errno,
            reason.words()
        ),
        Some(found) => pr_warn!(
            "process {}: {} registration of {} bytes at {:#x} refused with {}: {} (found {:#x})\n",
            process.tgid(),
            kind.text(),
            user.len(),
            user.start(),
            errno,
            reason.words(),
            found
        ),
    }
}
