//! What the kernel complains about on its console.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Kasan,
    /// Of data races, those alone that a module of the lab is in: the kernel has races of its own.
    Kcsan,
    Ubsan,
    Lockdep,
    Kmemleak,
    DmaApi,
    Hung,
    /// A stand-in found that the lab itself was left in a state no test may leave it in.
    StandIn,
    Warning,
    Bug,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alarm {
    pub kind: Kind,
    /// The line as it stands on the console, and its number from 1.
    pub line: String,
    pub number: usize,
}

/// Headlines of lockdep's reports, and what it says when it gives up.
const LOCKDEP: [&str; 17] = [
    "possible circular locking dependency",
    "possible recursive locking",
    "inconsistent lock state",
    "possible irq lock inversion",
    "lock order detected",
    "lock held when returning to user space",
    "still has locks held",
    "bad unlock balance",
    "bad contention detected",
    "held lock freed",
    "Nested lock was not taken",
    "Invalid wait context",
    "suspicious RCU usage",
    "trying to register non-static key",
    "turning off the locking correctness validator",
    "BUG: MAX_LOCK",
    "exit with locks held",
];

/// How a report of KCSAN names the modules whose races count.
const RACES_IN: [&str; 2] = ["[nvidia_peermem]", "[lab_alarms]"];

/// What the DMA debugging code says while it starts.
const DMA_API_QUIET: [&str; 4] =
    ["preallocated", "debugging enabled by kernel config", "debugging disabled on kernel command line", "sg debug"];

pub fn scan(log: &str) -> Vec<Alarm> {
    log.lines()
        .enumerate()
        .filter_map(|(i, line)| {
            kind(message(line)).map(|kind| Alarm { kind, line: line.trim_end().to_string(), number: i + 1 })
        })
        .collect()
}

pub fn count(alarms: &[Alarm]) -> BTreeMap<Kind, usize> {
    let mut map = BTreeMap::new();
    for alarm in alarms {
        *map.entry(alarm.kind).or_insert(0) += 1;
    }
    map
}

/// A console line without its time and caller: `[   12.345678][  T123] text`.
fn message(line: &str) -> &str {
    let mut rest = line;
    while let Some(inner) = rest.strip_prefix('[') {
        match inner.split_once(']') {
            Some((stamp, after)) if stamp.chars().all(|c| c.is_ascii_digit() || " .TC".contains(c)) => {
                rest = after.trim_start()
            }
            _ => break,
        }
    }
    rest
}

fn kind(text: &str) -> Option<Kind> {
    let has = |s: &str| text.contains(s);
    let starts = |s: &str| text.starts_with(s);
    if has("BUG: KASAN:") {
        Some(Kind::Kasan)
    } else if has("BUG: KCSAN:") {
        RACES_IN.iter().any(|module| has(module)).then_some(Kind::Kcsan)
    } else if starts("UBSAN:") {
        Some(Kind::Ubsan)
    } else if LOCKDEP.iter().any(|s| has(s)) {
        Some(Kind::Lockdep)
    } else if starts("kmemleak:")
        && (has("new suspected memory leaks") || has("disabled") || has("out of memory") || has("Cannot"))
    {
        Some(Kind::Kmemleak)
    } else if has("DMA-API:") && !DMA_API_QUIET.iter().any(|s| has(s)) {
        Some(Kind::DmaApi)
    } else if (has("INFO: task") && has("blocked for more than"))
        || (has("rcu") && has("stall"))
        || has("soft lockup")
        || has("hard LOCKUP")
        || has("workqueue lockup")
    {
        Some(Kind::Hung)
    } else if starts("nvidia_lab:") && has("timed out") {
        Some(Kind::StandIn)
    } else if starts("WARNING:") {
        Some(Kind::Warning)
    } else if starts("BUG:")
        || has("kernel BUG at")
        || starts("Oops")
        || starts("general protection fault")
        || starts("Kernel panic")
        || has("unable to handle")
        || starts("list_add corruption")
        || starts("list_del corruption")
        || has("invoked oom-killer")
        || has("page allocation failure")
        || starts("slab error")
        || has("stack-protector:")
        || has("Bad page state")
    {
        Some(Kind::Bug)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Written by the lab's own kernel: a boot without incident; one of each alarm of the suite
    // `alarms`; and a module that warned, overused a reference count, unmapped what was not mapped,
    // slept under a spinlock and hung.
    const CLEAN: &str = include_str!("../samples/clean.log");
    const ALARMS: &str = include_str!("../samples/alarms.log");
    const COMPLAINTS: &str = include_str!("../samples/complaints.log");

    #[test]
    fn a_boot_without_incident_raises_nothing() {
        assert_eq!(scan(CLEAN), []);
    }

    #[test]
    fn each_report_counts_once() {
        let got = count(&scan(ALARMS));
        let once = [Kind::Lockdep, Kind::Kasan, Kind::Ubsan, Kind::Kmemleak].map(|kind| (kind, 1));
        // DEBUG_OBJECTS and DEBUG_VM.
        assert_eq!(got, once.into_iter().chain([(Kind::Warning, 2)]).collect());
    }

    #[test]
    fn other_complaints() {
        let alarms = scan(COMPLAINTS);
        let got = count(&alarms);
        assert_eq!(got[&Kind::Hung], 2);
        assert_eq!(got[&Kind::DmaApi], 1);
        assert_eq!(got[&Kind::Bug], 3, "{alarms:#?}");
        assert!(alarms.iter().any(|a| a.kind == Kind::Warning && a.line.contains("more.c:15")));
        let first = &alarms[0];
        assert_eq!(COMPLAINTS.lines().nth(first.number - 1), Some(first.line.as_str()));
    }

    #[test]
    fn reports_that_have_no_sample() {
        let one = |line: &str| scan(line).first().map(|a| a.kind);
        assert_eq!(
            one("[    1.0][  T12] BUG: kernel NULL pointer dereference, address: 0000000000000008"),
            Some(Kind::Bug)
        );
        assert_eq!(one("[    1.0] Kernel panic - not syncing: Attempted to kill init!"), Some(Kind::Bug));
        assert_eq!(one("[    1.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"), Some(Kind::Hung));
        assert_eq!(one("[    1.0] nvidia_lab: hold get_done timed out"), Some(Kind::StandIn));
        assert_eq!(one("[    1.0] kmemleak: Automatic memory scanning thread started"), None);
        assert_eq!(one("[    1.0] nvidia-peermem: persistent_api_support=7: use 0 or 1"), None);
    }
}
