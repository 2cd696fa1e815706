// SPDX-License-Identifier: GPL-2.0

//! Pins one range of GPU memory and maps it for the device. It also contains what the pin layer
//! knows about this driver.

use crate::engine::{self, Edu, Side};
use crate::ffi::shim::Kind;
use crate::observe::reason::Reason;
use crate::observe::refusals::Asked;
use crate::pin::buffer::Buffer;
use crate::pin::{Otherwise, Owner};
use crate::sg::{self, Run, Runs};
use kernel::prelude::*;

static PERSISTENT: Owner = owner(Kind::Persistent);
static REVOCABLE: Owner = owner(Kind::Revocable);

const fn owner(kind: Kind) -> Owner {
    Owner { asked: Asked { name: "edu-dma", kind, words: Reason::words }, otherwise: Otherwise::Nobody, stop }
}

/// Stops the device when the GPU driver takes the memory of a pin back. Returns once the device
/// does not touch the memory any more, and never will. The pin is marked already, so no new command
/// will name it.
///
/// The RM API lock and the GPU locks are held, and every GPU of the machine waits. So this waits
/// for nothing but the device.
///
/// # Safety
///
/// None: this needs no registration.
unsafe fn stop(_ticket: u64) {
    engine::wait_for_command();
}

/// GPU memory that the device can reach.
pub(crate) struct Pinned {
    buffer: Buffer,
    /// The DMA addresses of its bytes.
    runs: Runs,
}

impl Pinned {
    /// Pins `length` bytes at `va` of the calling process, and maps them for `edu`. It sleeps.
    ///
    /// The layer must not be called under the lock that [`stop`] takes. Nobody can: that lock never leaves
    /// `engine.rs`, which pins nothing and drops no pin.
    ///
    /// # Errors
    ///
    /// `EFAULT` if that is not GPU memory, or an error whose reason is in the log. `ENODEV` once
    /// the device is gone.
    pub(crate) fn new(edu: &Edu, kind: Kind, va: u64, length: u64) -> Result<Self> {
        let owner = match kind {
            Kind::Persistent => &PERSISTENT,
            Kind::Revocable => &REVOCABLE,
        };
        let buffer = Buffer::pin(owner, va, length, 0)?;
        let runs = edu.map(&buffer)?;
        Ok(Self { buffer, runs })
    }

    /// Returns the DMA addresses of `length` bytes from `at` on, or `None` if there are fewer.
    pub(crate) fn runs(&self, at: u64, length: u64) -> Option<impl Iterator<Item = Run> + '_> {
        at.checked_add(length).filter(|end| *end <= self.buffer.span().len())?;
        Some(sg::trim(self.runs.as_slice().iter().copied(), at, length))
    }

    /// Returns the side of a command that is at the DMA address `address` of this memory.
    pub(crate) fn side(&self, address: u64) -> Side<'_> {
        Side::Gpu(&self.buffer, address)
    }
}
