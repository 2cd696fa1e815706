// SPDX-License-Identifier: GPL-2.0

//! Sorts a test's complaints about a module: memory is spoilt, something hangs, locks form a
//! circle, or an answer differs from what our module promises.

use lab::alarms;
use serde::Deserialize;
use std::fmt::{self, Display, Formatter};

/// A complaint about a module: from the guest (tests/guest/src/complaint.rs), or from the lab about
/// a machine that stopped.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Complaint {
    pub kind: Kind,
    pub text: String,
}

/// The kinds of complaints, with the names that the guest gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An alarm in the kernel's log.
    Kernel,
    /// The GPU driver still holds something for somebody.
    Pinned,
    Hang,
    /// Something came out otherwise than the test asks for.
    Promise,
    /// The machine stopped. The text is the alarm on its console, if there was one. The guest
    /// cannot say this.
    #[serde(skip)]
    Stopped,
}

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

    /// Sorts one complaint.
    pub fn of(Complaint { kind, text }: &Complaint) -> Self {
        let alarm = || alarms::scan(text).first().map(|alarm| alarm.kind);
        match (kind, alarm()) {
            (Kind::Pinned, _) | (Kind::Kernel | Kind::Stopped, Some(alarms::Kind::Kasan | alarms::Kind::Bug)) => {
                Verdict::MemorySafety
            }
            (Kind::Hang | Kind::Stopped, _) | (Kind::Kernel, Some(alarms::Kind::Hung)) => Verdict::Hang,
            (Kind::Kernel, Some(alarms::Kind::Lockdep)) => Verdict::Lockdep,
            (Kind::Kernel, Some(alarms::Kind::StandIn)) => Verdict::Lab,
            (Kind::Kernel | Kind::Promise, _) => Verdict::Promise,
        }
    }

    /// Returns the worst verdict and the complaint that it comes from. No complaint means clean.
    pub fn worst(what: &[Complaint]) -> (Self, Option<&Complaint>) {
        let all = what.iter().map(|what| (Self::of(what), Some(what)));
        all.min_by_key(|(verdict, _)| *verdict).unwrap_or((Verdict::Clean, None))
    }
}

impl Display for Complaint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Stopped => write!(f, "machine stopped: {}", self.text),
            _ => f.write_str(&self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(kind: Kind, text: &str) -> Complaint {
        Complaint { kind, text: text.to_string() }
    }

    #[test]
    fn each_complaint_has_its_verdict() {
        const CIRCLE: &str = "WARNING: possible circular locking dependency detected";
        const SPOILT: &str = "BUG: KASAN: slab-use-after-free in nv_dma_map+0x4ef/0x570 [nvidia_peermem]";
        for (kind, text, verdict) in [
            (Kind::Kernel, SPOILT, Verdict::MemorySafety),
            (Kind::Stopped, "Kernel panic - not syncing: Fatal exception", Verdict::MemorySafety),
            (Kind::Pinned, "the GPU's accounting is not clean: [(\"live_pins\", 1)]", Verdict::MemorySafety),
            (Kind::Stopped, "no word on the console", Verdict::Hang),
            (Kind::Stopped, CIRCLE, Verdict::Hang),
            (Kind::Kernel, "INFO: task guest:55 blocked for more than 60 seconds.", Verdict::Hang),
            (Kind::Hang, "did not end within 60s", Verdict::Hang),
            (Kind::Kernel, CIRCLE, Verdict::Lockdep),
            (Kind::Kernel, "nvidia_lab: hold put_before timed out", Verdict::Lab),
            (Kind::Promise, "BAR1 full: EFAULT, wanted ENOMEM", Verdict::Promise),
            // The kind decides, not a word of the text.
            (Kind::Promise, SPOILT, Verdict::Promise),
        ] {
            assert_eq!(Verdict::of(&complaint(kind, text)), verdict, "{kind:?}: {text}");
        }
    }

    #[test]
    fn the_worst_complaint_is_the_verdict() {
        let circle = complaint(Kind::Kernel, "WARNING: possible circular locking dependency detected");
        let spoilt = complaint(Kind::Kernel, "BUG: KASAN: slab-use-after-free in f");
        let broken = complaint(Kind::Promise, "0 users, wanted 1");
        assert_eq!(Verdict::worst(&[]), (Verdict::Clean, None));
        assert_eq!(Verdict::worst(&[circle.clone(), spoilt.clone()]), (Verdict::MemorySafety, Some(&spoilt)));
        assert_eq!(Verdict::worst(&[broken, circle]).0, Verdict::Promise);
    }

    #[test]
    fn a_kind_that_the_lab_does_not_know_is_an_error() {
        let read = |kind: &str| serde_json::from_value::<Complaint>(serde_json::json!({"kind": kind, "text": "x"}));
        for kind in ["kernel", "pinned", "hang", "promise"] {
            read(kind).unwrap();
        }
        for kind in ["stopped", "Kernel", "other"] {
            assert!(read(kind).is_err(), "{kind}");
        }
    }
}
