//! The scenarios.

use super::arc::{Arc, UniqueArc};
use super::pairs::{self, Pair, Reach};
use super::ready;
use crate::by_address;
use kernel::alloc::flags::GFP_KERNEL;
use loom::cell::UnsafeCell;
use loom::thread;

/// What one thread writes and another reads: loom looks whether the one is ordered before the other.
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

/// The last reference's end sees what all others did.
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

/// Who is asked and sees that module init is over reads what it wrote.
pub fn slots_are_written_before_ready() {
    by_address::begin();
    // Not in an `Arc` of loom's: that would order what is to be shown unordered.
    let slots: &Word = Box::leak(Box::new(Word::new()));
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

/// Who sees a pair's GPU sees its NIC and what is known of the two, also where that changes meanwhile.
pub fn a_pair_is_whole() {
    by_address::begin();
    pairs::begin(&pairs::KNOWN);
    let looks = thread::spawn(|| {
        if let Some(pair) = pairs::KNOWN.pair() {
            assert!(pair.nic == 7 && pair.reach != Reach::Unsupported, "half a pair");
        }
    });
    for reach in [Reach::Unasked, Reach::Supported] {
        pairs::remember(&pairs::KNOWN, Pair { gpu: 5, nic: 7, reach });
    }
    looks.join().unwrap();
}
