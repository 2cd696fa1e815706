// SPDX-License-Identifier: GPL-2.0

//! Initialisation in place.

use crate::alloc::{AllocError, Flags};
use crate::error::{Error, Result};
use pin_init::PinInit;

/// Smart pointers that can allocate and initialise in place.
pub trait InPlaceInit<T>: Sized {
    /// Pinned version of `Self`.
    type PinnedSelf;

    /// Allocates, and initialises what is there, pinned from then on.
    fn try_pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self::PinnedSelf, E>
    where
        E: From<AllocError>;

    /// As [`Self::try_pin_init`], with an error of the kernel.
    fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self::PinnedSelf>
    where
        Error: From<E>,
    {
        let init = move |slot: *mut T| {
            // SAFETY: `slot` is what `pin_init_from_closure()` was promised.
            unsafe { init.__pinned_init(slot) }.map_err(Error::from)
        };
        // SAFETY: The closure initialises what `init` does, or fails as it does; all promises about `slot` are handed on.
        Self::try_pin_init(unsafe { pin_init::pin_init_from_closure(init) }, flags)
    }
}
