// SPDX-License-Identifier: GPL-2.0

//! Safe functions over those of `shim.h` that need no more than a call, and the words in which the
//! provider (nvidia.ko) speaks of pins and processes.

use crate::ffi::raw;
use core::marker::PhantomData;
use core::num::NonZero;

/// An errno that the kernel crate does not have.
pub(crate) const EOPNOTSUPP: i32 = -95;

/// The two ways to pin that the provider offers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The memory outlives its free until the put. There is no callback.
    Persistent,
    /// The provider calls back when the memory is freed, and takes the pin back by itself.
    Revocable,
}

impl Kind {
    /// Returns its name, for people and programs.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Revocable => "revocable",
        }
    }
}

/// A process as the provider tells them apart: by thread group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    tgid: u32,
    start_ns: u64,
}

impl Process {
    /// Returns the process on whose behalf the caller runs. A kernel thread is a process of its own.
    pub(crate) fn current() -> Self {
        let mut process = raw::nvpm_process::default();
        // SAFETY: The pointer is valid for writing.
        unsafe { raw::nvpm_current_process(&mut process) };
        Self { tgid: process.tgid, start_ns: process.start_ns }
    }

    /// Returns the proof that the caller runs for this process; `None` if it runs for another.
    pub(crate) fn is_current(&self) -> Option<OwnProcess> {
        // INVARIANT: Just compared, and a task does not change its process.
        (*self == Self::current()).then_some(OwnProcess(PhantomData))
    }

    /// Returns the process number, in the initial namespace.
    pub(crate) fn tgid(&self) -> u32 {
        self.tgid
    }
}

/// Proof that the caller runs for a certain process: the one whose [`Process::is_current`] gave this.
///
/// # Invariants
///
/// It does not leave the task that asked: the type is not `Send`.
pub(crate) struct OwnProcess(PhantomData<*mut ()>);

/// A task, to be compared with others while it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task(NonZero<u64>);

impl Task {
    /// Returns the task that runs this. There always is one.
    pub(crate) fn current() -> Option<Self> {
        // SAFETY: No precondition.
        NonZero::new(unsafe { raw::nvpm_current_task() }).map(Self)
    }
}

/// Returns the CPU's page size in bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_page_size() }
}

/// Returns the monotonic time in nanoseconds, never 0.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_now_ns() }
}

/// Returns the nanoseconds since 1970.
pub(crate) fn real_ns() -> u64 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_real_ns() }
}

/// Returns the name of the task that the caller runs in, padded with zeroes.
pub(crate) fn current_comm() -> [u8; 16] {
    let mut comm = [0; 16];
    // SAFETY: The array is as long as the C side says.
    unsafe { raw::nvpm_current_comm(comm.as_mut_ptr()) };
    comm
}

/// Lets other tasks run in a long loop. May sleep: not under a spinlock, allowed under every lock
/// of ours.
pub(crate) fn cond_resched() {
    // SAFETY: Called in process context only.
    unsafe { raw::nvpm_cond_resched() }
}

/// Keeps the caller's task on its CPU until this is dropped.
struct NotPreempted(PhantomData<*mut ()>);

impl NotPreempted {
    fn new() -> Self {
        // SAFETY: Dropping the answer undoes it, in this task: the type is not `Send`.
        unsafe { raw::nvpm_preempt_disable() };
        Self(PhantomData)
    }
}

impl Drop for NotPreempted {
    fn drop(&mut self) {
        // SAFETY: `new()` did the opposite.
        unsafe { raw::nvpm_preempt_enable() };
    }
}

/// Reads under a lock that free callbacks need, for readers of a file. `try_lock` tries to take it, and
/// `read` must neither sleep nor drop what may sleep.
///
/// A reader may have a low priority or hardly any CPU time (`cpu.max`). If it lost the CPU while it has
/// the lock, a callback would wait for it, and with that every GPU of the machine. So it keeps the CPU
/// while it has the lock, and does not queue for it.
pub(crate) fn read_shortly<G, R>(try_lock: impl Fn() -> Option<G>, read: impl FnOnce(G) -> R) -> R {
    loop {
        let on_cpu = NotPreempted::new();
        if let Some(guard) = try_lock() {
            // The guard goes first.
            return read(guard);
        }
        drop(on_cpu);
        // SAFETY: Process context, and preemptible again.
        unsafe { raw::nvpm_pause() };
    }
}

/// Returns whether the caller's task was killed, and only has to notice.
pub(crate) fn is_killed() -> bool {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_is_killed() != 0 }
}

/// Lets other tasks run now and then in a loop that may have a million rounds: counts down those
/// that are left.
pub(crate) struct Resched(usize);

impl Resched {
    /// Rounds between two calls of [`cond_resched`].
    pub(crate) const ROUNDS: usize = 1024;

    /// Does what [`cond_resched`] does, now and then. Call it once in each round.
    pub(crate) fn step(&mut self) {
        self.0 = self.0.wrapping_sub(1);
        if self.0 == 0 {
            *self = Self::default();
            cond_resched();
        }
    }
}

impl Default for Resched {
    fn default() -> Self {
        Self(Self::ROUNDS)
    }
}

/// A reference to this module. While one exists, rmmod is refused.
pub(crate) struct ModuleRef(());

impl ModuleRef {
    /// Takes a reference to this module. Returns `None` once the module is being unloaded.
    pub(crate) fn get() -> Option<Self> {
        // SAFETY: No precondition.
        let got = unsafe { raw::nvpm_module_get() } != 0;
        // Not `then_some()`: that makes a reference, and drops it again where none was got.
        got.then(|| Self(()))
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: `get()` took the reference that is given back here.
        unsafe { raw::nvpm_module_put() };
    }
}

/// The put gate, shared: held around the provider's get of a revocable pin, so that no put of a
/// stale table can meet a new table at the same address.
pub(crate) struct PutGateShared(PhantomData<*mut ()>);

impl PutGateShared {
    /// Takes the lock. Sleeps. Never under the RM API lock, a stop lock ([`crate::pin`]), a state lock or
    /// the registry lock.
    pub(crate) fn lock() -> Self {
        // SAFETY: Process context; the lock order is the caller's duty as documented.
        unsafe { raw::nvpm_put_gate_lock_shared() };
        Self(PhantomData)
    }
}

impl Drop for PutGateShared {
    fn drop(&mut self) {
        // SAFETY: `lock()` took it in this task: the type is not `Send`.
        unsafe { raw::nvpm_put_gate_unlock_shared() };
    }
}

/// The put gate, exclusive: held around the put of a revocable pin.
pub(crate) struct PutGateExclusive(PhantomData<*mut ()>);

impl PutGateExclusive {
    /// Takes the lock, where [`PutGateShared::lock`] may be called.
    pub(crate) fn lock() -> Self {
        // SAFETY: Process context; the lock order is the caller's duty as documented.
        unsafe { raw::nvpm_put_gate_lock_exclusive() };
        Self(PhantomData)
    }
}

impl Drop for PutGateExclusive {
    fn drop(&mut self) {
        // SAFETY: `lock()` took it in this task: the type is not `Send`.
        unsafe { raw::nvpm_put_gate_unlock_exclusive() };
    }
}
