// SPDX-License-Identifier: GPL-2.0

//! One DMA mapping of pinned memory for one device, undone when it is dropped.
//!
//! Memory in a BAR is mapped by us, run by run: the provider's own mapping is untranslated behind an IOMMU on kernels
//! from 6.12 on, takes R, and races with the free callback (rule 4). Only memory outside every BAR (coherent
//! platforms) is left to the provider, and only for persistent pins (rule 5). Knows nothing of ib_core.

use crate::pin::Kind;
use crate::range::PIN_GRANULE;
use crate::raw;
use crate::reason::Reason;
use crate::report::{self, Call};
use crate::sg::{Coalescer, Run};
use crate::shim::{self, Breath};
use core::ptr::NonNull;
use kernel::alloc::KVVec;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::global_lock;

/// The device that will do the DMA.
///
/// # Invariants
///
/// Not NULL; valid until the registration's `release` returned (the core's promise).
#[derive(Clone, Copy)]
pub(crate) struct Device(NonNull<raw::device>);

// SAFETY: `struct device` may be used from any thread.
unsafe impl Send for Device {}

impl Device {
    /// `None` for NULL.
    ///
    /// # Safety
    ///
    /// `raw` is NULL or stays valid until the registration's `release` returned.
    pub(crate) unsafe fn new(raw: *mut raw::device) -> Option<Self> {
        // INVARIANT: By this function's contract.
        NonNull::new(raw).map(Self)
    }

    fn is_pci(self) -> bool {
        // SAFETY: Valid by the invariant.
        unsafe { raw::nvpm_device_is_pci(self.0.as_ptr()) != 0 }
    }

    /// PCI domain, bus and function in one number; 0 for what is not PCI.
    fn number(self) -> u64 {
        // SAFETY: Valid by the invariant.
        unsafe { raw::nvpm_device_number(self.0.as_ptr()) }
    }

    /// Longest segment in bytes that the device takes.
    pub(crate) fn segment_limit(self) -> u64 {
        // SAFETY: Valid by the invariant.
        unsafe { raw::nvpm_device_segment_limit(self.0.as_ptr()) }
    }
}

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
                    Some(table) if shape.mappable() => ask_topology(bar.device, device, table)?,
                    _ => note_unasked(bar.device, device),
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
            if unsafe { raw::nvpm_dma_map(device.0.as_ptr(), run.addr, run.len, &mut dma) } != 0 {
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
        if !device.is_pci() {
            return Err(Reason::NotPci);
        }
        if !shape.mappable() {
            return Err(Reason::OutsideBar);
        }
        let mut mapping = core::ptr::null_mut();
        // SAFETY: A PCI device, as just tested; the persistent table is valid until `release`; `mapping` is a local.
        let map = || unsafe { raw::nvpm_p2p_dma_map(device.0.as_ptr(), table.as_ptr(), &mut mapping) };
        to_result(report::timed(Kind::Persistent, Call::Map, map)).map_err(|error| {
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
                    unsafe { raw::nvpm_dma_unmap(self.device.0.as_ptr(), run.addr, run.len) };
                }
            }
            How::Provider(provider) => {
                // SAFETY: By the invariant the device is PCI and the mapping live, and its persistent table is put only in
                // `release`. The call's only error is an unknown mapping.
                unsafe {
                    raw::nvpm_p2p_dma_unmap(self.device.0.as_ptr(), provider.table.as_ptr(), provider.mapping.as_ptr())
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

/// Whether a GPU and a NIC can reach each other, as far as the provider was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The provider supports the two together.
    Supported,
    /// It does not.
    Unsupported,
    /// It was not asked: all pins for this pair were revocable.
    Unasked,
}

impl Reach {
    /// Its name in `/proc/driver/nvidia-peermem` (docs/proc.md).
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Unsupported => "unsupported",
            Self::Unasked => "unasked",
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Supported => 1,
            Self::Unsupported => 2,
            Self::Unasked => 0,
        }
    }

    fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Supported,
            2 => Self::Unsupported,
            _ => Self::Unasked,
        }
    }
}

/// A GPU and a NIC that met in a registration, by PCI number.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) gpu: u64,
    pub(crate) nic: u64,
    pub(crate) reach: Reach,
}

/// A pair as it is kept.
struct Known {
    gpu: Atomic<u64>,
    nic: Atomic<u64>,
    reach: Atomic<u64>,
}

/// The pairs that were met: the first [`PAIRS_KNOWN`] of these. Of those nothing but `reach` is written any more, so
/// looking takes no lock. Of more pairs than there is room for, only [`SUPPORTED`] knows; they are not reported.
static PAIRS: [Known; 256] = [const { Known { gpu: Atomic::new(0), nic: Atomic::new(0), reach: Atomic::new(0) } }; 256];
static PAIRS_KNOWN: Atomic<u64> = Atomic::new(0);

/// Pairs that the provider supports, each in one word, where each registration looks first: eight places for each value
/// of a hash; 0 is an empty one. A pair that finds its places full takes that of another, which then is asked for again.
/// (Of two threads that enter at once one may be lost, too.)
static SUPPORTED: [[Atomic<u64>; 8]; 256] = [const { [const { Atomic::new(0) }; 8] }; 256];

/// Both PCI numbers in one word; `None` for a number that does not fit into half of it (a domain beyond 65535), and for
/// 0, which is a free place.
fn word(gpu: u64, nic: u64) -> Option<u64> {
    let (gpu, nic) = (u32::try_from(gpu).ok()?, u32::try_from(nic).ok()?);
    Some(u64::from(gpu) << 32 | u64::from(nic)).filter(|word| *word != 0)
}

/// Where the pair of this word is, if it is anywhere.
fn places(word: u64) -> &'static [Atomic<u64>] {
    // The golden ratio's bits, of which the upper eight are taken: neighbouring numbers come far apart.
    let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    usize::try_from(hash).ok().and_then(|at| SUPPORTED.get(at)).map_or(&[], |places| places)
}

fn is_supported(gpu: u64, nic: u64) -> bool {
    word(gpu, nic).is_some_and(|word| places(word).iter().any(|place| place.load(Relaxed) == word))
}

fn remember_supported(gpu: u64, nic: u64) {
    let Some(word) = word(gpu, nic) else { return };
    let places = places(word);
    if let Some(place) = places.iter().find(|place| place.load(Relaxed) == 0).or(places.first()) {
        place.store(word, Relaxed);
    }
}

impl Known {
    fn pair(&self) -> Pair {
        Pair {
            gpu: self.gpu.load(Relaxed),
            nic: self.nic.load(Relaxed),
            reach: Reach::from_number(self.reach.load(Relaxed)),
        }
    }
}

fn known_pairs() -> &'static [Known] {
    // Acquire, for the Release in `remember()`: the pairs below the number are whole.
    let known = usize::try_from(PAIRS_KNOWN.load(Acquire)).unwrap_or(0);
    PAIRS.get(..known).unwrap_or(&[])
}

fn find_pair(gpu: u64, nic: u64) -> Option<&'static Known> {
    known_pairs().iter().find(|known| known.gpu.load(Relaxed) == gpu && known.nic.load(Relaxed) == nic)
}

/// Enters a pair, or what is now known of it.
fn remember(pair: Pair) {
    let learn = |known: &Known| {
        if pair.reach != Reach::Unasked {
            known.reach.store(pair.reach.number(), Relaxed);
        }
    };
    if let Some(known) = find_pair(pair.gpu, pair.nic) {
        return learn(known);
    }
    // No place left: no registration waits for another to learn that.
    if usize::try_from(PAIRS_KNOWN.load(Relaxed)).is_ok_and(|known| known >= PAIRS.len()) {
        return;
    }
    let _adding = PAIRS_ADDING.lock();
    // Another thread may have entered it meanwhile.
    if let Some(known) = find_pair(pair.gpu, pair.nic) {
        return learn(known);
    }
    let count = PAIRS_KNOWN.load(Relaxed);
    let Some(free) = usize::try_from(count).ok().and_then(|at| PAIRS.get(at)) else {
        return;
    };
    free.gpu.store(pair.gpu, Relaxed);
    free.nic.store(pair.nic, Relaxed);
    free.reach.store(pair.reach.number(), Relaxed);
    // Release: see `known_pairs()`.
    PAIRS_KNOWN.store(count.saturating_add(1), Release);
}

/// The pair that was met as number `index`, from 0.
pub(crate) fn pair(index: usize) -> Option<Pair> {
    known_pairs().get(index).map(Known::pair)
}

/// A revocable pin joins the two, for which the provider cannot be asked: it is reported, not guessed (rule 5).
fn note_unasked(gpu: u64, device: Device) {
    if device.is_pci() {
        remember(Pair { gpu, nic: device.number(), reach: Reach::Unasked });
    }
}

global_lock! {
    // SAFETY: Initialised in `init()`, before any client is registered.
    unsafe(uninit) static PAIRS_ADDING: Mutex<()> = ();
}

/// Initialises what this file keeps for the whole module.
///
/// # Safety
///
/// To be called once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { PAIRS_ADDING.init() };
    PAIRS_KNOWN.store(0, Relaxed);
    for place in SUPPORTED.iter().flatten() {
        place.store(0, Relaxed);
    }
}

/// Forgets which devices are GPUs. For unloading: nothing is mapped any more.
pub(crate) fn clear() {
    // SAFETY: No precondition but that nobody maps, by this function's contract.
    unsafe { raw::nvpm_forget_gpus() };
}

/// Drivers from 580 on know GPU-NIC pairs whose peer-to-peer traffic does not work, and say so when they map. We map
/// BARs ourselves, so they are asked: once per pair, with a persistent pin (a revocable one could be freed meanwhile).
///
/// Called under M; takes R in the provider. Legal for persistent pins: no callback waits for their M.
fn ask_topology(gpu: u64, device: Device, table: NonNull<raw::nvidia_p2p_page_table>) -> Result<(), Reason> {
    // Where the provider itself would refuse a device that is not PCI there is nothing to ask.
    if !device.is_pci() {
        return Ok(());
    }
    let nic = device.number();
    if is_supported(gpu, nic) {
        return Ok(());
    }
    let known = find_pair(gpu, nic).map(|known| known.pair().reach);
    let reach = match known {
        Some(reach) if reach != Reach::Unasked => reach,
        _ => {
            let mut mapping = core::ptr::null_mut();
            // SAFETY: A PCI device, as just tested; the persistent table is valid until `release`; a local.
            let map = || unsafe { raw::nvpm_p2p_dma_map(device.0.as_ptr(), table.as_ptr(), &mut mapping) };
            let asked = to_result(report::timed(Kind::Persistent, Call::Map, map));
            if asked.is_ok() && !mapping.is_null() {
                // SAFETY: The mapping was just made for this PCI device and this table.
                unsafe { raw::nvpm_p2p_dma_unmap(device.0.as_ptr(), table.as_ptr(), mapping) };
            }
            let reach = match asked {
                Err(error) if error == ENOTSUPP => Reach::Unsupported,
                // Says nothing about the pair, and may be otherwise next time.
                Err(error) if error == ENOMEM => return Ok(()),
                // Other failures are of this mapping, not of the pair: what we cannot map ourselves will tell.
                _ => Reach::Supported,
            };
            remember(Pair { gpu, nic, reach });
            if reach == Reach::Supported {
                remember_supported(gpu, nic);
            }
            reach
        }
    };
    match reach {
        Reach::Unsupported => Err(Reason::Topology),
        Reach::Supported | Reach::Unasked => Ok(()),
    }
}
