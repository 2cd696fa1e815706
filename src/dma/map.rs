// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of pinned memory for one device, undone when they are dropped.
//!
//! We map memory in a BAR ourselves: run by run behind an IOMMU, and otherwise all at once. On
//! kernels from 6.12 on the provider's own mapping is untranslated behind an IOMMU. It also takes
//! the RM API lock, and races with the free callback (rule 4).
//!
//! A pin is mapped whole, and its DMA addresses are trimmed to the user's range. An IOMMU aligns
//! each mapping to its length. So whole GPU pages keep the alignment that a device needs for its pages
//! (rule 13).

use crate::dma::device::Device;
use crate::ffi::raw;
use crate::ffi::shim::{self, Kind, Resched};
use crate::num;
use crate::observe::reason::Reason;
use crate::observe::stats::{self, Call};
use crate::range::{GpuRange, PIN_GRANULE};
use crate::several::Several;
use crate::sg::{self, Coalescer, Extent, Room, Run, Runs, Table};
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
    /// Returns whether the provider may be asked to map such a table. With pages of 4 KiB its mapping
    /// function stops the machine (`BUG_ON` in nv-p2p.c of the open kernel modules).
    pub(crate) fn mappable(&self) -> bool {
        self.page_size >= PIN_GRANULE
    }
}

/// Bytes of a piece, where the IOMMU has no single block of addresses for a run. A device gets no more
/// in one entry (rule 13), and its page sizes divide this.
const PIECE: u32 = 1 << 30;

/// Returns `runs` with those behind the first `mapped` cut into pieces.
fn in_pieces(runs: &[Run], mapped: usize) -> Result<Runs, Reason> {
    let (done, rest) = runs.split_at_checked(mapped).ok_or(Reason::DmaMapping)?;
    let count = mapped.saturating_add(sg::entries(rest.iter().copied(), PIECE));
    let mut pieces = KVVec::with_capacity(count, GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
    let mut resched = Resched::default();
    let rest = rest.iter().flat_map(|run| sg::cut(*run, PIECE.into()));
    // (`pin_init` has a `chain()`, too.)
    for run in Iterator::chain(done.iter().copied(), rest) {
        resched.step();
        pieces.push_within_capacity(run).map_err(|_| Reason::NoMemory)?;
    }
    Ok(Runs::Many(pieces))
}

/// What is mapped, and by whom. `count` is the number of runs that were forgotten.
enum Mapped {
    /// This number of runs, from the first on, by us. They carry the addresses that the DMA API
    /// returned.
    Runs(usize),
    /// All at once, by us, for a device without translation. The runs keep their CPU addresses,
    /// which are `bus_offset` away from what the device must be given.
    Whole { whole: Run, bus_offset: u64, count: usize },
    /// All, by the provider. The runs carry its addresses.
    ByProvider {
        table: NonNull<raw::nvidia_p2p_page_table>,
        mapping: NonNull<raw::nvidia_p2p_dma_mapping>,
        count: usize,
    },
}

/// The mappings of one registration: one, or one for each piece where its memory is not all in one
/// BAR.
pub(crate) struct Mappings(Several<Mapping>);

impl Mappings {
    /// Takes `all` mappings, in the order of the user's addresses.
    pub(crate) fn new(all: Several<Mapping>) -> Self {
        Self(all)
    }

    /// Returns the table of the DMA addresses of `range`, as the device must be given them. See
    /// [`Table::new`]. Drops what is not needed to unmap, so call it once.
    ///
    /// # Safety
    ///
    /// As there.
    pub(crate) unsafe fn table(&mut self, range: &GpuRange, cap: u32, room: &Room) -> Result<Table> {
        let (skip, wanted) = (range.skip(), range.pages().len());
        let first = self.0.first().dma_runs();
        let others = self.0.others();
        let table = if others.is_empty() {
            // Nearly always, and quicker than a chain: memory in single pages has 16384 runs per
            // GiB.
            // SAFETY: By this function's contract.
            unsafe { Table::new(sg::trim(first, skip, wanted), cap, room) }
        } else {
            // (`pin_init` has a `chain()`, too.)
            let runs = Iterator::chain(first, others.iter().flat_map(Mapping::dma_runs));
            // SAFETY: By this function's contract.
            unsafe { Table::new(sg::trim(runs, skip, wanted), cap, room) }
        };
        self.0.iter_mut().for_each(Mapping::forget_runs);
        table
    }

    /// Returns the addresses of exactly the bytes of `range` that the user asked for, as the device must be
    /// given them, cut at `cap`. Drops what is not needed to unmap, so call it once.
    // nvidia-peermem has no use for it.
    #[allow(dead_code)]
    pub(crate) fn addresses(&mut self, range: &GpuRange, cap: u32) -> Result<Runs> {
        let skip = range.user().start().wrapping_sub(range.pinned().start());
        let runs = sg::trim(self.0.iter().flat_map(Mapping::dma_runs), skip, range.user().len());
        let mut resched = Resched::default();
        let mut addresses = Runs::None;
        for run in runs.flat_map(|run| sg::cut(run, cap.into())) {
            resched.step();
            addresses.append(run)?;
        }
        self.0.iter_mut().for_each(Mapping::forget_runs);
        addresses.without_slack()
    }

    /// Returns the number of contiguous runs.
    pub(crate) fn runs(&self) -> usize {
        self.0.iter().fold(0, |sum, mapping| sum.saturating_add(mapping.count()))
    }

    /// Returns the PCI numbers of the first GPU and of the device, 0 for one that has none.
    pub(crate) fn ends(&self) -> (u64, u64) {
        let first = self.0.first();
        (first.gpu, first.device.number())
    }

    /// Undoes the mapping if there is one alone and we made it, and returns its number of runs.
    /// Returns `None` for anything else, which is to be dropped without a state lock: there are many
    /// mappings, or the provider is called, and they are never a revocable pin's.
    pub(crate) fn undo(&mut self) -> Option<usize> {
        let mapping = self.0.only_mut().filter(|mapping| !matches!(mapping.mapped, Mapped::ByProvider { .. }))?;
        let runs = mapping.count();
        mapping.unmap();
        Some(runs)
    }
}

/// One mapping.
///
/// # Invariants
///
/// What `mapped` says is mapped for `device`, and nothing else of `runs`. With
/// [`Mapped::ByProvider`] `device` is a PCI device, and the table is valid.
pub(crate) struct Mapping {
    device: Device,
    /// PCI number of the GPU, 0 outside every BAR.
    gpu: u64,
    /// Those of whole pins, until they are forgotten.
    runs: Runs,
    mapped: Mapped,
}

// SAFETY: Runs are plain data, and the provider's records are bound to no thread.
unsafe impl Send for Mapping {}

/// Maps `run`, which lies in a BAR, for `device` and returns its DMA address; `None` if the DMA API
/// fails.
fn map_run(device: Device, run: Run) -> Option<u64> {
    let mut dma = 0;
    // SAFETY: `device` is valid. `dma` is a local.
    (unsafe { raw::nvpm_dma_map(device.as_ptr(), run.addr, run.len, &mut dma) } == 0).then_some(dma)
}

/// Unmaps what [`map_run`] mapped.
///
/// # Safety
///
/// `run`, with its DMA address, is mapped for `device`, and nobody unmaps it again.
unsafe fn unmap_run(device: Device, run: Run) {
    // SAFETY: `device` is valid. The rest is this function's contract.
    unsafe { raw::nvpm_dma_unmap(device.as_ptr(), run.addr, run.len) };
}

/// Returns whether the DMA API leaves addresses as they are for `device`. `run` was just mapped for it at
/// its own address. An IOMMU may do that by chance, but not a second time while the first mapping lives.
fn is_untranslated(device: Device, run: Run) -> bool {
    let Some(again) = map_run(device, run) else { return false };
    // SAFETY: It was just mapped, and nobody else knows of that.
    unsafe { unmap_run(device, Run { addr: again, ..run }) };
    again == run.addr
}

impl Mapping {
    /// Maps `runs` (CPU physical addresses), which lie in one BAR of `gpu`. `extent` is theirs,
    /// `bus_offset` is what that BAR's bus addresses are away from them.
    ///
    /// May sleep and allocate: never under a state lock or the registry lock.
    ///
    /// # Safety
    ///
    /// The runs lie in such a BAR. The device can read and write whatever is mapped here.
    pub(crate) unsafe fn of_bar(
        device: Device,
        runs: Runs,
        extent: Extent,
        gpu: u64,
        bus_offset: u64,
    ) -> Result<Self, Reason> {
        // INVARIANT: Nothing is mapped yet. From here on, dropping `this` undoes what was done.
        let mut this = Self { device, gpu, runs, mapped: Mapped::Runs(0) };
        let mut resched = Resched::default();
        let mut mapped = 0usize;
        // The API answers for the device as a whole, so its first answer tells.
        let mut translated = false;
        while let Some(run) = this.runs.as_mut_slice().get_mut(mapped) {
            resched.step();
            let Some(dma) = map_run(device, *run) else {
                if run.len <= PIECE.into() {
                    return Err(Reason::DmaMapping);
                }
                // INVARIANT: The mapped runs stay as they are, where they are.
                this.runs = in_pieces(this.runs.as_slice(), mapped)?;
                continue;
            };
            let same = dma == run.addr;
            run.addr = dma;
            let first = *run;
            mapped = mapped.wrapping_add(1);
            // INVARIANT: One run more is mapped.
            this.mapped = Mapped::Runs(mapped);
            if same && !translated && (bus_offset == 0 || is_untranslated(device, first)) {
                if this.without_translation(extent, bus_offset)? {
                    break;
                }
                translated = true;
                mapped = 0;
                continue;
            }
            translated = true;
            if dma & shim::page_size().wrapping_sub(1) != 0 || dma.checked_add(run.len).is_none() {
                return Err(Reason::DmaMapping);
            }
        }
        Ok(this)
    }

    /// Maps all in place of the first run alone, for a device without translation. It reaches all
    /// of the BAR, whatever is mapped. Run by run would be a quarter of the registration, where
    /// memory is in single pages.
    ///
    /// The device must be told the bus address, which the DMA API does not know for MMIO.
    ///
    /// Returns `false`, with nothing mapped, where the device turns out to have an IOMMU, which had given
    /// the first run its own address by chance.
    fn without_translation(&mut self, extent: Extent, bus_offset: u64) -> Result<bool, Reason> {
        let Extent { whole, alignment } = extent;
        if alignment < shim::page_size() {
            return Err(Reason::DmaMapping);
        }
        let mut dma = whole.addr;
        // The first run alone is its own extent.
        if self.runs.as_slice().len() > 1 {
            self.unmap();
            dma = map_run(self.device, whole).ok_or(Reason::DmaMapping)?;
        }
        // INVARIANT: It is mapped.
        self.mapped = Mapped::Whole { whole: Run { addr: dma, ..whole }, bus_offset, count: 0 };
        let untranslated = dma == whole.addr;
        if !untranslated {
            self.unmap();
        }
        Ok(untranslated)
    }

    /// Asks the provider to map its `table`, whose layout `pages` tells. `runs` lends its memory.
    ///
    /// Takes the RM API lock in the provider, sleeps and allocates: never under a state lock or the
    /// registry lock.
    ///
    /// # Safety
    ///
    /// `table` is that of a persistent pin, which is put only once the answer is dropped or unmapped.
    pub(crate) unsafe fn by_provider(
        device: Device,
        mut runs: Runs,
        pages: ProviderPages,
        table: NonNull<raw::nvidia_p2p_page_table>,
    ) -> Result<Self, Reason> {
        // First what no other device would change.
        if !pages.mappable() {
            return Err(Reason::OutsideBar);
        }
        if !device.is_pci() {
            return Err(Reason::NotPci);
        }
        let mut mapping = core::ptr::null_mut();
        // SAFETY: A PCI device, as just tested. The table is valid by this function's contract.
        // `mapping` is a local.
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
        runs.clear();
        // INVARIANT: The provider's mapping is live. Dropping `this` undoes it.
        let mut this = Self { device, gpu: 0, runs, mapped: Mapped::ByProvider { table, mapping, count: 0 } };
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

    /// Returns the number of contiguous runs, forgotten or not.
    fn count(&self) -> usize {
        let forgotten = match &self.mapped {
            Mapped::Runs(_) => 0,
            Mapped::Whole { count, .. } | Mapped::ByProvider { count, .. } => *count,
        };
        forgotten.max(self.runs.as_slice().len())
    }

    /// Forgets the runs, where they are not needed to unmap. For memory in single pages they are
    /// half as much as the table.
    fn forget_runs(&mut self) {
        if let Mapped::Whole { count, .. } | Mapped::ByProvider { count, .. } = &mut self.mapped {
            *count = self.runs.as_slice().len();
            self.runs = Runs::None;
        }
    }

    /// Returns all DMA addresses, as the device must be given them.
    fn dma_runs(&self) -> impl Iterator<Item = Run> + Clone + '_ {
        let offset = match &self.mapped {
            Mapped::Whole { bus_offset, .. } => *bus_offset,
            Mapped::Runs(_) | Mapped::ByProvider { .. } => 0,
        };
        self.runs.as_slice().iter().map(move |run| Run { addr: run.addr.wrapping_add(offset), len: run.len })
    }

    /// Unmaps what is mapped. Waits for nothing unless the provider mapped it.
    fn unmap(&mut self) {
        // INVARIANT: Once this returns nothing is mapped.
        match core::mem::replace(&mut self.mapped, Mapped::Runs(0)) {
            Mapped::Runs(mapped) => {
                let mut resched = Resched::default();
                for run in self.runs.as_slice().iter().take(mapped) {
                    resched.step();
                    // SAFETY: By the invariant it is mapped. `self.mapped` has forgotten it.
                    unsafe { unmap_run(self.device, *run) };
                }
            }
            // SAFETY: As above.
            Mapped::Whole { whole, .. } => unsafe { unmap_run(self.device, whole) },
            Mapped::ByProvider { table, mapping, .. } => {
                // SAFETY: By the invariant the device is PCI, the mapping live and the table valid. The
                // call's only error is an unknown mapping.
                unsafe { raw::nvpm_p2p_dma_unmap(self.device.as_ptr(), table.as_ptr(), mapping.as_ptr()) };
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
