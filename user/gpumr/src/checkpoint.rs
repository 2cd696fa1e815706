// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Notices that CUDA checkpointed this process and restored it (`cuCheckpointProcess*()`, the tool
//! cuda-checkpoint, CRIU). The memory is then new, at the same addresses and under the same numbers:
//! on an H100 with driver 580 no attribute of it changes, BUFFER_ID and MEMORY_BLOCK_ID neither. But
//! a checkpoint closes each file of the GPU driver that CUDA has open, and a restore opens new ones,
//! also under the same numbers. epoll tells one open file from another: what was closed is no longer
//! in its list. Where epoll takes no such file, each gets a mark that only this open file has: the
//! number of the signal that nobody asked it to send.
//!
//! Other libraries open that file, too (NVML). One that is opened while all others stay says nothing.
//! One that is closed while none is new was not CUDA's, if CUDA says that the process runs.
//!
//! Asking takes a system call for each file, so each tick of the coarse clock (1 to 10 ms) asks once. A
//! checkpoint and a restore cannot both happen between two ticks: they free and copy all memory and
//! make each context anew, which takes 600 ms for a process that has almost nothing.

use libc::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The driver's file of which CUDA has one.
const CONTROL: &str = "nvidiactl";
/// Linux' fcntl commands for the signal of an open file, which is 0 until somebody sets it.
const SET_SIGNAL: c_int = 10;
const GET_SIGNAL: c_int = 11;
/// It is sent only where somebody also sets O_ASYNC.
const MARK: c_int = libc::SIGURG;

#[derive(Debug, Default)]
pub(crate) struct Watch {
    epoch: AtomicU64,
    /// The files cannot be watched.
    blind: AtomicBool,
    /// The tick that was last asked in.
    asked: AtomicU64,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    epoll: Option<OwnedFd>,
    /// CUDA's is among them.
    watched: Vec<Watched>,
    /// CUDA's may have been closed, and what is watched be others': each that is new may be CUDA's.
    unsure: bool,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    fd: RawFd,
    /// It has our mark; else it is in the epoll's list.
    marked: bool,
}

impl Watch {
    /// A number that changes with each restore; `None` where the driver's files cannot be watched. Where
    /// CUDA has none, as on another system, it never changes. `runs` is CUDA's word whether the process
    /// is not in a checkpoint, if it has one.
    #[inline]
    pub(crate) fn epoch(&self, runs: impl Fn() -> Option<bool>) -> Option<u64> {
        let now = tick();
        if self.asked.load(Ordering::Acquire) != now {
            self.ask(now, runs);
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        (!self.blind.load(Ordering::Acquire)).then_some(epoch)
    }

    #[cold]
    fn ask(&self, now: u64, runs: impl Fn() -> Option<bool>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if self.asked.load(Ordering::Acquire) == now {
            return;
        }
        let restored = files.look(runs);
        if restored != Some(false) {
            self.epoch.fetch_add(1, Ordering::Release);
        }
        self.blind.store(restored.is_none(), Ordering::Release);
        self.asked.store(now, Ordering::Release);
    }
}

impl Files {
    /// Whether CUDA's file may have been closed since the last look. `None` if nobody can say.
    fn look(&mut self, runs: impl Fn() -> Option<bool>) -> Option<bool> {
        if self.watched.is_empty() {
            let unsure = self.unsure;
            return match runs() {
                Some(false) if unsure => Some(true),
                runs => {
                    self.unsure &= runs.is_none();
                    self.watch().map(|()| unsure)
                }
            };
        }
        let (same, closed): (Vec<Watched>, Vec<_>) = self.watched.iter().partition(|file| self.is_same(**file));
        let is_new = |fd: &RawFd| same.iter().all(|file| file.fd != *fd);
        if closed.is_empty() && !(self.unsure && open()?.iter().any(is_new)) {
            return Some(false);
        }
        match runs() {
            // Another library's.
            Some(true) if !same.is_empty() && !open()?.iter().any(is_new) => {
                self.watched = same;
                return Some(false);
            }
            Some(true) => self.unsure = false,
            // CUDA opens its file later: until then each tick looks anew.
            Some(false) => {
                self.unsure = true;
                self.watched.clear();
                return Some(true);
            }
            None => self.unsure = true,
        }
        self.watch().map(|()| true)
    }

    fn is_same(&self, file: Watched) -> bool {
        if file.marked {
            // SAFETY: Any number may be asked for.
            return unsafe { libc::fcntl(file.fd, GET_SIGNAL) } == MARK;
        }
        self.epoll.as_ref().is_some_and(|epoll| control(epoll, libc::EPOLL_CTL_MOD, file.fd))
    }

    /// Watches what is open now. `None` if that fails.
    fn watch(&mut self) -> Option<()> {
        self.watched.clear();
        let open = open()?;
        if open.is_empty() {
            return Some(());
        }
        // Once: a new one might take the number that CUDA's file had, and will have again.
        if self.epoll.is_none() {
            // SAFETY: It makes a descriptor.
            let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            // SAFETY: It was just made.
            self.epoll = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let listed =
            |epoll: &OwnedFd, fd| control(epoll, libc::EPOLL_CTL_MOD, fd) || control(epoll, libc::EPOLL_CTL_ADD, fd);
        let mut watched = Vec::new();
        for fd in open {
            let marked = !self.epoll.as_ref().is_some_and(|epoll| listed(epoll, fd));
            // SAFETY: Any number may be asked for; the file sends nothing for it.
            if marked && unsafe { libc::fcntl(fd, SET_SIGNAL, MARK) } != 0 {
                return None;
            }
            watched.push(Watched { fd, marked });
        }
        self.watched = watched;
        Some(())
    }
}

/// The descriptors of the driver's file. `None` if nobody can say.
fn open() -> Option<Vec<RawFd>> {
    let of_driver = |file: std::fs::DirEntry| {
        let path = std::fs::read_link(file.path()).ok()?;
        (path.file_name()? == CONTROL).then(|| file.file_name().to_str()?.parse().ok())?
    };
    Some(std::fs::read_dir("/proc/self/fd").ok()?.flatten().filter_map(of_driver).collect())
}

/// Whether `what` succeeds. No event is asked for, and none is ever fetched.
fn control(epoll: &OwnedFd, what: c_int, fd: RawFd) -> bool {
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
