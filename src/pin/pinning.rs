// SPDX-License-Identifier: GPL-2.0

//! Pins memory, once, or finds out that it is not ours (rule 3).

use crate::ffi::raw;
use crate::ffi::shim::{self, Kind, ModuleRef};
use crate::gpu::bar::Bar;
use crate::gpu::pin::{PagePin, Permit, Pins, Put};
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::observe::trace::{Event, Timer};
use crate::pin::pieces::{self, Finder, Step};
use crate::pin::registration::{Found, Inner, Registration, Rest};
use crate::pin::state::Winner;
use crate::pin::tables::copy_runs;
use crate::pin::verdict::{asks_fallback, judge, judge_piece, proven, Start, Unclaimed, Verdict};
use crate::pin::{orphan, registry, Owner};
use crate::range::{GpuRange, Span, PIN_GRANULE};
use crate::several::Several;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::{Arc, MutexGuard};

/// Longer ranges begin with a pin of one granule.
const PROBE_FIRST: u64 = 1 << 30;

/// Pins `range`, or proves that it begins in memory of ours. The provider is asked once for memory of
/// one allocation, and at most once more for memory that is not ours. If we refuse memory of ours, the
/// answer is a registration whose [`Registration::complete`] fails with the reason.
///
/// Others may wait meanwhile for a lock of the driver above. So what takes long is left to
/// [`Registration::complete`]: a long range, and one over several allocations. That is for persistent pins
/// only, which may be taken under a stop lock (rule 5).
///
/// The provider allocates in proportion to the length before it looks whose memory it is. So the
/// start of a long range is pinned first, and the rest is asked for if the BAR can hold it.
pub(crate) fn pin(owner: &'static Owner, range: GpuRange) -> Result<Arc<Registration>, Unclaimed> {
    let length = range.pinned().len();
    let mut start = Start::Unknown;
    if length > PROBE_FIRST {
        start = probe(owner, &range)?;
        match start {
            Start::Failed(error) => return settle(owner, range, judge(error, owner, Start::Unknown)),
            Start::Unusable(reason) => return refuse(owner, range, reason),
            Start::InBar(bar) if length > bar => {
                return refuse(owner, range, Reason::LongerThanBar(bar));
            }
            Start::InBar(_) | Start::OutsideBar | Start::Unknown => {}
        }
        if owner.asked.kind == Kind::Persistent {
            return claim(owner, range, Found::Start(Rest::Whole));
        }
        if length > pieces::MOST_ASKED {
            return refuse(owner, range, Reason::TooManyEntries);
        }
    }
    let registration = enter(owner, range)?;
    let error = match get(&registration).map(|inner| copy_runs(&registration, inner)) {
        Ok(copied) => {
            if let Err(reason) = copied {
                registration.inner().lock().found = Found::Refused(reason);
            }
            return Ok(registration);
        }
        Err(error) => error,
    };
    give_up(&registration);
    // An error that proves whose memory it is needs no second question.
    let asks = proven(error, owner).is_none() && !asks_fallback(error, owner);
    if start == Start::Unknown && length > PIN_GRANULE && asks {
        start = probe(owner, &range)?;
    }
    match judge(error, owner, start) {
        // A revocable pin would be one of several that are taken back one by one.
        Verdict::Refused(Reason::LeavesAllocation) if owner.asked.kind == Kind::Persistent => {
            claim(owner, range, Found::Start(Rest::Pieces))
        }
        verdict => settle(owner, range, verdict),
    }
}

/// Calls of the provider for one registration in pieces: enough for 64 GiB in pieces of 2 MiB, twice.
const MOST_CALLS: usize = 1 << 16;

/// Why the rest of a registration was not pinned. What was pinned of it is put in `release`.
pub(crate) enum Stopped {
    /// The memory is refused.
    Refused(Reason),
    /// The task was killed, and nobody waits for the answer.
    Killed,
}

/// Pins the `rest` of `registration`, of which only the start was looked at: all of it or nothing.
///
/// A stop lock may be held, as the pins are persistent. Takes the RM API lock and the state lock, one
/// after the other. Sleeps and allocates.
pub(crate) fn pin_rest(registration: &Registration, rest: Rest) -> Result<(), Stopped> {
    let mut pins = None;
    let found = find_pieces(registration, rest, &mut pins);
    let mut inner = registration.inner().lock();
    match pins {
        // No callback comes for a persistent pin.
        Some(pins) => _ = inner.state.pinned(pins),
        None => inner.state.no_pin(),
    }
    found?;
    copy_runs(registration, inner).map_err(Stopped::Refused)
}

/// Pins the pieces of `registration`, from its start. After an error `pins` has those that were pinned
/// before it.
fn find_pieces(registration: &Registration, rest: Rest, pins: &mut Option<Pins>) -> Result<(), Stopped> {
    let refused = |reason| Err(Stopped::Refused(reason));
    let range = registration.range().pinned();
    let mut finder = match rest {
        Rest::Whole => Finder::new(range),
        Rest::Pieces => Finder::of_several(range),
    };
    let mut calls = 0..MOST_CALLS;
    loop {
        let asked = match finder.next() {
            Step::Ask(span) => span,
            Step::Done => return Ok(()),
            Step::Hole(at) => return refused(Reason::Hole(at)),
        };
        if calls.next().is_none() {
            return refused(Reason::TooManyEntries);
        }
        if shim::is_killed() {
            return Err(Stopped::Killed);
        }
        shim::cond_resched();
        if let Some(pins) = pins {
            pins.make_room().map_err(|_| Stopped::Refused(Reason::NoMemory))?;
        }
        let pin = match get_piece(registration, asked) {
            Ok(pin) => pin,
            Err(error) if error == EINVAL => {
                finder.failed(asked);
                continue;
            }
            Err(error) => return refused(judge_piece(error, registration.owner(), asked == range)),
        };
        let longer = finder.worked(asked);
        match pins {
            None => *pins = Some(Several::one(pin)),
            Some(pins) if longer => {
                put_shorter(registration, core::mem::replace(pins.last_mut(), pin));
            }
            // There is room.
            Some(pins) => _ = pins.push(pin),
        }
    }
}

/// Enters a registration of memory of ours that has no pin yet. `found` says what becomes of it in
/// [`Registration::complete`].
fn claim(owner: &'static Owner, range: GpuRange, found: Found) -> Result<Arc<Registration>, Unclaimed> {
    let registration = enter(owner, range)?;
    let mut inner = registration.inner().lock();
    if matches!(found, Found::Refused(_)) {
        inner.state.no_pin();
    }
    inner.found = found;
    drop(inner);
    Ok(registration)
}

/// Enters a registration without a pin, whose [`Registration::complete`] tells the `reason`.
pub(crate) fn refuse(owner: &'static Owner, range: GpuRange, reason: Reason) -> Result<Arc<Registration>, Unclaimed> {
    claim(owner, range, Found::Refused(reason))
}

/// Enters such a registration if the memory is ours by this `verdict`.
fn settle(owner: &'static Owner, range: GpuRange, verdict: Verdict) -> Result<Arc<Registration>, Unclaimed> {
    match verdict {
        Verdict::Refused(reason) => refuse(owner, range, reason),
        Verdict::Unclaimed(unclaimed) => Err(unclaimed),
    }
}

/// Enters a registration. While rmmod is under way nothing is claimed.
fn enter(owner: &'static Owner, range: GpuRange) -> Result<Arc<Registration>, Unclaimed> {
    let module = ModuleRef::get().ok_or(Unclaimed::NotMine)?;
    registry::insert(move |ticket| Registration::new(owner, range, module, ticket)).map_err(|error| match error {
        error if error == ENOMEM => Unclaimed::Unproven(Reason::Unproven),
        _ => Unclaimed::NotMine,
    })
}

/// Pins the first granule of `range`, looks where it lies, and puts it back.
fn probe(owner: &'static Owner, range: &GpuRange) -> Result<Start, Unclaimed> {
    let registration = enter(owner, GpuRange::granule_of(range.pinned()))?;
    let start = match get(&registration) {
        Ok(inner) => match copy_runs(&registration, inner) {
            Ok(()) => bar_around(&registration),
            Err(reason) => Start::Unusable(reason),
        },
        Err(error) => Start::Failed(error),
    };
    give_up(&registration);
    Ok(start)
}

/// Finds the BAR in which the runs of a pin lie.
fn bar_around(registration: &Registration) -> Start {
    // Not under the state lock: finding a BAR may sleep.
    let pinned = registration.inner().lock().state.take_read();
    pinned
        .and_then(|pinned| Bar::around(pinned.runs.as_slice()))
        .map_or(Start::OutsideBar, |bar| Start::InBar(bar.length()))
}

/// Pins the first granule of `piece`, which is pinned with the table `whole`, once more, and lends
/// its table to `ask`. A piece of one granule lends its own table. `None` if the second pin cannot
/// be had.
///
/// `piece` is of `registration`, whose pins are persistent. Takes the RM API lock, state locks and
/// the registry lock: for a persistent pin that is legal under a stop lock.
pub(crate) fn with_first_granule<T>(
    registration: &Registration,
    piece: Span,
    whole: NonNull<raw::nvidia_p2p_page_table>,
    ask: impl FnOnce(NonNull<raw::nvidia_p2p_page_table>) -> T,
) -> Option<T> {
    if piece.len() <= PIN_GRANULE {
        return Some(ask(whole));
    }
    let granule = enter(registration.owner(), GpuRange::granule_of(piece)).ok()?;
    let table = match get(&granule) {
        Ok(inner) => inner.state.held().and_then(|pins| pins.first().persistent_table()),
        Err(_) => None,
    };
    let answer = table.map(ask);
    give_up(&granule);
    answer
}

/// Ends a registration that the driver above will not hear of.
fn give_up(registration: &Registration) {
    // What the provider kept is an orphan now (rule 8).
    let _ = orphan::end(registration);
}

/// Calls the provider's get. Takes the put gate and the RM API lock, then the state lock, which the
/// answer holds.
fn get(registration: &Registration) -> Result<MutexGuard<'_, Inner>> {
    let timer = Timer::start(Event::Pin);
    let ticket = registration.is_revocable().then_some(registration.ticket());
    let pin = PagePin::get(registration.range().pinned(), ticket);
    timer.end(|| registration.traced(), pin.as_ref().map(|_| ()).map_err(|error| *error));
    let mut inner = registration.inner().lock();
    match pin {
        Ok(pin) => {
            registration.count_pin(&mut inner, &pin);
            // If the callback was faster, `copy_runs()` finds out.
            if inner.state.pinned(Several::one(pin)) == Winner::Callback {
                registration.count_unpin(&mut inner);
            }
            Ok(inner)
        }
        Err(error) => {
            inner.state.no_pin();
            Err(error)
        }
    }
}

/// Calls the provider's get for `asked`, a part of `registration`, whose pins are persistent. Takes
/// the RM API lock, then the state lock.
fn get_piece(registration: &Registration, asked: Span) -> Result<PagePin> {
    let timer = Timer::start(Event::Pin);
    let pin = PagePin::get(asked, None);
    timer.end(|| registration.traced_piece(asked), pin.as_ref().map(|_| ()).map_err(|error| *error));
    if let Ok(pin) = &pin {
        registration.count_pin(&mut registration.inner().lock(), pin);
    }
    pin
}

/// Puts a pin of [`get_piece`] that a longer one covers.
fn put_shorter(registration: &Registration, pin: PagePin) {
    let span = pin.span();
    let timer = Timer::start(Event::Put);
    let put = pin.put(&Permit::Persistent);
    timer.end(|| registration.traced_piece(span), put.answer());
    if let Put::Lost(lost) = put {
        registration.count_lost(&lost);
        refusals::not_taken_back(lost.error, lost.pins, Kind::Persistent, span);
    }
    registration.count_replaced(&mut registration.inner().lock(), span.len());
}
