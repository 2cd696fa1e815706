// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Ends registrations of freed memory: a registration or a dma-buf keeps it allocated.

use crate::backend::{Gpu, Verbs};
use crate::cache::Cache;
use crate::exit::{OVER, SWEEPING};
use crate::fork;
use crate::pressure::INTERVAL;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that sweeps. Freed memory stays for at most one interval, and the time of one sweep.
/// Dropping this ends the thread.
#[derive(Debug)]
pub struct Sweeper {
    /// Both are `Some` until drop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    generation: u64,
}

impl Sweeper {
    /// Sweeps `cache` at each `interval`, and asks about free memory more often if that is watched.
    /// Fails if there is no thread, or if the interval is 0.
    pub fn start<G: Gpu, V: Verbs>(cache: &Cache<G, V>, interval: Duration) -> std::io::Result<Self> {
        if interval.is_zero() {
            let why = "an interval of 0 would sweep without end: take some milliseconds";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        }
        let cache = cache.clone();
        let (stop, stopped) = channel();
        let generation = fork::watch();
        // A whole number of steps makes an interval.
        let steps =
            if cache.inner().options.free_bytes > 0 { interval.as_nanos().div_ceil(INTERVAL.as_nanos()) } else { 1 };
        let step = interval / u32::try_from(steps).unwrap_or(u32::MAX);
        let sweeps = move || {
            let mut swept = Instant::now();
            while stopped.recv_timeout(step) == Err(RecvTimeoutError::Timeout) {
                SWEEPING.fetch_add(1, Ordering::SeqCst);
                let over = OVER.load(Ordering::SeqCst);
                if !over && swept.elapsed() >= interval {
                    cache.sweep();
                    swept = Instant::now();
                }
                if !over {
                    cache.inner().relieve();
                }
                SWEEPING.fetch_sub(1, Ordering::SeqCst);
                if over {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gpumr-sweep".into());
        let thread = without_signals(|| thread.spawn(sweeps))?;
        Ok(Self { stop: Some(stop), thread: Some(thread), generation })
    }
}

/// Runs `what` so that a thread that it makes gets no signal: signals are for the program's own
/// threads.
fn without_signals<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: Signal sets are made of integers.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: Two locals; this thread's mask.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let made = what();
    // SAFETY: The mask that it had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    made
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // The thread is the parent's, and no join would return.
            std::mem::forget((self.stop.take(), self.thread.take()));
            return;
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
