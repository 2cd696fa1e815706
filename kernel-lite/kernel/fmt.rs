// SPDX-License-Identifier: GPL-2.0

//! Formatting, in place of `core::fmt`: [`Display`] is a trait of the kernel, so that types of
//! `core` can have it.

pub use core::fmt::{Arguments, Debug, Error, Formatter, Result, Write};

use crate::ffi::CStr;
use core::fmt::LowerHex;

/// Routes the arguments of `pr_*!` to the traits of this file. The macros insert it.
#[doc(hidden)]
pub struct Adapter<T>(pub T);

impl<T: Debug> Debug for Adapter<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Debug::fmt(&self.0, f)
    }
}

impl<T: LowerHex> LowerHex for Adapter<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        LowerHex::fmt(&self.0, f)
    }
}

/// Does the same as [`core::fmt::Display`].
pub trait Display {
    /// Does the same as [`core::fmt::Display::fmt`].
    fn fmt(&self, f: &mut Formatter<'_>) -> Result;
}

impl<T: ?Sized + Display> Display for &T {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Display::fmt(*self, f)
    }
}

impl<T: ?Sized + Display> core::fmt::Display for Adapter<&T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Display::fmt(self.0, f)
    }
}

macro_rules! display_as_in_core {
    ($($type:ty),*) => {
        $(
            impl Display for $type {
                fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                    core::fmt::Display::fmt(self, f)
                }
            }
        )*
    };
}

display_as_in_core!(bool, i32, u32, u64, usize, str);

impl Display for CStr {
    /// Prints printable ASCII unchanged, and everything else in hex.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for &byte in self.to_bytes() {
            if (b' '..=b'~').contains(&byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}
