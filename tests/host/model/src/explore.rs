// SPDX-License-Identifier: GPL-2.0

//! The schedulers: exhaustive with partial-order reduction, and filters for shuttle's random ones.
//!
//! Exhaustive means: of all orders of steps that differ only by swapping independent neighbours
//! (see [`crate::rt::Op::independent`]) at least one is run. This is dynamic partial-order
//! reduction with source sets (Abdulla, Aronis, Jonsson, Sagonas, 2014) and sleep sets, without any
//! bound on preemptions. `tests/explorer.rs` compares it with a plain enumeration of all orders.

use crate::order::{before, join, Clock, Order, ORDER};
use crate::rt::{rt, Op, Want};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A choice on the path that is being explored.
struct Node {
    enabled: Vec<(usize, Op)>,
    chosen: usize,
    backtrack: u64,
    done: u64,
    sleep: Vec<(usize, Op)>,
}

/// The result of an exploration.
#[derive(Default, Clone, Debug)]
pub struct Outcome {
    /// The number of executions that ran to their end.
    pub complete: usize,
    /// The number of executions cut short because all that could follow was run before.
    pub pruned: usize,
    /// The number of executions that ended in a hang which a known bug of the core makes
    /// unavoidable.
    pub hangs: usize,
    pub longest: usize,
    /// The number of executions in which each thing of [`crate::rt::cover`] was done.
    pub covered: BTreeMap<&'static str, usize>,
    /// The violation, with the steps that led there.
    pub violation: Option<String>,
    /// Whether everything was explored, not just as much as was asked for.
    pub exhausted: bool,
}

/// Returns the steps of the execution that just ended, as text.
fn story() -> String {
    let r = rt();
    let mut text = String::new();
    for (i, (task, op)) in r.steps.iter().enumerate() {
        for (_, note) in r.notes.iter().filter(|n| n.0 == i) {
            text += &format!("          {note}\n");
        }
        if op.object != 0 || op.want != Want::Go {
            text += &format!("    {i:4}  {}: {} [{:x}]\n", r.tasks[*task].name, op.what, op.object);
        }
    }
    for (_, note) in r.notes.iter().filter(|n| n.0 >= r.steps.len()) {
        text += &format!("          {note}\n");
    }
    for task in r.tasks.iter().filter(|t| !t.finished) {
        text += &format!("          at the end {} wants: {} and holds {:?}\n", task.name, task.pending.what, task.held);
    }
    text
}

/// Judges the execution that just ended.
fn judge(outcome: &mut Outcome) {
    let r = rt();
    outcome.longest = outcome.longest.max(r.steps.len());
    if let Some(violation) = &r.violation {
        outcome.violation = Some(format!("{violation}\n{}", story()));
    } else if r.deadlock {
        if crate::rt::only_core_hangs() {
            outcome.hangs += 1;
        } else {
            outcome.violation = Some(format!("deadlock\n{}", story()));
        }
    } else {
        for what in &r.covered {
            *outcome.covered.entry(what).or_default() += 1;
        }
    }
}

/// The exhaustive scheduler, which the head of this file describes.
pub struct Exhaustive {
    nodes: Vec<Node>,
    depth: usize,
    running: bool,
    pruned: bool,
    limit: usize,
    outcome: Rc<RefCell<Outcome>>,
    /// Whether to run every order, without reduction. This serves only to check the reduction.
    plain: bool,
}

impl Exhaustive {
    pub fn new(limit: usize, plain: bool, outcome: Rc<RefCell<Outcome>>) -> Self {
        Self { nodes: Vec::new(), depth: 0, running: false, pruned: false, limit, outcome, plain }
    }

    /// Ends the execution under way. Returns `true` if there is another to be run.
    fn settle(&mut self) -> bool {
        let r = rt();
        let outcome = self.outcome.clone();
        let mut outcome = outcome.borrow_mut();
        if self.running {
            self.running = false;
            // Tasks that are stuck could race, too.
            for task in 0..r.tasks.len() {
                if !r.tasks[task].finished && r.tasks[task].started {
                    let op = r.tasks[task].pending;
                    self.races(task, &op);
                }
            }
            judge(&mut outcome);
            if self.pruned {
                outcome.pruned += 1;
            } else {
                outcome.complete += 1;
            }
        }
        if outcome.violation.is_some() || outcome.complete + outcome.pruned >= self.limit {
            return false;
        }
        if r.read_grew {
            // An atomic turned out to decide something, which was not known in what was explored
            // before.
            r.read_grew = false;
            self.nodes.clear();
            let longest = outcome.longest;
            *outcome = Outcome { longest, ..Outcome::default() };
            return true;
        }
        if outcome.complete + outcome.pruned == 0 {
            return true;
        }
        // Go back to the last choice that is not exhausted.
        while let Some(node) = self.nodes.last_mut() {
            node.done |= 1 << node.chosen;
            let asleep: u64 = node.sleep.iter().map(|s| 1u64 << s.0).sum();
            let open = node.backtrack & !node.done & !asleep;
            if open != 0 {
                node.chosen = open.trailing_zeros() as usize;
                return true;
            }
            self.nodes.pop();
        }
        outcome.exhausted = true;
        false
    }

    /// Finds earlier steps that conflict with `op` of `task` and are not ordered before it, so that
    /// `op` could come first. Makes sure that one of the first steps of such an order is tried
    /// (source sets of Abdulla and others, 2014).
    fn races(&mut self, task: usize, op: &Op) {
        if op.object == 0 || self.plain {
            return;
        }
        let nodes = &mut self.nodes;
        let depth = self.depth;
        ORDER.with(|order| {
            let order = order.borrow();
            let Some(object) = order.objects.get(&op.object) else { return };
            let mut clock = order.clocks.get(task).cloned().unwrap_or_default();
            let reads = if op.writes { &object.reads[..] } else { &[] };
            let racing: Vec<usize> = object
                .write
                .iter()
                .chain(reads)
                .copied()
                .filter(|&step| nodes[step].chosen != task && !before(step, nodes[step].chosen, &clock))
                .collect();
            join(&mut clock, &object.write_clock);
            if op.writes {
                join(&mut clock, &object.read_clock);
            }
            for race in racing {
                // Find who can begin the steps since then that do not depend on the racing one,
                // followed by ours.
                let by = nodes[race].chosen;
                let kept: Vec<usize> = (race + 1..depth).filter(|&k| !before(race, by, &order.steps[k])).collect();
                let mut first = 0u64;
                let mut seen = 0u64;
                for (at, &k) in kept.iter().enumerate() {
                    let who = nodes[k].chosen;
                    let earlier = |&g: &usize| before(g, nodes[g].chosen, &order.steps[k]);
                    if seen & (1 << who) == 0 && !kept[..at].iter().any(earlier) {
                        first |= 1 << who;
                    }
                    seen |= 1 << who;
                }
                if seen & (1 << task) == 0 && !kept.iter().any(|&g| before(g, nodes[g].chosen, &clock)) {
                    first |= 1 << task;
                }
                let node = &mut nodes[race];
                let enabled: u64 = node.enabled.iter().map(|e| 1u64 << e.0).sum();
                if node.backtrack & first == 0 {
                    match first & enabled {
                        0 => node.backtrack |= enabled,
                        able => node.backtrack |= able & able.wrapping_neg(),
                    }
                }
            }
        });
    }

    /// Records the step that is about to run.
    fn execute(&mut self, task: usize, op: &Op) {
        self.races(task, op);
        let step = self.depth;
        ORDER.with(|order| {
            let order = &mut *order.borrow_mut();
            if order.clocks.len() <= task {
                order.clocks.resize(task + 1, Clock::new());
            }
            let clock = &mut order.clocks[task];
            if clock.len() <= task {
                clock.resize(task + 1, 0);
            }
            clock[task] = step + 1;
            let object = order.objects.entry(op.object).or_default();
            join(clock, &object.write_clock);
            if op.writes {
                join(clock, &object.read_clock);
                object.write = Some(step);
                object.reads.clear();
                object.write_clock = clock.clone();
                object.read_clock.clear();
            } else {
                object.reads.push(step);
                join(&mut object.read_clock, clock);
            }
            order.steps.push(clock.clone());
        });
    }
}

/// Returns the tasks that can take their step now.
fn enabled(runnable: &[&Task]) -> Vec<(usize, Op)> {
    let r = rt();
    runnable
        .iter()
        .map(|task| usize::from(task.id()))
        .filter(|&task| task < r.tasks.len() && (r.tasks[task].finished || r.enabled(task)))
        .map(|task| (task, r.tasks[task].pending))
        .collect()
}

fn book(task: usize) {
    let r = rt();
    let op = r.tasks[task].pending;
    r.steps.push((task, op));
}

impl Scheduler for Exhaustive {
    fn new_execution(&mut self) -> Option<Schedule> {
        if !self.settle() {
            return None;
        }
        self.depth = 0;
        self.pruned = false;
        self.running = true;
        ORDER.with(|order| *order.borrow_mut() = Order::default());
        rt().begin();
        Some(Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, _: bool) -> Option<TaskId> {
        let r = rt();
        if r.violation.is_some() {
            return None;
        }
        let enabled = enabled(runnable);
        if enabled.is_empty() {
            r.deadlock = true;
            return None;
        }
        // A step that concerns nothing shared may run at once.
        if let Some(&(task, _)) = enabled.iter().find(|e| e.1.object == 0) {
            book(task);
            return Some(task.into());
        }
        if self.depth == self.nodes.len() {
            let sleep = self.sleepers();
            let awake = |task: usize| !sleep.iter().any(|s| s.0 == task);
            let current = current.map(usize::from);
            let first = enabled
                .iter()
                .find(|e| Some(e.0) == current && awake(e.0))
                .or_else(|| enabled.iter().find(|e| awake(e.0)));
            let Some(&(chosen, _)) = first else {
                self.pruned = true;
                return None;
            };
            let backtrack = if self.plain { enabled.iter().map(|e| 1u64 << e.0).sum() } else { 1 << chosen };
            self.nodes.push(Node { enabled, chosen, backtrack, done: 0, sleep });
        }
        let chosen = self.nodes[self.depth].chosen;
        let op = rt().tasks[chosen].pending;
        self.execute(chosen, &op);
        self.depth += 1;
        book(chosen);
        Some(chosen.into())
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}

impl Exhaustive {
    /// Returns the tasks that need not run at the new choice, because their step was run before the
    /// last one, and swapping the two changes nothing.
    fn sleepers(&self) -> Vec<(usize, Op)> {
        let Some(last) = self.nodes.last().filter(|_| !self.plain) else {
            return Vec::new();
        };
        let Some(&(_, op)) = last.enabled.iter().find(|e| e.0 == last.chosen) else {
            return Vec::new();
        };
        let explored = last.enabled.iter().filter(|e| last.done & (1 << e.0) != 0);
        let mut sleep: Vec<(usize, Op)> = Vec::new();
        for candidate in last.sleep.iter().chain(explored) {
            if candidate.0 != last.chosen && candidate.1.independent(&op) && !sleep.iter().any(|s| s.0 == candidate.0) {
                sleep.push(*candidate);
            }
        }
        sleep
    }
}

/// Shows one of shuttle's schedulers only the tasks that can go on.
pub struct Filtered<S> {
    inner: S,
    running: bool,
    outcome: Rc<RefCell<Outcome>>,
}

impl<S: Scheduler> Filtered<S> {
    pub fn new(inner: S, outcome: Rc<RefCell<Outcome>>) -> Self {
        Self { inner, running: false, outcome }
    }
}

impl<S: Scheduler> Scheduler for Filtered<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        let mut outcome = self.outcome.borrow_mut();
        if self.running {
            judge(&mut outcome);
            outcome.complete += 1;
            self.running = false;
        }
        if outcome.violation.is_some() {
            return None;
        }
        let schedule = self.inner.new_execution()?;
        self.running = true;
        rt().begin();
        Some(schedule)
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yielding: bool) -> Option<TaskId> {
        let r = rt();
        if r.violation.is_some() {
            return None;
        }
        let able = enabled(runnable);
        let able: Vec<&Task> =
            runnable.iter().filter(|task| able.iter().any(|e| e.0 == usize::from(task.id()))).copied().collect();
        if able.is_empty() {
            r.deadlock = true;
            return None;
        }
        let chosen = self.inner.next_task(&able, current, yielding)?;
        book(usize::from(chosen));
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.inner.next_u64()
    }
}
