// SPDX-License-Identifier: GPL-2.0

//! The functions behind this crate: those of `helpers.c` (see `helpers.h`). On a host,
//! `tests/host/helpers` or `tests/host/model` defines them, and [`kl_touch`], by which the crate
//! reports what it does by itself.

use crate::ffi::{c_char, c_int, c_void};

/// An access to a place in memory.
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
    /// The object behind a reference is used. The place is the count.
    Use,
    /// The contents of a static lock are used for the first time.
    Begin,
}

/// Announces an access on a host, and does nothing in the kernel. `relaxed` means that the access
/// orders nothing.
#[inline(always)]
pub fn touch<T>(place: *const T, touch: Touch, relaxed: bool) {
    #[cfg(not(target_os = "none"))]
    kl_touch(place.cast_mut().cast(), size_of::<T>(), touch, relaxed);
    #[cfg(target_os = "none")]
    let _ = (place, touch, relaxed);
}

/// The number of 64-bit words of [`Mutex`]: `KL_MUTEX_WORDS` of `helpers.h`.
const MUTEX_WORDS: usize = if cfg!(kl_debug_locks) { 32 } else { 8 };

/// Room for the kernel's `struct mutex`, whose size depends on its configuration. `helpers.c`
/// asserts that it fits.
#[repr(C)]
pub struct Mutex([u64; MUTEX_WORDS]);

impl Mutex {
    /// Memory that is not yet a mutex. [`kl_mutex_init`] makes it one.
    pub const UNINIT: Self = Self([0; MUTEX_WORDS]);
}

/// Room for the kernel's `struct lock_class_key`.
#[repr(C)]
pub struct LockClassKey([u64; 4]);

impl LockClassKey {
    /// The initial value of a static key.
    pub const ZERO: Self = Self([0; 4]);
}

unsafe extern "C" {
    /// Returns `size` bytes aligned to 8, or NULL. It may sleep.
    pub fn kl_kmalloc(size: usize) -> *mut c_void;
    /// Frees what `kl_kmalloc()` returned.
    pub fn kl_kfree(memory: *const c_void);
    /// Does the same as `kl_kmalloc()`, but the memory need not be contiguous.
    pub fn kl_kvmalloc(size: usize) -> *mut c_void;
    /// Frees what `kl_kvmalloc()` returned.
    pub fn kl_kvfree(memory: *const c_void);
    /// Makes `mutex` a mutex. `name` and `key` must stay valid as long as it is used.
    pub fn kl_mutex_init(mutex: *mut Mutex, name: *const c_char, key: *mut LockClassKey);
    /// Locks `mutex`. It may sleep.
    pub fn kl_mutex_lock(mutex: *mut Mutex);
    /// Tries to lock `mutex`, and returns a value other than 0 if it did. It does not sleep.
    pub fn kl_mutex_trylock(mutex: *mut Mutex) -> c_int;
    /// Unlocks `mutex`. The task that locked it must call this.
    pub fn kl_mutex_unlock(mutex: *mut Mutex);
    /// Logs `length` bytes of `text` at `level`, one of b'0' to b'7', after the text `prefix`,
    /// which ends in a zero.
    pub fn kl_print(level: c_char, prefix: *const c_char, text: *const c_char, length: usize);
    /// Announces an access to `size` bytes at `place`. It is defined on hosts only.
    #[cfg(not(target_os = "none"))]
    safe fn kl_touch(place: *mut c_void, size: usize, touch: Touch, relaxed: bool);
    /// Stands for a panic. It is defined nowhere, so modpost refuses a module that refers to it.
    #[cfg(target_os = "none")]
    pub fn kl_panic_path_left_in_module() -> !;
}
