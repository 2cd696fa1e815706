// SPDX-License-Identifier: GPL-2.0

//! What the module tells: counters, refusals, /proc and tracepoints.

mod burst;
pub(crate) mod proc;
pub(crate) mod reason;
pub(crate) mod refusals;
pub(crate) mod stats;
pub(crate) mod trace;
