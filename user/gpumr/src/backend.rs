// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The traits of CUDA and of verbs that the cache uses. The real libraries implement them, and so
//! do the models.

use crate::range::Range;
use std::hash::Hash;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Access flags, as `ibv_reg_mr()` takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access(i32);

impl Access {
    /// The NIC may write for this machine.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Others may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Others may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Others may use atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// The NIC may reorder its writes.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);
    /// The four rights, of which a region may have more than a request needs.
    const RIGHTS: i32 = 0xf;

    /// Returns the flags as verbs know them.
    pub const fn bits(self) -> i32 {
        self.0
    }

    /// Returns whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the kernel refuses these flags for any NIC.
    pub(crate) const fn contradicts(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0 && !self.contains(Self::LOCAL_WRITE)
    }

    /// Returns whether a region with these flags serves a request with `other`: it may have more
    /// rights, but no other difference.
    pub(crate) const fn serves(self, other: Self) -> bool {
        self.contains(other) && (self.0 ^ other.0) & !Self::RIGHTS == 0
    }
}

impl From<i32> for Access {
    fn from(bits: i32) -> Self {
        Self(bits)
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The kind of memory that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Memory of a GPU.
    Device,
    /// Managed memory, which moves between GPU and host.
    Managed,
    /// Host memory that CUDA knows.
    Host,
    /// Nothing that CUDA knows: freed memory, memory of another process, or plain host memory.
    Unknown,
    /// CUDA was not started in this process.
    NotStarted,
    /// CUDA cannot say, and answers with this status: its context is broken, as after a kernel's
    /// fault.
    Failed(i32),
}

/// The part of CUDA that registrations need. Its functions are called without a lock of the cache.
pub trait Gpu: Send + Sync + 'static {
    /// Returns `CU_POINTER_ATTRIBUTE_BUFFER_ID`: the number of the allocation, unique in the
    /// process. Returns `None` for freed and foreign memory, and if CUDA cannot say (a destroyed
    /// context).
    fn buffer_id(&self, address: u64) -> Option<u64>;
    /// Returns the same number and the allocation around the address by one question, if CUDA can
    /// answer both at once.
    fn buffer(&self, _address: u64) -> Option<(u64, Range)> {
        None
    }
    /// Returns the kind of memory that the address belongs to.
    fn kind(&self, address: u64) -> Kind;
    /// Returns the allocation, or the segment of virtual memory, around the address. It needs no
    /// context of the caller's.
    fn allocation(&self, address: u64) -> Option<Range>;
    /// Fails if the library has no function for exports, in words and with
    /// [`io::ErrorKind::Unsupported`].
    fn exports(&self) -> io::Result<()> {
        Ok(())
    }
    /// Exports `pages`, whole pages of the system around `memory`, as a dma-buf. Returns the range that
    /// it has, too, which may be larger. Errors are in words.
    fn export(&self, pages: Range, memory: Range) -> Result<(OwnedFd, Range), String>;
    /// Returns a number that changes when CUDA restored the process from a checkpoint: all memory
    /// is then new, under its old numbers. Returns `None` if nobody can see that.
    fn epoch(&self) -> Option<u64> {
        Some(0)
    }
    /// Returns the same for memory that is being registered. This may take longer, but sees a
    /// checkpoint that [`Gpu::epoch`] may see a little later.
    fn fresh_epoch(&self) -> Option<u64> {
        self.epoch()
    }
    /// Returns whether the memory can be pinned for peer memory, if CUDA says so.
    fn capable(&self, _address: u64) -> Option<bool> {
        None
    }
    /// Returns whether the memory belongs to a pool, like that of `cudaMallocAsync()`.
    fn pooled(&self, _address: u64) -> bool {
        false
    }
    /// Returns the number of the GPU that has the memory.
    fn device(&self, _address: u64) -> i32 {
        0
    }
    /// Returns how many bytes that GPU has free, and how many it has, if the driver says so. It is asked at
    /// any time, so it must not need a context that the program may end.
    fn memory(&self, _address: u64) -> Option<(u64, u64)> {
        None
    }
    /// Returns the name of a status.
    fn words(&self, status: i32) -> String {
        format!("CUDA error {status}")
    }
}

/// The part of verbs that registrations need. Its functions are called without a lock of the cache.
pub trait Verbs: Send + Sync + 'static {
    /// A protection domain.
    type Pd: Copy + Ord + Hash + Send + Sync + 'static;
    /// A memory region.
    type Mr: Send + Sync + 'static;
    /// Calls `ibv_reg_mr()`.
    fn register(&self, pd: Self::Pd, range: Range, access: Access) -> io::Result<Self::Mr>;
    /// Fails if there is no function for dma-bufs: with [`io::ErrorKind::Unsupported`] if the library
    /// lacks it, with [`io::ErrorKind::InvalidInput`] if the caller's table does. The error is in
    /// words.
    fn takes_dma_buf(&self, _pd: Self::Pd) -> io::Result<()> {
        Ok(())
    }
    /// Calls `ibv_reg_dmabuf_mr()`. `range` lies `offset` bytes into the dma-buf.
    fn register_dma_buf(
        &self,
        pd: Self::Pd,
        range: Range,
        offset: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Self::Mr>;
    /// Calls `ibv_dereg_mr()`.
    fn deregister(&self, mr: Self::Mr) -> io::Result<()>;
    /// Returns lkey and rkey.
    fn keys(&self, mr: &Self::Mr) -> (u32, u32);
    /// Returns the address of its `struct ibv_mr`, which tells apart regions of several NICs that have one key. 0 if
    /// there is none.
    fn address(&self, _mr: &Self::Mr) -> usize {
        0
    }
}
