// SPDX-License-Identifier: GPL-2.0
//! Lets go of freed memory: a registration or a dma-buf keeps it allocated.

use crate::backend::{Gpu, Verbs};
use crate::cache::Cache;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that sweeps: freed memory stays for one interval at most, and the time of one sweep. Ends with drop.
pub struct Sweeper {
    /// Both `Some` until drop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Sweeps `cache` each `interval`. Errors: no thread.
    pub fn start<G: Gpu, V: Verbs>(cache: &Cache<G, V>, interval: Duration) -> std::io::Result<Self> {
        let cache = cache.clone();
        let (stop, stopped) = channel();
        let sweeps = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                cache.sweep();
            }
        };
        let thread = std::thread::Builder::new().name("gpumr-sweep".into()).spawn(sweeps)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
