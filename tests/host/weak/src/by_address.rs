// SPDX-License-Identifier: GPL-2.0

//! Provides `from_ptr()` for loom's atomics, like `core`'s. Each execution begins with the static's
//! value.

pub use loom::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::Mutex;

loom::lazy_static! {
    static ref WORDS: Mutex<HashMap<usize, &'static loom::sync::atomic::AtomicU64>> = Mutex::new(HashMap::new());
}

/// Begins an execution. It must be called before the first thread is started: the thread that makes
/// the table is ordered before all others.
pub fn begin() {
    drop(WORDS.lock());
}

fn word(address: usize, first: u64) -> &'static loom::sync::atomic::AtomicU64 {
    let mut words = WORDS.lock().expect("no panic under it");
    // These are a few words per execution. loom's own state ends with the execution.
    words.entry(address).or_insert_with(|| Box::leak(Box::new(loom::sync::atomic::AtomicU64::new(first))))
}

macro_rules! atomic {
    ($name:ident, $type:ty, $to:expr, $from:expr) => {
        pub struct $name(&'static loom::sync::atomic::AtomicU64);

        impl $name {
            /// Returns the atomic behind a pointer.
            ///
            /// # Safety
            ///
            /// The pointer is valid, and to a static.
            pub unsafe fn from_ptr<'a>(ptr: *mut $type) -> &'a Self {
                // SAFETY: By this function's contract; nobody writes there, loom's word is written.
                let first = unsafe { *ptr };
                Box::leak(Box::new(Self(word(ptr.addr(), $to(first)))))
            }

            pub fn load(&self, order: Ordering) -> $type {
                $from(self.0.load(order))
            }

            pub fn store(&self, value: $type, order: Ordering) {
                self.0.store($to(value), order);
            }
        }
    };
}

atomic!(AtomicU64, u64, |v| v, |v| v);
atomic!(AtomicBool, bool, u64::from, |v| v != 0);

impl AtomicU64 {
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, order)
    }

    pub fn compare_exchange(&self, old: u64, new: u64, good: Ordering, bad: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, good, bad)
    }
}
