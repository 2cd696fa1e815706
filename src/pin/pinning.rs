// SPDX-License-Identifier: GPL-2.0

//! The core's question "is this yours?": pins once, and judges what the provider's errors mean
//! (rule 3).

use crate::ffi::raw;
use crate::ffi::shim::{self, Kind, ModuleRef, Process};
use crate::gpu::bar::Bar;
use crate::gpu::page_table::Reader;
use crate::gpu::pin::{PagePin, Pins, Put};
use crate::gpu::{Piece, Pinned};
use crate::observe::proc::Tables;
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::observe::trace::{Event, Timer};
use crate::peer::client::{Client, Place};
use crate::pin::orphan;
use crate::pin::pieces::{self, Finder, Step};
use crate::pin::registration::{self, Found, Inner, Registration, Rest};
use crate::pin::registry;
use crate::pin::state::Winner;
use crate::range::{GpuRange, Span, PIN_GRANULE};
use crate::several::Several;
use crate::sg::Runs;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::{global_lock, Arc, MutexGuard};

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

/// What the first client answered to this question. The asker takes it: it is for one walk only,
/// and the core may have skipped a client.
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

/// Why this client does not claim the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unclaimed {
    /// Another client may know it.
    NotMine,
    /// Ours, but only the other client's way of pinning can work.
    StepAside,
    /// Nobody knows yet whose it is: the other client's way of pinning tells.
    AskFallback,
    /// Nobody could find out whose memory it is.
    Unproven(Reason),
}

/// What an error of the provider says about the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Ours, and impossible.
    Refused(Reason),
    /// Not for this client.
    Unclaimed(Unclaimed),
}

/// What a pin of one granule at the start of the range answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// It works, in a BAR of so many bytes.
    InBar(u64),
    /// It works, in no BAR.
    OutsideBar,
    /// It works, and the provider's table is of no use.
    Unusable(Reason),
    /// It fails.
    Failed(Error),
    /// It was not tried, beside the pin that failed.
    Unknown,
}

/// The errors that the provider returns only once it has found whose memory it is.
fn proven(error: Error, client: &'static Client) -> Option<Verdict> {
    if error == ENOTSUPP {
        Some(if client.has_fallback() {
            Verdict::Unclaimed(Unclaimed::StepAside)
        } else if client.kind == Kind::Persistent && client.place == Place::Only {
            Verdict::Refused(Reason::NotPersistent)
        } else {
            Verdict::Refused(Reason::NotSupported)
        })
    } else if error == EBUSY {
        Some(Verdict::Refused(Reason::Busy))
    } else if error == ENODEV {
        Some(Verdict::Refused(Reason::NoGpu))
    } else {
        None
    }
}

/// Whether a revocable pin tells what this `error` of a persistent one means. The provider answers
/// EIO also where it cannot duplicate an object that it knows, whatever part of it is asked for.
fn asks_fallback(error: Error, client: &'static Client) -> bool {
    error == EIO && client.has_fallback()
}

/// Rule 3: what the provider's `error` means for `client`.
fn judge(error: Error, client: &'static Client, start: Start) -> Verdict {
    if let Some(verdict) = proven(error, client) {
        return verdict;
    }
    if let Start::Failed(other) = start {
        if let Some(verdict) = proven(other, client) {
            return verdict;
        }
    }
    if asks_fallback(error, client) {
        return Verdict::Unclaimed(Unclaimed::AskFallback);
    }
    if error == ENOMEM || error == EIO {
        let reason = if error == ENOMEM { Reason::OutOfBar } else { Reason::ProviderFault };
        let unproven = match client {
            Client { kind: Kind::Persistent, place: Place::Only, .. } if error == EIO => Reason::PersistentFault,
            _ => Reason::Unproven,
        };
        return match start {
            Start::Failed(other) if other == EINVAL => Verdict::Unclaimed(Unclaimed::NotMine),
            Start::Failed(other) if other == ENOMEM || other == EIO => {
                Verdict::Unclaimed(Unclaimed::Unproven(unproven))
            }
            Start::Unknown => Verdict::Unclaimed(Unclaimed::Unproven(unproven)),
            Start::Failed(_) | Start::InBar(_) | Start::OutsideBar | Start::Unusable(_) => Verdict::Refused(reason),
        };
    }
    match start {
        // Of memory of several allocations where BAR1 is full, this is all that is known.
        Start::Failed(other) if other != EINVAL => judge(other, client, Start::Unknown),
        Start::Failed(_) | Start::Unknown => Verdict::Unclaimed(Unclaimed::NotMine),
        Start::InBar(_) | Start::OutsideBar | Start::Unusable(_) => Verdict::Refused(Reason::LeavesAllocation),
    }
}

/// The core's `acquire`: pins `size` bytes at `addr`, once and for good. `None`: not ours.
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
    let unasked = client.kind == Kind::Revocable && first.is_none();
    if client.place == Place::Second && (first == Some(FirstAnswer::NotMine) || unasked) {
        return None;
    }
    // Orphans of this process end here, once in a walk.
    if first.is_none() {
        orphan::reap(orphan::REAPED_BY_ACQUIRE);
    }
    let range = GpuRange::new(addr, size, shim::page_size())?;
    let answer = match pin(client, range) {
        Ok(registration) => {
            timer.end(|| registration.traced(), Ok(()));
            return Some(registration);
        }
        Err(Unclaimed::StepAside) => FirstAnswer::SteppedAside,
        Err(Unclaimed::AskFallback) => FirstAnswer::Failed,
        Err(Unclaimed::Unproven(reason)) => {
            refusals::refused(reason, registration::asked(client), range.user());
            FirstAnswer::NotMine
        }
        Err(Unclaimed::NotMine) => FirstAnswer::NotMine,
    };
    if client.place == Place::First {
        *WALK.lock() = Some((Question::new(addr, size), answer));
    }
    None
}

/// The same question to the client that only refuses, which is asked last.
///
/// It claims the memory of a umem that cannot be invalidated (a queue, DevX) after the persistent
/// client refused it, only to report the reason in `get_pages`: the application would hear "bad
/// address" otherwise. The peer mutex is held. Takes the registry lock.
pub(crate) fn acquire_to_refuse(addr: u64, size: u64) -> Option<Arc<Registration>> {
    let answer = first_answer(&Question::new(addr, size))?;
    let range = GpuRange::new(addr, size, shim::page_size())?;
    match answer {
        FirstAnswer::NotMine => None,
        FirstAnswer::SteppedAside => refuse(Client::first(), range, Verdict::Refused(Reason::NotSupported)).ok(),
        FirstAnswer::Failed => {
            refusals::refused(Reason::Unproven, registration::asked(Client::first()), range.user());
            None
        }
    }
}

/// Longer ranges begin with a pin of one granule.
const PROBE_FIRST: u64 = 1 << 30;

/// Pins `range`, or proves that it begins in memory of ours. The provider is asked once for memory of
/// one allocation, and at most once more for memory that is not ours. If we refuse memory of ours, the
/// answer is a registration whose `get_pages` fails with the reason.
///
/// The whole machine's registrations wait meanwhile. So what takes long is left to `get_pages`: a long
/// range, and one over several allocations. That is for persistent pins only, which may be taken under
/// a umem mapping lock (rule 5).
///
/// The provider allocates in proportion to the length before it looks whose memory it is. So the
/// start of a long range is pinned first, and the rest is asked for if the BAR can hold it.
fn pin(client: &'static Client, range: GpuRange) -> Result<Arc<Registration>, Unclaimed> {
    let length = range.pinned().len();
    let mut start = Start::Unknown;
    if length > PROBE_FIRST {
        start = probe(client, &range)?;
        match start {
            Start::Failed(error) => return refuse(client, range, judge(error, client, Start::Unknown)),
            Start::Unusable(reason) => return refuse(client, range, Verdict::Refused(reason)),
            Start::InBar(bar) if length > bar => {
                return refuse(client, range, Verdict::Refused(Reason::LongerThanBar(bar)));
            }
            Start::InBar(_) | Start::OutsideBar | Start::Unknown => {}
        }
        if client.kind == Kind::Persistent {
            return claim(client, range, Found::Start(Rest::Whole));
        }
        if length > pieces::MOST_ASKED {
            return refuse(client, range, Verdict::Refused(Reason::TooManyEntries));
        }
    }
    let registration = enter(client, range)?;
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
    let asks = proven(error, client).is_none() && !asks_fallback(error, client);
    if start == Start::Unknown && length > PIN_GRANULE && asks {
        start = probe(client, &range)?;
    }
    match judge(error, client, start) {
        // A revocable pin would be one of several that are taken back one by one.
        Verdict::Refused(Reason::LeavesAllocation) if client.kind == Kind::Persistent => {
            claim(client, range, Found::Start(Rest::Pieces))
        }
        verdict => refuse(client, range, verdict),
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
/// The umem mapping lock may be held, as the pins are persistent. Takes the RM API lock and the state
/// lock, one after the other. Sleeps and allocates.
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

/// Pins the pieces of `registration`, from its start. What was pinned is in `pins`, also after an
/// error.
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
            Err(error) => return refused(judge_piece(error, registration.client(), asked == range)),
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

/// What the provider's `error` means for a piece of a range that begins in memory of ours. `alone`: the
/// piece is the whole range.
fn judge_piece(error: Error, client: &'static Client, alone: bool) -> Reason {
    match judge(error, client, Start::OutsideBar) {
        Verdict::Refused(reason) => reason,
        // A revocable pin might do, but it is too late for one, and it would be one of several.
        Verdict::Unclaimed(_) if !alone => Reason::LeavesAllocation,
        Verdict::Unclaimed(_) if error == ENOTSUPP => Reason::NotSupported,
        Verdict::Unclaimed(_) => Reason::ProviderFault,
    }
}

/// A registration of memory of ours that has no pin yet. `found` says what becomes of it in
/// `get_pages`.
fn claim(client: &'static Client, range: GpuRange, found: Found) -> Result<Arc<Registration>, Unclaimed> {
    let registration = enter(client, range)?;
    let mut inner = registration.inner().lock();
    if matches!(found, Found::Refused(_)) {
        inner.state.no_pin();
    }
    inner.found = found;
    drop(inner);
    Ok(registration)
}

/// A registration without a pin, whose `get_pages` tells the reason, if the memory is ours.
fn refuse(client: &'static Client, range: GpuRange, verdict: Verdict) -> Result<Arc<Registration>, Unclaimed> {
    match verdict {
        Verdict::Refused(reason) => claim(client, range, Found::Refused(reason)),
        Verdict::Unclaimed(unclaimed) => Err(unclaimed),
    }
}

/// Enters a registration. While rmmod is under way nothing is claimed.
fn enter(client: &'static Client, range: GpuRange) -> Result<Arc<Registration>, Unclaimed> {
    let module = ModuleRef::get().ok_or(Unclaimed::NotMine)?;
    registry::insert(move |ticket| Registration::new(client, range, module, ticket)).map_err(|error| match error {
        error if error == ENOMEM => Unclaimed::Unproven(Reason::Unproven),
        _ => Unclaimed::NotMine,
    })
}

/// Pins the first granule of `range`, looks where it lies, and puts it back.
fn probe(client: &'static Client, range: &GpuRange) -> Result<Start, Unclaimed> {
    let registration = enter(client, GpuRange::granule_of(range.pinned()))?;
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

/// The BAR in which the runs of a pin lie.
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
/// the registry lock: for a persistent pin that is legal under a umem mapping lock.
pub(crate) fn with_first_granule<T>(
    registration: &Registration,
    piece: Span,
    whole: NonNull<raw::nvidia_p2p_page_table>,
    ask: impl FnOnce(NonNull<raw::nvidia_p2p_page_table>) -> T,
) -> Option<T> {
    if piece.len() <= PIN_GRANULE {
        return Some(ask(whole));
    }
    let granule = enter(registration.client(), GpuRange::granule_of(piece)).ok()?;
    let table = match get(&granule) {
        Ok(inner) => inner.state.held().and_then(|pins| pins.first().persistent_table()),
        Err(_) => None,
    };
    let answer = table.map(ask);
    give_up(&granule);
    answer
}

/// Ends a registration that the core will not hear of.
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
    let put = pin.put();
    timer.end(|| registration.traced_piece(span), put.answer());
    if let Put::Lost(lost) = put {
        registration.count_lost(&lost);
        refusals::not_taken_back(lost.error, lost.pins, Kind::Persistent, span);
    }
    registration.count_replaced(&mut registration.inner().lock(), span.len());
}

/// Copies what is needed of the provider's tables, which are never looked at again (rule 4). Gives
/// `inner`, the state lock, up in between, and takes it again.
fn copy_runs<'a>(registration: &'a Registration, mut inner: MutexGuard<'a, Inner>) -> Result<(), Reason> {
    let count = inner.state.held().map_or(0, Several::len);
    let piece = read_head(registration, &mut inner, 0)?;
    let mut reader = Reader::new(piece.layout, Runs::None);
    inner = read_pages(registration, inner, 0, &mut reader)?;
    let mut pieces = Several::one(piece);
    let runs = match reader.alone() {
        // Nothing is allocated for memory in one piece.
        Some(run) if count == 1 => Runs::One(run),
        _ => {
            drop(inner);
            let mut runs = reader.finish()?;
            for index in 1..count {
                pieces.make_room().map_err(|_| Reason::NoMemory)?;
                runs.make_room().map_err(|_| Reason::NoMemory)?;
                let mut inner = registration.inner().lock();
                let piece = read_head(registration, &mut inner, index)?;
                let mut reader = Reader::new(piece.layout, runs);
                drop(read_pages(registration, inner, index, &mut reader)?);
                pieces.push(piece).map_err(|_| Reason::NoMemory)?;
                runs = reader.finish()?;
                shim::cond_resched();
            }
            let runs = runs.without_slack().map_err(|_| Reason::NoMemory)?;
            inner = registration.inner().lock();
            runs
        }
    };
    inner.state.keep_read(Pinned { runs, pieces });
    Ok(())
}

/// Has `reader` read all pages of the provider's table of the pin at `index`. Gives `inner`, the
/// state lock, up now and then; the answer holds it.
fn read_pages<'a>(
    registration: &'a Registration,
    mut inner: MutexGuard<'a, Inner>,
    index: usize,
    reader: &mut Reader,
) -> Result<MutexGuard<'a, Inner>, Reason> {
    loop {
        reader.read(&inner.page_table(index).ok_or(Reason::Freed)?)?;
        if reader.done() {
            return Ok(inner);
        }
        drop(inner);
        reader.make_room()?;
        shim::cond_resched();
        inner = registration.inner().lock();
    }
}

/// Reads and checks the head of the provider's table of the pin at `index`.
fn read_head(registration: &Registration, inner: &mut Inner, index: usize) -> Result<Piece, Reason> {
    let pieces = inner.state.held().map_or(0, Several::len);
    let table = inner.page_table(index).ok_or(Reason::Freed)?;
    let layout = table.layout().map_err(Reason::Table)?;
    let piece = Piece { span: table.pin().span(), layout, table: table.pin().persistent_table() };
    let entries = u64::from(layout.entries);
    registration.count_pages(inner, entries);
    let before = inner.tables.map_or(0, |tables| tables.pages);
    let page_size = inner.tables.map_or(layout.page_size, |tables| tables.page_size);
    inner.tables = Some(Tables { pieces, pages: before.saturating_add(entries), page_size });
    Ok(piece)
}
