// SPDX-License-Identifier: GPL-2.0

//! The core's question "is this yours?": pins once, and judges what the provider's errors mean (rule 3).

use crate::ffi::shim::{self, Process};
use crate::gpu::pin::Kind;
use crate::invalidate;
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::observe::trace::{Event, Timer};
use crate::range::{GpuRange, PIN_GRANULE};
use crate::registration::{Client, Place, Registration};
use kernel::prelude::*;
use kernel::sync::{global_lock, Arc};

/// What the core asks every client of one walk.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Question {
    process: Process,
    addr: u64,
    size: u64,
}

impl Question {
    fn new(addr: u64, size: u64) -> Self {
        Self { process: Process::current(), addr, size }
    }
}

/// What the first client found out, for those that are asked after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The memory is not ours.
    NotMine,
    /// It is ours, and the provider refuses to pin it persistently.
    SteppedAside,
}

global_lock! {
    // The core holds P over its walk, so between our clients nobody else asks.
    // SAFETY: Initialised in `init()`, before any client is registered.
    unsafe(uninit) static WALK: Mutex<Option<(Question, Left)>> = None;
}

/// What the first client left for this question. Taken by whoever asks: it is for one walk only, and the core may have
/// skipped a client.
fn left_for(question: &Question) -> Option<Left> {
    WALK.lock().take().filter(|(asked, _)| asked == question).map(|(_, left)| left)
}

/// Initialises what this file keeps for the whole module.
///
/// # Safety
///
/// To be called once, before anything else of this file.
pub(crate) unsafe fn init() {
    // SAFETY: By this function's contract.
    unsafe { WALK.init() };
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
/// `None` where there was none beside the one that failed.
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
            Some(Err(other)) if other == ENOMEM || other == EIO => Verdict::Unproven,
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
    let question = Question::new(addr, size);
    let left = left_for(&question);
    // The persistent client is never skipped: where it left nothing, the walk began before the module was ready.
    let unasked = client.kind == Kind::Revocable && left.is_none();
    if client.place == Place::Second && (left == Some(Left::NotMine) || unasked) {
        return None;
    }
    // The owner's call is the moment to end what others had to leave behind.
    invalidate::reap_orphans(&question.process);
    let range = GpuRange::new(addr, size, shim::page_size())?;
    let left = match pin(client, range) {
        Ok(registration) => {
            timer.end(|| registration.traced(), Ok(()));
            return Some(registration);
        }
        Err(Verdict::StepAside) => Left::SteppedAside,
        Err(Verdict::Unproven) => {
            refusals::refused(Reason::Unproven, client, range.user());
            Left::NotMine
        }
        Err(_) => Left::NotMine,
    };
    if client.place == Place::First {
        *WALK.lock() = Some((question, left));
    }
    None
}

/// The same question to the client that is asked last and pins nothing. It claims what the persistent client stepped
/// aside from and the revocable one was not asked for, the memory of a umem that cannot be invalidated (a queue, DevX):
/// `get_pages` then tells why, where the application would hear "bad address". P is held. Takes the registry lock.
pub(crate) fn claim_rest(addr: u64, size: u64) -> Option<Arc<Registration>> {
    if left_for(&Question::new(addr, size)) != Some(Left::SteppedAside) {
        return None;
    }
    let range = GpuRange::new(addr, size, shim::page_size())?;
    let persistent = Client { kind: Kind::Persistent, place: Place::First };
    refuse(persistent, range, Verdict::Refused(Reason::NotSupported)).ok()
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
    // What proves by itself whose memory it is needs no second question.
    let start = if probe_first {
        Some(Ok(()))
    } else if range.pinned().len() > PIN_GRANULE && proven(error, steps_aside).is_none() {
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
