// SPDX-License-Identifier: GPL-2.0

//! Who puts the pins of a registration (rule 7). A revocable pin that cannot be put here and now is
//! an orphan: it waits for the free callback or for its owner's next call (rule 8).

use crate::ffi::shim::{Process, PutGateExclusive};
use crate::gpu::pin::{Permit, Pins, Put};
use crate::observe::refusals;
use crate::observe::trace::{self, Event, Timer};
use crate::pin::registration::Registration;
use crate::pin::registry;
use crate::pin::state::{Ending, Winner};
use kernel::prelude::*;

/// What became of a pin that was to end.
#[derive(PartialEq, Eq)]
#[must_use]
pub(crate) enum Ended {
    /// It is gone, or left to its owner or to the callback.
    Settled,
    /// The provider failed and kept it. It is an orphan, and another try would fail, too.
    Kept,
}

/// Ends the pin of `registration`, or leaves it to one who can (rules 7 and 8).
///
/// Takes the state lock, the put gate and the RM API lock, one after the other. If the pin is
/// revoked it takes the state lock only.
pub(crate) fn end(registration: &Registration) -> Ended {
    let mut inner = registration.inner().lock();
    if !registration.is_revocable() {
        let pins = inner.state.take_for_put();
        drop(inner);
        return put(registration, pins, &Permit::Persistent);
    }
    let gone = inner.state.ending() == Ending::Done;
    let process = if gone { None } else { registration.process().is_current() };
    let Some(process) = process else {
        if !gone && inner.state.orphan() == Winner::Caller {
            enlist(registration);
            return Ended::Settled;
        }
        drop(inner);
        return gone_already(registration);
    };
    drop(inner);
    let gate = PutGateExclusive::lock();
    let pins = registration.inner().lock().state.take_for_put();
    put(registration, pins, &Permit::Revocable { _gate: &gate, _process: &process })
}

/// Puts the pins of `registration`, which were taken out of its state for that: `None` if they are
/// gone.
///
/// Takes the RM API lock, the state lock and the registry lock, one after the other.
pub(crate) fn put(registration: &Registration, pins: Option<Pins>, permit: &Permit<'_>) -> Ended {
    if let Some(pins) = pins {
        let timer = Timer::start(Event::Put);
        let put = pins.put(permit);
        timer.end(|| registration.traced(), put.answer());
        let mut failed = None;
        let mut inner = registration.inner().lock();
        let mut ended = Ended::Settled;
        match put {
            Put::Done => inner.state.no_pin(),
            Put::Lost(lost) => {
                inner.state.no_pin();
                registration.count_lost(&lost);
                failed = Some((lost.error, lost.pins));
            }
            Put::Kept(pin, error) => {
                if inner.state.put_failed(pin) == Winner::Caller {
                    ended = Ended::Kept;
                    if error == ENOMEM {
                        enlist(registration);
                    } else {
                        // Not tried again: a GPU that is lost frees tables without a callback, and
                        // the put of a table's address could end a newer pin of this process.
                        count(registration);
                        failed = Some((error, 1));
                    }
                }
            }
        }
        if ended == Ended::Settled {
            registration.count_unpin(&mut inner);
        }
        drop(inner);
        if let Some((error, puts)) = failed {
            refusals::not_taken_back(error, puts, registration.owner().asked.kind, registration.range().user());
        }
        if ended == Ended::Kept {
            return ended;
        }
    }
    gone_already(registration)
}

/// Ends a registration whose pin is gone.
fn gone_already(registration: &Registration) -> Ended {
    registry::remove(registration.ticket());
    Ended::Settled
}

/// Enters a pin that became an orphan into the list of orphans. The state lock is held since then.
fn enlist(registration: &Registration) {
    registry::add_orphan(registration);
    count(registration);
}

/// Counts a pin that became an orphan.
fn count(registration: &Registration) {
    registration.counters().orphaned.add(1);
    trace::now(Event::Orphan, &registration.traced());
}

/// Most orphans that one registration ends. Each costs a call of the provider, and others may wait
/// meanwhile for a lock of the driver above.
pub(crate) const REAPED_BY_PIN: usize = 8;

/// Most orphans that one deregistration ends. Only its own process waits for it.
pub(crate) const REAPED_BY_RELEASE: usize = 64;

/// Ends at most `most` orphans that were left behind for this process.
///
/// Takes the put gate, the RM API lock, state locks and the registry lock: never under a stop lock.
#[inline]
pub(crate) fn reap(most: usize) {
    if registry::has_orphans() {
        reap_some(most);
    }
}

/// Puts at most `most` orphans. See [`reap`].
fn reap_some(most: usize) {
    let process = Process::current();
    for _ in 0..most {
        let Some(registration) = registry::take_orphan(&process) else { return };
        let adopted = registration.inner().lock().state.adopt();
        if adopted == Winner::Callback {
            // The callback ends the registration.
            continue;
        }
        registration.count_adopted();
        if end(&registration) == Ended::Kept {
            // It is an orphan again, and one try is enough for now.
            return;
        }
    }
}
