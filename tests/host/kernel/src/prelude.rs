// SPDX-License-Identifier: GPL-2.0

//! As `kernel::prelude`.

pub use crate::alloc::{flags::*, KBox, KVVec, KVec, VVec};
pub use crate::error::{code::*, Error, Result};
pub use crate::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void, CStr,
};
pub use crate::init::InPlaceInit;
pub use crate::{module, pr_err, pr_info, pr_notice, pr_warn, static_assert, try_init, try_pin_init, ThisModule};
pub use core::mem::{align_of, align_of_val, size_of, size_of_val};
pub use core::pin::Pin;
pub use pinned_init::{init, pin_data, pin_init, pinned_drop, InPlaceWrite, Init, PinInit, Zeroable};
