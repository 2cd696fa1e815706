// SPDX-License-Identifier: GPL-2.0

//! One of something, or several. The first lies inline, so one costs no memory of its own.

use kernel::alloc::KVVec;
use kernel::prelude::*;

/// One `T`, or several.
pub(crate) struct Several<T> {
    first: T,
    /// `None` for none: dropping an empty list would ask the allocator.
    others: Option<KVVec<T>>,
}

impl<T> Several<T> {
    /// Holds just this one.
    pub(crate) fn one(first: T) -> Self {
        Self { first, others: None }
    }

    /// Makes room for one more. Allocates: not under a state lock.
    pub(crate) fn make_room(&mut self) -> Result {
        let others = self.others.get_or_insert_with(KVVec::new);
        let count = others.len();
        if count == others.capacity() {
            others.reserve(count.max(8), GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Appends `next`, and hands it back where there is no room.
    pub(crate) fn push(&mut self, next: T) -> Result<(), T> {
        match &mut self.others {
            Some(others) => others.push_within_capacity(next).map_err(|full| full.0),
            None => Err(next),
        }
    }

    /// Takes the last one; `None` where only the first is left.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.others.as_mut()?.pop()
    }

    /// Returns the first.
    pub(crate) fn first(&self) -> &T {
        &self.first
    }

    /// Returns the first alone, without the others.
    pub(crate) fn into_first(self) -> T {
        self.first
    }

    /// Returns the first, if it is the only one.
    pub(crate) fn only_mut(&mut self) -> Option<&mut T> {
        self.others().is_empty().then_some(&mut self.first)
    }

    /// Returns the last.
    pub(crate) fn last_mut(&mut self) -> &mut T {
        self.others.as_mut().and_then(|others| others.last_mut()).unwrap_or(&mut self.first)
    }

    /// Returns the one at `index`, counted from 0.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => Some(&self.first),
            Some(index) => self.others().get(index),
        }
    }

    /// Returns how many there are, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.others().len().saturating_add(1)
    }

    /// Returns those behind the first, in order.
    pub(crate) fn others(&self) -> &[T] {
        self.others.as_deref().unwrap_or_default()
    }

    /// Returns all of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        // (`pin_init` has a `chain()`, too.)
        Iterator::chain(core::iter::once(&self.first), self.others())
    }

    /// Returns all of them, in order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        // (`pin_init` has a `chain()`, too.)
        Iterator::chain(core::iter::once(&mut self.first), self.others.as_deref_mut().unwrap_or_default())
    }
}
