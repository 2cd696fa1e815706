// SPDX-License-Identifier: GPL-2.0

//! The provider takes memory back: the free callback.
//!
//! The callback runs in any task, with the RM API lock and the GPU locks held. It must not wait for
//! a task that waits for the RM API lock. So it calls the driver above only when a mapping is live;
//! then that driver answers once it has stopped the device (rules 6 and 9).

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

/// Holds the time at which the running callback began, in nanoseconds; 0 while none runs. The provider
/// holds the RM API lock over a callback, so one runs at a time. Only a file shows this, where two
/// would look like one, so Relaxed is enough. A reader takes no lock.
static START: Atomic<u64> = Atomic::new(0);

/// Returns the time at which the running callback began, in nanoseconds; `None` while none runs. Takes no
/// lock.
pub(crate) fn start_ns() -> Option<u64> {
    Some(START.load(Relaxed)).filter(|start| *start != 0)
}

/// Does the free callback's work. The provider calls it through the function in callback.c, which
/// gives back a module reference with its last instruction if this answers 1.
///
/// `data` is the ticket that was given to the provider. A late, repeated or stale one finds
/// nothing.
///
/// The RM API lock and GPU locks are held: no allocation, no print, no call of the provider. Waits
/// for the driver above without limit.
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
    let start_ns = shim::now_ns();
    START.store(start_ns, Relaxed);
    let ticket = pin::ticket_of(data);
    match registry::get(ticket) {
        Some(registration) => revoke(&registration, start_ns),
        None => stats::late_callback(ticket),
    }
    START.store(0, Relaxed);
    // The registration may be gone, and with it every other reference.
    core::mem::forget(module);
    1
}

/// Marks `registration` revoked, and has the driver above stop the device. The callback began at
/// `start_ns`.
fn revoke(registration: &Registration, start_ns: u64) {
    let timer = Timer::start(Event::Revoke);
    // `release` waits for this lock if this callback calls `stop`.
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
        Revocation::Invalidate(owner_ticket) => {
            // SAFETY: There is this registration.
            unsafe { (registration.owner().stop)(owner_ticket) };
            drop(invalidation);
            // The device is quiet. A driver that unmaps by itself has done so inside the call.
            registration.unmap_and(Inner::end_callback);
        }
    }
    timer.end(|| registration.traced(), Ok(()));
}
