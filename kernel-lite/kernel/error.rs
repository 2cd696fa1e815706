// SPDX-License-Identifier: GPL-2.0

//! Kernel errors.

use crate::alloc::{AllocError, PushError};
use crate::ffi::c_int;
use core::convert::Infallible;
use core::num::NonZeroI32;

/// An errno.
///
/// # Invariants
///
/// The value lies in `-MAX_ERRNO..0`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(NonZeroI32);

/// A result whose error is the kernel's unless said otherwise.
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

/// The largest errno of the kernel.
const MAX_ERRNO: c_int = 4095;

/// The errors by name.
pub mod code {
    macro_rules! codes {
        ($($name:ident = $errno:literal, $text:literal;)*) => {
            $(
                #[doc = $text]
                pub const $name: super::Error = match super::Error::try_from_errno(-$errno) {
                    Some(error) => error,
                    None => panic!("not an errno"),
                };
            )*
        };
    }

    codes! {
        EPERM = 1, "Operation not permitted.";
        EINTR = 4, "Interrupted system call.";
        EIO = 5, "I/O error.";
        ENOMEM = 12, "Out of memory.";
        EFAULT = 14, "Bad address.";
        EBUSY = 16, "Device or resource busy.";
        ENODEV = 19, "No such device.";
        EINVAL = 22, "Invalid argument.";
        EOVERFLOW = 75, "Value too large for defined data type.";
        ENOTSUPP = 524, "Operation is not supported.";
    }
}

impl Error {
    /// Returns `None` if `errno` is not a negative errno.
    const fn try_from_errno(errno: c_int) -> Option<Self> {
        if errno < -MAX_ERRNO || errno >= 0 {
            return None;
        }
        match NonZeroI32::new(errno) {
            // INVARIANT: The range was just checked.
            Some(errno) => Some(Self(errno)),
            None => None,
        }
    }

    /// Returns the error for a negative errno. For any other number, it returns `EINVAL` and logs a
    /// warning.
    pub fn from_errno(errno: c_int) -> Self {
        match Self::try_from_errno(errno) {
            Some(error) => error,
            None => {
                crate::pr_warn!("attempted to create `Error` with out of range `errno`: {}\n", errno);
                code::EINVAL
            }
        }
    }

    /// Returns the negative errno.
    pub fn to_errno(self) -> c_int {
        self.0.get()
    }
}

impl core::fmt::Debug for Error {
    /// Prints the number, because names of errnos are not available everywhere.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Error").field(&-self.to_errno()).finish()
    }
}

impl From<AllocError> for Error {
    fn from(_: AllocError) -> Self {
        code::ENOMEM
    }
}

impl<T> From<PushError<T>> for Error {
    fn from(_: PushError<T>) -> Self {
        code::EINVAL
    }
}

impl From<Infallible> for Error {
    fn from(impossible: Infallible) -> Self {
        match impossible {}
    }
}

/// Returns `Err` for a negative return value of C, which is an errno.
pub fn to_result(errno: c_int) -> Result {
    if errno < 0 {
        Err(Error::from_errno(errno))
    } else {
        Ok(())
    }
}

/// Does the reverse: returns the return value of a C callback for the result of a closure.
pub fn from_result<T>(f: impl FnOnce() -> Result<T>) -> T
where
    T: From<i16>,
{
    match f() {
        Ok(value) => value,
        // The number fits by `Error`'s invariant.
        Err(error) => T::from(error.to_errno() as i16),
    }
}
