// SPDX-License-Identifier: GPL-2.0

//! Tests every item of kernel-lite, as the module uses it: results, failures, drops, and what two
//! threads see.

use helpers::{fail_after, fail_never, live, take_log};
use kernel::alloc::{KVVec, KVec};
use kernel::error::{from_result, to_result};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{global_lock, new_mutex, Arc, Mutex, UniqueArc};
use kernel::types::ForeignOwnable;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `module!` would define this.
const __LOG_PREFIX: &[u8] = b"test\0";

/// Counts the drops of its kind.
struct Counted<'a>(&'a AtomicUsize, u32);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_vector_grows_and_frees_its_elements_once() {
    let drops = AtomicUsize::new(0);
    let mut v = KVec::new();
    assert_eq!((v.len(), v.capacity(), live()), (0, 0, 0));
    for i in 0..100 {
        v.push(Counted(&drops, i), GFP_KERNEL).unwrap();
    }
    assert!(v.iter().map(|c| c.1).eq(0..100));
    assert_eq!((live(), drops.load(Ordering::Relaxed)), (1, 0));
    v.clear();
    assert_eq!((v.len(), v.is_empty(), drops.load(Ordering::Relaxed)), (0, true, 100));
    assert!(v.capacity() >= 100, "clear gave the memory back");
    drop(v);
    assert_eq!(live(), 0);
}

#[test]
fn the_last_element_comes_out_first() {
    let mut vector: KVVec<Box<u32>> = KVVec::new();
    for number in 0..3 {
        vector.push(Box::new(number), GFP_KERNEL).unwrap();
    }
    assert_eq!(vector.pop().as_deref(), Some(&2));
    vector.push(Box::new(9), GFP_KERNEL).unwrap();
    let rest: Vec<_> = std::iter::from_fn(|| vector.pop()).map(|number| *number).collect();
    assert_eq!(rest, [9, 1, 0]);
    assert!(vector.is_empty() && vector.capacity() >= 3);
}

#[test]
fn a_full_vector_hands_the_element_back() {
    let mut v = KVVec::with_capacity(2, GFP_KERNEL).unwrap();
    assert_eq!(v.capacity(), 2);
    assert!(v.push_within_capacity(1u64).is_ok() && v.push_within_capacity(2).is_ok());
    let Err(back) = v.push_within_capacity(3) else { panic!("a third element in room for two") };
    assert_eq!(back.0, 3);
    assert_eq!(Error::from(back), EINVAL);
    assert_eq!(*v, [1, 2]);
    if let Some(last) = v.get_mut(1) {
        *last = 9;
    }
    assert_eq!(std::mem::take(&mut v).get(1), Some(&9));
    assert_eq!(v.capacity(), 0);
}

#[test]
fn a_vector_without_memory_stays_as_it_was() {
    let mut v = KVec::with_capacity(1, GFP_KERNEL).unwrap();
    v.push(7u32, GFP_KERNEL).unwrap();
    fail_after(0);
    assert!(v.push(8, GFP_KERNEL).is_err() && KVec::<u64>::with_capacity(1, GFP_KERNEL).is_err());
    assert!(KVec::<u64>::with_capacity(usize::MAX / 4, GFP_KERNEL).is_err());
    fail_never();
    assert!(v.reserve(usize::MAX, GFP_KERNEL).is_err());
    assert_eq!((*v).first(), Some(&7));
    drop(v);
    assert_eq!(live(), 0);
}

#[test]
fn draining_hands_out_some_and_drops_the_rest() {
    let drops = AtomicUsize::new(0);
    let mut v = KVVec::new();
    for i in 0..5 {
        v.push(Counted(&drops, i), GFP_KERNEL).unwrap();
    }
    let mut drain = v.drain_all();
    let first = drain.next().unwrap();
    drop(drain);
    assert_eq!((first.1, drops.load(Ordering::Relaxed), v.len()), (0, 4, 0));
    drop(first);
    drop(v);
    assert_eq!((live(), drops.load(Ordering::Relaxed)), (0, 5));
}

/// A value that contains a lock, as a registration does.
#[pinned_init::pin_data]
struct Shared<'a> {
    #[pin]
    body: Mutex<KVec<u64>>,
    counted: Counted<'a>,
}

/// Makes a value by `init`, in memory of its own.
fn arc<T, E>(init: impl pinned_init::PinInit<T, E>) -> Result<Arc<T>>
where
    Error: From<E>,
{
    Ok(UniqueArc::new_uninit(GFP_KERNEL)?.pin_init_with(init)?.into())
}

fn shared(drops: &AtomicUsize) -> Result<Arc<Shared<'_>>> {
    arc(pinned_init::pin_init!(Shared { body <- new_mutex!(KVec::new(), "body"), counted: Counted(drops, 1) }))
}

#[test]
fn the_last_arc_drops_the_value() {
    let drops = AtomicUsize::new(0);
    let first = shared(&drops).unwrap();
    let second = first.clone();
    first.body.lock().push(1, GFP_KERNEL).unwrap();
    drop(first);
    assert_eq!((second.counted.1, second.body.lock().len(), drops.load(Ordering::Relaxed)), (1, 1, 0));
    drop(second);
    assert_eq!((live(), drops.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn an_arc_without_memory_or_whose_value_fails_leaves_nothing() {
    let drops = AtomicUsize::new(0);
    fail_after(0);
    assert_eq!(shared(&drops).err(), Some(ENOMEM));
    fail_never();
    // The initialiser that was not run is dropped, together with what it held.
    let dropped = drops.load(Ordering::Relaxed);
    // SAFETY: It fails and has written nothing.
    let failing = unsafe { pinned_init::pin_init_from_closure::<u64, Error>(|_| Err(EBUSY)) };
    assert_eq!(arc(failing).err(), Some(EBUSY));
    assert_eq!((live(), drops.load(Ordering::Relaxed)), (0, dropped));
}

#[test]
fn an_arc_goes_through_c_and_comes_back() {
    let arc = arc(new_mutex!(5u64, "foreign")).unwrap();
    let kept = arc.clone();
    let ptr = arc.into_foreign();
    assert!(!ptr.is_null() && ptr.addr() % <Arc<Mutex<u64>> as ForeignOwnable>::FOREIGN_ALIGN == 0);
    // SAFETY: `ptr` came from `into_foreign()`, which is taken back below.
    *unsafe { Arc::<Mutex<u64>>::borrow(ptr) }.lock() += 1;
    assert_eq!(*kept.lock(), 6);
    drop(kept);
    // SAFETY: Once.
    let back = unsafe { Arc::<Mutex<u64>>::from_foreign(ptr) };
    assert_eq!((*back.lock(), live()), (6, 1));
    drop(back);
    assert_eq!(live(), 0);
}

#[test]
fn threads_share_an_arc_and_its_lock() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5000 };
    let arc = arc(new_mutex!(0u64, "threads")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let own = arc.clone();
                    *own.lock() += 1;
                }
            });
        }
    });
    assert_eq!(*arc.lock(), 3 * ROUNDS);
}

/// The last holder may be either thread. It sees all that the other wrote.
#[test]
fn either_thread_may_drop_the_last_arc() {
    for _ in 0..if cfg!(miri) { 4 } else { 500 } {
        let arc = arc(new_mutex!(KVec::<u64>::new(), "race")).unwrap();
        let other = arc.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                other.lock().push(1, GFP_KERNEL).unwrap();
                drop(other);
            });
            arc.lock().push(2, GFP_KERNEL).unwrap();
            drop(arc);
        });
    }
}

global_lock! {
    // SAFETY: Initialised by the only test that uses it.
    unsafe(uninit) static GLOBAL: Mutex<KVec<u64>> = KVec::new();
}

#[test]
fn a_global_lock_once_it_is_initialised() {
    // SAFETY: Once, before anything else.
    unsafe { GLOBAL.init() };
    GLOBAL.lock().push(3, GFP_KERNEL).unwrap();
    assert_eq!(**GLOBAL.lock(), [3]);
    *GLOBAL.lock() = KVec::new();
    assert_eq!(live(), 0);
}

static NUMBER: Atomic<u64> = Atomic::new(u64::MAX);
static FLAG: Atomic<bool> = Atomic::new(false);

#[test]
fn atomics_return_what_was_there() {
    assert_eq!((NUMBER.fetch_add(3, Relaxed), NUMBER.load(Relaxed)), (u64::MAX, 2));
    assert_eq!((NUMBER.fetch_sub(3, Release), NUMBER.load(Acquire)), (2, u64::MAX));
    assert_eq!((NUMBER.cmpxchg(6, 7, Relaxed), NUMBER.cmpxchg(u64::MAX, 7, Relaxed)), (Err(u64::MAX), Ok(u64::MAX)));
    NUMBER.store(0, Release);
    assert_eq!(NUMBER.load(Relaxed), 0);
    FLAG.store(true, Release);
    assert!(FLAG.load(Acquire));
}

/// What one thread writes before a release is visible to a thread that saw the release with an
/// acquire.
#[test]
fn release_and_acquire_order_what_lies_between() {
    let data = Atomic::<u64>::new(0);
    let ready = Atomic::<bool>::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            data.store(42, Relaxed);
            ready.store(true, Release);
        });
        while !ready.load(Acquire) {
            std::thread::yield_now();
        }
        assert_eq!(data.load(Relaxed), 42);
    });
}

#[test]
fn errors_are_errnos() {
    assert_eq!((EIO.to_errno(), ENOTSUPP.to_errno(), Error::from_errno(-12)), (-5, -524, ENOMEM));
    assert_eq!(Error::from(kernel::alloc::AllocError), ENOMEM);
    assert_eq!((to_result(3), to_result(-16)), (Ok(()), Err(EBUSY)));
    assert_eq!(from_result(|| Err::<c_int, _>(ENODEV)), -19);
    assert_eq!(from_result(|| Ok::<c_int, _>(4)), 4);
    assert_eq!(format!("{EFAULT:?}"), "Error(14)");
}

/// One test covers all lines, because there is only one log.
#[test]
fn lines_of_the_log() {
    take_log();
    let name = c"nv_mem\x01";
    pr_err!("client {} of {}: {:#x}, {}\n", name, 7u32, 255u64, true);
    pr_warn!("{}\n", "x".repeat(2000).as_str());
    assert_eq!(Error::from_errno(5), EINVAL);
    assert_eq!(Error::from_errno(-5000), EINVAL);
    let log = take_log();
    assert_eq!(log[0], "<3>test: client nv_mem\\x01 of 7: 0xff, true\n");
    assert!(log[1].starts_with("<4>test: xxx") && log[1].ends_with("x\n") && log[1].len() < 600, "{}", log[1]);
    assert_eq!(log[2], "<4>kernel_lite: attempted to create `Error` with out of range `errno`: 5\n");
    assert_eq!(log.len(), 4);
}

/// A guard stays in the thread that locked, and an `Arc` does not let other threads have what
/// belongs to one.
#[test]
fn what_may_cross_threads() {
    trait Ambiguous<A> {
        fn some() {}
    }
    impl<T: ?Sized> Ambiguous<()> for T {}
    struct IsSend;
    impl<T: ?Sized + Send> Ambiguous<IsSend> for T {}
    // If the type were `Send`, each of these lines would be ambiguous and not compile.
    <kernel::sync::MutexGuard<'_, u64> as Ambiguous<_>>::some();
    <Arc<Rc<u64>> as Ambiguous<_>>::some();
    <KVec<Rc<u64>> as Ambiguous<_>>::some();
    <Mutex<Rc<u64>> as Ambiguous<_>>::some();
}
