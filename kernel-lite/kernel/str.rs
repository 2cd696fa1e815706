// SPDX-License-Identifier: GPL-2.0

//! Strings.

pub use crate::ffi::CStr;

/// Returns a `&'static CStr` for a literal.
#[macro_export]
macro_rules! c_str {
    ($text:expr) => {{
        const TEXT: &$crate::str::CStr =
            match $crate::str::CStr::from_bytes_with_nul(::core::concat!($text, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("zero byte in a C string"),
            };
        TEXT
    }};
}
