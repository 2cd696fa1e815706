// SPDX-License-Identifier: GPL-2.0

//! Modules: `module!` and its traits.

use crate::error::{Error, Result};
use crate::ffi::c_void;
use pin_init::PinInit;

/// `THIS_MODULE`.
pub struct ThisModule(*mut c_void);

// SAFETY: The pointer is to the module's own record, which the kernel guards itself.
unsafe impl Sync for ThisModule {}

impl ThisModule {
    /// Wraps the pointer.
    ///
    /// # Safety
    ///
    /// `ptr` is this module's `THIS_MODULE`.
    pub const unsafe fn from_ptr(ptr: *mut c_void) -> Self {
        Self(ptr)
    }

    /// Returns the pointer.
    pub const fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

/// A module. Dropping it is the module's exit.
pub trait Module: Sized + Sync + Send {
    /// Initialises the module when it is loaded.
    fn init(module: &'static ThisModule) -> Result<Self>;
}

/// A module that is initialised in place.
pub trait InPlaceModule: Sync + Send {
    /// Initialises the module when it is loaded.
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error>;
}

impl<T: Module> InPlaceModule for T {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let init = move |slot: *mut Self| {
            let this = <Self as Module>::init(module)?;
            // SAFETY: `slot` is valid for writing, as `pin_init_from_closure()` was promised.
            unsafe { slot.write(this) };
            Ok(())
        };
        // SAFETY: On success the closure has written the whole value.
        unsafe { pin_init::pin_init_from_closure(init) }
    }
}

/// Writes one line of `.modinfo`.
#[doc(hidden)]
#[macro_export]
macro_rules! modinfo {
    ($text:expr) => {
        const _: () = {
            // `used(compiler)`: the linker's form would make a second section of this name, and the
            // loader sees one.
            #[cfg_attr(MODULE, used(compiler), link_section = ".modinfo")]
            #[cfg_attr(not(MODULE), allow(dead_code))]
            static INFO: [u8; $text.len()] = *match $text.as_bytes().first_chunk() {
                Some(text) => text,
                None => panic!("as long as itself"),
            };
        };
    };
}

/// Declares the module: what `modinfo` shows, and the functions that the loader calls.
#[macro_export]
macro_rules! module {
    (
        type: $type:ty,
        name: $name:literal,
        authors: [$($author:literal),* $(,)?],
        description: $description:literal,
        license: $license:literal $(,)?
    ) => {
        /// The text before each line of the log.
        const __LOG_PREFIX: &[u8] = ::core::concat!($name, "\0").as_bytes();

        $crate::modinfo!(::core::concat!("license=", $license, "\0"));
        $crate::modinfo!(::core::concat!("description=", $description, "\0"));
        $($crate::modinfo!(::core::concat!("author=", $author, "\0"));)*

        const _: () = {
            /// # Invariants
            ///
            /// Holds a value from a successful `init_module()` until `cleanup_module()`.
            struct Slot(::core::cell::UnsafeCell<::core::mem::MaybeUninit<$type>>);

            // SAFETY: Used by `init_module()` and `cleanup_module()` only, which never run at the
            // same time.
            unsafe impl Sync for Slot {}

            // INVARIANT: Nothing was initialised yet.
            static SLOT: Slot = Slot(::core::cell::UnsafeCell::new(::core::mem::MaybeUninit::uninit()));

            #[cfg(MODULE)]
            extern "C" {
                static mut __this_module: $crate::ffi::c_void;
            }
            // SAFETY: modpost defines `__this_module`.
            #[cfg(MODULE)]
            static THIS_MODULE: $crate::ThisModule =
                unsafe { $crate::ThisModule::from_ptr(&raw mut __this_module) };
            // SAFETY: What is no module has none, as in the kernel.
            #[cfg(not(MODULE))]
            static THIS_MODULE: $crate::ThisModule =
                unsafe { $crate::ThisModule::from_ptr(::core::ptr::null_mut()) };

            // This does the same as ___ADDRESSABLE of C: a reference keeps objtool from sealing the
            // ENDBR of a function that only the loader calls, indirectly.
            #[cfg_attr(MODULE, used(compiler), link_section = ".init.data")]
            #[cfg_attr(not(MODULE), allow(dead_code))]
            static ADDRESSABLE_INIT: extern "C" fn() -> $crate::ffi::c_int = init_module;
            #[cfg_attr(MODULE, used(compiler), link_section = ".exit.data")]
            #[cfg_attr(not(MODULE), allow(dead_code))]
            static ADDRESSABLE_EXIT: extern "C" fn() = cleanup_module;

            #[no_mangle]
            #[cfg_attr(MODULE, link_section = ".init.text")]
            extern "C" fn init_module() -> $crate::ffi::c_int {
                let init = <$type as $crate::InPlaceModule>::init(&THIS_MODULE);
                let slot = SLOT.0.get().cast::<$type>();
                // SAFETY: The slot is static, so pinned; nothing is in it, as the loader calls this
                // once. INVARIANT: On success there is a value in it.
                match unsafe { $crate::pin_init::PinInit::__pinned_init(init, slot) } {
                    Ok(()) => 0,
                    Err(error) => error.to_errno(),
                }
            }

            #[no_mangle]
            #[cfg_attr(MODULE, link_section = ".exit.text")]
            extern "C" fn cleanup_module() {
                // SAFETY: The loader calls this once, after `init_module()` succeeded.
                // INVARIANT: Nothing looks into the slot afterwards.
                unsafe { SLOT.0.get().cast::<$type>().drop_in_place() };
            }
        };
    };
}
