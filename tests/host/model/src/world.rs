// SPDX-License-Identifier: GPL-2.0

//! Models everything outside the module in one execution, and the C functions of src/ffi/shim.h as
//! the module finds them there.

use crate::gpu::{self, Gpu, BAR, BAR_LEN};
use crate::raw;
use crate::rdma::{self, Core, Generation};
use crate::rt::{self, fail, rt, Rank};
use kernel::ffi::{c_int, c_void};
use std::cell::UnsafeCell;

// The objects of steps. Numbers from 1000 on are given out, and addresses are larger.
pub const PEER_MUTEX: u64 = 1;
pub const RM_API: u64 = 2;
pub const PUT_GATE: u64 = 3;
pub const TEXT: u64 = 4;
pub const MODULE: u64 = 5;
pub const PROC: u64 = 6;
/// The client's table of tickets. The client's number is added.
pub const CLIENT: u64 = 10;
/// The NIC's use of one pin. The pin's number is added.
pub const NIC: u64 = 100;
/// An sg_table. Its number is added.
pub const SG: u64 = 500;
/// A umem's pointer to its client. The umem's number is added.
pub const UMEM: u64 = 700;

/// The entry points of the module under test.
#[derive(Clone, Copy)]
pub struct Module {
    pub init: unsafe extern "C" fn() -> c_int,
    pub exit: unsafe extern "C" fn(),
    /// The free callback's work. It returns 1 if the caller must give a module reference back.
    pub on_free: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// The functions for its proc files: find the first row of a list from a place on, print a row,
    /// print the counters.
    pub seek: unsafe extern "C" fn(u32, *mut u64) -> c_int,
    pub row: unsafe extern "C" fn(u32, u64, *mut c_void),
    pub stats: unsafe extern "C" fn(*mut c_void),
}

/// The parameters that the module is loaded with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// `persistent_api_support=0`.
    Legacy,
    /// None.
    Persistent,
    /// `revocable_fallback=1`.
    Fallback,
}

pub const MODES: [Mode; 3] = [Mode::Legacy, Mode::Persistent, Mode::Fallback];

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    GetNoMemory,
    GetNotSupported,
    GetBusy,
    GetIo,
    GetBarFull,
    PutNoMemory,
    PutIo,
    PutForgets,
    UmemAlloc,
    TicketAlloc,
    DmaMap,
    SecondDmaMap,
    SgAlloc,
    Mkey,
    /// The task that registers is being killed.
    Killed,
    /// The core forgets to unlock the umem mapping lock when registration fails late
    /// (docs/safety.md#leaked-lock).
    LeakedLock,
}

pub const FAULTS: [Fault; 15] = [
    Fault::GetNoMemory,
    Fault::GetNotSupported,
    Fault::GetBusy,
    Fault::GetIo,
    Fault::GetBarFull,
    Fault::PutNoMemory,
    Fault::PutIo,
    Fault::PutForgets,
    Fault::UmemAlloc,
    Fault::TicketAlloc,
    Fault::DmaMap,
    Fault::SecondDmaMap,
    Fault::SgAlloc,
    Fault::Mkey,
    Fault::Killed,
];

pub struct Process {
    pub tgid: u32,
    pub start_ns: u64,
}

pub struct DmaMap {
    phys: u64,
    pub len: u64,
    pub dma: u64,
    pub live: bool,
    umem: usize,
}

pub struct Sg {
    pub entries: Vec<(u64, u32)>,
    pub freed: bool,
    umem: Option<usize>,
}

/// Stands for `struct sg_table`. 0 is an empty one.
#[repr(C)]
pub struct SgTable {
    pub number: usize,
}

pub struct World {
    pub module: Module,
    pub mode: Mode,
    pub gpu: Gpu,
    pub core: Core,
    pub processes: Vec<Process>,
    pub maps: Vec<DmaMap>,
    pub sgs: Vec<Sg>,
    /// The faults to come. Each strikes once, in the order of the places that they hit.
    pub faults: Vec<Fault>,
    /// The number of places that they could hit and spare before they strike.
    pub spared: usize,
    pub scattered: bool,
    /// The PCI number of the NIC that registers.
    pub nic: u64,
    /// Whether an IOMMU translates. Without one, the DMA API returns MMIO addresses unchanged.
    pub iommu: bool,
    /// Whether the IOMMU by chance gives what is mapped first its own address.
    pub first_iova_is_physical: bool,
    /// The number that the host bridge adds to an address on its way to the bus.
    pub bus_offset: u64,
    pub late_callbacks: bool,
    /// The callbacks under way, each with task and pin.
    pub calls: Vec<(usize, usize)>,
    /// The pins that each task got since it asked a client.
    pub acquiring: [Vec<usize>; 16],
    /// The tasks that are in the module's `dma_map`.
    pub mapping: [bool; 16],
    pub refs: usize,
    pub going: bool,
    pub unloaded: bool,
    pub device_gone: bool,
    proc_there: bool,
    readers: usize,
    no_readers: usize,
}

thread_local! {
    static WORLD: UnsafeCell<Option<World>> = const { UnsafeCell::new(None) };
}

/// Returns the world of this execution. No reference outlives a scheduling point.
#[allow(clippy::mut_from_ref)]
pub fn w() -> &'static mut World {
    // SAFETY: Single-threaded, and never kept over a switch.
    WORLD.with(|world| unsafe { (*world.get()).as_mut() }).expect("a world was made")
}

impl World {
    pub fn create(module: Module, generation: Generation) {
        let world = Self {
            module,
            mode: Mode::Legacy,
            gpu: Gpu::new(),
            core: Core::new(generation),
            processes: (0..4).map(|i| Process { tgid: 100 + i, start_ns: 7_000 + u64::from(i) }).collect(),
            maps: Vec::new(),
            sgs: vec![Sg { entries: Vec::new(), freed: false, umem: None }],
            faults: Vec::new(),
            spared: 0,
            scattered: true,
            nic: 0x20,
            iommu: true,
            first_iova_is_physical: false,
            bus_offset: 0,
            late_callbacks: false,
            calls: Vec::new(),
            acquiring: Default::default(),
            mapping: Default::default(),
            refs: 0,
            going: false,
            unloaded: false,
            device_gone: false,
            proc_there: false,
            readers: 0,
            no_readers: rt::new_flag(),
        };
        // SAFETY: Single-threaded; nobody holds a reference over the beginning of an execution.
        WORLD.with(|place| unsafe { *place.get() = Some(world) });
    }

    /// Returns whether this goes wrong now.
    pub fn fault(&mut self, fault: Fault) -> bool {
        match self.faults.iter().position(|f| *f == fault) {
            Some(_) if self.spared > 0 => {
                self.spared -= 1;
                false
            }
            Some(at) => {
                self.faults.remove(at);
                rt::note(|| format!("fault: {fault:?}"));
                true
            }
            None => false,
        }
    }

    pub fn insmod(&mut self) -> i32 {
        // SAFETY: Not loaded yet.
        in_text(|| unsafe { (w().module.init)() })
    }
}

/// Runs code of the module, which must be there, and still be there when it returns.
pub fn in_text<T>(f: impl FnOnce() -> T) -> T {
    rt::touch(TEXT, false, "enter the module");
    if w().unloaded {
        fail("calls into a module that was unloaded".into());
    }
    rt().me().text += 1;
    let out = f();
    rt::touch(TEXT, false, "leave the module");
    if w().unloaded {
        fail("returns into a module that was unloaded".into());
    }
    rt().me().text -= 1;
    out
}

/// Unloads the module. Returns `false` if it is in use.
pub fn rmmod() -> bool {
    rt::touch(MODULE, true, "try_stop_module");
    if w().refs != 0 {
        return false;
    }
    w().going = true;
    // SAFETY: It was loaded, and nobody has a reference.
    in_text(|| unsafe { (w().module.exit)() });
    rt::touch(TEXT, true, "free the module's text");
    let r = rt();
    if let Some(task) = r.tasks.iter().find(|t| t.text != 0) {
        fail(format!("the module is freed while {} is still in its text", task.name));
    }
    w().unloaded = true;
    true
}

fn pci(device: *mut raw::device) {
    if w().device_gone {
        fail(format!("uses the NIC's device {device:?} after it is gone"));
    }
}

pub fn device() -> *mut raw::device {
    std::ptr::without_provenance_mut(0x1000)
}

/// Checks after a release that nothing of this registration is left.
pub fn check_released(umem: usize) {
    if w().maps.iter().any(|m| m.live && m.umem == umem) {
        fail("release returned, but its DMA mapping is still there".into());
    }
    if w().sgs.iter().any(|s| !s.freed && s.umem == Some(umem)) {
        fail("release returned, but its sg_table is still there".into());
    }
}

/// Checks, when nothing is registered any more, that the module still knows what is pinned, and
/// cannot be unloaded.
pub fn check_known() {
    let left = w().gpu.pins.iter().filter(|p| p.ours && p.how == gpu::How::Live).count();
    if left != 0 && w().refs == 0 {
        fail(format!("{left} pins are left, and the module has forgotten them"));
    }
}

/// Checks at the end that nothing at all is left.
pub fn check_end() {
    let world = w();
    if world.gpu.live_pins() != 0 {
        fail(format!("{} pins are left at the end", world.gpu.live_pins()));
    }
    if let Some(map) = world.maps.iter().find(|m| m.live) {
        fail(format!("the DMA mapping {:#x} is left at the end", map.dma));
    }
    if world.sgs.iter().skip(1).any(|s| !s.freed) {
        fail("an sg_table is left at the end".into());
    }
    if world.refs != 0 {
        fail(format!("{} module references are left at the end", world.refs));
    }
    if world.unloaded && rt().allocated != 0 {
        fail(format!("{} bytes are still allocated after the module was unloaded", rt().allocated));
    }
}

#[no_mangle]
extern "C" fn nvpm_param_peerdirect_support() -> c_int {
    0
}

#[no_mangle]
extern "C" fn nvpm_param_persistent_api_support() -> c_int {
    (w().mode != Mode::Legacy).into()
}

#[no_mangle]
extern "C" fn nvpm_param_revocable_fallback() -> c_int {
    (w().mode == Mode::Fallback).into()
}

#[no_mangle]
extern "C" fn nvpm_module_get() -> c_int {
    rt::touch(MODULE, false, "try_module_get");
    if w().going {
        return 0;
    }
    w().refs += 1;
    1
}

/// Runs the free callback, as src/ffi/callback.c has it: it leaves the module's text before it
/// gives the reference back.
pub(crate) fn free_callback(data: *mut c_void) {
    // SAFETY: As the provider calls it.
    if in_text(|| unsafe { (w().module.on_free)(data) }) != 0 {
        nvpm_module_put();
    }
}

#[no_mangle]
extern "C" fn nvpm_module_put() {
    rt::touch(MODULE, false, "module_put");
    match w().refs.checked_sub(1) {
        Some(refs) => w().refs = refs,
        None => fail("drops a module reference that it does not have".into()),
    }
}

#[no_mangle]
extern "C" fn nvpm_core_present() -> c_int {
    1
}

#[no_mangle]
extern "C" fn nvpm_uverbs_loaded() -> c_int {
    1
}

#[no_mangle]
extern "C" fn nvpm_core_register(
    client: *const raw::peer_memory_client,
    invalidate: *mut raw::invalidate_peer_memory,
) -> *mut c_void {
    rdma::register_client(client, invalidate)
}

#[no_mangle]
extern "C" fn nvpm_core_unregister(handle: *mut c_void) {
    rdma::unregister_client(handle);
}

#[no_mangle]
extern "C" fn nvpm_provider_present() -> c_int {
    1
}

#[no_mangle]
extern "C" fn nvpm_p2p_get(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table, ticket: u64) -> c_int {
    gpu::get(false, true, va, length, table, None, ticket as usize)
}

#[no_mangle]
extern "C" fn nvpm_p2p_put(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
    gpu::put(true, table)
}

#[no_mangle]
extern "C" fn nvpm_p2p_get_persistent(va: u64, length: u64, table: *mut *mut raw::nvidia_p2p_page_table) -> c_int {
    gpu::get(true, true, va, length, table, None, 0)
}

#[no_mangle]
extern "C" fn nvpm_p2p_put_persistent(_va: u64, table: *mut raw::nvidia_p2p_page_table) -> c_int {
    gpu::put_persistent(table)
}

#[no_mangle]
extern "C" fn nvpm_p2p_dma_map(
    device: *mut raw::device,
    table: *mut raw::nvidia_p2p_page_table,
    mapping: *mut *mut raw::nvidia_p2p_dma_mapping,
) -> c_int {
    pci(device);
    gpu::dma_map(table, mapping)
}

#[no_mangle]
extern "C" fn nvpm_p2p_dma_unmap(
    device: *mut raw::device,
    _table: *mut raw::nvidia_p2p_page_table,
    _mapping: *mut raw::nvidia_p2p_dma_mapping,
) -> c_int {
    pci(device);
    0
}

#[no_mangle]
extern "C" fn nvpm_put_gate_lock_shared() {
    rt::lock_shared(Rank::PutGate, PUT_GATE, "put gate (shared)");
}

#[no_mangle]
extern "C" fn nvpm_put_gate_unlock_shared() {
    rt::unlock_shared(PUT_GATE);
}

#[no_mangle]
extern "C" fn nvpm_put_gate_lock_exclusive() {
    rt::lock(Rank::PutGate, PUT_GATE, "put gate (exclusive)");
}

#[no_mangle]
extern "C" fn nvpm_put_gate_unlock_exclusive() {
    rt::unlock(PUT_GATE);
}

#[no_mangle]
extern "C" fn nvpm_current_process(process: *mut raw::nvpm_process) {
    let me = &w().processes[rt().me().process];
    // SAFETY: The caller's place.
    unsafe { process.write(raw::nvpm_process { start_ns: me.start_ns, tgid: me.tgid }) };
}

#[no_mangle]
extern "C" fn nvpm_current_comm(comm: *mut u8) {
    // SAFETY: The caller's place of 16 bytes.
    unsafe { comm.write_bytes(0, 16) };
}

#[no_mangle]
extern "C" fn nvpm_current_task() -> u64 {
    rt().current as u64
}

#[no_mangle]
extern "C" fn nvpm_now_ns() -> u64 {
    // The clock stands still, because measured times decide nothing.
    1
}

#[no_mangle]
extern "C" fn nvpm_real_ns() -> u64 {
    nvpm_now_ns()
}

#[no_mangle]
extern "C" fn nvpm_proc_create() -> c_int {
    rt::touch(PROC, true, "the proc files appear");
    w().proc_there = true;
    let no_readers = w().no_readers;
    rt().flags[no_readers] = true;
    0
}

#[no_mangle]
extern "C" fn nvpm_proc_remove() {
    rt::touch(PROC, true, "the proc files vanish");
    w().proc_there = false;
    rt::wait_flag(w().no_readers, "wait until nobody reads the proc files");
}

#[no_mangle]
extern "C" fn nvpm_proc_write(seq: *mut c_void, text: *const u8, length: usize) {
    if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
        fail("writes a proc file under a lock of its own".into());
    }
    if !seq.is_null() {
        // SAFETY: A piece of text of the module, for the reader below.
        unsafe { (*seq.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(text, length)) };
    }
}

/// Checks, when nothing is registered any more, that the counters agree with each other and with
/// what the provider saw.
pub fn check_counters() {
    let mut text: Vec<u8> = Vec::new();
    let seq: *mut Vec<u8> = &mut text;
    // SAFETY: As proc.c calls it while the file is read.
    in_text(|| unsafe { (w().module.stats)(seq.cast()) });
    let text = String::from_utf8_lossy(&text);
    let value = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)).and_then(|v| v.trim().parse::<u64>().ok());
        line.unwrap_or_else(|| fail(format!("stats say nothing of {key}")))
    };
    for key in ["total.live", "total.live_bytes", "total.live_pages", "total.live_runs", "total.orphans"] {
        let left = value(&format!("{key} "));
        if left != 0 {
            fail(format!("nothing is registered, and stats say {key} {left}"));
        }
    }
    let pins = w().gpu.pins.iter().filter(|p| p.ours).count() as u64;
    let (pinned, unpinned) = (value("total.pins "), value("total.unpins "));
    if pinned != pins || unpinned != pins {
        fail(format!("the provider made {pins} pins, stats say {pinned} pins and {unpinned} unpins"));
    }
    if value("total.maps ") != value("total.unmaps ") || value("callbacks_in_flight ") != 0 {
        fail(format!("the counters of stats do not fit together: {text}"));
    }
}

/// Reads all of /proc/driver/nvidia-peermem, as an admin does.
pub fn read_proc() {
    rt::touch(PROC, true, "open the proc files");
    if !w().proc_there {
        return;
    }
    let no_readers = w().no_readers;
    w().readers += 1;
    rt().flags[no_readers] = false;
    rt().me().reading = true;
    in_text(|| {
        let Module { seek, row, stats, .. } = w().module;
        let seq = std::ptr::null_mut();
        for list in 0..3 {
            let mut at = 0;
            // SAFETY: As proc.c calls it while a file is read.
            while unsafe { seek(list, &mut at) } != 0 {
                // SAFETY: As above.
                unsafe { row(list, at, seq) };
                at += 1;
            }
        }
        // SAFETY: As above.
        unsafe { stats(seq) };
    });
    rt().me().reading = false;
    rt::touch(PROC, true, "close the proc files");
    w().readers -= 1;
    let idle = w().readers == 0;
    rt().flags[no_readers] = idle;
}

// The values passed to tracepoints are not looked at.

/// Somebody listens, so that tracepoints are emitted.
#[no_mangle]
#[allow(non_upper_case_globals)]
static nvpm_trace_listened: u32 = 1;

#[no_mangle]
extern "C" fn nvpm_trace_registration() {}

#[no_mangle]
extern "C" fn nvpm_trace_late_callback() {}

#[no_mangle]
extern "C" fn nvpm_trace_failure() {}

#[no_mangle]
extern "C" fn nvpm_cond_resched() {}

#[no_mangle]
extern "C" fn nvpm_pause() {}

#[no_mangle]
extern "C" fn nvpm_preempt_disable() {
    rt().me().preemptible = false;
}

#[no_mangle]
extern "C" fn nvpm_preempt_enable() {
    rt().me().preemptible = true;
}

#[no_mangle]
extern "C" fn nvpm_is_killed() -> c_int {
    w().fault(Fault::Killed).into()
}

#[no_mangle]
extern "C" fn nvpm_page_size() -> u64 {
    4096
}

#[no_mangle]
extern "C" fn nvpm_device_is_pci(device: *mut raw::device) -> c_int {
    pci(device);
    1
}

#[no_mangle]
extern "C" fn nvpm_device_number(device: *mut raw::device) -> u64 {
    pci(device);
    w().nic
}

#[no_mangle]
extern "C" fn nvpm_device_segment_limit(device: *mut raw::device) -> u64 {
    pci(device);
    2 << 30
}

#[no_mangle]
extern "C" fn nvpm_provider_bar(address: u64, bar: *mut raw::nvpm_bar) -> c_int {
    if !(BAR..BAR + BAR_LEN).contains(&address) {
        return gpu::ENODEV;
    }
    // SAFETY: The caller's place.
    unsafe {
        bar.write(raw::nvpm_bar { start: BAR, last: BAR + BAR_LEN - 1, bus_offset: w().bus_offset, device: 0x10 })
    };
    0
}

#[no_mangle]
extern "C" fn nvpm_forget_gpus() {}

#[no_mangle]
extern "C" fn nvpm_dma_map(device: *mut raw::device, address: u64, length: u64, dma: *mut u64) -> c_int {
    pci(device);
    if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
        fail("maps for DMA, which may allocate, under a state or registry lock".into());
    }
    let first = !w().maps.iter().any(|m| m.live);
    if first && w().fault(Fault::DmaMap) || !first && w().fault(Fault::SecondDmaMap) {
        return gpu::EIO;
    }
    let Some(umem) = rt().me().umem else { fail("maps for DMA outside dma_map".into()) };
    let world = w();
    let chance = world.first_iova_is_physical && !world.maps.iter().any(|m| m.live);
    let at = if world.iommu && !chance { (64 << 32) + ((world.maps.len() as u64) << 28) } else { address };
    world.maps.push(DmaMap { phys: address, len: length, dma: at, live: true, umem });
    // SAFETY: The caller's place.
    unsafe { dma.write(at) };
    0
}

#[no_mangle]
extern "C" fn nvpm_dma_unmap(device: *mut raw::device, dma: u64, length: u64) {
    pci(device);
    let Some(at) = w().maps.iter().position(|m| m.live && m.dma == dma && m.len == length) else {
        fail(format!("unmaps {dma:#x}, which is not mapped (any more)"));
    };
    let umem = w().maps[at].umem;
    for &pin in &w().core.umems[umem].pins {
        rt::touch(NIC + pin as u64, true, "unmap for DMA");
    }
    w().maps[at].live = false;
    for &pin in &w().core.umems[umem].pins {
        rdma::check_dma(pin, "its DMA mapping is gone");
    }
}

/// Returns the physical address that the NIC reaches at a DMA address. Without an IOMMU, it uses
/// bus addresses.
pub fn translate(dma: u64, len: u64) -> Option<u64> {
    let dma = if w().iommu { dma } else { dma.wrapping_sub(w().bus_offset) };
    let map = w().maps.iter().find(|m| m.live && dma >= m.dma && dma + len <= m.dma + m.len)?;
    Some(map.phys + (dma - map.dma))
}

#[no_mangle]
extern "C" fn nvpm_sg_alloc(entries: i32, _room: *mut raw::nvpm_sg_room) -> *mut raw::sg_table {
    if rt().me().held.iter().any(|h| h.0 >= Rank::State) {
        fail("allocates an sg_table under a state or registry lock".into());
    }
    let umem = rt().me().umem;
    let world = w();
    if world.fault(Fault::SgAlloc) {
        return std::ptr::null_mut();
    }
    world.sgs.push(Sg { entries: vec![(0, 0); entries as usize], freed: false, umem });
    Box::into_raw(Box::new(SgTable { number: world.sgs.len() - 1 })).cast()
}

#[no_mangle]
extern "C" fn nvpm_sg_free(table: *mut raw::sg_table) {
    // SAFETY: From `nvpm_sg_alloc()`; leaked so that a second free can be told.
    let number = unsafe { (*table.cast::<SgTable>()).number };
    rt::touch(SG + number as u64, true, "free an sg_table");
    let sg = &mut w().sgs[number];
    if std::mem::replace(&mut sg.freed, true) {
        fail("frees an sg_table twice".into());
    }
}

fn entry(number: usize, index: usize) -> *mut raw::scatterlist {
    std::ptr::without_provenance_mut(number << 32 | (index + 1))
}

#[no_mangle]
extern "C" fn nvpm_sg_first(table: *mut raw::sg_table) -> *mut raw::scatterlist {
    // SAFETY: From `nvpm_sg_alloc()`.
    entry(unsafe { (*table.cast::<SgTable>()).number }, 0)
}

#[no_mangle]
extern "C" fn nvpm_sg_set(at: *mut raw::scatterlist, dma: u64, length: u32) -> *mut raw::scatterlist {
    let (number, index) = (at.addr() >> 32, (at.addr() & 0xffff_ffff) - 1);
    let sg = &mut w().sgs[number];
    if sg.freed {
        fail("writes an sg_table that is freed".into());
    }
    sg.entries[index] = (dma, length);
    if index + 1 < sg.entries.len() {
        entry(number, index + 1)
    } else {
        std::ptr::null_mut()
    }
}

#[no_mangle]
extern "C" fn nvpm_sg_publish(to: *mut raw::sg_table, from: *const raw::sg_table) -> i32 {
    // SAFETY: Both are tables of the model.
    let number = unsafe {
        (*to.cast::<SgTable>()).number = (*from.cast::<SgTable>()).number;
        (*to.cast::<SgTable>()).number
    };
    i32::try_from(w().sgs[number].entries.len()).expect("few")
}
