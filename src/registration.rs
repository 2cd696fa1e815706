// SPDX-License-Identifier: GPL-2.0

//! One registration of GPU memory: what the seven callbacks of the core do.
//!
//! Rules and locks: docs/rules.md. L is [`Registration::body`]; what is decided under it is [`Life`]'s.

use crate::dma::device::Device;
use crate::dma::map::{Mapping, ProviderShape};
use crate::ffi::raw;
use crate::ffi::shim::{self, GExclusive, ModuleRef, Process, Task};
use crate::gpu::page_table::Reader;
use crate::gpu::pin::{Kind, PagePin, Shape};
use crate::invalidate;
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::observe::stats::{self, PerClient};
use crate::observe::trace::{self, Event, Timer};
use crate::range::{GpuRange, Span};
use crate::registry;
use crate::sg::{self, Run, Table};
use crate::state::{Ending, Life, Stage};
use kernel::alloc::KVVec;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};

/// One of the clients that we register with the core.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    /// How it pins.
    pub(crate) kind: Kind,
    /// Its place in the order in which the core asks.
    pub(crate) place: Place,
}

/// Place of a client in the core's walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Asked first.
    First,
    /// Asked when the first one said no.
    Second,
}

/// What L protects.
pub(crate) struct Body {
    /// Pin, mapping, revocation.
    pub(crate) life: Life<PagePin, Mapping>,
    /// The provider's table, as it was checked after the pin; `None` before that.
    shape: Option<Shape>,
    /// Physical runs, from the pin until `dma_map` consumes them; empty after that.
    runs: KVVec<Run>,
    /// Freed in `release` and nowhere else: the core may walk it until then.
    table: Option<Table>,
    /// Why `get_pages` will fail, for memory that is ours but cannot be registered.
    refused: Option<Reason>,
    /// Whether the pin is counted as one that exists.
    counted: bool,
    /// When it was pinned, in nanoseconds; 0 before.
    since_ns: u64,
    /// When the free callback that is running now began, 0 without one.
    callback_ns: u64,
    /// The task of that callback, if it calls the core's hook.
    invalidating: Option<Task>,
}

impl Body {
    /// A free callback found this registration and will wait for the core, or not.
    pub(crate) fn begin_callback(&mut self, invalidating: bool) {
        self.callback_ns = shim::now_ns();
        self.invalidating = invalidating.then(Task::current);
    }

    /// It is done here.
    pub(crate) fn end_callback(&mut self) {
        self.callback_ns = 0;
        self.invalidating = None;
    }
}

/// A registration as `/proc/driver/nvidia-peermem` shows it.
pub(crate) struct Row {
    pub(crate) client: Client,
    pub(crate) owner: Process,
    pub(crate) comm: [u8; 16],
    pub(crate) user: Span,
    pub(crate) pinned: Span,
    pub(crate) stage: Stage,
    pub(crate) shape: Option<Shape>,
    pub(crate) runs: usize,
    pub(crate) gpu: u64,
    pub(crate) nic: u64,
    pub(crate) since_ns: u64,
    pub(crate) callback_ns: u64,
    pub(crate) invalidating: bool,
}

/// See the module's text.
///
/// # Invariants
///
/// - `ticket` stands for this registration in the registry from before the provider is called until the pin is gone.
/// - After `release` no mapping and no device pointer is left in `body`.
#[pin_data]
pub(crate) struct Registration {
    client: Client,
    range: GpuRange,
    owner: Process,
    /// Name of the task that registered.
    comm: [u8; 16],
    ticket: u64,
    /// Filled by `acquire` before the core knows of this registration.
    #[pin]
    body: Mutex<Body>,
    /// Held by a free callback from before its mark until the core's hook has returned.
    #[pin]
    invalidation: Mutex<()>,
    /// Last, so that it is given back last.
    _module: ModuleRef,
}

impl Registration {
    /// Enters a registration that is about to be pinned. Fails with `EBUSY` while the module is being unloaded.
    pub(crate) fn new(client: Client, range: GpuRange) -> Result<Arc<Self>> {
        let module = ModuleRef::get().ok_or(EBUSY)?;
        let owner = Process::current();
        registry::insert(move |ticket| {
            let body = Body {
                life: Life::new(),
                shape: None,
                runs: KVVec::new(),
                table: None,
                refused: None,
                counted: false,
                since_ns: 0,
                callback_ns: 0,
                invalidating: None,
            };
            // INVARIANT: `registry::insert()` enters the registration under this ticket; there is no mapping yet.
            Arc::pin_init(
                pin_init!(Self {
                    client,
                    range,
                    owner,
                    comm: shim::current_comm(),
                    ticket,
                    body <- new_mutex!(body, "nvidia_peermem::Registration::body"),
                    invalidation <- new_mutex!((), "nvidia_peermem::Registration::invalidation"),
                    _module: module,
                }),
                GFP_KERNEL,
            )
        })
    }

    /// This registration's ticket.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// The client that the core asked.
    pub(crate) fn client(&self) -> Client {
        self.client
    }

    /// L, and what it protects.
    pub(crate) fn body(&self) -> &Mutex<Body> {
        &self.body
    }

    /// The invalidation lock.
    pub(crate) fn invalidation(&self) -> &Mutex<()> {
        &self.invalidation
    }

    /// Whether `process` may put the pin: the provider knows revocable pins by process and table address only, and
    /// answers any other process as if the put had worked (rule 8).
    pub(crate) fn may_be_put_by(&self, process: &Process) -> bool {
        self.only_owner().is_none_or(|owner| owner == *process)
    }

    /// The process that alone may put the pin; `None` if any may.
    pub(crate) fn only_owner(&self) -> Option<Process> {
        (self.client.kind == Kind::Revocable).then_some(self.owner)
    }

    /// Calls the provider's get. Takes G and R.
    pub(crate) fn get(&self) -> Result {
        let timer = Timer::start(Event::Pin);
        let pin = PagePin::get(self.client.kind, self.range.pinned(), self.ticket);
        timer.end(|| self.traced(), pin.as_ref().map(|_| ()).map_err(|error| *error));
        let mut body = self.body.lock();
        match pin {
            Ok(pin) => {
                if self.client.kind == Kind::Revocable {
                    invalidate::arm();
                }
                body.since_ns = shim::now_ns();
                self.count_pin(&mut body);
                // If the callback was faster, `copy_runs()` will find out.
                if !body.life.pinned(pin) {
                    self.count_unpin(&mut body);
                }
                Ok(())
            }
            Err(error) => {
                body.life.no_pin();
                Err(error)
            }
        }
    }

    fn counters(&self) -> &'static PerClient {
        stats::client(self.client.kind)
    }

    fn count_pin(&self, body: &mut Body) {
        body.counted = true;
        self.counters().pins.add(1);
        self.counters().pinned_bytes.add(self.range.pinned().len());
    }

    /// Counts the end of the pin, whoever ended it: once.
    pub(crate) fn count_unpin(&self, body: &mut Body) {
        if core::mem::take(&mut body.counted) {
            let counters = self.counters();
            counters.unpins.add(1);
            counters.unpinned_bytes.add(self.range.pinned().len());
            if let Some(shape) = body.shape {
                counters.unpinned_pages.add(u64::from(shape.entries));
            }
        }
    }

    /// What tracepoints show of this registration.
    pub(crate) fn traced(&self) -> raw::nvpm_traced {
        raw::nvpm_traced {
            ticket: self.ticket,
            va: self.range.user().start(),
            length: self.range.user().len(),
            revocable: (self.client.kind == Kind::Revocable).into(),
        }
    }

    /// Leaves the pin, which is an orphan since this hold of L began, to whoever can end it.
    fn enlist_orphan(&self) {
        registry::add_orphan(self);
        self.counters().orphaned.add(1);
        trace::now(Event::Orphan, &self.traced());
    }

    /// Counts the free callback's mark. Called under L.
    pub(crate) fn count_revocation(&self, body: &mut Body) {
        self.counters().revocations.add(1);
        // A put that is under way will find nothing to put: the pin ended here.
        self.count_unpin(body);
    }

    /// Counts that this registration is no orphan any more: by whoever ended that state, once.
    pub(crate) fn count_adopted(&self) {
        self.counters().adopted.add(1);
    }

    /// Puts an orphan that was taken out of the list of orphans. `false` if the provider has no memory to do it.
    pub(crate) fn end_orphan(&self) -> bool {
        if !self.body.lock().life.adopt() {
            // The callback was faster, and ends the registration.
            return true;
        }
        self.count_adopted();
        self.end()
    }

    /// This registration as the admin sees it. Takes L.
    pub(crate) fn row(&self) -> Row {
        let body = self.body.lock();
        let (runs, (gpu, nic)) = match body.life.mapping() {
            Some(mapping) => (mapping.runs(), mapping.ends()),
            None => (body.runs.len(), (0, 0)),
        };
        Row {
            client: self.client,
            owner: self.owner,
            comm: self.comm,
            user: self.range.user(),
            pinned: self.range.pinned(),
            stage: body.life.stage(),
            shape: body.shape,
            runs,
            gpu,
            nic,
            since_ns: body.since_ns,
            callback_ns: body.callback_ns,
            invalidating: body.invalidating.is_some(),
        }
    }

    /// Copies what is needed of the provider's table, which is never looked at again (rule 4). Takes L, often.
    pub(crate) fn copy_runs(&self) -> Result<(), Reason> {
        let shape = self.shape()?;
        let mut reader = Reader::new(shape, self.skip(), self.range.pages().len())?;
        while !reader.done() {
            reader.make_room()?;
            reader.read(&self.body.lock().life.held().ok_or(Reason::Freed)?)?;
            shim::cond_resched();
        }
        let runs = reader.finish()?;
        self.body.lock().runs = runs;
        Ok(())
    }

    /// Reads and checks the head of the provider's table.
    fn shape(&self) -> Result<Shape, Reason> {
        let mut body = self.body.lock();
        let held = body.life.held().ok_or(Reason::Freed)?;
        let shape = held.shape(self.range.pinned()).map_err(Reason::Table)?;
        body.shape = Some(shape);
        self.counters().pinned_pages.add(u64::from(shape.entries));
        Ok(shape)
    }

    /// Bytes of the pinned span in front of what the sg_table covers.
    fn skip(&self) -> u64 {
        self.range.pages().start().wrapping_sub(self.range.pinned().start())
    }

    /// There will be no pin: the provider need not be asked.
    pub(crate) fn give_up(&self) {
        self.body.lock().life.no_pin();
    }

    /// Remembers why `get_pages` will fail.
    pub(crate) fn refuse(&self, reason: Reason) {
        self.body.lock().refused = Some(reason);
    }

    /// Says why this registration fails, and returns the errno that the user sees.
    fn fail(&self, reason: Reason) -> Error {
        refusals::refused(reason, self.client, self.range.user());
        reason.errno()
    }

    /// The core's `get_pages`: takes over what `acquire` pinned. M is held. `core_ticket` is for the invalidate hook.
    pub(crate) fn get_pages(&self, addr: u64, size: u64, core_ticket: u64) -> Result {
        let refused = {
            let mut body = self.body.lock();
            if addr != self.range.user().start() || size != self.range.user().len() {
                Some(Reason::CoreOrder)
            } else if body.refused.is_some() {
                body.refused
            } else if body.life.held().is_none() {
                Some(Reason::Freed)
            } else {
                body.life.set_core_ticket(core_ticket);
                None
            }
        };
        match refused {
            Some(reason) => Err(self.fail(reason)),
            None => Ok(()),
        }
    }

    /// The core's `dma_map`: maps for `device`, and gives the core a table of exactly the page-aligned user range.
    ///
    /// M is held. Takes L; calls the provider (R) only for persistent pins (rule 5). Sleeps.
    ///
    /// # Safety
    ///
    /// `sg` and `nmap` are valid for writing; the core stops reading `*sg` before it calls `release`.
    pub(crate) unsafe fn dma_map(&self, sg: *mut raw::sg_table, device: Option<Device>, nmap: *mut c_int) -> Result {
        let timer = Timer::start(Event::Map);
        // SAFETY: By this function's contract.
        let mapped = unsafe { self.try_dma_map(sg, device, nmap) }.map_err(|reason| self.fail(reason));
        timer.end(|| self.traced(), mapped);
        mapped
    }

    /// See [`Self::dma_map`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn try_dma_map(
        &self,
        sg: *mut raw::sg_table,
        device: Option<Device>,
        nmap: *mut c_int,
    ) -> Result<(), Reason> {
        let device = device.ok_or(Reason::NoDevice)?;
        let (runs, shape, provider_table) = {
            let mut body = self.body.lock();
            let provider_table = body.life.held().ok_or(Reason::Freed)?.persistent_table();
            let shape = body.shape.ok_or(Reason::CoreOrder)?;
            (core::mem::take(&mut body.runs), shape, provider_table)
        };
        if runs.is_empty() {
            return Err(Reason::CoreOrder);
        }
        let shape = ProviderShape {
            page_size: shape.page_size,
            entries: shape.entries,
            skip: self.skip(),
            wanted: self.range.pages().len(),
        };
        let mapping = Mapping::new(device, runs, shape, provider_table)?;
        let cap = sg::cap(device.segment_limit(), shim::page_size());
        let table = Table::new(mapping.dma_runs(), cap).map_err(|error| match error {
            error if error == EOVERFLOW => Reason::TooManyEntries,
            _ => Reason::NoMemory,
        })?;
        let runs = mapping.runs();
        let unpublished = {
            let mut body = self.body.lock();
            match body.life.publish(mapping) {
                Ok(()) => {
                    self.counters().maps.add(1);
                    self.counters().mapped_runs.add(u64::try_from(runs).unwrap_or(0));
                    // SAFETY: `sg` and `nmap` are valid by this function's contract, and so is the order of the core's
                    // last look and `release`, where alone the table is dropped.
                    unsafe { table.publish(sg, nmap) };
                    body.table = Some(table);
                    None
                }
                Err(mapping) => {
                    let reason = if body.life.held().is_none() { Reason::Freed } else { Reason::CoreOrder };
                    Some((mapping, reason))
                }
            }
        };
        match unpublished {
            None => Ok(()),
            // Dropping the mapping undoes it.
            Some((_mapping, reason)) => Err(reason),
        }
    }

    /// The core's `dma_unmap`: unmaps, unless the callback did. M is held on old cores. Takes L.
    pub(crate) fn dma_unmap(&self) {
        let timer = Timer::start(Event::Unmap);
        let mut body = self.body.lock();
        let Some(mapping) = body.life.take_mapping() else {
            return;
        };
        let counters = self.counters();
        counters.unmaps.add(1);
        counters.unmapped_runs.add(u64::try_from(mapping.runs()).unwrap_or(0));
        if mapping.is_providers() {
            // The provider is not called under L. Its mappings are of persistent pins, which no callback races for.
            drop(body);
            drop(mapping);
        } else {
            // Unmapped before L goes (rule 6). The list's memory, megabytes for broken memory, goes in `release`.
            mapping.undo(&mut body.runs);
            drop(body);
        }
        timer.end(|| self.traced(), Ok(()));
    }

    /// The core's `release`: ends the registration, in whatever state it is. Waits until no free callback of it is inside
    /// the core's hook, which reads the umem's client there; the core forgets that client once this has returned.
    ///
    /// The core holds no lock, except old ones inside the free callback: then the pin is revoked, and neither G nor the
    /// provider is touched.
    pub(crate) fn release(&self) {
        // From here on no mapping is live, and no further callback will call the hook.
        self.dma_unmap();
        let (table, runs, invalidating) = {
            let mut body = self.body.lock();
            (body.table.take(), core::mem::take(&mut body.runs), body.invalidating)
        };
        // A core that releases inside its own hook would wait for itself.
        if invalidating.is_some_and(|task| task != Task::current()) {
            drop(self.invalidation.lock());
        }
        // Not under L, and not left to whoever ends an orphan: that may be the free callback.
        drop((table, runs));
        self.end();
    }

    /// Ends the pin, or leaves it to whoever can (rules 7 and 8). `false` if the provider had no memory to do it.
    ///
    /// Takes L, G and R, one after the other; if the pin is revoked, L only.
    pub(crate) fn end(&self) -> bool {
        if self.body.lock().life.ending() == Ending::Done {
            registry::remove(self.ticket);
            return true;
        }
        if !self.may_be_put_by(&Process::current()) {
            let mut body = self.body.lock();
            if body.life.orphan() {
                self.enlist_orphan();
                return true;
            }
            drop(body);
            registry::remove(self.ticket);
            return true;
        }
        let g = (self.client.kind == Kind::Revocable).then(GExclusive::lock);
        let pin = self.body.lock().life.take_for_put();
        if let Some(pin) = pin {
            let timer = Timer::start(Event::Put);
            let put = pin.put();
            timer.end(|| self.traced(), put.as_ref().copied().map_err(|(_, error)| *error));
            let mut body = self.body.lock();
            let failed = match put {
                Ok(()) => {
                    body.life.no_pin();
                    None
                }
                Err((Some(pin), _)) => {
                    if body.life.put_failed(pin) {
                        self.enlist_orphan();
                        return false;
                    }
                    None
                }
                Err((None, error)) => {
                    body.life.no_pin();
                    Some(error)
                }
            };
            self.count_unpin(&mut body);
            drop(body);
            if let Some(error) = failed {
                refusals::not_taken_back(error, self.client, self.range.user());
            }
        }
        drop(g);
        registry::remove(self.ticket);
        true
    }
}
