// SPDX-License-Identifier: GPL-2.0

//! As `kernel::error`.

use crate::alloc::AllocError;
use crate::ffi::c_int;
use core::num::NonZeroI32;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(NonZeroI32);

pub type Result<T = (), E = Error> = core::result::Result<T, E>;

pub mod code {
    macro_rules! codes {
        ($($name:ident $n:literal,)*) => { $(pub const $name: super::Error = super::Error::konst(-$n);)* };
    }
    codes! {
        EPERM 1, ENOENT 2, ESRCH 3, EINTR 4, EIO 5, ENXIO 6, E2BIG 7, EAGAIN 11, ENOMEM 12, EACCES 13, EFAULT 14,
        EBUSY 16, EEXIST 17, ENODEV 19, EINVAL 22, ENOSPC 28, ERANGE 34, EOVERFLOW 75, EMSGSIZE 90, ETIMEDOUT 110,
        ENOTSUPP 524,
    }
}

impl Error {
    const fn konst(n: i32) -> Self {
        match NonZeroI32::new(n) {
            Some(n) => Self(n),
            None => panic!(),
        }
    }

    pub fn from_errno(n: c_int) -> Self {
        match NonZeroI32::new(n) {
            Some(v) if (-4095..0).contains(&n) => Self(v),
            _ => code::EINVAL,
        }
    }

    pub fn to_errno(self) -> c_int {
        self.0.get()
    }
}

impl core::fmt::Debug for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", -self.0.get())
    }
}

impl From<core::convert::Infallible> for Error {
    fn from(e: core::convert::Infallible) -> Self {
        match e {}
    }
}

impl From<AllocError> for Error {
    fn from(_: AllocError) -> Self {
        code::ENOMEM
    }
}

impl From<core::num::TryFromIntError> for Error {
    fn from(_: core::num::TryFromIntError) -> Self {
        code::EINVAL
    }
}

pub fn to_result(n: c_int) -> Result {
    if n < 0 {
        Err(Error::from_errno(n))
    } else {
        Ok(())
    }
}

pub fn from_result<T: From<i16>>(f: impl FnOnce() -> Result<T>) -> T {
    match f() {
        Ok(v) => v,
        Err(e) => T::from(i16::try_from(e.to_errno()).expect("an errno fits")),
    }
}
