// SPDX-License-Identifier: GPL-2.0

//! One registration of pinned GPU memory: how it is pinned, mapped and put, and what is kept of it.
//!
//! All that this folder knows of the driver above it is an [`Owner`]. That driver may hold locks of its own
//! when it calls. One kind of them matters here, and is called a *stop lock*: a lock that [`Owner::stop`]
//! takes. The provider holds the RM API lock while `stop` runs. So nobody who holds a lock that `stop`
//! takes for any pin may call the provider. A driver whose registrations have one such lock each may call
//! it under that of a persistent pin, because no callback waits for that one: below, "under a stop lock
//! for a persistent pin only" speaks of such a lock.
//!
//! A registration takes these steps: [`pinning::pin`] finds out whose memory it is and begins to pin it,
//! [`Registration::complete`](registration::Registration::complete) pins the rest, `map_into` maps it for
//! a device, `unmap` ends that, and `release` ends the registration, also after a step that failed. A
//! [`buffer::Buffer`] takes them all for a driver that does not depend on the order of others.

// nvidia-peermem has no use for it.
#[allow(dead_code)]
pub(crate) mod buffer;
mod count;
pub(crate) mod orphan;
mod pieces;
pub(crate) mod pinning;
pub(crate) mod registration;
pub(crate) mod registry;
pub(crate) mod shown;
pub(crate) mod state;
mod steps;
mod tables;
pub(crate) mod verdict;

use crate::observe::refusals::Asked;

/// The one that pins, as this layer knows it. A driver has one for each kind of pin, which lives as
/// long as the module.
///
/// It is plain data, because every step of a registration looks at the kind: a trait object would ask for
/// it by a call, and a generic registration could not lie in one registry with others.
pub(crate) struct Owner {
    /// Its name, the kind of its pins, and its words for refusals.
    pub(crate) asked: Asked,
    /// Who pins what this one cannot.
    pub(crate) otherwise: Otherwise,
    /// Has the device stop using a registration, by the ticket that the driver gave for it, and returns
    /// once it has. The free callback calls this with the RM API lock and every GPU lock held, while
    /// the registration is mapped. It must wait for nothing but the device.
    ///
    /// # Safety
    ///
    /// There is a registration of this owner.
    pub(crate) stop: unsafe fn(ticket: u64),
}

/// Who pins memory that an owner cannot pin in its way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// Another owner, revocably.
    Revocable,
    /// Nobody, but another one would, revocably, if the admin had asked for that.
    RevocableIfAsked,
    /// Nobody.
    Nobody,
}
