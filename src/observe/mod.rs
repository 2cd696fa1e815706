// SPDX-License-Identifier: GPL-2.0

//! Everything that only reports: counters, refusals and tracepoints.
//!
//! Every other file may report into this folder. It asks nobody back: it uses `ffi/` and the plain
//! types of `num.rs` and `range.rs`.

mod burst;
pub(crate) mod reason;
pub(crate) mod refusals;
pub(crate) mod stats;
pub(crate) mod trace;
