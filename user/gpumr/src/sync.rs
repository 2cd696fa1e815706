// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Chooses locks and atomics: std's, or those of the models.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Condvar, Mutex, MutexGuard, Weak,
    },
    thread_local,
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Condvar, Mutex, MutexGuard, Weak,
    },
    thread_local,
};

/// Takes a lock, even if a thread panicked while it held it, as a test's stand-in may: the maps are
/// whole, because nothing here stops half-way.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits until it is woken, for whatever reason.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}
