// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Tests the word that counts leases (`gpumr/src/word.rs`) under loom: every order of steps, and
//! every value that its memory orderings let a load see. shuttle, which runs the whole cache, knows
//! only one memory order.

mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
}

#[path = "../../gpumr/src/word.rs"]
#[allow(dead_code, reason = "a part is tested")]
mod word;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::Arc;
use loom::thread::spawn;
use word::{End, Word};

/// A registration. loom notices a read that is not ordered before its end.
struct Entry {
    word: Word,
    region: UnsafeCell<bool>,
}

// SAFETY: loom checks what the test does with `region`.
unsafe impl Sync for Entry {}
// SAFETY: As for Sync.
unsafe impl Send for Entry {}

impl Entry {
    /// Returns a registration with the lease of its maker.
    fn new() -> Arc<Self> {
        Arc::new(Self { word: Word::new(), region: UnsafeCell::new(true) })
    }

    fn finish(&self) {
        // SAFETY: loom checks that nobody else uses it.
        let lives = self.region.with_mut(|lives| unsafe { std::mem::replace(&mut *lives, false) });
        assert!(lives, "TWICE: ended twice");
    }

    fn reads(&self) {
        // SAFETY: loom checks that nobody writes.
        assert!(self.region.with(|lives| unsafe { *lives }), "IN USE: ended under a lease");
    }

    fn ends(&self) {
        self.reads();
        if let End::Removed = self.word.end(|| ()) {
            self.finish();
        }
    }

    fn over(&self) -> bool {
        // SAFETY: loom checks that nobody writes.
        !self.region.with(|lives| unsafe { *lives })
    }
}

#[test]
fn it_ends_once_and_after_its_last_lease() {
    loom::model(|| {
        let entry = Entry::new();
        let user = {
            let entry = entry.clone();
            spawn(move || {
                if entry.word.hit().is_some() {
                    entry.ends();
                }
            })
        };
        let maker = {
            let entry = entry.clone();
            spawn(move || entry.ends())
        };
        if entry.word.remove().1 {
            entry.finish();
        }
        user.join().unwrap();
        maker.join().unwrap();
        assert!(entry.over(), "LEAK: never ended");
    });
}

/// A registration that is in the way ends at once, or its last lease reports that it was awaited.
#[test]
fn who_needs_room_is_not_forgotten() {
    loom::model(|| {
        let entry = Entry::new();
        let user = {
            let entry = entry.clone();
            spawn(move || {
                entry.reads();
                match entry.word.end(|| ()) {
                    End::Nothing => false,
                    End::Awaited(()) => true,
                    End::Removed => panic!("TWICE: whoever removes what nobody uses ends it"),
                }
            })
        };
        let removed = entry.word.remove_or_await().is_some();
        if removed {
            entry.finish();
        }
        let told = user.join().unwrap();
        assert_eq!(told, !removed, "LIMIT: somebody waits, and nobody makes room");
    });
}

/// A hit that begins after a removal was made known fails.
#[test]
fn what_is_removed_is_not_hit() {
    loom::model(|| {
        let entry = Entry::new();
        let freed = Arc::new(AtomicBool::new(false));
        let user = {
            let (entry, freed) = (entry.clone(), freed.clone());
            spawn(move || {
                let known = freed.load(Ordering::Acquire);
                let hit = entry.word.hit().is_some();
                assert!(!(known && hit), "STALE: a hit after the free");
            })
        };
        let _ = entry.word.remove();
        freed.store(true, Ordering::Release);
        user.join().unwrap();
    });
}
