// SPDX-License-Identifier: GPL-2.0

//! The facts of a registration that a driver can show: in a file, in the log, by tracepoints.

use crate::ffi::raw;
use crate::ffi::shim::Process;
use crate::observe::refusals::Asked;
use crate::pin::registration::{Inner, Registration, Tables};
use crate::pin::state::{Memory, Phase};
use crate::range::Span;

/// A registration at one moment.
pub(crate) struct Snapshot {
    pub(crate) client: Asked,
    pub(crate) process: Process,
    pub(crate) comm: [u8; 16],
    pub(crate) user: Span,
    /// Bytes of the pins that exist now.
    pub(crate) pinned_bytes: u64,
    pub(crate) phase: Phase,
    pub(crate) tables: Option<Tables>,
    pub(crate) runs: usize,
    /// PCI numbers, 0 for none.
    pub(crate) gpu: u64,
    pub(crate) device: u64,
    /// When it was pinned, 0 before.
    pub(crate) since_ns: u64,
    /// When the free callback that is running now began, 0 without one.
    pub(crate) callback_ns: u64,
    /// Says whether that callback is waiting for the device to stop.
    pub(crate) invalidating: bool,
}

impl Registration {
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

    /// Returns this registration at this moment. `inner` is its own.
    pub(crate) fn snapshot(&self, inner: &Inner) -> Snapshot {
        let (runs, (gpu, device)) = match inner.state.memory() {
            Memory::None => (0, (0, 0)),
            Memory::Read(pinned) => (pinned.runs.as_slice().len(), (0, 0)),
            Memory::Mapped(mappings) => (mappings.runs(), mappings.ends()),
        };
        Snapshot {
            client: self.owner().asked,
            process: *self.process(),
            comm: self.comm,
            user: self.range().user(),
            pinned_bytes: inner.counted.bytes,
            phase: inner.state.phase(),
            tables: inner.tables,
            runs,
            gpu,
            device,
            since_ns: inner.since_ns,
            callback_ns: inner.callback_ns,
            invalidating: inner.invalidating.is_some(),
        }
    }
}
