// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Reads planted faults, and runs what must find them. Each is a patch on the repository that breaks
//! the code. The head of the patch says in its first sentence what is wrong, then `Run:` how to find
//! it and `Says:` what is said then. The folder tells who runs it, and what the two lines mean:
//!
//! - `model`: the words of tests/host/run, and what its line VIOLATION contains.
//! - `boot`: a boot of the lab and its suites, with commas between, and the beginning of the name of
//!   the test that fails.
//! - `user`: the words of `cargo test`, and what its output contains.

mod fault;
mod runner;

pub use fault::{read, Fault};
pub use runner::{cargo, demand_all, find_each, run, Ran};
