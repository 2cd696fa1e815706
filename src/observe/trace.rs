// SPDX-License-Identifier: GPL-2.0

//! Safe functions over the tracepoints `nvidia_peermem:*` (docs/tracing.md).
//!
//! All of them are allowed under every lock of ours and in the free callback. While nobody listens,
//! an event that takes time costs one load.

use crate::ffi::raw;
use crate::ffi::shim;
use crate::observe::reason::Reason;
use crate::range::Span;
use kernel::prelude::*;

/// An event of one registration.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// The question of the driver above whose memory it is, as a whole.
    Acquire,
    /// The provider's get.
    Pin,
    /// The mapping for a device as a whole.
    Map,
    /// A mapping was undone.
    Unmap,
    /// The provider's put.
    Put,
    /// The free callback, up to its end.
    Revoke,
    /// A pin was left to the callback or to its owner's next call.
    Orphan,
}

impl Event {
    fn number(self) -> u32 {
        match self {
            Self::Acquire => raw::NVPM_TRACE_ACQUIRE,
            Self::Pin => raw::NVPM_TRACE_PIN,
            Self::Map => raw::NVPM_TRACE_MAP,
            Self::Unmap => raw::NVPM_TRACE_UNMAP,
            Self::Put => raw::NVPM_TRACE_PUT,
            Self::Revoke => raw::NVPM_TRACE_REVOKE,
            Self::Orphan => raw::NVPM_TRACE_ORPHAN,
        }
    }
}

/// Something that takes time and ends in an event.
pub(crate) struct Timer {
    event: Event,
    /// 0 while nobody listens: then the clock is not read, and a listener that comes meanwhile
    /// misses this event.
    start_ns: u64,
}

impl Timer {
    /// Starts the clock, if somebody listens to an event of registrations.
    pub(crate) fn start(event: Event) -> Self {
        // SAFETY: The variable of trace.c is aligned and lives as long as the module. C writes it
        // with WRITE_ONCE(), and a volatile read is the counterpart. Nothing is ordered by it: an
        // old value loses events of the moment in which a listener came.
        let listened = unsafe { (&raw const raw::nvpm_trace_listened).read_volatile() };
        Self { event, start_ns: if listened == 0 { 0 } else { shim::now_ns() } }
    }

    /// Emits the event with the time since the start. Asks `traced` only while somebody listens.
    pub(crate) fn end(self, traced: impl FnOnce() -> raw::nvpm_traced, result: Result) {
        if self.start_ns != 0 {
            emit(self.event, &traced(), result, shim::now_ns().saturating_sub(self.start_ns));
        }
    }
}

/// Emits an event that took no time.
pub(crate) fn now(event: Event, traced: &raw::nvpm_traced) {
    emit(event, traced, Ok(()), 0);
}

fn emit(event: Event, traced: &raw::nvpm_traced, result: Result, ns: u64) {
    let ret = match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    };
    // SAFETY: `traced` is valid for reading.
    unsafe { raw::nvpm_trace_registration(event.number(), traced, ret, ns) };
}

/// Traces a callback that found no registration, or one that was revoked before.
pub(crate) fn late_callback(ticket: u64) {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_trace_late_callback(ticket) };
}

/// Traces a registration that was refused.
pub(crate) fn failure(reason: Reason, user: Span) {
    let text = reason.key();
    let errno = reason.errno().to_errno().saturating_neg();
    // SAFETY: The text is valid for its length.
    unsafe { raw::nvpm_trace_failure(user.start(), user.len(), errno, text.as_ptr(), text.len()) };
}
