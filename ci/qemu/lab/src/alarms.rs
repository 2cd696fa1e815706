// SPDX-License-Identifier: GPL-2.0

//! Recognises what the kernel complains about on its console.

use regex::{Regex, RegexSet};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Kasan,
    /// A data race that involves a module of the lab. Races within the kernel itself do not count.
    Kcsan,
    Ubsan,
    Lockdep,
    Kmemleak,
    DmaApi,
    Hung,
    /// A stand-in reports that a test has left the lab in a state in which no test may leave it.
    StandIn,
    Warning,
    Bug,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alarm {
    pub kind: Kind,
    /// The line as it stands on the console. `number` is its position, counted from 1.
    pub line: String,
    pub number: usize,
}

/// The text of each kind of report, behind the time stamp. The first pattern that fits decides.
const REPORTS: [(Option<Kind>, &str); 12] = [
    (Some(Kind::Kasan), "BUG: KASAN:"),
    (Some(Kind::Kcsan), r"BUG: KCSAN:.*\[(nvidia_peermem|lab_alarms)\]"),
    (None, "BUG: KCSAN:"),
    (Some(Kind::Ubsan), "^UBSAN:"),
    // The headlines of DMA-API reports, and the line in which DMA-API gives up.
    (
        Some(Kind::Lockdep),
        "possible (circular locking dependency|recursive locking|irq lock inversion)|inconsistent lock state\
        |lock order detected|lock held when returning to user space|still has locks held|bad unlock balance\
        |bad contention detected|held lock freed|Nested lock was not taken|Invalid wait context\
        |suspicious RCU usage|trying to register non-static key|exit with locks held\
        |turning off the locking correctness validator|BUG: MAX_LOCK",
    ),
    (Some(Kind::Kmemleak), "^kmemleak:.*(new suspected memory leaks|disabled|out of memory|Cannot)"),
    // The lines that DMA-API prints while it starts.
    (None, "DMA-API:.*(preallocated|sg debug|enabled by kernel config|disabled on kernel command line)"),
    (Some(Kind::DmaApi), "DMA-API:"),
    (Some(Kind::Hung), "INFO: task.*blocked for more than|rcu.*stall|soft lockup|hard LOCKUP|workqueue lockup"),
    (Some(Kind::StandIn), "^nvidia_lab:.*timed out"),
    (Some(Kind::Warning), "^WARNING:"),
    (
        Some(Kind::Bug),
        "^(BUG:|Internal error:|Oops|general protection fault|Kernel panic|list_(add|del) corruption|slab error)\
        |kernel BUG at|[Uu]nable to handle|invoked oom-killer|page allocation failure|stack-protector:|Bad page state",
    ),
];
static PATTERNS: LazyLock<RegexSet> =
    LazyLock::new(|| RegexSet::new(REPORTS.map(|(_, pattern)| pattern)).expect("a pattern above"));
/// Matches the time and caller in front of a line: `[   12.345678][  T123] text`.
static STAMPS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\[[ .TC0-9]+\] *)*").expect("a pattern"));

/// Matches the line by which the GPU's stand-in announces that a fault has NVIDIA's own code warn.
static ANNOUNCED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"nvidia_lab: a warning of ([^ ]+) follows").expect("a pattern"));

/// Returns the alarms of a log. A warning that was announced is none, and an announced one that does
/// not come is one.
pub fn scan(log: &str) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    let mut announced: Vec<(&str, Alarm)> = Vec::new();
    for (i, line) in log.lines().enumerate() {
        let alarm = |kind| Alarm { kind, line: line.trim_end().to_string(), number: i + 1 };
        if let Some(file) = ANNOUNCED.captures(line).and_then(|found| found.get(1)) {
            announced.push((file.as_str(), alarm(Kind::StandIn)));
            continue;
        }
        let Some(kind) = kind(line) else { continue };
        match announced.iter().position(|(file, _)| kind == Kind::Warning && line.contains(file)) {
            Some(at) => drop(announced.remove(at)),
            None => alarms.push(alarm(kind)),
        }
    }
    alarms.extend(announced.into_iter().map(|(_, alarm)| alarm));
    alarms
}

fn kind(line: &str) -> Option<Kind> {
    let report = STAMPS.replace(line, "");
    REPORTS[PATTERNS.matches(&report).iter().next()?].0
}

#[cfg(test)]
mod tests {
    use super::*;
    use peermem_proc::kernel_log::REPORTS;
    use std::collections::BTreeMap;

    // The lab's own kernel wrote these logs: a boot without incident; one of each alarm of the
    // suite `alarms`; and a module that warned, overused a reference count, unmapped what was not
    // mapped, slept under a spinlock and hung.
    const CLEAN: &str = include_str!("../samples/clean.log");
    const ALARMS: &str = include_str!("../samples/alarms.log");
    const COMPLAINTS: &str = include_str!("../samples/complaints.log");

    fn count(alarms: &[Alarm]) -> BTreeMap<Kind, usize> {
        let mut map = BTreeMap::new();
        alarms.iter().for_each(|alarm| *map.entry(alarm.kind).or_default() += 1);
        map
    }

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
    fn an_announced_warning_is_no_alarm() {
        const ANNOUNCED: &str = "[    1.0][  T12] nvidia_lab: a warning of nv-p2p.c follows\n";
        const WARNING: &str = "[    1.1] WARNING: CPU: 0 PID: 7 at nv/nvidia/nv-p2p.c:341 put+0x1/0x2 [nvidia]\n";
        let of = |log: &str| scan(log).into_iter().map(|a| (a.kind, a.number)).collect::<Vec<_>>();
        assert_eq!(of(&[ANNOUNCED, WARNING].concat()), []);
        assert_eq!(of(&[ANNOUNCED, ANNOUNCED, WARNING, WARNING].concat()), []);
        assert_eq!(of(&[ANNOUNCED, WARNING, WARNING].concat()), [(Kind::Warning, 3)]);
        assert_eq!(of(&[WARNING, ANNOUNCED].concat()), [(Kind::Warning, 1), (Kind::StandIn, 2)]);
        let other = "[    1.1] WARNING: CPU: 0 PID: 7 at more.c:15 more+0x1/0x2 [more]\n";
        assert_eq!(of(&[ANNOUNCED, other].concat()), [(Kind::Warning, 2), (Kind::StandIn, 1)]);
    }

    #[test]
    fn a_report_that_the_guest_sees_is_an_alarm() {
        // What follows makes a blocked task and a stall of the two beginnings that need more.
        for begin in REPORTS {
            let line = format!("[    1.0] {begin}x blocked for more than 60 s, stalls");
            assert_eq!(scan(&line).len(), 1, "{line}");
        }
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
