// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! What the cache needs of CUDA and of verbs. The real libraries implement it, and so do the
//! models.

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

    /// The flags as verbs know them.
    pub const fn bits(self) -> i32 {
        self.0
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a region with these flags serves a request with `other`: it has more rights at most.
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

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Memory of a GPU.
    Device,
    /// Managed memory, which moves between GPU and host.
    Managed,
    /// Host memory that CUDA knows.
    Host,
    /// Nothing that CUDA knows: freed, of another process, or plain host memory.
    Unknown,
    /// CUDA was not started in this process.
    NotStarted,
    /// CUDA cannot say, with this status: its context is broken, as after a kernel's fault.
    Failed(i32),
}

/// CUDA, as far as registrations need it. Called without a lock of the cache.
pub trait Gpu: Send + Sync + 'static {
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: the number of the allocation, unique in the process,
    /// `None` for freed and foreign memory, and where CUDA cannot say (a destroyed context).
    fn buffer_id(&self, address: u64) -> Option<u64>;
    /// The same number and the allocation around the address, by one question, where CUDA answers
    /// both at once.
    fn buffer(&self, _address: u64) -> Option<(u64, Range)> {
        None
    }
    /// What the address belongs to.
    fn kind(&self, address: u64) -> Kind;
    /// The allocation, or the segment of virtual memory, around the address. It needs no context of
    /// the caller's.
    fn allocation(&self, address: u64) -> Option<Range>;
    /// A dma-buf of the range, which is made of whole pages of the system's. Errors in words.
    fn export(&self, range: Range) -> Result<OwnedFd, String>;
    /// A number that changes when CUDA restored the process from a checkpoint: all memory is then
    /// new, under its old numbers. `None` where nobody can see it.
    fn epoch(&self) -> Option<u64> {
        Some(0)
    }
    /// Whether the memory can be pinned for peer memory, where CUDA says so.
    fn capable(&self, _address: u64) -> Option<bool> {
        None
    }
    /// Whether the memory is of a pool, as of `cudaMallocAsync()`.
    fn pooled(&self, _address: u64) -> bool {
        false
    }
    /// The number of the GPU that has the memory.
    fn device(&self, _address: u64) -> i32 {
        0
    }
    /// How many bytes that GPU has free, and how many it has, where CUDA says so.
    fn memory(&self, _address: u64) -> Option<(u64, u64)> {
        None
    }
    /// The name of a status.
    fn words(&self, status: i32) -> String {
        format!("CUDA error {status}")
    }
}

/// Verbs, as far as registrations need them. Called without a lock of the cache.
pub trait Verbs: Send + Sync + 'static {
    /// A protection domain.
    type Pd: Copy + Ord + Hash + Send + Sync + 'static;
    /// A memory region.
    type Mr: Send + Sync + 'static;
    /// `ibv_reg_mr()`.
    fn register(&self, pd: Self::Pd, range: Range, access: Access) -> io::Result<Self::Mr>;
    /// `ibv_reg_dmabuf_mr()`: `range` lies `offset` bytes into the dma-buf.
    fn register_dma_buf(
        &self,
        pd: Self::Pd,
        range: Range,
        offset: u64,
        fd: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<Self::Mr>;
    /// `ibv_dereg_mr()`.
    fn deregister(&self, mr: Self::Mr) -> io::Result<()>;
    /// lkey and rkey.
    fn keys(&self, mr: &Self::Mr) -> (u32, u32);
}
