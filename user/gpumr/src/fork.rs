// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Notices that this process is a child of the one that registered. A child owns no registration
//! and may find the cache's lock taken for ever, so it touches neither. It closes the dma-bufs that
//! it inherits: open, they would keep memory that its parent frees.

use crate::sweep;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::Once;

static FORKS: AtomicU64 = AtomicU64::new(0);

/// The number of places for dma-bufs that children close.
pub(crate) const PLACES: usize = 256;
const FREE: RawFd = -1;
static OPEN: [AtomicI32; PLACES] = [const { AtomicI32::new(FREE) }; PLACES];

extern "C" fn in_child() {
    sweep::in_child();
    FORKS.fetch_add(1, Ordering::Relaxed);
    for place in &OPEN {
        let fd = place.swap(FREE, Ordering::Relaxed);
        if fd != FREE {
            // SAFETY: It was open at the fork, and its owner knows by the count above that it is
            // not its own here. A child may call close().
            unsafe { libc::close(fd) };
        }
    }
}

/// Returns how many forks lie between this process and the first that asked. It makes no system
/// call.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Makes [`generation`] count from here on.
pub(crate) fn watch() -> u64 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: The handler only touches atomics and closes, which a child may do. It fails for
        // lack of memory only.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    generation()
}

/// A descriptor that children close. (A child keeps it if the fork comes while it is made or
/// closed.)
pub(crate) struct Closed {
    fd: ManuallyDrop<OwnedFd>,
    place: Option<&'static AtomicI32>,
    generation: u64,
}

impl Closed {
    pub(crate) fn in_children(fd: OwnedFd) -> Self {
        let take = |place: &&AtomicI32| {
            place.compare_exchange(FREE, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Self { place: OPEN.iter().find(take), fd: ManuallyDrop::new(fd), generation: watch() }
    }
}

impl AsFd for Closed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            if self.generation != generation() {
                return;
            }
            // Free the place first: what is open under that number later is not ours.
            place.store(FREE, Ordering::Relaxed);
        }
        // SAFETY: Once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}
