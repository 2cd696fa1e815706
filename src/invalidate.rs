// SPDX-License-Identifier: GPL-2.0

//! The provider takes memory back: the free callback.
//!
//! The callback runs in any task, with the RM API lock and the GPU locks held. It must not wait for
//! a task that waits for the RM API lock. So it calls the core only when a mapping is live; then
//! the core answers once it has fenced the NIC (rules 6 and 9).

use crate::ffi::shim::{self, ModuleRef};
use crate::gpu::pin;
use crate::observe::stats;
use crate::observe::trace::{Event, Timer};
use crate::pin::registration::{Inner, Registration};
use crate::pin::registry;
use crate::pin::state::Revocation;
use core::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Callbacks that run now. Nobody acts on it, it is for `/proc` alone: Relaxed is enough. Each
/// callback adds before it subtracts, so the number is never negative.
static RUNNING: Atomic<u64> = Atomic::new(0);

/// When each of the callbacks began that run now, in nanoseconds; 0 for none. The provider holds the RM
/// API lock over a callback, so there is one at a time, as a rule: a callback that finds no place is
/// missing in `/proc` and nowhere else. For `/proc` alone: Relaxed is enough.
static STARTS: [Atomic<u64>; 4] = [const { Atomic::new(0) }; 4];

/// The place of a callback in [`STARTS`], until this is dropped.
struct Started {
    at_ns: u64,
    place: Option<&'static Atomic<u64>>,
}

impl Started {
    /// Notes that a callback begins.
    fn now() -> Self {
        let at_ns = shim::now_ns();
        let place = STARTS.iter().find(|start| start.cmpxchg(0, at_ns, Relaxed).is_ok());
        Self { at_ns, place }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Relaxed);
        }
    }
}

/// Returns when the oldest callback began that runs now, in nanoseconds; `None` while none runs. Takes no
/// lock.
pub(crate) fn oldest_ns() -> Option<u64> {
    STARTS.iter().map(|start| start.load(Relaxed)).filter(|start| *start != 0).min()
}

/// How many callbacks run now.
pub(crate) fn running() -> u64 {
    RUNNING.load(Relaxed)
}

/// The free callback's work. The provider calls it through the function in callback.c, which gives
/// back a module reference with its last instruction if this answers 1.
///
/// `data` is the ticket that was given to the provider. A late, repeated or stale one finds
/// nothing.
///
/// The RM API lock and GPU locks are held: no allocation, no print, no call of the provider. Waits
/// for the core without limit.
///
/// # Safety
///
/// None beyond the C prototype.
#[no_mangle]
unsafe extern "C" fn nvpm_on_free(data: *mut c_void) -> c_int {
    // Each registration holds a module reference. Where none can be had, no registration is left to
    // revoke.
    let Some(module) = ModuleRef::get() else {
        return 0;
    };
    let _ = RUNNING.fetch_add(1, Relaxed);
    let started = Started::now();
    let ticket = pin::ticket_of(data);
    match registry::get(ticket) {
        Some(registration) => revoke(&registration, started.at_ns),
        None => stats::late_callback(ticket),
    }
    drop(started);
    let _ = RUNNING.fetch_sub(1, Relaxed);
    // The registration may be gone, and with it every other reference.
    core::mem::forget(module);
    1
}

/// Marks `registration` revoked, and has the core stop the NIC. The callback began at `start_ns`.
fn revoke(registration: &Registration, start_ns: u64) {
    let timer = Timer::start(Event::Revoke);
    // `release` waits for this lock if this callback calls the hook.
    let invalidation = registration.invalidation().lock();
    let revocation = {
        let mut inner = registration.inner().lock();
        let revocation = inner.state.revoke();
        if revocation != Revocation::Repeated {
            inner.begin_callback(start_ns, matches!(revocation, Revocation::Invalidate(_)));
            registration.count_revocation(&mut inner);
        }
        revocation
    };
    match revocation {
        Revocation::Repeated => return stats::late_callback(registration.ticket()),
        // A thread that registers or ends the memory finds the mark, and fails or stops there.
        Revocation::Quiet => registration.inner().lock().end_callback(),
        Revocation::QuietOrphan => {
            registration.count_adopted();
            registry::remove(registration.ticket());
            registration.inner().lock().end_callback();
        }
        Revocation::Invalidate(core_ticket) => {
            // SAFETY: There is this registration.
            unsafe { (registration.owner().stop)(core_ticket) };
            drop(invalidation);
            // The NIC is quiet. Cores that unmap by themselves have done so inside the call.
            registration.unmap_and(Inner::end_callback);
        }
    }
    timer.end(|| registration.traced(), Ok(()));
}
