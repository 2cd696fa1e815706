// SPDX-License-Identifier: GPL-2.0

//! The functions of `helpers.c`; see `helpers.h`.

use crate::ffi::{c_char, c_void};

/// 64-bit words of [`Mutex`]; `KL_MUTEX_WORDS` of `helpers.h`.
const MUTEX_WORDS: usize = if cfg!(kl_debug_locks) { 32 } else { 8 };

/// Room for the kernel's `struct mutex`, whose size depends on its configuration. `helpers.c` asserts that it fits.
#[repr(C)]
pub(crate) struct Mutex([u64; MUTEX_WORDS]);

impl Mutex {
    /// Not yet a mutex: [`kl_mutex_init`] makes it one.
    pub(crate) const UNINIT: Self = Self([0; MUTEX_WORDS]);
}

/// Room for the kernel's `struct lock_class_key`.
#[repr(C)]
pub(crate) struct LockClassKey([u64; 4]);

impl LockClassKey {
    /// What a static key starts as.
    pub(crate) const ZERO: Self = Self([0; 4]);
}

unsafe extern "C" {
    /// `size` bytes aligned to 8, or NULL. Sleeps.
    pub(crate) fn kl_kmalloc(size: usize) -> *mut c_void;
    /// Frees what `kl_kmalloc()` returned.
    pub(crate) fn kl_kfree(memory: *const c_void);
    /// As `kl_kmalloc()`, not necessarily contiguous.
    pub(crate) fn kl_kvmalloc(size: usize) -> *mut c_void;
    /// Frees what `kl_kvmalloc()` returned.
    pub(crate) fn kl_kvfree(memory: *const c_void);
    /// Makes `mutex` one; `name` and `key` stay valid as long as it is used.
    pub(crate) fn kl_mutex_init(mutex: *mut Mutex, name: *const c_char, key: *mut LockClassKey);
    /// Sleeps.
    pub(crate) fn kl_mutex_lock(mutex: *mut Mutex);
    /// By the task that locked it.
    pub(crate) fn kl_mutex_unlock(mutex: *mut Mutex);
    /// Logs `length` bytes at `level`, one of b'0' to b'7', behind the text `prefix`, which ends in a zero.
    pub(crate) fn kl_print(level: c_char, prefix: *const c_char, text: *const c_char, length: usize);
    /// Defined nowhere.
    #[cfg(target_os = "none")]
    pub(crate) fn kl_panic_path_left_in_module() -> !;
}
