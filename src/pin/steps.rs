// SPDX-License-Identifier: GPL-2.0

//! The steps that the driver above takes with one registration, once that has begun to be pinned.
//!
//! Rules and locks: docs/rules.md.

use crate::dma::device::Device;
use crate::dma::map::Mappings;
use crate::ffi::raw;
use crate::ffi::shim::{self, Task};
use crate::gpu::pin::Permit;
use crate::gpu::{self, topology, Question};
use crate::num;
use crate::observe::reason::Reason;
use crate::observe::refusals;
use crate::observe::trace::{Event, Timer};
use crate::pin::orphan::{self, Ended};
use crate::pin::pinning::{self, Stopped};
use crate::pin::registration::{Found, Inner, Registration};
use crate::pin::state::{Ending, Memory};
use crate::sg::{self, Runs, Table};
use kernel::prelude::*;

impl Registration {
    /// Says why this registration fails, and returns the errno that the user sees.
    fn fail(&self, reason: Reason) -> Error {
        refusals::refused(reason, &self.owner().asked, self.range().user());
        reason.errno()
    }

    /// Completes the pin: pins what [`pinning::pin`] left, or fails with the reason that it found. `addr`
    /// and `size` are those of the registration. [`crate::pin::Owner::stop`] gets `owner_ticket`.
    ///
    /// A stop lock may be held. Takes the state lock, and the RM API lock where there is something to pin,
    /// persistently. Sleeps.
    pub(crate) fn complete(&self, addr: u64, size: u64, owner_ticket: u64) -> Result {
        let user = self.range().user();
        if addr != user.start() || size != user.len() {
            return Err(self.fail(Reason::Order));
        }
        let mut inner = self.inner().lock();
        match inner.found {
            Found::Pinned => {}
            Found::Refused(reason) => {
                drop(inner);
                return Err(self.fail(reason));
            }
            Found::Start(rest) => {
                inner.found = Found::Pinned;
                drop(inner);
                match pinning::pin_rest(self, rest) {
                    Ok(()) => {}
                    Err(Stopped::Refused(reason)) => return Err(self.fail(reason)),
                    Err(Stopped::Killed) => return Err(EINTR),
                }
                inner = self.inner().lock();
            }
        }
        if inner.state.held().is_none() {
            drop(inner);
            return Err(self.fail(Reason::Freed));
        }
        inner.state.set_owner_ticket(owner_ticket);
        Ok(())
    }

    /// Maps for `device`, once, and writes a table of exactly the page-aligned user range into `sg`.
    ///
    /// A stop lock may be held. Takes the state lock; calls the provider (RM API lock) only for persistent
    /// pins (rule 5). Sleeps.
    ///
    /// # Safety
    ///
    /// `sg` and `nmap` are valid for writing. Nobody reads `*sg` any more when `release` is called.
    pub(crate) unsafe fn map_into(&self, sg: *mut raw::sg_table, device: Option<Device>, nmap: *mut c_int) -> Result {
        let list = |mappings: &mut Mappings, cap| {
            // SAFETY: The room is the registration's, which does not move, and which drops the table in
            // `release`. There is one table, because this is called once at most.
            unsafe { mappings.table(self.range(), cap, self.room()) }.map(Some)
        };
        // SAFETY: By this function's contract.
        unsafe { self.map_and(device, list, sg, nmap) }
    }

    /// Maps for `device`, once, and returns the addresses of exactly the user's bytes, as the device must be
    /// given them. Locks are held and taken as [`Self::map_into`] says. Sleeps.
    // nvidia-peermem has no use for it.
    #[allow(dead_code)]
    pub(crate) fn map(&self, device: Device) -> Result<Runs> {
        let mut addresses = Runs::None;
        let list = |mappings: &mut Mappings, cap| {
            addresses = mappings.addresses(self.range(), cap)?;
            Ok(None)
        };
        // SAFETY: There is no table, so neither pointer is used.
        unsafe { self.map_and(Some(device), list, core::ptr::null_mut(), core::ptr::null_mut()) }?;
        Ok(addresses)
    }

    /// Maps for `device`, once. `list` lists the addresses, cut at the number that it gets, without a lock
    /// of ours, and is called once at most in the life of a registration. If it makes a table, that goes to
    /// `sg` and `nmap`.
    ///
    /// # Safety
    ///
    /// If `list` makes a table: as [`Self::map_into`].
    unsafe fn map_and(
        &self,
        device: Option<Device>,
        list: impl FnOnce(&mut Mappings, u32) -> Result<Option<Table>>,
        sg: *mut raw::sg_table,
        nmap: *mut c_int,
    ) -> Result {
        let timer = Timer::start(Event::Map);
        // SAFETY: By this function's contract.
        let mapped = unsafe { self.try_map_and(device, list, sg, nmap) }.map_err(|reason| self.fail(reason));
        timer.end(|| self.traced(), mapped);
        mapped
    }

    /// Does the work of [`Self::map_and`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn try_map_and(
        &self,
        device: Option<Device>,
        list: impl FnOnce(&mut Mappings, u32) -> Result<Option<Table>>,
        sg: *mut raw::sg_table,
        nmap: *mut c_int,
    ) -> Result<(), Reason> {
        let device = device.ok_or(Reason::NoDevice)?;
        let pinned = {
            let mut inner = self.inner().lock();
            inner.state.held().ok_or(Reason::Freed)?;
            inner.state.take_read().ok_or(Reason::Order)?
        };
        let placed = gpu::place(pinned)?;
        for question in placed.questions() {
            self.ask(device, &question)?;
        }
        // SAFETY: This registration's pins are put in `release` or later, which ends the mapping first.
        let mut mappings = unsafe { placed.map(device) }?;
        let cap = sg::cap(device.segment_limit(), shim::page_size());
        let table = list(&mut mappings, cap).map_err(|error| match error {
            error if error == EOVERFLOW => Reason::TooManyEntries,
            _ => Reason::NoMemory,
        })?;
        let runs = mappings.runs();
        let unpublished = {
            let mut inner = self.inner().lock();
            match inner.state.publish(mappings) {
                Ok(()) => {
                    self.counters().maps.add(1);
                    self.counters().mapped_runs.add(num::u64_from(runs));
                    if let Some(table) = table {
                        // SAFETY: `sg` and `nmap` are valid by this function's contract. By the same, the
                        // last look at the table is before `release`, where alone it is dropped.
                        unsafe { table.publish(sg, nmap) };
                        inner.table = Some(table);
                    }
                    None
                }
                Err(mappings) => {
                    let reason = if inner.state.held().is_none() { Reason::Freed } else { Reason::Order };
                    Some((mappings, reason))
                }
            }
        };
        match unpublished {
            None => Ok(()),
            // Dropping the mappings undoes them.
            Some((_mappings, reason)) => Err(reason),
        }
    }

    /// Asks the provider, once per pair, whether a GPU and `device` reach each other. One granule says
    /// what a whole table would.
    fn ask(&self, device: Device, question: &Question) -> Result<(), Reason> {
        let Question { gpu, table } = *question;
        let Some((span, table)) = table else {
            topology::note_unasked(gpu, device);
            return Ok(());
        };
        topology::ask(gpu, device, || {
            // SAFETY: `with_first_granule()` lends the table of a persistent pin that stays meanwhile.
            let asked =
                pinning::with_first_granule(self, span, table, |table| unsafe { topology::try_map(device, table) });
            // Where there is no such granule, nobody is asked now.
            asked.unwrap_or(Err(ENOMEM))
        })
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

    /// Unmaps, unless the callback did. A stop lock may be held. Takes the state lock.
    pub(crate) fn unmap(&self) {
        self.unmap_and(|_| ());
    }

    /// Ends the registration, in whatever state it is. Waits until no free callback of it is inside the
    /// owner's `stop`, which may use what the driver above frees once this has returned.
    ///
    /// No stop lock is held. A driver that releases inside its own `stop` does so in the callback's task:
    /// then the pin is revoked, and neither the put gate nor the provider is touched.
    // Inline, so that it becomes part of its only caller.
    #[inline]
    pub(crate) fn release(&self) {
        // From here on no mapping is live, and no further callback will call `stop`.
        let (lists, invalidating, ending, pins) = self.unmap_and(|inner| {
            let lists = (inner.table.take(), inner.state.take_rest());
            let ending = inner.state.ending();
            let pins = if self.is_revocable() { None } else { inner.state.take_for_put() };
            (lists, inner.invalidating, ending, pins)
        });
        // A driver that releases inside its own `stop` would wait for itself.
        if invalidating.is_some() && invalidating != Task::current() {
            drop(self.invalidation().lock());
        }
        // Not under the state lock. Nor later: an orphan may end in the callback, which must not
        // free.
        drop(lists);
        // What the provider kept is an orphan now (rule 8).
        // Rule 7: after a revocation the provider is not called, not even for orphans.
        let ended = if self.is_revocable() { orphan::end(self) } else { orphan::put(self, pins, &Permit::Persistent) };
        if ended == Ended::Settled && ending == Ending::Put {
            orphan::reap(orphan::REAPED_BY_RELEASE);
        }
    }
}
