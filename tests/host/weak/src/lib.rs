// SPDX-License-Identifier: GPL-2.0

//! Tests kernel-lite's atomics and `Arc` under loom, and the orderings of the module's `READY`, pairs,
//! counters and number of orphans. The shipped files have `core`'s atomics replaced by loom's
//! (build.rs), and run in every order of steps and with every value that a weak load may see. The
//! models beside this crate explore more of the module, but know sequentially consistent atomics only.

// `world` is compiled once for each variant on purpose.
#![allow(clippy::duplicate_mod)]

// This links the functions of kernel-lite's backend.
extern crate helpers as _;

pub mod by_address;

include!(concat!(env!("OUT_DIR"), "/variants.rs"));
