// SPDX-License-Identifier: GPL-2.0

//! The core's question "is this yours?": pins once, and judges what the provider's errors mean (rule 3).

use crate::invalidate;
use crate::pin::Kind;
use crate::range::{GpuRange, PIN_GRANULE};
use crate::reason::Reason;
use crate::refusals;
use crate::registration::{Client, Place, Registration};
use crate::shim::{self, Process};
use crate::trace::{Event, Timer};
use kernel::prelude::*;
use kernel::sync::{global_lock, Arc};

/// The verdict "not mine" of the first client, for the second one: the core holds P over its walk, so between the two
/// nobody else asks.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NotMine {
    process: Process,
    addr: u64,
    size: u64,
}

global_lock! {
    // SAFETY: Initialised in `init()`, before any client is registered.
    unsafe(uninit) static NOT_MINE: Mutex<Option<NotMine>> = None;
}

/// Initialises what this file keeps for the whole module.
///
/// # Safety
///
/// To be called once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { NOT_MINE.init() };
}

/// What an attempt to pin says about the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Another client may know it.
    NotMine,
    /// Ours, but only the other client's way of pinning can work.
    StepAside,
    /// Ours, and impossible.
    Refused(Reason),
    /// Nobody could find out whose memory it is.
    Unproven,
}

/// The errors that the provider returns only once it has found whose memory it is.
fn proven(error: Error, steps_aside: bool) -> Option<Verdict> {
    if error == ENOTSUPP {
        Some(if steps_aside { Verdict::StepAside } else { Verdict::Refused(Reason::NotSupported) })
    } else if error == EBUSY {
        Some(Verdict::Refused(Reason::Busy))
    } else if error == ENODEV {
        Some(Verdict::Refused(Reason::NoGpu))
    } else {
        None
    }
}

/// Rule 3: what the provider's `error` means. `start` is what a one-granule pin at the start of the range answers;
/// `None` where the range is no longer than that.
fn judge(error: Error, steps_aside: bool, start: Option<Result>) -> Verdict {
    if let Some(verdict) = proven(error, steps_aside) {
        return verdict;
    }
    if let Some(Err(other)) = start {
        if let Some(verdict) = proven(other, steps_aside) {
            return verdict;
        }
    }
    if error == ENOMEM || error == EIO {
        let reason = if error == ENOMEM { Reason::OutOfBar } else { Reason::ProviderFault };
        return match start {
            Some(Err(other)) if other == EINVAL => Verdict::NotMine,
            Some(Err(other)) if other == error => Verdict::Unproven,
            Some(_) => Verdict::Refused(reason),
            None => Verdict::Unproven,
        };
    }
    match start {
        Some(Ok(())) => Verdict::Refused(Reason::LeavesAllocation),
        _ => Verdict::NotMine,
    }
}

/// The core's `acquire`: pins `size` bytes at `addr`, once and for good. `None`: not ours.
///
/// Called with P held, for every registration of the machine that get_user_pages() refused: silent and cheap for
/// memory that is not ours. Takes G, R, L and the registry lock, one after the other. Sleeps.
pub(crate) fn acquire(client: Client, addr: u64, size: u64) -> Option<Arc<Registration>> {
    let timer = Timer::start(Event::Acquire);
    let question = NotMine { process: Process::current(), addr, size };
    // Taken by either: a verdict is for one walk only.
    let verdict = NOT_MINE.lock().take();
    if client.place == Place::Second && verdict == Some(question) {
        return None;
    }
    // The owner's call is the moment to end what others had to leave behind.
    invalidate::reap_orphans(&question.process);
    let range = GpuRange::new(addr, size, shim::page_size())?;
    match pin(client, range) {
        Ok(registration) => {
            timer.end(&registration.traced(), Ok(()));
            return Some(registration);
        }
        Err(Verdict::StepAside) => return None,
        Err(Verdict::Unproven) => refusals::refused(Reason::Unproven, client, range.user()),
        Err(_) => {}
    }
    if client.place == Place::First {
        *NOT_MINE.lock() = Some(question);
    }
    None
}

/// Pins `range`; the provider is asked once for memory that is pinned, and for memory that is not ours once more at
/// the most. A refusal that is ours comes back as a registration, whose `get_pages` will tell.
fn pin(client: Client, range: GpuRange) -> Result<Arc<Registration>, Verdict> {
    /// The provider allocates in proportion to the length before it looks whose memory it is.
    const PROBE_FIRST: u64 = 1 << 30;

    let steps_aside = client.kind == Kind::Persistent && client.place == Place::First;
    let probe_first = range.pinned().len() > PROBE_FIRST;
    if probe_first {
        if let Err(error) = probe(client, &range)? {
            return refuse(client, range, judge(error, steps_aside, None));
        }
    }
    let registration = enter(client, range)?;
    let Err(error) = registration.get() else {
        if let Err(reason) = registration.copy_runs() {
            registration.refuse(reason);
        }
        return Ok(registration);
    };
    registration.end();
    let start = if probe_first {
        Some(Ok(()))
    } else if range.pinned().len() > PIN_GRANULE {
        Some(probe(client, &range)?)
    } else {
        None
    };
    refuse(client, range, judge(error, steps_aside, start))
}

/// A registration without a pin, whose `get_pages` will tell the reason, if the memory is ours.
fn refuse(client: Client, range: GpuRange, verdict: Verdict) -> Result<Arc<Registration>, Verdict> {
    let Verdict::Refused(reason) = verdict else {
        return Err(verdict);
    };
    let registration = enter(client, range)?;
    registration.give_up();
    registration.refuse(reason);
    Ok(registration)
}

/// Enters a registration. While rmmod is under way nothing is claimed.
fn enter(client: Client, range: GpuRange) -> Result<Arc<Registration>, Verdict> {
    Registration::new(client, range).map_err(|error| match error {
        error if error == ENOMEM => Verdict::Unproven,
        _ => Verdict::NotMine,
    })
}

/// Pins the first granule of `range` and puts it back: the provider's answer, or why it was not asked.
fn probe(client: Client, range: &GpuRange) -> Result<Result, Verdict> {
    let registration = enter(client, range.first_granule())?;
    let answer = registration.get();
    registration.end();
    Ok(answer)
}
