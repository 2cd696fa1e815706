// SPDX-License-Identifier: GPL-2.0
//! Errors in words: what, which value, what to do.

use crate::range::Range;
use std::{fmt, io};

/// Why there is no registration.
#[derive(Debug)]
pub enum Error {
    /// The length is 0.
    NoLength {
        /// Where it was to begin.
        address: u64,
    },
    /// The range passes the end of the address space.
    Wraps {
        /// Where it begins.
        address: u64,
        /// Its bytes.
        length: u64,
    },
    /// CUDA knows nothing there.
    Unknown {
        /// The first such address of the range.
        address: u64,
        /// What was to be registered.
        range: Range,
    },
    /// Managed memory.
    Managed {
        /// Where.
        address: u64,
    },
    /// Host memory.
    Host {
        /// Where.
        address: u64,
    },
    /// The memory was freed or replaced during registration.
    Changed {
        /// What was to be registered.
        range: Range,
    },
    /// Neither way worked.
    Refused {
        /// What was to be registered.
        range: Range,
        /// What `ibv_reg_mr()` answered, if it was tried.
        peer_memory: Option<io::Error>,
        /// What dma-buf answered, if it was tried.
        dma_buf: Option<Refusal>,
    },
    /// This process is a child of the one that made the cache.
    Forked,
    /// What was passed makes no sense; in words.
    Argument(&'static str),
    /// A library is missing, or lacks a function.
    Library(String),
}

/// Why dma-buf did not work.
#[derive(Debug)]
pub enum Refusal {
    /// CUDA made none; in words.
    Export(String),
    /// Verbs did not take it.
    Register(io::Error),
}

impl Error {
    /// The errno for C programs.
    pub fn errno(&self) -> i32 {
        let of = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match self {
            Self::NoLength { .. } | Self::Wraps { .. } | Self::Argument(_) => libc::EINVAL,
            Self::Unknown { .. } | Self::Managed { .. } | Self::Host { .. } => libc::EFAULT,
            Self::Changed { .. } => libc::EAGAIN,
            Self::Refused { dma_buf: Some(Refusal::Register(error)), .. } => of(error),
            Self::Refused { peer_memory: Some(error), .. } => of(error),
            Self::Refused { .. } => libc::EOPNOTSUPP,
            Self::Forked => libc::EPERM,
            Self::Library(_) => libc::ENOSYS,
        }
    }

    /// Whether less registered memory may help.
    pub(crate) fn lacks_memory(&self) -> bool {
        let short = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOSPC));
        match self {
            Self::Refused { peer_memory, dma_buf, .. } => {
                peer_memory.as_ref().is_some_and(short)
                    || matches!(dma_buf, Some(Refusal::Register(error)) if short(error))
            }
            _ => false,
        }
    }

    /// Whether BAR1 may be full: to nvidia-peermem memory of which the driver pins not even one
    /// page looks like none of a GPU, so `ibv_reg_mr()` answers EFAULT.
    pub(crate) fn may_lack_bar1(&self) -> bool {
        matches!(self, Self::Refused { peer_memory: Some(error), .. } if error.raw_os_error() == Some(libc::EFAULT))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLength { address } => write!(f, "the range at {address:#x} has no bytes: pass a length above 0"),
            Self::Wraps { address, length } => {
                write!(f, "{length} bytes at {address:#x} pass the end of the address space: check the length")
            }
            Self::Unknown { address, range } if *address == range.start() => {
                write!(f, "{address:#x} is no memory that CUDA knows: freed, of another process, or plain host memory")
            }
            Self::Unknown { address, range } => {
                write!(f, "{range} leave allocated memory at {address:#x}: register only what is allocated")
            }
            Self::Managed { address } => {
                write!(f, "{address:#x} is managed memory, which moves: use cudaMalloc() for what a NIC shall reach")
            }
            Self::Host { address } => write!(f, "{address:#x} is host memory: use ibv_reg_mr()"),
            Self::Changed { range } => write!(f, "{range} were freed or replaced while they were registered"),
            Self::Refused { range, peer_memory, dma_buf } => {
                write!(f, "{range} cannot be registered:")?;
                match peer_memory {
                    Some(error) => write!(f, " by peer memory: {error} (is nvidia-peermem loaded?);")?,
                    None => write!(f, " peer memory was not tried;")?,
                }
                match dma_buf {
                    Some(Refusal::Export(why)) => write!(f, " by dma-buf: CUDA exports none: {why}"),
                    Some(Refusal::Register(error)) => write!(f, " by dma-buf: {error}"),
                    None => write!(f, " dma-buf was not tried"),
                }
            }
            Self::Forked => {
                write!(f, "this process was forked: registrations and CUDA belong to the parent; use exec()")
            }
            Self::Argument(why) => f.write_str(why),
            Self::Library(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
