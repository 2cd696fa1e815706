// SPDX-License-Identifier: GPL-2.0

//! The types that C callers pass, and how they get a result.

use crate::code::{Code, Res};
use std::ffi::{c_uint, c_void};

/// The result of every function: 0 or a [`Code`].
pub type CuResult = c_uint;
/// A device address.
pub type CuPtr = u64;
/// A context, opaque to the caller.
pub type CuContext = *mut c_void;
/// A stream or an event, opaque to the caller. NULL is a stream that is always there.
pub type CuHandle = *mut c_void;
/// A function that a stream calls with the stream, the result of its work, and the caller's
/// pointer.
pub type StreamCallback = Option<unsafe extern "C" fn(CuHandle, CuResult, *mut c_void)>;
/// A function that a stream calls with the caller's pointer.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

pub fn answer(f: impl FnOnce() -> Res<()>) -> CuResult {
    match f() {
        Ok(()) => 0,
        Err(code) => code as CuResult,
    }
}

/// Stores a result where the caller wants it.
///
/// # Safety
///
/// `to` is NULL or good for writing a `T`.
pub unsafe fn put<T>(to: *mut T, value: T) -> Res<()> {
    if to.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not NULL, so good for writing, says the caller.
    unsafe { to.write(value) };
    Ok(())
}
