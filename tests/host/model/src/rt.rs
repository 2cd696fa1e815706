// SPDX-License-Identifier: GPL-2.0

//! What runs below the module and the model: tasks, scheduling points, locks, atomics, memory.
//!
//! A task announces what it is about to do ([`Op`]) and gives way. The scheduler (see [`crate::explore`]) picks among
//! the tasks whose operation is possible now; so a task that cannot go on is never run, and when no task can, that is a
//! deadlock. Everything between two announcements of a task is one step.

use kernel::rt::Touch;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a step is about, so that the scheduler knows which steps may be swapped. Two steps are independent if their
/// objects differ, or if both only read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// 0: nothing shared.
    pub object: u64,
    pub writes: bool,
    pub want: Want,
    pub what: &'static str,
}

/// When a step is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    Go,
    /// The lock is free for this task.
    Exclusive(u64),
    Shared(u64),
    /// The flag is set.
    Flag(usize),
    /// All other tasks have ended.
    Others,
    /// Somebody wrote the atomic since.
    Change(u64, u64),
    /// No task that was in module text at the beginning is still on its way without having slept.
    Drained,
    Never,
}

impl Op {
    pub const fn local(what: &'static str) -> Self {
        Self { object: 0, writes: false, want: Want::Go, what }
    }

    pub fn independent(&self, other: &Self) -> bool {
        self.object == 0 || self.object != other.object || (!self.writes && !other.writes)
    }
}

/// Locks in the order in which they may be taken (docs/rules.md).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    P,
    G,
    R,
    /// One per registration, held by a free callback over the core's hook.
    Invalidation,
    /// The per-client lock of the 4.9 core, and mapping_lock.
    M,
    /// One per registration.
    L,
    /// The registry's and the other static ones.
    Global,
    /// The core's own leaf locks.
    Leaf,
}

#[derive(Default)]
struct Lock {
    owner: Option<usize>,
    readers: usize,
}

pub struct Task {
    pub name: String,
    pub pending: Op,
    pub finished: bool,
    pub started: bool,
    pub held: Vec<(Rank, u64)>,
    /// How deep in module text.
    pub text: usize,
    /// Not yet slept since `Drained` was first waited for.
    pub undrained: bool,
    loaded: Option<(u64, u64)>,
    /// Process on whose behalf it runs.
    pub process: usize,
    /// Running the provider's free callback.
    pub in_callback: bool,
    /// L and registry locks taken, with the number of the acquisition.
    pub took: Vec<(u64, u64)>,
    /// The registration that it works on, for the model.
    pub umem: Option<usize>,
    /// Hangs for a known bug of the core.
    pub hung: bool,
}

impl Task {
    fn new(name: String, process: usize) -> Self {
        Self {
            name,
            pending: Op::local("start"),
            finished: false,
            started: false,
            held: Vec::new(),
            text: 0,
            undrained: false,
            loaded: None,
            process,
            in_callback: false,
            took: Vec::new(),
            umem: None,
            hung: false,
        }
    }
}

type Retired = (*mut u8, unsafe extern "C" fn(*mut u8));

pub struct Rt {
    epoch: u64,
    next_id: u64,
    pub tasks: Vec<Task>,
    locks: FxHashMap<u64, Lock>,
    versions: FxHashMap<u64, u64>,
    pub flags: Vec<bool>,
    pub violation: Option<String>,
    pub deadlock: bool,
    retired: Vec<Retired>,
    pub allocated: isize,
    pub allocations: usize,
    pub fail_allocation: Option<usize>,
    acquisitions: u64,
    /// Every atomic access is a step; otherwise relaxed counters that nobody reads are not.
    pub all_visible: bool,
    /// Atomics that were ever read: they decide something.
    pub read: FxHashSet<u64>,
    pub read_grew: bool,
    /// Steps run so far, for the report.
    pub steps: Vec<(usize, Op)>,
    /// What this execution really did, of what a random one may leave out.
    pub covered: BTreeSet<&'static str>,
    /// Lines that the module printed.
    pub printed: Vec<String>,
    /// Words of the model, at the step they were said.
    pub notes: Vec<(usize, String)>,
    pub verbose: bool,
    /// The order of locks is not judged: only what comes of it.
    pub any_order: bool,
    pub keep_prints: bool,
    pub current: usize,
}

thread_local! {
    static RT: UnsafeCell<Rt> = const { UnsafeCell::new(Rt::empty()) };
}

/// The runtime. One thread of the operating system runs all tasks; no reference outlives a scheduling point.
#[allow(clippy::mut_from_ref)]
pub fn rt() -> &'static mut Rt {
    // SAFETY: Single-threaded, and never kept over a switch.
    RT.with(|rt| unsafe { &mut *rt.get() })
}

impl Rt {
    const fn empty() -> Self {
        Self {
            epoch: 0,
            next_id: 1000,
            tasks: Vec::new(),
            locks: FxHashMap::with_hasher(FxBuildHasher),
            versions: FxHashMap::with_hasher(FxBuildHasher),
            flags: Vec::new(),
            violation: None,
            deadlock: false,
            retired: Vec::new(),
            allocated: 0,
            allocations: 0,
            fail_allocation: None,
            acquisitions: 0,
            all_visible: false,
            read: FxHashSet::with_hasher(FxBuildHasher),
            read_grew: false,
            steps: Vec::new(),
            covered: BTreeSet::new(),
            printed: Vec::new(),
            notes: Vec::new(),
            verbose: false,
            any_order: false,
            keep_prints: false,
            current: 0,
        }
    }

    /// A new execution begins; what the last one left behind is freed.
    pub fn begin(&mut self) {
        // Statics of the module are shared by all threads of the process, one execution at a time.
        static EPOCH: AtomicU64 = AtomicU64::new(0);
        self.epoch = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
        self.next_id = 1000;
        self.tasks.clear();
        self.tasks.push(Task::new("main".into(), 0));
        self.current = 0;
        self.tasks[0].started = true;
        self.locks.clear();
        self.versions.clear();
        self.flags.clear();
        self.violation = None;
        self.deadlock = false;
        for (memory, free) in self.retired.drain(..) {
            // SAFETY: Handed over by `rt_retire()`; nobody runs any more.
            unsafe { free(memory) };
        }
        self.allocated = 0;
        self.allocations = 0;
        self.fail_allocation = None;
        self.acquisitions = 0;
        self.steps.clear();
        self.covered.clear();
        self.notes.clear();
        self.printed.clear();
    }

    pub fn me(&mut self) -> &mut Task {
        &mut self.tasks[self.current]
    }

    fn free_for(&self, id: u64, exclusive: bool) -> bool {
        match self.locks.get(&id) {
            None => true,
            Some(lock) => lock.owner.is_none() && (!exclusive || lock.readers == 0),
        }
    }

    /// How often an atomic was changed.
    fn version(&self, atomic: u64) -> u64 {
        self.versions.get(&atomic).copied().unwrap_or_default()
    }

    pub fn enabled(&self, task: usize) -> bool {
        match self.tasks[task].pending.want {
            Want::Go => true,
            Want::Exclusive(id) => self.free_for(id, true),
            Want::Shared(id) => self.free_for(id, false),
            Want::Flag(flag) => self.flags[flag],
            Want::Others => self.tasks.iter().enumerate().all(|(i, t)| i == task || t.finished),
            Want::Change(atomic, seen) => self.version(atomic) != seen,
            Want::Drained => self.tasks.iter().enumerate().all(|(i, t)| i == task || t.finished || !t.undrained),
            Want::Never => false,
        }
    }

    /// Tasks that sleep now, or have left module text, do not hold up the draining of callback tails.
    pub fn note_sleepers(&mut self) {
        for i in 0..self.tasks.len() {
            if self.tasks[i].undrained && (self.tasks[i].text == 0 || !self.enabled(i)) {
                self.tasks[i].undrained = false;
            }
        }
    }

    /// Only one task is left: nothing to schedule.
    fn alone(&self) -> bool {
        self.tasks.iter().enumerate().all(|(i, t)| i == self.current || t.finished)
    }
}

/// Announces a step and waits for the turn.
pub fn point(op: Op) {
    let r = rt();
    let me = r.current;
    r.tasks[me].pending = op;
    if r.alone() && r.enabled(me) {
        r.tasks[me].pending = Op::local("run");
        return;
    }
    shuttle_engine::runtime::thread::switch();
    let r = rt();
    r.current = me;
    r.tasks[me].pending = Op::local("run");
}

/// The execution is lost: says why, and never returns. No destructor runs, no frame is unwound.
pub fn fail(text: String) -> ! {
    let r = rt();
    if r.violation.is_none() {
        let name = r.me().name.clone();
        r.violation = Some(format!("{name}: {text}"));
    }
    if r.alone() {
        // No scheduler need be there: a test that runs one task.
        eprintln!("VIOLATION {}", r.violation.as_deref().unwrap_or_default());
    }
    halt("violation")
}

/// Never goes on.
pub fn halt(what: &'static str) -> ! {
    let r = rt();
    let me = r.current;
    r.tasks[me].pending = Op { object: 0, writes: false, want: Want::Never, what };
    loop {
        shuttle_engine::runtime::thread::switch();
    }
}

/// Remembers a sentence for the report of a failure.
pub fn note(text: impl FnOnce() -> String) {
    let r = rt();
    if r.verbose {
        let name = r.me().name.clone();
        let at = r.steps.len();
        let text = text();
        r.notes.push((at, format!("{name}: {text}")));
    }
}

/// This execution did what a random search must do now and then.
pub fn cover(what: &'static str) {
    rt().covered.insert(what);
}

/// Starts a task. Called by the first one, before it waits.
pub fn spawn(name: &str, process: usize, body: impl FnOnce() + Send + 'static) {
    let r = rt();
    let me = r.tasks.len();
    r.tasks.push(Task::new(name.into(), process));
    let parent = r.current;
    let _detached = shuttle::thread::spawn(move || {
        let r = rt();
        r.current = me;
        r.tasks[me].started = true;
        r.tasks[me].pending = Op::local("run");
        body();
        let r = rt();
        r.tasks[me].finished = true;
        r.tasks[me].text = 0;
        r.tasks[me].pending = Op::local("end");
    });
    rt().current = parent;
}

/// Waits until all other tasks have ended.
pub fn join_all() {
    point(Op { object: 0, writes: false, want: Want::Others, what: "wait for all tasks" });
}

fn check_order(rank: Rank, id: u64, what: &'static str, tolerate: Option<Rank>) {
    let r = rt();
    if r.me().held.iter().any(|h| h.1 == id) {
        fail(format!("takes {what} ({rank:?}) twice"));
    }
    if r.any_order {
        return;
    }
    if let Some(&(held, _)) = r.me().held.iter().find(|h| h.0 > rank && Some(h.0) != tolerate) {
        fail(format!("takes {what} ({rank:?}) while holding {held:?}: the order is P < G < R < invalidation < M < L < registry"));
    }
}

pub fn lock_as(rank: Rank, id: u64, what: &'static str, tolerate: Option<Rank>) {
    check_order(rank, id, what, tolerate);
    point(Op { object: id, writes: true, want: Want::Exclusive(id), what });
    let r = rt();
    let me = r.current;
    let lock = r.locks.entry(id).or_default();
    debug_assert!(lock.owner.is_none() && lock.readers == 0);
    lock.owner = Some(me);
    r.me().held.push((rank, id));
}

pub fn lock(rank: Rank, id: u64, what: &'static str) {
    lock_as(rank, id, what, None);
}

pub fn unlock(id: u64) {
    let r = rt();
    let me = r.current;
    let lock = r.locks.entry(id).or_default();
    if lock.owner != Some(me) {
        fail("unlocks what it does not hold".into());
    }
    lock.owner = None;
    r.me().held.retain(|h| h.1 != id);
    crate::explore::unlocked(me, id, true);
}

/// The lock stays taken for good, by nobody who could give it back.
pub fn leak(id: u64) {
    let r = rt();
    r.me().held.retain(|h| h.1 != id);
    r.locks.entry(id).or_default().owner = Some(usize::MAX);
}

/// Whether a bug of the core, and nothing else, keeps everybody from going on: each task that is left hangs in the
/// core, waits for a lock that the core leaked, or for a task of which this is true. One that waits for a flag or for a
/// change of an atomic is never excused: nobody knows who would have made it.
pub fn only_core_hangs() -> bool {
    let r = rt();
    let leaked = |id| r.locks.get(&id).is_some_and(|l| l.owner == Some(usize::MAX));
    let left: Vec<usize> = (0..r.tasks.len()).filter(|&t| !r.tasks[t].finished).collect();
    let mut excused = BTreeSet::new();
    loop {
        let before = excused.len();
        for &task in &left {
            let because = match r.tasks[task].pending.want {
                Want::Exclusive(id) | Want::Shared(id) => {
                    leaked(id) || excused.iter().any(|&t: &usize| r.tasks[t].held.iter().any(|h| h.1 == id))
                }
                Want::Others => excused.iter().any(|&t| t != task),
                _ => false,
            };
            if r.tasks[task].hung || because {
                excused.insert(task);
            }
        }
        if excused.len() == before {
            return excused.len() == left.len();
        }
    }
}

pub fn owns(id: u64) -> bool {
    let r = rt();
    let me = r.current;
    r.locks.get(&id).is_some_and(|l| l.owner == Some(me))
}

pub fn lock_shared(rank: Rank, id: u64, what: &'static str) {
    check_order(rank, id, what, None);
    point(Op { object: id, writes: false, want: Want::Shared(id), what });
    let r = rt();
    r.locks.entry(id).or_default().readers += 1;
    r.me().held.push((rank, id));
}

pub fn unlock_shared(id: u64) {
    let r = rt();
    r.locks.entry(id).or_default().readers -= 1;
    let me = r.current;
    r.me().held.retain(|h| h.1 != id);
    crate::explore::unlocked(me, id, false);
}

/// A step on a shared object of the model.
pub fn touch(object: u64, writes: bool, what: &'static str) {
    point(Op { object, writes, want: Want::Go, what });
}

pub fn new_flag() -> usize {
    let r = rt();
    r.flags.push(false);
    r.flags.len() - 1
}

pub fn wait_flag(flag: usize, what: &'static str) {
    point(Op { object: 0, writes: false, want: Want::Flag(flag), what });
}

/// Sleeps until what this task read last is written.
pub fn sleep_for_change() {
    let r = rt();
    match r.me().loaded {
        Some((atomic, seen)) => {
            point(Op { object: 0, writes: false, want: Want::Change(atomic, seen), what: "sleep" });
        }
        None => fail("sleeps without having looked at anything".into()),
    }
}

/// Waits as synchronize_rcu_tasks() does: only for tasks that are on their way, not for those that sleep.
pub fn drain_tails() {
    let r = rt();
    let me = r.current;
    for (i, task) in r.tasks.iter_mut().enumerate() {
        task.undrained = i != me && !task.finished && task.text != 0;
    }
    r.note_sleepers();
    point(Op { object: 0, writes: false, want: Want::Drained, what: "synchronize_rcu_tasks" });
}

// What the stand-in for the kernel crate asks for (kernel::rt).

#[no_mangle]
extern "C" fn rt_epoch() -> u64 {
    rt().epoch
}

#[no_mangle]
extern "C" fn rt_new_id() -> u64 {
    let r = rt();
    r.next_id += 1;
    r.next_id
}

#[no_mangle]
extern "C" fn rt_lock(id: u64, name: *const u8, len: usize) {
    // SAFETY: UTF-8, by the contract in `kernel::rt`.
    let name = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(name, len)) };
    let (rank, what) = match name.rsplit("::").next() {
        Some("") => (Rank::Global, "a static lock"),
        Some("invalidation") => (Rank::Invalidation, "the invalidation lock"),
        _ => (Rank::L, "L"),
    };
    lock(rank, id, what);
    let r = rt();
    r.acquisitions += 1;
    let number = r.acquisitions;
    r.me().took.push((id, number));
}

#[no_mangle]
extern "C" fn rt_unlock(id: u64) {
    unlock(id);
}

#[no_mangle]
extern "C" fn rt_atomic(address: usize, touched: Touch, relaxed: bool) {
    let object = address as u64;
    let r = rt();
    let alone = r.alone();
    // Nobody is there to wait for a change; the module fills whole tables while it is loaded.
    if touched == Touch::Store && alone {
        return;
    }
    if touched == Touch::Load && r.read.insert(object) {
        r.read_grew = true;
    }
    // Nobody else can take a turn either, and at the end of each execution all counters are read.
    if !alone && (r.all_visible || !relaxed || r.read.contains(&object)) {
        let what = match touched {
            Touch::Load => "load",
            Touch::Store => "store",
            Touch::Update => "update",
        };
        touch(object, touched != Touch::Load, what);
    }
    let r = rt();
    if touched == Touch::Load {
        let seen = r.version(object);
        r.me().loaded = Some((object, seen));
    } else {
        *r.versions.entry(object).or_default() += 1;
    }
}

#[no_mangle]
extern "C" fn rt_count(id: u64, drop: bool) {
    touch(id, drop, if drop { "drop a reference" } else { "take a reference" });
}

#[no_mangle]
extern "C" fn rt_may_allocate(bytes: usize) -> bool {
    let r = rt();
    if r.me().in_callback {
        fail(format!("allocates {bytes} bytes in the free callback"));
    }
    if let Some(&(rank, _)) = r.me().held.iter().find(|h| h.0 >= Rank::L) {
        fail(format!("allocates {bytes} bytes, which may sleep and reclaim, under {rank:?}"));
    }
    r.allocations += 1;
    r.fail_allocation != Some(r.allocations)
}

#[no_mangle]
extern "C" fn rt_allocated(bytes: isize) {
    rt().allocated += bytes;
}

#[no_mangle]
extern "C" fn rt_retire(memory: *mut u8, free: unsafe extern "C" fn(*mut u8)) {
    rt().retired.push((memory, free));
}

#[no_mangle]
extern "C" fn rt_violation(text: *const u8, len: usize) {
    // SAFETY: UTF-8, by the contract in `kernel::rt`.
    let text = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(text, len)) };
    fail(text.into());
}

#[no_mangle]
extern "C" fn rt_print(_level: std::ffi::c_char, text: *const u8, len: usize) {
    // SAFETY: UTF-8, by the contract in `kernel::rt`.
    let text = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(text, len)) };
    if rt().me().in_callback {
        fail(format!("prints in the free callback: {text}"));
    }
    note(|| format!("prints: {}", text.trim_end()));
    if rt().keep_prints {
        rt().printed.push(text.trim_end().into());
    }
}
