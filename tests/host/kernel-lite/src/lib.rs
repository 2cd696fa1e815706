// SPDX-License-Identifier: GPL-2.0

//! Code that the tests of the whole module over kernel-lite share.

pub mod shim;

pub use ::shim::raw;

// These link the module's init_module(), and the module with the functions of shim.rs and of
// kernel-lite's backend.
extern crate helpers as _;
extern crate nvidia_peermem as _;
