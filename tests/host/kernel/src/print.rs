// SPDX-License-Identifier: GPL-2.0

//! As the kernel's `pr_*!`, which can show a `CStr`, too.

use core::ffi::CStr;
use core::fmt::Display;

pub fn print(level: u8, args: core::fmt::Arguments<'_>) {
    let text = std::fmt::format(args);
    crate::rt::rt_print(level as std::ffi::c_char, text.as_ptr(), text.len());
}

/// One argument of `pr_*!`.
pub struct Arg<'a, T: ?Sized>(pub &'a T);

/// What core can show; found first by method lookup on `&&Arg`.
pub trait Shown<'a> {
    type To;
    fn shown(&self) -> Self::To;
}

impl<'a, T: Display> Shown<'a> for &Arg<'a, T> {
    type To = &'a T;

    fn shown(&self) -> &'a T {
        self.0
    }
}

/// What it cannot.
pub trait ShownText {
    fn shown(&self) -> String;
}

impl ShownText for Arg<'_, &CStr> {
    fn shown(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __print {
    ($level:literal, $f:literal $(, $a:expr)* $(,)?) => {{
        #[allow(unused_imports)]
        use $crate::print::{Shown as _, ShownText as _};
        $crate::print::print($level, ::core::format_args!($f $(, (&&$crate::print::Arg(&$a)).shown())*))
    }};
}
#[macro_export]
macro_rules! pr_err { ($($a:tt)*) => { $crate::__print!(b'3', $($a)*) }; }
#[macro_export]
macro_rules! pr_warn { ($($a:tt)*) => { $crate::__print!(b'4', $($a)*) }; }
#[macro_export]
macro_rules! pr_notice { ($($a:tt)*) => { $crate::__print!(b'5', $($a)*) }; }
#[macro_export]
macro_rules! pr_info { ($($a:tt)*) => { $crate::__print!(b'6', $($a)*) }; }
