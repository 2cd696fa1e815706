// SPDX-License-Identifier: GPL-2.0

//! The functions of `src/ffi/shim.h` and both neighbours on std, for the policy files: a provider
//! that pins contiguous pages of one BAR and really frees its tables, a core of the UNMAPS
//! generation, and accounting of everything that must be given back.

use crate::raw;
use peermem_proc::Stats;
use shim::{Host, Lists, Table};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;

/// The size of the provider's pages in bytes.
pub const PAGE: u64 = 64 << 10;
/// The address of the BAR.
pub const BAR: u64 = 0xe000_0000;
/// The size of the BAR in bytes.
pub const BAR_LENGTH: u64 = 8 << 30;

/// The number of references to the module.
pub static MODULE_REFS: AtomicI64 = AtomicI64::new(0);
/// The number of runs that are mapped for the NIC.
pub static MAPPED: AtomicI64 = AtomicI64::new(0);
/// The mappings for DMA: address of the memory and length, by DMA address.
pub static MAPPINGS: Mutex<BTreeMap<u64, (u64, u64)>> = Mutex::new(BTreeMap::new());
/// The length of the longest block of DMA addresses that the IOMMU gives.
pub static LONGEST_BLOCK: AtomicU64 = AtomicU64::new(u64::MAX);
/// The segment limit of the device.
pub static SEGMENT_LIMIT: AtomicU64 = AtomicU64::new(PAGE * 2);
static NEXT_DMA: AtomicU64 = AtomicU64::new(1 << 40);
/// The number of calls of the core's invalidate hook.
pub static INVALIDATED: AtomicU64 = AtomicU64::new(0);
/// The number of bytes by which a core that is out of order asks `get_pages` for more than it
/// acquired.
pub static OUT_OF_ORDER: AtomicU64 = AtomicU64::new(0);
/// The size of each allocation in bytes. The provider pins only within one. Allocations lie at
/// multiples of it.
pub static ALLOCATION: AtomicU64 = AtomicU64::new(u64::MAX);
/// `GETS` counts the pins that the provider was asked for, `ASKED` its own mappings.
pub static GETS: AtomicU64 = AtomicU64::new(0);
pub static ASKED: AtomicU64 = AtomicU64::new(0);
/// The number of puts that the provider was asked for.
pub static PUTS: AtomicU64 = AtomicU64::new(0);
/// The provider's return value for its own mapping.
pub static MAP_ANSWER: AtomicI32 = AtomicI32::new(0);
/// The nanoseconds that each get of the provider takes.
pub static GET_NS: AtomicU64 = AtomicU64::new(0);
/// The clock. Each look advances it by one.
pub static CLOCK: AtomicU64 = AtomicU64::new(1);
/// `COMM` is the name of the running process, `PROCESS` its number.
pub static COMM: Mutex<[u8; 16]> = Mutex::new([b't'; 16]);
pub static PROCESS: AtomicU32 = AtomicU32::new(100);
/// The PCI number of the NIC.
pub static NIC: AtomicU64 = AtomicU64::new(0x20);
/// Whether the pages of a pin have gaps of a page between them.
pub static SCATTERED: AtomicBool = AtomicBool::new(false);
/// Whether nothing translates, so that memory has the same address for the device.
pub static UNTRANSLATED: AtomicBool = AtomicBool::new(false);
/// A number that is added to each address that the DMA API gives for more than one page.
pub static DMA_SKEW: AtomicU64 = AtomicU64::new(0);
/// `persistent_api_support`.
pub static PERSISTENT: AtomicBool = AtomicBool::new(false);
/// `revocable_fallback`.
pub static FALLBACK: AtomicBool = AtomicBool::new(false);
/// `peerdirect_support`.
pub static PLAIN: AtomicBool = AtomicBool::new(false);

extern "C" {
    fn nvpm_on_free(data: *mut c_void) -> c_int;
    fn nvpm_proc_seek(list: u32, at: *mut u64) -> c_int;
    fn nvpm_proc_row(list: u32, at: u64, seq: *mut raw::seq_file);
    fn nvpm_proc_stats(seq: *mut raw::seq_file);
}

/// Returns what `write` writes into a file of /proc.
fn written(write: impl FnOnce(*mut raw::seq_file)) -> String {
    let mut text = Vec::<u8>::new();
    let seq: *mut Vec<u8> = &mut text;
    write(seq.cast());
    String::from_utf8(text).expect("the files are ASCII")
}

/// Returns the file `stats`.
pub fn stats() -> String {
    // SAFETY: The module is loaded, as when proc.c calls it.
    written(|seq| unsafe { nvpm_proc_stats(seq) })
}

/// Returns the value of `key` in `stats`.
pub fn stat(key: &str) -> String {
    let stats = Stats::parse(&stats());
    stats.text(key).unwrap_or_else(|| panic!("no {key} in {stats:?}")).to_string()
}

/// Returns the rows of `list`, which is a number of shim.h.
pub fn rows(list: u32) -> Vec<String> {
    let mut at = 0;
    let mut rows = Vec::new();
    // SAFETY: As above.
    while unsafe { nvpm_proc_seek(list, &mut at) } == 1 {
        // SAFETY: As above.
        rows.push(written(|seq| unsafe { nvpm_proc_row(list, at, seq) }));
        at += 1;
    }
    rows
}

/// Runs the free callback, as src/ffi/callback.c does.
fn free_callback(ticket: u64) {
    let data = std::ptr::without_provenance_mut(usize::try_from(ticket).unwrap());
    // SAFETY: It takes any number.
    if unsafe { nvpm_on_free(data) } != 0 {
        Machine::nvpm_module_put();
    }
}

/// A pin in the provider's accounting.
struct Pin {
    table: usize,
    ticket: Option<u64>,
}

/// The RM API lock, with what it guards: pins by the address of their table.
static RM_API: Mutex<Option<HashMap<usize, Pin>>> = Mutex::new(None);

fn accounting(guard: &mut MutexGuard<'_, Option<HashMap<usize, Pin>>>) -> &'static mut HashMap<usize, Pin> {
    let map: *mut HashMap<usize, Pin> = guard.get_or_insert_default();
    // SAFETY: Used by the callers below while they hold the guard only.
    unsafe { &mut *map }
}

/// Returns the number of pins that were not given back.
pub fn pins() -> usize {
    RM_API.lock().unwrap().as_ref().map_or(0, HashMap::len)
}

fn make_table(length: u64) -> usize {
    let step = if SCATTERED.load(SeqCst) { 2 * PAGE } else { PAGE };
    let pages: Vec<*mut raw::nvidia_p2p_page> = (0..length / PAGE)
        .map(|i| Box::into_raw(Box::new(raw::nvidia_p2p_page { physical_address: BAR + i * step, registers: [0; 6] })))
        .collect();
    let entries = u32::try_from(pages.len()).unwrap();
    let pages = Box::into_raw(pages.into_boxed_slice()).cast();
    let table = raw::nvidia_p2p_page_table {
        version: raw::NVIDIA_P2P_PAGE_TABLE_MAJOR_V2 << 16,
        page_size: raw::NVIDIA_P2P_PAGE_SIZE_64KB,
        pages,
        entries,
        gpu_uuid: std::ptr::null_mut(),
        flags: 0,
    };
    Box::into_raw(Box::new(table)).expose_provenance()
}

fn free_table(table: usize) {
    // SAFETY: Made by `make_table()`; the caller took it out of the accounting.
    unsafe {
        let table = Box::from_raw(std::ptr::with_exposed_provenance_mut::<raw::nvidia_p2p_page_table>(table));
        let pages = Box::from_raw(std::ptr::slice_from_raw_parts_mut(table.pages, table.entries as usize));
        for page in pages.iter() {
            drop(Box::from_raw(*page));
        }
    }
}

fn get(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table, ticket: Option<u64>) -> c_int {
    let mut r = RM_API.lock().unwrap();
    GETS.fetch_add(1, SeqCst);
    CLOCK.fetch_add(GET_NS.load(SeqCst), SeqCst);
    let allocation = ALLOCATION.load(SeqCst);
    if va / allocation != (va + length - 1) / allocation {
        return -22;
    }
    let made = make_table(length);
    accounting(&mut r).insert(made, Pin { table: made, ticket });
    // SAFETY: The caller's local.
    unsafe { table.write(std::ptr::with_exposed_provenance_mut(made)) };
    0
}

fn put(table: *mut raw::nvidia_p2p_page_table) -> c_int {
    let mut r = RM_API.lock().unwrap();
    PUTS.fetch_add(1, SeqCst);
    // An unknown table is no error, as with the real provider.
    if let Some(pin) = accounting(&mut r).remove(&table.addr()) {
        free_table(pin.table);
    }
    0
}

/// Frees the memory of every revocable pin. The RM API lock is held while the callbacks run.
pub fn free_all_memory() {
    let mut r = RM_API.lock().unwrap();
    let mut revoked = Vec::new();
    accounting(&mut r).retain(|_, pin| match pin.ticket {
        Some(ticket) => {
            revoked.push((pin.table, ticket));
            false
        }
        None => true,
    });
    for (table, ticket) in revoked {
        free_callback(ticket);
        free_table(table);
    }
}

/// Calls the callback of a pin that ended long ago once more.
pub fn late_callback(ticket: u64) {
    let _r = RM_API.lock().unwrap();
    free_callback(ticket);
}

/// The clients in the order of their registration.
static CLIENTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The description that a client gives a core of itself.
#[derive(Debug, PartialEq)]
pub struct Form {
    /// The client's name.
    pub name: String,
    /// The last byte of its version, which says whether the rest is there.
    pub extended: u8,
    /// The size of the longer object in bytes.
    pub ex_size: usize,
    /// The flags of the longer object.
    pub flags: u32,
    /// Says whether it asks for the core's hook, by which it invalidates.
    pub hook: bool,
}

/// The form of each client that was registered, even if its registration failed later.
pub static FORMS: Mutex<Vec<Form>> = Mutex::new(Vec::new());

/// One registration, as the core drives it.
pub struct Umem {
    client: *const raw::peer_memory_client,
    context: *mut c_void,
    sg: Box<Table>,
}

// SAFETY: The core calls from any thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Calls `acquire` of the clients in turn, then `get_pages` and `dma_map`. Returns `Err` with
    /// the errno of the step that failed.
    pub fn register(addr: u64, size: u64, core_ticket: u64) -> Result<Self, c_int> {
        let clients = CLIENTS.lock().unwrap().clone();
        for client in clients {
            let client = std::ptr::with_exposed_provenance::<raw::peer_memory_client>(client);
            let mut context = std::ptr::null_mut();
            let (addr, size) = (usize::try_from(addr).unwrap(), usize::try_from(size).unwrap());
            // SAFETY: A registered client; the arguments are locals.
            unsafe {
                let calls = &*client;
                let null = std::ptr::null_mut();
                if calls.acquire.unwrap()(addr, size, null, std::ptr::null_mut(), &mut context) == 0 {
                    continue;
                }
                let mut umem = Self { client, context, sg: Box::default() };
                let asked = size + usize::try_from(OUT_OF_ORDER.load(SeqCst)).unwrap();
                let mut ret = calls.get_pages.unwrap()(addr, asked, 1, 0, std::ptr::null_mut(), context, core_ticket);
                if ret == 0 {
                    let mut nmap = 0;
                    let device = std::ptr::without_provenance_mut(1);
                    ret = calls.dma_map.unwrap()((&raw mut *umem.sg).cast(), context, device, 0, &mut nmap);
                    if ret != 0 {
                        calls.put_pages.unwrap()(std::ptr::null_mut(), context);
                    }
                }
                if ret != 0 {
                    calls.release.unwrap()(context);
                    return Err(ret);
                }
                return Ok(umem);
            }
        }
        Err(-14)
    }

    /// Returns the number of mapped bytes.
    pub fn bytes(&self) -> u64 {
        self.sg.entries.iter().map(|e| u64::from(e.1)).sum()
    }

    /// Returns the DMA address and length of each entry.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.sg.entries.iter().map(|e| (e.0, u64::from(e.1)))
    }

    /// Calls `dma_unmap`, `put_pages` and `release`.
    pub fn deregister(mut self) {
        // SAFETY: A registered client and a context of its own, once.
        unsafe {
            let calls = &*self.client;
            let sg = (&raw mut *self.sg).cast();
            calls.dma_unmap.unwrap()(sg, self.context, std::ptr::without_provenance_mut(1));
            calls.put_pages.unwrap()(sg, self.context);
            calls.release.unwrap()(self.context);
        }
    }
}

unsafe extern "C" {
    fn init_module() -> c_int;
    fn cleanup_module();
}

/// Loads the module, as insmod does.
pub fn load() -> c_int {
    // SAFETY: Called once by each test program.
    unsafe { init_module() }
}

/// Unloads the module, as rmmod does. Fails with `EBUSY` while there are references.
pub fn unload() -> c_int {
    if MODULE_REFS.load(SeqCst) != 0 {
        return -16;
    }
    // SAFETY: After `init_module()`, once.
    unsafe { cleanup_module() };
    0
}

/// A registration that the core releases inside its hook.
pub static RELEASED_IN_HOOK: Mutex<Option<Umem>> = Mutex::new(None);

/// A function that runs while the core has stopped the NIC.
pub static IN_HOOK: Mutex<Option<fn()>> = Mutex::new(None);

unsafe extern "C" fn invalidate(_handle: *mut c_void, _core_ticket: u64) -> c_int {
    INVALIDATED.fetch_add(1, SeqCst);
    if let Some(happens) = *IN_HOOK.lock().unwrap() {
        happens();
    }
    if let Some(umem) = RELEASED_IN_HOOK.lock().unwrap().take() {
        umem.deregister();
    }
    0
}

static PUT_GATE: RwLock<()> = RwLock::new(());
/// The guards of the put gate, by the thread that holds them.
static SHARED: Mutex<Option<HashMap<ThreadId, Held<RwLockReadGuard<'static, ()>>>>> = Mutex::new(None);
static EXCLUSIVE: Mutex<Option<HashMap<ThreadId, Held<RwLockWriteGuard<'static, ()>>>>> = Mutex::new(None);
struct Held<T>(#[allow(dead_code)] T);
// SAFETY: A guard is put in and taken out by the thread that made it.
unsafe impl<T> Send for Held<T> {}

/// The machine of these tests. A list of the module is like one of the core.
struct Machine;

shim::host!(Machine);
shim::lists!(Machine);

impl Lists for Machine {}

impl Host for Machine {
    fn nvpm_param_peerdirect_support() -> c_int {
        PLAIN.load(SeqCst).into()
    }
    fn nvpm_param_persistent_api_support() -> c_int {
        PERSISTENT.load(SeqCst).into()
    }
    fn nvpm_param_revocable_fallback() -> c_int {
        FALLBACK.load(SeqCst).into()
    }
    fn nvpm_module_get() -> c_int {
        MODULE_REFS.fetch_add(1, SeqCst);
        1
    }
    fn nvpm_module_put() {
        assert!(MODULE_REFS.fetch_sub(1, SeqCst) > 0, "more puts than gets");
    }
    unsafe fn nvpm_core_register(
        client: *const raw::peer_memory_client,
        hook: *mut raw::invalidate_peer_memory,
    ) -> *mut c_void {
        CLIENTS.lock().unwrap().push(client.expose_provenance());
        // SAFETY: The module's static object, which is the longer one whatever it says.
        let (plain, long) = unsafe { (&*client, &*client.cast::<raw::peer_memory_client_ex>()) };
        let name = plain.name.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
        let extended = plain.version.last().map_or(0, |byte| *byte);
        let form = Form { name, extended, ex_size: long.ex_size, flags: long.flags, hook: !hook.is_null() };
        FORMS.lock().unwrap().push(form);
        if !hook.is_null() {
            // SAFETY: The caller's promise.
            unsafe { hook.write(Some(invalidate)) };
        }
        client.cast_mut().cast()
    }
    fn nvpm_core_unregister(handle: *mut c_void) {
        let mut clients = CLIENTS.lock().unwrap();
        let before = clients.len();
        clients.retain(|c| *c != handle.addr());
        assert_eq!(clients.len() + 1, before, "unregistered twice");
    }
    unsafe fn nvpm_p2p_get(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table, ticket: u64) -> c_int {
        get(va, length, table, Some(ticket))
    }
    fn nvpm_p2p_put(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
        put(table)
    }
    unsafe fn nvpm_p2p_get_persistent(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table) -> c_int {
        get(va, length, table, None)
    }
    fn nvpm_p2p_put_persistent(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
        put(table)
    }
    unsafe fn nvpm_p2p_dma_map(
        _dev: *mut raw::device,
        _table: *mut raw::nvidia_p2p_page_table,
        mapping: *mut *mut raw::nvidia_p2p_dma_mapping,
    ) -> c_int {
        ASKED.fetch_add(1, SeqCst);
        let answer = MAP_ANSWER.load(SeqCst);
        if answer == 0 {
            // SAFETY: The caller's local.
            unsafe { mapping.write(std::ptr::dangling_mut()) };
        }
        answer
    }
    fn nvpm_put_gate_lock_shared() {
        let guard = Held(PUT_GATE.read().unwrap());
        SHARED.lock().unwrap().get_or_insert_default().insert(std::thread::current().id(), guard);
    }
    fn nvpm_put_gate_unlock_shared() {
        let guard = SHARED.lock().unwrap().get_or_insert_default().remove(&std::thread::current().id());
        assert!(guard.is_some(), "the put gate was not held");
    }
    fn nvpm_put_gate_lock_exclusive() {
        let guard = Held(PUT_GATE.write().unwrap());
        EXCLUSIVE.lock().unwrap().get_or_insert_default().insert(std::thread::current().id(), guard);
    }
    fn nvpm_put_gate_unlock_exclusive() {
        let guard = EXCLUSIVE.lock().unwrap().get_or_insert_default().remove(&std::thread::current().id());
        assert!(guard.is_some(), "the put gate was not held");
    }
    unsafe fn nvpm_current_process(process: *mut raw::nvpm_process) {
        // SAFETY: The caller's local.
        unsafe { process.write(raw::nvpm_process { start_ns: 1, tgid: PROCESS.load(SeqCst) }) };
    }
    unsafe fn nvpm_current_comm(comm: *mut u8) {
        let name = *COMM.lock().unwrap();
        // SAFETY: Room for sixteen bytes.
        unsafe { comm.copy_from_nonoverlapping(name.as_ptr(), 16) };
    }
    fn nvpm_current_task() -> u64 {
        std::thread_local! { static TASK: u8 = const { 0 } };
        TASK.with(|task| (&raw const *task).addr() as u64)
    }
    fn nvpm_now_ns() -> u64 {
        CLOCK.fetch_add(1, SeqCst)
    }
    fn nvpm_device_number(_: *mut raw::device) -> u64 {
        NIC.load(SeqCst)
    }
    fn nvpm_device_segment_limit(_: *mut raw::device) -> u64 {
        SEGMENT_LIMIT.load(SeqCst)
    }
    unsafe fn nvpm_provider_bar(address: u64, bar: *mut raw::nvpm_bar) -> c_int {
        assert!(address >= BAR);
        // SAFETY: The caller's local.
        unsafe { bar.write(raw::nvpm_bar { start: BAR, last: BAR + BAR_LENGTH - 1, bus_offset: 0, device: 0x40 }) };
        0
    }
    unsafe fn nvpm_dma_map(_: *mut raw::device, address: u64, length: u64, dma: *mut u64) -> c_int {
        if length > LONGEST_BLOCK.load(SeqCst) {
            return -5;
        }
        MAPPED.fetch_add(1, SeqCst);
        // Choose a multiple of the length, rounded up to a power of two, as an IOMMU does.
        let block = length.next_power_of_two();
        let at = NEXT_DMA.fetch_update(SeqCst, SeqCst, |next| Some(next.next_multiple_of(block) + block)).unwrap();
        let at = if UNTRANSLATED.load(SeqCst) { address } else { at.next_multiple_of(block) };
        let at = at + if length > PAGE { DMA_SKEW.load(SeqCst) } else { 0 };
        MAPPINGS.lock().unwrap().insert(at, (address, length));
        // SAFETY: The caller's local.
        unsafe { dma.write(at) };
        0
    }
    fn nvpm_dma_unmap(_: *mut raw::device, dma: u64, length: u64) {
        let mapped = MAPPINGS.lock().unwrap().remove(&dma).map(|(_, length)| length);
        assert_eq!(mapped, Some(length), "unmapped at {dma:#x} what was not mapped so");
        MAPPED.fetch_sub(1, SeqCst);
    }
}
