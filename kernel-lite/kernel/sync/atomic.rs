// SPDX-License-Identifier: GPL-2.0

//! Atomics, with orderings as types.

use crate::backend::{touch, Touch};
use core::cell::UnsafeCell;
use core::sync::atomic as core_atomic;

/// The access orders nothing.
pub struct Relaxed;
/// Later accesses stay after this one.
pub struct Acquire;
/// Earlier accesses stay before this one.
pub struct Release;

mod ordering {
    use super::core_atomic::Ordering as Core;

    /// Any ordering.
    pub trait Ordering {
        /// The nearest ordering of `core`.
        const CORE: Core;
    }
    /// An ordering of loads.
    pub trait AcquireOrRelaxed: Ordering {}
    /// An ordering of stores.
    pub trait ReleaseOrRelaxed: Ordering {}

    impl Ordering for super::Relaxed {
        const CORE: Core = Core::Relaxed;
    }
    impl Ordering for super::Acquire {
        const CORE: Core = Core::Acquire;
    }
    impl Ordering for super::Release {
        const CORE: Core = Core::Release;
    }
    impl AcquireOrRelaxed for super::Relaxed {}
    impl AcquireOrRelaxed for super::Acquire {}
    impl ReleaseOrRelaxed for super::Relaxed {}
    impl ReleaseOrRelaxed for super::Release {}
}

use ordering::{AcquireOrRelaxed, Ordering, ReleaseOrRelaxed};

/// A value that is read and written in one piece.
#[repr(transparent)]
pub struct Atomic<T>(UnsafeCell<T>);

// SAFETY: Every access is atomic.
unsafe impl<T: Send> Sync for Atomic<T> {}

impl<T> Atomic<T> {
    /// Returns an atomic that holds `value`.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
}

macro_rules! atomic {
    ($type:ty, $core:ident) => {
        impl Atomic<$type> {
            fn core<O: Ordering>(&self, access: Touch) -> &core_atomic::$core {
                touch(self.0.get(), access, matches!(O::CORE, core_atomic::Ordering::Relaxed));
                // SAFETY: The pointer is valid and aligned as long as `self`, and is used for
                // atomic accesses only.
                unsafe { core_atomic::$core::from_ptr(self.0.get()) }
            }

            /// Reads the value.
            #[inline]
            pub fn load<O: AcquireOrRelaxed>(&self, _: O) -> $type {
                self.core::<O>(Touch::Load).load(O::CORE)
            }

            /// Writes the value.
            #[inline]
            pub fn store<O: ReleaseOrRelaxed>(&self, value: $type, _: O) {
                self.core::<O>(Touch::Store).store(value, O::CORE);
            }
        }
    };
}

atomic!(u64, AtomicU64);
atomic!(bool, AtomicBool);

impl Atomic<u64> {
    /// Adds with wrapping, and returns the old value.
    #[inline]
    pub fn fetch_add<O: Ordering>(&self, value: u64, _: O) -> u64 {
        self.core::<O>(Touch::Update).fetch_add(value, O::CORE)
    }

    /// Writes `new` if the value is `old`, and then returns `Ok` with the old value. Otherwise, it
    /// returns `Err` with the present value, and orders nothing.
    #[inline]
    pub fn cmpxchg<O: Ordering>(&self, old: u64, new: u64, _: O) -> Result<u64, u64> {
        self.core::<O>(Touch::Update).compare_exchange(old, new, O::CORE, core_atomic::Ordering::Relaxed)
    }

    /// Subtracts with wrapping, and returns the old value.
    #[inline]
    pub fn fetch_sub<O: Ordering>(&self, value: u64, _: O) -> u64 {
        self.core::<O>(Touch::Update).fetch_sub(value, O::CORE)
    }
}
