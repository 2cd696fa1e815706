// SPDX-License-Identifier: GPL-2.0

//! Safe faces of the functions of `shim.c` that need no more than a call.

use crate::ffi::raw;
use core::marker::PhantomData;

/// The CPU's page size in bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_page_size() }
}

/// Monotonic time in nanoseconds, never 0.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_now_ns() }
}

/// Nanoseconds since 1970.
pub(crate) fn real_ns() -> u64 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_real_ns() }
}

/// The CPU that the caller runs on, or ran on a moment ago.
pub(crate) fn cpu() -> u32 {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_cpu() }
}

/// The name of the task that the caller runs in, padded with zeroes.
pub(crate) fn current_comm() -> [u8; 16] {
    let mut comm = [0; 16];
    // SAFETY: The array is as long as the C side says.
    unsafe { raw::nvpm_current_comm(comm.as_mut_ptr()) };
    comm
}

/// Lets other tasks run in a long loop. May sleep: not under a spinlock, allowed under every lock of ours.
pub(crate) fn cond_resched() {
    // SAFETY: Called in process context only.
    unsafe { raw::nvpm_cond_resched() }
}

/// Lets other tasks run now and then in a loop over something of which there may be a million.
#[derive(Default)]
pub(crate) struct Breath(u32);

impl Breath {
    /// To be called once in each round. As [`cond_resched`].
    pub(crate) fn step(&mut self) {
        const ROUNDS: u32 = 1024;

        self.0 = self.0.wrapping_add(1);
        if self.0 & ROUNDS.wrapping_sub(1) == 0 {
            cond_resched();
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
    /// The process on whose behalf the caller runs; kernel threads are processes of their own.
    pub(crate) fn current() -> Self {
        let mut process = raw::nvpm_process::default();
        // SAFETY: The pointer is valid for writing.
        unsafe { raw::nvpm_current_process(&mut process) };
        Self { tgid: process.tgid, start_ns: process.start_ns }
    }

    /// The process number, in the initial namespace.
    pub(crate) fn tgid(&self) -> u32 {
        self.tgid
    }
}

/// A task, to be compared with others while it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task(u64);

impl Task {
    /// The task that runs this.
    pub(crate) fn current() -> Self {
        // SAFETY: No precondition.
        Self(unsafe { raw::nvpm_current_task() })
    }
}

/// A reference to this module; while one exists, rmmod is refused.
pub(crate) struct ModuleRef(());

impl ModuleRef {
    /// `None` once the module is being unloaded.
    pub(crate) fn get() -> Option<Self> {
        // SAFETY: No precondition.
        let got = unsafe { raw::nvpm_module_get() } != 0;
        // Not `then_some()`: that would make a reference, and give it back, also where none was got.
        got.then(|| Self(()))
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: `get()` took the reference that is given back here.
        unsafe { raw::nvpm_module_put() };
    }
}

/// G, shared: held around every provider get, so that no put of a stale table can meet a new one at its address.
pub(crate) struct GShared(PhantomData<*mut ()>);

impl GShared {
    /// Sleeps. Allowed under P, never under R, M, L or the registry lock.
    pub(crate) fn lock() -> Self {
        // SAFETY: Process context; the lock order is the caller's duty as documented.
        unsafe { raw::nvpm_g_lock_shared() };
        Self(PhantomData)
    }
}

impl Drop for GShared {
    fn drop(&mut self) {
        // SAFETY: `lock()` took it in this task: the type is not `Send`.
        unsafe { raw::nvpm_g_unlock_shared() };
    }
}

/// G, exclusive: held around the put of a revocable pin.
pub(crate) struct GExclusive(PhantomData<*mut ()>);

impl GExclusive {
    /// Sleeps. Allowed under P, never under R, M, L or the registry lock.
    pub(crate) fn lock() -> Self {
        // SAFETY: Process context; the lock order is the caller's duty as documented.
        unsafe { raw::nvpm_g_lock_exclusive() };
        Self(PhantomData)
    }
}

impl Drop for GExclusive {
    fn drop(&mut self) {
        // SAFETY: `lock()` took it in this task: the type is not `Send`.
        unsafe { raw::nvpm_g_unlock_exclusive() };
    }
}

/// Waits, without limit, until `done` says so.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        // SAFETY: Process context.
        unsafe { raw::nvpm_sleep_ms(1) };
    }
}

/// Whether [`drain_callback_tails`] does what it says in this kernel.
pub(crate) fn can_drain_callback_tails() -> bool {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_can_drain_callback_tails() != 0 }
}

/// Waits until no task runs, or is preempted in, the last instructions of a free callback. Sleeps for long.
pub(crate) fn drain_callback_tails() {
    // SAFETY: Process context.
    unsafe { raw::nvpm_drain_callback_tails() };
}
