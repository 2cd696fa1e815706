// SPDX-License-Identifier: GPL-2.0

//! As the kernel's `module!` and `Module`. The crate root gets `init_module()` and `cleanup_module()`.

use crate::error::Error;
use pinned_init::PinInit;

/// As the kernel's; here there is nothing in it.
pub struct ThisModule(());

impl ThisModule {
    #[doc(hidden)]
    pub const fn make() -> Self {
        Self(())
    }
}

pub trait Module: Sized + Sync + Send {
    fn init(module: &'static ThisModule) -> Result<Self, Error>;
}

pub trait InPlaceModule: Sync + Send {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error>;
}

impl<T: Module> InPlaceModule for T {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let make = move |slot: *mut Self| {
            let made = <T as Module>::init(module)?;
            // SAFETY: `slot` is memory for a `Self`.
            unsafe { slot.write(made) };
            Ok(())
        };
        // SAFETY: Initialises the whole value, or nothing.
        unsafe { pinned_init::pin_init_from_closure(make) }
    }
}

pub trait ModuleMetadata {
    const NAME: &'static core::ffi::CStr;
}

/// Where `module!` keeps the module's object.
#[doc(hidden)]
pub struct Place(std::sync::atomic::AtomicPtr<()>);

impl Place {
    #[doc(hidden)]
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicPtr::new(core::ptr::null_mut()))
    }

    #[doc(hidden)]
    pub fn init<T: InPlaceModule>(&self, module: &'static ThisModule) -> i32 {
        let memory = Box::into_raw(Box::<T>::new_uninit());
        // SAFETY: Memory for a `T` that stays where it is.
        match unsafe { T::init(module).__pinned_init(memory.cast()) } {
            Ok(()) => {
                self.0.store(memory.cast(), std::sync::atomic::Ordering::Relaxed);
                0
            }
            Err(error) => {
                // SAFETY: From `into_raw` above; not initialised.
                drop(unsafe { Box::from_raw(memory) });
                error.to_errno()
            }
        }
    }

    #[doc(hidden)]
    pub fn exit<T: InPlaceModule>(&self) {
        let memory = self.0.swap(core::ptr::null_mut(), std::sync::atomic::Ordering::Relaxed);
        assert!(!memory.is_null(), "cleanup_module() without init_module()");
        // SAFETY: Made by `init()`.
        drop(unsafe { Box::from_raw(memory.cast::<T>()) });
    }
}

#[macro_export]
macro_rules! module {
    (type: $t:ty, name: $name:literal $(, $key:ident : $value:tt)* $(,)?) => {
        static __PLACE: $crate::__Place = $crate::__Place::new();
        #[allow(dead_code)]
        static THIS_MODULE: $crate::ThisModule = $crate::ThisModule::make();
        #[allow(dead_code)]
        struct LocalModule;
        /// What insmod calls.
        pub fn init_module() -> i32 {
            __PLACE.init::<$t>(&THIS_MODULE)
        }
        /// What rmmod calls.
        pub fn cleanup_module() {
            __PLACE.exit::<$t>();
        }
    };
}

#[macro_export]
macro_rules! static_assert {
    ($e:expr $(, $m:literal)? $(,)?) => { const _: () = assert!($e $(, $m)?); };
}

#[macro_export]
macro_rules! try_pin_init {
    ($(&$this:ident in)? $t:ident $(::<$($g:ty),* $(,)?>)? { $($f:tt)* }) => {
        $crate::pin_init_crate::try_pin_init!($(&$this in)? $t $(::<$($g),*>)? { $($f)* }? $crate::error::Error)
    };
    ($(&$this:ident in)? $t:ident $(::<$($g:ty),* $(,)?>)? { $($f:tt)* }? $e:ty) => {
        $crate::pin_init_crate::try_pin_init!($(&$this in)? $t $(::<$($g),*>)? { $($f)* }? $e)
    };
}

#[macro_export]
macro_rules! try_init {
    ($t:ident $(::<$($g:ty),* $(,)?>)? { $($f:tt)* }) => {
        $crate::pin_init_crate::try_init!($t $(::<$($g),*>)? { $($f)* }? $crate::error::Error)
    };
    ($t:ident $(::<$($g:ty),* $(,)?>)? { $($f:tt)* }? $e:ty) => {
        $crate::pin_init_crate::try_init!($t $(::<$($g),*>)? { $($f)* }? $e)
    };
}
