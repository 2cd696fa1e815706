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
//! A new file may be CUDA's as long as nobody can say whether CUDA's is among the watched ones. Before
//! CUDA 12.8 that lasts for ever once such a file was closed. To look for new files takes
//! milliseconds in a process with thousands of descriptors, so hits do that for a twentieth of the time
//! at most. A registration looks at once, because CUDA has its file open then: if a checkpoint closes it
//! later, that is seen without looking for new ones.
//!
//! Asking takes a system call for each file, so each tick of the coarse clock (1 to 10 ms) asks once. A
//! checkpoint and a restore cannot both happen between two ticks: they free and copy all memory and
//! make each context anew, which takes 600 ms for a process that has almost nothing.

use libc::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two looks for new files at hits, in times of what the last look took.
const PAUSE: u32 = 20;
/// The name of a driver's file of which CUDA has one open.
const CONTROL: &str = "nvidiactl";
/// Linux adds this to the name of an open file that was removed, like a device node that somebody
/// made anew.
const GONE: &str = " (deleted)";
/// Linux's fcntl commands for the signal of an open file, which is 0 until somebody sets it.
const SET_SIGNAL: c_int = 10;
const GET_SIGNAL: c_int = 11;
/// The signal that serves as a mark. It is sent only if somebody also sets O_ASYNC.
const MARK: c_int = libc::SIGURG;

#[derive(Debug, Default)]
pub(crate) struct Watch {
    epoch: AtomicU64,
    /// Whether the files cannot be watched.
    blind: AtomicBool,
    /// The tick of the last look.
    asked: AtomicU64,
    /// The tick of the last look that looked for new files if that was needed.
    scanned: AtomicU64,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    epoll: Option<OwnedFd>,
    /// The watched files. CUDA's is among them.
    watched: Vec<Watched>,
    /// Whether CUDA's file may have been closed, so that the watched ones may be other libraries'.
    /// Each new one may then be CUDA's.
    unsure: bool,
    /// When the last look for new files ended, and how long it took.
    last: Option<(Instant, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    fd: RawFd,
    /// Whether it has our mark. Otherwise it is in epoll's list.
    marked: bool,
}

impl Watch {
    /// Returns a number that changes with each restore, or `None` if the driver's files cannot be
    /// watched. If CUDA has none, as on another system, the number never changes. `runs` is CUDA's
    /// own answer, if it has one, whether the process is outside of a checkpoint.
    #[inline]
    pub(crate) fn epoch(&self, runs: impl Fn() -> Option<bool>) -> Option<u64> {
        let now = tick();
        if self.asked.load(Ordering::Acquire) != now {
            self.ask(now, false, runs);
        }
        self.known()
    }

    /// Returns the same number, for a registration: looks for new files, too, if they matter.
    pub(crate) fn fresh_epoch(&self, runs: impl Fn() -> Option<bool>) -> Option<u64> {
        let now = tick();
        if self.scanned.load(Ordering::Acquire) != now {
            self.ask(now, true, runs);
        }
        self.known()
    }

    #[inline]
    fn known(&self) -> Option<u64> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (!self.blind.load(Ordering::Acquire)).then_some(epoch)
    }

    #[cold]
    fn ask(&self, now: u64, registers: bool, runs: impl Fn() -> Option<bool>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = if registers { &self.scanned } else { &self.asked };
        if asked.load(Ordering::Acquire) == now {
            return;
        }
        // Where nothing can be watched, nothing is kept, so there are registrations only.
        let scans = registers || self.blind.load(Ordering::Acquire) || files.is_scan_due();
        let restored = files.look(scans, runs);
        if restored != Some(false) {
            self.epoch.fetch_add(1, Ordering::Release);
        }
        self.blind.store(restored.is_none(), Ordering::Release);
        if scans {
            self.scanned.store(now, Ordering::Release);
        }
        self.asked.store(now, Ordering::Release);
    }
}

impl Files {
    fn is_scan_due(&self) -> bool {
        self.last.is_none_or(|(end, took)| end.elapsed() >= took * PAUSE)
    }

    /// Returns the descriptors of the driver's file, or `None` if nobody can say.
    fn scan(&mut self) -> Option<Vec<RawFd>> {
        let start = Instant::now();
        let open = open();
        self.last = Some((Instant::now(), start.elapsed()));
        open
    }

    /// Returns whether CUDA's file may have been closed since the last look, or `None` if nobody
    /// can say. Looks for new files only if it `scans`, or if one was closed.
    fn look(&mut self, scans: bool, runs: impl Fn() -> Option<bool>) -> Option<bool> {
        if self.watched.is_empty() {
            let unsure = self.unsure;
            return match runs() {
                Some(false) if unsure => Some(true),
                // Where CUDA has no such file, or does not say when it has one, that is looked for now
                // and then.
                runs if !(scans || unsure && runs.is_some()) => Some(false),
                runs => {
                    self.unsure &= runs.is_none();
                    self.watch().map(|()| unsure)
                }
            };
        }
        let (same, closed): (Vec<Watched>, Vec<_>) = self.watched.iter().partition(|file| self.is_same(**file));
        let is_new = |fd: &RawFd| same.iter().all(|file| file.fd != *fd);
        if closed.is_empty() && !(scans && self.unsure && self.scan()?.iter().any(is_new)) {
            return Some(false);
        }
        match runs() {
            // The closed file was another library's.
            Some(true) if !same.is_empty() && !self.scan()?.iter().any(is_new) => {
                self.watched = same;
                return Some(false);
            }
            Some(true) => self.unsure = false,
            // CUDA will open its file later. Until then, each tick looks anew.
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

    /// Watches what is open now. Returns `None` if that fails.
    fn watch(&mut self) -> Option<()> {
        self.watched.clear();
        let open = self.scan()?;
        if open.is_empty() {
            return Some(());
        }
        // Make epoll only once: a new one might take the number that CUDA's file had, and will have
        // again.
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

/// Returns the descriptors of the driver's file, or `None` if nobody can say.
fn open() -> Option<Vec<RawFd>> {
    #[cfg(all(test, not(feature = "shuttle")))]
    tests::slow();
    let of_driver = |file: std::fs::DirEntry| {
        let path = std::fs::read_link(file.path()).ok()?;
        let name = path.file_name()?.to_str()?;
        (name.strip_suffix(GONE).unwrap_or(name) == CONTROL).then(|| file.file_name().to_str()?.parse().ok())?
    };
    Some(std::fs::read_dir("/proc/self/fd").ok()?.flatten().filter_map(of_driver).collect())
}

/// Returns whether `what` succeeds. It asks for no event, and none is ever fetched.
fn control(epoll: &OwnedFd, what: c_int, fd: RawFd) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: A local; any number may be asked for.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, &mut event) == 0 }
}

/// Reads the coarse clock without a system call. It is never 0.
#[inline]
fn tick() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: A local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64) | 1
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;

    thread_local! {
        /// Holds the time that each look for new files takes, and how many there were.
        static LOOKS: Cell<(Duration, u32)> = const { Cell::new((Duration::ZERO, 0)) };
    }

    /// The files of one test are open in the whole process.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Returns the folder in which a test has its driver's file.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("gpumr-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn open_in(folder: &std::path::Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(folder.join(CONTROL)).unwrap()
    }

    fn next_tick() {
        let now = tick();
        while tick() == now {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn slow() {
        let (takes, looks) = LOOKS.get();
        LOOKS.set((takes, looks + 1));
        std::thread::sleep(takes);
    }

    /// In a process with thousands of descriptors a look for new files takes milliseconds. Before
    /// CUDA 12.8 each hit might need one once another library has closed the driver's file.
    #[test]
    fn hits_seldom_look_for_new_files() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = folder("looks");
        let open = || open_in(&folder);
        let unknown = || None;
        let watch = Watch::default();
        let (cuda, nvml) = (open(), open());
        let first = watch.fresh_epoch(unknown).unwrap();
        LOOKS.set((Duration::from_millis(10), 0));
        next_tick();
        assert_eq!((watch.epoch(unknown), LOOKS.get().1), (Some(first), 0), "all is watched");
        drop(nvml);
        next_tick();
        let unsure = watch.epoch(unknown).unwrap();
        assert_ne!(unsure, first, "it may have been CUDA's");
        let start = Instant::now();
        LOOKS.set((Duration::from_millis(10), 0));
        while start.elapsed() < Duration::from_millis(150) {
            assert_eq!(watch.epoch(unknown), Some(unsure));
            next_tick();
        }
        assert!(LOOKS.get().1 <= 1, "{} looks", LOOKS.get().1);
        // A registration looks at once, and what it finds is watched.
        let restored = open();
        next_tick();
        let new = watch.fresh_epoch(unknown).unwrap();
        assert_ne!(new, unsure);
        drop((cuda, restored));
        next_tick();
        assert_ne!(watch.epoch(unknown), Some(new), "closed again");
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// A device node that is made anew while CUDA has the old one open, as by a driver's service or
    /// in a container, is another file of the same name. CUDA's then has none.
    #[test]
    fn a_file_whose_name_is_gone_is_watched() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = folder("renewed");
        let (watch, cuda) = (Watch::default(), open_in(&folder));
        std::fs::remove_file(folder.join(CONTROL)).unwrap();
        let runs = || Some(true);
        let first = watch.fresh_epoch(runs).unwrap();
        drop(cuda);
        let restored = open_in(&folder);
        next_tick();
        assert_ne!(watch.epoch(runs), Some(first), "a checkpoint is not seen");
        drop(restored);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
