// SPDX-License-Identifier: GPL-2.0

//! A crate named `kernel` for kernels that have none: the paths and signatures of Linux 7.2's
//! `kernel` crate, for exactly the items that this module's policy uses, over the few C functions
//! of `helpers.c`, all of which use plain exports.
//!
//! Which items, why there are two crates, and how to add an item: `docs/kernel-lite.md`. Where an
//! item behaves differently from the kernel's own, its documentation says so.
//!
//! The same files compile on a host with std, where [`backend`] is a test's: plain functions, or a
//! model checker.

#![cfg_attr(target_os = "none", no_std)]
#![deny(unsafe_op_in_unsafe_fn, missing_docs)]

pub mod alloc;
#[doc(hidden)]
pub mod backend;
pub mod error;
pub mod ffi;
pub mod fmt;
mod module;
pub mod prelude;
#[doc(hidden)]
pub mod print;
pub mod str;
pub mod sync;
pub mod types;

/// The text before the log lines of this crate itself.
const __LOG_PREFIX: &[u8] = b"kernel_lite\0";

pub use module::{InPlaceModule, Module, ThisModule};
#[doc(hidden)]
pub use pin_init;

/// Refers to a function that exists nowhere. If a panic path survives optimisation, modpost therefore
/// refuses the module: a panic in the free callback would stop the whole GPU driver (docs/rules.md,
/// rule 11).
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: Never linked, so never called.
    unsafe { backend::kl_panic_path_left_in_module() }
}
