// SPDX-License-Identifier: GPL-2.0

//! nvidia-peermem: GPU memory for the peer-memory API of ib_core, in Rust.
//!
//! This file is the way in: loading and unloading, and a thin function for each of the core's seven
//! callbacks. The work is done below it:
//!
//! - [`peer`] what speaks with ib_core: its question, clients, parameters, `/proc`
//! - [`layer`] the pin layer, which any driver may use

#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod layer;
mod peer;

use dma::device::Device;
use ffi::{raw, shim};
use kernel::error::from_result;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::types::ForeignOwnable;
use layer::*;
use peer::client::{self, Client, Clients};
use peer::{parameters, proc, walk};
use pin::registration::Registration;

module! {
    type: PeerMem,
    name: "nvidia_peermem",
    authors: ["The nvidia-peermem in Rust authors"],
    description: "GPUDirect RDMA: GPU memory for the peer-memory API of ib_core",
    license: "GPL",
}

/// The module while it is loaded. Its fields are dropped in this order: the clients, so that nobody
/// registers any more; what the layer keeps; the folder in `/proc`.
struct PeerMem {
    _clients: Clients,
    _layer: Layer,
    _folder: proc::Folder,
}

impl kernel::Module for PeerMem {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        parameters::check()?;
        client::find_core()?;
        // SAFETY: Module init runs once, no client is registered yet, and `PeerMem` drops the
        // clients before the layer.
        let layer = unsafe { Layer::new() }?;
        // SAFETY: Module init runs once, and no client is registered yet.
        unsafe { walk::init() };
        let folder = proc::Folder::new()?;
        let callbacks = [callbacks::<0>(), callbacks::<1>(), callbacks::<2>()];
        // SAFETY: Module init, which runs once; all else was initialised above.
        let clients = unsafe { Clients::register(callbacks) }?;
        Ok(Self { _clients: clients, _layer: layer, _folder: folder })
    }
}

/// Returns the callbacks of one client: 0 is the first, 1 the second, 2 the one that only refuses.
const fn callbacks<const CLIENT: u32>() -> raw::peer_memory_client {
    raw::peer_memory_client {
        name: [0; 64],
        version: [0; 16],
        acquire: Some(acquire::<CLIENT>),
        get_pages: Some(get_pages),
        dma_map: Some(dma_map),
        dma_unmap: Some(dma_unmap),
        put_pages: Some(put_pages),
        get_page_size: Some(get_page_size),
        release: Some(release),
    }
}

/// Answers whether the range is ours. The peer mutex is held. See [`walk::acquire`].
///
/// # Safety
///
/// Called by the core: `context` is valid for writing.
unsafe extern "C" fn acquire<const CLIENT: u32>(
    addr: c_ulong,
    size: usize,
    _private: *mut c_void,
    _name: *mut c_char,
    context: *mut *mut c_void,
) -> c_int {
    if !client::ready() {
        return 0;
    }
    let (addr, size) = (num::u64_from(addr), num::u64_from(size));
    let found = match CLIENT {
        0 => walk::acquire(Client::first(), addr, size),
        1 => Client::second().and_then(|client| walk::acquire(client, addr, size)),
        _ => walk::acquire_to_refuse(addr, size),
    };
    let Some(registration) = found else {
        return 0;
    };
    // SAFETY: By this function's contract.
    unsafe { context.write(registration.into_foreign()) };
    1
}

/// Takes over what `acquire` pinned, and pins what it left. The umem mapping lock is held.
///
/// # Safety
///
/// Called by the core with a context of `acquire`, before `release`. `sg` is NULL on new cores and
/// not used.
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
    let registration = unsafe { Arc::<Registration>::borrow(context) };
    from_result(|| registration.complete(num::u64_from(addr), num::u64_from(size), core_ticket).map(|()| 0))
}

/// Maps for `device` and fills `sg`. The umem mapping lock is held.
///
/// # Safety
///
/// Called by the core with a context of `acquire`, before `release`. `sg` and `nmap` are valid for
/// writing and may overlap. `device` is NULL, or valid until `release` has returned.
unsafe extern "C" fn dma_map(
    sg: *mut raw::sg_table,
    context: *mut c_void,
    device: *mut raw::device,
    _dmasync: c_int,
    nmap: *mut c_int,
) -> c_int {
    // SAFETY: By this function's contract.
    let registration = unsafe { Arc::<Registration>::borrow(context) };
    // SAFETY: By this function's contract, as `release` undoes the last mapping.
    let device = unsafe { Device::new(device) };
    // SAFETY: By this function's contract.
    from_result(|| unsafe { registration.map_into(sg, device, nmap) }.map(|()| 0))
}

/// Unmaps, unless the free callback did. Must return 0.
///
/// # Safety
///
/// Called by the core with a context of `acquire`, before `release`.
unsafe extern "C" fn dma_unmap(_sg: *mut raw::sg_table, context: *mut c_void, _device: *mut raw::device) -> c_int {
    // SAFETY: By this function's contract.
    unsafe { Arc::<Registration>::borrow(context) }.unmap();
    0
}

/// Does nothing: `release` puts the pin and frees the table (rules 6 and 7). Error paths of the
/// core hold the umem mapping lock here, so the provider must not be called.
///
/// # Safety
///
/// None beyond the C prototype.
unsafe extern "C" fn put_pages(_sg: *mut raw::sg_table, _context: *mut c_void) {}

/// Returns the CPU's page size, to which the tables are trimmed (rule 13).
///
/// # Safety
///
/// None beyond the C prototype.
unsafe extern "C" fn get_page_size(_context: *mut c_void) -> c_ulong {
    num::usize_from(shim::page_size())
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
