// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Says errors in words: what failed, which value is wrong, what to do.

use crate::backend::{Access, Gpu, Kind};
use crate::memlock;
use crate::range::Range;
use crate::way::Way;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::{fmt, io};

/// The kernel's own errno, which no library names.
const ENOTSUPP: i32 = 524;

/// The reason why there is no registration.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The length is 0.
    NoLength {
        /// The address at which it was to begin.
        address: u64,
    },
    /// The range passes the end of the address space.
    Wraps {
        /// The address at which it begins.
        address: u64,
        /// The number of bytes.
        length: u64,
    },
    /// CUDA knows nothing there.
    Unknown {
        /// The first such address of the range.
        address: u64,
        /// The range that was to be registered.
        range: Range,
    },
    /// The memory is managed.
    Managed {
        /// The address.
        address: u64,
    },
    /// The memory is the host's.
    Host {
        /// The address.
        address: u64,
    },
    /// CUDA was not started in this process.
    NotStarted,
    /// CUDA cannot say what is there.
    Cuda {
        /// The address.
        address: u64,
        /// The name of CUDA's answer.
        status: String,
    },
    /// The memory was freed or replaced during registration.
    Changed {
        /// The range that was to be registered.
        range: Range,
    },
    /// Neither way worked.
    #[non_exhaustive]
    Refused {
        /// The range that was to be registered.
        range: Range,
        /// The error of `ibv_reg_mr()`, if it was tried.
        peer_memory: Option<io::Error>,
        /// The error of dma-buf, if it was tried.
        dma_buf: Option<Refusal>,
        /// What CUDA says about such memory.
        memory: Memory,
        /// Says whether nvidia-peermem is known to be loaded.
        loaded: bool,
        /// The access that was asked for.
        access: Access,
        /// Says whether the limit of locked memory was in the way of `ibv_reg_mr()`, if it answered
        /// ENOMEM and that can be said.
        limited: Option<bool>,
    },
    /// This process is a child of the one that made the cache.
    Forked,
    /// An argument makes no sense; in words.
    Argument(Cow<'static, str>),
    /// A library is missing, or lacks a function.
    Library(String),
    /// No thread can be started for the sweep.
    Thread(io::Error),
}

/// What CUDA says about memory that was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Whether it can be pinned for peer memory, if CUDA says so.
    pub capable: Option<bool>,
    /// Whether it belongs to a pool, like that of `cudaMallocAsync()`.
    pub pooled: bool,
}

impl Memory {
    /// Asks CUDA about the memory at this address.
    #[doc(hidden)]
    pub fn of(gpu: &impl Gpu, address: u64) -> Self {
        Self { capable: gpu.capable(address), pooled: gpu.pooled(address) }
    }
}

/// The reason why dma-buf did not work.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// CUDA made no dma-buf; in words.
    Export(String),
    /// Verbs did not accept the dma-buf.
    Register(io::Error),
    /// A library, or the caller's table, has no function for it; in words.
    Missing(io::Error),
}

impl Error {
    /// Returns why an address of `range` is not memory of a GPU that can be registered.
    #[doc(hidden)]
    pub fn not_device(gpu: &impl Gpu, address: u64, range: Range) -> Self {
        match gpu.kind(address) {
            Kind::Managed => Self::Managed { address },
            Kind::Host => Self::Host { address },
            Kind::NotStarted => Self::NotStarted,
            Kind::Failed(status) => Self::Cuda { address, status: gpu.words(status) },
            Kind::Device | Kind::Unknown => Self::Unknown { address, range },
        }
    }

    /// Returns the errno for C programs. If both ways were tried, what the kernel said counts more
    /// than what a library lacks.
    pub fn errno(&self) -> i32 {
        let of = |error: &io::Error| {
            error.raw_os_error().unwrap_or(match error.kind() {
                // A library lacks a function, or the caller's table does.
                io::ErrorKind::Unsupported => libc::ENOSYS,
                io::ErrorKind::InvalidInput => libc::EINVAL,
                _ => libc::EIO,
            })
        };
        match self {
            Self::NoLength { .. } | Self::Wraps { .. } | Self::Argument(_) => libc::EINVAL,
            Self::Unknown { .. } | Self::Managed { .. } | Self::Host { .. } => libc::EFAULT,
            Self::NotStarted => libc::ENODEV,
            Self::Cuda { .. } => libc::EIO,
            Self::Changed { .. } => libc::EAGAIN,
            Self::Refused { dma_buf: Some(Refusal::Register(error)), .. } => of(error),
            Self::Refused { peer_memory: Some(error), .. }
                if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::Other =>
            {
                of(error)
            }
            Self::Refused { dma_buf: Some(Refusal::Missing(error)), .. } => of(error),
            Self::Refused { dma_buf: None, peer_memory: Some(error), .. } => of(error),
            Self::Refused { .. } => libc::EOPNOTSUPP,
            Self::Forked => libc::EPERM,
            Self::Library(_) => libc::ENOSYS,
            Self::Thread(error) => of(error),
        }
    }

    /// Returns the error of a range that could be registered in neither way.
    pub(crate) fn refused(
        range: Range,
        access: Access,
        (peer_memory, dma_buf): (Option<io::Error>, Option<Refusal>),
        memory: Memory,
        loaded: bool,
    ) -> Self {
        let short = peer_memory.as_ref().is_some_and(|error| error.raw_os_error() == Some(libc::ENOMEM));
        let limited = if short { memlock::exceeded(&range) } else { None };
        Self::Refused { range, peer_memory, dma_buf, memory, loaded, access, limited }
    }

    /// Returns whether less registered memory may help.
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

    /// Returns whether BAR1 may be full. If the driver pins not even one page, nvidia-peermem
    /// cannot tell that the memory is a GPU's, so `ibv_reg_mr()` fails with EFAULT. It always does
    /// for memory that cannot be pinned, like a pool's.
    pub(crate) fn may_lack_bar1(&self) -> bool {
        matches!(self, Self::Refused { peer_memory: Some(error), memory, .. }
            if error.raw_os_error() == Some(libc::EFAULT) && memory.capable != Some(false))
    }
}

impl Range {
    /// Returns `length` bytes from `address` on. Fails for no bytes, or for more than the address
    /// space has.
    #[inline]
    pub fn new(address: u64, length: u64) -> Result<Self, Error> {
        let Some(bytes) = NonZeroU64::new(length) else { return Err(Error::NoLength { address }) };
        let Some(range) = Self::of(address, bytes) else { return Err(Error::Wraps { address, length }) };
        Ok(range)
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
            Self::NotStarted => {
                write!(f, "CUDA was not started in this process: allocate GPU memory, or call cuInit(), first")
            }
            Self::Cuda { address, status } => {
                write!(f, "CUDA cannot say what {address:#x} is: {status}: an earlier error broke its context")
            }
            Self::Refused { range, peer_memory, dma_buf, memory, loaded, access, limited } => {
                write!(f, "{range} cannot be registered:")?;
                match peer_memory {
                    Some(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                        let cause = match (memory.capable, loaded) {
                            (Some(false), _) => NOT_PINNED,
                            (_, true) => NO_PAGE,
                            (_, false) => IS_LOADED,
                        };
                        write!(f, " by peer memory: {error}: {cause};")?;
                    }
                    Some(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                        let cause = match limited {
                            Some(true) => LIMITED,
                            Some(false) => FULL,
                            None => LIMITED_OR_FULL,
                        };
                        write!(f, " by peer memory: {error}: {cause};")?;
                    }
                    Some(error) => write!(f, " by peer memory: {};", Words(error, Way::PeerMemory, *access))?,
                    None => write!(f, " peer memory was not tried;")?,
                }
                match dma_buf {
                    Some(Refusal::Export(why)) => write!(f, " by dma-buf: CUDA exports none: {why}{}", memory.why())?,
                    Some(Refusal::Register(error) | Refusal::Missing(error)) => {
                        write!(f, " by dma-buf: {}", Words(error, Way::DmaBuf, *access))?;
                    }
                    None => write!(f, " dma-buf was not tried")?,
                }
                Ok(())
            }
            Self::Forked => {
                write!(f, "this process was forked: registrations and CUDA belong to the parent; use exec()")
            }
            Self::Argument(why) => f.write_str(why),
            Self::Library(why) => f.write_str(why),
            Self::Thread(error) => write!(f, "there is no thread for the sweep: {error}"),
        }
    }
}

impl Memory {
    /// Returns why CUDA exports no dma-buf, if that is known.
    #[doc(hidden)]
    pub fn why(&self) -> &'static str {
        if self.pooled {
            ": of a pool's memory it exports the first allocation only: use cudaMalloc() for what a NIC shall reach"
        } else {
            ""
        }
    }
}

/// The cause of EFAULT by peer memory where CUDA says that nobody can pin the memory.
const NOT_PINNED: &str =
    "CUDA says that it cannot be pinned: use cudaMalloc(), or cuMemCreate() with gpuDirectRDMACapable";
/// The cause where there is a module: it finds not one free page in BAR1.
const NO_PAGE: &str = "nvidia-peermem is loaded, but the GPU driver pins nothing there: BAR1 may be full";
/// The question where it is not known whether there is a module.
const IS_LOADED: &str = "is nvidia-peermem loaded?";

/// The causes of other errors of verbs (docs/doctor.md). The kernel's ENOTSUPP has no name in user
/// space, and its cause stands alone.
const CAUSES: [(i32, Way, &str); 10] = [
    (
        libc::EIO,
        Way::PeerMemory,
        "the GPU driver could not pin or map this memory (see the kernel log), or the NIC was removed or reset (open the \
         device anew)",
    ),
    (libc::EIO, Way::DmaBuf, "the NIC was removed or reset: open the device anew"),
    (libc::ENOMEM, Way::DmaBuf, FULL),
    (libc::EOPNOTSUPP, Way::PeerMemory, "the GPU driver does not pin this memory for this NIC: see the kernel log"),
    (libc::EOPNOTSUPP, Way::DmaBuf, "the NIC's driver takes no dma-buf"),
    (libc::EPERM, Way::PeerMemory, "this process may lock no memory: raise ulimit -l"),
    (libc::EINVAL, Way::PeerMemory, "the NIC does not know these access flags"),
    (
        libc::EINVAL,
        Way::DmaBuf,
        "the NIC does not take these access flags, or it takes no dma-buf, as some virtual functions do not: it does \
         not say which",
    ),
    (ENOTSUPP, Way::PeerMemory, TOPOLOGY),
    (ENOTSUPP, Way::DmaBuf, TOPOLOGY),
];
const TOPOLOGY: &str = "the GPU driver refuses this NIC (error 524): it does not approve of the PCI topology \
                        between the two, or an IOMMU keeps them apart, and does not say which: see \
                        NVreg_GrdmaPciTopoCheckOverride";
/// The cause of ENOMEM by peer memory where more would be pinned than the process may.
const LIMITED: &str = "the limit of locked memory is reached: raise ulimit -l";
/// The cause of ENOMEM where that limit is not in the way.
const FULL: &str = "BAR1 or the kernel's memory is full";
/// The causes where nobody can say whether it is.
const LIMITED_OR_FULL: &str = "the limit of locked memory (ulimit -l) is reached, or BAR1 is full: /proc does not say";
/// The cause of EINVAL, in either way, that the flags themselves show.
const CONTRADICTION: &str = "remote writes and remote atomics need IBV_ACCESS_LOCAL_WRITE, too";

/// Displays an error of verbs and its cause, if that is known.
#[doc(hidden)]
#[derive(Debug)]
pub struct Words<'a>(pub &'a io::Error, pub Way, pub Access);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error, way, access) = self;
        let cause = CAUSES.iter().find(|(errno, of, _)| error.raw_os_error() == Some(*errno) && of == way);
        match cause {
            Some((libc::EINVAL, ..)) if access.contradicts() => write!(f, "{error}: {CONTRADICTION}"),
            Some((ENOTSUPP, _, cause)) => f.write_str(cause),
            Some((_, _, cause)) => write!(f, "{error}: {cause}"),
            None => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { dma_buf: Some(Refusal::Register(error) | Refusal::Missing(error)), .. } => Some(error),
            Self::Refused { peer_memory: Some(error), .. } | Self::Thread(error) => Some(error),
            _ => None,
        }
    }
}
