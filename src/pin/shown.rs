// SPDX-License-Identifier: GPL-2.0

//! What admins see of a registration: in `/proc`, in the log, by tracepoints.

use crate::ffi::raw;
use crate::observe::proc::Snapshot;
use crate::observe::refusals::Asked;
use crate::pin::registration::{Inner, Registration};
use crate::pin::state::Memory;
use crate::range::Span;

impl Registration {
    /// Returns the owner as refusals and `/proc` name it.
    pub(crate) fn asked(&self) -> Asked {
        self.owner().asked()
    }

    /// Returns what tracepoints show of this registration.
    pub(crate) fn traced(&self) -> raw::nvpm_traced {
        raw::nvpm_traced {
            ticket: self.ticket(),
            va: self.range().user().start(),
            length: self.range().user().len(),
            revocable: self.is_revocable().into(),
        }
    }

    /// Returns what tracepoints show of one of its pieces.
    pub(crate) fn traced_piece(&self, piece: Span) -> raw::nvpm_traced {
        raw::nvpm_traced { va: piece.start(), length: piece.len(), ..self.traced() }
    }

    /// Returns this registration as the admin sees it. `inner` is its own.
    pub(crate) fn snapshot(&self, inner: &Inner) -> Snapshot {
        let (runs, (gpu, nic)) = match inner.state.memory() {
            Memory::None => (0, (0, 0)),
            Memory::Read(pinned) => (pinned.runs.as_slice().len(), (0, 0)),
            Memory::Mapped(mappings) => (mappings.runs(), mappings.ends()),
        };
        Snapshot {
            client: self.asked(),
            process: *self.process(),
            comm: self.comm,
            user: self.range().user(),
            pinned_bytes: inner.counted.bytes,
            state: inner.state.phase().text(),
            tables: inner.tables,
            runs,
            gpu,
            nic,
            since_ns: inner.since_ns,
            callback_ns: inner.callback_ns,
            invalidating: inner.invalidating.is_some(),
        }
    }
}
