// SPDX-License-Identifier: GPL-2.0
//! Lets go of freed memory: a registration or a dma-buf keeps it allocated.

use crate::backend::{Gpu, Verbs};
use crate::cache::Cache;
use crate::fork;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::{Once, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that sweeps: freed memory stays for one interval at most, and the time of one sweep.
/// Ends with drop.
pub struct Sweeper {
    /// Both `Some` until drop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    generation: u64,
}

impl Sweeper {
    /// Sweeps `cache` each `interval`. Errors: no thread, or an interval of 0.
    pub fn start<G: Gpu, V: Verbs>(cache: &Cache<G, V>, interval: Duration) -> std::io::Result<Self> {
        if interval.is_zero() {
            let why = "an interval of 0 would sweep without end: take some milliseconds";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, why));
        }
        let cache = cache.clone();
        let (stop, stopped) = channel();
        let generation = fork::watch();
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: The handler waits for a lock at most. It fails for lack of memory only.
            unsafe { libc::atexit(at_exit) };
        });
        let sweeps = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let over = OVER.read().unwrap_or_else(PoisonError::into_inner);
                if *over {
                    return;
                }
                cache.sweep();
            }
        };
        let thread = std::thread::Builder::new().name("gpumr-sweep".into());
        let thread = without_signals(|| thread.spawn(sweeps))?;
        Ok(Self { stop: Some(stop), thread: Some(thread), generation })
    }
}

/// The process ends: nobody may ask CUDA any more.
static OVER: RwLock<bool> = RwLock::new(false);

/// CUDA, which is there before a sweeper is, ends after this.
extern "C" fn at_exit() {
    // A child has no sweeper, and perhaps the lock of its parent's.
    if fork::generation() == 0 {
        *OVER.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// A thread that is made in `what` gets no signal: they are for the program's own.
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
