// SPDX-License-Identifier: GPL-2.0

//! A pin of GPU pages: the provider's get and put.

use crate::ffi::raw;
use crate::ffi::shim::{self, Kind, OwnProcess, PutGateExclusive, PutGateShared};
use crate::num;
use crate::observe::stats::{self, Call};
use crate::range::Span;
use crate::several::Several;
use core::ffi::c_void;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;

/// Fails unless the provider is loaded, lets this module use it, and is that of a GPU with memory of its
/// own. Tegra's functions have the same names and other arguments.
pub(crate) fn find_provider() -> Result {
    // SAFETY: No precondition.
    let present = unsafe { raw::nvpm_provider_present() };
    if present > 0 {
        return Ok(());
    }
    if present < 0 {
        pr_err!(
            "the GPU driver has no persistent pins, so it is that of an integrated GPU (Tegra), or older than 550, which this module needs: on an integrated GPU take memory of cudaHostAlloc() and plain ibv_reg_mr(), which need no such module; else update the GPU driver\n"
        );
        return Err(ENODEV);
    }
    pr_err!(
        "the GPU driver is not loaded, or it is closed and this build with GPL-only imports may not use it: modprobe nvidia and load again, or build with KERNEL_CRATE=lite\n"
    );
    Err(ENODEV)
}

/// Returns the ticket that the provider hands to the free callback. It is a number and never
/// followed.
pub(crate) fn ticket_of(data: *mut c_void) -> u64 {
    num::u64_from(data.addr())
}

/// The provider's handle of one pin.
///
/// There is no `Drop`: the owner decides whether and when a pin may be put (rules 7 and 8).
///
/// # Invariants
///
/// The provider's get returned `table` for `span`, in the way that `kind` names. A persistent pin's
/// table is valid until the put, a revocable pin's until the free callback has returned.
pub(crate) struct PagePin {
    table: NonNull<raw::nvidia_p2p_page_table>,
    kind: Kind,
    span: Span,
    /// When the provider gave it, in nanoseconds.
    since_ns: u64,
}

/// The pins of one registration, in the order of their addresses. A revocable one is alone: the
/// provider takes each back by itself, and its callback names the registration only.
pub(crate) type Pins = Several<PagePin>;

// SAFETY: The table is the provider's memory and bound to no thread. The owner checks which process
// may put it.
unsafe impl Send for PagePin {}

/// The permission to put a pin.
pub(crate) enum Permit<'a> {
    /// A persistent pin needs nothing.
    Persistent,
    /// A revocable one needs the put gate, held exclusively until the put has returned, and the caller
    /// runs for the process that got it (rules 7 and 8).
    Revocable { _gate: &'a PutGateExclusive, _process: &'a OwnProcess },
}

/// What became of pins that the provider was asked to take back.
#[must_use]
pub(crate) enum Put {
    /// They are gone.
    Done,
    /// The provider failed before it undid anything: the revocable pin is as it was, its callback
    /// armed.
    Kept(Pins, Error),
    /// The provider failed, and nothing can end the persistent pins that it failed for.
    Lost(Lost),
}

/// Persistent pins whose put failed. They stay pinned (docs/safety.md#failed-put): the provider has
/// given its reference of the GPU back, and another put would give back one that others hold.
pub(crate) struct Lost {
    /// The first error.
    pub(crate) error: Error,
    /// How many pins.
    pub(crate) pins: u64,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

impl Put {
    /// Returns the provider's own answer.
    pub(crate) fn answer(&self) -> Result {
        match self {
            Self::Done => Ok(()),
            Self::Kept(_, error) | Self::Lost(Lost { error, .. }) => Err(*error),
        }
    }

    /// Adds up the results of two puts.
    fn and(self, next: Self) -> Self {
        match (self, next) {
            (Self::Lost(lost), Self::Lost(next)) => Self::Lost(Lost {
                error: lost.error,
                pins: lost.pins.saturating_add(next.pins),
                bytes: lost.bytes.saturating_add(next.bytes),
            }),
            (Self::Done, other) | (other, _) => other,
        }
    }
}

impl Pins {
    /// Gives all of them back, each once. See [`PagePin::put`].
    pub(crate) fn put(mut self, permit: &Permit<'_>) -> Put {
        let mut put = Put::Done;
        while let Some(pin) = self.pop() {
            put = put.and(pin.put(permit));
            shim::cond_resched();
        }
        put.and(self.into_first().put(permit))
    }
}

impl PagePin {
    /// Asks the provider for `span`, once. With a ticket the pin is revocable: the provider gives
    /// the ticket to the free callback, `nvpm_on_free()`, when it takes the pin back. It does so in
    /// any task, with the RM API lock and the GPU locks held, and maybe before this returns.
    /// Without a ticket the pin is persistent.
    ///
    /// Takes the put gate (shared) for a revocable pin and, in the provider, the RM API lock: never
    /// under the RM API lock, a state lock or the registry lock; under a stop lock for a persistent pin
    /// only. Sleeps.
    ///
    /// # Errors
    ///
    /// The provider's own errno.
    pub(crate) fn get(span: Span, ticket: Option<u64>) -> Result<Self> {
        let kind = if ticket.is_some() { Kind::Revocable } else { Kind::Persistent };
        let mut table = core::ptr::null_mut();
        // A stale put names a process and the address of a table. It finds no persistent pin.
        let _gate = ticket.is_some().then(PutGateShared::lock);
        let (answer, since_ns) = stats::timed(kind, Call::Get, || match ticket {
            // SAFETY: `table` is a local that outlives the call.
            None => unsafe { raw::nvpm_p2p_get_persistent(span.start(), span.len(), &mut table) },
            // SAFETY: As above. The callback takes any number.
            Some(ticket) => unsafe { raw::nvpm_p2p_get(span.start(), span.len(), &mut table, ticket) },
        });
        to_result(answer)?;
        // On an error the pointer may be a freed one; here the provider vouches for it.
        // INVARIANT: The provider just returned it.
        Ok(Self { table: NonNull::new(table).ok_or(EIO)?, kind, span, since_ns })
    }

    /// Gives the pin back. A revocable one needs a permit for that: it stays as it was without.
    ///
    /// Takes the RM API lock in the provider: never under the RM API lock, a state lock or the
    /// registry lock; under a stop lock for a persistent pin only. Sleeps.
    pub(crate) fn put(self, permit: &Permit<'_>) -> Put {
        if self.kind == Kind::Revocable && matches!(permit, Permit::Persistent) {
            return Put::Kept(Pins::one(self), EPERM);
        }
        let (ret, _) = stats::timed(self.kind, Call::Put, || match self.kind {
            // SAFETY: By the invariant the table is a persistent pin's, and `self` is consumed: it
            // was not put yet.
            Kind::Persistent => unsafe { raw::nvpm_p2p_put_persistent(self.span.start(), self.table.as_ptr()) },
            // SAFETY: By the invariant the table is a revocable pin's. The provider takes it as a
            // key only. A callback that is faster makes the key unknown, and the put gate, which the
            // permit has, keeps it from being reused by us.
            Kind::Revocable => unsafe { raw::nvpm_p2p_put(self.span.start(), self.table.as_ptr()) },
        });
        match to_result(ret) {
            Ok(()) => Put::Done,
            Err(error) if self.kind == Kind::Revocable => Put::Kept(Pins::one(self), error),
            Err(error) => Put::Lost(Lost { error, pins: 1, bytes: self.span.len() }),
        }
    }

    /// Returns what the provider was asked for.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Returns when the provider gave the pin, in nanoseconds.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Returns the provider's table. The type's invariant tells how long it is valid.
    pub(super) fn table(&self) -> NonNull<raw::nvidia_p2p_page_table> {
        self.table
    }

    /// Returns the table for the provider's own mapping, which exists for persistent pins only. Such
    /// a table is valid until the put, which comes after every unmapping.
    pub(crate) fn persistent_table(&self) -> Option<NonNull<raw::nvidia_p2p_page_table>> {
        (self.kind == Kind::Persistent).then_some(self.table)
    }
}
