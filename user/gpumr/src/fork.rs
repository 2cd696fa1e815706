// SPDX-License-Identifier: GPL-2.0
//! Notices that this process is a child of the one that registered. A child owns no registration and
//! may find the cache's lock taken for ever, so it touches neither.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Once;

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between this process and the first that asked. No system call.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// From here on [`generation`] counts.
pub(crate) fn watch() -> u64 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: The handler only adds to an atomic, which a child may do. It fails for lack of memory only.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    generation()
}
