// SPDX-License-Identifier: GPL-2.0

//! Keeps which step of the execution under way came before which, as clocks of tasks. The scheduler
//! asks which steps might have come in another order.

use rustc_hash::FxHashMap;
use std::cell::RefCell;

pub(crate) type Clock = Vec<usize>;

pub(crate) fn join(a: &mut Clock, b: &Clock) {
    if a.len() < b.len() {
        a.resize(b.len(), 0);
    }
    for (x, y) in a.iter_mut().zip(b) {
        *x = (*x).max(*y);
    }
}

/// The state of one object in the execution under way.
#[derive(Default)]
pub(crate) struct Object {
    /// The last step that wrote it, and the steps that read it since.
    pub(crate) write: Option<usize>,
    pub(crate) reads: Vec<usize>,
    /// The joined clocks of the writes, and of the reads since.
    pub(crate) write_clock: Clock,
    pub(crate) read_clock: Clock,
}

/// The happens-before order of the execution under way.
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) clocks: Vec<Clock>,
    pub(crate) objects: FxHashMap<u64, Object>,
    /// The clock of each step.
    pub(crate) steps: Vec<Clock>,
}

/// Returns whether the step with this number, by `task`, comes before whatever has `clock`.
pub(crate) fn before(step: usize, task: usize, clock: &Clock) -> bool {
    clock.get(task).copied().unwrap_or(0) > step
}

thread_local! {
    pub(crate) static ORDER: RefCell<Order> = RefCell::new(Order::default());
}

/// Orders the next holder of the lock after what its last holder did.
pub(crate) fn unlocked(task: usize, id: u64, exclusive: bool) {
    ORDER.with(|order| {
        let order = &mut *order.borrow_mut();
        if let (Some(clock), Some(object)) = (order.clocks.get(task), order.objects.get_mut(&id)) {
            join(if exclusive { &mut object.write_clock } else { &mut object.read_clock }, clock);
        }
    });
}
