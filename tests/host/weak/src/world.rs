// SPDX-License-Identifier: GPL-2.0

//! The scenarios.

use super::arc::{Arc, UniqueArc};
use super::counts::{orphans, Counter};
use super::pairs::{self, Pair, Reach};
use super::ready;
use crate::by_address;
use kernel::alloc::flags::GFP_KERNEL;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, Ordering};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;

/// A word that one thread writes and another reads. loom checks that the one is ordered before the
/// other.
struct Word(UnsafeCell<u64>);

// SAFETY: loom finds accesses that race.
unsafe impl Sync for Word {}
// SAFETY: As above.
unsafe impl Send for Word {}

impl Word {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom looks whether somebody writes meanwhile.
        self.0.with(|value| unsafe { value.read() })
    }

    fn write(&self, value: u64) {
        // SAFETY: loom looks whether somebody reads meanwhile, or without being ordered before.
        self.0.with_mut(|place| unsafe { place.write(value) });
    }
}

/// Locks as the kernel does: what one holder wrote comes before what a later one writes, even for
/// threads that do not take the lock (po-unlock-lock-po of tools/memory-model). C11 does not
/// promise that, but a fence does.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    let guard = lock.lock().expect("no panic under it");
    fence(Ordering::Release);
    guard
}

/// Returns a value that threads of one execution share, without ordering them.
fn shared<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Checks that whoever drops the last reference sees what all others did.
pub fn last_reference() {
    struct Payload(Word);
    impl Drop for Payload {
        fn drop(&mut self) {
            assert_eq!(self.0.read(), 7);
        }
    }
    let room = UniqueArc::new_uninit(GFP_KERNEL).unwrap_or_else(|error| panic!("{error:?}"));
    let Ok(made) = room.pin_init_with(Payload(Word::new()));
    let first = Arc::from(made);
    let second = first.clone();
    let writer = thread::spawn(move || second.0.write(7));
    let reader = thread::spawn(move || drop(first));
    writer.join().unwrap();
    reader.join().unwrap();
}

/// Checks that a callback which sees that module init is over reads what init wrote.
pub fn slots_are_written_before_ready() {
    by_address::begin();
    let slots = shared(Word::new());
    assert!(!ready::seen());
    let asked = thread::spawn(|| {
        if ready::seen() {
            assert_eq!(slots.read(), 1);
        }
    });
    slots.write(1);
    ready::publish();
    asked.join().unwrap();
}

/// Checks that the free callback may read the slots without looking at `READY`: it finds a
/// registration under the registry lock, where a thread that saw `READY` has entered it.
pub fn a_callback_reads_the_slots() {
    by_address::begin();
    let (slots, registry) = (shared(Word::new()), shared(Mutex::new(false)));
    assert!(!ready::seen());
    let asked = thread::spawn(|| {
        if ready::seen() {
            *locked(registry) = true;
        }
    });
    let callback = thread::spawn(|| {
        if *locked(registry) {
            assert_eq!(slots.read(), 1);
        }
    });
    slots.write(1);
    ready::publish();
    asked.join().unwrap();
    callback.join().unwrap();
}

/// Checks that a reader that reads the ends first finds no end without its beginning, although
/// another task than the beginner made that end.
pub fn no_end_without_a_beginning() {
    by_address::begin();
    let (pins, unpins) = (shared(Counter::new()), shared(Counter::new()));
    assert_eq!((pins.value(), unpins.value()), (0, 0));
    let state = shared(Mutex::new(0));
    let reader = thread::spawn(|| {
        let ended = unpins.value();
        assert!(pins.value() >= ended, "an end without a beginning");
    });
    let other = thread::spawn(|| {
        let mut live = locked(state);
        if *live == 1 {
            *live = 0;
            unpins.add(1);
        }
    });
    {
        let mut live = locked(state);
        *live = 1;
        pins.add(1);
    }
    other.join().unwrap();
    reader.join().unwrap();
}

/// Checks that the longest of two calls is kept.
pub fn the_longest_stays() {
    by_address::begin();
    let longest = shared(Counter::new());
    assert_eq!(longest.value(), 0);
    let other = thread::spawn(|| longest.raise(7));
    longest.raise(5);
    other.join().unwrap();
    assert_eq!(longest.value(), 7, "a longer one was forgotten");
}

/// Checks that the count of orphans is never below zero, and is zero when all have ended.
pub fn orphans_are_counted() {
    by_address::begin();
    assert_eq!(orphans::now(), 0);
    let one = || {
        orphans::up();
        assert!(orphans::now() <= 2, "an orphan is counted wrong");
        orphans::down();
    };
    let other = thread::spawn(one);
    one();
    other.join().unwrap();
    assert_eq!(orphans::now(), 0, "an orphan is counted wrong");
}

/// Checks that a thread that was told of an orphan finds it, although reading the count takes no lock.
pub fn an_orphan_is_found() {
    told_of_an_orphan(Ordering::Release);
}

/// Shows that a thread that was not told may miss the orphan, because nothing else orders its read.
pub fn an_orphan_is_missed() {
    told_of_an_orphan(Ordering::Relaxed);
}

fn told_of_an_orphan(tells: Ordering) {
    by_address::begin();
    assert_eq!(orphans::now(), 0);
    let (list, told) = (shared(Mutex::new(0)), shared(loom::sync::atomic::AtomicBool::new(false)));
    let child = thread::spawn(move || {
        *locked(list) += 1;
        orphans::up();
        told.store(true, tells);
    });
    if told.load(Ordering::Acquire) {
        assert_ne!(orphans::now(), 0, "an orphan was missed");
        *locked(list) -= 1;
        orphans::down();
    }
    child.join().unwrap();
}

/// Checks that a thread that sees a pair's GPU also sees its NIC and what is known about the two, even
/// if that changes meanwhile.
pub fn a_pair_is_whole() {
    by_address::begin();
    pairs::begin(&pairs::KNOWN);
    let looks = thread::spawn(|| {
        if let Some(pair) = pairs::KNOWN.pair() {
            assert!(pair.device == 7 && pair.reach != Reach::Unsupported, "half a pair");
        }
    });
    for reach in [Reach::Unasked, Reach::Supported] {
        pairs::remember(&pairs::KNOWN, Pair { gpu: 5, device: 7, reach });
    }
    looks.join().unwrap();
}
