// SPDX-License-Identifier: GPL-2.0

//! Sorts a test's complaints about a module: memory is spoilt, something hangs, locks form a
//! circle, or an answer differs from what our module promises.

use lab::alarms::{self, Kind};

/// The kinds of complaints, beginning with the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// KASAN reports spoilt memory, the kernel oopses (perhaps as the machine's last word), or
    /// nobody puts a pin.
    MemorySafety,
    Hang,
    Promise,
    Lockdep,
    /// A stand-in reports that the test itself went wrong.
    Lab,
    Clean,
    /// The test asks for something that only our module promises, so NVIDIA's module is spared it.
    NotAsked,
}

impl Verdict {
    /// Each verdict, with its name and its meaning.
    pub const LEGEND: [(Verdict, &'static str, &'static str); 7] = [
        (Verdict::MemorySafety, "memory safety", "memory used after its end, an oops, or a pin that is never put"),
        (Verdict::Hang, "hang", "a task or the machine does not go on"),
        (
            Verdict::Promise,
            "promise",
            "another errno, row or message than ours promises, also where lockdep had something to say",
        ),
        (Verdict::Lockdep, "lockdep", "lockdep reports a circle of locks; the rest came out as it should"),
        (Verdict::Lab, "lab", "the test itself went wrong"),
        (Verdict::Clean, "clean", "as it should"),
        (Verdict::NotAsked, "not asked", "only ours promises it"),
    ];

    pub fn name(self) -> &'static str {
        Verdict::LEGEND.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// Classifies one complaint line from the guest (tests/guest/src/runner.rs), or from the lab
    /// for a machine that stopped.
    pub fn of(what: &str) -> Self {
        let stopped = what.strip_prefix("machine stopped: ");
        if let Some(said) = stopped.or_else(|| what.strip_prefix("the kernel: ")) {
            let kind = alarms::scan(said).first().map(|alarm| alarm.kind);
            return match kind {
                Some(Kind::Kasan | Kind::Bug) => Verdict::MemorySafety,
                _ if stopped.is_some() => Verdict::Hang,
                Some(Kind::Hung) => Verdict::Hang,
                Some(Kind::Lockdep) => Verdict::Lockdep,
                Some(Kind::StandIn) => Verdict::Lab,
                _ => Verdict::Promise,
            };
        }
        let begins = |words: &[&str]| words.iter().any(|word| what.starts_with(word));
        if begins(&["the GPU's accounting is not clean: ", "still pinned: "]) {
            Verdict::MemorySafety
        } else if begins(&["hung: ", "its process cannot be killed"]) {
            Verdict::Hang
        } else {
            Verdict::Promise
        }
    }

    /// Returns the worst verdict and the complaint that it comes from. No complaint means clean.
    pub fn worst(what: &[String]) -> (Self, Option<&str>) {
        let all = what.iter().map(|what| (Self::of(what), Some(what.as_str())));
        all.min_by_key(|(verdict, _)| *verdict).unwrap_or((Verdict::Clean, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_has_its_verdict() {
        for (what, verdict) in [
            (
                "the kernel: BUG: KASAN: slab-use-after-free in nv_dma_map+0x4ef/0x570 [nvidia_peermem]",
                Verdict::MemorySafety,
            ),
            ("machine stopped: Kernel panic - not syncing: Fatal exception", Verdict::MemorySafety),
            ("the GPU's accounting is not clean: [(\"live_pins\", 1)]", Verdict::MemorySafety),
            ("machine stopped: no word on the console", Verdict::Hang),
            ("machine stopped: WARNING: possible circular locking dependency detected", Verdict::Hang),
            ("the kernel: INFO: task guest:55 blocked for more than 60 seconds.", Verdict::Hang),
            ("hung: did not end within 60s", Verdict::Hang),
            ("its process cannot be killed", Verdict::Hang),
            ("the kernel: WARNING: possible circular locking dependency detected", Verdict::Lockdep),
            ("the kernel: nvidia_lab: hold put_before timed out", Verdict::Lab),
            ("BAR1 full: EFAULT, wanted ENOMEM", Verdict::Promise),
        ] {
            assert_eq!(Verdict::of(what), verdict, "{what}");
        }
    }

    #[test]
    fn the_worst_complaint_is_the_verdict() {
        let circle = "the kernel: WARNING: possible circular locking dependency detected".to_string();
        let spoilt = "the kernel: BUG: KASAN: slab-use-after-free in f".to_string();
        assert_eq!(Verdict::worst(&[]), (Verdict::Clean, None));
        assert_eq!(Verdict::worst(&[circle.clone(), spoilt.clone()]), (Verdict::MemorySafety, Some(spoilt.as_str())));
        assert_eq!(Verdict::worst(&["0 users, wanted 1".to_string(), circle.clone()]).0, Verdict::Promise);
    }
}
