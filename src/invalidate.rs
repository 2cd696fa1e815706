// SPDX-License-Identifier: GPL-2.0

//! The provider takes memory back: the free callback, and what unloading waits for because of it.
//!
//! The callback runs in any task, with the RM API lock and the GPU locks held. It must not wait for
//! a task that waits for the RM API lock. So it calls the core only when a mapping is live; then
//! the core answers once it has fenced the NIC (rules 6 and 9).

use crate::ffi::shim::{self, ModuleRef};
use crate::gpu::pin;
use crate::observe::stats;
use crate::observe::trace::{Event, Timer};
use crate::record::Registration;
use crate::registry;
use crate::state::Revocation;
use core::ffi::c_void;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};

/// Callbacks between their first and their last instruction of ours.
static IN_FLIGHT: Atomic<u64> = Atomic::new(0);

/// Whether the provider was ever given the callback. Relaxed: its setter holds a module reference,
/// and giving that back orders it before unloading, where alone it matters.
static ARMED: Atomic<bool> = Atomic::new(false);

/// One callback in flight.
struct InFlight(());

impl InFlight {
    fn enter() -> Self {
        // Full: what the callback reads afterwards must not be read before it is counted.
        let _ = IN_FLIGHT.fetch_add(1, Full);
        Self(())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Release, for the Acquire in `wait_for_callbacks()`: unloading sees all that the callback
        // did.
        let _ = IN_FLIGHT.fetch_sub(1, Release);
    }
}

/// Callbacks that are running now.
pub(crate) fn in_flight() -> u64 {
    IN_FLIGHT.load(Relaxed)
}

/// Whether `arm()` kept a module reference for good.
pub(crate) fn stays_loaded() -> bool {
    ARMED.load(Relaxed) && !shim::can_drain_callback_tails()
}

/// To be called once the provider was given the callback: the caller still holds a module reference
/// then.
pub(crate) fn arm() {
    if !ARMED.load(Relaxed) && !ARMED.xchg(true, Relaxed) && !shim::can_drain_callback_tails() {
        // Nothing could tell when a callback has left our text: the module stays loaded from now
        // on.
        core::mem::forget(ModuleRef::get());
    }
}

/// The free callback, as the provider knows it.
///
/// # Safety
///
/// None beyond the C prototype.
pub(crate) unsafe extern "C" fn free_callback(data: *mut c_void) {
    on_free(pin::ticket_of(data));
}

/// The free callback. `ticket` is what was given to the provider: a late, repeated or stale one
/// finds nothing.
///
/// The RM API lock and GPU locks are held: no allocation, no print, no call of the provider. Waits
/// for the core without limit.
pub(crate) fn on_free(ticket: u64) {
    // Dropped last, behind the registration's count.
    let _in_flight = InFlight::enter();
    match registry::get(ticket) {
        Some(registration) => revoke(&registration),
        None => stats::late_callback(ticket),
    }
}

fn revoke(registration: &Registration) {
    let timer = Timer::start(Event::Revoke);
    // `release` waits for this lock if this callback calls the hook.
    let invalidation = registration.invalidation().lock();
    let revocation = {
        let mut inner = registration.inner().lock();
        let revocation = inner.state.revoke();
        if revocation != Revocation::Repeated {
            inner.begin_callback(matches!(revocation, Revocation::Invalidate(_)));
            registration.count_revocation(&mut inner);
        }
        revocation
    };
    match revocation {
        Revocation::Repeated => return stats::late_callback(registration.ticket()),
        // A thread that registers or ends the memory finds the mark, and fails or stops there.
        Revocation::Quiet => {}
        Revocation::QuietOrphan => {
            registration.count_adopted();
            registry::remove(registration.ticket());
        }
        Revocation::Invalidate(core_ticket) => {
            registration.client().invalidate(core_ticket);
            drop(invalidation);
            // The NIC is quiet. Cores that unmap by themselves have done so inside the call.
            registration.dma_unmap();
        }
    }
    registration.inner().lock().end_callback();
    timer.end(|| registration.traced(), Ok(()));
}

/// Waits until no callback is in flight. To be called before and after the clients are
/// unregistered: before, because a callback may be about to use a client's handle; after, for one
/// that came in between.
pub(crate) fn wait_for_callbacks() {
    shim::wait_until(|| IN_FLIGHT.load(Acquire) == 0);
}

/// Last step of unloading: a callback that is not counted any more may still be about to return.
pub(crate) fn drain() {
    if ARMED.load(Relaxed) {
        shim::drain_callback_tails();
    }
}
