// SPDX-License-Identifier: GPL-2.0

//! One of something, or several. The first lies inline, so one costs no memory of its own.

use kernel::alloc::KVVec;
use kernel::prelude::*;

/// See the file's text.
pub(crate) struct Several<T> {
    first: T,
    others: KVVec<T>,
}

impl<T> Several<T> {
    /// Just this one.
    pub(crate) fn one(first: T) -> Self {
        Self { first, others: KVVec::new() }
    }

    /// Makes room for one more. Allocates: not under a state lock.
    pub(crate) fn make_room(&mut self) -> Result {
        let count = self.others.len();
        if count == self.others.capacity() {
            self.others.reserve(count.max(8), GFP_KERNEL)?;
        }
        Ok(())
    }

    /// Appends `next`, and hands it back where there is no room.
    pub(crate) fn push(&mut self, next: T) -> Result<(), T> {
        self.others.push_within_capacity(next).map_err(|full| full.0)
    }

    /// Takes the last one; `None` where only the first is left.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.others.pop()
    }

    /// The first.
    pub(crate) fn first(&self) -> &T {
        &self.first
    }

    /// The first alone, without the others.
    pub(crate) fn into_first(self) -> T {
        self.first
    }

    /// The last.
    pub(crate) fn last_mut(&mut self) -> &mut T {
        self.others.last_mut().unwrap_or(&mut self.first)
    }

    /// The one at `index`, counted from 0.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => Some(&self.first),
            Some(index) => self.others.get(index),
        }
    }

    /// How many there are, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.others.len().saturating_add(1)
    }

    /// Those behind the first, in order.
    pub(crate) fn others(&self) -> &[T] {
        &self.others
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        // (`pin_init` has a `chain()`, too.)
        Iterator::chain(core::iter::once(&self.first), self.others.iter())
    }
}
