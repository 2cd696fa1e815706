// SPDX-License-Identifier: GPL-2.0

//! What the tests of the whole module over kernel-lite share.

pub mod raw;
pub mod shim;

// Linked in for its init_module(), and against the functions of shim.rs.
extern crate nvidia_peermem as _;
