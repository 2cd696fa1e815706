// SPDX-License-Identifier: GPL-2.0

//! The clients that we register with the core: their names, how they pin, the order in which the
//! core asks them, and what the core gave for each.

use crate::ffi::raw;
use crate::ffi::shim::{Kind, EOPNOTSUPP};
use crate::observe::refusals::Asked;
use crate::peer::parameters;
use crate::peer::words::words;
use crate::pin::{Otherwise, Owner};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};

/// Checks that this kernel's core has the peer-memory API.
pub(crate) fn find_core() -> Result {
    // SAFETY: No precondition.
    if unsafe { raw::nvpm_core_present() } != 0 {
        return Ok(());
    }
    // SAFETY: No precondition.
    if unsafe { raw::nvpm_uverbs_loaded() } == 0 {
        pr_err!("ib_uverbs is not loaded, and it exports the peer-memory API of DOCA-OFED: modprobe ib_uverbs, and load again; if it still fails, this kernel's RDMA core has no such API\n");
    } else {
        pr_err!(
            "this kernel's RDMA core has no peer-memory API (no symbol ib_register_peer_memory_client): install DOCA-OFED or MLNX_OFED, or use a linux-nvidia kernel; applications that use dma-buf need neither\n"
        );
    }
    Err(Error::from_errno(EOPNOTSUPP))
}

/// One of the clients that pin.
pub(crate) struct Client {
    /// What the pin layer knows of it. The core knows it by the same name.
    pub(crate) owner: Owner,
    /// Its place in the order in which the core asks.
    pub(crate) place: Place,
}

/// Place of a client in the core's walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is no other.
    Only,
    /// Asked first.
    First,
    /// Asked when the first one said no.
    Second,
}

/// The parameters' choice of clients (docs/install.md).
struct Mode {
    /// Its word in `/proc/driver/nvidia-peermem`.
    name: &'static str,
    first: Client,
    second: Option<Client>,
    /// Name of a client behind those. It pins nothing: it claims a umem that cannot be invalidated,
    /// where persistent pins are impossible, just to say why.
    refusing: Option<&'static str>,
}

static PERSISTENT: Mode = Mode {
    name: "persistent",
    first: Client::new("nv_mem", Kind::Persistent, Place::Only, Otherwise::RevocableIfAsked),
    second: None,
    refusing: None,
};

/// The core does not ask the second client for umems that cannot be invalidated.
static PERSISTENT_WITH_FALLBACK: Mode = Mode {
    name: "fallback",
    first: Client::new("nv_mem", Kind::Persistent, Place::First, Otherwise::Revocable),
    second: Some(Client::new("nv_mem_rv", Kind::Revocable, Place::Second, Otherwise::Nobody)),
    refusing: Some("nv_mem_nc"),
};

/// The second client serves the umems for which the core does not ask the first one.
static LEGACY: Mode = Mode {
    name: "legacy",
    first: Client::new("nv_mem", Kind::Revocable, Place::First, Otherwise::Nobody),
    second: Some(Client::new("nv_mem_nc", Kind::Persistent, Place::Second, Otherwise::Nobody)),
    refusing: None,
};

/// Returns the mode that the module was loaded in.
fn mode() -> &'static Mode {
    match (parameters::persistent_api_support(), parameters::revocable_fallback()) {
        (0, _) => &LEGACY,
        (_, 0) => &PERSISTENT,
        _ => &PERSISTENT_WITH_FALLBACK,
    }
}

/// Returns the mode's word in `/proc/driver/nvidia-peermem`.
pub(crate) fn mode_name() -> &'static str {
    mode().name
}

/// Returns the name of the client that pins nothing, where there is one. It counts for the first client.
pub(crate) fn refusing_name() -> Option<&'static str> {
    mode().refusing
}

/// Returns whether the clients are plain ones, for cores without the extended form.
pub(crate) fn are_plain() -> bool {
    parameters::peerdirect_support() != 0
}

/// Returns this module's version, as modinfo says.
pub(crate) fn version() -> &'static str {
    include_str!("../../VERSION").trim_ascii()
}

impl Client {
    const fn new(name: &'static str, kind: Kind, place: Place, otherwise: Otherwise) -> Self {
        let stop = match place {
            Place::Only | Place::First => invalidate::<false>,
            Place::Second => invalidate::<true>,
        };
        Self { owner: Owner { asked: Asked { name, kind, words }, otherwise, stop }, place }
    }

    /// Returns the client that is asked first.
    pub(crate) fn first() -> &'static Self {
        &mode().first
    }

    /// Returns the client that is asked second, where the mode has one.
    pub(crate) fn second() -> Option<&'static Self> {
        mode().second.as_ref()
    }
}

/// Calls the core's invalidate hook for the second client (`SECOND`) or the first, and waits until that
/// fenced the NIC. The RM API lock is held by the caller; the core takes a umem mapping lock. A ticket
/// that the core does not know any more is no error.
///
/// # Safety
///
/// There is a registration of that client. It holds a module reference, and unloading alone unregisters.
unsafe fn invalidate<const SECOND: bool>(core_ticket: u64) {
    let slot = if SECOND { &SECOND_SLOT } else { &FIRST_SLOT };
    // SAFETY: There is a registration, so `READY` was seen: nobody writes the slot any more. The
    // task that saw it entered the registration under the registry lock, under which this one
    // found it: what that one saw, this one sees.
    let (hook, handle) = unsafe { (*slot.invalidate.get(), *slot.handle.get()) };
    if let Some(hook) = hook {
        // SAFETY: The core gave hook and handle together, and the handle is still registered.
        // The answer is always 0.
        unsafe { hook(handle, core_ticket) };
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
static REFUSING_SLOT: Slot = Slot::new();

/// Set once all handles are written: the core may ask before registering has returned to us.
/// Release and Acquire, so that who sees it set also sees the slots as they were written.
static READY: Atomic<bool> = Atomic::new(false);

/// Returns whether all clients are registered.
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
    /// Registers a client with `callbacks`, whose name and version are all zeroes.
    ///
    /// # Safety
    ///
    /// `slot` is used for the first time, and [`READY`] is not set: nothing else reads it.
    unsafe fn new(slot: &'static Slot, name: &str, kind: Kind, mut callbacks: raw::peer_memory_client) -> Result<Self> {
        let extended = !are_plain();
        write_text(&mut callbacks.name, name);
        write_text(&mut callbacks.version, version());
        if let Some(last) = callbacks.version.last_mut() {
            *last = extended.into();
        }
        let revocable = kind == Kind::Revocable;
        let object = raw::peer_memory_client_ex {
            client: callbacks,
            ex_size: if extended { size_of::<raw::peer_memory_client_ex>() } else { 0 },
            flags: if extended && revocable { raw::PEER_MEM_INVALIDATE_UNMAPS } else { 0 },
        };
        // SAFETY: By this function's contract nobody else uses the slot.
        unsafe { (*slot.object.get()).write(object) };
        let hook = if revocable { slot.invalidate.get() } else { core::ptr::null_mut() };
        // SAFETY: The object is static and not written any more. `hook` is NULL or static.
        let handle = unsafe { raw::nvpm_core_register(slot.object.get().cast(), hook) };
        if handle.is_null() {
            pr_err!(
                "ib_core refused the client {}: most likely another module has registered that name, or was unloaded a moment ago: rmmod nv_peer_mem or whatever else serves {} (lsmod; /sys/kernel/mm/memory_peers where the kernel has it), then load again; else see ib_core's own lines above\n",
                name,
                name
            );
            return Err(EBUSY);
        }
        // SAFETY: Callbacks read the handle only once `READY` is set, which by the contract it is not.
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
    _refusing: Option<Registered>,
    _second: Option<Registered>,
    _first: Registered,
}

impl Clients {
    /// Registers the clients of the mode: first, second and refusing. Undoes that on an error.
    ///
    /// # Safety
    ///
    /// Module init calls this, once, after everything else is initialised: the callbacks work from
    /// here on.
    pub(crate) unsafe fn register(callbacks: [raw::peer_memory_client; 3]) -> Result<Self> {
        let [first, second, refusing] = callbacks;
        let mode = mode();
        // SAFETY: By this function's contract this is the first use of each slot, and `READY` is set
        // below only.
        let add = |slot, name, kind, callbacks| unsafe { Registered::new(slot, name, kind, callbacks) };
        let first = add(&FIRST_SLOT, mode.first.owner.asked.name, mode.first.owner.asked.kind, first)?;
        let second = match &mode.second {
            Some(client) => Some(add(&SECOND_SLOT, client.owner.asked.name, client.owner.asked.kind, second)?),
            None => None,
        };
        let refusing = match mode.refusing {
            Some(name) => Some(add(&REFUSING_SLOT, name, Kind::Persistent, refusing)?),
            None => None,
        };
        READY.store(true, Release);
        for client in [Some(&mode.first), mode.second.as_ref()].into_iter().flatten() {
            pr_info!(
                "the {} client {} ({}) is registered\n",
                if are_plain() { "plain" } else { "extended" },
                client.owner.asked.name,
                client.owner.asked.kind.text()
            );
        }
        Ok(Self { _refusing: refusing, _second: second, _first: first })
    }
}
