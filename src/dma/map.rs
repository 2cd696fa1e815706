// SPDX-License-Identifier: GPL-2.0

//! One DMA mapping of pinned memory for one device, undone when it is dropped.
//!
//! Memory in a BAR is mapped by us, run by run: the provider's own mapping is untranslated behind an IOMMU on kernels
//! from 6.12 on, takes R, and races with the free callback (rule 4). Only memory outside every BAR (coherent
//! platforms) is left to the provider, and only for persistent pins (rule 5). Knows nothing of ib_core.

use crate::dma::device::Device;
use crate::ffi::raw;
use crate::ffi::shim::{self, Breath};
use crate::gpu::pin::Kind;
use crate::gpu::topology;
use crate::observe::reason::Reason;
use crate::observe::stats::{self, Call};
use crate::range::PIN_GRANULE;
use crate::sg::{Coalescer, Run};
use core::ptr::NonNull;
use kernel::alloc::KVVec;
use kernel::error::to_result;
use kernel::prelude::*;

/// The provider's record of a mapping that it made.
struct ProviderMapping {
    table: NonNull<raw::nvidia_p2p_page_table>,
    mapping: NonNull<raw::nvidia_p2p_dma_mapping>,
}

/// Who mapped, and so who unmaps.
enum How {
    /// We did; the first `mapped` runs carry addresses as the DMA API returned them.
    Ours { mapped: usize, bus_offset: u64 },
    /// The provider did.
    Provider(ProviderMapping),
}

/// See the module's text.
///
/// # Invariants
///
/// With [`How::Ours`] exactly the first `mapped` runs are mapped for `device`; with [`How::Provider`] the provider's
/// mapping is live, and `device` is a PCI device.
pub(crate) struct Mapping {
    device: Device,
    /// PCI number of the GPU, 0 outside every BAR.
    gpu: u64,
    runs: KVVec<Run>,
    how: How,
}

// SAFETY: Runs are plain data, and the provider's records are bound to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `runs` (CPU physical addresses) of a pin for `device`. `table`: the provider's, for a persistent pin.
    ///
    /// May sleep and allocate, and calls the provider in the two cases of rule 5: never under L or the registry lock.
    pub(crate) fn new(
        device: Device,
        runs: KVVec<Run>,
        shape: ProviderShape,
        table: Option<NonNull<raw::nvidia_p2p_page_table>>,
    ) -> Result<Self, Reason> {
        match common_bar(&runs) {
            Some(bar) => {
                match table {
                    Some(table) if shape.mappable() => topology::ask(bar.device, device, table)?,
                    _ => topology::note_unasked(bar.device, device),
                }
                Self::map_bar(device, runs, &bar)
            }
            None => match table {
                Some(table) => Self::map_by_provider(device, runs, shape, table),
                None => Err(Reason::OutsideBar),
            },
        }
    }

    fn map_bar(device: Device, runs: KVVec<Run>, bar: &raw::nvpm_bar) -> Result<Self, Reason> {
        let page_mask = shim::page_size().wrapping_sub(1);
        // INVARIANT: Nothing is mapped yet. From here on, dropping `this` undoes what was done.
        let mut this = Self { device, gpu: bar.device, runs, how: How::Ours { mapped: 0, bus_offset: 0 } };
        let How::Ours { mapped, bus_offset } = &mut this.how else {
            return Err(Reason::DmaMapping);
        };
        let mut unchanged = 0usize;
        let mut breath = Breath::default();
        for run in this.runs.iter_mut() {
            breath.step();
            let mut dma = 0;
            // SAFETY: `device` is valid; the address lies in a BAR, as `common_bar()` found; `dma` is a local.
            if unsafe { raw::nvpm_dma_map(device.as_ptr(), run.addr, run.len, &mut dma) } != 0 {
                return Err(Reason::DmaMapping);
            }
            unchanged = unchanged.wrapping_add(usize::from(dma == run.addr));
            run.addr = dma;
            // INVARIANT: One run more is mapped.
            *mapped = mapped.wrapping_add(1);
            if dma & page_mask != 0 || dma.checked_add(run.len).is_none() {
                return Err(Reason::DmaMapping);
            }
        }
        // Without translation the device must be told the bus address, which the DMA API does not know for MMIO. It
        // answers for the device as a whole; half and half would make the bus offset wrong for one.
        if unchanged != 0 {
            if unchanged != *mapped {
                return Err(Reason::DmaMapping);
            }
            *bus_offset = bar.bus_offset;
        }
        Ok(this)
    }

    fn map_by_provider(
        device: Device,
        mut runs: KVVec<Run>,
        shape: ProviderShape,
        table: NonNull<raw::nvidia_p2p_page_table>,
    ) -> Result<Self, Reason> {
        // First what no other NIC would change.
        if !shape.mappable() {
            return Err(Reason::OutsideBar);
        }
        if !device.is_pci() {
            return Err(Reason::NotPci);
        }
        let mut mapping = core::ptr::null_mut();
        // SAFETY: A PCI device, as just tested; the persistent table is valid until `release`; `mapping` is a local.
        let map = || unsafe { raw::nvpm_p2p_dma_map(device.as_ptr(), table.as_ptr(), &mut mapping) };
        to_result(stats::timed(Kind::Persistent, Call::Map, map)).map_err(|error| {
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
        // INVARIANT: The provider's mapping is live; dropping `this` undoes it.
        let mut this = Self { device, gpu: 0, runs, how: How::Provider(provider) };
        this.read_provider(mapping, shape)?;
        Ok(this)
    }

    /// Checks the provider's addresses and makes runs of them.
    fn read_provider(
        &mut self,
        mapping: NonNull<raw::nvidia_p2p_dma_mapping>,
        shape: ProviderShape,
    ) -> Result<(), Reason> {
        // SAFETY: The provider returned the mapping just now; it stays until we unmap it.
        let (version, addresses, entries) = unsafe {
            let mapping = mapping.as_ptr();
            ((*mapping).version, (*mapping).dma_addresses, (*mapping).entries)
        };
        if version >> 16 != raw::NVIDIA_P2P_DMA_MAPPING_MAJOR || addresses.is_null() || entries != shape.entries {
            return Err(Reason::DmaMapping);
        }
        let mut coalescer = Coalescer::new(shape.page_size, shape.skip, shape.wanted);
        let mut breath = Breath::default();
        for index in 0..entries {
            breath.step();
            let at = usize::try_from(index).map_err(|_| Reason::DmaMapping)?;
            // SAFETY: Not NULL, and `at` is below the number of addresses.
            let dma = unsafe { *addresses.add(at) };
            // All ones is what a failed mapping leaves behind.
            if dma == u64::MAX {
                return Err(Reason::DmaMapping);
            }
            if let Some(run) = coalescer.push(dma).map_err(|_| Reason::DmaMapping)? {
                self.runs.push(run, GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
            }
        }
        let last = coalescer.finish().map_err(|_| Reason::DmaMapping)?;
        if let Some(run) = last {
            self.runs.push(run, GFP_KERNEL).map_err(|_| Reason::NoMemory)?;
        }
        Ok(())
    }

    /// The DMA addresses, as the device must be given them.
    pub(crate) fn dma_runs(&self) -> impl Iterator<Item = Run> + Clone + '_ {
        let offset = match &self.how {
            How::Ours { bus_offset, .. } => *bus_offset,
            How::Provider(_) => 0,
        };
        self.runs.iter().map(move |run| Run { addr: run.addr.wrapping_add(offset), len: run.len })
    }

    /// Number of contiguous runs.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// PCI numbers of GPU and device, 0 for one that has none.
    pub(crate) fn ends(&self) -> (u64, u64) {
        (self.gpu, self.device.number())
    }

    /// Whether dropping this calls the provider, which must not happen under L. Never so for a revocable pin.
    pub(crate) fn is_providers(&self) -> bool {
        matches!(self.how, How::Provider(_))
    }

    /// Undoes the mapping, and leaves the memory of its list to `list`, empty: the free callback frees nothing.
    pub(crate) fn undo(mut self, list: &mut KVVec<Run>) {
        self.unmap();
        self.runs.clear();
        core::mem::swap(&mut self.runs, list);
        if self.runs.capacity() == 0 {
            // Nothing is left in it, and dropping a list without memory would ask the allocator all the same.
            core::mem::forget(self);
        }
    }

    /// Unmaps whatever is mapped. Waits for nothing unless [`Mapping::is_providers`].
    fn unmap(&mut self) {
        // INVARIANT: Nothing is mapped once this returns, and there is no provider's mapping in `how` any more.
        match core::mem::replace(&mut self.how, How::Ours { mapped: 0, bus_offset: 0 }) {
            How::Ours { mapped, .. } => {
                let mut breath = Breath::default();
                for run in self.runs.iter().take(mapped) {
                    breath.step();
                    // SAFETY: By the invariant this run is mapped for this device, which is still valid.
                    unsafe { raw::nvpm_dma_unmap(self.device.as_ptr(), run.addr, run.len) };
                }
            }
            How::Provider(provider) => {
                // SAFETY: By the invariant the device is PCI and the mapping live, and its persistent table is put only in
                // `release`. The call's only error is an unknown mapping.
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
    }
}

/// What is needed to read addresses that the provider mapped: its pages, and which bytes of them are wanted.
#[derive(Clone, Copy)]
pub(crate) struct ProviderShape {
    pub(crate) page_size: u64,
    pub(crate) entries: u32,
    pub(crate) skip: u64,
    pub(crate) wanted: u64,
}

impl ProviderShape {
    /// Whether the provider may be asked to map such a table: with pages of 4 KiB its mapping function stops the
    /// machine (`BUG_ON` in nv-p2p.c of the open kernel modules).
    fn mappable(&self) -> bool {
        self.page_size >= PIN_GRANULE
    }
}

/// The BAR of a GPU in which every run lies; `None` if there is no such BAR.
fn common_bar(runs: &[Run]) -> Option<raw::nvpm_bar> {
    let mut bar = raw::nvpm_bar::default();
    // SAFETY: `bar` is a local.
    to_result(unsafe { raw::nvpm_provider_bar(runs.first()?.addr, &mut bar) }).ok()?;
    let mut breath = Breath::default();
    let all = runs.iter().all(|run| {
        breath.step();
        lies_in(run, &bar)
    });
    all.then_some(bar)
}

fn lies_in(run: &Run, bar: &raw::nvpm_bar) -> bool {
    let last = run.len.checked_sub(1).and_then(|len| run.addr.checked_add(len));
    run.addr >= bar.start && last.is_some_and(|last| last <= bar.last)
}

/// Forgets which devices are GPUs. For unloading: nothing is mapped any more.
pub(crate) fn clear() {
    // SAFETY: No precondition but that nobody maps, by this function's contract.
    unsafe { raw::nvpm_forget_gpus() };
}
