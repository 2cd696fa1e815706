// SPDX-License-Identifier: GPL-2.0

//! What the crate that runs the module must define.

use std::ffi::c_char;

/// How an atomic is touched.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    Load,
    Store,
    /// Read and written in one step, the result is looked at.
    Update,
}

unsafe extern "C" {
    /// Number of the execution under way; never zero, never the same twice. Statics of the module are fresh in each.
    pub safe fn rt_epoch() -> u64;
    /// A small number that was not given out before in this execution.
    pub safe fn rt_new_id() -> u64;
    /// Waits for a mutex and takes it. `name` is UTF-8, empty for a static one, whose `id` is its address.
    pub safe fn rt_lock(id: u64, name: *const u8, len: usize);
    pub safe fn rt_unlock(id: u64);
    /// Comes before each access of an atomic.
    pub safe fn rt_atomic(address: usize, touch: Touch, relaxed: bool);
    /// Comes before a counted reference is cloned (`false`) or dropped (`true`).
    pub safe fn rt_count(id: u64, drop: bool);
    /// Whether an allocation may succeed; to be called where it may sleep.
    pub safe fn rt_may_allocate(bytes: usize) -> bool;
    /// `bytes` were allocated, or freed if negative.
    pub safe fn rt_allocated(bytes: isize);
    /// The last reference to something is gone and it was dropped: keep its memory, so that whoever still uses it can
    /// be told, and free it with `free(memory)` when the execution is over.
    pub safe fn rt_retire(memory: *mut u8, free: unsafe extern "C" fn(*mut u8));
    /// Something forbidden happened. `text` is UTF-8.
    pub safe fn rt_violation(text: *const u8, len: usize);
    pub safe fn rt_print(level: c_char, text: *const u8, len: usize);
}

/// Waits for a mutex and takes it. A static one has no name.
pub fn lock(id: u64, name: &str) {
    rt_lock(id, name.as_ptr(), name.len());
}

/// Reports something forbidden.
pub fn violation(text: &str) {
    rt_violation(text.as_ptr(), text.len());
}
