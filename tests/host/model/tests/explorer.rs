// SPDX-License-Identifier: GPL-2.0

//! Tests that the reduction loses nothing: small random programs end in the same states whether all
//! orders of their steps are run or only those that `explore` chooses.

use model::explore::{Exhaustive, Outcome};
use model::rt::{self, Rank};
use model::scenario::config;
use shuttle::Runner;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug)]
enum Action {
    Read(usize),
    Write(usize),
    /// Reads and writes under the lock of the same number.
    Locked(usize),
    /// Reads and writes under two locks, in this order, so that two tasks may block each other.
    Twice(usize, usize),
    /// Reads under a shared lock.
    Shared(usize),
}

const VARIABLES: u64 = 0x10_0000;
const LOCKS: u64 = 0x20_0000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn program(&mut self) -> Vec<Vec<Action>> {
        let tasks = 2 + self.below(2);
        let longest = if tasks == 2 { 4 } else { 3 };
        (0..tasks)
            .map(|_| {
                (0..1 + self.below(longest))
                    .map(|_| {
                        let (a, b) = (self.below(3) as usize, self.below(2) as usize);
                        match self.below(8) {
                            0 | 1 => Action::Read(a),
                            2 | 3 => Action::Write(a),
                            4 | 5 => Action::Locked(b),
                            6 => Action::Twice(b, 1 - b),
                            _ => Action::Shared(b),
                        }
                    })
                    .collect()
            })
            .collect()
    }
}

fn act(task: u64, step: u64, action: Action, values: &Mutex<Vec<u64>>, seen: &mut Vec<u64>) {
    let next = task * 100 + step;
    let lock = |l: usize| rt::lock(Rank::Leaf, LOCKS + l as u64, "lock");
    let update = |at: usize, seen: &mut Vec<u64>| {
        let mut values = values.lock().expect("one thread");
        seen.push(values[at]);
        values[at] = next;
    };
    match action {
        Action::Read(v) => {
            rt::touch(VARIABLES + v as u64, false, "read");
            seen.push(values.lock().expect("one thread")[v]);
        }
        Action::Write(v) => {
            rt::touch(VARIABLES + v as u64, true, "write");
            values.lock().expect("one thread")[v] = next;
        }
        Action::Locked(l) => {
            lock(l);
            update(3 + l, seen);
            rt::unlock(LOCKS + l as u64);
        }
        Action::Twice(a, b) => {
            lock(a);
            // A deadlock is an ending like any other here.
            rt::rt().me().hung = true;
            lock(b);
            rt::rt().me().hung = false;
            update(3 + a, seen);
            update(3 + b, seen);
            rt::unlock(LOCKS + b as u64);
            rt::unlock(LOCKS + a as u64);
        }
        Action::Shared(l) => {
            rt::lock_shared(Rank::Leaf, LOCKS + l as u64, "shared lock");
            seen.push(values.lock().expect("one thread")[3 + l]);
            rt::unlock_shared(LOCKS + l as u64);
        }
    }
}

/// Returns the endings of the program, and what the search reports about itself.
fn ends(program: &[Vec<Action>], plain: bool) -> (BTreeSet<String>, Outcome) {
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    let found = Arc::new(Mutex::new(BTreeSet::new()));
    let program = program.to_vec();
    let states = found.clone();
    Runner::new(Exhaustive::new(1_000_000, plain, outcome.clone()), config()).run(move || {
        let values = Arc::new(Mutex::new(vec![0u64; 5]));
        let seen = Arc::new(Mutex::new(vec![Vec::new(); program.len()]));
        for (task, actions) in program.iter().cloned().enumerate() {
            let (values, seen) = (values.clone(), seen.clone());
            rt::spawn("task", 0, move || {
                let mut mine = Vec::new();
                for (step, action) in actions.into_iter().enumerate() {
                    act(task as u64 + 1, step as u64, action, &values, &mut mine);
                }
                seen.lock().expect("one thread")[task] = mine;
            });
        }
        rt::join_all();
        states.lock().expect("one thread").insert(format!("{values:?} {seen:?}"));
    });
    let outcome = outcome.borrow().clone();
    assert!(outcome.exhausted, "{outcome:?}");
    let found = found.lock().expect("one thread").clone();
    (found, outcome)
}

#[test]
fn reduction_reaches_every_end() {
    let mut random = Random(0x5eed_1234_5678_9abc);
    let (mut all, mut reduced_runs, mut ends_seen, mut deadlocks) = (0, 0, 0, 0);
    for number in 0..400 {
        let program = random.program();
        let (plain, plain_outcome) = ends(&program, true);
        let (reduced, outcome) = ends(&program, false);
        assert_eq!(plain, reduced, "program {number}: {program:?}");
        assert_eq!(plain_outcome.hangs > 0, outcome.hangs > 0, "deadlocks of program {number}: {program:?}");
        all += plain_outcome.complete;
        reduced_runs += outcome.complete + outcome.pruned;
        ends_seen += reduced.len();
        deadlocks += usize::from(outcome.hangs > 0);
    }
    println!("400 programs, {all} orders, {reduced_runs} run, {ends_seen} ends, {deadlocks} programs can deadlock");
    assert!(deadlocks > 5 && reduced_runs * 2 < all, "the programs are too simple to show anything");
}
