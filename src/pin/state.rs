// SPDX-License-Identifier: GPL-2.0

//! The state of one registration, as one pure machine: what the state lock protects.
//!
//! State = pin × mapping × revoked × the owner's ticket. Every transition is a method. None of them calls
//! anything, so all of them are legal under the state lock, and the models run this very file.

/// The pin half of the state. `P` is the pin itself.
enum PinState<P> {
    /// No get of the provider has returned yet, or the rest is still to be pinned. A free callback may
    /// come all the same.
    Pinning,
    /// Ours to read (unless revoked) and to put.
    Held(P),
    /// A put is under way, outside the state lock.
    Putting,
    /// Put, revoked, or never got.
    Gone,
    /// Nobody may put it here and now. It waits for the callback or for its owner's next call.
    Orphan(P),
}

/// The mapping half of the state.
enum MapState {
    /// Not mapped yet.
    None,
    /// Mapped: the device may use it.
    Live,
    /// Unmapped, for good. What is left of the mapping may still be here.
    Ended,
}

/// What is known of the pinned memory. It becomes a mapping, so there is never both.
pub(crate) enum Memory<R, M> {
    /// Nothing: not read yet, being mapped, or taken out.
    None,
    /// What was read of the provider's tables, to be mapped.
    Read(R),
    /// The mapping, or what is left of it.
    Mapped(M),
}

/// The machine. See the file's text.
///
/// # Invariants
///
/// - `Live` is entered only while the pin is `Held` and not revoked, and with the owner's ticket.
/// - The memory is `Mapped` if `Live`, and never if `None`.
/// - Once `revoked`, the pin is never again `Held` or `Orphan`.
pub(crate) struct State<P, R, M> {
    pin: PinState<P>,
    map: MapState,
    memory: Memory<R, M>,
    revoked: bool,
    owner_ticket: Option<u64>,
}

/// The state in one word, for the admin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Not pinned yet: the provider's get is running, or the rest is still to be pinned.
    Pinning,
    /// Pinned, not mapped yet.
    Pinned,
    /// Mapped: the device may use it.
    Mapped,
    /// Unmapped by the driver above, and still pinned.
    Unmapped,
    /// Taken back by the provider, not yet released by the driver above.
    Revoked,
    /// Waits for the callback or its owner's next call.
    Orphan,
    /// The provider's put is running.
    Ending,
    /// Neither pinned nor mapped.
    Gone,
}

/// Who was first, where the free callback races with the caller for the pin.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Winner {
    /// The caller: what it did to the pin holds.
    Caller,
    /// The callback: the pin is gone already.
    Callback,
}

/// What the free callback has to do once the mark is set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Revocation {
    /// Marked before: a repeated callback.
    Repeated,
    /// No mapping is live, so nobody needs to be told.
    Quiet,
    /// The same, and the pin was an orphan: the last holder is gone, and the registration ends
    /// here.
    QuietOrphan,
    /// A mapping is live: tell the owner, by this ticket of its own, and wait.
    Invalidate(u64),
}

/// What the holder of the last handle has to do about the pin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The pin is gone. Nothing of the provider may be touched.
    Done,
    /// Take what guards a put, then ask [`State::take_for_put`].
    Put,
}

impl<P, R, M> State<P, R, M> {
    /// Begins the state of a registration that is about to call the provider's get.
    pub(crate) fn new() -> Self {
        Self { pin: PinState::Pinning, map: MapState::None, memory: Memory::None, revoked: false, owner_ticket: None }
    }

    /// Notes that the provider's get succeeded. If the callback was faster, the page table of the pin must
    /// not be looked at.
    pub(crate) fn pinned(&mut self, pin: P) -> Winner {
        if self.revoked {
            self.pin = PinState::Gone;
            return Winner::Callback;
        }
        self.pin = PinState::Held(pin);
        Winner::Caller
    }

    /// Notes that nothing is left to put: the provider's get failed, or its put ended the pin.
    pub(crate) fn no_pin(&mut self) {
        self.pin = PinState::Gone;
    }

    /// Returns the pin, for reading the provider's table: `None` once revoked or put.
    pub(crate) fn held(&self) -> Option<&P> {
        match &self.pin {
            PinState::Held(pin) if !self.revoked => Some(pin),
            _ => None,
        }
    }

    /// Returns the state in one word.
    pub(crate) fn phase(&self) -> Phase {
        match (&self.pin, &self.map) {
            (PinState::Pinning, _) => Phase::Pinning,
            (PinState::Held(_), MapState::None) => Phase::Pinned,
            (PinState::Held(_), MapState::Live) => Phase::Mapped,
            (PinState::Held(_), MapState::Ended) => Phase::Unmapped,
            (PinState::Putting, _) => Phase::Ending,
            (PinState::Orphan(_), _) => Phase::Orphan,
            (PinState::Gone, _) if self.revoked => Phase::Revoked,
            (PinState::Gone, _) => Phase::Gone,
        }
    }

    /// Returns what is known of the pinned memory, for looking at.
    pub(crate) fn memory(&self) -> &Memory<R, M> {
        match self.map {
            MapState::Ended => &Memory::None,
            MapState::None | MapState::Live => &self.memory,
        }
    }

    /// Keeps what was read of the provider's tables, until [`Self::take_read`]. To be called once.
    pub(crate) fn keep_read(&mut self, read: R) {
        // INVARIANT: Nothing is mapped before this was taken out again.
        self.memory = Memory::Read(read);
    }

    /// Takes what was read of the provider's tables: once, then `None`.
    pub(crate) fn take_read(&mut self) -> Option<R> {
        match core::mem::replace(&mut self.memory, Memory::None) {
            Memory::Read(read) => Some(read),
            other => {
                self.memory = other;
                None
            }
        }
    }

    /// Keeps the ticket that the owner's `stop` gets. Zero is a valid one.
    pub(crate) fn set_owner_ticket(&mut self, ticket: u64) {
        self.owner_ticket = Some(ticket);
    }

    /// Makes a mapping live. Refused, with the mapping handed back, once the pin is revoked or
    /// gone, before the owner gave its ticket, or if there was a mapping before.
    pub(crate) fn publish(&mut self, mapping: M) -> Result<(), M> {
        if self.held().is_none() || self.owner_ticket.is_none() || !matches!(self.map, MapState::None) {
            return Err(mapping);
        }
        // INVARIANT: Held, not revoked and with a ticket, as just checked.
        self.map = MapState::Live;
        self.memory = Memory::Mapped(mapping);
        Ok(())
    }

    /// Ends the live mapping. The caller unmaps it before it drops the state lock, so that exactly
    /// one caller does, and never late. What is left of it stays here: the free callback itself
    /// frees nothing.
    pub(crate) fn end_mapping(&mut self) -> Option<&mut M> {
        if !matches!(self.map, MapState::Live) {
            return None;
        }
        self.map = MapState::Ended;
        match &mut self.memory {
            Memory::Mapped(mapping) => Some(mapping),
            Memory::None | Memory::Read(_) => None,
        }
    }

    /// Takes what is left of a mapping that ended, or was read for one that never was.
    pub(crate) fn take_rest(&mut self) -> Memory<R, M> {
        match self.map {
            MapState::Live => Memory::None,
            MapState::None | MapState::Ended => core::mem::replace(&mut self.memory, Memory::None),
        }
    }

    /// Sets the free callback's mark.
    pub(crate) fn revoke(&mut self) -> Revocation {
        if self.revoked {
            return Revocation::Repeated;
        }
        self.revoked = true;
        let orphan = matches!(self.pin, PinState::Orphan(_));
        if matches!(self.pin, PinState::Held(_) | PinState::Orphan(_)) {
            // INVARIANT: The provider takes the pin back by itself.
            self.pin = PinState::Gone;
        }
        match (&self.map, self.owner_ticket) {
            (MapState::Live, Some(ticket)) => Revocation::Invalidate(ticket),
            _ if orphan => Revocation::QuietOrphan,
            _ => Revocation::Quiet,
        }
    }

    /// Looks for the first time at the end of the registration: rule 7's check before the put gate is
    /// touched.
    pub(crate) fn ending(&self) -> Ending {
        match self.pin {
            PinState::Held(_) if !self.revoked => Ending::Put,
            _ => Ending::Done,
        }
    }

    /// Looks for the second time, with everything held that guards a put. Returns the pin, unless the
    /// callback took it meanwhile.
    pub(crate) fn take_for_put(&mut self) -> Option<P> {
        if self.revoked {
            return None;
        }
        match core::mem::replace(&mut self.pin, PinState::Putting) {
            PinState::Held(pin) => Some(pin),
            other => {
                self.pin = other;
                None
            }
        }
    }

    /// Notes that the provider's put did nothing. The pin is an orphan now, unless the callback took it
    /// meanwhile.
    pub(crate) fn put_failed(&mut self, pin: P) -> Winner {
        if self.revoked {
            self.pin = PinState::Gone;
            return Winner::Callback;
        }
        self.pin = PinState::Orphan(pin);
        Winner::Caller
    }

    /// Takes an orphan back, to put it. If the callback was faster, it ends the registration.
    pub(crate) fn adopt(&mut self) -> Winner {
        match core::mem::replace(&mut self.pin, PinState::Gone) {
            PinState::Orphan(pin) => {
                self.pin = PinState::Held(pin);
                Winner::Caller
            }
            other => {
                self.pin = other;
                Winner::Callback
            }
        }
    }

    /// Leaves the pin to the callback or to its owner's next call, unless it is gone already.
    pub(crate) fn orphan(&mut self) -> Winner {
        match self.take_for_put() {
            Some(pin) => self.put_failed(pin),
            None => Winner::Callback,
        }
    }
}
