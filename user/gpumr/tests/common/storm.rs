// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Has what the storm on the model and the storm on a GPU (examples/storm.rs) share.

use gpumr::{Cache, Error, Gpu, Verbs};

/// A generator of numbers that look random and are the same each time for a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Returns whether a child gets nothing from the cache, and waits for none of its parent's threads.
pub fn child<G: Gpu, V: Verbs>(cache: &Cache<G, V>, pd: V::Pd) -> bool {
    // SAFETY: The child calls the cache, which touches nothing, and _exit().
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: As above; it ends a child that waits.
        unsafe { libc::alarm(10) };
        let refused = matches!(cache.register(pd, 1 << 40, 4096, 1), Err(Error::Forked));
        cache.sweep();
        // SAFETY: It runs no handler of the parent's.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: A local.
    unsafe { libc::waitpid(pid, &mut status, 0) == pid && status == 0 }
}
