// SPDX-License-Identifier: GPL-2.0

//! What the module keeps of one registration. [`crate::pin::count`] counts it, [`crate::pin::shown`]
//! shows it.
//!
//! What happens to a registration is elsewhere: [`crate::pin::pinning`] pins, [`crate::pin::steps`]
//! has the steps of the driver above, [`crate::invalidate`] the provider's callback, and
//! [`crate::pin::orphan`] puts.

use crate::dma::map::Mappings;
use crate::ffi::shim::{self, Kind, ModuleRef, Process, Task};
use crate::gpu::page_table::PageTable;
use crate::gpu::pin::Pins;
use crate::gpu::Pinned;
use crate::observe::reason::Reason;
use crate::pin::state::State;
use crate::pin::Owner;
use crate::range::GpuRange;
use crate::sg::{Room, Table};
use kernel::prelude::*;
use kernel::sync::{new_mutex, Mutex};

/// What the state lock protects.
pub(crate) struct Inner {
    /// Pins, what is known of their memory, revocation.
    pub(crate) state: State<Pins, Pinned, Mappings>,
    /// What the provider's tables said, for the admin; `None` before they were read.
    pub(crate) tables: Option<Tables>,
    /// Freed in `release` and nowhere else: the driver above may walk it until then.
    pub(crate) table: Option<Table>,
    /// The finding of [`crate::pin::pinning::pin`], for [`Registration::complete`].
    pub(crate) found: Found,
    /// Changed by [`crate::pin::count`] alone.
    pub(super) counted: Counted,
    /// When it was pinned, in nanoseconds; 0 before.
    pub(super) since_ns: u64,
    /// When the free callback that is running now began, 0 without one.
    pub(crate) callback_ns: u64,
    /// The task of that callback, if it has the driver above stop the device.
    pub(crate) invalidating: Option<Task>,
}

/// Pins that are counted as existing, and their bytes and pages.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) pins: u64,
    pub(super) bytes: u64,
    pub(super) pages: u64,
}

/// The numbers that the provider's tables have of a registration.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    /// Pins, each with a table: one for each allocation.
    pub(crate) pieces: usize,
    /// Pages of all of them.
    pub(crate) pages: u64,
    /// Bytes per page of the first.
    pub(crate) page_size: u64,
}

/// The finding of [`crate::pin::pinning::pin`] about memory that is ours.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// All of it is pinned, or being pinned.
    Pinned,
    /// Its start can be pinned. [`Registration::complete`] pins the rest.
    Start(Rest),
    /// It cannot be registered, and [`Registration::complete`] fails with this reason.
    Refused(Reason),
}

/// The part of a range for which [`Registration::complete`] asks the provider at first.
#[derive(Clone, Copy)]
pub(crate) enum Rest {
    /// All of the range: it is long, and may be one allocation.
    Whole,
    /// The first of several allocations: the provider does not know the range as one.
    Pieces,
}

impl Inner {
    /// Returns the provider's table of the pin at `index`, for reading: `None` once the pins are revoked
    /// or put, or if there are fewer.
    pub(crate) fn page_table(&self, index: usize) -> Option<PageTable<'_>> {
        // SAFETY: The pin is held and not revoked, and the answer borrows from under the state
        // lock. A put takes the pin out of the state first, and a free callback sets its mark
        // before it returns. Both need the state lock.
        self.state.held()?.get(index).map(|pin| unsafe { PageTable::of(pin) })
    }

    /// Notes that a free callback that began at `start_ns` found this registration, and whether it will
    /// wait for the device.
    pub(crate) fn begin_callback(&mut self, start_ns: u64, invalidating: bool) {
        self.callback_ns = start_ns;
        self.invalidating = if invalidating { Task::current() } else { None };
    }

    /// Notes that the callback is done here.
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
    pub(super) comm: [u8; 16],
    ticket: u64,
    /// Filled while it is pinned.
    #[pin]
    inner: Mutex<Inner>,
    /// Where a table of one entry lies.
    room: Room,
    /// Held by a free callback from before its mark until the owner's `stop` has returned.
    #[pin]
    invalidation: Mutex<()>,
    /// Last, so that it is given back last.
    _module: ModuleRef,
}

impl Registration {
    /// Makes a registration that is about to be pinned. `ticket` stands for it in the registry.
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

    /// Returns this registration's ticket.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Returns the owner that pins it.
    pub(crate) fn owner(&self) -> &'static Owner {
        self.owner
    }

    /// Returns the range that was asked for.
    pub(crate) fn range(&self) -> &GpuRange {
        &self.range
    }

    /// Returns whether the pin is one that the provider can take back by itself.
    pub(crate) fn is_revocable(&self) -> bool {
        self.owner.asked.kind == Kind::Revocable
    }

    /// Returns the state lock, and what it protects.
    pub(crate) fn inner(&self) -> &Mutex<Inner> {
        &self.inner
    }

    /// Returns room for the only table that this registration ever has.
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    /// Returns the invalidation lock.
    pub(crate) fn invalidation(&self) -> &Mutex<()> {
        &self.invalidation
    }

    /// Returns the process that registered. It alone may put a revocable pin: the provider knows such
    /// pins by process and table address only, and answers any other process as if the put had worked
    /// (rule 8).
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }
}
