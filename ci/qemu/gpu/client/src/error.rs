// SPDX-License-Identifier: GPL-2.0

//! One error type: what was tried, on what, and what the kernel said.

use std::fmt;
use std::io;

/// An operation on the lab's GPU failed.
#[derive(Debug)]
pub struct Error {
    what: String,
    source: io::Error,
}

/// Result of an operation on the lab's GPU.
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

    /// The errno, where the kernel gave one.
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
