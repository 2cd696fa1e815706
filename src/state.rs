// SPDX-License-Identifier: GPL-2.0

//! The life of one registration, as one pure machine: what L protects.
//!
//! State = pin × mapping × revoked × core ticket (docs/rules.md). Every transition is a method that consumes the
//! old payload; none of them calls anything, so all of them are legal under L, and the models run this very file.

/// The pin half of the state. `P` is the pin itself.
enum PinState<P> {
    /// The provider's get has not returned yet. The free callback may come all the same.
    Pinning,
    /// Ours to read (unless revoked) and to put.
    Held(P),
    /// A put is under way, outside L.
    Putting,
    /// Put, revoked, or never got.
    Gone,
    /// Nobody may put it here and now: it waits for the callback or for its owner's next call.
    Orphan(P),
}

/// The mapping half of the state. `M` is the live mapping.
enum MapState<M> {
    None,
    Live(M),
    Taken,
}

/// The machine. See the module's text.
///
/// # Invariants
///
/// - `Live` is entered only while the pin is `Held` and not revoked, and with a core ticket.
/// - Once `revoked`, the pin is never again `Held` or `Orphan`.
pub(crate) struct Life<P, M> {
    pin: PinState<P>,
    map: MapState<M>,
    revoked: bool,
    core_ticket: Option<u64>,
}

/// A pin that is held and not revoked, lent out under L: only then may its page table be read.
pub(crate) struct Pinned<'a, P>(&'a P);

impl<P> Pinned<'_, P> {
    /// The pin.
    pub(crate) fn pin(&self) -> &P {
        self.0
    }
}

/// The state in one word, for the admin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The provider's get is running.
    Pinning,
    /// Pinned, not mapped yet.
    Pinned,
    /// Mapped: the HCA may use it.
    Mapped,
    /// Unmapped, still pinned.
    Unmapped,
    /// Taken back by the provider, not yet released by the core.
    Revoked,
    /// Waits for the callback or its owner's next call.
    Orphan,
    /// The provider's put is running.
    Ending,
    /// Neither pinned nor mapped.
    Gone,
}

impl Stage {
    /// Its name in `/proc/driver/nvidia-peermem` (docs/proc.md).
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Pinning => "pinning",
            Self::Pinned => "pinned",
            Self::Mapped => "mapped",
            Self::Unmapped => "unmapped",
            Self::Revoked => "revoked",
            Self::Orphan => "orphan",
            Self::Ending => "ending",
            Self::Gone => "gone",
        }
    }
}

/// What the free callback has to do after the mark is set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Revocation {
    /// Marked before: a repeated callback.
    Repeated,
    /// No mapping is live, nobody needs to be told. `orphan`: the last holder is gone, the registration ends here.
    Quiet {
        /// The pin was an orphan.
        orphan: bool,
    },
    /// A mapping is live: tell the core, by this ticket of its own, and wait.
    Invalidate(u64),
}

/// What the holder of the last handle has to do about the pin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The pin is gone; nothing of the provider may be touched.
    Done,
    /// Take what guards a put, then ask [`Life::take_for_put`].
    Put,
}

impl<P, M> Life<P, M> {
    /// A registration about to call the provider's get.
    pub(crate) fn new() -> Self {
        Self { pin: PinState::Pinning, map: MapState::None, revoked: false, core_ticket: None }
    }

    /// The provider's get succeeded. `false` if the callback was faster: then the pin is gone already, and its page
    /// table must not be looked at.
    pub(crate) fn pinned(&mut self, pin: P) -> bool {
        self.pin = if self.revoked { PinState::Gone } else { PinState::Held(pin) };
        !self.revoked
    }

    /// There is nothing to put, any more or at all: the provider's get failed, or its put ended the pin.
    pub(crate) fn no_pin(&mut self) {
        self.pin = PinState::Gone;
    }

    /// The pin, for reading the provider's table: `None` once revoked or put.
    pub(crate) fn held(&self) -> Option<Pinned<'_, P>> {
        match &self.pin {
            PinState::Held(pin) if !self.revoked => Some(Pinned(pin)),
            _ => None,
        }
    }

    /// The state in one word.
    pub(crate) fn stage(&self) -> Stage {
        match (&self.pin, &self.map) {
            (PinState::Pinning, _) => Stage::Pinning,
            (PinState::Held(_), MapState::None) => Stage::Pinned,
            (PinState::Held(_), MapState::Live(_)) => Stage::Mapped,
            (PinState::Held(_), MapState::Taken) => Stage::Unmapped,
            (PinState::Putting, _) => Stage::Ending,
            (PinState::Orphan(_), _) => Stage::Orphan,
            (PinState::Gone, _) if self.revoked => Stage::Revoked,
            (PinState::Gone, _) => Stage::Gone,
        }
    }

    /// The live mapping, for looking at.
    pub(crate) fn mapping(&self) -> Option<&M> {
        match &self.map {
            MapState::Live(mapping) => Some(mapping),
            MapState::None | MapState::Taken => None,
        }
    }

    /// The core's ticket for its invalidate hook; zero is a valid one.
    pub(crate) fn set_core_ticket(&mut self, ticket: u64) {
        self.core_ticket = Some(ticket);
    }

    /// Makes a mapping live. Refused, with the mapping handed back, once the pin is revoked or gone, before the core
    /// gave its ticket, or if there was a mapping before.
    pub(crate) fn publish(&mut self, mapping: M) -> Result<(), M> {
        if self.held().is_none() || self.core_ticket.is_none() || !matches!(self.map, MapState::None) {
            return Err(mapping);
        }
        // INVARIANT: Held, not revoked and with a ticket, as just checked.
        self.map = MapState::Live(mapping);
        Ok(())
    }

    /// Takes the live mapping out. The caller unmaps it before L is dropped, so that exactly one does, and never late.
    pub(crate) fn take_mapping(&mut self) -> Option<M> {
        match core::mem::replace(&mut self.map, MapState::Taken) {
            MapState::Live(mapping) => Some(mapping),
            MapState::None => {
                self.map = MapState::None;
                None
            }
            MapState::Taken => None,
        }
    }

    /// The free callback's mark.
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
        match (&self.map, self.core_ticket) {
            (MapState::Live(_), Some(ticket)) => Revocation::Invalidate(ticket),
            _ => Revocation::Quiet { orphan },
        }
    }

    /// First look of whoever ends the registration: rule 7's check before G is touched.
    pub(crate) fn ending(&self) -> Ending {
        match self.pin {
            PinState::Held(_) if !self.revoked => Ending::Put,
            _ => Ending::Done,
        }
    }

    /// Second look, with everything held that guards a put: the pin, unless the callback took it meanwhile.
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

    /// The provider's put did nothing. `true` if the pin now is an orphan, `false` if the callback took it meanwhile.
    pub(crate) fn put_failed(&mut self, pin: P) -> bool {
        self.pin = if self.revoked { PinState::Gone } else { PinState::Orphan(pin) };
        !self.revoked
    }

    /// Takes an orphan back, to put it. `false` if the callback was faster: then that ends the registration.
    pub(crate) fn adopt(&mut self) -> bool {
        match core::mem::replace(&mut self.pin, PinState::Gone) {
            PinState::Orphan(pin) => {
                self.pin = PinState::Held(pin);
                true
            }
            other => {
                self.pin = other;
                false
            }
        }
    }

    /// Leaves the pin to the callback or to its owner's next call. `false` if it is gone already.
    pub(crate) fn orphan(&mut self) -> bool {
        match self.take_for_put() {
            Some(pin) => self.put_failed(pin),
            None => false,
        }
    }
}
