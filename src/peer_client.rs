// SPDX-License-Identifier: GPL-2.0

//! nvidia-peermem: GPU memory for the peer-memory API of ib_core, in Rust.
//!
//! Reads as a table of contents: what is loaded, which clients are registered, and the seven callbacks of the core,
//! each a thin thunk. The work is done in:
//!
//! - [`range`] the address range of a registration, [`sg`] runs and scatterlists (pure)
//! - [`pin`] the provider's pins and tables, [`map`] DMA mappings for a [`device`], [`topology`] which GPU and NIC can
//!   reach each other; none of them knows of ib_core
//! - [`acquire`] whose memory it is, and what the provider's errors mean
//! - [`life`] the states of a registration (pure), [`registry`] its ticket, [`registration`] its seven callbacks
//! - [`invalidate`] the free callback, orphans, unloading
//! - [`reason`] why a registration is refused, [`report`] counters and last failures, [`proc`] how they are shown
//! - [`trace`] tracepoints, [`shim`] and [`raw`] the C side

#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod acquire;
mod dma;
mod ffi;
mod gpu;
mod invalidate;
mod observe;
mod range;
mod registration;
mod registry;
mod sg;
mod state;

use core::cell::UnsafeCell;
use dma::device::Device;
use dma::map;
use ffi::{raw, shim};
use gpu::pin::Kind;
use gpu::topology;
use kernel::error::from_result;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{Arc, ArcBorrow};
use kernel::types::ForeignOwnable;
use observe::reason::EOPNOTSUPP;
use observe::{proc, refusals};
use registration::{Client, Place, Registration};

module! {
    type: PeerMem,
    name: "nvidia_peermem",
    authors: ["The nvidia-peermem in Rust authors"],
    description: "GPUDirect RDMA: GPU memory for the peer-memory API of ib_core",
    license: "GPL",
}

/// A client as the core sees it: the extended form, and zeroes behind it. Cores without the extended form read two
/// optional callbacks where `ex_size` and `flags` lie, so those are zero for them.
#[repr(C)]
struct ClientObject {
    ex: raw::peer_memory_client_ex,
    tail: [u64; 2],
}

/// A client's `acquire`.
type AcquireCallback = unsafe extern "C" fn(c_ulong, usize, *mut c_void, *mut c_char, *mut *mut c_void) -> c_int;

/// What belongs to one client for as long as the module is loaded.
///
/// # Invariants
///
/// Written only by module init, before [`READY`] is set and while the core does not know the object yet (the core
/// itself fills `invalidate` while it registers); read by callbacks only after [`READY`] was seen, which they do in
/// `acquire`, before every other callback.
struct Slot {
    object: UnsafeCell<ClientObject>,
    invalidate: UnsafeCell<raw::invalidate_peer_memory>,
    handle: UnsafeCell<*mut c_void>,
    kind: UnsafeCell<Kind>,
}

// SAFETY: By the invariant no write meets a read or another write.
unsafe impl Sync for Slot {}

static FIRST: Slot = Slot::new(acquire::<true>);
static SECOND: Slot = Slot::new(acquire::<false>);
static LAST: Slot = Slot::new(claim_rest);

/// Set once all handles are written: the core may ask before registering has returned to us. Release and Acquire, so that
/// whoever sees it set sees the slots as they were written.
static READY: Atomic<bool> = Atomic::new(false);

impl Slot {
    const fn new(acquire: AcquireCallback) -> Self {
        Self {
            object: UnsafeCell::new(ClientObject {
                ex: raw::peer_memory_client_ex {
                    client: raw::peer_memory_client {
                        name: [0; 64],
                        version: [0; 16],
                        acquire: Some(acquire),
                        get_pages: Some(get_pages),
                        dma_map: Some(dma_map),
                        dma_unmap: Some(dma_unmap),
                        put_pages: Some(put_pages),
                        get_page_size: Some(get_page_size),
                        release: Some(release),
                    },
                    ex_size: 0,
                    flags: 0,
                },
                tail: [0; 2],
            }),
            invalidate: UnsafeCell::new(None),
            handle: UnsafeCell::new(core::ptr::null_mut()),
            kind: UnsafeCell::new(Kind::Persistent),
        }
    }

    fn at(place: Place) -> &'static Self {
        match place {
            Place::First => &FIRST,
            Place::Second => &SECOND,
        }
    }
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
/// Behind [`PERSISTENT_FIRST`] alone: who is asked for a umem that cannot be invalidated where persistent pins are
/// impossible. In the other mode the persistent client comes last, and tells by itself.
static REST: Role = Role { name: "nv_mem_nc", kind: Kind::Persistent };

/// The clients of the mode that the module was loaded in.
fn roles() -> &'static [Role; 2] {
    // SAFETY: No precondition.
    match unsafe { raw::nvpm_param_persistent_api_support() } {
        0 => &REVOCABLE_FIRST,
        _ => &PERSISTENT_FIRST,
    }
}

/// Name of the client at `place`.
pub(crate) fn client_name(place: Place) -> &'static str {
    let [first, second] = roles();
    match place {
        Place::First => first.name,
        Place::Second => second.name,
    }
}

/// Name of the client behind those two, where there is one: it pins nothing, and counts for the first.
pub(crate) fn last_client_name() -> Option<&'static str> {
    core::ptr::eq(roles(), &PERSISTENT_FIRST).then_some(REST.name)
}

/// How the client at `place` pins.
pub(crate) fn client_kind(place: Place) -> Kind {
    let [first, second] = roles();
    match place {
        Place::First => first.kind,
        Place::Second => second.kind,
    }
}

/// Words for the two parameters, as docs/proc.md has them: mode, and form of the clients.
pub(crate) fn mode_names() -> (&'static str, &'static str) {
    let mode = if core::ptr::eq(roles(), &PERSISTENT_FIRST) { "persistent" } else { "legacy" };
    // SAFETY: No precondition.
    let plain = unsafe { raw::nvpm_param_peerdirect_support() } != 0;
    (mode, if plain { "plain" } else { "extended" })
}

/// This module's version, as modinfo says.
pub(crate) fn version() -> &'static str {
    include_str!("../VERSION").trim_ascii()
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
    fn new(slot: &'static Slot, role: &Role, plain: bool) -> Result<Self> {
        // SAFETY: Module init, and the core does not know this slot yet: nobody else reads or writes it.
        let object = unsafe { &mut *slot.object.get() };
        let client = &mut object.ex.client;
        write_text(&mut client.name, role.name);
        write_text(&mut client.version, version());
        let extended = !plain;
        if let Some(last) = client.version.last_mut() {
            *last = extended.into();
        }
        object.ex.ex_size = if extended { size_of::<raw::peer_memory_client_ex>() } else { 0 };
        let revocable = role.kind == Kind::Revocable;
        object.ex.flags = if extended && revocable { raw::PEER_MEM_INVALIDATE_UNMAPS } else { 0 };
        // SAFETY: As above.
        unsafe { *slot.kind.get() = role.kind };
        let hook = if revocable { slot.invalidate.get() } else { core::ptr::null_mut() };
        // SAFETY: The object is static and not written any more; `hook` is NULL or static.
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
        // SAFETY: By the invariant the handle is the core's, and it is given back once. No callback is in flight that
        // could use it: `Loaded` waited for them.
        unsafe { raw::nvpm_core_unregister(*self.0.handle.get()) };
    }
}

/// The registered clients. Dropping it is the unloading of rule 10.
struct Loaded {
    last: Option<Registered>,
    second: Option<Registered>,
    first: Option<Registered>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        READY.store(false, Release);
        invalidate::wait_for_callbacks();
        drop(self.last.take());
        drop(self.second.take());
        drop(self.first.take());
        invalidate::wait_for_callbacks();
        invalidate::drain();
        registry::clear();
        map::clear();
    }
}

struct PeerMem {
    _loaded: Loaded,
    _folder: proc::Folder,
}

/// A module parameter that is 0 or 1. Anything else is refused in one line.
fn flag(name: &str, value: c_int, meanings: &str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => {
            pr_err!("invalid parameter {}={}: {}\n", name, value, meanings);
            Err(EINVAL)
        }
    }
}

impl kernel::Module for PeerMem {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // SAFETY: No precondition.
        let (peerdirect, persistent) =
            unsafe { (raw::nvpm_param_peerdirect_support(), raw::nvpm_param_persistent_api_support()) };
        let plain = flag(
            "peerdirect_support",
            peerdirect,
            "use 0 (default) or 1 (cores without the extended client, such as MLNX_OFED 4.9 LTS)",
        )?;
        flag("persistent_api_support", persistent, "use 1 (default: persistent pins) or 0 (revocable pins first)")?;
        // SAFETY: No precondition.
        if unsafe { raw::nvpm_core_present() } == 0 {
            pr_err!(
                "this kernel's ib_core has no peer-memory API (no symbol ib_register_peer_memory_client): install DOCA-OFED or MLNX_OFED, or use a linux-nvidia kernel; applications that use dma-buf need neither\n"
            );
            return Err(Error::from_errno(EOPNOTSUPP));
        }
        // SAFETY: No precondition.
        if unsafe { raw::nvpm_provider_present() } == 0 {
            pr_err!(
                "the GPU driver is not loaded, or keeps its nvidia_p2p symbols from this build (a closed nvidia.ko does from one with GPL-only imports): modprobe nvidia and load again, or build with PROVIDER=kernel-lite\n"
            );
            return Err(ENODEV);
        }
        // SAFETY: Module init runs once, and no client is registered yet.
        unsafe {
            registry::init();
            acquire::init();
            topology::init();
            refusals::init();
        }
        let folder = proc::Folder::new().inspect_err(|_| {
            pr_err!("cannot make /proc/driver/nvidia-peermem: no memory, or another module has made it (lsmod): free the one or remove the other, then load again\n");
        })?;
        let [first, second] = roles();
        // Dropped on failure: that undoes what was registered.
        let mut loaded = Loaded { last: None, second: None, first: None };
        loaded.first = Some(Registered::new(&FIRST, first, plain)?);
        loaded.second = Some(Registered::new(&SECOND, second, plain)?);
        if last_client_name().is_some() {
            loaded.last = Some(Registered::new(&LAST, &REST, plain)?);
        }
        READY.store(true, Release);
        pr_info!(
            "clients {} ({}) and {} ({}) registered{}\n",
            first.name,
            first.kind.text(),
            second.name,
            second.kind.text(),
            if plain { " as plain clients" } else { "" }
        );
        Ok(Self { _loaded: loaded, _folder: folder })
    }
}

/// Calls the core's invalidate hook and waits until it fenced the HCA. R is held by the caller; takes M.
///
/// The handle is valid: the caller is counted as in flight, and unloading waits for that before it unregisters. A
/// ticket that the core does not know any more is no error.
pub(crate) fn invalidate_umem(client: Client, core_ticket: u64) {
    let slot = Slot::at(client.place);
    // SAFETY: There is a registration, so `READY` was seen: nobody writes the slot any more.
    let (hook, handle) = unsafe { (*slot.invalidate.get(), *slot.handle.get()) };
    if let Some(hook) = hook {
        // SAFETY: The core gave hook and handle together, and the handle is still registered. Its result is 0 always.
        unsafe { hook(handle, core_ticket) };
    }
}

/// Is the range ours? P is held. See [`acquire::acquire`].
///
/// # Safety
///
/// Called by the core: `context` is valid for writing.
unsafe extern "C" fn acquire<const IS_FIRST: bool>(
    addr: c_ulong,
    size: usize,
    _private: *mut c_void,
    _name: *mut c_char,
    context: *mut *mut c_void,
) -> c_int {
    if !READY.load(Acquire) {
        return 0;
    }
    let place = if IS_FIRST { Place::First } else { Place::Second };
    // SAFETY: `READY` was seen: nobody writes the slot any more.
    let kind = unsafe { *Slot::at(place).kind.get() };
    let (Ok(addr), Ok(size)) = (u64::try_from(addr), u64::try_from(size)) else {
        return 0;
    };
    // SAFETY: By this function's contract.
    unsafe { answer(acquire::acquire(Client { kind, place }, addr, size), context) }
}

/// Is the range ours, and does no other client serve it? P is held. See [`acquire::claim_rest`].
///
/// # Safety
///
/// Called by the core: `context` is valid for writing.
unsafe extern "C" fn claim_rest(
    addr: c_ulong,
    size: usize,
    _private: *mut c_void,
    _name: *mut c_char,
    context: *mut *mut c_void,
) -> c_int {
    if !READY.load(Acquire) {
        return 0;
    }
    let (Ok(addr), Ok(size)) = (u64::try_from(addr), u64::try_from(size)) else {
        return 0;
    };
    // SAFETY: By this function's contract.
    unsafe { answer(acquire::claim_rest(addr, size), context) }
}

/// Hands a registration to the core, if there is one.
///
/// # Safety
///
/// `context` is valid for writing.
unsafe fn answer(found: Option<Arc<Registration>>, context: *mut *mut c_void) -> c_int {
    let Some(registration) = found else {
        return 0;
    };
    // SAFETY: By this function's contract.
    unsafe { context.write(registration.into_foreign()) };
    1
}

/// Borrows what `acquire` handed to the core.
///
/// # Safety
///
/// `context` came from `acquire`, and `release` was not called for it.
unsafe fn borrow<'a>(context: *mut c_void) -> ArcBorrow<'a, Registration> {
    // SAFETY: By this function's contract.
    unsafe { Arc::<Registration>::borrow(context) }
}

/// Takes over what `acquire` pinned. M is held.
///
/// # Safety
///
/// Called by the core with a context of `acquire`. `sg` is NULL on new cores and not used.
unsafe extern "C" fn get_pages(
    addr: c_ulong,
    size: usize,
    _write: c_int,
    _force: c_int,
    _sg: *mut raw::sg_table,
    context: *mut c_void,
    core_ticket: u64,
) -> c_int {
    // SAFETY: By this function's contract.
    let registration = unsafe { borrow(context) };
    from_result(|| {
        let addr = u64::try_from(addr).map_err(|_| EINVAL)?;
        let size = u64::try_from(size).map_err(|_| EINVAL)?;
        registration.get_pages(addr, size, core_ticket).map(|()| 0)
    })
}

/// Maps for `device` and fills `sg`. M is held.
///
/// # Safety
///
/// Called by the core with a context of `acquire`: `sg` and `nmap` are valid for writing (and may overlap), `device`
/// is NULL or valid until `release` returned.
unsafe extern "C" fn dma_map(
    sg: *mut raw::sg_table,
    context: *mut c_void,
    device: *mut raw::device,
    _dmasync: c_int,
    nmap: *mut c_int,
) -> c_int {
    // SAFETY: By this function's contract.
    let registration = unsafe { borrow(context) };
    // SAFETY: By this function's contract.
    let device = unsafe { Device::new(device) };
    // SAFETY: By this function's contract.
    from_result(|| unsafe { registration.dma_map(sg, device, nmap) }.map(|()| 0))
}

/// Unmaps, unless the free callback did. Must return 0.
///
/// # Safety
///
/// Called by the core with a context of `acquire`.
unsafe extern "C" fn dma_unmap(_sg: *mut raw::sg_table, context: *mut c_void, _device: *mut raw::device) -> c_int {
    // SAFETY: By this function's contract.
    unsafe { borrow(context) }.dma_unmap();
    0
}

/// Does nothing: old cores and error paths hold M here, so the provider must not be called, and it is `release` that
/// puts the pin and frees the table (rules 6 and 7).
///
/// # Safety
///
/// None beyond the C prototype.
unsafe extern "C" fn put_pages(_sg: *mut raw::sg_table, _context: *mut c_void) {}

/// The tables are trimmed to this page size, on every core generation (rule 13).
///
/// # Safety
///
/// None beyond the C prototype.
unsafe extern "C" fn get_page_size(_context: *mut c_void) -> c_ulong {
    c_ulong::try_from(shim::page_size()).unwrap_or(0)
}

/// Ends the registration and drops the core's count.
///
/// # Safety
///
/// Called by the core once, with a context of `acquire`, which it does not use afterwards.
unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: By this function's contract.
    let registration = unsafe { Arc::<Registration>::from_foreign(context) };
    registration.release();
}
