// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Notices that CUDA checkpointed this process and restored it (`cuCheckpointProcess*()`, the tool
//! cuda-checkpoint, CRIU). The memory is then new, at the same addresses and under the same numbers:
//! on an H100 with driver 580 no attribute of it changes, BUFFER_ID and MEMORY_BLOCK_ID neither. But
//! a checkpoint closes each file of the GPU driver that CUDA has open, and a restore opens new ones,
//! also under the same numbers. epoll tells one open file from another: what was closed is no longer
//! in its list.
//!
//! Asking takes a system call, so each tick of the coarse clock (1 to 10 ms) asks once. A checkpoint
//! and a restore cannot both happen between two ticks: they free and copy all memory and make each
//! context anew, which takes 600 ms for a process that has almost nothing.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The driver's file of which CUDA has one. NVML may have more, which a checkpoint leaves.
const CONTROL: &str = "nvidiactl";

#[derive(Debug, Default)]
pub(crate) struct Watch {
    epoch: AtomicU64,
    /// The tick that was last asked in.
    asked: AtomicU64,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    epoll: Option<OwnedFd>,
    watched: Vec<RawFd>,
}

impl Watch {
    /// A number that changes with each restore. Where the driver's files cannot be watched it changes
    /// with each tick; where CUDA has none, as on another system, never.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        let now = tick();
        if self.asked.load(Ordering::Acquire) != now {
            self.ask(now);
        }
        self.epoch.load(Ordering::Acquire)
    }

    #[cold]
    fn ask(&self, now: u64) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if self.asked.load(Ordering::Acquire) == now {
            return;
        }
        let closed = !files.watched.is_empty() && !files.same();
        let unseen = (closed || files.watched.is_empty()) && files.watch().is_none();
        if closed || unseen {
            self.epoch.fetch_add(1, Ordering::Release);
        }
        self.asked.store(now, Ordering::Release);
    }
}

impl Files {
    /// Whether all that is watched is still open.
    fn same(&self) -> bool {
        let open = |epoll| self.watched.iter().all(|&fd| control(epoll, libc::EPOLL_CTL_MOD, fd));
        self.epoll.as_ref().is_some_and(open)
    }

    /// Watches what is open now. `None` if that fails.
    fn watch(&mut self) -> Option<()> {
        self.watched.clear();
        self.epoll = None;
        let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
            .ok()?
            .flatten()
            .filter_map(|file| {
                let path = std::fs::read_link(file.path()).ok()?;
                (path.file_name()? == CONTROL).then(|| file.file_name().to_str()?.parse().ok())?
            })
            .collect();
        if open.is_empty() {
            return Some(());
        }
        // SAFETY: It makes a descriptor.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: It was just made.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        for fd in open {
            if !control(&epoll, libc::EPOLL_CTL_ADD, fd) {
                return None;
            }
            self.watched.push(fd);
        }
        self.epoll = Some(epoll);
        Some(())
    }
}

/// Whether `what` succeeds. No event is asked for, and none is ever fetched.
fn control(epoll: &OwnedFd, what: i32, fd: RawFd) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: A local; any number may be asked for.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, &mut event) == 0 }
}

/// The coarse clock, never 0. No system call.
fn tick() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: A local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64) | 1
}
