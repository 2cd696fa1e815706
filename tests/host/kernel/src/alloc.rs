// SPDX-License-Identifier: GPL-2.0

//! As `kernel::alloc`: vectors and boxes that ask before they allocate.

use crate::rt;
use core::mem::size_of;
use core::ops;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

#[derive(Clone, Copy)]
pub struct Flags(());

pub mod flags {
    pub const GFP_KERNEL: super::Flags = super::Flags(());
}

pub(crate) fn ask(bytes: usize) -> Result<(), AllocError> {
    if bytes != 0 && !rt::rt_may_allocate(bytes) {
        return Err(AllocError);
    }
    rt::rt_allocated(isize::try_from(bytes).expect("fits"));
    Ok(())
}

pub(crate) fn freed(bytes: usize) {
    rt::rt_allocated(-isize::try_from(bytes).expect("fits"));
}

/// The allocator is not looked at: what counts here is the size.
pub struct Vec<T> {
    inner: std::vec::Vec<T>,
}

pub type KVec<T> = Vec<T>;
pub type VVec<T> = Vec<T>;
pub type KVVec<T> = Vec<T>;

/// As the kernel's: the element that did not fit.
pub struct PushError<T>(pub T);

impl<T> core::fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PushError")
    }
}

impl<T> From<PushError<T>> for crate::error::Error {
    fn from(_: PushError<T>) -> Self {
        crate::error::code::EINVAL
    }
}

#[derive(Debug)]
pub struct RemoveError;

impl From<RemoveError> for crate::error::Error {
    fn from(_: RemoveError) -> Self {
        crate::error::code::EINVAL
    }
}

impl<T> Vec<T> {
    pub const fn new() -> Self {
        Self { inner: std::vec::Vec::new() }
    }

    fn grow_to(&mut self, capacity: usize) -> Result<(), AllocError> {
        if size_of::<T>() == 0 || capacity <= self.inner.capacity() {
            return Ok(());
        }
        let old = self.inner.capacity();
        ask(capacity.checked_mul(size_of::<T>()).ok_or(AllocError)?)?;
        freed(old * size_of::<T>());
        let len = self.inner.len();
        self.inner.reserve_exact(capacity - len);
        // The host's allocator may round up; the kernel's capacity is what was asked for.
        let more = (self.inner.capacity() - capacity) * size_of::<T>();
        rt::rt_allocated(isize::try_from(more).expect("fits"));
        Ok(())
    }

    pub fn with_capacity(capacity: usize, _: Flags) -> Result<Self, AllocError> {
        let mut v = Self::new();
        v.grow_to(capacity)?;
        Ok(v)
    }

    pub fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    pub fn len(&self) -> usize {
        self.inner.len()
    }

    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    pub fn reserve(&mut self, additional: usize, _: Flags) -> Result<(), AllocError> {
        let wanted = self.inner.len().checked_add(additional).ok_or(AllocError)?;
        if wanted <= self.inner.capacity() {
            return Ok(());
        }
        self.grow_to(wanted.max(self.inner.capacity() * 2))
    }

    pub fn push(&mut self, v: T, flags: Flags) -> Result<(), AllocError> {
        self.reserve(1, flags)?;
        self.inner.push(v);
        Ok(())
    }

    pub fn push_within_capacity(&mut self, v: T) -> Result<(), PushError<T>> {
        if self.inner.len() == self.inner.capacity() {
            return Err(PushError(v));
        }
        self.inner.push(v);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<T> {
        self.inner.pop()
    }

    pub fn remove(&mut self, i: usize) -> Result<T, RemoveError> {
        if i >= self.inner.len() {
            return Err(RemoveError);
        }
        Ok(self.inner.remove(i))
    }

    pub fn clear(&mut self) {
        self.inner.clear();
    }

    pub fn truncate(&mut self, len: usize) {
        self.inner.truncate(len);
    }

    pub fn drain_all(&mut self) -> std::vec::Drain<'_, T> {
        self.inner.drain(..)
    }

    pub fn retain(&mut self, f: impl FnMut(&mut T) -> bool) {
        self.inner.retain_mut(f);
    }

    pub fn as_slice(&self) -> &[T] {
        &self.inner
    }
}

impl<T> Drop for Vec<T> {
    fn drop(&mut self) {
        freed(self.inner.capacity() * size_of::<T>());
    }
}

impl<T> Default for Vec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ops::Deref for Vec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.inner
    }
}

impl<T> ops::DerefMut for Vec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.inner
    }
}

impl<T: core::fmt::Debug> core::fmt::Debug for Vec<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.inner.fmt(f)
    }
}

impl<'a, T> IntoIterator for &'a Vec<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.inner.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Vec<T> {
    type Item = &'a mut T;
    type IntoIter = core::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.inner.iter_mut()
    }
}

impl<T> IntoIterator for Vec<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(mut self) -> Self::IntoIter {
        freed(self.inner.capacity() * size_of::<T>());
        core::mem::take(&mut self.inner).into_iter()
    }
}

/// As `KBox`.
pub struct KBox<T>(std::boxed::Box<T>);

impl<T> KBox<T> {
    pub fn new(v: T, _: Flags) -> Result<Self, AllocError> {
        ask(size_of::<T>())?;
        Ok(Self(std::boxed::Box::new(v)))
    }
}

impl<T> Drop for KBox<T> {
    fn drop(&mut self) {
        freed(size_of::<T>());
    }
}

impl<T> ops::Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> ops::DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
