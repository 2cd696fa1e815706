// SPDX-License-Identifier: GPL-2.0

//! Conversions between integers that cannot fail, each with its proof.
//!
//! The rest of the crate converts by `from()` or `try_from()`; `as` stands in this file only.

#![allow(clippy::as_conversions)]

/// The proof of all of them: the module is built for 64-bit kernels only.
const _: () = assert!(usize::BITS == u64::BITS);

/// Converts a length or an address of this kernel to the type of the bindings and the tickets.
pub(crate) const fn u64_from(n: usize) -> u64 {
    n as u64
}

/// Does the reverse of [`u64_from`].
pub(crate) const fn usize_from(n: u64) -> usize {
    n as usize
}

/// Converts a 32-bit number to an index.
pub(crate) const fn index(n: u32) -> usize {
    n as usize
}
