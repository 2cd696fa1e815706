// SPDX-License-Identifier: GPL-2.0

//! Fallible allocation.

use crate::backend;
use crate::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::slice;

/// The alignment that both allocators give to every size.
const ALIGN: usize = 8;

/// The error of an allocation: memory is exhausted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocError;

/// The way to allocate. There is only one, because the C functions behind this know no other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Flags(());

/// The flags by name.
pub mod flags {
    use super::Flags;

    /// The allocation may sleep and reclaim.
    pub const GFP_KERNEL: Flags = Flags(());
}

/// A source of memory.
///
/// # Safety
///
/// What `alloc` returns is valid for `size` bytes, aligned to eight bytes, and owned by the caller
/// until `free`.
pub unsafe trait Allocator {
    /// Allocates `size` bytes, which is not zero.
    fn alloc(size: usize, flags: Flags) -> Result<NonNull<c_void>, AllocError>;

    /// Frees memory.
    ///
    /// # Safety
    ///
    /// `memory` came from `alloc` of the same allocator, and is not used again.
    unsafe fn free(memory: NonNull<c_void>);
}

/// Allocates contiguous memory, for small things.
pub struct Kmalloc;

// SAFETY: `kmalloc()` aligns to eight bytes at least.
unsafe impl Allocator for Kmalloc {
    fn alloc(size: usize, _flags: Flags) -> Result<NonNull<c_void>, AllocError> {
        // SAFETY: No precondition but that sleeping is allowed, which `GFP_KERNEL` says.
        NonNull::new(unsafe { backend::kl_kmalloc(size) }).ok_or(AllocError)
    }

    unsafe fn free(memory: NonNull<c_void>) {
        // SAFETY: By this function's contract.
        unsafe { backend::kl_kfree(memory.as_ptr()) };
    }
}

/// Allocates contiguous memory if there is some, otherwise memory that is mapped together from
/// pages.
pub struct KVmalloc;

// SAFETY: `kvmalloc()` aligns to eight bytes at least.
unsafe impl Allocator for KVmalloc {
    fn alloc(size: usize, _flags: Flags) -> Result<NonNull<c_void>, AllocError> {
        // SAFETY: No precondition but that sleeping is allowed, which `GFP_KERNEL` says.
        NonNull::new(unsafe { backend::kl_kvmalloc(size) }).ok_or(AllocError)
    }

    unsafe fn free(memory: NonNull<c_void>) {
        // SAFETY: By this function's contract.
        unsafe { backend::kl_kvfree(memory.as_ptr()) };
    }
}

/// Allocates uninitialised memory for one `T`.
pub(crate) fn alloc_one<T, A: Allocator>(flags: Flags) -> Result<NonNull<T>, AllocError> {
    const { assert!(size_of::<T>() != 0 && align_of::<T>() <= ALIGN) };
    Ok(A::alloc(size_of::<T>(), flags)?.cast())
}

/// A growable array. Types without a size and with an alignment above eight bytes do not compile.
///
/// # Invariants
///
/// - `ptr` dangles if `capacity` is zero; else it came from `A` and is valid for `capacity`
///   elements, whose bytes are no more than `isize::MAX`.
/// - The first `len` elements are initialised and owned; `len <= capacity`.
pub struct Vec<T, A: Allocator> {
    ptr: NonNull<T>,
    capacity: usize,
    len: usize,
    _allocator: PhantomData<A>,
}

/// A [`Vec`] over [`Kmalloc`].
pub type KVec<T> = Vec<T, Kmalloc>;

/// A [`Vec`] over [`KVmalloc`].
pub type KVVec<T> = Vec<T, KVmalloc>;

// SAFETY: A vector owns its elements.
unsafe impl<T: Send, A: Allocator> Send for Vec<T, A> {}

// SAFETY: A vector owns its elements.
unsafe impl<T: Sync, A: Allocator> Sync for Vec<T, A> {}

impl<T, A: Allocator> Vec<T, A> {
    /// Returns an empty vector, which owns no memory.
    pub const fn new() -> Self {
        const { assert!(size_of::<T>() != 0 && align_of::<T>() <= ALIGN) };
        // INVARIANT: No memory, no elements.
        Self { ptr: NonNull::dangling(), capacity: 0, len: 0, _allocator: PhantomData }
    }

    /// Returns an empty vector with room for `capacity` elements.
    pub fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        let mut this = Self::new();
        this.reserve(capacity, flags)?;
        Ok(this)
    }

    /// Returns the number of elements that there is room for.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for `additional` further elements, and for at least twice as many elements as
    /// before.
    pub fn reserve(&mut self, additional: usize, flags: Flags) -> Result<(), AllocError> {
        let wanted = self.len.checked_add(additional).ok_or(AllocError)?;
        if wanted <= self.capacity {
            return Ok(());
        }
        let capacity = wanted.max(self.capacity.saturating_mul(2));
        let size = capacity.checked_mul(size_of::<T>()).ok_or(AllocError)?;
        isize::try_from(size).map_err(|_| AllocError)?;
        let ptr = A::alloc(size, flags)?.cast::<T>();
        // SAFETY: By the invariant `len` elements are initialised; there is more room for them in
        // the new memory, which overlaps with no other.
        unsafe { ptr::copy_nonoverlapping(self.ptr.as_ptr(), ptr.as_ptr(), self.len) };
        if self.capacity != 0 {
            // SAFETY: By the invariant this came from `A`; the elements have moved out of it.
            unsafe { A::free(self.ptr.cast()) };
        }
        // INVARIANT: `ptr` was just allocated for `capacity` elements, and the first `len` were
        // moved there.
        self.ptr = ptr;
        self.capacity = capacity;
        Ok(())
    }

    /// Appends an element, and allocates if there is no room.
    pub fn push(&mut self, value: T, flags: Flags) -> Result<(), AllocError> {
        self.reserve(1, flags)?;
        self.push_within_capacity(value).map_err(|_| AllocError)
    }

    /// Appends an element, or returns it if there is no room.
    pub fn push_within_capacity(&mut self, value: T) -> Result<(), PushError<T>> {
        if self.len >= self.capacity {
            return Err(PushError(value));
        }
        // SAFETY: `len` is below `capacity`, so it is an element of the memory, and by the
        // invariant not initialised.
        unsafe { self.ptr.as_ptr().add(self.len).write(value) };
        // INVARIANT: One element more is initialised, and `len` was below `capacity`.
        self.len = self.len.wrapping_add(1);
        Ok(())
    }

    /// Removes and returns the last element.
    pub fn pop(&mut self) -> Option<T> {
        // INVARIANT: One element less is in use; what is behind `len` is not looked at.
        self.len = self.len.checked_sub(1)?;
        // SAFETY: By the invariant the element was initialised, and it is not the vector's any
        // more.
        Some(unsafe { self.ptr.as_ptr().add(self.len).read() })
    }

    /// Drops all elements and keeps the memory.
    pub fn clear(&mut self) {
        drop(self.drain_all());
    }

    /// Takes all elements out and keeps the memory. Elements that the iterator does not return are
    /// dropped with it.
    pub fn drain_all(&mut self) -> DrainAll<'_, T> {
        let len = core::mem::take(&mut self.len);
        // SAFETY: By the invariant the first `len` elements are initialised; from here on they are
        // the iterator's alone.
        let elements = unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), len) };
        // INVARIANT: The vector has no elements any more, and is borrowed as long as the iterator
        // lives.
        DrainAll { elements: elements.iter_mut() }
    }
}

impl<T, A: Allocator> Default for Vec<T, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, A: Allocator> Deref for Vec<T, A> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: By the invariant the first `len` elements are initialised.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T, A: Allocator> DerefMut for Vec<T, A> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: By the invariant the first `len` elements are initialised.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T, A: Allocator> Drop for Vec<T, A> {
    fn drop(&mut self) {
        self.clear();
        if self.capacity != 0 {
            // SAFETY: By the invariant this came from `A`, and there are no elements left.
            unsafe { A::free(self.ptr.cast()) };
        }
    }
}

/// The iterator of [`Vec::drain_all`].
///
/// # Invariants
///
/// What `elements` has not returned is initialised and owned by this.
pub struct DrainAll<'vec, T> {
    elements: slice::IterMut<'vec, T>,
}

impl<T> Iterator for DrainAll<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let element: *mut T = self.elements.next()?;
        // SAFETY: By the invariant the element was ours; it is not looked at again.
        Some(unsafe { element.read() })
    }
}

impl<T> Drop for DrainAll<'_, T> {
    fn drop(&mut self) {
        let rest: *mut [T] = core::mem::take(&mut self.elements).into_slice();
        // SAFETY: By the invariant these are ours; they are not looked at again.
        unsafe { rest.drop_in_place() };
    }
}

/// The element that [`Vec::push_within_capacity`] had no room for.
pub struct PushError<T>(pub T);

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Not enough capacity")
    }
}

/// Memory of [`alloc_one`] that is freed unless it is [taken](Self::take).
#[doc(hidden)]
pub struct Room<T, A: Allocator>(NonNull<T>, PhantomData<A>);

impl<T, A: Allocator> Room<T, A> {
    pub fn new(flags: Flags) -> Result<Self, AllocError> {
        Ok(Self(alloc_one::<T, A>(flags)?, PhantomData))
    }

    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub fn take(self) -> NonNull<T> {
        ManuallyDrop::new(self).0
    }
}

impl<T, A: Allocator> Drop for Room<T, A> {
    fn drop(&mut self) {
        // SAFETY: Made by `alloc_one()`; what is in it is not dropped here.
        unsafe { A::free(self.0.cast()) };
    }
}
