// SPDX-License-Identifier: GPL-2.0

//! Tests that a hang of the core excuses only the tasks that wait for it, not a deadlock that
//! happens beside it.

use model::explore::{Exhaustive, Outcome};
use model::rt::{self, Rank};
use model::scenario::config;
use shuttle::Runner;
use std::cell::RefCell;
use std::rc::Rc;

const LEAKED: u64 = 0x30_0000;
const OUTER: u64 = 0x30_0001;
const LOCKS: [u64; 2] = [0x30_0002, 0x30_0003];

fn lock(id: u64) {
    rt::lock(Rank::Leaf, id, "lock");
}

/// Explores executions in which the core leaks a lock: one task waits for that lock, and another task
/// for what the first one holds. With `crossed`, two of our tasks may block each other as well; with
/// `forgotten`, one may wait for something that nobody does.
fn explore(crossed: bool, forgotten: bool) -> Outcome {
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    Runner::new(Exhaustive::new(100_000, false, outcome.clone()), config()).run(move || {
        lock(LEAKED);
        rt::leak(LEAKED);
        rt::spawn("waits for the core", 0, || {
            lock(OUTER);
            lock(LEAKED);
        });
        rt::spawn("waits for who waits", 0, || {
            lock(OUTER);
            rt::unlock(OUTER);
        });
        if crossed {
            for [a, b] in [LOCKS, [LOCKS[1], LOCKS[0]]] {
                rt::spawn("ours", 0, move || {
                    lock(a);
                    lock(b);
                    rt::unlock(b);
                    rt::unlock(a);
                });
            }
        }
        if forgotten {
            let flag = rt::new_flag();
            rt::spawn("ours", 0, move || rt::wait_flag(flag, "wait for nobody"));
        }
        rt::join_all();
    });
    let found = outcome.borrow().clone();
    found
}

#[test]
fn who_waits_for_the_core_is_excused() {
    let found = explore(false, false);
    assert!(found.exhausted && found.violation.is_none(), "{found:?}");
    assert!(found.hangs > 0, "{found:?}");
}

#[test]
fn a_deadlock_of_ours_is_found_beside_a_hang_of_the_core() {
    for (crossed, forgotten) in [(true, false), (false, true)] {
        let found = explore(crossed, forgotten);
        let says = found.violation.unwrap_or_default();
        assert!(says.starts_with("deadlock"), "not reported: {crossed} {forgotten}: {says}");
    }
}
