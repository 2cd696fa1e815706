// SPDX-License-Identifier: GPL-2.0

//! A counted pointer.

use crate::alloc::{AllocError, Allocator, Flags, Kmalloc, Room};
use crate::backend::{touch, Touch};
use crate::ffi::c_void;
use crate::types::ForeignOwnable;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::pin::Pin;
use core::ptr::NonNull;
use core::sync::atomic::{fence, AtomicI32, Ordering};
use pin_init::PinInit;

/// The value at which a misused count stays. That causes a leak, but never a use after free.
/// `refcount_t` does the same.
const SATURATED: i32 = i32::MIN / 2;

/// A counter of references.
struct Refcount(AtomicI32);

impl Refcount {
    fn inc(&self) {
        touch(self, Touch::Get, false);
        // A new reference is made from an old one, so nothing needs to be ordered.
        if self.0.fetch_add(1, Ordering::Relaxed) <= 0 {
            self.0.store(SATURATED, Ordering::Relaxed);
        }
    }

    /// Drops a reference. Returns whether it was the last one; then everything that others did with
    /// theirs is visible.
    fn dec_and_test(&self) -> bool {
        touch(self, Touch::Put, false);
        let before = self.0.fetch_sub(1, Ordering::Release);
        if before == 1 {
            fence(Ordering::Acquire);
            return true;
        }
        if before <= 0 {
            self.0.store(SATURATED, Ordering::Relaxed);
        }
        false
    }
}

/// The fields are in C's order, so that room for a `T` has the layout of a `T`.
#[repr(C)]
struct ArcInner<T> {
    refcount: Refcount,
    data: T,
}

impl<T> ArcInner<T> {
    fn data(&self) -> &T {
        touch(&self.refcount, Touch::Use, false);
        &self.data
    }
}

/// A counted pointer to a `T`, which is pinned. A count that overflows saturates.
///
/// # Invariants
///
/// `ptr` came from [`Kmalloc`] and is initialised; one of its references is this one's.
pub struct Arc<T> {
    ptr: NonNull<ArcInner<T>>,
    _owned: PhantomData<ArcInner<T>>,
}

// SAFETY: A thread that has one may share the `T`, and the thread that drops the last one drops the
// `T`.
unsafe impl<T: Sync + Send> Send for Arc<T> {}

// SAFETY: A thread that shares one may clone it.
unsafe impl<T: Sync + Send> Sync for Arc<T> {}

impl<T> Arc<T> {
    fn inner(&self) -> &ArcInner<T> {
        // SAFETY: By the invariant it is initialised, and lives as long as this reference.
        unsafe { self.ptr.as_ref() }
    }
}

/// The only reference to a `T`, or to room for one.
///
/// # Invariants
///
/// There is no other reference.
pub struct UniqueArc<T>(Arc<T>);

impl<T> UniqueArc<T> {
    /// Allocates room for a `T`.
    pub fn new_uninit(flags: Flags) -> Result<UniqueArc<MaybeUninit<T>>, AllocError> {
        let room = Room::<ArcInner<MaybeUninit<T>>, Kmalloc>::new(flags)?;
        // SAFETY: The memory is valid for writing.
        unsafe { (&raw mut (*room.as_ptr()).refcount).write(Refcount(AtomicI32::new(1))) };
        // INVARIANT: The count was just initialised, and is this one; room needs no initialisation.
        Ok(UniqueArc(Arc { ptr: room.take(), _owned: PhantomData }))
    }
}

impl<T> UniqueArc<MaybeUninit<T>> {
    /// Initialises the room, whose content is pinned from then on.
    pub fn pin_init_with<E>(self, init: impl PinInit<T, E>) -> Result<Pin<UniqueArc<T>>, E> {
        let inner: NonNull<ArcInner<T>> = self.0.ptr.cast();
        // SAFETY: The memory is valid for writing, and will not move. After an error nothing is
        // left in it.
        unsafe { init.__pinned_init(&raw mut (*inner.as_ptr()).data)? };
        // The new one takes over the count.
        let _room = ManuallyDrop::new(self);
        // INVARIANT: Just initialised, and there is still one reference.
        let unique = UniqueArc(Arc { ptr: inner, _owned: PhantomData });
        // SAFETY: Nobody moves the `T` out of what is pinned.
        Ok(unsafe { Pin::new_unchecked(unique) })
    }
}

impl<T> Deref for UniqueArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<Pin<UniqueArc<T>>> for Arc<T> {
    fn from(unique: Pin<UniqueArc<T>>) -> Self {
        // SAFETY: What an `Arc` holds does not move either.
        unsafe { Pin::into_inner_unchecked(unique) }.0
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        self.inner().refcount.inc();
        // INVARIANT: Just counted.
        Self { ptr: self.ptr, _owned: PhantomData }
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        if self.inner().refcount.dec_and_test() {
            // SAFETY: There is no other reference, so nobody looks at it any more; by the invariant
            // it came from `Kmalloc`.
            unsafe {
                (&raw mut (*self.ptr.as_ptr()).data).drop_in_place();
                Kmalloc::free(self.ptr.cast());
            }
        }
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner().data()
    }
}

// SAFETY: The pointer is one to an `ArcInner`, and so aligned as that.
unsafe impl<T: 'static> ForeignOwnable for Arc<T> {
    const FOREIGN_ALIGN: usize = align_of::<ArcInner<T>>();

    type Borrowed<'a> = ArcBorrow<'a, T>;

    fn into_foreign(self) -> *mut c_void {
        ManuallyDrop::new(self).ptr.as_ptr().cast()
    }

    unsafe fn from_foreign(ptr: *mut c_void) -> Self {
        // SAFETY: By this function's contract it came from `into_foreign()`, where it was not NULL.
        let ptr = unsafe { NonNull::new_unchecked(ptr.cast()) };
        // INVARIANT: The reference that `into_foreign()` gave away.
        Self { ptr, _owned: PhantomData }
    }

    unsafe fn borrow<'a>(ptr: *mut c_void) -> ArcBorrow<'a, T> {
        // SAFETY: By this function's contract it came from `into_foreign()`, and its reference
        // lives as long as `'a`.
        ArcBorrow(unsafe { &*ptr.cast() })
    }
}

/// A borrowed [`Arc`].
pub struct ArcBorrow<'a, T>(&'a ArcInner<T>);

impl<T> Deref for ArcBorrow<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.data()
    }
}
