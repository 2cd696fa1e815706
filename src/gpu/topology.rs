// SPDX-License-Identifier: GPL-2.0

//! Remembers which GPUs and devices can reach each other, as far as the provider was asked (rule 5).

use crate::dma::device::Device;
use crate::ffi::raw;
use crate::ffi::shim::Kind;
use crate::num;
use crate::observe::reason::Reason;
use crate::observe::stats::{self, Call};
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::global_lock;

/// Says whether a GPU and a device can reach each other, as far as the provider was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The provider supports the two together.
    Supported,
    /// It does not.
    Unsupported,
    /// It was not asked: all pins of this pair were revocable, or had pages that it cannot map.
    Unasked,
}

impl Reach {
    /// Returns its name, for people and programs.
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

/// A GPU and a device that met in a registration, by PCI number.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) gpu: u64,
    pub(crate) device: u64,
    pub(crate) reach: Reach,
}

/// A pair as it is kept.
struct Known {
    /// 0, the host bridge's number, marks a free place. Written last.
    gpu: Atomic<u64>,
    device: Atomic<u64>,
    reach: Atomic<u64>,
}

impl Known {
    /// Returns the pair, or `None` for a free place.
    fn pair(&self) -> Option<Pair> {
        // Acquire, for the Release in `remember()`: behind it the device's number is there. `reach` may
        // be newer, and either is true of the pair.
        let gpu = Some(self.gpu.load(Acquire)).filter(|gpu| *gpu != 0)?;
        Some(Pair { gpu, device: self.device.load(Relaxed), reach: Reach::from_number(self.reach.load(Relaxed)) })
    }
}

/// The pairs that were met. Each stands at the place of its hash, or at the first one behind it
/// that was free. Of a place that is taken only `reach` changes any more, so a look takes no lock.
/// A pair for which there is no room is asked for at each of its registrations, and not reported.
static PAIRS: [Known; 1024] =
    [const { Known { gpu: Atomic::new(0), device: Atomic::new(0), reach: Atomic::new(0) } }; 1024];

/// Finds the place of the pair, or the free one where it would stand; `None` where there is neither.
fn place(gpu: u64, device: u64) -> Option<&'static Known> {
    // The upper ten bits of a product with the golden ratio: neighbouring numbers come far apart.
    let hash = ((gpu << 32) ^ device).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    let (before, behind) = PAIRS.split_at_checked(num::usize_from(hash))?;
    let here = |known: &&Known| known.pair().is_none_or(|pair| (pair.gpu, pair.device) == (gpu, device));
    behind.iter().find(here).or_else(|| before.iter().find(here))
}

/// Enters a pair, or what is now known of it.
fn remember(pair: Pair) {
    let _adding = PAIRS_ADDING.lock();
    let Some(known) = place(pair.gpu, pair.device) else { return };
    if known.pair().is_none() || pair.reach != Reach::Unasked {
        known.reach.store(pair.reach.number(), Relaxed);
    }
    known.device.store(pair.device, Relaxed);
    // Release: see `pair()`.
    known.gpu.store(pair.gpu, Release);
}

/// Returns the pairs that were met.
pub(crate) fn pairs() -> impl Iterator<Item = Pair> {
    PAIRS.iter().filter_map(Known::pair)
}

/// Notes that a revocable pin joins the two. The provider cannot be asked about such a pin, so the
/// pair is reported as unknown, not guessed (rule 5).
pub(crate) fn note_unasked(gpu: u64, device: Device) {
    let number = device.number();
    if device.is_pci() && place(gpu, number).is_some_and(|known| known.pair().is_none()) {
        remember(Pair { gpu, device: number, reach: Reach::Unasked });
    }
}

global_lock! {
    // SAFETY: Initialised in `init()`, before anything is pinned.
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
}

/// Asks the provider whether the device reaches the GPU: has it map `table`, and undoes that. The
/// whole table is mapped under the RM API lock, so it should be short.
///
/// Takes the RM API lock in the provider: under a stop lock for a persistent pin only.
///
/// # Errors
///
/// `ENODEV` for a device that is not PCI, and the provider's.
///
/// # Safety
///
/// `table` is that of a persistent pin, which is not put meanwhile.
pub(crate) unsafe fn try_map(device: Device, table: NonNull<raw::nvidia_p2p_page_table>) -> Result {
    if !device.is_pci() {
        return Err(ENODEV);
    }
    let mut mapping = core::ptr::null_mut();
    // SAFETY: A PCI device, as just tested. The table is valid by this function's contract. `mapping`
    // is a local.
    let map = || unsafe { raw::nvpm_p2p_dma_map(device.as_ptr(), table.as_ptr(), &mut mapping) };
    to_result(stats::timed(Kind::Persistent, Call::Map, map).0)?;
    if !mapping.is_null() {
        // SAFETY: The mapping was just made for this PCI device and this table.
        unsafe { raw::nvpm_p2p_dma_unmap(device.as_ptr(), table.as_ptr(), mapping) };
    }
    Ok(())
}

/// Asks the provider whether traffic between the GPU and a device works, once per pair. Drivers from 580
/// on know pairs of GPU and device whose peer-to-peer traffic does not work, and say so when they map. We
/// map BARs ourselves, so we ask them, with a persistent pin (a revocable pin could be freed meanwhile).
/// `try_map` asks, by [`try_map()`] for memory of this GPU.
///
/// `try_map` takes the RM API lock. A stop lock of this registration may be held all the same, because no
/// callback of a persistent pin waits for it ([`crate::pin`]).
pub(crate) fn ask(gpu: u64, device: Device, try_map: impl FnOnce() -> Result) -> Result<(), Reason> {
    // The provider maps for PCI devices only: there is nothing to ask for another.
    if !device.is_pci() {
        return Ok(());
    }
    let number = device.number();
    let known = place(gpu, number).and_then(Known::pair).map(|pair| pair.reach);
    let reach = match known {
        Some(reach) if reach != Reach::Unasked => reach,
        _ => {
            let reach = match try_map() {
                Err(error) if error == ENOTSUPP => Reach::Unsupported,
                // As a rule a mapping that failed, so the pair was good enough. Our own mapping
                // will tell.
                Err(error) if error == EIO => Reach::Supported,
                // This says nothing about the pair, and may be otherwise next time.
                Err(_) => return Ok(()),
                Ok(()) => Reach::Supported,
            };
            remember(Pair { gpu, device: number, reach });
            reach
        }
    };
    match reach {
        Reach::Unsupported => Err(Reason::Topology),
        Reach::Supported | Reach::Unasked => Ok(()),
    }
}
