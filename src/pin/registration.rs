// SPDX-License-Identifier: GPL-2.0

//! What the module keeps of one registration, and how that is counted and shown.
//!
//! What happens to a registration is elsewhere: [`crate::pin::pinning`] pins, [`crate::pin::steps`]
//! answers the core's callbacks, [`crate::invalidate`] the provider's, and [`crate::pin::orphan`] puts.

use crate::dma::map::Mappings;
use crate::ffi::raw;
use crate::ffi::shim::{self, Kind, ModuleRef, Process, Task};
use crate::gpu::page_table::PageTable;
use crate::gpu::pin::{Lost, PagePin, Pins};
use crate::gpu::Pinned;
use crate::num;
use crate::observe::proc::{Snapshot, Tables};
use crate::observe::reason::Reason;
use crate::observe::refusals::Asked;
use crate::observe::stats::{self, PerClient};
use crate::observe::trace::{Event, Timer};
use crate::pin::state::{Memory, State};
use crate::pin::Owner;
use crate::range::{GpuRange, Span};
use crate::sg::{Room, Table};
use kernel::prelude::*;
use kernel::sync::{new_mutex, Mutex};

/// What the state lock protects.
pub(crate) struct Inner {
    /// Pins, what is known of their memory, revocation.
    pub(crate) state: State<Pins, Pinned, Mappings>,
    /// What the provider's tables said, for the admin; `None` before they were read.
    pub(crate) tables: Option<Tables>,
    /// Freed in `release` and nowhere else: the core may walk it until then.
    pub(crate) table: Option<Table>,
    /// What `acquire` found of memory that is ours, for `get_pages`.
    pub(crate) found: Found,
    /// Pins that are counted as existing, and their bytes and pages.
    counted: Counted,
    /// When it was pinned, in nanoseconds; 0 before.
    since_ns: u64,
    /// When the free callback that is running now began, 0 without one.
    pub(crate) callback_ns: u64,
    /// The task of that callback, if it calls the core's hook.
    pub(crate) invalidating: Option<Task>,
}

/// What `acquire` found of memory that is ours.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// All of it is pinned, or being pinned.
    Pinned,
    /// Its start can be pinned. `get_pages` pins the rest.
    Start(Rest),
    /// It cannot be registered, and `get_pages` fails with this reason.
    Refused(Reason),
}

/// What `get_pages` asks the provider for at first.
#[derive(Clone, Copy)]
pub(crate) enum Rest {
    /// All of the range: it is long, and may be one allocation.
    Whole,
    /// The first of several allocations: the provider does not know the range as one.
    Pieces,
}

/// See [`Inner`].
#[derive(Default)]
struct Counted {
    pins: u64,
    bytes: u64,
    pages: u64,
}

impl Inner {
    /// The provider's table of the pin at `index`, for reading: `None` once the pins are revoked or
    /// put, or if there are fewer.
    pub(crate) fn page_table(&self, index: usize) -> Option<PageTable<'_>> {
        // SAFETY: The pin is held and not revoked, and the answer borrows from under the state
        // lock. A put takes the pin out of the state first, and a free callback sets its mark
        // before it returns. Both need the state lock.
        self.state.held()?.get(index).map(|pin| unsafe { PageTable::of(pin) })
    }

    /// A free callback that began at `start_ns` found this registration, and will wait for the core or
    /// not.
    pub(crate) fn begin_callback(&mut self, start_ns: u64, invalidating: bool) {
        self.callback_ns = start_ns;
        self.invalidating = if invalidating { Task::current() } else { None };
    }

    /// It is done here.
    pub(crate) fn end_callback(&mut self) {
        self.callback_ns = 0;
        self.invalidating = None;
    }
}

/// One registration of GPU memory.
///
/// # Invariants
///
/// - `ticket` stands for this registration in the registry from before the provider is called until
///   the pin is gone.
/// - After `release` no mapping and no device pointer is left in `inner`.
#[pin_data]
pub(crate) struct Registration {
    owner: &'static Owner,
    range: GpuRange,
    process: Process,
    /// Name of the task that registered.
    comm: [u8; 16],
    ticket: u64,
    /// Filled by `acquire`, and by `get_pages` where that pins what `acquire` left.
    #[pin]
    inner: Mutex<Inner>,
    /// Where a table of one entry lies.
    room: Room,
    /// Held by a free callback from before its mark until the core's hook has returned.
    #[pin]
    invalidation: Mutex<()>,
    /// Last, so that it is given back last.
    _module: ModuleRef,
}

impl Registration {
    /// A registration that is about to be pinned. `ticket` stands for it in the registry.
    pub(crate) fn new(owner: &'static Owner, range: GpuRange, module: ModuleRef, ticket: u64) -> impl PinInit<Self> {
        // In place: it is large.
        let inner = init!(Inner {
            state: State::new(),
            tables: None,
            table: None,
            found: Found::Pinned,
            counted: Counted::default(),
            since_ns: 0,
            callback_ns: 0,
            invalidating: None,
        });
        // INVARIANT: The caller enters the registration under this ticket. There is no mapping yet.
        pin_init!(Self {
            owner,
            range,
            process: Process::current(),
            comm: shim::current_comm(),
            ticket,
            room: Room::new(),
            inner <- new_mutex!(inner, "nvidia_peermem::Registration::inner"),
            invalidation <- new_mutex!((), "nvidia_peermem::Registration::invalidation"),
            _module: module,
        })
    }

    /// This registration's ticket.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// The owner that pins it.
    pub(crate) fn owner(&self) -> &'static Owner {
        self.owner
    }

    /// What was asked for.
    pub(crate) fn range(&self) -> &GpuRange {
        &self.range
    }

    /// Whether the pin is one that the provider can take back by itself.
    pub(crate) fn is_revocable(&self) -> bool {
        self.owner.kind == Kind::Revocable
    }

    /// The state lock, and what it protects.
    pub(crate) fn inner(&self) -> &Mutex<Inner> {
        &self.inner
    }

    /// Room for the only table that this registration ever has.
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    /// The invalidation lock.
    pub(crate) fn invalidation(&self) -> &Mutex<()> {
        &self.invalidation
    }

    /// The process that registered. It alone may put a revocable pin: the provider knows such pins by
    /// process and table address only, and answers any other process as if the put had worked (rule
    /// 8).
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// The counters of this registration's owner.
    pub(crate) fn counters(&self) -> &'static PerClient {
        stats::client(self.owner.kind)
    }

    /// Counts a pin that the provider just gave. Called under the state lock.
    pub(crate) fn count_pin(&self, inner: &mut Inner, pin: &PagePin) {
        let bytes = pin.span().len();
        inner.since_ns = pin.since_ns();
        inner.counted.pins = inner.counted.pins.saturating_add(1);
        inner.counted.bytes = inner.counted.bytes.saturating_add(bytes);
        self.counters().pins.add(1);
        self.counters().pinned_bytes.add(bytes);
    }

    /// Counts the pages of a table that was just read. Called under the state lock.
    pub(crate) fn count_pages(&self, inner: &mut Inner, pages: u64) {
        inner.counted.pages = inner.counted.pages.saturating_add(pages);
        self.counters().pinned_pages.add(pages);
    }

    /// Counts the end of a pin in favour of a longer one. Called under the state lock.
    pub(crate) fn count_replaced(&self, inner: &mut Inner, bytes: u64) {
        inner.counted.pins = inner.counted.pins.saturating_sub(1);
        inner.counted.bytes = inner.counted.bytes.saturating_sub(bytes);
        self.counters().unpins.add(1);
        self.counters().unpinned_bytes.add(bytes);
    }

    /// Counts the end of all pins: once, for the first that ended them. Called under the state
    /// lock.
    pub(crate) fn count_unpin(&self, inner: &mut Inner) {
        let counted = core::mem::take(&mut inner.counted);
        if counted.pins != 0 {
            let counters = self.counters();
            counters.unpins.add(counted.pins);
            counters.unpinned_bytes.add(counted.bytes);
            counters.unpinned_pages.add(counted.pages);
        }
    }

    /// Counts pins that the provider failed to take back, and that nothing can end any more. They
    /// also count as ended.
    pub(crate) fn count_lost(&self, lost: &Lost) {
        self.counters().lost.add(lost.pins);
        self.counters().lost_bytes.add(lost.bytes);
    }

    /// Counts the free callback's mark. Called under the state lock.
    pub(crate) fn count_revocation(&self, inner: &mut Inner) {
        self.counters().revocations.add(1);
        // A put that is under way will find nothing to put: the pin ended here.
        self.count_unpin(inner);
    }

    /// Counts that this registration is no orphan any more: once, by who ended that state.
    pub(crate) fn count_adopted(&self) {
        self.counters().adopted.add(1);
    }

    /// Ends the live mapping, if there is one. Calls `also` under the same hold of the state lock,
    /// whether or not this call unmapped. Takes the state lock.
    pub(crate) fn unmap_and<T>(&self, also: impl FnOnce(&mut Inner) -> T) -> T {
        let timer = Timer::start(Event::Unmap);
        let mut inner = self.inner().lock();
        // Unmapped before the state lock goes (rule 6). The memory of its runs, megabytes for
        // broken memory behind an IOMMU, goes in `release`.
        let (mut ended, mut left) = (false, Memory::None);
        if let Some(mappings) = inner.state.end_mapping() {
            ended = true;
            let runs = match mappings.undo() {
                Some(runs) => runs,
                None => {
                    let runs = mappings.runs();
                    left = inner.state.take_rest();
                    runs
                }
            };
            let counters = self.counters();
            counters.unmaps.add(1);
            counters.unmapped_runs.add(num::u64_from(runs));
        }
        let answer = also(&mut inner);
        drop(inner);
        // These are of persistent pins, which no callback races for. The provider is not called
        // under the state lock.
        drop(left);
        if ended {
            timer.end(|| self.traced(), Ok(()));
        }
        answer
    }

    /// The owner as refusals and `/proc` name it.
    pub(crate) fn asked(&self) -> Asked {
        self.owner.asked()
    }

    /// What tracepoints show of this registration.
    pub(crate) fn traced(&self) -> raw::nvpm_traced {
        raw::nvpm_traced {
            ticket: self.ticket,
            va: self.range.user().start(),
            length: self.range.user().len(),
            revocable: self.is_revocable().into(),
        }
    }

    /// What tracepoints show of one of its pieces.
    pub(crate) fn traced_piece(&self, piece: Span) -> raw::nvpm_traced {
        raw::nvpm_traced { va: piece.start(), length: piece.len(), ..self.traced() }
    }

    /// This registration as the admin sees it. `inner` is its own.
    pub(crate) fn snapshot(&self, inner: &Inner) -> Snapshot {
        let (runs, (gpu, nic)) = match inner.state.memory() {
            Memory::None => (0, (0, 0)),
            Memory::Read(pinned) => (pinned.runs.as_slice().len(), (0, 0)),
            Memory::Mapped(mappings) => (mappings.runs(), mappings.ends()),
        };
        Snapshot {
            client: self.asked(),
            process: self.process,
            comm: self.comm,
            user: self.range.user(),
            pinned_bytes: inner.counted.bytes,
            state: inner.state.phase().text(),
            tables: inner.tables,
            runs,
            gpu,
            nic,
            since_ns: inner.since_ns,
            callback_ns: inner.callback_ns,
            invalidating: inner.invalidating.is_some(),
        }
    }
}
