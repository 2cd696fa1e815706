// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Watches how much memory GPUs have left. A program that runs short frees what it can spare and
//! allocates again, but registered memory would stay allocated.

use crate::backend::{Gpu, Verbs};
use crate::cache::{Inner, State};
use crate::entry::Entry;
use crate::sync::{lock, Arc, AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The least time between two questions about the same GPU. An answer takes 4.7 µs on an H100, so
/// that is 0.02 % of a processor.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// The value of [`crate::Options::free_bytes`] for programs whose allocations nobody knows, like
/// PyTorch's: 1 GiB, or a sixteenth of a small GPU.
pub const FREE_BYTES_AUTO: u64 = u64::MAX;

/// Returns whether `free` bytes are few for a GPU that has `all`.
fn is_little(limit: u64, free: u64, all: u64) -> bool {
    free < if limit == FREE_BYTES_AUTO { (1 << 30).min(all / 16) } else { limit }
}

/// The time when GPUs were last asked, in intervals since the first time.
#[derive(Default)]
pub(crate) struct Pressure(AtomicU64);

impl Pressure {
    /// Returns whether it is time to ask. Only one of several threads gets `true`.
    fn is_due(&self) -> bool {
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_nanos() / INTERVAL.as_nanos() + 1;
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let last = self.0.load(Ordering::Relaxed);
        last != now && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<G: Gpu, V: Verbs> Inner<G, V> {
    /// Lets this entry, which is new in the map, be found by its GPU. If that has little memory
    /// left, the entry ends with its last lease.
    pub(crate) fn watch(&self, state: &mut State<G, V>, entry: &Arc<Entry<G, V>>) {
        if self.options.free_bytes > 0 {
            state.of_gpus.insert((entry.device, Arc::as_ptr(entry) as usize), entry.clone());
            if state.pressed.contains(&entry.device) {
                entry.word.remove_or_await();
            }
        }
    }

    /// Asks each GPU of which something is registered, if it is time or one had little memory left,
    /// and evicts what is registered of those that have little.
    pub(crate) fn relieve(&self) {
        let limit = self.options.free_bytes;
        if limit == 0 || self.check_process().is_err() {
            return;
        }
        // A GPU that had little may have enough again, and nothing registered by which to notice
        // that.
        if !self.pressure.is_due() && lock(&self.state).pressed.is_empty() {
            return;
        }
        let mut from = (i32::MIN, 0);
        loop {
            let mut state = lock(&self.state);
            let next = state.of_gpus.range(from..).next().map(|(at, entry)| (*at, entry.clone()));
            let Some(((device, at), entry)) = next else { return };
            // Whoever takes all entries out waits for this.
            state.asking += 1;
            drop(state);
            from = (device, at + 1);
            let holds = || entry.identity.holds(&self.gpu);
            let memory = if holds() { self.gpu.memory(entry.range.start()) } else { None };
            lock(&self.state).asking -= 1;
            self.ended.notify_all();
            if memory.is_none() && !holds() {
                // The entry cannot say which GPU it belongs to. Its memory may have gone just now, so
                // no answer does not mean that there is enough.
                self.stale(&entry);
                continue;
            }
            if memory.is_some_and(|(free, all)| is_little(limit, free, all)) {
                // Entries in use, now or later, learn that they are awaited.
                if lock(&self.state).pressed.insert(device) {
                    self.evict_where(|of, _| of == device);
                }
            } else {
                lock(&self.state).pressed.remove(&device);
            }
            let Some(next) = device.checked_add(1) else { return };
            from = (next, 0);
        }
    }
}
