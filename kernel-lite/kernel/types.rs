// SPDX-License-Identifier: GPL-2.0

//! Types that are handed to C and back.

use crate::ffi::c_void;

/// What C may own: turned into a pointer, borrowed through it, and turned back.
///
/// # Safety
///
/// [`into_foreign`](Self::into_foreign) returns a pointer that is a multiple of
/// [`FOREIGN_ALIGN`](Self::FOREIGN_ALIGN).
pub unsafe trait ForeignOwnable: Sized {
    /// Alignment of the pointers.
    const FOREIGN_ALIGN: usize;

    /// A shared borrow of what C owns.
    type Borrowed<'a>
    where
        Self: 'a;

    /// Hands it over. The pointer is not NULL.
    fn into_foreign(self) -> *mut c_void;

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// `ptr` came from [`into_foreign`](Self::into_foreign), and was not given to `from_foreign`
    /// since.
    unsafe fn from_foreign(ptr: *mut c_void) -> Self;

    /// Borrows it.
    ///
    /// # Safety
    ///
    /// `ptr` came from [`into_foreign`](Self::into_foreign), and is not given to `from_foreign`
    /// during `'a`.
    unsafe fn borrow<'a>(ptr: *mut c_void) -> Self::Borrowed<'a>;
}
