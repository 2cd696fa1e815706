// SPDX-License-Identifier: GPL-2.0

//! The pin layer: what a driver needs to pin GPU memory and to map it for its device. It knows nothing
//! of the driver above it (docs/own-driver.md).
//!
//! Its parts look for each other at the root of the crate, which gets them there by `use layer::*`. Each
//! part uses only those below it:
//!
//! - [`invalidate`] the free callback
//! - [`pin`] one registration of pinned GPU memory, from its first pin to its last put
//! - [`gpu`] memory of a GPU: pins, page tables, BARs, topology
//! - [`dma`] mappings for a device
//! - [`sg`] runs of contiguous memory, and scatterlists of them
//! - [`observe`] what only reports: counters, refusals, tracepoints
//! - [`range`] the range of a registration, [`several`] one of something or more, [`num`]
//!   conversions that cannot fail
//! - [`ffi`] everything that is C or speaks to C

#[path = "dma/mod.rs"]
pub(crate) mod dma;
#[path = "ffi/mod.rs"]
pub(crate) mod ffi;
#[path = "gpu/mod.rs"]
pub(crate) mod gpu;
#[path = "invalidate.rs"]
pub(crate) mod invalidate;
#[path = "num.rs"]
pub(crate) mod num;
#[path = "observe/mod.rs"]
pub(crate) mod observe;
#[path = "pin/mod.rs"]
pub(crate) mod pin;
#[path = "range.rs"]
pub(crate) mod range;
#[path = "several.rs"]
pub(crate) mod several;
#[path = "sg.rs"]
pub(crate) mod sg;

/// The layer while the module that uses it is loaded. The module drops it last, once nobody can pin
/// anything more.
pub(crate) struct Layer(());

impl Layer {
    /// Finds the GPU driver, and initialises what the layer keeps for the whole module. Says in the
    /// kernel log which GPU driver is missing.
    ///
    /// # Safety
    ///
    /// It is called only once, in module init, before anything else of the layer. What it returns is
    /// dropped once nobody can pin or register any more.
    pub(crate) unsafe fn new() -> kernel::error::Result<Self> {
        gpu::pin::find_provider()?;
        // SAFETY: By this function's contract.
        unsafe {
            pin::registry::init();
            gpu::topology::init();
            observe::refusals::init();
        }
        Ok(Self(()))
    }
}

impl Drop for Layer {
    /// Ends what the layer keeps. Nothing is pinned any more, because each registration holds the module.
    fn drop(&mut self) {
        // SAFETY: By the contract of `new` nobody registers any more, and each registration held the
        // module.
        unsafe {
            pin::registry::clear();
            gpu::bar::forget_gpus();
        }
    }
}
