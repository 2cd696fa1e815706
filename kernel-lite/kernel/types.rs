// SPDX-License-Identifier: GPL-2.0

//! Types that are handed to C and back.

use crate::ffi::c_void;

/// An object that C may own: it is turned into a pointer, borrowed through it, and turned back.
///
/// # Safety
///
/// [`into_foreign`](Self::into_foreign) returns a pointer that is a multiple of
/// [`FOREIGN_ALIGN`](Self::FOREIGN_ALIGN).
pub unsafe trait ForeignOwnable: Sized {
    /// The alignment of the pointers.
    const FOREIGN_ALIGN: usize;

    /// A shared borrow of an object that C owns.
    type Borrowed<'a>
    where
        Self: 'a;

    /// Gives the object to C. The pointer is not NULL.
    fn into_foreign(self) -> *mut c_void;

    /// Takes the object back.
    ///
    /// # Safety
    ///
    /// `ptr` came from [`into_foreign`](Self::into_foreign), and was not given to `from_foreign`
    /// since.
    unsafe fn from_foreign(ptr: *mut c_void) -> Self;

    /// Borrows the object.
    ///
    /// # Safety
    ///
    /// `ptr` came from [`into_foreign`](Self::into_foreign), and is not given to `from_foreign`
    /// during `'a`.
    unsafe fn borrow<'a>(ptr: *mut c_void) -> Self::Borrowed<'a>;
}
