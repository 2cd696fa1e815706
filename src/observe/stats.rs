// SPDX-License-Identifier: GPL-2.0

//! Counters. The driver above reads them, and shows them in its own way.
//!
//! Counters only grow; what exists now is a difference. Each is one number for all CPUs, because
//! registrations wait a hundred times as long for locks of the driver above (docs/bench.md).

use crate::ffi::shim::{self, Kind};
use crate::num;
use crate::observe::trace;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed};

/// A number that only grows.
///
/// What counts beginnings and what counts their ends are two of these, added to under one state
/// lock. The kernel's locks order the first before the second for everybody, not for holders alone,
/// so Relaxed is enough there. A reader needs Acquire: whoever reads the ends first, and the
/// beginnings then, finds no end without its beginning.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts `by` more. Allowed everywhere.
    pub(crate) fn add(&self, by: u64) {
        let _ = self.0.fetch_add(by, Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Acquire)
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

/// The counters of the owner of one kind. Their meanings and units are in docs/proc.md.
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
    pub(crate) lost: Counter,
    pub(crate) lost_bytes: Counter,
    get: Times,
    put: Times,
    map: Times,
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
            lost: Counter::new(),
            lost_bytes: Counter::new(),
            get: Times::new(),
            put: Times::new(),
            map: Times::new(),
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
        let bucket = num::index(exponent).min(BUCKETS.saturating_sub(1));
        if let Some(counter) = self.histogram.get(bucket) {
            counter.add(1);
        }
    }
}

static PERSISTENT: PerClient = PerClient::new();
static REVOCABLE: PerClient = PerClient::new();

/// Returns the counters of the owner that pins as `kind` says.
pub(crate) fn client(kind: Kind) -> &'static PerClient {
    match kind {
        Kind::Persistent => &PERSISTENT,
        Kind::Revocable => &REVOCABLE,
    }
}

/// Times of one kind of provider call, summed.
pub(crate) struct Summary {
    pub(crate) calls: u64,
    pub(crate) total_ns: u64,
    pub(crate) longest_ns: u64,
    pub(crate) histogram: [u64; BUCKETS],
}

impl Summary {
    /// Returns counters that have counted no call.
    pub(crate) const fn new() -> Self {
        Self { calls: 0, total_ns: 0, longest_ns: 0, histogram: [0; BUCKETS] }
    }

    /// Adds the times of `call` for the owner that pins as `kind` says.
    pub(crate) fn add(&mut self, kind: Kind, call: Call) {
        let times = client(kind).times(call);
        self.total_ns = self.total_ns.wrapping_add(times.total.value());
        self.longest_ns = self.longest_ns.max(times.longest.value());
        for (sum, bucket) in self.histogram.iter_mut().zip(&times.histogram) {
            let calls = bucket.value();
            *sum = sum.wrapping_add(calls);
            self.calls = self.calls.wrapping_add(calls);
        }
    }
}

/// Runs `provider`, for a pin of `kind`, and counts how long it took. Answers with the time of its
/// end, in nanoseconds of [`shim::now_ns()`].
pub(crate) fn timed<T>(kind: Kind, call: Call, provider: impl FnOnce() -> T) -> (T, u64) {
    let start = shim::now_ns();
    let result = provider();
    let end = shim::now_ns();
    client(kind).times(call).add(end.saturating_sub(start));
    (result, end)
}

/// Callbacks that found nothing to do: late, repeated or stale.
static LATE: Counter = Counter::new();
/// Puts that the provider failed and that are not tried again.
static PUT_ERRORS: Counter = Counter::new();

/// Asks for memory that the provider does not know.
static UNANSWERED: Counter = Counter::new();

/// Counts an ask for memory that is nobody's. The caller does so once for all owners.
pub(crate) fn unanswered_ask() {
    UNANSWERED.add(1);
}

/// Returns how many asks were for memory that is nobody's.
pub(crate) fn unanswered_asks() -> u64 {
    UNANSWERED.value()
}

/// Counts a callback without a registration to revoke. Called in the callback: no print.
pub(crate) fn late_callback(ticket: u64) {
    trace::late_callback(ticket);
    LATE.add(1);
}

/// Returns the number of late callbacks so far.
pub(crate) fn late_callbacks() -> u64 {
    LATE.value()
}

/// Counts puts that the provider failed and that are not tried again.
pub(crate) fn add_put_errors(puts: u64) {
    PUT_ERRORS.add(puts);
}

/// Returns the number of such puts so far.
pub(crate) fn put_errors() -> u64 {
    PUT_ERRORS.value()
}
