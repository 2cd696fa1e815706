// SPDX-License-Identifier: GPL-2.0

//! What the pin layer knows of the driver above it: this file stands in for `src/client.rs`.
//!
//! The layer asks one thing of a driver, [`Client::invalidate`]: stop your device.

use crate::engine;
use crate::ffi::shim::Kind;

/// How this driver pins: as the program asked for.
pub(crate) struct Client {
    /// Its name in refusals.
    pub(crate) name: &'static str,
    /// How it pins.
    pub(crate) kind: Kind,
    /// Nobody else is asked for the same memory.
    pub(crate) place: Place,
}

/// Place of a client among those that are asked for the same memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is no other.
    Only,
    /// Asked first: nvidia-peermem has such a client, this driver has not.
    First,
    /// Asked when the first one said no: likewise.
    Second,
}

static PERSISTENT: Client = Client::new(Kind::Persistent);
static REVOCABLE: Client = Client::new(Kind::Revocable);

impl Client {
    const fn new(kind: Kind) -> Self {
        Self { name: "edu-dma", kind, place: Place::Only }
    }

    /// The client that pins as `kind` says.
    pub(crate) fn of(kind: Kind) -> &'static Self {
        match kind {
            Kind::Persistent => &PERSISTENT,
            Kind::Revocable => &REVOCABLE,
        }
    }

    /// The one that is asked first.
    pub(crate) fn first() -> &'static Self {
        &PERSISTENT
    }

    /// Whether another client pins what this one cannot pin.
    pub(crate) fn has_fallback(&self) -> bool {
        false
    }

    /// The GPU driver takes the memory of a pin back: returns once the device does not touch it any
    /// more, and never will. The pin is marked already, so no new command will name it.
    ///
    /// The RM API lock and the GPU locks are held, and every GPU of the machine waits. So nothing
    /// is waited for here but the device.
    pub(crate) fn invalidate(&self, _ticket: u64) {
        engine::wait_for_command();
    }
}
