// SPDX-License-Identifier: GPL-2.0

//! ib_core's peer-memory part and the NIC driver above it, in two generations
//! (docs/facts.md#the-rdma-core).
//!
//! The NIC is modelled by what it could do: an mkey that is live and not fenced can touch its
//! memory at any time, so it is an error when a pin or a DMA mapping goes while such an mkey
//! exists, and when an mkey becomes live over one that is gone. The core's own bugs are modelled,
//! not repaired: a task that they block forever is marked, and an execution that ends in such a
//! hang counts as one.
//!
//! Left out: memlock accounting, get_user_pages, queues, devx, the NIC driver's page-size
//! arithmetic.

use crate::raw;
use crate::rt::{self, fail, note, rt, Rank};
use crate::world::{
    self, device, in_text, w, Client, Fault, Generation, How, SgTable, State, Umem, CLIENT, NIC, PEER_MUTEX, SG, UMEM,
};
use kernel::ffi::c_void;

fn handle(client: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(0x100 + client)
}

pub(crate) fn register_client(
    client: *const raw::peer_memory_client,
    invalidate: *mut raw::invalidate_peer_memory,
) -> *mut c_void {
    // SAFETY: The module's static object, filled in.
    let (version_end, ex) = unsafe { ((*client).version[15], client.cast::<raw::peer_memory_client_ex>()) };
    // SAFETY: The last byte of the version says that the object is the longer one.
    let unmaps = version_end != 0 && unsafe { (*ex).ex_size >= 148 && (*ex).flags & 1 != 0 };
    if !invalidate.is_null() {
        // SAFETY: The module's static place.
        unsafe { invalidate.write(Some(invalidate_peer_memory)) };
    }
    rt::lock(Rank::PeerMutex, PEER_MUTEX, "peer mutex to register a client");
    let idle = rt::new_flag();
    rt().flags[idle] = true;
    w().core.clients.push(Client {
        object: client,
        wants_invalidation: !invalidate.is_null(),
        unmaps,
        registered: true,
        users: 0,
        idle,
        tickets: Vec::new(),
        next_ticket: 0,
    });
    let number = w().core.clients.len() - 1;
    rt::unlock(PEER_MUTEX);
    handle(number)
}

pub(crate) fn unregister_client(which: *mut c_void) {
    let number = which.addr() - 0x100;
    rt::lock(Rank::PeerMutex, PEER_MUTEX, "peer mutex to unregister a client");
    if !w().core.clients[number].registered {
        fail("unregisters a client twice".into());
    }
    // The client leaves the list, so no acquire comes from now on.
    w().core.clients[number].registered = false;
    rt::unlock(PEER_MUTEX);
    rt::wait_flag(w().core.clients[number].idle, "wait until the client has no users");
    // The client is freed, so its handle is a dangling pointer.
    rt::touch(CLIENT + number as u64, true, "free the client");
    w().core.clients[number].tickets.clear();
    w().core.clients[number].object = std::ptr::null();
}

macro_rules! call {
    ($umem:expr, $name:ident ( $($arg:expr),* )) => {{
        let umem = $umem;
        let context = w().core.umems[umem].context;
        // SAFETY: The client is registered as long as it has users.
        let f = unsafe { (*w().core.clients[w().core.umems[umem].client].object).$name }.expect("mandatory");
        if w().core.umems[umem].released {
            fail(concat!("the model calls ", stringify!($name), " after release").into());
        }
        let outer = rt().me().umem.replace(umem);
        // SAFETY: As the core calls it.
        let ret = in_text(|| unsafe { f($($arg,)* context) });
        rt().me().umem = outer;
        ret
    }};
}

fn sgt(umem: usize) -> *mut raw::sg_table {
    (&raw mut *w().core.umems[umem].sgt).cast()
}

fn get_pages(umem: usize, ticket: u64) -> i32 {
    let u = &w().core.umems[umem];
    let (client, context, va, len) = (u.client, u.context, u.va as usize, u.len as usize);
    // SAFETY: As in `call!`.
    let f = unsafe { (*w().core.clients[client].object).get_pages }.expect("mandatory");
    let outer = rt().me().umem.replace(umem);
    // SAFETY: As the core calls it.
    let ret = in_text(|| unsafe { f(va, len, 1, 0, std::ptr::null_mut(), context, ticket) });
    rt().me().umem = outer;
    if ret == 0 {
        let u = &w().core.umems[umem];
        let pins = covering(&w().acquiring[rt().current], u.va, u.len);
        note(|| format!("umem {umem} has pins {pins:?}"));
        w().core.umems[umem].pins = pins;
    }
    ret
}

fn dma_map(umem: usize) -> i32 {
    let u = &w().core.umems[umem];
    let (client, context) = (u.client, u.context);
    // SAFETY: As in `call!`.
    let f = unsafe { (*w().core.clients[client].object).dma_map }.expect("mandatory");
    let outer = rt().me().umem.replace(umem);
    let nmap = &raw mut *w().core.umems[umem].nmap;
    let me = rt().current;
    w().mapping[me] = true;
    // SAFETY: As the core calls it.
    let ret = in_text(|| unsafe { f(sgt(umem), context, device(), 0, nmap) });
    w().mapping[me] = false;
    rt().me().umem = outer;
    ret
}

fn dma_unmap(umem: usize) {
    let u = &w().core.umems[umem];
    let (client, context) = (u.client, u.context);
    if u.released {
        fail("the core calls dma_unmap after release".into());
    }
    // SAFETY: As in `call!`.
    let f = unsafe { (*w().core.clients[client].object).dma_unmap }.expect("mandatory");
    let outer = rt().me().umem.replace(umem);
    // SAFETY: As the core calls it.
    let ret = in_text(|| unsafe { f(sgt(umem), context, device()) });
    rt().me().umem = outer;
    if ret != 0 {
        fail(format!("dma_unmap returns {ret}"));
    }
}

fn put_pages(umem: usize) {
    let table = sgt(umem);
    call!(umem, put_pages(table));
}

/// Calls release, and checks what must be true after it. The client's count goes last.
fn put_client(umem: usize) {
    let from = rt().me().took.len();
    call!(umem, release());
    let took: Vec<(u64, u64)> = rt().me().took[from..].to_vec();
    world::check_released(umem);
    let u = &mut w().core.umems[umem];
    u.released = true;
    u.release_took = took;
    let client = u.client;
    drop_user(client);
}

fn drop_user(client: usize) {
    let c = &mut w().core.clients[client];
    c.users -= 1;
    let (users, idle) = (c.users, c.idle);
    rt().flags[idle] = users == 0;
}

/// Checks that the NIC can no longer reach what has just been freed.
pub fn check_dma(pin: usize, why: &str) {
    if w().core.umems.iter().any(|u| u.pins.contains(&pin) && u.mkey) {
        fail(format!("the NIC can still access pin {pin}, and {why}"));
    }
}

/// Walks the sg list, which must exist.
fn read_table(umem: usize) {
    let number = w().core.umems[umem].sgt.number;
    rt::touch(SG + number as u64, false, "the sg list is read");
    if number == 0 || w().sgs[number].freed {
        fail("the core reads an sg_table that is not there".into());
    }
}

/// Makes an mkey from the sg list, as the NIC driver does. From here on, the NIC may access the
/// memory.
fn make_mkey(umem: usize) -> bool {
    read_table(umem);
    for &pin in &w().core.umems[umem].pins {
        rt::touch(NIC + pin as u64, true, "the NIC gets an mkey");
    }
    if w().fault(Fault::Mkey) {
        return false;
    }
    let u = &w().core.umems[umem];
    let entries = w().sgs[u.sgt.number].entries.clone();
    if usize::try_from(*u.nmap) != Ok(entries.len()) {
        fail(format!("nmap is {}, the table has {} entries", u.nmap, entries.len()));
    }
    let first = u.va & !4095;
    let mut at = first;
    for (dma, len) in entries {
        let end = at + u64::from(len);
        let start = at;
        while at < end {
            let Some(phys) = world::translate(dma + (at - start), 1) else {
                fail(format!("the NIC is given {dma:#x}, which is not mapped"));
            };
            let wanted = u.pins.iter().find_map(|&pin| w().gpu.phys(pin, at));
            if wanted != Some(phys) {
                fail(format!("the NIC is given {phys:#x} for address {at:#x}, which is at {wanted:#x?}"));
            }
            at += 4096;
        }
    }
    let end = (u.va + u.len + 4095) & !4095;
    if at != end {
        fail(format!("the table covers {first:#x} to {at:#x}, not to {end:#x}"));
    }
    if let Some(pin) = u.pins.iter().find(|&&pin| w().gpu.pins[pin].how != How::Live) {
        fail(format!("the NIC gets an mkey over pin {pin}, which is gone"));
    }
    w().core.umems[umem].mkey = true;
    true
}

fn fence(umem: usize) {
    for &pin in &w().core.umems[umem].pins {
        rt::touch(NIC + pin as u64, true, "the NIC is fenced");
    }
    w().core.umems[umem].mkey = false;
}

/// Calls ibv_reg_mr() on memory of a GPU. Returns the number of the umem, or an errno.
pub fn register(va: u64, len: u64) -> Result<usize, i32> {
    let found = acquire(va, len)?;
    let result = register_umem(found);
    if result.is_ok() {
        w().core.umems[found].registered = true;
        if w().core.umems.iter().filter(|u| u.registered).count() >= 3 {
            rt::cover("three-registrations");
        }
    }
    result.map(|()| found)
}

/// Asks the clients in their order under the peer mutex, as ib_get_peer_client does.
fn acquire(va: u64, len: u64) -> Result<usize, i32> {
    rt::lock(Rank::PeerMutex, PEER_MUTEX, "peer mutex to ask the clients");
    for client in 0..w().core.clients.len() {
        let c = &w().core.clients[client];
        if !c.registered || (c.wants_invalidation && !w().core.invalidation_supported) {
            continue;
        }
        let me = rt().current;
        w().acquiring[me].clear();
        let mut context = std::ptr::null_mut();
        // SAFETY: Registered.
        let f = unsafe { (*w().core.clients[client].object).acquire }.expect("mandatory");
        let null = std::ptr::null_mut();
        // SAFETY: As the core calls it.
        let mine = in_text(|| unsafe { f(va as usize, len as usize, null, null.cast(), &mut context) });
        if mine > 0 {
            let c = &mut w().core.clients[client];
            c.users += 1;
            let idle = c.idle;
            rt().flags[idle] = false;
            let lock = rt().new_id();
            let process = rt().me().process;
            let pins = covering(&w().acquiring[me], va, len);
            w().core.umems.push(Umem {
                client,
                context,
                pins,
                process,
                ticket: None,
                lock,
                state: State::Unmapped,
                func: false,
                sgt: Box::new(SgTable { number: 0 }),
                nmap: Box::new(0),
                mkey: false,
                registered: false,
                released: false,
                forgotten: false,
                va,
                len,
                release_took: Vec::new(),
            });
            let umem = w().core.umems.len() - 1;
            note(|| format!("umem {umem} of client {client}, pins {:?}", w().core.umems[umem].pins));
            rt::unlock(PEER_MUTEX);
            return Ok(umem);
        }
    }
    rt::unlock(PEER_MUTEX);
    Err(-14)
}

/// Returns those of the pins `got` of which a registration was made, without those that were only
/// tried, even if the provider kept them. A refused registration never reaches the NIC.
fn covering(got: &[usize], va: u64, len: u64) -> Vec<usize> {
    let (mut at, mut pins) = (va, Vec::new());
    while at < va + len {
        let ours = |pin: &usize| matches!(w().gpu.pins[*pin].how, How::Live | How::Freed);
        let Some(&pin) = got.iter().rev().find(|&&pin| w().gpu.phys(pin, at).is_some() && ours(&pin)) else { break };
        pins.push(pin);
        at = w().gpu.pins[pin].end();
    }
    pins
}

fn add_ticket(umem: usize) -> Option<u64> {
    let client = w().core.umems[umem].client;
    let lock = CLIENT + client as u64;
    rt::lock(Rank::Leaf, lock, "the core's tickets");
    let fails = w().fault(Fault::TicketAlloc);
    let c = &mut w().core.clients[client];
    let ticket = c.next_ticket;
    if !fails {
        c.next_ticket += 1;
        c.tickets.push((ticket, umem));
        w().core.umems[umem].ticket = Some(ticket);
    }
    rt::unlock(lock);
    (!fails).then_some(ticket)
}

fn remove_ticket(umem: usize) {
    let lock = CLIENT + w().core.umems[umem].client as u64;
    rt::lock(Rank::Leaf, lock, "the core's tickets");
    let client = w().core.umems[umem].client;
    w().core.clients[client].tickets.retain(|t| t.1 != umem);
    rt::unlock(lock);
}

fn lock_mapping(umem: usize) {
    let lock = w().core.umems[umem].lock;
    if rt::owns(lock) {
        // The core locks itself out. The task sleeps in D state until reboot
        // (docs/facts.md#core-bugs).
        rt().me().hung = true;
        note(|| "hangs in the core on its own umem mapping lock".into());
        rt::halt("its own umem mapping lock");
    }
    rt::lock(Rank::Mapping, lock, "umem mapping lock");
}

fn register_umem(umem: usize) -> Result<(), i32> {
    let client = w().core.umems[umem].client;
    if w().fault(Fault::UmemAlloc) {
        put_client(umem);
        return Err(-12);
    }
    lock_mapping(umem);
    let lock = w().core.umems[umem].lock;
    let mut ticket = u64::from(u32::MAX);
    if w().core.clients[client].wants_invalidation {
        match add_ticket(umem) {
            Some(given) => ticket = given,
            None => {
                rt::unlock(lock);
                put_client(umem);
                return Err(-12);
            }
        }
    }
    let has_ticket = w().core.umems[umem].ticket.is_some();
    let mut ret = get_pages(umem, ticket);
    if ret == 0 {
        ret = dma_map(umem);
        if ret != 0 {
            // The core does this with the umem mapping lock held, and without dma_unmap.
            put_pages(umem);
        }
    }
    if ret != 0 {
        if w().core.umems[umem].sgt.number != 0 {
            fail("fails, but has published an sg_table".into());
        }
        if has_ticket {
            remove_ticket(umem);
        }
        rt::unlock(lock);
        put_client(umem);
        return Err(ret);
    }
    page_size(umem);
    w().core.umems[umem].state = State::Mapped;
    if !has_ticket {
        rt::unlock(lock);
    }
    let made = make_mkey(umem);
    if !made {
        if w().fault(Fault::LeakedLock) {
            // ib_umem_release() without a stop leaves the umem mapping lock locked for good
            // (docs/facts.md#core-bugs).
            note(|| "the core leaks the umem mapping lock".into());
            rt::leak(lock);
            unmap(umem, w().core.umems[umem].state, State::Unmapped);
            remove_ticket(umem);
            put_client(umem);
            return Err(-12);
        }
        stop(umem);
        release_umem(umem);
        return Err(-12);
    }
    if has_ticket {
        w().core.umems[umem].func = true;
        rt::unlock(lock);
    }
    Ok(())
}

fn page_size(umem: usize) {
    let size = call!(umem, get_page_size());
    if size != 4096 {
        fail(format!("get_page_size returns {size}, not the CPU's page size"));
    }
}

/// Does what ib_unmap_peer_client does.
fn unmap(umem: usize, from: State, to: State) {
    if from == State::Mapped {
        if to == State::Unmapped {
            dma_unmap(umem);
            put_pages(umem);
        }
        w().core.umems[umem].sgt.number = 0;
    }
    w().core.umems[umem].state = to;
}

/// Does what ib_umem_stop_invalidation_notifier does.
fn stop(umem: usize) {
    let u = &w().core.umems[umem];
    let (lock, client, has_ticket) = (u.lock, u.client, u.ticket.is_some());
    let unmaps = w().core.clients[client].unmaps;
    let mut locked = true;
    if u.func {
        lock_mapping(umem);
        w().core.umems[umem].func = false;
    } else {
        let lock_now = match w().core.generation {
            Generation::V2410 => has_ticket,
            Generation::V2510 => !has_ticket,
        };
        if lock_now {
            lock_mapping(umem);
        } else if !has_ticket {
            // With persistent pins, 24.10 unlocks what is not locked, which is harmless without
            // mutex debugging.
            locked = false;
        }
    }
    let state = w().core.umems[umem].state;
    if unmaps {
        w().core.umems[umem].state = State::Unmapped;
    } else {
        unmap(umem, state, State::Unmapped);
    }
    if locked {
        rt::unlock(lock);
    }
    if unmaps {
        // No lock of the core is held here.
        if state == State::Mapped {
            dma_unmap(umem);
            put_pages(umem);
            w().core.umems[umem].sgt.number = 0;
        }
        w().core.umems[umem].state = State::Unmapped;
    }
}

/// Does what ib_peer_umem_release does. It forgets the client after the client's `release`.
fn release_umem(umem: usize) {
    let state = w().core.umems[umem].state;
    unmap(umem, state, State::Unmapped);
    if w().core.umems[umem].ticket.is_some() {
        remove_ticket(umem);
    }
    put_client(umem);
    rt::touch(UMEM + umem as u64, true, "forget the umem's client");
    w().core.umems[umem].forgotten = true;
}

/// Reads the umem's client, as an invalidation does, under the umem mapping lock and without a
/// check.
fn read_client(umem: usize) {
    rt::touch(UMEM + umem as u64, false, "read the umem's client");
    if w().core.umems[umem].forgotten {
        fail(format!("the core reads the client of umem {umem} through NULL: release returned during an invalidation"));
    }
}

/// Calls ibv_dereg_mr() in any task.
pub fn deregister(umem: usize) {
    w().core.umems[umem].registered = false;
    if rt().me().process != w().core.umems[umem].process {
        rt::cover("foreign-deregistration");
    }
    fence(umem);
    stop(umem);
    release_umem(umem);
}

/// Does what ib_invalidate_peer_memory does, which the module's callback calls.
unsafe extern "C" fn invalidate_peer_memory(which: *mut c_void, ticket: u64) -> i32 {
    let client = which.addr().wrapping_sub(0x100);
    if client >= w().core.clients.len() {
        fail(format!("calls invalidate with the handle {which:?}, which the core never gave"));
    }
    rt::touch(CLIENT + client as u64, false, "call invalidate");
    if w().core.clients[client].object.is_null() {
        fail("calls invalidate with the handle of a client that is unregistered".into());
    }
    w().core.invalidations += 1;
    check_decision(client, ticket);
    // The thunk is left for the core's text, but the callback's frame below it stays.
    let lock = CLIENT + client as u64;
    rt::lock(Rank::Leaf, lock, "the core's tickets");
    let found = w().core.clients[client].tickets.iter().find(|t| t.0 == ticket).map(|t| t.1);
    rt::unlock(lock);
    let Some(umem) = found else { return 0 };
    lock_mapping(umem);
    read_client(umem);
    let u = &w().core.umems[umem];
    let (lock, state, func) = (u.lock, u.state, u.func);
    if state == State::Mapped && func {
        fence(umem);
    }
    let unmaps = w().core.clients[client].unmaps;
    unmap(umem, state, if unmaps { State::Invalidated } else { State::Unmapped });
    rt::unlock(lock);
    0
}

/// Checks that nobody decides to call invalidate for a registration whose release already ran under
/// its lock. The locks on the heap are those of registrations.
fn check_decision(client: usize, ticket: u64) {
    let Some(&(task, pin)) = w().calls.iter().find(|c| c.0 == rt().current) else {
        fail("calls invalidate outside a free callback".into());
    };
    if w().refs == 0 {
        fail("calls invalidate without a reference to its own module".into());
    }
    let Some(umem) = w().core.umems.iter().position(|u| u.pins.contains(&pin)) else {
        fail(format!("calls invalidate for pin {pin}, of which the core knows nothing yet"));
    };
    let u = &w().core.umems[umem];
    if u.client != client {
        fail(format!("invalidates umem {umem} of client {} through client {client}", u.client));
    }
    if let Some(own) = u.ticket {
        if own != ticket {
            fail(format!("invalidates ticket {ticket} for umem {umem}, whose ticket is {own}"));
        }
    }
    let took = &rt().tasks[task].took;
    for &(lock, when) in &u.release_took {
        if rt().on_heap(lock) && took.iter().any(|t| t.0 == lock && t.1 > when) {
            fail(format!("decides to invalidate umem {umem} after its release"));
        }
    }
}
