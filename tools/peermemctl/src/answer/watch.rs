// SPDX-License-Identifier: GPL-2.0
//! `watch`: the counters and what happened since the last look.

use crate::check::Level;
use crate::peermem::{self, Stats};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// One look at the counters, with what happened since the last one.
#[derive(Serialize, JsonSchema)]
pub struct Tick {
    /// Seconds since 1970.
    pub time: f64,
    /// Seconds since the last look; 0 at the first.
    pub seconds: f64,
    pub live: u64,
    pub live_bytes: u64,
    pub orphans: u64,
    pub callbacks_in_flight: u64,
    pub oldest_callback_ms: u64,
    pub pins_per_second: f64,
    pub unpins_per_second: f64,
    pub revocations_per_second: f64,
    pub refused_per_second: f64,
    /// Mean time of the provider's get since the last look, in microseconds.
    pub get_mean_us: Option<f64>,
    /// Pins per second of the last looks, this one included.
    #[serde(skip)]
    pub recent: Vec<f64>,
    /// All counters.
    pub counters: BTreeMap<String, u64>,
}

impl Tick {
    /// Returns a failure while a free callback is stuck, and a warning if something was refused
    /// since the last look or a registration is an orphan.
    pub(super) fn level(&self) -> Level {
        if self.oldest_callback_ms >= peermem::STUCK_MS {
            Level::Fail
        } else if self.refused_per_second > 0.0 || self.orphans > 0 {
            Level::Warn
        } else {
            Level::Ok
        }
    }
}

/// Answers one round of `watch`.
pub fn tick(stats: &Stats, before: Option<(&Stats, f64)>) -> Tick {
    let number = |key: &str| stats.number(key).unwrap_or(0);
    let grown = |key: &str| {
        let (old, _) = before?;
        Some(number(key).saturating_sub(old.number(key).unwrap_or(0)) as f64)
    };
    let seconds = before.map_or(0.0, |(_, seconds)| seconds);
    let rate = |key: &str| match grown(key) {
        Some(grown) if seconds > 0.0 => grown / seconds,
        _ => 0.0,
    };
    let calls = grown("provider.get.calls").filter(|calls| *calls > 0.0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Tick {
        time: since.map_or(0.0, |since| since.as_secs_f64()),
        recent: Vec::new(),
        seconds,
        live: number("total.live"),
        live_bytes: number("total.live_bytes"),
        orphans: number("total.orphans"),
        callbacks_in_flight: number("callbacks_in_flight"),
        oldest_callback_ms: number("oldest_callback_ms"),
        pins_per_second: rate("total.pins"),
        unpins_per_second: rate("total.unpins"),
        revocations_per_second: rate("total.revocations"),
        refused_per_second: rate("total.refused"),
        get_mean_us: calls.and_then(|calls| Some(grown("provider.get.total_ns")? / calls / 1000.0)),
        counters: stats.below("").map(|(key, count)| (key.to_owned(), count)).collect(),
    }
}
