// SPDX-License-Identifier: GPL-2.0

//! The runtime below the module and the model: tasks, scheduling points, locks, atomics, memory.
//!
//! A task announces what it is about to do ([`Op`]) and gives way. The scheduler (see
//! [`crate::explore`]) picks among the tasks whose operation is possible now; so a task that cannot
//! go on is never run, and when no task can, that is a deadlock. Everything between two
//! announcements of a task is one step.

use crate::order;
use kernel::backend::Touch;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_void, CStr};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// The object of a step, by which the scheduler knows which steps may be swapped. Two steps are
/// independent if their objects differ, or if both only read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// The object's number. 0 stands for nothing shared.
    pub object: u64,
    pub writes: bool,
    pub want: Want,
    pub what: &'static str,
}

/// The condition under which a step is possible.
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
    PeerMutex,
    PutGate,
    RmApi,
    /// The invalidation lock of a registration, which a free callback holds over the core's hook.
    Invalidation,
    /// The mapping lock of a umem.
    Mapping,
    /// The state lock of a registration.
    State,
    /// The registry lock and the other static ones.
    Static,
    /// The core's own leaf locks.
    Leaf,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rank::PeerMutex => "the peer mutex",
            Rank::PutGate => "the put gate",
            Rank::RmApi => "the RM API lock",
            Rank::Invalidation => "an invalidation lock",
            Rank::Mapping => "a umem mapping lock",
            Rank::State => "a state lock",
            Rank::Static => "a static lock",
            Rank::Leaf => "a leaf lock of the core",
        })
    }
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
    /// The depth of calls into module text.
    pub text: usize,
    /// The process on whose behalf it runs.
    pub process: usize,
    /// Whether it runs the provider's free callback.
    pub in_callback: bool,
    /// Whether it reads /proc.
    pub reading: bool,
    pub preemptible: bool,
    /// The state and registry locks that it took, with the number of each acquisition.
    pub took: Vec<(u64, u64)>,
    /// The registration that it works on. Only the model uses this.
    pub umem: Option<usize>,
    /// Whether it hangs because of a known bug of the core.
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
            process,
            in_callback: false,
            reading: false,
            preemptible: true,
            took: Vec::new(),
            umem: None,
            hung: false,
        }
    }
}

/// The size of the module's heap in words.
const HEAP: usize = 16 << 20;
/// The value with which freed memory is filled.
const DEAD: u32 = 0xdead_dead;

pub struct Rt {
    epoch: u64,
    next_id: u64,
    pub tasks: Vec<Task>,
    locks: FxHashMap<u64, Lock>,
    pub flags: Vec<bool>,
    pub violation: Option<String>,
    pub deadlock: bool,
    /// The module's heap. It begins at the same address in each execution, and nothing is given out
    /// twice within one, so that a use of freed memory is noticed.
    heap: Vec<u64>,
    /// The places of [`STATICS`] that this thread knows.
    statics: FxHashSet<u64>,
    /// The addresses of the invalidation locks.
    invalidation_locks: FxHashSet<u64>,
    pub allocated: usize,
    pub allocations: usize,
    pub fail_allocation: Option<usize>,
    acquisitions: u64,
    /// Whether every atomic access is a step. Otherwise, relaxed counters that nobody reads are
    /// not.
    pub all_visible: bool,
    /// The atomics that were ever read, because they decide something.
    pub read: FxHashSet<u64>,
    pub read_grew: bool,
    /// The steps run so far, for the report.
    pub steps: Vec<(usize, Op)>,
    /// What this execution really did of the things that a random one may leave out.
    pub covered: BTreeSet<&'static str>,
    /// The lines that the module printed.
    pub printed: Vec<String>,
    /// The model's notes, each with its step.
    pub notes: Vec<(usize, String)>,
    pub verbose: bool,
    /// Whether the order of locks is ignored, and only its consequences count.
    pub any_order: bool,
    pub keep_prints: bool,
    pub current: usize,
}

thread_local! {
    static RT: UnsafeCell<Rt> = const { UnsafeCell::new(Rt::empty()) };
}

/// Returns the runtime. One thread of the operating system runs all tasks; no reference outlives a
/// scheduling point.
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
            flags: Vec::new(),
            violation: None,
            deadlock: false,
            heap: Vec::new(),
            statics: FxHashSet::with_hasher(FxBuildHasher),
            invalidation_locks: FxHashSet::with_hasher(FxBuildHasher),
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

    /// Begins a new execution, and frees what the last one left behind.
    pub fn begin(&mut self) {
        // All threads of the process share the module's statics, one execution at a time.
        static EPOCH: AtomicU64 = AtomicU64::new(0);
        self.epoch = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
        self.next_id = 1000;
        self.tasks.clear();
        self.tasks.push(Task::new("main".into(), 0));
        self.current = 0;
        self.tasks[0].started = true;
        self.locks.clear();
        self.flags.clear();
        self.violation = None;
        self.deadlock = false;
        self.invalidation_locks.clear();
        self.heap.clear();
        self.heap.reserve(HEAP);
        for kept in STATICS.lock().expect("no panic under it").iter() {
            // SAFETY: A static of the module, of this size; nobody runs any more.
            unsafe { kept.place.copy_from_nonoverlapping(kept.began.as_ptr(), kept.began.len()) };
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

    /// Returns a small number that was not given out before in this execution.
    pub fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub fn on_heap(&self, place: u64) -> bool {
        let heap = self.heap.as_ptr_range();
        (heap.start.addr() as u64..heap.end.addr() as u64).contains(&place)
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

    pub fn enabled(&self, task: usize) -> bool {
        match self.tasks[task].pending.want {
            Want::Go => true,
            Want::Exclusive(id) => self.free_for(id, true),
            Want::Shared(id) => self.free_for(id, false),
            Want::Flag(flag) => self.flags[flag],
            Want::Others => self.tasks.iter().enumerate().all(|(i, t)| i == task || t.finished),
            Want::Never => false,
        }
    }

    /// Returns whether only one task is left, so that there is nothing to schedule.
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

/// Ends the execution with a violation, and never returns. No destructor runs, and no frame is
/// unwound.
pub fn fail(text: String) -> ! {
    let r = rt();
    if r.violation.is_none() {
        let name = r.me().name.clone();
        r.violation = Some(format!("{name}: {text}"));
    }
    if r.alone() {
        // There may be no scheduler, as in a test that runs one task.
        eprintln!("VIOLATION {}", r.violation.as_deref().unwrap_or_default());
    }
    halt("violation")
}

/// Stops the task for good.
pub fn halt(what: &'static str) -> ! {
    let r = rt();
    let me = r.current;
    r.tasks[me].pending = Op { object: 0, writes: false, want: Want::Never, what };
    loop {
        shuttle_engine::runtime::thread::switch();
    }
}

/// Keeps a sentence for the report of a failure.
pub fn note(text: impl FnOnce() -> String) {
    let r = rt();
    if r.verbose {
        let name = r.me().name.clone();
        let at = r.steps.len();
        let text = text();
        r.notes.push((at, format!("{name}: {text}")));
    }
}

/// Notes that this execution did something that a random search must do now and then.
pub fn cover(what: &'static str) {
    rt().covered.insert(what);
}

/// Starts a task. The first task calls this, before it waits.
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
        fail(format!("takes the {what} twice"));
    }
    if r.any_order {
        return;
    }
    if let Some(&(held, _)) = r.me().held.iter().find(|h| h.0 > rank && Some(h.0) != tolerate) {
        fail(format!(
            "takes the {what} while holding {held}: the order is peer mutex, put gate, RM API lock, invalidation lock, \
              umem mapping lock, state lock, registry lock"
        ));
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
    order::unlocked(me, id, true);
}

/// Leaves the lock taken for good, by nobody who could give it back.
pub fn leak(id: u64) {
    let r = rt();
    r.me().held.retain(|h| h.1 != id);
    r.locks.entry(id).or_default().owner = Some(usize::MAX);
}

/// Returns whether only a bug of the core keeps everybody from going on: each remaining task hangs
/// in the core, waits for a lock that the core leaked, or waits for a task of which this is true. A
/// task that waits for a flag is never excused, because nobody knows who would have set it.
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
    order::unlocked(me, id, false);
}

/// Makes a step on a shared object of the model.
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

// The functions behind kernel-lite (kernel-lite/helpers.h, kernel::backend).

/// A static of the module, and its initial value.
struct Kept {
    place: *mut u8,
    began: Box<[u8]>,
}

// SAFETY: One thread at a time runs the module.
unsafe impl Send for Kept {}

/// The statics that were ever touched. Each execution begins with their initial values.
static STATICS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Notes a place before the module uses it. If it is a static that nobody knows yet, nobody has
/// used it.
fn keep(place: *mut u8, size: usize) {
    let r = rt();
    let object = place.addr() as u64;
    if r.on_heap(object) || !r.statics.insert(object) {
        return;
    }
    let mut statics = STATICS.lock().expect("no panic under it");
    if statics.iter().all(|kept| kept.place != place) {
        // SAFETY: As the caller says, it is there, and initialised.
        let began = unsafe { std::slice::from_raw_parts(place, size) }.into();
        statics.push(Kept { place, began });
    }
}

/// Checks that a place of the heap is not in freed memory.
fn check(place: *const u32, what: &str) {
    // SAFETY: The heap's memory outlives the execution.
    if rt().on_heap(place.addr() as u64) && unsafe { place.read() } == DEAD {
        fail(format!("use after free: {what}"));
    }
}

#[no_mangle]
extern "C" fn kl_touch(place: *mut c_void, size: usize, touched: Touch, relaxed: bool) {
    const COUNT: &str = "an object whose last reference was dropped";
    let object = place.addr() as u64;
    match touched {
        Touch::Load | Touch::Store | Touch::Update => {
            keep(place.cast(), size);
            atomic(object, touched, relaxed);
        }
        Touch::Get | Touch::Put => {
            check(place.cast(), COUNT);
            let put = touched == Touch::Put;
            touch(object, put, if put { "drop a reference" } else { "take a reference" });
            check(place.cast(), COUNT);
        }
        Touch::Use => check(place.cast(), COUNT),
        Touch::Begin => keep(place.cast(), size),
    }
}

fn atomic(object: u64, touched: Touch, relaxed: bool) {
    let r = rt();
    let alone = r.alone();
    // The module fills whole tables while it is loaded.
    if touched == Touch::Store && alone {
        return;
    }
    if touched == Touch::Load && r.read.insert(object) {
        r.read_grew = true;
    }
    // A lone task cannot give way to others, and at the end of each execution all counters are
    // read.
    if !alone && (r.all_visible || !relaxed || r.read.contains(&object)) {
        let what = match touched {
            Touch::Load => "load",
            Touch::Store => "store",
            _ => "update",
        };
        touch(object, touched != Touch::Load, what);
    }
}

#[no_mangle]
extern "C" fn kl_kmalloc(bytes: usize) -> *mut c_void {
    let r = rt();
    if r.me().in_callback {
        fail(format!("allocates {bytes} bytes in the free callback"));
    }
    if let Some(&(rank, _)) = r.me().held.iter().find(|h| h.0 >= Rank::State) {
        fail(format!("allocates {bytes} bytes, which may sleep and reclaim, under {rank}"));
    }
    r.allocations += 1;
    if r.fail_allocation == Some(r.allocations) {
        return std::ptr::null_mut();
    }
    r.allocated += bytes;
    r.heap.push(bytes as u64);
    let at = r.heap.len();
    r.heap.resize(at + bytes.div_ceil(size_of::<u64>()), 0);
    assert!(r.heap.len() <= HEAP, "the model's heap is too small, and would have to move");
    r.heap[at..].as_mut_ptr().cast()
}

#[no_mangle]
extern "C" fn kl_kvmalloc(bytes: usize) -> *mut c_void {
    kl_kmalloc(bytes)
}

#[no_mangle]
extern "C" fn kl_kfree(memory: *mut c_void) {
    // SAFETY: From `kl_kmalloc()`, which put the size in front; nobody uses it any more, or is
    // told.
    unsafe {
        let bytes = *memory.cast::<u64>().sub(1) as usize;
        std::slice::from_raw_parts_mut(memory.cast::<u32>(), bytes.div_ceil(size_of::<u32>())).fill(DEAD);
        rt().allocated -= bytes;
    }
}

#[no_mangle]
extern "C" fn kl_kvfree(memory: *mut c_void) {
    kl_kfree(memory);
}

/// Makes a mutex, which is the number of the execution.
#[no_mangle]
extern "C" fn kl_mutex_init(mutex: *mut u64, name: *const c_char, _class: *mut c_void) {
    let epoch = rt().epoch;
    // SAFETY: A C string, which lives as long as the module.
    if unsafe { CStr::from_ptr(name) }.to_bytes().ends_with(b"::invalidation") {
        rt().invalidation_locks.insert(mutex.addr() as u64);
    }
    // SAFETY: The caller's memory.
    if unsafe { mutex.replace(epoch) } == epoch {
        fail("initialises a lock twice".into());
    }
}

/// Takes the lock, and waits for it: a task that tries repeatedly until the lock is free behaves like
/// one that waits.
#[no_mangle]
extern "C" fn kl_mutex_trylock(mutex: *const u64) -> i32 {
    if rt().me().preemptible {
        fail("a reader may lose the CPU with a lock that a callback needs".into());
    }
    take(mutex);
    1
}

#[no_mangle]
extern "C" fn kl_mutex_lock(mutex: *const u64) {
    if rt().me().reading && rank(mutex.addr() as u64).0 != Rank::Static {
        fail("a reader of /proc waits for a lock that a callback needs".into());
    }
    take(mutex);
}

fn rank(id: u64) -> (Rank, &'static str) {
    if !rt().on_heap(id) {
        (Rank::Static, "registry lock or another static one")
    } else if rt().invalidation_locks.contains(&id) {
        (Rank::Invalidation, "invalidation lock")
    } else {
        (Rank::State, "state lock")
    }
}

fn take(mutex: *const u64) {
    const LOCK: &str = "a lock of an object that was dropped";
    check(mutex.cast(), LOCK);
    // SAFETY: The module's memory, which stays.
    if unsafe { *mutex } != rt().epoch {
        fail("takes a lock before its init()".into());
    }
    let id = mutex.addr() as u64;
    let (rank, what) = rank(id);
    lock(rank, id, what);
    check(mutex.cast(), LOCK);
    let r = rt();
    r.acquisitions += 1;
    let number = r.acquisitions;
    r.me().took.push((id, number));
}

#[no_mangle]
extern "C" fn kl_mutex_unlock(mutex: *const u64) {
    unlock(mutex.addr() as u64);
}

#[no_mangle]
extern "C" fn kl_print(_level: c_char, _prefix: *const c_char, text: *const u8, length: usize) {
    // SAFETY: The caller's text.
    let text = String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(text, length) });
    if rt().me().in_callback {
        fail(format!("prints in the free callback: {text}"));
    }
    note(|| format!("prints: {}", text.trim_end()));
    if rt().keep_prints {
        rt().printed.push(text.trim_end().into());
    }
}
