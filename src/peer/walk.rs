// SPDX-License-Identifier: GPL-2.0

//! The core's question "is this yours?", which it asks one client after the other (rule 3).

use crate::ffi::shim::{self, Kind, Process};
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::observe::stats;
use crate::observe::trace::{Event, Timer};
use crate::peer::client::{Client, Place};
use crate::pin::registration::Registration;
use crate::pin::verdict::Unclaimed;
use crate::pin::{orphan, pinning};
use crate::range::GpuRange;
// The kernel's own `global_lock!` names what is in it, kernel-lite's does not.
#[allow(unused_imports)]
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
enum FirstAnswer {
    /// The memory is not ours.
    NotMine,
    /// It is ours, and the provider refuses to pin it persistently.
    SteppedAside,
    /// The provider failed to pin it persistently. Nobody knows whose it is.
    Failed,
}

global_lock! {
    // The core holds the peer mutex over its walk, so nobody else asks between our clients.
    // SAFETY: Initialised in `init()`, before any client is registered.
    unsafe(uninit) static WALK: Mutex<Option<(Question, FirstAnswer)>> = None;
}

/// Takes what the first client answered to this question. It is for one walk only, and the core may
/// have skipped a client.
fn first_answer(question: &Question) -> Option<FirstAnswer> {
    WALK.lock().take().filter(|(asked, _)| asked == question).map(|(_, answer)| answer)
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

/// Answers the core's `acquire`: pins `size` bytes at `addr`, once and for good. `None`: not ours.
///
/// The peer mutex is held, for every registration of the machine that get_user_pages() refused:
/// this is silent and cheap for memory that is not ours. Takes the put gate, the RM API lock, state
/// locks and the registry lock, one after the other. Sleeps.
pub(crate) fn acquire(client: &'static Client, addr: u64, size: u64) -> Option<Arc<Registration>> {
    let timer = Timer::start(Event::Acquire);
    let first = match client.place {
        Place::Only => None,
        Place::First => {
            // It begins a walk, and ignores older answers.
            *WALK.lock() = None;
            None
        }
        Place::Second => first_answer(&Question::new(addr, size)),
    };
    // The persistent client answers even where the first one did not: then the walk began before the
    // module was ready.
    let unasked = client.owner.asked.kind == Kind::Revocable && first.is_none();
    if client.place == Place::Second && (first == Some(FirstAnswer::NotMine) || unasked) {
        return None;
    }
    // Orphans of this process end here, once in a walk.
    if first.is_none() {
        orphan::reap(orphan::REAPED_BY_PIN);
    }
    let range = GpuRange::new(addr, size, shim::page_size())?;
    let answer = match pinning::pin(&client.owner, range) {
        Ok(registration) => {
            timer.end(|| registration.traced(), Ok(()));
            return Some(registration);
        }
        Err(Unclaimed::StepAside) => FirstAnswer::SteppedAside,
        Err(Unclaimed::AskFallback) => FirstAnswer::Failed,
        Err(Unclaimed::Unproven(reason)) => {
            refusals::refused(reason, &client.owner.asked, range.user());
            FirstAnswer::NotMine
        }
        Err(Unclaimed::NotMine) => {
            // Clients that are asked later take this answer over, so one ask counts once.
            stats::unanswered_ask();
            FirstAnswer::NotMine
        }
    };
    if client.place == Place::First {
        *WALK.lock() = Some((Question::new(addr, size), answer));
    }
    None
}

/// Answers the same question for the client that only refuses, which is asked last.
///
/// It claims the memory of a umem that cannot be invalidated (a queue, DevX) after the persistent
/// client refused it, only to report the reason in `get_pages`: the application would hear "bad
/// address" otherwise. The peer mutex is held. Takes the registry lock.
pub(crate) fn acquire_to_refuse(addr: u64, size: u64) -> Option<Arc<Registration>> {
    let answer = first_answer(&Question::new(addr, size))?;
    let range = GpuRange::new(addr, size, shim::page_size())?;
    match answer {
        FirstAnswer::NotMine => None,
        FirstAnswer::SteppedAside => pinning::refuse(&Client::first().owner, range, Reason::NotSupported).ok(),
        FirstAnswer::Failed => {
            refusals::refused(Reason::Unproven, &Client::first().owner.asked, range.user());
            None
        }
    }
}
