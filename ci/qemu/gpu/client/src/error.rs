// SPDX-License-Identifier: GPL-2.0

//! The error type. It says what was tried, on what, and how the kernel refused.

use std::fmt;
use std::io;

/// An error of an operation on the lab's GPU.
#[derive(Debug)]
pub struct Error {
    what: String,
    source: io::Error,
}

/// The result of an operation on the lab's GPU.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self { what: what.into(), source }
    }

    pub(crate) fn last(what: impl Into<String>) -> Self {
        Self::new(what, io::Error::last_os_error())
    }

    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(what, io::Error::new(io::ErrorKind::InvalidData, why.into()))
    }

    /// Returns the errno, if the kernel gave one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        io::Error::new(e.source.kind(), e)
    }
}
