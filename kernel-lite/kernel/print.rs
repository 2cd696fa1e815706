// SPDX-License-Identifier: GPL-2.0

//! Printing.
//!
//! The kernel formats inside `printk`, through `%pA`, which exists with CONFIG_RUST only. Here a
//! line is formatted on the stack first.

use crate::backend;
use crate::fmt::{self, Write};

/// The length of the longest line in bytes. Longer lines are cut.
const LINE: usize = 512;

/// A line being formatted.
///
/// # Invariants
///
/// `length <= LINE`.
struct Line {
    text: [u8; LINE],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, from) in self.text.iter_mut().skip(self.length).zip(text.bytes()) {
            *to = from;
            // INVARIANT: There was a byte of the buffer left at this place.
            self.length = self.length.wrapping_add(1);
        }
        Ok(())
    }
}

/// Logs one line.
///
/// # Safety
///
/// `prefix` ends in a zero byte.
#[doc(hidden)]
pub unsafe fn call_printk(level: u8, prefix: &[u8], args: fmt::Arguments<'_>) {
    // INVARIANT: Zero is no more than `LINE`.
    let mut line = Line { text: [0; LINE], length: 0 };
    // Only a `Display` of ours can fail. Then the line contains what was written up to there.
    let _ = line.write_fmt(args);
    if line.length == LINE {
        if let Some(last) = line.text.last_mut() {
            *last = b'\n';
        }
    }
    // SAFETY: By the invariant the text has `length` bytes; the prefix ends by this function's
    // contract.
    unsafe { backend::kl_print(level, prefix.as_ptr(), line.text.as_ptr(), line.length) };
}

/// Logs one line for `pr_*!`. `crate` is the caller's, where `module!` has put the prefix.
#[doc(hidden)]
#[macro_export]
#[allow(clippy::crate_in_macro_def)]
macro_rules! print_macro {
    ($level:literal, $format:literal $(, $arg:expr)* $(,)?) => {
        // SAFETY: `module!` ends its prefix with a zero byte.
        unsafe {
            $crate::print::call_printk(
                $level,
                crate::__LOG_PREFIX,
                ::core::format_args!($format $(, $crate::fmt::Adapter(&$arg))*),
            )
        }
    };
}

/// Logs an error (level 3).
#[macro_export]
macro_rules! pr_err {
    ($($arg:tt)*) => { $crate::print_macro!(b'3', $($arg)*) };
}

/// Logs a warning (level 4).
#[macro_export]
macro_rules! pr_warn {
    ($($arg:tt)*) => { $crate::print_macro!(b'4', $($arg)*) };
}

/// Logs an information (level 6).
#[macro_export]
macro_rules! pr_info {
    ($($arg:tt)*) => { $crate::print_macro!(b'6', $($arg)*) };
}
