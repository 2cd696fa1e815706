// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Watches how much memory GPUs have left. A program that runs short frees what it can spare and
//! allocates again, but registered memory would stay allocated.

use crate::sync::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The least time between two questions about the same GPU, so that they take little of a processor
/// (docs/dma-buf.md).
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// The value of [`crate::Options::free_bytes`] for programs whose allocations nobody knows, like
/// PyTorch's: 1 GiB, or a sixteenth of a small GPU.
pub const FREE_BYTES_AUTO: u64 = u64::MAX;

/// Returns whether `free` bytes are few for a GPU that has `all`.
pub(crate) fn is_little(limit: u64, free: u64, all: u64) -> bool {
    free < if limit == FREE_BYTES_AUTO { (1 << 30).min(all / 16) } else { limit }
}

/// The time when GPUs were last asked, in intervals since the first time.
#[derive(Default)]
pub(crate) struct Pressure(AtomicU64);

impl Pressure {
    /// Returns whether it is time to ask. Only one of several threads gets `true`.
    pub(crate) fn is_due(&self) -> bool {
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_nanos() / INTERVAL.as_nanos() + 1;
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let last = self.0.load(Ordering::Relaxed);
        last != now && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
