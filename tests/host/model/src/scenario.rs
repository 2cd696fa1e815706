// SPDX-License-Identifier: GPL-2.0

//! The scenarios: what the threads of one execution do.

use crate::explore::{Exhaustive, Filtered, Outcome};
use crate::gpu::{self, BAR};
use crate::rdma;
use crate::rt::{self, fail, rt, spawn};
use crate::world::{self, w, Alloc, Fault, Generation, Mode, Module, World, FAULTS, PAGE};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::cell::RefCell;
use std::rc::Rc;

/// The way in which the executions of a scenario are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Search {
    /// All executions. It is an error to reach the limit.
    All { limit: usize },
    /// This many executions with a random scheduler and as many with PCT, from this seed on.
    Random { seed: u64, executions: usize },
}

/// A scenario by name, in one generation of the core.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub generation: Generation,
    pub mode: Mode,
    pub fault: Option<Fault>,
    /// The number of places that the fault could hit and spares before it strikes.
    pub spared: usize,
    /// Whether an IOMMU translates for the NIC.
    pub iommu: bool,
    /// The number of the allocation after loading that fails.
    pub fail_allocation: Option<usize>,
    pub body: fn(&Scenario),
}

/// The user's address. It is not aligned, and the range reaches into a second GPU page.
pub const VA: u64 = 0x7f00_0000_0000;
const FIRST: u64 = VA + 0x3210;
const LEN: u64 = PAGE;

/// Allocates memory `number` of process `process`.
pub fn alloc(process: usize, number: u64) -> usize {
    let len = 4 * PAGE;
    let va = VA + (number << 32);
    w().gpu.allocs.push(Alloc { process, va, len, phys: BAR + number * 16 * PAGE, alive: true });
    w().gpu.allocs.len() - 1
}

/// Returns the address of the buffer that is registered of allocation `number`.
fn buffer(number: u64) -> u64 {
    FIRST + (number << 32)
}

fn register(number: u64) -> Result<usize, i32> {
    let result = rdma::register(buffer(number), LEN);
    rt::note(|| format!("registering gives {result:?}"));
    if let Err(errno) = result {
        // These are the errors that a user may see (rule 3), never an errno that has no name.
        if ![-4, -5, -12, -14, -16, -19, -22, -95].contains(&errno) {
            fail(format!("ibv_reg_mr fails with {errno}"));
        }
    }
    result
}

/// Registers, and deregisters if that worked.
fn register_deregister(number: u64) {
    if let Ok(umem) = register(number) {
        rdma::deregister(umem);
    }
}

/// Closes everything that is left, as the processes' exits do, and unloads the module.
pub fn finish() {
    rt::join_all();
    let open: Vec<usize> = (0..w().core.umems.len()).filter(|&u| w().core.umems[u].registered).collect();
    for umem in open {
        rt().me().process = w().core.umems[umem].process;
        rdma::deregister(umem);
    }
    world::check_known();
    for alloc in 0..w().gpu.allocs.len() {
        rt().me().process = w().gpu.allocs[alloc].process;
        gpu::free(alloc);
    }
    // The next call ends persistent pins that the provider could not put.
    rt().me().process = 1;
    for _ in 0..4 {
        let _ = rdma::register(1 << 20, 4096);
    }
    rt().me().process = 0;
    if !w().unloaded && rt().all_visible {
        world::check_counters();
    }
    if !w().unloaded && !world::rmmod() {
        fail(format!("rmmod is refused at the end: {} references", w().refs));
    }
    world::check_end();
}

fn load(scenario: &Scenario) {
    w().mode = scenario.mode;
    if w().insmod() != 0 {
        fail("insmod fails".into());
    }
    w().faults.extend(scenario.fault);
    w().spared = scenario.spared;
    w().iommu = scenario.iommu;
    if scenario.fault == Some(Fault::LeakedLock) {
        // It is leaked when there can be no mkey.
        w().faults.push(Fault::Mkey);
    }
    rt().fail_allocation = scenario.fail_allocation.map(|n| rt().allocations + n);
}

/// Runs `work` in that process before other tasks begin.
fn in_process<T>(process: usize, work: impl FnOnce() -> T) -> T {
    rt().me().process = process;
    let done = work();
    rt().me().process = 0;
    done
}

/// Frees the memory of two registrations: one buffer is being registered and the other one
/// deregistered meanwhile.
fn free_against_both(scenario: &Scenario) {
    load(scenario);
    let memory = alloc(1, 0);
    let second = in_process(1, || register(0));
    spawn("register", 1, || {
        let _ = register(0);
    });
    if let Ok(second) = second {
        spawn("deregister", 1, move || rdma::deregister(second));
    }
    spawn("free", 1, move || gpu::free(memory));
    finish();
}

/// Frees the memory of one registration at any time from its beginning to its end.
fn free_against_one(scenario: &Scenario) {
    load(scenario);
    let memory = alloc(1, 0);
    spawn("register", 1, || register_deregister(0));
    spawn("free", 1, move || gpu::free(memory));
    finish();
}

/// Unloads the module while a registration lives and dies.
fn unload(scenario: &Scenario) {
    load(scenario);
    let memory = alloc(1, 0);
    let live = in_process(1, || register(0));
    if let Ok(live) = live {
        spawn("deregister", 1, move || rdma::deregister(live));
    }
    spawn("free", 1, move || gpu::free(memory));
    spawn("rmmod", 0, || {
        let _ = world::rmmod();
    });
    finish();
}

/// Unloads the module while somebody registers.
fn unload_against_acquire(scenario: &Scenario) {
    load(scenario);
    alloc(1, 0);
    spawn("register", 1, || register_deregister(0));
    spawn("rmmod", 0, || {
        let _ = world::rmmod();
    });
    finish();
}

/// Deregisters in a foreign task: another process has the last file descriptor, or the NIC goes
/// away.
fn foreign(scenario: &Scenario) {
    load(scenario);
    let memory = alloc(1, 0);
    let live = in_process(1, || register(0));
    if let Ok(live) = live {
        spawn("foreign", 2, move || rdma::deregister(live));
    }
    spawn("owner", 1, || {
        let _ = register(0);
    });
    spawn("free", 1, move || gpu::free(memory));
    finish();
}

/// Frees twice at once: memory that is being registered, and memory of another process that is
/// registered.
fn two_callbacks(scenario: &Scenario) {
    load(scenario);
    let memory = [alloc(1, 0), alloc(2, 1)];
    rt().me().process = 2;
    let _ = register(1);
    rt().me().process = 0;
    spawn("register", 1, || register_deregister(0));
    spawn("free", 1, move || gpu::free(memory[0]));
    spawn("free too", 2, move || gpu::free(memory[1]));
    finish();
}

/// Registers, frees and allocates the same memory again, while a put is on its way.
fn reuse(scenario: &Scenario) {
    load(scenario);
    let memory = alloc(1, 0);
    alloc(1, 1);
    let live = in_process(1, || register(0));
    if let Ok(live) = live {
        spawn("deregister", 1, move || rdma::deregister(live));
    }
    spawn("free", 1, move || gpu::free(memory));
    spawn("register", 1, || {
        let _ = register(1);
    });
    finish();
}

/// Has a process deregister what another one has registered, which then registers once more. That
/// registration ends orphans under the peer mutex, so their number is bounded (rule 8).
fn many_orphans(scenario: &Scenario) {
    const ORPHANS: usize = 12;
    const BOUND: usize = 8;
    load(scenario);
    alloc(1, 0);
    rt().me().process = 1;
    let live: Vec<usize> = (0..ORPHANS).filter_map(|_| register(0).ok()).collect();
    rt().me().process = 2;
    for umem in live {
        rdma::deregister(umem);
    }
    rt().me().process = 1;
    let before = w().gpu.puts;
    let _ = register(0);
    let ended = w().gpu.puts - before;
    if ended > BOUND {
        fail(format!("a registration ends {ended} orphans while it holds the peer mutex"));
    }
    rt().me().process = 0;
    finish();
}

/// Registers one range over `allocations` of these pages, side by side and in no order, and the
/// same range a second time. Another process deregisters the first, while the owner registers the
/// second and the memory in the middle is freed.
fn several(scenario: &Scenario, allocations: &[u64]) {
    load(scenario);
    let mut at = VA;
    let mut memory = Vec::new();
    for (number, pages) in allocations.iter().enumerate() {
        let phys = BAR + (allocations.len() - number) as u64 * 16 * PAGE;
        w().gpu.allocs.push(Alloc { process: 1, va: at, len: pages * PAGE, phys, alive: true });
        memory.push(w().gpu.allocs.len() - 1);
        at += pages * PAGE;
    }
    let (from, len) = (VA + 0x3210, at - VA - 0x5432);
    let live = in_process(1, || rdma::register(from, len));
    if let Ok(live) = live {
        if w().core.umems[live].pins.len() == allocations.len() {
            rt::cover("all-pieces");
        }
        spawn("foreign", 2, move || rdma::deregister(live));
    }
    spawn("owner", 1, move || {
        if let Ok(umem) = rdma::register(from, len) {
            rdma::deregister(umem);
        }
    });
    spawn("free", 1, move || gpu::free(memory[1]));
    finish();
}

fn two_pieces(scenario: &Scenario) {
    several(scenario, &[2, 2]);
}

fn three_pieces(scenario: &Scenario) {
    several(scenario, &[1, 1, 1]);
}

/// A scenario's name, and the function that runs it.
type Named = (&'static str, fn(&Scenario));

/// The scenarios that are small enough for all orders.
pub const EXHAUSTIVE: &[Named] = &[
    ("free-against-both", free_against_both),
    ("free-against-one", free_against_one),
    ("unload", unload),
    ("unload-against-acquire", unload_against_acquire),
    ("foreign", foreign),
    ("reuse", reuse),
    ("two-callbacks", two_callbacks),
    ("many-orphans", many_orphans),
    ("two-pieces", two_pieces),
    ("three-pieces", three_pieces),
];

// The scenarios that follow are too wide to be run in all orders.

fn choose(n: u64) -> u64 {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..n)
}

/// Chooses revocable pins most of the time, because without a callback there is little to explore.
fn choose_mode() -> Mode {
    [Mode::Persistent, Mode::Fallback].get(choose(8) as usize).copied().unwrap_or(Mode::Legacy)
}

unsafe extern "C" fn others_callback(_: *mut std::ffi::c_void) {}

/// Pins for another module in the same process, by the same API.
fn second_user(number: u64) {
    let mut table = std::ptr::null_mut();
    if gpu::get(false, false, VA + (number << 32), PAGE, &mut table, Some(others_callback), 1) == 0 {
        gpu::put(false, table);
        rt::cover("second-user");
    }
}

/// Runs three registrations of two processes, two frees, a foreign deregistration, another user,
/// faults and rmmod.
fn everything(scenario: &Scenario) {
    w().scattered = choose(2) == 0;
    // A callback for a pin that the provider reported as gone meets no module once that is
    // unloaded. That is a flaw of the provider that no client can prevent
    // (docs/safety.md#late-callback), so the two are not mixed.
    let unloads = choose(4) == 0;
    w().late_callbacks = !unloads && choose(8) == 0;
    load(&Scenario { mode: choose_mode(), ..*scenario });
    let memory = [alloc(1, 0), alloc(2, 1)];
    for _ in 0..choose(3) {
        w().faults.push(FAULTS[choose(FAULTS.len() as u64) as usize]);
    }
    if unloads {
        w().faults.retain(|f| *f != Fault::PutForgets);
    }
    if choose(64) == 0 {
        w().faults.extend([Fault::Mkey, Fault::LeakedLock]);
    }
    if choose(6) == 0 {
        rt().fail_allocation = Some(rt().allocations + 1 + choose(12) as usize);
    }
    let mut live = Vec::new();
    for number in 0..2 {
        if choose(2) == 0 {
            rt().me().process = 1 + number as usize;
            live.extend(register(number));
            rt().me().process = 0;
        }
    }
    for umem in live {
        let owner = w().core.umems[umem].process;
        match choose(4) {
            0 => {}
            1 => spawn("foreign", 3, move || rdma::deregister(umem)),
            _ => spawn("deregister", owner, move || rdma::deregister(umem)),
        }
    }
    spawn("first", 1, || register_deregister(0));
    if choose(2) == 0 {
        spawn("second", 2, || {
            let _ = register(1);
        });
    }
    if choose(2) == 0 {
        spawn("third", 1, || register_deregister(0));
    }
    spawn("free", 1, move || gpu::free(memory[0]));
    if choose(2) == 0 {
        spawn("free too", 2, move || gpu::free(memory[1]));
    }
    if choose(4) == 0 {
        spawn("other user", 1, || second_user(0));
    }
    if choose(4) == 0 {
        spawn("reader", 3, world::read_proc);
    }
    if unloads {
        spawn("rmmod", 0, || {
            if world::rmmod() {
                rt::cover("rmmod");
            }
        });
    }
    finish();
}

/// Removes the NIC with everything that is registered. Its device is gone afterwards.
fn nic_removal(scenario: &Scenario) {
    load(&Scenario { mode: choose_mode(), ..*scenario });
    let memory = [alloc(1, 0), alloc(2, 1)];
    let mut live = Vec::new();
    for number in [0, 0, 1] {
        rt().me().process = 1 + number as usize;
        live.extend(register(number));
        rt().me().process = 0;
    }
    spawn("NIC removal", 0, move || {
        let any = !live.is_empty();
        for umem in live {
            rdma::deregister(umem);
        }
        w().device_gone = true;
        if any {
            rt::cover("nic-removal");
        }
    });
    spawn("free", 1, move || gpu::free(memory[0]));
    spawn("free too", 2, move || gpu::free(memory[1]));
    finish();
}

/// The scenarios that are not small enough.
pub const RANDOM: &[Named] = &[("everything", everything), ("nic-removal", nic_removal)];

/// Returns shuttle's configuration.
pub fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 128 << 10;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(100_000);
    config.silence_warnings = true;
    config
}

fn drive(scheduler: impl Scheduler + 'static, scenario: Scenario, module: Module) {
    Runner::new(scheduler, config()).run(move || {
        World::create(module, scenario.generation);
        (scenario.body)(&scenario);
    });
}

/// Runs a scenario. Only one may run at a time per process, because statics of the module are
/// shared.
pub fn search(scenario: Scenario, how: Search, module: Module) -> Outcome {
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    match how {
        Search::All { limit } => {
            rt().all_visible = false;
            drive(Exhaustive::new(limit, false, outcome.clone()), scenario, module);
        }
        Search::Random { seed, executions } => {
            rt().all_visible = true;
            let half = executions / 2;
            let random = RandomScheduler::new_from_seed(seed, executions - half);
            drive(Filtered::new(random, outcome.clone()), scenario, module);
            if outcome.borrow().violation.is_none() && half != 0 {
                let pct = PctScheduler::new_from_seed(seed, 3, half);
                drive(Filtered::new(pct, outcome.clone()), scenario, module);
            }
        }
    }
    let found = outcome.borrow().clone();
    found
}
