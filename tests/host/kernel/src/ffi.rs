// SPDX-License-Identifier: GPL-2.0

//! As `kernel::ffi`: the kernel's C types, which are not those of user space.

#![allow(non_camel_case_types)]

pub use core::ffi::{c_int, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulonglong, c_ushort, c_void, CStr};

pub type c_char = u8;
pub type c_long = isize;
pub type c_ulong = usize;
