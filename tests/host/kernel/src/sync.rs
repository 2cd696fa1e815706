// SPDX-License-Identifier: GPL-2.0

//! As `kernel::sync`: `Arc`, `Mutex`, `global_lock!`, `atomic`.

use crate::alloc::{self, AllocError, Flags};
use crate::error::Error;
use crate::ffi::c_void;
use crate::rt;
use crate::types::ForeignOwnable;
use core::cell::{Cell, UnsafeCell};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::size_of;
use core::ops;
use core::ptr::NonNull;
use pinned_init::{pin_init_from_closure, PinInit};

pub use crate::{global_lock, new_mutex};

pub mod atomic {
    //! As `kernel::sync::atomic`. Each access is one step that the runtime is told of before.

    use crate::rt::{self, Touch};
    use core::cell::UnsafeCell;

    pub struct Relaxed;
    pub struct Acquire;
    pub struct Release;
    pub struct Full;

    pub trait Ordering {
        const RELAXED: bool = false;
    }
    impl Ordering for Relaxed {
        const RELAXED: bool = true;
    }
    impl Ordering for Acquire {}
    impl Ordering for Release {}
    impl Ordering for Full {}
    pub trait AcquireOrRelaxed: Ordering {}
    impl AcquireOrRelaxed for Acquire {}
    impl AcquireOrRelaxed for Relaxed {}
    pub trait ReleaseOrRelaxed: Ordering {}
    impl ReleaseOrRelaxed for Release {}
    impl ReleaseOrRelaxed for Relaxed {}

    pub trait AtomicType: Copy + PartialEq {}
    pub trait AtomicInt: AtomicType {
        fn plus(self, other: Self) -> Self;
        fn minus(self, other: Self) -> Self;
    }
    macro_rules! ints {
        ($($t:ty)*) => { $(
            impl AtomicType for $t {}
            impl AtomicInt for $t {
                fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
                fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            }
        )* };
    }
    ints! { i32 i64 isize u32 u64 usize }
    impl AtomicType for bool {}
    impl<T> AtomicType for *mut T {}
    impl<T> AtomicType for *const T {}

    /// Starts each execution with the value that it was made with.
    pub struct Atomic<T: AtomicType> {
        first: T,
        now: UnsafeCell<(u64, T)>,
    }

    // SAFETY: One thread at a time runs.
    unsafe impl<T: AtomicType> Sync for Atomic<T> {}
    // SAFETY: As above.
    unsafe impl<T: AtomicType> Send for Atomic<T> {}

    impl<T: AtomicType> Atomic<T> {
        pub const fn new(v: T) -> Self {
            Self { first: v, now: UnsafeCell::new((0, v)) }
        }

        #[allow(clippy::mut_from_ref)]
        fn touch(&self, touch: Touch, relaxed: bool) -> &mut T {
            rt::rt_atomic(self as *const Self as usize, touch, relaxed);
            // SAFETY: One thread at a time runs, and the reference lives only inside one method.
            let now = unsafe { &mut *self.now.get() };
            let epoch = rt::rt_epoch();
            if now.0 != epoch {
                *now = (epoch, self.first);
            }
            &mut now.1
        }

        pub fn load<O: AcquireOrRelaxed>(&self, _: O) -> T {
            *self.touch(Touch::Load, O::RELAXED)
        }

        pub fn store<O: ReleaseOrRelaxed>(&self, v: T, _: O) {
            *self.touch(Touch::Store, O::RELAXED) = v;
        }

        pub fn xchg<O: Ordering>(&self, v: T, _: O) -> T {
            core::mem::replace(self.touch(Touch::Update, O::RELAXED), v)
        }

        pub fn cmpxchg<O: Ordering>(&self, old: T, new: T, _: O) -> Result<T, T> {
            let now = self.touch(Touch::Update, O::RELAXED);
            if *now == old {
                Ok(core::mem::replace(now, new))
            } else {
                Err(*now)
            }
        }
    }

    impl<T: AtomicInt> Atomic<T> {
        pub fn add(&self, v: T, _: Relaxed) {
            let now = self.touch(Touch::Update, true);
            *now = now.plus(v);
        }

        pub fn fetch_add<O: Ordering>(&self, v: T, _: O) -> T {
            let now = self.touch(Touch::Update, O::RELAXED);
            let old = *now;
            *now = old.plus(v);
            old
        }

        pub fn fetch_sub<O: Ordering>(&self, v: T, _: O) -> T {
            let now = self.touch(Touch::Update, O::RELAXED);
            let old = *now;
            *now = old.minus(v);
            old
        }
    }
}

/// A mutex that lives in one execution.
pub struct Mutex<T> {
    id: u64,
    name: &'static str,
    state: Cell<u32>,
    data: UnsafeCell<T>,
    _pin: PhantomPinned,
}

// SAFETY: The lock serialises access.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: As above.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    #[doc(hidden)]
    pub fn make(data: T, name: &'static str) -> impl PinInit<Self> {
        let init = move |slot: *mut Self| {
            // SAFETY: `slot` is memory for a pinned `Self`.
            unsafe {
                slot.write(Self {
                    id: rt::rt_new_id(),
                    name,
                    state: Cell::new(ALIVE),
                    data: UnsafeCell::new(data),
                    _pin: PhantomPinned,
                })
            };
            Ok(())
        };
        // SAFETY: Initialises the whole value.
        unsafe { pin_init_from_closure::<_, core::convert::Infallible>(init) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.check();
        rt::lock(self.id, self.name);
        self.check();
        Guard { id: self.id, data: self.data.get(), _t: PhantomData }
    }
}

impl<T> Mutex<T> {
    /// The memory of dead objects is kept, so that this can be said of whoever follows a stale pointer.
    fn check(&self) {
        if self.state.get() != ALIVE {
            rt::violation("use after free: a lock of an object that was dropped");
        }
    }
}

impl<T> Drop for Mutex<T> {
    fn drop(&mut self) {
        self.state.set(DEAD);
    }
}

#[must_use = "the lock unlocks immediately when the guard is unused"]
pub struct Guard<'a, T> {
    id: u64,
    data: *mut T,
    _t: PhantomData<&'a mut T>,
}

impl<T> ops::Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: Locked.
        unsafe { &*self.data }
    }
}

impl<T: Unpin> ops::DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: Locked.
        unsafe { &mut *self.data }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        rt::rt_unlock(self.id);
    }
}

#[macro_export]
macro_rules! new_mutex {
    ($v:expr, $name:literal $(,)?) => {
        $crate::sync::Mutex::make($v, $name)
    };
}

/// What `global_lock!` makes; the value is made anew in each execution.
pub struct GlobalMutex<T: 'static> {
    make: fn() -> T,
    now: UnsafeCell<(u64, Option<T>)>,
}

// SAFETY: The lock serialises access.
unsafe impl<T: Send> Sync for GlobalMutex<T> {}

impl<T> GlobalMutex<T> {
    #[doc(hidden)]
    pub const fn make(make: fn() -> T) -> Self {
        Self { make, now: UnsafeCell::new((0, None)) }
    }

    fn id(&'static self) -> u64 {
        self as *const Self as u64
    }

    /// # Safety
    ///
    /// To be called once, before anything else.
    pub unsafe fn init(&'static self) {
        // SAFETY: Nobody else is here yet.
        let now = unsafe { &mut *self.now.get() };
        if now.0 == rt::rt_epoch() {
            rt::violation("a global lock is initialised twice");
        }
        // What an execution that was cut short left behind belongs to memory that is gone.
        core::mem::forget(now.1.replace((self.make)()));
        now.0 = rt::rt_epoch();
    }

    pub fn lock(&'static self) -> Guard<'static, T> {
        rt::lock(self.id(), "");
        // SAFETY: Locked.
        let now = unsafe { &mut *self.now.get() };
        if now.0 != rt::rt_epoch() {
            rt::violation("a global lock is used before its init()");
            // SAFETY: As the caller should have done.
            unsafe { self.init() };
        }
        Guard { id: self.id(), data: now.1.as_mut().expect("initialised"), _t: PhantomData }
    }
}

#[macro_export]
macro_rules! global_lock {
    ($(#[$m:meta])* $v:vis unsafe(uninit) static $name:ident: Mutex<$t:ty> = $e:expr;) => {
        $(#[$m])*
        $v static $name: $crate::sync::GlobalMutex<$t> = $crate::sync::GlobalMutex::make(|| $e);
    };
}

const ALIVE: u32 = 0xa11f_e000;
const DEAD: u32 = 0xdead_0000;

struct Inner<T> {
    id: u64,
    refs: Cell<usize>,
    state: Cell<u32>,
    data: T,
}

impl<T> Inner<T> {
    /// Where a dead object is used, the run is lost; its memory is still there, so that it can be said.
    fn check(&self) -> &Self {
        if self.state.get() != ALIVE {
            rt::violation(&format!("use after free of {}", core::any::type_name::<T>()));
        }
        self
    }

    unsafe extern "C" fn free(memory: *mut u8) {
        // SAFETY: Made by `Box::into_raw`; the contents were dropped.
        drop(unsafe { Box::from_raw(memory.cast::<core::mem::MaybeUninit<Self>>()) });
    }
}

/// As the kernel's. Memory of dead objects is kept until the execution is over, and whoever touches it is reported.
pub struct Arc<T>(NonNull<Inner<T>>, PhantomData<Inner<T>>);

impl<T> Unpin for Arc<T> {}
// SAFETY: Shared ownership of a `T`.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: The memory outlives the execution.
        unsafe { self.0.as_ref() }.check()
    }

    fn build<E>(init: impl FnOnce(*mut T) -> Result<(), E>) -> Result<Self, Error>
    where
        Error: From<E>,
    {
        alloc::ask(size_of::<Inner<T>>())?;
        let memory = Box::into_raw(Box::<Inner<T>>::new_uninit()).cast::<Inner<T>>();
        // SAFETY: Fresh memory.
        unsafe {
            (&raw mut (*memory).id).write(rt::rt_new_id());
            (&raw mut (*memory).refs).write(Cell::new(1));
            (&raw mut (*memory).state).write(Cell::new(ALIVE));
            if let Err(error) = init(&raw mut (*memory).data) {
                alloc::freed(size_of::<Inner<T>>());
                Inner::<T>::free(memory.cast());
                return Err(error.into());
            }
            Ok(Self(NonNull::new_unchecked(memory), PhantomData))
        }
    }

    pub fn new(v: T, _: Flags) -> Result<Self, AllocError> {
        Self::build(|to| {
            // SAFETY: Memory for a `T`.
            unsafe { to.write(v) };
            Ok::<(), core::convert::Infallible>(())
        })
        .map_err(|_| AllocError)
    }

    pub fn as_arc_borrow(&self) -> ArcBorrow<'_, T> {
        ArcBorrow(self.0, PhantomData)
    }

    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        a.0 == b.0
    }

    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: Only the address is made.
        unsafe { &raw const (*this.0.as_ptr()).data }
    }
}

/// As the kernel's, for `Arc` only.
pub trait InPlaceInit<T>: Sized {
    type PinnedSelf;
    fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self::PinnedSelf, Error>
    where
        Error: From<E>;
}

impl<T> InPlaceInit<T> for Arc<T> {
    type PinnedSelf = Self;

    fn pin_init<E>(init: impl PinInit<T, E>, _: Flags) -> Result<Self, Error>
    where
        Error: From<E>,
    {
        // SAFETY: The memory never moves.
        Self::build(|to| unsafe { init.__pinned_init(to) })
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        rt::rt_count(self.inner().id, false);
        self.inner().refs.set(self.inner().refs.get() + 1);
        Self(self.0, PhantomData)
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        rt::rt_count(self.inner().id, true);
        let refs = self.inner().refs.get() - 1;
        self.inner().refs.set(refs);
        if refs != 0 {
            return;
        }
        // SAFETY: The last owner.
        unsafe { (&raw mut (*self.0.as_ptr()).data).drop_in_place() };
        // SAFETY: The memory is still there.
        unsafe { self.0.as_ref() }.state.set(DEAD);
        alloc::freed(size_of::<Inner<T>>());
        rt::rt_retire(self.0.as_ptr().cast(), Inner::<T>::free);
    }
}

impl<T> ops::Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().data
    }
}

pub struct ArcBorrow<'a, T>(NonNull<Inner<T>>, PhantomData<&'a Inner<T>>);

impl<T> Clone for ArcBorrow<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArcBorrow<'_, T> {}

impl<T> ops::Deref for ArcBorrow<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The memory outlives the execution.
        &unsafe { self.0.as_ref() }.check().data
    }
}

impl<T> From<ArcBorrow<'_, T>> for Arc<T> {
    fn from(b: ArcBorrow<'_, T>) -> Self {
        let arc = core::mem::ManuallyDrop::new(Arc(b.0, PhantomData));
        (*arc).clone()
    }
}

// SAFETY: The pointer is that of the allocation.
unsafe impl<T: 'static> ForeignOwnable for Arc<T> {
    const FOREIGN_ALIGN: usize = align_of::<Inner<T>>();
    type Borrowed<'a> = ArcBorrow<'a, T>;

    fn into_foreign(self) -> *mut c_void {
        let p = self.0.as_ptr().cast();
        core::mem::forget(self);
        p
    }

    unsafe fn from_foreign(p: *mut c_void) -> Self {
        // SAFETY: From the caller.
        Self(unsafe { NonNull::new_unchecked(p.cast()) }, PhantomData)
    }

    unsafe fn borrow<'a>(p: *mut c_void) -> ArcBorrow<'a, T> {
        // SAFETY: From the caller.
        ArcBorrow(unsafe { NonNull::new_unchecked(p.cast()) }, PhantomData)
    }
}
