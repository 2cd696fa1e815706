// SPDX-License-Identifier: GPL-2.0

//! Why a registration of GPU memory is refused: as an errno, as a word for programs, as words for
//! people.

use crate::ffi::shim::EOPNOTSUPP;
use kernel::prelude::*;

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
    /// The provider says that this platform cannot pin, in whatever way was left to ask for.
    NotSupported,
    /// The provider says that this platform cannot pin persistently, and the fallback is off.
    NotPersistent,
    /// The provider says that the GPU is busy.
    Busy,
    /// The provider does not find the GPU.
    NoGpu,
    /// The start can be pinned, the whole cannot: BAR1 or memory is full.
    OutOfBar,
    /// The start can be pinned, and its BAR is shorter than the range: of so many bytes.
    LongerThanBar(u64),
    /// The provider failed on memory that it knows.
    ProviderFault,
    /// The range starts in GPU memory and leaves its allocation, and the pin would be revocable.
    LeavesAllocation,
    /// The range starts in GPU memory, and at this address is none that can be pinned.
    Hole(u64),
    /// Nobody could find out whose memory it is, so it was not claimed.
    Unproven,
    /// The provider failed on the start, too, when it was asked for a persistent pin.
    PersistentFault,
    /// The memory was freed while it was being registered.
    Freed,
    /// The provider's table cannot be trusted.
    Table(TableFault),
    /// The memory lies in no BAR. The provider maps such memory for persistent pins only, and not
    /// in pages of 4 KiB.
    OutsideBar,
    /// The driver above named no device.
    NoDevice,
    /// The provider can map for PCI devices only.
    NotPci,
    /// The provider says that this GPU and this device cannot reach each other.
    Topology,
    /// An address could not be mapped for the device.
    DmaMapping,
    /// The kernel is out of memory.
    NoMemory,
    /// More entries than an `int` can count, or more pieces than the provider is asked for.
    TooManyEntries,
    /// The driver above asks for another range than it pinned, or in the wrong order.
    Order,
}

impl Reason {
    /// Returns the error that the registration fails with.
    pub(crate) fn errno(self) -> Error {
        self.named_errno().1
    }

    /// Returns the name of [`Self::errno`].
    pub(crate) fn errno_name(self) -> &'static str {
        self.named_errno().0
    }

    /// Returns the error and its name. The provider's 524 (ENOTSUPP) has no name in user space, so it
    /// becomes EOPNOTSUPP.
    fn named_errno(self) -> (&'static str, Error) {
        match self {
            Self::NotSupported | Self::NotPersistent | Self::OutsideBar | Self::NotPci | Self::Topology => {
                ("EOPNOTSUPP", Error::from_errno(EOPNOTSUPP))
            }
            Self::Busy => ("EBUSY", EBUSY),
            Self::NoGpu | Self::NoDevice => ("ENODEV", ENODEV),
            Self::OutOfBar | Self::LongerThanBar(_) | Self::NoMemory => ("ENOMEM", ENOMEM),
            Self::ProviderFault | Self::Table(_) | Self::DmaMapping => ("EIO", EIO),
            Self::LeavesAllocation | Self::Hole(_) | Self::Order => ("EINVAL", EINVAL),
            // Bad address: what is not claimed fails as if it were nobody's.
            Self::Freed | Self::Unproven | Self::PersistentFault => ("EFAULT", EFAULT),
            Self::TooManyEntries => ("EOVERFLOW", EOVERFLOW),
        }
    }

    /// One of each kind, for lists. The number that a fault found is no part of its kind.
    pub(crate) const ALL: [Self; 25] = [
        Self::NotSupported,
        Self::NotPersistent,
        Self::Busy,
        Self::NoGpu,
        Self::OutOfBar,
        Self::LongerThanBar(0),
        Self::ProviderFault,
        Self::LeavesAllocation,
        Self::Hole(0),
        Self::Unproven,
        Self::PersistentFault,
        Self::Freed,
        Self::Table(TableFault::Version(0)),
        Self::Table(TableFault::PageSize(0)),
        Self::Table(TableFault::Entries(0)),
        Self::Table(TableFault::NoPages),
        Self::Table(TableFault::Address),
        Self::OutsideBar,
        Self::NoDevice,
        Self::NotPci,
        Self::Topology,
        Self::DmaMapping,
        Self::NoMemory,
        Self::TooManyEntries,
        Self::Order,
    ];

    /// Returns its place in [`Self::ALL`].
    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().take_while(|other| other.key() != self.key()).count()
    }

    /// Returns its name, for programs (docs/proc.md).
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::NotSupported => "not_supported",
            Self::NotPersistent => "not_persistent",
            Self::Busy => "busy",
            Self::NoGpu => "no_gpu",
            Self::OutOfBar => "out_of_bar",
            Self::LongerThanBar(_) => "longer_than_bar",
            Self::ProviderFault => "provider_fault",
            Self::LeavesAllocation => "leaves_allocation",
            Self::Hole(_) => "hole",
            Self::Unproven => "unproven",
            Self::PersistentFault => "persistent_fault",
            Self::Freed => "freed",
            Self::Table(TableFault::Version(_)) => "table_version",
            Self::Table(TableFault::PageSize(_)) => "table_page_size",
            Self::Table(TableFault::Entries(_)) => "table_entries",
            Self::Table(TableFault::NoPages) => "table_no_pages",
            Self::Table(TableFault::Address) => "table_address",
            Self::OutsideBar => "outside_bar",
            Self::NoDevice => "no_device",
            Self::NotPci => "not_pci",
            Self::Topology => "topology",
            Self::DmaMapping => "dma_mapping",
            Self::NoMemory => "no_memory",
            Self::TooManyEntries => "too_many_entries",
            // The word is older than other drivers on this layer, and programs read it.
            Self::Order => "core_order",
        }
    }

    /// Says what is wrong, and what to do about it, as far as that is the same for every driver. A driver
    /// that knows more says so in its own words ([`crate::observe::refusals::Asked::words`]).
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::NotSupported => {
                "the GPU driver cannot pin this memory on this platform (vGPU, MIG, confidential computing; from driver 590 on localized memory of coherent platforms)"
            }
            Self::NotPersistent => {
                "the GPU driver cannot pin this memory persistently on this platform (vGPU, MIG, confidential computing; from driver 590 on localized memory of coherent platforms)"
            }
            Self::Busy => "the GPU driver is busy with this GPU (reset or MIG change?); try again",
            Self::NoGpu => "the GPU driver does not find the GPU of this memory; see nvidia-smi",
            Self::OutOfBar => {
                "its start can be pinned but not all of it: BAR1 is full (or kernel memory is); see nvidia-smi -q -d MEMORY, deregister other buffers"
            }
            Self::LongerThanBar(_) => {
                "it is longer than BAR1 of its GPU (its bytes are the number found): register a part of it"
            }
            Self::ProviderFault => "the GPU driver failed to pin memory that it knows; see its lines in the kernel log",
            Self::LeavesAllocation => {
                "it starts in GPU memory but leaves its allocation, which revocable pins cannot follow; register each allocation by itself"
            }
            Self::Hole(_) => {
                "it starts in GPU memory, but at the address found it has none that can be pinned (freed, unmapped, host or managed memory, or cuMemCreate without gpuDirectRDMACapable); register what lies before and behind that"
            }
            Self::Unproven => {
                "the GPU driver failed, or memory or BAR1 space was short, before it could say whether this is GPU memory; see its lines in the kernel log and nvidia-smi -q -d MEMORY"
            }
            Self::PersistentFault => {
                "the GPU driver failed to pin it persistently (EIO), as it does where it cannot share an allocation; see the driver's NVRM lines in the kernel log"
            }
            Self::Freed => "the memory was freed while it was being registered; keep it until that has ended",
            Self::Table(TableFault::Version(_)) => {
                "the GPU driver's page table has an unknown version; update this module to fit the driver"
            }
            Self::Table(TableFault::PageSize(_)) => {
                "the GPU driver's page table has an unknown page size; update this module to fit the driver"
            }
            Self::Table(TableFault::Entries(_)) => {
                "the GPU driver's page table has not as many entries as the range needs; update this module to fit the driver"
            }
            Self::Table(TableFault::NoPages) => {
                "the GPU driver's page table has no pages; report it to NVIDIA with the driver's version"
            }
            Self::Table(TableFault::Address) => {
                "the GPU driver's page table has a page at an impossible address; report it to NVIDIA with the driver's version"
            }
            Self::OutsideBar => {
                "it is coherent memory, or lies in no BAR of a GPU, which the GPU driver maps only in pages of 64 KiB and for persistent pins"
            }
            Self::NoDevice => "no device was named for which to map it",
            Self::NotPci => {
                "it is coherent memory, or lies in no BAR of a GPU, and the GPU driver maps such memory for PCI devices only"
            }
            Self::Topology => {
                "the GPU driver says that this GPU and this device cannot reach each other on this platform (coherent memory: or it is in CDMM mode, in which drivers from 595 on map none)"
            }
            Self::DmaMapping => {
                "it could not be mapped for the device; see IOMMU and DMA lines in the kernel log. Without any: swiotlb=force, and from Linux 7.2 on an encrypted guest (SEV, TDX), refuse to map the memory of a device"
            }
            Self::NoMemory => "the kernel is out of memory; free some, see dmesg",
            Self::TooManyEntries => "it is in too many pieces; register it in parts",
            Self::Order => {
                "it was to be mapped before it was pinned, or twice, or with another range: report that to the authors of this module"
            }
        }
    }

    /// Returns the offending number, where there is one.
    pub(crate) fn found(self) -> Option<u64> {
        match self {
            Self::Hole(found) | Self::LongerThanBar(found) => Some(found),
            Self::Table(TableFault::Version(found) | TableFault::PageSize(found) | TableFault::Entries(found)) => {
                Some(found.into())
            }
            _ => None,
        }
    }
}
