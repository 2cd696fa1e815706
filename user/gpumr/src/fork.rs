// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Notices that this process is a child of the one that registered. A child owns no registration
//! and may find the cache's lock taken for ever, so it touches neither. It closes the dma-bufs that
//! it inherits: open, they would keep memory that its parent frees.

use crate::exit;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::Once;

static FORKS: AtomicU64 = AtomicU64::new(0);

/// The number of dma-bufs that a cache keeps open for other NICs.
pub(crate) const PLACES: usize = 256;
const FREE: RawFd = -1;

/// Places for dma-bufs that children close. There are more as soon as all caches of the process
/// together need more. They are never freed, and are found without a lock, because a child may be
/// forked meanwhile.
struct Places {
    open: [AtomicI32; PLACES],
    next: AtomicPtr<Places>,
}

static FIRST: Places = Places::new();

impl Places {
    const fn new() -> Self {
        Self { open: [const { AtomicI32::new(FREE) }; PLACES], next: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: Null, or what more() made, which is never freed.
        std::iter::successors(Some(&FIRST), |places| unsafe { places.next.load(Ordering::Acquire).as_ref() })
    }

    /// Returns a place that has this descriptor from now on.
    fn take(fd: RawFd) -> &'static AtomicI32 {
        let free = |place: &&AtomicI32| place.compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        loop {
            if let Some(place) = Self::all().flat_map(|places| &places.open).find(free) {
                return place;
            }
            Self::more();
        }
    }

    fn more() {
        let new = Box::into_raw(Box::new(Self::new()));
        let empty = |places: &&Self| {
            let end = std::ptr::null_mut();
            places.next.compare_exchange(end, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        // The last of them has no next one, or another thread has just made more after it.
        while Self::all().find(empty).is_none() {}
    }
}

extern "C" fn in_child() {
    exit::in_child();
    FORKS.fetch_add(1, Ordering::Relaxed);
    for place in Places::all().flat_map(|places| &places.open) {
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
#[inline]
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
    place: &'static AtomicI32,
    generation: u64,
}

impl Closed {
    pub(crate) fn in_children(fd: OwnedFd) -> Self {
        Self { place: Places::take(fd.as_raw_fd()), fd: ManuallyDrop::new(fd), generation: watch() }
    }
}

impl AsFd for Closed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if self.generation != generation() {
            return;
        }
        // Free the place first: what is open under that number later is not ours.
        self.place.store(FREE, Ordering::Relaxed);
        // SAFETY: Once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}
