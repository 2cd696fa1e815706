// SPDX-License-Identifier: GPL-2.0

//! C types as the kernel maps them: `char` is unsigned, `long` is as wide as a pointer.

#![allow(non_camel_case_types)]

pub use core::ffi::{c_int, c_uint, c_void, CStr};

/// C's `char`.
pub type c_char = u8;
/// C's `long`.
pub type c_long = isize;
/// C's `unsigned long`.
pub type c_ulong = usize;
