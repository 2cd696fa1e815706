// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Sees to it that sweeps end before the process does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Says that the process is ending, so that nobody may ask CUDA any more.
pub(crate) static OVER: AtomicBool = AtomicBool::new(false);
/// The number of sweeps under way, of all caches.
pub(crate) static SWEEPING: AtomicU64 = AtomicU64::new(0);
/// The time to wait for sweeps. A sweep takes milliseconds. One that takes longer waits for a lock, and
/// asks nobody, because a thread may have the lock that called exit() in a signal handler and never
/// gives it back; or it waits for NVML, which answers also after its own exit handlers.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sees to it that sweeps end before CUDA does, which has started: handlers run in the order opposite
/// to that of their registration, and a sweeper may be older than CUDA. As long as nothing is
/// registered, a sweep asks CUDA nothing.
pub(crate) fn end_before_cuda() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: The handler waits for half a second at most. It fails for lack of memory only.
        unsafe { libc::atexit(at_exit) };
    });
}

/// Notes in a child, whose one thread calls this, that nobody sweeps yet: the count is its parent's.
pub(crate) fn in_child() {
    SWEEPING.store(0, Ordering::SeqCst);
    OVER.store(false, Ordering::SeqCst);
}

/// Waits for sweeps at exit. CUDA ends after this.
extern "C" fn at_exit() {
    OVER.store(true, Ordering::SeqCst);
    let start = Instant::now();
    while SWEEPING.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}
