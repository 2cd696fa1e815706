// SPDX-License-Identifier: GPL-2.0

//! The clients that we register with the core: their names, how they pin, the order in which the
//! core asks them, and what the core gave for each.

use crate::ffi::raw;
use crate::ffi::shim::{Kind, EOPNOTSUPP};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};

/// Whether this kernel's core has the peer-memory API.
pub(crate) fn find_core() -> Result {
    // SAFETY: No precondition.
    if unsafe { raw::nvpm_core_present() } != 0 {
        return Ok(());
    }
    pr_err!(
        "this kernel's ib_core has no peer-memory API (no symbol ib_register_peer_memory_client): install DOCA-OFED or MLNX_OFED, or use a linux-nvidia kernel; applications that use dma-buf need neither\n"
    );
    Err(Error::from_errno(EOPNOTSUPP))
}

/// One of the clients that pin.
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

/// The name and pinning of one client.
struct Role {
    name: &'static str,
    kind: Kind,
}

/// Clients by mode, in the order in which the core asks them (README, parameters).
static PERSISTENT_FIRST: [Role; 2] =
    [Role { name: "nv_mem", kind: Kind::Persistent }, Role { name: "nv_mem_rv", kind: Kind::Revocable }];
static REVOCABLE_FIRST: [Role; 2] =
    [Role { name: "nv_mem", kind: Kind::Revocable }, Role { name: "nv_mem_nc", kind: Kind::Persistent }];
/// The client behind [`PERSISTENT_FIRST`]. It pins nothing: it claims a umem that cannot be
/// invalidated, where persistent pins are impossible, just to say why. In the other mode the
/// persistent client comes second, and says so by itself.
static FALLBACK: Role = Role { name: "nv_mem_nc", kind: Kind::Persistent };

/// The clients of the mode that the module was loaded in.
fn roles() -> &'static [Role; 2] {
    // SAFETY: No precondition.
    match unsafe { raw::nvpm_param_persistent_api_support() } {
        0 => &REVOCABLE_FIRST,
        _ => &PERSISTENT_FIRST,
    }
}

fn role(place: Place) -> &'static Role {
    let [first, second] = roles();
    match place {
        Place::First => first,
        Place::Second => second,
    }
}

/// The fallback client, where the mode has one.
fn fallback() -> Option<&'static Role> {
    core::ptr::eq(roles(), &PERSISTENT_FIRST).then_some(&FALLBACK)
}

/// Name of the fallback client, where there is one. It counts for the first client.
pub(crate) fn fallback_name() -> Option<&'static str> {
    fallback().map(|role| role.name)
}

/// The mode's word in `/proc/driver/nvidia-peermem`.
pub(crate) fn mode_name() -> &'static str {
    match fallback() {
        Some(_) => "persistent",
        None => "legacy",
    }
}

/// Whether the clients are plain ones, for cores without the extended form.
pub(crate) fn are_plain() -> bool {
    // SAFETY: No precondition.
    unsafe { raw::nvpm_param_peerdirect_support() != 0 }
}

/// This module's version, as modinfo says.
pub(crate) fn version() -> &'static str {
    include_str!("../VERSION").trim_ascii()
}

impl Client {
    /// The client at `place`.
    pub(crate) fn at(place: Place) -> Self {
        Self { kind: role(place).kind, place }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        role(self.place).name
    }

    /// Calls the core's invalidate hook, and waits until that fenced the NIC. The RM API lock is
    /// held by the caller; the core takes a umem mapping lock.
    ///
    /// The handle is valid: the caller has a registration, which holds a module reference, and
    /// unloading alone unregisters. A ticket that the core does not know any more is no error.
    pub(crate) fn invalidate(self, core_ticket: u64) {
        let slot = Slot::at(self.place);
        // SAFETY: There is a registration, so `READY` was seen: nobody writes the slot any more.
        let (hook, handle) = unsafe { (*slot.invalidate.get(), *slot.handle.get()) };
        if let Some(hook) = hook {
            // SAFETY: The core gave hook and handle together, and the handle is still registered.
            // The answer is always 0.
            unsafe { hook(handle, core_ticket) };
        }
    }
}

/// What belongs to one client for as long as the module is loaded.
///
/// # Invariants
///
/// Only module init writes it, before [`READY`] is set and while the core does not know the object
/// yet (the core itself fills `invalidate` while it registers). Callbacks read it only after they
/// have seen [`READY`], which they do in `acquire`, before every other callback.
struct Slot {
    /// As the core sees it. Cores without the extended form read two optional callbacks where
    /// `ex_size` and `flags` lie, so those are zero for them.
    object: UnsafeCell<MaybeUninit<raw::peer_memory_client_ex>>,
    invalidate: UnsafeCell<raw::invalidate_peer_memory>,
    handle: UnsafeCell<*mut c_void>,
}

// SAFETY: By the invariant no write meets a read or another write.
unsafe impl Sync for Slot {}

static FIRST_SLOT: Slot = Slot::new();
static SECOND_SLOT: Slot = Slot::new();
static FALLBACK_SLOT: Slot = Slot::new();

/// Set once all handles are written: the core may ask before registering has returned to us.
/// Release and Acquire, so that who sees it set also sees the slots as they were written.
static READY: Atomic<bool> = Atomic::new(false);

/// Whether all clients are registered.
pub(crate) fn ready() -> bool {
    READY.load(Acquire)
}

impl Slot {
    const fn new() -> Self {
        Self {
            object: UnsafeCell::new(MaybeUninit::zeroed()),
            invalidate: UnsafeCell::new(None),
            handle: UnsafeCell::new(core::ptr::null_mut()),
        }
    }

    fn at(place: Place) -> &'static Self {
        match place {
            Place::First => &FIRST_SLOT,
            Place::Second => &SECOND_SLOT,
        }
    }
}

/// Writes `text` into `field`, which is all zeroes and longer.
fn write_text(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}

/// A client that is registered with the core, until this is dropped.
///
/// # Invariants
///
/// The handle of the slot came from the core's register and was not given back.
struct Registered(&'static Slot);

impl Registered {
    /// Registers `role` with `callbacks`, whose name and version are all zeroes.
    fn new(slot: &'static Slot, role: &Role, mut callbacks: raw::peer_memory_client) -> Result<Self> {
        let extended = !are_plain();
        write_text(&mut callbacks.name, role.name);
        write_text(&mut callbacks.version, version());
        if let Some(last) = callbacks.version.last_mut() {
            *last = extended.into();
        }
        let revocable = role.kind == Kind::Revocable;
        let object = raw::peer_memory_client_ex {
            client: callbacks,
            ex_size: if extended { size_of::<raw::peer_memory_client_ex>() } else { 0 },
            flags: if extended && revocable { raw::PEER_MEM_INVALIDATE_UNMAPS } else { 0 },
        };
        // SAFETY: Module init, and the core does not know this slot yet: nobody else uses it.
        unsafe { (*slot.object.get()).write(object) };
        let hook = if revocable { slot.invalidate.get() } else { core::ptr::null_mut() };
        // SAFETY: The object is static and not written any more. `hook` is NULL or static.
        let handle = unsafe { raw::nvpm_core_register(slot.object.get().cast(), hook) };
        if handle.is_null() {
            pr_err!(
                "ib_core refused the client {}: most likely another module has registered that name: rmmod nv_peer_mem or whatever else serves {} (lsmod; /sys/kernel/mm/memory_peers where the kernel has it), then load again; else see ib_core's own lines above\n",
                role.name,
                role.name
            );
            return Err(EBUSY);
        }
        // SAFETY: Callbacks read the handle only once `READY` is set.
        unsafe { *slot.handle.get() = handle };
        // INVARIANT: Just registered.
        Ok(Self(slot))
    }
}

impl Drop for Registered {
    /// Waits, without limit, until the core has released everything that this client acquired.
    fn drop(&mut self) {
        // SAFETY: By the invariant the handle is the core's, and it is given back once. No free
        // callback uses it: there is no registration, as none holds a module reference any more.
        unsafe { raw::nvpm_core_unregister(*self.0.handle.get()) };
    }
}

/// All clients, registered until this is dropped: from the last to the first.
pub(crate) struct Clients {
    _fallback: Option<Registered>,
    _second: Registered,
    _first: Registered,
}

impl Clients {
    /// Registers the clients of the mode: first, second and fallback. Undoes that on an error.
    ///
    /// To be called by module init, once everything else is initialised: the callbacks work from
    /// here on.
    pub(crate) fn register(callbacks: [raw::peer_memory_client; 3]) -> Result<Self> {
        let [first, second, last] = callbacks;
        let [first_role, second_role] = roles();
        let first = Registered::new(&FIRST_SLOT, first_role, first)?;
        let second = Registered::new(&SECOND_SLOT, second_role, second)?;
        let fallback = match fallback() {
            Some(role) => Some(Registered::new(&FALLBACK_SLOT, role, last)?),
            None => None,
        };
        READY.store(true, Release);
        pr_info!(
            "clients {} ({}) and {} ({}) registered{}\n",
            first_role.name,
            first_role.kind.text(),
            second_role.name,
            second_role.kind.text(),
            if are_plain() { " as plain clients" } else { "" }
        );
        Ok(Self { _fallback: fallback, _second: second, _first: first })
    }
}
