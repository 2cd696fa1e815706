// SPDX-License-Identifier: GPL-2.0

//! What the admin is told: reasons in words, counters, and one line per refusal.

use crate::range::Span;
use crate::shim;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};

/// What is wrong with a table that the provider returned (rule 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TableFault {
    /// Neither major version 1 nor 2.
    Version(u32),
    /// No page size that we know.
    PageSize(u32),
    /// The pages do not add up to the length that was asked for.
    Entries(u32),
    /// The array of pages, or a page in it, is missing.
    NoPages,
    /// A page's address is no multiple of the page size, or wraps.
    Address,
}

/// Why a registration of GPU memory is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The provider says that this platform cannot pin this way.
    NotSupported,
    /// The provider says that the GPU is busy.
    Busy,
    /// The provider does not find the GPU.
    NoGpu,
    /// The start can be pinned, the whole cannot: BAR1 or memory is full.
    OutOfBar,
    /// The provider failed on memory that it knows.
    ProviderFault,
    /// The range starts in GPU memory and leaves its allocation.
    LeavesAllocation,
    /// Nobody can say whose memory it is, because the provider has no memory left to look.
    Unproven,
    /// The memory was freed while it was being registered.
    Freed,
    /// The provider's table cannot be trusted.
    Table(TableFault),
    /// The memory lies in no BAR, and only a persistent pin could be mapped by the provider.
    OutsideBar,
    /// The core named no DMA device.
    NoDevice,
    /// The provider can map for PCI devices only.
    NotPci,
    /// The provider says that this GPU and this NIC cannot reach each other.
    Topology,
    /// An address could not be mapped for the NIC.
    DmaMapping,
    /// The kernel is out of memory.
    NoMemory,
    /// More entries than the core can count.
    TooManyEntries,
    /// The core asks for another range than it acquired, or in the wrong order.
    CoreOrder,
}

impl Reason {
    /// What `ibv_reg_mr()` fails with. 524 (ENOTSUPP) has no name in user space, so it becomes EOPNOTSUPP.
    pub(crate) fn errno(self) -> Error {
        const EOPNOTSUPP: i32 = -95;
        match self {
            Self::NotSupported | Self::OutsideBar | Self::NotPci | Self::Topology => Error::from_errno(EOPNOTSUPP),
            Self::Busy => EBUSY,
            Self::NoGpu | Self::NoDevice => ENODEV,
            Self::OutOfBar | Self::NoMemory | Self::Unproven => ENOMEM,
            Self::ProviderFault | Self::Table(_) | Self::DmaMapping => EIO,
            Self::LeavesAllocation | Self::CoreOrder => EINVAL,
            Self::Freed => EFAULT,
            Self::TooManyEntries => EOVERFLOW,
        }
    }

    fn counter(self) -> &'static Atomic<u64> {
        match self {
            Self::Unproven => &UNPROVEN,
            Self::Freed => &FREED,
            _ => &REFUSED,
        }
    }

    /// What is wrong, and what to do about it.
    fn words(self) -> &'static str {
        match self {
            Self::NotSupported => {
                "the GPU driver cannot pin on this platform (vGPU, MIG or confidential computing); use dma-buf"
            }
            Self::Busy => "the GPU driver is busy with this GPU (reset or MIG change?); try again",
            Self::NoGpu => "the GPU driver does not find the GPU of this memory; see nvidia-smi",
            Self::OutOfBar => {
                "its start can be pinned but not all of it: BAR1 is full; see nvidia-smi -q -d MEMORY, deregister other buffers"
            }
            Self::ProviderFault => "the GPU driver failed to pin memory that it knows; see its lines in the kernel log",
            Self::LeavesAllocation => {
                "it starts in GPU memory but leaves its allocation; register each allocation by itself"
            }
            Self::Unproven => {
                "the GPU driver is out of memory or BAR1 space and cannot say whether this is GPU memory; see nvidia-smi -q -d MEMORY"
            }
            Self::Freed => "the memory was freed while it was being registered",
            Self::Table(TableFault::Version(_)) => {
                "the GPU driver's page table has an unknown version; update this module to fit the driver"
            }
            Self::Table(TableFault::PageSize(_)) => {
                "the GPU driver's page table has an unknown page size; update this module to fit the driver"
            }
            Self::Table(TableFault::Entries(_)) => "the GPU driver's page table has not as many entries as the range needs",
            Self::Table(TableFault::NoPages) => "the GPU driver's page table has no pages",
            Self::Table(TableFault::Address) => "the GPU driver's page table has a page at an impossible address",
            Self::OutsideBar => {
                "it lies in no BAR of a GPU (coherent memory), which a revocable pin cannot map; load with persistent_api_support=1"
            }
            Self::NoDevice => "the RDMA device named no DMA device; a software device cannot reach a GPU",
            Self::NotPci => "it lies in no BAR of a GPU, and the GPU driver maps such memory for PCI devices only",
            Self::Topology => "the GPU driver says that this GPU and this NIC cannot reach each other on this platform",
            Self::DmaMapping => "it could not be mapped for the NIC; see IOMMU and DMA lines in the kernel log",
            Self::NoMemory => "the kernel is out of memory",
            Self::TooManyEntries => "it is in too many pieces for the RDMA core",
            Self::CoreOrder => "the RDMA core asked for another range than it acquired, or out of order",
        }
    }

    /// The offending number, where there is one.
    fn found(self) -> Option<u32> {
        match self {
            Self::Table(TableFault::Version(found) | TableFault::PageSize(found) | TableFault::Entries(found)) => {
                Some(found)
            }
            _ => None,
        }
    }
}

/// Counts the refusal, and says it in one line unless there were many just now. Never under L, never in the callback.
pub(crate) fn refused(reason: Reason, user: Span) {
    let _ = reason.counter().fetch_add(1, Relaxed);
    if !shim::log_allowed() {
        return;
    }
    pr_warn!(
        "process {}: registration of {} bytes at {:#x} refused with errno {}: {}\n",
        shim::Process::current().tgid(),
        user.len(),
        user.start(),
        reason.errno().to_errno().unsigned_abs(),
        reason.words()
    );
    if let Some(found) = reason.found() {
        pr_warn!("process {}: the number found there is {:#x}\n", shim::Process::current().tgid(), found);
    }
}

/// Registrations refused with a reason.
static REFUSED: Atomic<u64> = Atomic::new(0);
/// Registrations whose owner could not be found out.
static UNPROVEN: Atomic<u64> = Atomic::new(0);
/// Registrations that lost their memory before they were complete.
static FREED: Atomic<u64> = Atomic::new(0);
/// Pins taken back by the provider.
static REVOKED: Atomic<u64> = Atomic::new(0);
/// Callbacks that found nothing to do: late, repeated or stale.
static LATE: Atomic<u64> = Atomic::new(0);
/// Puts that the provider failed without keeping the pin.
static PUT_ERRORS: Atomic<u64> = Atomic::new(0);

/// Counts a pin that the provider took back. Called in the callback: no print.
pub(crate) fn revoked() {
    let _ = REVOKED.fetch_add(1, Relaxed);
}

/// Counts a callback without a registration to revoke. Called in the callback: no print.
pub(crate) fn late_callback() {
    let _ = LATE.fetch_add(1, Relaxed);
}

/// Counts a put whose error the provider did not explain.
pub(crate) fn put_error() {
    let _ = PUT_ERRORS.fetch_add(1, Relaxed);
}
