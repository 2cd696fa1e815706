// SPDX-License-Identifier: GPL-2.0

//! Which GPUs and NICs can reach each other, as far as the provider was asked (rule 5).

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

/// Whether a GPU and a NIC can reach each other, as far as the provider was asked.
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

/// The pairs that were met: the first [`PAIRS_KNOWN`] of these. Only `reach` of those is written
/// any more, so a look takes no lock. Pairs for which there is no room are in [`SUPPORTED`] only,
/// and are not reported.
static PAIRS: [Known; 256] = [const { Known { gpu: Atomic::new(0), nic: Atomic::new(0), reach: Atomic::new(0) } }; 256];
static PAIRS_KNOWN: Atomic<u64> = Atomic::new(0);

/// Pairs that the provider supports, each in one word: eight places for each value of a hash, 0 for
/// an empty place. Each registration looks here first. A pair that finds its places full takes that
/// of another pair, which then is asked for again. (Of two threads that enter at once one may be
/// lost.)
static SUPPORTED: [[Atomic<u64>; 8]; 256] = [const { [const { Atomic::new(0) }; 8] }; 256];

/// Both PCI numbers in one word. `None` for a number that does not fit into half of it (a domain
/// beyond 65535), and for 0, which is a free place.
fn word(gpu: u64, nic: u64) -> Option<u64> {
    let (gpu, nic) = (u32::try_from(gpu).ok()?, u32::try_from(nic).ok()?);
    Some(u64::from(gpu) << 32 | u64::from(nic)).filter(|word| *word != 0)
}

/// Where the pair of this word is, if it is anywhere.
fn places(word: u64) -> &'static [Atomic<u64>] {
    // The upper eight bits of a product with the golden ratio: neighbouring numbers come far apart.
    let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    SUPPORTED.get(num::usize_from(hash)).map_or(&[], |places| places)
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
    PAIRS.get(..num::usize_from(PAIRS_KNOWN.load(Acquire))).unwrap_or(&[])
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
    // No place is left: no registration waits for another to learn that.
    if num::usize_from(PAIRS_KNOWN.load(Relaxed)) >= PAIRS.len() {
        return;
    }
    let _adding = PAIRS_ADDING.lock();
    // Another thread may have entered it meanwhile.
    if let Some(known) = find_pair(pair.gpu, pair.nic) {
        return learn(known);
    }
    let count = PAIRS_KNOWN.load(Relaxed);
    let Some(free) = PAIRS.get(num::usize_from(count)) else {
        return;
    };
    free.gpu.store(pair.gpu, Relaxed);
    free.nic.store(pair.nic, Relaxed);
    free.reach.store(pair.reach.number(), Relaxed);
    // Release: see `known_pairs()`.
    PAIRS_KNOWN.store(count.saturating_add(1), Release);
}

/// The pairs that were met.
pub(crate) fn pairs() -> impl Iterator<Item = Pair> {
    known_pairs().iter().map(Known::pair)
}

/// A revocable pin joins the two, and the provider cannot be asked for one: the pair is reported,
/// not guessed (rule 5).
pub(crate) fn note_unasked(gpu: u64, device: Device) {
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
}

/// The question to the provider: has it map `table`, and undoes that. The whole table is mapped
/// under the RM API lock, so it should be short.
///
/// Takes the RM API lock in the provider: under a umem mapping lock for a persistent pin only.
pub(crate) fn try_map(device: Device, table: NonNull<raw::nvidia_p2p_page_table>) -> Result {
    let mut mapping = core::ptr::null_mut();
    // SAFETY: `ask()` calls this for PCI devices only. The persistent table is valid until its put,
    // which comes after every unmapping. `mapping` is a local.
    let map = || unsafe { raw::nvpm_p2p_dma_map(device.as_ptr(), table.as_ptr(), &mut mapping) };
    to_result(stats::timed(Kind::Persistent, Call::Map, map))?;
    if !mapping.is_null() {
        // SAFETY: The mapping was just made for this PCI device and this table.
        unsafe { raw::nvpm_p2p_dma_unmap(device.as_ptr(), table.as_ptr(), mapping) };
    }
    Ok(())
}

/// Drivers from 580 on know pairs of GPU and NIC whose peer-to-peer traffic does not work, and say
/// so when they map. We map BARs ourselves, so we ask them: once per pair, with a persistent pin (a
/// revocable pin could be freed meanwhile). `try_map` is [`try_map()`] for memory of this GPU.
///
/// Called under a umem mapping lock, as the core names the device in `dma_map` only. `try_map`
/// takes the RM API lock. That is legal for persistent pins: no callback waits for their mapping
/// lock.
pub(crate) fn ask(gpu: u64, device: Device, try_map: impl FnOnce() -> Result) -> Result<(), Reason> {
    // The provider maps for PCI devices only: there is nothing to ask for another.
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
            let reach = match try_map() {
                Err(error) if error == ENOTSUPP => Reach::Unsupported,
                // As a rule a mapping that failed, so the pair was good enough. Our own mapping
                // will tell.
                Err(error) if error == EIO => Reach::Supported,
                // This says nothing about the pair, and may be otherwise next time.
                Err(_) => return Ok(()),
                Ok(()) => Reach::Supported,
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
