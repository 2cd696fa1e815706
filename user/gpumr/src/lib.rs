// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! A cache of memory registrations that is never stale: for GPU memory and RDMA NICs.
//!
//! Registering costs up to milliseconds, so programs keep registrations. An address alone does not
//! name a buffer: it may be freed and given out again. [`Cache::register`] asks CUDA at each hit
//! whether the memory is still the same, unless the program says when it frees ([`hooks`]).
//!
//! | module | what |
//! |---|---|
//! | [`cache`] | look-up, registration, eviction |
//! | [`lease`] | what `register` returns; ends with drop |
//! | [`policy`] | peer memory or dma-buf |
//! | [`sweep`] | lets go of what was freed, within a stated time |
//! | [`hooks`] | lets go of it at once |
//! | [`backend`] | what the cache needs of CUDA and of verbs |
//! | [`cuda`], [`ibverbs`] | libcuda and libibverbs, opened at run time |
//! | [`stats`], [`error`] | counters; errors in words |
//!
//! What is public but not documented serves the other crates of this project. It may change with
//! every version.
//!
//! [`cuda`] and [`ibverbs`] say why no crate for CUDA and for verbs serves here.

#![warn(missing_debug_implementations)]

pub mod backend;
pub mod cache;
mod checkpoint;
mod covered;
pub mod cuda;
mod entry;
pub mod error;
mod exit;
mod fork;
pub mod hooks;
pub mod ibverbs;
#[doc(hidden)]
pub mod identity;
mod inner;
pub mod lease;
mod leaving;
mod memlock;
mod nvml;
mod objects;
mod options;
mod outside;
pub mod policy;
mod pressure;
pub mod range;
mod recent;
pub mod stats;
pub mod sweep;
mod sync;
mod table;
mod way;
mod word;

pub use backend::{Access, Gpu, Verbs};
pub use cache::{Cache, Gone, Limits, Options};
pub use error::{Error, Refusal};
pub use lease::Lease;
pub use policy::{Policy, Way};
pub use pressure::FREE_BYTES_AUTO;
pub use range::Range;
pub use stats::Stats;
pub use sweep::Sweeper;

/// Lets `cargo test --doc` compile the example of the page that crates are read by.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
