// SPDX-License-Identifier: GPL-2.0

//! Synchronisation.

mod arc;
pub mod atomic;
mod lock;

pub use crate::{global_lock, new_mutex};
pub use arc::{Arc, ArcBorrow, UniqueArc};
pub use lock::{GlobalLock, LockClassKey, Mutex, MutexGuard};
