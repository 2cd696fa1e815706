// SPDX-License-Identifier: GPL-2.0

//! As `kernel::types`.

use crate::ffi::c_void;

/// # Safety
///
/// As in the kernel crate.
pub unsafe trait ForeignOwnable: Sized {
    const FOREIGN_ALIGN: usize;
    type Borrowed<'a>
    where
        Self: 'a;
    fn into_foreign(self) -> *mut c_void;
    unsafe fn from_foreign(p: *mut c_void) -> Self;
    unsafe fn borrow<'a>(p: *mut c_void) -> Self::Borrowed<'a>
    where
        Self: 'a;
}

/// As the kernel's.
pub struct ScopeGuard<T, F: FnOnce(T)>(Option<(T, F)>);

impl<T, F: FnOnce(T)> ScopeGuard<T, F> {
    pub fn new_with_data(data: T, f: F) -> Self {
        Self(Some((data, f)))
    }

    pub fn dismiss(mut self) -> T {
        self.0.take().expect("only taken here and in drop").0
    }
}

impl ScopeGuard<(), fn(())> {
    #[allow(clippy::new_ret_no_self)]
    pub fn new(f: impl FnOnce()) -> ScopeGuard<(), impl FnOnce(())> {
        ScopeGuard::new_with_data((), move |()| f())
    }
}

impl<T, F: FnOnce(T)> Drop for ScopeGuard<T, F> {
    fn drop(&mut self) {
        if let Some((data, f)) = self.0.take() {
            f(data);
        }
    }
}
