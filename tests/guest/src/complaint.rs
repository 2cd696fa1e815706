// SPDX-License-Identifier: GPL-2.0
//! Complaints of the runner about a test. Each has a kind, by which the host sorts them
//! (ci/qemu/lab/src/verdict.rs): no wording of a message decides a verdict.

use std::fmt::{self, Display, Formatter};

use serde_json::{json, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel's log has an alarm. The host knows the kinds of alarms.
    Kernel,
    /// The GPU driver still holds something for somebody.
    Pinned,
    /// A process does not end.
    Hang,
    /// Something came out otherwise than the test asks for.
    Promise,
}

pub struct Complaint {
    kind: Kind,
    text: String,
}

impl Kind {
    pub fn said(self, text: String) -> Complaint {
        Complaint { kind: self, text }
    }

    /// Returns the name by which the host knows the kind.
    fn name(self) -> &'static str {
        match self {
            Kind::Kernel => "kernel",
            Kind::Pinned => "pinned",
            Kind::Hang => "hang",
            Kind::Promise => "promise",
        }
    }
}

impl Complaint {
    pub fn row(&self) -> Value {
        json!({ "kind": self.kind.name(), "text": self.text })
    }
}

impl Display for Complaint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Kernel => write!(f, "the kernel: {}", self.text),
            _ => f.write_str(&self.text),
        }
    }
}
