// SPDX-License-Identifier: GPL-2.0

//! The module's own code under a model checker: the shipped files run unchanged between models of
//! the provider, of ib_core in two versions, of the NIC, of processes and of the module loader.
//! They define the C functions of `src/ffi/shim.h` and those behind kernel-lite. README.md of the
//! workspace says how to run it.
//!
//! The tasks of a scenario call the seven callbacks as the core does, and the free callback as the
//! provider does, with the locks of docs/rules.md. Before each lock, atomic, reference count and
//! access of shared state a task says what it is about to do, and the scheduler picks
//! ([`explore`]). Each search has a floor of executions, below which it may not fall; the random
//! ones count what must have happened.
//!
//! Checked in every execution:
//!
//! - no deadlock, and no lock taken against the order of the rules
//! - no call of the provider from inside the callback, or from a process that does not own the pin;
//!   no page table touched after the callback returned: tables are pages of memory that are really
//!   closed, and their addresses are given out again
//! - no pin and no mapping goes while an mkey that is not fenced could use it; each entry leads to
//!   the right bytes, and the table covers exactly the pages of the range
//! - no invalidate after `release`, with a wrong ticket or client, or without a module reference;
//!   after `release` no mapping and no table is left
//! - every pin, mapping and table ends once; references, pins and bytes are zero after rmmod, and
//!   the counters fit the provider's accounting
//! - nobody is in module text when it is freed
//! - no allocation under the state lock, under a static lock or in the callback; no print in the
//!   callback
//!
//! Bugs of the cores are modelled, not repaired. A hang counts as expected if every task that is
//! left hangs in the core, waits for the lock that the core leaked, or for such a task
//! (`tests/hangs.rs`). Two risks of docs/safety.md are tolerated: `reused-table`, and
//! `late-callback` after rmmod.

pub mod cli;
pub mod explore;
pub mod gpu;
mod order;
pub mod rdma;
pub mod rt;
pub mod scenario;
mod shim;
pub mod world;

pub use ::shim::raw;
