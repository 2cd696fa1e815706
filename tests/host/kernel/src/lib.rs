// SPDX-License-Identifier: GPL-2.0

//! Stands in for the `kernel` crate of Linux 7.2 on the host: the same paths and signatures, only what the module uses.
//!
//! It decides nothing by itself. Whatever a scheduler or a fault injector could want to know (a lock taken, an atomic
//! touched, memory asked for, the last reference dropped) goes through the functions in [`rt`], which the crate that
//! runs the module defines: plain ones for unit tests, a model checker's for the models.
//!
//! What it leaves out: memory ordering (every atomic is sequentially consistent), lockdep, allocation flags.

#![allow(clippy::new_without_default, clippy::missing_safety_doc)]

pub mod alloc;
pub mod error;
pub mod ffi;
mod module;
pub mod prelude;
#[doc(hidden)]
pub mod print;
pub mod rt;
pub mod sync;
pub mod types;

#[doc(hidden)]
pub use module::Place as __Place;
pub use module::{InPlaceModule, Module, ModuleMetadata, ThisModule};
#[doc(hidden)]
pub use pinned_init as pin_init_crate;

/// As `kernel::init`.
pub mod init {
    pub use crate::sync::InPlaceInit;
}
