// SPDX-License-Identifier: GPL-2.0

//! The items that `use kernel::prelude::*` provides.

#[doc(no_inline)]
pub use crate::{
    alloc::{flags::*, KVVec, KVec},
    error::{code::*, Error, Result},
    ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void, CStr},
    module, pr_err, pr_info, pr_warn, ThisModule,
};
#[doc(no_inline)]
pub use core::{mem::size_of, pin::Pin};
#[doc(no_inline)]
pub use pin_init::{init, pin_data, pin_init, InPlaceWrite, Init, PinInit};
