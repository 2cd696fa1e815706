// SPDX-License-Identifier: GPL-2.0

//! The kernel's mutex.

use crate::backend::{self, touch, Touch};
use crate::ffi::CStr;
use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::marker::{PhantomData, PhantomPinned};
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use pin_init::PinInit;

/// A class of locks, for lockdep.
pub struct LockClassKey(UnsafeCell<backend::LockClassKey>);

// SAFETY: Only lockdep looks at what is inside, under locks of its own.
unsafe impl Sync for LockClassKey {}

impl LockClassKey {
    /// Returns a key for a static.
    ///
    /// # Safety
    ///
    /// It is stored in a static.
    pub const unsafe fn new_static() -> Self {
        Self(UnsafeCell::new(backend::LockClassKey::ZERO))
    }
}

/// Returns a lock class of its own for each place in the source.
#[doc(hidden)]
#[macro_export]
macro_rules! static_lock_class {
    () => {{
        // SAFETY: Stored in a static.
        static CLASS: $crate::sync::LockClassKey = unsafe { $crate::sync::LockClassKey::new_static() };
        ::core::pin::Pin::static_ref(&CLASS)
    }};
}

/// Makes an initialiser of a [`Mutex`] with a lock class of its own.
#[macro_export]
macro_rules! new_mutex {
    ($inner:expr, $name:literal $(,)?) => {
        $crate::sync::Mutex::new($inner, $crate::c_str!($name), $crate::static_lock_class!())
    };
}

/// A `T` under a mutex of the kernel.
///
/// # Invariants
///
/// `state` is a mutex that was initialised: by [`Mutex::new`], or by [`GlobalLock::init`] before
/// anything else.
pub struct Mutex<T> {
    state: UnsafeCell<backend::Mutex>,
    data: UnsafeCell<T>,
    /// The kernel links waiters to it.
    _pin: PhantomPinned,
}

// SAFETY: The lock does not care which thread it lies in.
unsafe impl<T: Send> Send for Mutex<T> {}

// SAFETY: One thread at a time has the `T`.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// Returns an initialiser. [`new_mutex!`](crate::new_mutex) is the way to call it.
    pub fn new(data: impl PinInit<T>, name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        let init = move |slot: *mut Self| {
            // SAFETY: `slot` is valid for writing and will not move; name and key are static.
            unsafe {
                data.__pinned_init(UnsafeCell::raw_get(&raw const (*slot).data))?;
                backend::kl_mutex_init(
                    UnsafeCell::raw_get(&raw const (*slot).state),
                    name.as_ptr().cast(),
                    key.0.get(),
                );
            }
            Ok(())
        };
        // SAFETY: The closure initialises both fields that have a size, and so the whole value.
        unsafe { pin_init::pin_init_from_closure::<Self, Infallible>(init) }
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // SAFETY: By the invariant it is initialised.
        unsafe { backend::kl_mutex_lock(self.state.get()) };
        // INVARIANT: Just locked.
        MutexGuard { lock: self, _not_send: PhantomData }
    }

    /// Takes the lock if nobody has it. Does not sleep.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // SAFETY: By the invariant it is initialised.
        let locked = unsafe { backend::kl_mutex_trylock(self.state.get()) } != 0;
        // INVARIANT: Just locked.
        locked.then(|| MutexGuard { lock: self, _not_send: PhantomData })
    }
}

/// The lock, held.
///
/// # Invariants
///
/// This thread holds the lock, and this guard gives it back.
#[must_use = "the lock unlocks immediately when the guard is unused"]
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    /// The task that locked must unlock.
    _not_send: PhantomData<*mut ()>,
}

// SAFETY: Through a shared guard only a shared `T` is reached.
unsafe impl<T: Sync> Sync for MutexGuard<'_, T> {}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the invariant nobody else has it.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: Unpin> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the invariant nobody else has it.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the invariant this thread holds it.
        unsafe { backend::kl_mutex_unlock(self.lock.state.get()) };
    }
}

/// A [`Mutex`] in a static. Made by [`global_lock!`](crate::global_lock).
pub struct GlobalLock<T: 'static> {
    inner: Mutex<T>,
    name: &'static CStr,
    key: LockClassKey,
}

impl<T> GlobalLock<T> {
    /// Makes a lock; [`global_lock!`](crate::global_lock) calls this.
    ///
    /// # Safety
    ///
    /// [`Self::init`] is called before anything else, and the lock is stored in a static.
    #[doc(hidden)]
    pub const unsafe fn new(data: T, name: &'static CStr) -> Self {
        Self {
            // INVARIANT: By this function's contract it is initialised before it is used.
            inner: Mutex {
                state: UnsafeCell::new(backend::Mutex::UNINIT),
                data: UnsafeCell::new(data),
                _pin: PhantomPinned,
            },
            name,
            // SAFETY: By this function's contract.
            key: unsafe { LockClassKey::new_static() },
        }
    }

    /// Initialises the lock.
    ///
    /// # Safety
    ///
    /// It is called only once.
    pub unsafe fn init(&'static self) {
        touch(self.inner.data.get(), Touch::Begin, false);
        // SAFETY: Nobody uses the lock yet, by the contracts of this function and of `new()`; all
        // of it is static.
        unsafe { backend::kl_mutex_init(self.inner.state.get(), self.name.as_ptr().cast(), self.key.0.get()) };
    }

    /// Waits for the lock and takes it.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        self.inner.lock()
    }

    /// Takes the lock if nobody has it. Does not sleep.
    pub fn try_lock(&'static self) -> Option<MutexGuard<'static, T>> {
        self.inner.try_lock()
    }
}

/// Declares a static lock, which must be initialised before it is used.
#[macro_export]
macro_rules! global_lock {
    {
        $(#[$meta:meta])* $pub:vis
        unsafe(uninit) static $name:ident: Mutex<$type:ty> = $value:expr;
    } => {
        $(#[$meta])*
        $pub static $name: $crate::sync::GlobalLock<$type> = {
            // This stays outside the unsafe block.
            let value: $type = $value;
            // SAFETY: The declaration promises that it is initialised first; it is a static.
            unsafe { $crate::sync::GlobalLock::new(value, $crate::c_str!(::core::stringify!($name))) }
        };
    };
}
