// SPDX-License-Identifier: GPL-2.0

//! The provider (nvidia.ko), as docs/facts.md#nvidias-driver describes it.
//!
//! A task that frees memory holds the RM API lock over the callbacks and until the tables are gone.
//! A get looks for the range and registers the callback in two separate holds of it, with gaps
//! before, between and after. A put knows the process and the address of the table, nothing else,
//! and says 0 to what it does not know. Tables are pages of their own that cannot be touched any
//! more once they are freed, and whose address the next get hands out at once.
//!
//! Left out: tokens, MIG, several GPUs, the order of BAR1 and page-table release within one hold of
//! the RM API lock.

use crate::raw;
use crate::rdma::check_dma;
use crate::rt::{self, fail, note, rt, Rank};
use crate::world::{free_callback, w, Callback, Fault, How, PinRec, NIC, PAGE, RM_API, SLOTS};
use std::ffi::c_void;

/// The address of the GPU's BAR.
pub const BAR: u64 = 1 << 32;
pub const BAR_LEN: u64 = 1 << 28;

pub const EIO: i32 = -5;
pub const ENOMEM: i32 = -12;
pub const EBUSY: i32 = -16;
pub const ENODEV: i32 = -19;
pub const EINVAL: i32 = -22;
pub const ENOTSUPP: i32 = -524;

struct Arena {
    base: *mut u8,
    /// The page size of this machine: 4 KiB or more.
    page_bytes: usize,
    closed: [bool; SLOTS],
}

thread_local! {
    static ARENA: std::cell::RefCell<Option<Arena>> = const { std::cell::RefCell::new(None) };
}

extern "C" fn on_segv(_: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: Called by the kernel with a valid siginfo.
    let at = unsafe { (*info).si_addr() } as usize;
    let r = rt();
    let name = r.tasks.get(r.current).map_or("?", |t| &t.name);
    let mut story = format!("VIOLATION {name}: touches a page table of the provider after it was freed (at {at:#x})\n");
    for (task, op) in &r.steps {
        story += &format!("    {}: {} [{:x}]\n", r.tasks[*task].name, op.what, op.object);
    }
    // SAFETY: Plain system calls; the process ends here.
    unsafe {
        libc::write(2, story.as_ptr().cast(), story.len());
        libc::_exit(86);
    }
}

impl Arena {
    fn new() -> Self {
        // SAFETY: No precondition.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a page");
        // SAFETY: Fresh anonymous memory, and a handler with a stack of its own.
        unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                SLOTS * page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED, "no memory for page tables");
            let size = 256 << 10;
            let mut stack: libc::stack_t = std::mem::zeroed();
            stack.ss_sp = Box::leak(vec![0u8; size].into_boxed_slice()).as_mut_ptr().cast();
            stack.ss_size = size;
            assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_segv as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
            Self { base: base.cast(), page_bytes, closed: [false; SLOTS] }
        }
    }

    fn set(&mut self, slot: usize, closed: bool) -> *mut u8 {
        // SAFETY: Inside the arena.
        let page = unsafe { self.base.add(slot * self.page_bytes) };
        if self.closed[slot] != closed {
            let prot = if closed { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
            // SAFETY: A page of the arena.
            assert_eq!(unsafe { libc::mprotect(page.cast(), self.page_bytes, prot) }, 0);
            self.closed[slot] = closed;
        }
        page
    }
}

fn slot_page(slot: usize, closed: bool) -> *mut u8 {
    ARENA.with(|arena| arena.borrow_mut().get_or_insert_with(Arena::new).set(slot, closed))
}

/// Fills a page table with plausible bytes, unless a fault says otherwise.
fn fill(slot: usize, phys: u64, len: u64, scattered: bool) -> *mut raw::nvidia_p2p_page_table {
    let page = slot_page(slot, false);
    let entries = (len / PAGE) as usize;
    assert!(entries <= 32, "the model's tables are small");
    // SAFETY: All inside one page of our own: a head, pointers from 256 on, pages from 1024 on.
    unsafe {
        let head = page.cast::<raw::nvidia_p2p_page_table>();
        let pointers = page.add(256).cast::<*mut raw::nvidia_p2p_page>();
        let pages = page.add(1024).cast::<raw::nvidia_p2p_page>();
        for i in 0..entries {
            let gap = if scattered { i as u64 } else { 0 };
            (*pages.add(i)).physical_address = phys + (i as u64 + gap) * PAGE;
            pointers.add(i).write(pages.add(i));
        }
        head.write(raw::nvidia_p2p_page_table {
            version: 0x0001_0002,
            page_size: raw::NVIDIA_P2P_PAGE_SIZE_64KB,
            pages: pointers,
            entries: entries as u32,
            gpu_uuid: std::ptr::null_mut(),
            flags: 0,
        });
        head
    }
}

fn enter(what: &str) {
    let r = rt();
    if r.me().in_callback {
        fail(format!("calls the provider's {what} from inside the free callback"));
    }
}

/// Ends a pin. If a NIC can still do DMA through it, memory is corrupted.
fn end_pin(pin: usize, how: How) {
    rt::touch(
        NIC + pin as u64,
        true,
        match how {
            How::Freed => "provider takes the pin back",
            _ => "provider unpins",
        },
    );
    let world = w();
    world.gpu.pins[pin].how = how;
    let slot = world.gpu.pins[pin].slot;
    slot_page(slot, true);
    world.gpu.slots.push(slot);
    check_dma(pin, "its pin is gone");
}

/// Gets a pin for a user of the API, ours or another.
pub(crate) fn get(
    persistent: bool,
    ours: bool,
    va: u64,
    len: u64,
    table: *mut *mut raw::nvidia_p2p_page_table,
    callback: Option<Callback>,
    data: usize,
) -> i32 {
    if ours {
        enter("get");
        // In `dma_map` it is a question about the pair, which does not count as a get of a
        // registration.
        w().gpu.gets += usize::from(!w().mapping[rt().current]);
        w().gpu.longest_asked = w().gpu.longest_asked.max(len);
        if rt().me().held.iter().any(|held| held.0 == Rank::PeerMutex) {
            w().gpu.gets_under_the_peer_mutex += 1;
        }
    }
    if va % PAGE != 0 || len % PAGE != 0 || len == 0 {
        return EINVAL;
    }
    // NVIDIA's nv-p2p.c allocates before RM looks whose memory it is.
    if ours && w().fault(Fault::GetNoMemory) {
        return ENOMEM;
    }
    if !persistent && data == 0 {
        fail("gives the provider no ticket".into());
    }
    let process = rt().me().process;
    // Only persistent pins are got under the umem mapping lock, because no callback waits for
    // theirs (rule 5).
    let tolerate = persistent.then_some(Rank::Mapping);
    rt::lock_as(Rank::RmApi, RM_API, "RM API lock to find the range", tolerate);
    let found = w().gpu.find(process, va, len);
    let errno = match found {
        None => EINVAL,
        Some(_) if ours && persistent && w().fault(Fault::GetNotSupported) => ENOTSUPP,
        Some(_) if ours && w().fault(Fault::GetBusy) => EBUSY,
        Some(_) if ours && w().fault(Fault::GetIo) => EIO,
        Some(_) if ours && w().fault(Fault::GetBarFull) => ENOMEM,
        Some(_) => 0,
    };
    if errno != 0 || !persistent {
        rt::unlock(RM_API);
        if errno != 0 {
            return errno;
        }
        rt::lock(Rank::RmApi, RM_API, "RM API lock to register the callback");
    }
    let world = w();
    let alloc = found.expect("no error");
    if !world.gpu.allocs[alloc].alive {
        // The memory was freed between the two holds. That is an error, and nothing is left
        // (docs/facts.md#get).
        rt::unlock(RM_API);
        return EINVAL;
    }
    let slot = world.gpu.slots.pop().expect("enough slots");
    let phys = world.gpu.allocs[alloc].phys + (va - world.gpu.allocs[alloc].va);
    let head = fill(slot, phys, len, world.scattered);
    if let Some(spoil) = world.gpu.spoil.filter(|_| ours) {
        // SAFETY: Just filled.
        spoil(unsafe { &mut *head });
    }
    let pin = world.gpu.pins.len();
    world.gpu.pins.push(PinRec {
        alloc,
        process,
        slot,
        va,
        len,
        persistent,
        ours,
        how: How::Live,
        callback,
        data,
        umem: None,
    });
    world.gpu.references += i64::from(persistent);
    note(|| format!("pin {pin} is made, table {slot}"));
    rt::unlock(RM_API);
    // SAFETY: The caller's place for the pointer.
    unsafe { table.write(head) };
    if ours {
        world.acquiring[rt().current].push(pin);
    }
    0
}

/// Puts a revocable pin, which it finds only by process and address of the table.
pub(crate) fn put(ours: bool, table: *mut raw::nvidia_p2p_page_table) -> i32 {
    let process = rt().me().process;
    let slot_of = |p: &PinRec| slot_page(p.slot, is_closed(p.slot)).cast() == table;
    let newest = w().gpu.pins.len();
    if ours {
        enter("put");
        w().gpu.puts += 1;
        let known = w().gpu.pins.iter().rposition(|p| !p.persistent && p.ours && slot_of(p));
        match known.map(|pin| &w().gpu.pins[pin]) {
            Some(pin) if pin.process != process => {
                fail("calls the provider's put from a process that did not pin: the pin stays and nobody knows".into())
            }
            Some(pin) if pin.how == How::Freed => fail("puts a pin that the provider took back before".into()),
            Some(pin) if pin.how == How::Put => fail("puts a pin twice".into()),
            Some(_) => {}
            None => fail("puts a table that was never its own".into()),
        }
    }
    rt::lock(Rank::RmApi, RM_API, "RM API lock to unpin");
    let found =
        w().gpu.pins.iter().rposition(|p| !p.persistent && p.how == How::Live && p.process == process && slot_of(p));
    let mut ret = 0;
    if let Some(pin) = found {
        if ours && (pin >= newest || !w().gpu.pins[pin].ours) {
            if w().gpu.pins[pin].ours {
                fail("its put of a stale table released a newer pin of its own".into());
            }
            // Another module got the address while the put waited for the RM API lock. Nobody can
            // prevent that (docs/safety.md#reused-table).
            w().gpu.second_user_losses += 1;
        }
        if ours && w().fault(Fault::PutNoMemory) {
            ret = ENOMEM;
        } else if ours && w().fault(Fault::PutIo) {
            // Every error comes before anything is undone (docs/facts.md#put).
            ret = EIO;
        } else if ours && w().fault(Fault::PutForgets) {
            w().gpu.pins[pin].how = How::Forgotten;
        } else {
            end_pin(pin, How::Put);
        }
    }
    rt::unlock(RM_API);
    ret
}

fn is_closed(slot: usize) -> bool {
    ARENA.with(|arena| arena.borrow().as_ref().is_some_and(|a| a.closed[slot]))
}

pub(crate) fn put_persistent(table: *mut raw::nvidia_p2p_page_table) -> i32 {
    enter("persistent put");
    if rt().me().held.iter().any(|held| held.0 == Rank::PeerMutex) {
        w().gpu.puts_under_the_peer_mutex += 1;
    }
    rt::lock_as(Rank::RmApi, RM_API, "RM API lock to unpin", Some(Rank::Mapping));
    w().gpu.puts += 1;
    let mine = |p: &PinRec| p.persistent && slot_page(p.slot, is_closed(p.slot)).cast() == table;
    let living = |p: &PinRec| matches!(p.how, How::Live | How::Lost);
    let found = w().gpu.pins.iter().rposition(|p| living(p) && mine(p));
    let Some(pin) = found else { fail("puts a persistent pin that is not there".into()) };
    if w().gpu.pins[pin].how == How::Lost {
        fail("puts a persistent pin again whose put has failed".into());
    }
    // This happens whatever the rest returns.
    w().gpu.references -= 1;
    if w().gpu.references < 0 {
        fail("drops a reference of the GPU that another pin has".into());
    }
    let mut ret = 0;
    if w().fault(Fault::PutNoMemory) {
        ret = ENOMEM;
    } else if w().fault(Fault::PutIo) {
        ret = EIO;
    }
    if ret == 0 {
        end_pin(pin, How::Put);
    } else {
        w().gpu.pins[pin].how = How::Lost;
    }
    rt::unlock(RM_API);
    ret
}

/// Maps as the provider does: says what it thinks of the two devices, and gives addresses that
/// nobody should need.
pub(crate) fn dma_map(table: *mut raw::nvidia_p2p_page_table, mapping: *mut *mut raw::nvidia_p2p_dma_mapping) -> i32 {
    enter("dma_map");
    // It looks at the table before it takes the RM API lock.
    // SAFETY: As valid as the caller made it: that is what is tested.
    let entries = unsafe { table.read_volatile() }.entries;
    // The locks are taken as in a persistent get.
    rt::lock_as(Rank::RmApi, RM_API, "RM API lock to map", Some(Rank::Mapping));
    // SAFETY: As above.
    if unsafe { table.read_volatile() }.entries != entries {
        fail("the provider maps a table that changed".into());
    }
    w().gpu.mapped_pages += entries;
    w().gpu.mappings.push(Box::new(unsafe { std::mem::zeroed() }));
    // SAFETY: The caller's place for the pointer.
    unsafe { mapping.write(&raw mut **w().gpu.mappings.last_mut().expect("just pushed")) };
    rt::unlock(RM_API);
    0
}

/// Frees memory of a process. The RM API lock and the GPU locks are held over all callbacks
/// (docs/facts.md#rm-locks).
pub fn free(alloc: usize) {
    rt::lock(Rank::RmApi, RM_API, "RM API lock to free memory");
    if !w().gpu.allocs[alloc].alive {
        rt::unlock(RM_API);
        return;
    }
    let mut pin = 0;
    while pin < w().gpu.pins.len() {
        let p = &w().gpu.pins[pin];
        let armed = matches!(p.how, How::Live | How::Forgotten) && !p.persistent && p.alloc == alloc;
        if armed {
            call_back(pin);
            if w().late_callbacks && p.ours {
                rt::cover("late-callback");
                call_back(pin);
            }
            end_pin(pin, How::Freed);
        }
        pin += 1;
    }
    w().gpu.allocs[alloc].alive = false;
    rt::unlock(RM_API);
}

fn call_back(pin: usize) {
    let p = &w().gpu.pins[pin];
    let (ours, callback, data) = (p.ours, p.callback, std::ptr::without_provenance_mut(p.data));
    note(|| format!("callback for pin {pin}"));
    if ours {
        rt().me().in_callback = true;
        w().calls.push((rt().current, pin));
        free_callback(data);
        w().calls.retain(|c| c.1 != pin);
        rt().me().in_callback = false;
    } else if let Some(callback) = callback {
        // SAFETY: As the provider calls it.
        unsafe { callback(data) }
    }
}
