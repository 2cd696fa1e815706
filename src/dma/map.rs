// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of pinned memory for one device, undone when they are dropped.
//!
//! We map memory in a BAR ourselves, run by run. On kernels from 6.12 on the provider's own mapping
//! is untranslated behind an IOMMU; it also takes the RM API lock, and races with the free callback
//! (rule 4).
//!
//! A pin is mapped whole, and its DMA addresses are trimmed to the user's range. An IOMMU aligns
//! each mapping to its length. So whole GPU pages keep the alignment that a NIC needs for its pages
//! (rule 13).

use crate::dma::device::Device;
use crate::ffi::raw;
use crate::ffi::shim::{self, Kind, Resched};
use crate::num;
use crate::observe::reason::Reason;
use crate::observe::stats::{self, Call};
use crate::range::PIN_GRANULE;
use crate::several::Several;
use crate::sg::{self, Coalescer, Room, Run, Runs, Table};
use core::ptr::NonNull;
use kernel::alloc::KVVec;
use kernel::error::to_result;
use kernel::prelude::*;

/// Pages that the provider pinned.
#[derive(Clone, Copy)]
pub(crate) struct ProviderPages {
    /// Bytes per page.
    pub(crate) page_size: u64,
    /// Number of pages.
    pub(crate) entries: u32,
}

impl ProviderPages {
    /// Whether the provider may be asked to map such a table. With pages of 4 KiB its mapping
    /// function stops the machine (`BUG_ON` in nv-p2p.c of the open kernel modules).
    pub(crate) fn mappable(&self) -> bool {
        self.page_size >= PIN_GRANULE
    }
}

/// Bytes of a piece, where the IOMMU has no single block of addresses for a run. A NIC gets no more
/// in one entry (rule 13), and its page sizes divide this.
const PIECE: u64 = 1 << 30;

/// `runs` with those behind the first `mapped` cut into pieces.
fn in_pieces(runs: &[Run], mapped: usize) -> Result<Runs, Reason> {
    let (done, rest) = runs.split_at_checked(mapped).ok_or(Reason::DmaMapping)?;
    let count = mapped.saturating_add(sg::entries(rest.iter().copied(), PIECE));
    let mut pieces = KVVec::with_capacity(count, GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
    let mut resched = Resched::default();
    let rest = rest.iter().flat_map(|run| sg::cut(*run, PIECE));
    // (`pin_init` has a `chain()`, too.)
    for run in Iterator::chain(done.iter().copied(), rest) {
        resched.step();
        pieces.push_within_capacity(run).map_err(|_| Reason::NoMemory)?;
    }
    Ok(Runs::Many(pieces))
}

/// The provider's record of a mapping that it made.
struct ProviderMapping {
    table: NonNull<raw::nvidia_p2p_page_table>,
    mapping: NonNull<raw::nvidia_p2p_dma_mapping>,
}

/// Who mapped, and so who unmaps.
enum MappedBy {
    /// We did. The first `mapped` runs carry addresses as the DMA API returned them.
    Us { mapped: usize, bus_offset: u64 },
    /// The provider did.
    Provider(ProviderMapping),
}

/// The mappings of one registration: one, or one for each piece where its memory is not all in one
/// BAR.
pub(crate) struct Mappings {
    all: Several<Mapping>,
    /// Bytes of the pins in front of the wanted ones.
    skip: u64,
    wanted: u64,
}

impl Mappings {
    /// `all` of the mappings, in the order of the user's addresses. The first `skip` bytes are left
    /// out, and the `wanted` ones behind those are covered.
    pub(crate) fn new(all: Several<Mapping>, skip: u64, wanted: u64) -> Self {
        Self { all, skip, wanted }
    }

    /// The table of the wanted DMA addresses, as the device must be given them. See [`Table::new`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(crate) unsafe fn table(&self, cap: u64, room: &Room) -> Result<Table> {
        let first = self.all.first().dma_runs();
        let others = self.all.others();
        if others.is_empty() {
            // Nearly always, and quicker than a chain: memory in single pages has 16384 runs per
            // GiB.
            // SAFETY: By this function's contract.
            return unsafe { Table::new(sg::trim(first, self.skip, self.wanted), cap, room) };
        }
        // (`pin_init` has a `chain()`, too.)
        let runs = Iterator::chain(first, others.iter().flat_map(Mapping::dma_runs));
        // SAFETY: By this function's contract.
        unsafe { Table::new(sg::trim(runs, self.skip, self.wanted), cap, room) }
    }

    /// Number of contiguous runs.
    pub(crate) fn runs(&self) -> usize {
        self.all.iter().fold(0, |sum, mapping| sum.saturating_add(mapping.runs.as_slice().len()))
    }

    /// PCI numbers of the first GPU and of the device, 0 for one that has none.
    pub(crate) fn ends(&self) -> (u64, u64) {
        let first = self.all.first();
        (first.gpu, first.device.number())
    }

    /// Undoes one mapping that we made. `false` for anything else, which is to be dropped without a
    /// state lock: there are many, or the provider is called, and they are never a revocable pin's.
    pub(crate) fn undo(&mut self) -> bool {
        let ours = self.all.len() == 1 && matches!(self.all.first().by, MappedBy::Us { .. });
        if ours {
            self.all.last_mut().unmap();
        }
        ours
    }
}

/// One mapping.
///
/// # Invariants
///
/// With [`MappedBy::Us`] exactly the first `mapped` runs are mapped for `device`. With
/// [`MappedBy::Provider`] the provider's mapping is live, and `device` is a PCI device.
pub(crate) struct Mapping {
    device: Device,
    /// PCI number of the GPU, 0 outside every BAR.
    gpu: u64,
    /// Whole pins.
    runs: Runs,
    by: MappedBy,
}

// SAFETY: Runs are plain data, and the provider's records are bound to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `runs` (CPU physical addresses), which lie in one BAR of `gpu`. `bus_offset` is what
    /// that BAR's bus addresses are away from them.
    ///
    /// May sleep and allocate: never under a state lock or the registry lock.
    pub(crate) fn of_bar(device: Device, runs: Runs, gpu: u64, bar_bus_offset: u64) -> Result<Self, Reason> {
        let page_mask = shim::page_size().wrapping_sub(1);
        // INVARIANT: Nothing is mapped yet. From here on, dropping `this` undoes what was done.
        let mut this = Self { device, gpu, runs, by: MappedBy::Us { mapped: 0, bus_offset: 0 } };
        let Self { runs, by: MappedBy::Us { mapped, bus_offset }, .. } = &mut this else {
            return Err(Reason::DmaMapping);
        };
        let mut unchanged = 0usize;
        let mut resched = Resched::default();
        loop {
            let mut too_long = false;
            for run in runs.as_mut_slice().get_mut(*mapped..).unwrap_or_default() {
                resched.step();
                let mut dma = 0;
                // SAFETY: `device` is valid. The address lies in a BAR, as the caller says. `dma`
                // is a local.
                if unsafe { raw::nvpm_dma_map(device.as_ptr(), run.addr, run.len, &mut dma) } != 0 {
                    if run.len <= PIECE {
                        return Err(Reason::DmaMapping);
                    }
                    too_long = true;
                    break;
                }
                unchanged = unchanged.wrapping_add(usize::from(dma == run.addr));
                run.addr = dma;
                // INVARIANT: One run more is mapped.
                *mapped = mapped.wrapping_add(1);
                if dma & page_mask != 0 || dma.checked_add(run.len).is_none() {
                    return Err(Reason::DmaMapping);
                }
            }
            if !too_long {
                break;
            }
            // INVARIANT: The mapped runs stay as they are, where they are.
            *runs = in_pieces(runs.as_slice(), *mapped)?;
        }
        // Without translation the device must be told the bus address, which the DMA API does not
        // know for MMIO. The API answers for the device as a whole; a mixture would make the bus
        // offset wrong for one half.
        if unchanged != 0 {
            if unchanged != *mapped {
                return Err(Reason::DmaMapping);
            }
            *bus_offset = bar_bus_offset;
        }
        Ok(this)
    }

    /// Has the provider map its `table`, of which `pages` tells the layout. `runs` lends its
    /// memory.
    ///
    /// Takes the RM API lock in the provider, sleeps and allocates: never under a state lock or the
    /// registry lock.
    pub(crate) fn by_provider(
        device: Device,
        mut runs: Runs,
        pages: ProviderPages,
        table: NonNull<raw::nvidia_p2p_page_table>,
    ) -> Result<Self, Reason> {
        // First what no other NIC would change.
        if !pages.mappable() {
            return Err(Reason::OutsideBar);
        }
        if !device.is_pci() {
            return Err(Reason::NotPci);
        }
        let mut mapping = core::ptr::null_mut();
        // SAFETY: A PCI device, as just tested. The persistent table is valid until its put, which
        // comes after every unmapping. `mapping` is a local.
        let map = || unsafe { raw::nvpm_p2p_dma_map(device.as_ptr(), table.as_ptr(), &mut mapping) };
        to_result(stats::timed(Kind::Persistent, Call::Map, map).0).map_err(|error| {
            if error == ENOTSUPP {
                Reason::Topology
            } else if error == ENOMEM {
                Reason::NoMemory
            } else {
                Reason::DmaMapping
            }
        })?;
        let mapping = NonNull::new(mapping).ok_or(Reason::DmaMapping)?;
        let provider = ProviderMapping { table, mapping };
        runs.clear();
        // INVARIANT: The provider's mapping is live. Dropping `this` undoes it.
        let mut this = Self { device, gpu: 0, runs, by: MappedBy::Provider(provider) };
        this.read_provider(mapping, pages)?;
        Ok(this)
    }

    /// Checks the provider's addresses and makes runs of them.
    fn read_provider(
        &mut self,
        mapping: NonNull<raw::nvidia_p2p_dma_mapping>,
        pages: ProviderPages,
    ) -> Result<(), Reason> {
        // SAFETY: The provider returned the mapping just now. It stays until we unmap it.
        let (version, addresses, entries) = unsafe {
            let mapping = mapping.as_ptr();
            ((*mapping).version, (*mapping).dma_addresses, (*mapping).entries)
        };
        if version >> 16 != raw::NVIDIA_P2P_DMA_MAPPING_MAJOR || addresses.is_null() || entries != pages.entries {
            return Err(Reason::DmaMapping);
        }
        let mut coalescer = Coalescer::new(pages.page_size);
        let mut resched = Resched::default();
        for index in 0..entries {
            resched.step();
            // SAFETY: Not NULL, and `index` is below the number of addresses.
            let dma = unsafe { *addresses.add(num::index(index)) };
            // All ones is what a failed mapping leaves behind.
            if dma == u64::MAX {
                return Err(Reason::DmaMapping);
            }
            if let Some(run) = coalescer.push(dma).map_err(|_| Reason::DmaMapping)? {
                self.runs.append(run).map_err(|_| Reason::NoMemory)?;
            }
        }
        if let Some(run) = coalescer.finish() {
            self.runs.append(run).map_err(|_| Reason::NoMemory)?;
        }
        Ok(())
    }

    /// All DMA addresses, as the device must be given them.
    fn dma_runs(&self) -> impl Iterator<Item = Run> + Clone + '_ {
        let offset = match &self.by {
            MappedBy::Us { bus_offset, .. } => *bus_offset,
            MappedBy::Provider(_) => 0,
        };
        self.runs.as_slice().iter().map(move |run| Run { addr: run.addr.wrapping_add(offset), len: run.len })
    }

    /// Unmaps what is mapped. Waits for nothing unless the provider mapped it.
    fn unmap(&mut self) {
        // INVARIANT: Once this returns nothing is mapped, and `by` holds no provider's mapping.
        match core::mem::replace(&mut self.by, MappedBy::Us { mapped: 0, bus_offset: 0 }) {
            MappedBy::Us { mapped, .. } => {
                let mut resched = Resched::default();
                for run in self.runs.as_slice().iter().take(mapped) {
                    resched.step();
                    // SAFETY: By the invariant this run is mapped for this device, which is still
                    // valid.
                    unsafe { raw::nvpm_dma_unmap(self.device.as_ptr(), run.addr, run.len) };
                }
            }
            MappedBy::Provider(provider) => {
                // SAFETY: By the invariant the device is PCI and the mapping live. Its persistent
                // table is put only after every unmapping. The call's only error is an unknown
                // mapping.
                unsafe {
                    raw::nvpm_p2p_dma_unmap(self.device.as_ptr(), provider.table.as_ptr(), provider.mapping.as_ptr())
                };
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap();
        // A registration may have tens of thousands. Never dropped under a state lock.
        shim::cond_resched();
    }
}
