// SPDX-License-Identifier: GPL-2.0

//! Models everything outside the module in one execution: what there is of the GPU, of the core and of
//! the loader. `gpu.rs`, `rdma.rs` and `shim.rs` say what they do with it.

use crate::raw;
use crate::rt::{self, fail, rt};
use kernel::ffi::{c_int, c_void};
use std::cell::UnsafeCell;

/// The size of a page of the GPU.
pub const PAGE: u64 = 64 << 10;

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

/// Memory that a process allocated.
pub struct Alloc {
    pub process: usize,
    pub va: u64,
    pub len: u64,
    pub phys: u64,
    pub alive: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Live,
    /// The provider took the memory back, and the callback returned.
    Freed,
    Put,
    /// A put returned 0 without doing anything, as an MPS server's teardown causes
    /// (docs/facts.md#processes). The callback is still armed.
    Forgotten,
    /// A persistent put failed. The pin stays, and nothing can end it any more
    /// (docs/facts.md#persistent).
    Lost,
}

pub(crate) type Callback = unsafe extern "C" fn(*mut c_void);

pub struct PinRec {
    pub alloc: usize,
    pub process: usize,
    pub slot: usize,
    pub(crate) va: u64,
    pub(crate) len: u64,
    pub persistent: bool,
    pub ours: bool,
    pub how: How,
    pub(crate) callback: Option<Callback>,
    pub(crate) data: usize,
    /// The registration of the core that the pin serves, once that is known.
    pub umem: Option<usize>,
}

impl PinRec {
    /// Returns the address behind its last byte.
    pub fn end(&self) -> u64 {
        self.va + self.len
    }
}

/// The number of page tables. Each has one page of memory for its head, its array of pages, and its
/// pages.
pub(crate) const SLOTS: usize = 48;

#[derive(Default)]
pub struct Gpu {
    pub allocs: Vec<Alloc>,
    pub pins: Vec<PinRec>,
    /// The free slots. The last one is given out next, as kmalloc does.
    pub(crate) slots: Vec<usize>,
    pub mappings: Vec<Box<raw::nvidia_p2p_dma_mapping>>,
    pub gets: usize,
    pub puts: usize,
    /// The number of our gets and puts that happen while all registrations of the machine wait.
    pub gets_under_the_peer_mutex: usize,
    pub puts_under_the_peer_mutex: usize,
    /// The length in bytes of the longest range that we asked for.
    pub longest_asked: u64,
    /// The number of pages in the tables that the provider was asked to map.
    pub mapped_pages: u32,
    pub second_user_losses: usize,
    /// The number of times that persistent pins hold the GPU open. Each get adds one, and each put
    /// takes one away, whatever it returns.
    pub(crate) references: i64,
    /// A function that makes wrong tables of those that we get.
    pub spoil: Option<fn(&mut raw::nvidia_p2p_page_table)>,
}

impl Gpu {
    pub fn new() -> Self {
        Self { slots: (0..SLOTS).rev().collect(), ..Self::default() }
    }

    pub(crate) fn find(&self, process: usize, va: u64, len: u64) -> Option<usize> {
        self.allocs.iter().position(|a| {
            a.alive && a.process == process && va >= a.va && va.checked_add(len).is_some_and(|e| e <= a.va + a.len)
        })
    }

    /// Returns where the byte at `va` of a pin lies, or `None` if the pin does not cover it.
    pub fn phys(&self, pin: usize, va: u64) -> Option<u64> {
        let p = self.pins.get(pin)?;
        let into = va.checked_sub(p.va).filter(|into| *into < p.len)?;
        let gap = if w().scattered { into / PAGE * PAGE } else { 0 };
        Some(self.allocs[p.alloc].phys + (p.va - self.allocs[p.alloc].va) + into + gap)
    }

    pub fn live_pins(&self) -> usize {
        self.pins.iter().filter(|p| matches!(p.how, How::Live | How::Forgotten)).count()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generation {
    /// A core with the inverted test in stop_invalidation_notifier (OFED 5.5 to 25.01).
    V2410,
    /// A core like that of OFED 25.04 and later.
    V2510,
}

impl Generation {
    pub fn name(self) -> &'static str {
        match self {
            Self::V2410 => "24.10",
            Self::V2510 => "25.10",
        }
    }
}

pub const GENERATIONS: [Generation; 2] = [Generation::V2410, Generation::V2510];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Unmapped,
    Mapped,
    Invalidated,
}

pub struct Client {
    pub(crate) object: *const raw::peer_memory_client,
    pub(crate) wants_invalidation: bool,
    pub(crate) unmaps: bool,
    pub(crate) registered: bool,
    pub(crate) users: usize,
    pub(crate) idle: usize,
    /// The tickets, each with its umem.
    pub(crate) tickets: Vec<(u64, usize)>,
    pub(crate) next_ticket: u64,
}

pub struct Umem {
    pub(crate) client: usize,
    pub(crate) context: *mut c_void,
    /// The pins in the order of their addresses.
    pub pins: Vec<usize>,
    pub process: usize,
    pub(crate) ticket: Option<u64>,
    /// The number of the umem mapping lock.
    pub(crate) lock: u64,
    pub(crate) state: State,
    pub(crate) func: bool,
    pub(crate) sgt: Box<SgTable>,
    pub(crate) nmap: Box<i32>,
    /// Says that the NIC has a live mkey that is not fenced.
    pub(crate) mkey: bool,
    pub registered: bool,
    pub(crate) released: bool,
    /// Says that its pointer to the client is NULL.
    pub(crate) forgotten: bool,
    pub(crate) va: u64,
    pub(crate) len: u64,
    /// The number of the last acquisition of each state lock in release.
    pub(crate) release_took: Vec<(u64, u64)>,
}

pub struct Core {
    pub generation: Generation,
    pub clients: Vec<Client>,
    pub umems: Vec<Umem>,
    pub invalidations: usize,
    /// Says that the registration can be invalidated. MRs can, queues and the like cannot.
    pub invalidation_supported: bool,
}

// SAFETY: The core's pointers are only numbers to other tasks: nobody follows them there.
unsafe impl Send for Core {}

impl Core {
    pub fn new(generation: Generation) -> Self {
        Self { generation, clients: Vec::new(), umems: Vec::new(), invalidations: 0, invalidation_supported: true }
    }
}

pub struct Process {
    pub tgid: u32,
    pub start_ns: u64,
}

pub struct DmaMap {
    pub(crate) phys: u64,
    pub len: u64,
    pub dma: u64,
    pub live: bool,
    pub(crate) umem: usize,
}

pub struct Sg {
    pub entries: Vec<(u64, u32)>,
    pub freed: bool,
    pub(crate) umem: Option<usize>,
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
    /// Says that an IOMMU translates. Without one, the DMA API returns MMIO addresses unchanged.
    pub iommu: bool,
    /// Says that the IOMMU by chance gives what is mapped first its own address.
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
    pub(crate) proc_there: bool,
    pub(crate) readers: usize,
    pub(crate) no_readers: usize,
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
    let left = w().gpu.pins.iter().filter(|p| p.ours && p.how == How::Live).count();
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

/// Runs the free callback, as src/ffi/callback.c has it: it leaves the module's text before it
/// gives the reference back.
pub(crate) fn free_callback(data: *mut c_void) {
    // SAFETY: As the provider calls it.
    if in_text(|| unsafe { (w().module.on_free)(data) }) != 0 {
        module_put();
    }
}

pub(crate) fn module_put() {
    rt::touch(MODULE, false, "module_put");
    match w().refs.checked_sub(1) {
        Some(refs) => w().refs = refs,
        None => fail("drops a module reference that it does not have".into()),
    }
}

/// Returns the physical address that the NIC reaches at a DMA address. Without an IOMMU, it uses
/// bus addresses.
pub fn translate(dma: u64, len: u64) -> Option<u64> {
    let dma = if w().iommu { dma } else { dma.wrapping_sub(w().bus_offset) };
    let map = w().maps.iter().find(|m| m.live && dma >= m.dma && dma + len <= m.dma + m.len)?;
    Some(map.phys + (dma - map.dma))
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
