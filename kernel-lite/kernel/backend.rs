// SPDX-License-Identifier: GPL-2.0

//! What stands behind this crate: the functions of `helpers.c`, see `helpers.h`. On a host
//! `tests/host/helpers` or `tests/host/model` defines them, and [`kl_touch`], by which the crate
//! tells what it does by itself.

use crate::ffi::{c_char, c_int, c_void};

/// What is done to a place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Touch {
    /// An atomic is read.
    Load,
    /// An atomic is written.
    Store,
    /// An atomic is read and written in one step.
    Update,
    /// A reference is taken. The place is the count.
    Get,
    /// A reference is dropped. The place is the count.
    Put,
    /// What a reference leads to is used. The place is the count.
    Use,
    /// The contents of a static lock are used for the first time.
    Begin,
}

/// Comes before each [`Touch`]; in the kernel it is nothing. `relaxed`: nothing is ordered by it.
#[inline(always)]
pub fn touch<T>(place: *const T, touch: Touch, relaxed: bool) {
    #[cfg(not(target_os = "none"))]
    kl_touch(place.cast_mut().cast(), size_of::<T>(), touch, relaxed);
    #[cfg(target_os = "none")]
    let _ = (place, touch, relaxed);
}

/// 64-bit words of [`Mutex`]; `KL_MUTEX_WORDS` of `helpers.h`.
const MUTEX_WORDS: usize = if cfg!(kl_debug_locks) { 32 } else { 8 };

/// Room for the kernel's `struct mutex`, whose size depends on its configuration. `helpers.c`
/// asserts that it fits.
#[repr(C)]
pub struct Mutex([u64; MUTEX_WORDS]);

impl Mutex {
    /// Not yet a mutex: [`kl_mutex_init`] makes it one.
    pub const UNINIT: Self = Self([0; MUTEX_WORDS]);
}

/// Room for the kernel's `struct lock_class_key`.
#[repr(C)]
pub struct LockClassKey([u64; 4]);

impl LockClassKey {
    /// What a static key starts as.
    pub const ZERO: Self = Self([0; 4]);
}

unsafe extern "C" {
    /// `size` bytes aligned to 8, or NULL. Sleeps.
    pub fn kl_kmalloc(size: usize) -> *mut c_void;
    /// Frees what `kl_kmalloc()` returned.
    pub fn kl_kfree(memory: *const c_void);
    /// As `kl_kmalloc()`, not necessarily contiguous.
    pub fn kl_kvmalloc(size: usize) -> *mut c_void;
    /// Frees what `kl_kvmalloc()` returned.
    pub fn kl_kvfree(memory: *const c_void);
    /// Makes `mutex` one; `name` and `key` stay valid as long as it is used.
    pub fn kl_mutex_init(mutex: *mut Mutex, name: *const c_char, key: *mut LockClassKey);
    /// Sleeps.
    pub fn kl_mutex_lock(mutex: *mut Mutex);
    /// Not 0 if that locked it. Does not sleep.
    pub fn kl_mutex_trylock(mutex: *mut Mutex) -> c_int;
    /// By the task that locked it.
    pub fn kl_mutex_unlock(mutex: *mut Mutex);
    /// Logs `length` bytes at `level`, one of b'0' to b'7', behind the text `prefix`, which ends in
    /// a zero.
    pub fn kl_print(level: c_char, prefix: *const c_char, text: *const c_char, length: usize);
    /// Of `size` bytes at `place`. Defined on hosts only.
    #[cfg(not(target_os = "none"))]
    safe fn kl_touch(place: *mut c_void, size: usize, touch: Touch, relaxed: bool);
    /// Defined nowhere.
    #[cfg(target_os = "none")]
    pub fn kl_panic_path_left_in_module() -> !;
}
