// SPDX-License-Identifier: GPL-2.0

//! Code that the tests of the whole module over kernel-lite share.

pub mod raw;
pub mod shim;

// This links the module's init_module(), and the module with the functions of shim.rs.
extern crate nvidia_peermem as _;
