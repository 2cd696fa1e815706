// SPDX-License-Identifier: GPL-2.0

//! Tests the stand-in inside the machine: the lab's GPU must behave as the reference pages say.
//! Prints KTAP.
//!
//! Needs lab_pcie.ko, nvidia.ko and nvlab_gdr.ko loaded, debugfs mounted, and a PCI device to map
//! for (`nvlab-selftest <domain:bus:device.function in hex>`). It tests the flavour with NVIDIA's own
//! front, not the odd one. More tests run with two GPUs, and
//! behind an IOMMU that translates. The last case leaves `leaked_tables` behind on purpose.

use nvlab::{Accounting, Client, Gdr, Kind, Lab, Layout, Pci, Piece, State, BACKING, GPU_PAGE};
use std::os::fd::AsFd;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

struct Test {
    rm: Client,
    lab: Lab,
    gdr: Gdr,
    peer: Pci,
}

macro_rules! same {
    ($a:expr, $b:expr) => {
        match (&$a, &$b) {
            (a, b) if a == b => {}
            (a, b) => return Err(format!("line {}: {} is {a:?}, wanted {b:?}", line!(), stringify!($a)).into()),
        }
    };
}

macro_rules! refused {
    ($call:expr, $errno:expr) => {
        same!($call.err().map(|e| e.errno()), Some(Some($errno)))
    };
}

impl Test {
    fn counter(&self, name: &str) -> Result<i64, nvlab::Error> {
        Ok(self.lab.accounting()?.get(name))
    }

    /// Returns the physical address of a GPU page.
    fn phys(&self, va: u64) -> Result<u64, nvlab::Error> {
        let pin = self.gdr.pin(va, GPU_PAGE, Kind::Revocable)?;
        let page = self.lab.bar1()?.into_iter().find(|p| p.bar == pin.first);
        Ok(page.map_or(u64::MAX, |p| u64::from(p.gpu) << 40 | p.video))
    }

    /// Runs something in a forked child and returns its exit status.
    fn forked(&self, f: impl FnOnce() -> i32) -> i32 {
        // SAFETY: only the main thread is running whenever this is called.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = f();
            // SAFETY: the child ends without running the parent's destructors.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waiting for our own child, with a good pointer.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        libc::WEXITSTATUS(status)
    }
}

fn addresses(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, 1)?;
    same!(m.va() % BACKING, 0);
    same!(m.backing(), BACKING);
    // The mapping exists but holds no page, and no syscall can read through it.
    let mut map = [0u8; 1];
    // SAFETY: one page at our own mapping, one byte of result.
    let rc = unsafe { libc::mincore(m.va() as *mut _, 4096, map.as_mut_ptr()) };
    same!(rc, 0);
    let mut pipe = [0; 2];
    // SAFETY: two descriptors into our array; then a write that must fail with EFAULT.
    let rc = unsafe {
        libc::pipe(pipe.as_mut_ptr());
        libc::write(pipe[1], m.va() as *const _, 16)
    };
    same!(rc, -1);
    same!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    // A load of the CPU kills the process.
    let va = m.va();
    // SAFETY: fork from the only thread; the child dies of the load, that is the test.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: reads a mapping that is not inherited: the child dies of SIGSEGV or SIGBUS.
        unsafe { libc::_exit(i32::from(std::ptr::read_volatile(va as *const u8) == 7)) };
    }
    let mut status = 0;
    // SAFETY: waiting for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    same!(libc::WIFSIGNALED(status), true);
    // The same address comes back under a new handle.
    let (va, handle) = (m.va(), m.handle());
    m.free()?;
    let m = t.rm.alloc(0, 1)?;
    same!(m.va(), va);
    same!(m.handle() > handle, true);
    refused!(t.rm.request(0, MIB).at(va).alloc(), libc::EEXIST);
    refused!(t.rm.alloc(0, 0), libc::EINVAL);
    refused!(t.rm.alloc(0, 1 << 40), libc::EINVAL);
    Ok(())
}

fn contents(t: &Test) -> Outcome {
    let a = t.rm.alloc(0, 3 * MIB + 5)?;
    let b = t.rm.alloc(0, 3 * MIB + 5)?;
    let first = a.crc32(0, a.size())?;
    same!(first != b.crc32(0, b.size())?, true);
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    a.write(65_000, &bytes)?;
    let mut back = vec![0; bytes.len()];
    b.copy_from(123, &a, 65_000, bytes.len() as u64)?;
    b.read(123, &mut back)?;
    same!(back == bytes, true);
    b.fill_wide(64 * 1024 - 2, 6, 0xbeef, 2)?;
    let mut six = [0; 6];
    b.read(64 * 1024 - 2, &mut six)?;
    same!(six, [0xef, 0xbe, 0xef, 0xbe, 0xef, 0xbe]);
    // The empty CRC and a known one.
    a.write(0, b"123456789")?;
    same!(a.crc32(0, 9)?, 0xcbf4_3926);
    same!(a.crc32(5, 0)?, 0);
    refused!(a.crc32(a.backing(), 1), libc::EINVAL);
    let (id, last) = (a.handle(), a.crc32(0, a.size())?);
    a.free()?;
    let log = t.lab.allocations()?;
    let line = log.iter().find(|l| l.id == id).ok_or("no log line")?;
    same!(line.state, State::Freed);
    same!(line.crc_alloc, Some(first));
    same!(line.crc_free, Some(last));
    same!(line.pid, std::process::id());
    same!(t.lab.chunks()?.iter().filter(|c| c.id == id).count(), (3 * MIB + 5).div_ceil(GPU_PAGE) as usize);
    Ok(())
}

fn layouts(t: &Test) -> Outcome {
    for (layout, breaks) in [(Layout::Contiguous, 0), (Layout::Broken2M, 3), (Layout::Broken64K, 127)] {
        let m = t.rm.request(0, 8 * MIB).layout(layout).alloc()?;
        let pages = (0..128).map(|i| t.phys(m.va() + i * GPU_PAGE)).collect::<Result<Vec<_>, _>>()?;
        let n = pages.windows(2).filter(|w| w[1] != w[0] + 1).count();
        same!((layout, n), (layout, breaks));
        let _pin = t.gdr.pin(m.va(), 8 * MIB, Kind::Revocable)?;
        let mut pages = t.lab.bar1()?;
        pages.sort_by_key(|p| p.page);
        let n = pages.windows(2).filter(|w| w[1].bar != w[0].bar + GPU_PAGE).count();
        same!((layout, pages.len(), n), (layout, 128, breaks));
    }
    let m = t.rm.request(0, 8 * MIB).layout(Layout::Shuffled).alloc()?;
    let mut pages = (0..128).map(|i| t.phys(m.va() + i * GPU_PAGE)).collect::<Result<Vec<_>, _>>()?;
    let n = pages.windows(2).filter(|w| w[1] != w[0] + 1).count();
    same!(n > 60, true);
    pages.sort_unstable();
    pages.dedup();
    same!(pages.len(), 128);
    Ok(())
}

fn reuse(t: &Test) -> Outcome {
    let a = t.rm.alloc(0, MIB)?;
    let b = t.rm.alloc(0, MIB)?;
    let phys = t.phys(a.va())?;
    a.free()?;
    let c = t.rm.alloc(0, MIB)?;
    same!(t.phys(c.va())?, phys);
    drop(b);
    let info = t.rm.info(0)?;
    refused!(t.rm.alloc(0, info.memory), libc::ENOMEM);
    same!(info.memory - info.memory_free, BACKING);
    Ok(())
}

fn revocable(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, 4 * MIB)?;
    let pin = t.gdr.pin(m.va(), 4 * MIB, Kind::Revocable)?;
    same!(pin.entries, 64);
    same!(t.counter("live_pins")?, 1);
    same!(t.counter("bar1_used")?, 4 * MIB as i64);
    same!(t.counter("table_bytes")? > 64 * 8, true);
    pin.unpin()?;
    same!(t.counter("live_pins")?, 0);
    same!(t.counter("bar1_used")?, 0);
    // A free calls all pins of one allocation at once.
    let pins = (0..16)
        .map(|i| t.gdr.pin(m.va() + i * GPU_PAGE, 4 * GPU_PAGE, Kind::Revocable))
        .collect::<Result<Vec<_>, _>>()?;
    same!(t.counter("bar1_used")?, 19 * GPU_PAGE as i64);
    let before = t.counter("callbacks")?;
    m.free()?;
    same!(t.counter("callbacks")? - before, 16);
    for p in &pins {
        same!(p.callbacks()?, 1);
    }
    same!(t.counter("live_pins")?, 0);
    Ok(())
}

fn persistent(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), MIB, Kind::Persistent)?;
    let (phys, id) = (t.phys(m.va())?, m.handle());
    m.free()?;
    let state = |want: State| -> Outcome {
        let log = t.lab.allocations()?;
        same!(log.iter().find(|l| l.id == id).map(|l| l.state), Some(want));
        Ok(())
    };
    state(State::Kept)?;
    same!(t.counter("live_persistent")?, 1);
    let n = t.rm.alloc(0, MIB)?;
    same!(t.phys(n.va())? != phys, true);
    // A persistent pin is put by its object pointer, so any process may put it.
    same!(t.forked(|| i32::from(pin.unpin().is_err())), 0);
    same!(t.counter("live_persistent")?, 0);
    state(State::Freed)?;
    let n = t.rm.alloc(0, MIB)?;
    same!(t.phys(n.va())?, phys);
    Ok(())
}

fn ownership(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, 2 * MIB)?;
    let pin = |va, len, kind| t.gdr.pin(va, len, kind).map(drop);
    for kind in [Kind::Revocable, Kind::Persistent] {
        refused!(pin(m.va() + 4096, GPU_PAGE, kind), libc::EINVAL);
        refused!(pin(m.va(), 4096, kind), libc::EINVAL);
        refused!(pin(m.va(), 0, kind), libc::EINVAL);
        refused!(pin(m.va(), 3 * MIB, kind), libc::EINVAL);
        refused!(pin(1 << 40, GPU_PAGE, kind), libc::EINVAL);
        refused!(pin(u64::MAX - GPU_PAGE + 1, GPU_PAGE, kind), libc::EINVAL);
        // Another process does not own the memory until the owner shares it.
        let child = || {
            t.forked(|| match pin(m.va(), GPU_PAGE, kind) {
                Ok(()) => 0,
                Err(e) => e.errno().unwrap_or(255),
            })
        };
        same!(child(), libc::EINVAL);
    }
    // Two neighbouring allocations are not one range.
    let below = t.rm.request(0, 2 * MIB).at(m.va() - BACKING).alloc()?;
    refused!(pin(below.va() + MIB, 2 * MIB, Kind::Revocable), libc::EINVAL);
    Ok(())
}

/// RM does not choose between two clients of the process that have memory at the same address.
fn two_owners(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, 2 * MIB)?;
    let other = Client::open()?;
    let n = other.request(0, 4 * MIB).unmapped().alloc()?;
    n.register_at(m.va())?;
    for kind in [Kind::Revocable, Kind::Persistent] {
        refused!(t.gdr.pin(m.va(), GPU_PAGE, kind), libc::EIO);
        // A range that only one of them has all of is that one's.
        t.gdr.pin(m.va() + MIB, 2 * MIB, kind)?.unpin()?;
    }
    n.unregister()?;
    t.gdr.pin(m.va(), GPU_PAGE, Kind::Revocable)?.unpin()?;
    Ok(())
}

/// A free goes through the pins as through a tree ordered by the tables' addresses, and begins with
/// its root: with three pins, that is the one in the middle.
fn callbacks_in_order(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pins = (0..3).map(|_| t.gdr.pin(m.va(), GPU_PAGE, Kind::Revocable)).collect::<Result<Vec<_>, _>>()?;
    let mut tables: Vec<u64> = pins.iter().map(|p| p.table).collect();
    tables.sort_unstable();
    let hold = t.lab.arm("callback_after")?;
    std::thread::scope(|s| -> Outcome {
        let freer = s.spawn(|| m.free());
        hold.wait(SOON)?;
        let called = pins
            .iter()
            .filter_map(|p| p.callbacks().map(|n| (n == 1).then_some(p.table)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        same!(called, [tables[1]]);
        hold.release()?;
        freer.join().map_err(|_| "freer")??;
        Ok(())
    })
}

/// A put by a process that is not the owner succeeds and does nothing.
fn foreign_put(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    let (missed, before) = (t.counter("puts_not_found")?, t.counter("callbacks")?);
    same!(t.forked(|| i32::from(pin.unpin().is_err())), 0);
    same!(t.counter("puts_not_found")? - missed, 1);
    same!(t.counter("live_pins")?, 1);
    m.free()?;
    same!(t.counter("callbacks")? - before, 1);
    same!(t.counter("live_pins")?, 0);
    Ok(())
}

/// A process in the pid list may pin and put. Once it is off the list, its put does nothing.
fn shared_pid(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let mut go = [0; 2];
    // SAFETY: two descriptors into our array.
    unsafe { libc::pipe(go.as_mut_ptr()) };
    // SAFETY: fork from the only thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut byte = [0u8];
        // SAFETY: one byte into a live array; the child ends without destructors.
        unsafe {
            libc::read(go[0], byte.as_mut_ptr().cast(), 1);
            let ok = match t.gdr.pin(m.va(), MIB, Kind::Revocable) {
                Ok(p) => {
                    let done = t.rm.unshare(std::process::id()).is_ok();
                    done && p.unpin().is_ok()
                }
                Err(_) => false,
            };
            libc::_exit(i32::from(!ok));
        }
    }
    t.rm.share_with(pid as u32)?;
    let missed = t.counter("puts_not_found")?;
    let mut status = 0;
    // SAFETY: one byte from a literal; then waiting for our own child.
    unsafe {
        libc::write(go[1], b"x".as_ptr().cast(), 1);
        libc::waitpid(pid, &mut status, 0);
    }
    same!(libc::WEXITSTATUS(status), 0);
    same!(t.counter("puts_not_found")? - missed, 1);
    same!(t.counter("live_pins")?, 1);
    refused!(t.rm.unshare(pid as u32), libc::ENOENT);
    m.free()?;
    same!(t.counter("live_pins")?, 0);
    Ok(())
}

fn bar1(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, 8 * MIB)?;
    t.lab.set("bar1_size", 40 * MIB)?;
    let a = t.gdr.pin(m.va(), 4 * MIB, Kind::Revocable)?;
    refused!(t.gdr.pin(m.va() + 4 * MIB, GPU_PAGE, Kind::Revocable), libc::ENOMEM);
    // A page that is mapped already needs no more space, but a pin of mapped and unmapped pages
    // needs space for the latter.
    t.gdr.pin(m.va(), GPU_PAGE, Kind::Revocable)?;
    refused!(t.gdr.pin(m.va(), 4 * MIB + GPU_PAGE, Kind::Revocable), libc::ENOMEM);
    refused!(t.gdr.pin(m.va() + MIB, 4 * MIB, Kind::Revocable), libc::ENOMEM);
    same!(t.counter("bar1_used")?, 4 * MIB as i64);
    // A duplicate has extents of its own and is accounted for separately.
    let b = t.gdr.pin(m.va(), 4 * MIB, Kind::Persistent)?;
    same!(t.counter("bar1_used")?, 8 * MIB as i64);
    same!(a.first == b.first, false);
    refused!(t.gdr.pin(m.va(), 4 * MIB + GPU_PAGE, Kind::Persistent), libc::ENOMEM);
    drop((a, b));
    t.gdr.pin(m.va() + 4 * MIB, 4 * MIB, Kind::Revocable)?;
    // The accounts are independent of each other, but both use space of the BAR.
    t.lab.set("bar1_reserve", 0)?;
    t.lab.set("bar1_size", 6 * MIB)?;
    let a = t.gdr.pin(m.va(), 4 * MIB, Kind::Revocable)?;
    refused!(t.gdr.pin(m.va(), 4 * MIB, Kind::Persistent), libc::ENOMEM);
    drop(a);
    t.lab.reset_config()?;
    Ok(())
}

/// Overlapping pins use the pages that are mapped already, and map the rest elsewhere.
fn extents(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, 4 * MIB)?;
    // A pin behind the first extent forces the second extent to another place.
    let a = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    let other = t.rm.alloc(0, 2 * MIB)?;
    let beside = t.gdr.pin(other.va(), 2 * MIB, Kind::Revocable)?;
    let b = t.gdr.pin(m.va(), 4 * MIB, Kind::Revocable)?;
    same!(b.first, a.first);
    let mut pages: Vec<_> = t.lab.bar1()?.into_iter().filter(|p| p.id == m.handle()).collect();
    pages.sort_by_key(|p| p.page);
    same!(pages.len(), 64);
    let cuts: Vec<u64> = pages.windows(2).filter(|w| w[0].bar + GPU_PAGE != w[1].bar).map(|w| w[1].page).collect();
    same!(cuts, vec![MIB / GPU_PAGE]);
    // The extent stays while the other pin needs it.
    drop(a);
    same!(t.counter("bar1_used")?, 6 * MIB as i64);
    drop(b);
    same!(t.counter("bar1_used")?, 2 * MIB as i64);
    drop(beside);
    // Memory in pieces may still be contiguous in BAR1.
    t.lab.set("bar1_contiguous", 1)?;
    let broken = t.rm.request(0, 4 * MIB).layout(Layout::Shuffled).alloc()?;
    let pin = t.gdr.pin(broken.va(), 4 * MIB, Kind::Persistent)?;
    let mut pages = t.lab.bar1()?;
    pages.sort_by_key(|p| p.page);
    same!(pages.windows(2).all(|w| w[0].bar + GPU_PAGE == w[1].bar), true);
    same!(pages.windows(2).all(|w| w[0].video + 1 == w[1].video), false);
    drop(pin);
    t.lab.reset_config()?;
    Ok(())
}

/// Tests what an export accepts, and that it holds the memory. (The suite `dma_buf` tests what an
/// importer gets.)
fn dma_buf(t: &Test) -> Outcome {
    const PAGE: u64 = 4096;
    let m = t.rm.alloc(0, MIB)?;
    let export = |offset, len| t.rm.export(0, &[Piece { handle: m.handle(), offset, len }]);
    refused!(t.rm.export(0, &[]), libc::EINVAL);
    refused!(t.rm.export(99, &[Piece { handle: m.handle(), offset: 0, len: PAGE }]), libc::ENODEV);
    refused!(t.rm.export(0, &[Piece { handle: m.handle() + 1, offset: 0, len: PAGE }]), libc::ENOENT);
    for (offset, len) in
        [(1, PAGE), (0, PAGE + 1), (0, 0), (BACKING, PAGE), (PAGE, BACKING), (u64::MAX - PAGE + 1, PAGE)]
    {
        refused!(export(offset, len), libc::EINVAL);
    }
    if t.rm.info(0)?.gpus > 1 {
        refused!(t.rm.export(1, &[Piece { handle: m.handle(), offset: 0, len: PAGE }]), libc::EINVAL);
    }
    same!(t.counter("live_dma_bufs")?, 0);
    // Nothing is mapped in BAR1 before somebody maps it.
    let fd = export(PAGE, BACKING - PAGE)?;
    same!((t.counter("live_dma_bufs")?, t.counter("bar1_used")?), (1, 0));
    let (id, state) =
        (m.handle(), || Ok::<_, nvlab::Error>(t.lab.allocations()?.into_iter().rev().map(|a| (a.id, a.state))));
    m.free()?;
    same!(state()?.find(|a| a.0 == id), Some((id, State::Kept)));
    drop(fd);
    same!(state()?.find(|a| a.0 == id), Some((id, State::Freed)));
    Ok(())
}

/// The driver has the addresses of coherent memory from the export on until the buffer goes, and
/// maps nothing. (Behind an IOMMU that translates, no access arrives.)
fn dma_buf_of_coherent_memory(t: &Test) -> Outcome {
    let m = t.rm.request(0, MIB).coherent(true).alloc()?;
    let first = t.gdr.pin(m.va(), MIB, Kind::Revocable)?.first;
    t.lab.reset_accounting()?;
    let accesses = |wanted: i64| -> Outcome {
        let _ = t.gdr.dma_read(t.peer, first, &mut [0; 8]);
        same!(t.counter("violations")?, wanted);
        Ok(())
    };
    let _ = t.gdr.dma_read(t.peer, first, &mut [0; 8]);
    let arrived = t.counter("violations")?;
    let part = |handle| Piece { handle, offset: 0, len: MIB };
    let fd = t.rm.export(0, &[part(m.handle())])?;
    same!((t.counter("live_mappings")?, t.counter("bar1_used")?), (0, 0));
    accesses(arrived)?;
    drop(fd);
    accesses(2 * arrived)?;
    t.lab.reset_accounting()?;
    // No GPU has memory of both kinds.
    let other = t.rm.alloc(0, MIB)?;
    refused!(t.rm.export(0, &[part(m.handle()), part(other.handle())]), libc::EINVAL);
    Ok(())
}

fn faults(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pin = |kind| t.gdr.pin(m.va(), MIB, kind).map(drop);
    for n in 1..=2 {
        t.lab.fault_n("get_nomem", n, 1)?;
        refused!(pin(Kind::Revocable), libc::ENOMEM);
        pin(Kind::Revocable)?;
        t.lab.fault_n("get_nomem", n, 1)?;
        refused!(pin(Kind::Persistent), libc::ENOMEM);
        pin(Kind::Persistent)?;
    }
    // This fault strikes before ownership is checked, so for any address.
    t.lab.fault_n("get_nomem", 1, 1)?;
    refused!(t.gdr.pin(1 << 40, GPU_PAGE, Kind::Revocable), libc::ENOMEM);
    t.lab.fault("persistent_errno", 524)?;
    refused!(pin(Kind::Persistent), libc::EOPNOTSUPP);
    // ... and this one only after the range was found.
    refused!(t.gdr.pin(1 << 40, GPU_PAGE, Kind::Persistent), libc::EINVAL);
    t.lab.fault("get_errno", libc::EBUSY as u64)?;
    refused!(pin(Kind::Revocable), libc::EBUSY);
    t.lab.reset_faults()?;
    let again = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    t.lab.fault_n("callback_double", 1, 1)?;
    m.free()?;
    same!(again.callbacks()?, 2);
    refused!(t.lab.fault("no_such_fault", 1), libc::EINVAL);
    // NVIDIA's own front makes no odd tables.
    refused!(t.lab.fault("table_short", 1), libc::EOPNOTSUPP);
    refused!(t.lab.set("coherent", 2), libc::EOPNOTSUPP);
    refused!(t.lab.set("dma_mode", 570), libc::EINVAL);
    t.lab.reset_faults()?;
    Ok(())
}

/// RM fails to put a pin, and NVIDIA's own code does what it does then: it warns (the runner misses
/// a warning that does not come), and a persistent pin's GPU is given back all the same.
fn puts_that_fail(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let before = (t.counter("callbacks")?, t.counter("leaked_tables")?);
    for errno in [libc::ENOMEM, libc::EBUSY] {
        t.lab.fault_n("put_errno", errno as u64, 1)?;
        refused!(t.gdr.pin(m.va(), MIB, Kind::Revocable)?.unpin(), errno);
    }
    // This one says that it is done.
    t.lab.fault_n("put_forget", 1, 1)?;
    t.gdr.pin(m.va(), MIB, Kind::Revocable)?.unpin()?;
    same!(t.counter("live_pins")?, 3);
    m.unregister()?;
    same!((t.counter("live_pins")?, t.counter("callbacks")? - before.0), (0, 3));
    m.register()?;
    t.lab.fault_n("persistent_put_errno", libc::EIO as u64, 1)?;
    refused!(t.gdr.pin(m.va(), MIB, Kind::Persistent)?.unpin(), libc::EIO);
    same!((t.counter("live_persistent")?, t.counter("leaked_tables")? - before.1), (1, 1));
    // Nobody holds the GPU open any more, so the driver shuts it down, and the pin goes.
    t.lab.end_lost_pins()?;
    same!(t.counter("live_persistent")?, 0);
    Ok(())
}

fn dma(t: &Test) -> Outcome {
    let stops = has_gates(t)?;
    let size = t.rm.info(0)?.memory;
    t.lab.set("crc_max", 0)?;
    let m = t.rm.alloc(0, size)?;
    let mut translating = false;
    // Begin with 550, which reveals whether this machine translates.
    for mode in [550, 595] {
        t.lab.set("dma_mode", mode)?;
        let p = t.gdr.pin(m.va(), MIB, Kind::Persistent)?;
        let dma = p.map(t.peer)?;
        // 595 hands out bus addresses even if an IOMMU translates. Accesses to them fault then.
        let translated = dma != p.first;
        same!(mode == 595 && translated, false);
        let pattern = *b"over the fabric, into the BAR";
        let wrote = t.gdr.dma_write(t.peer, dma + 100, &pattern);
        if mode == 595 && translating {
            same!(wrote.err().map(|e| e.errno()), Some(Some(libc::EFAULT)));
        } else {
            wrote?;
            let mut back = [0; 29];
            m.read(100, &mut back)?;
            same!(back, pattern);
            t.gdr.dma_read(t.peer, dma + 104, &mut back[..5])?;
            same!(&back[..5], &pattern[4..9]);
        }
        translating |= translated;
        same!(t.counter("live_mappings")?, 1);
        p.unmap()?;
        same!(t.counter("live_mappings")?, 0);
        // A put also removes the mappings that are left.
        p.map(t.peer)?;
        p.unpin()?;
        same!(t.counter("live_mappings")?, 0);
        // The last page of the BAR cannot be mapped, but its neighbour can. All of it is one
        // extent.
        t.lab.set("bar1_reserve", 0)?;
        let _card = t.gdr.pin(m.va(), size, Kind::Revocable)?;
        let last = t.gdr.pin(m.va() + size - GPU_PAGE, GPU_PAGE, Kind::Revocable)?;
        refused!(last.map(t.peer), libc::EIO);
        let both = t.gdr.pin(m.va() + size - 2 * GPU_PAGE, GPU_PAGE, Kind::Revocable)?;
        both.map(t.peer)?;
        let all = t.gdr.pin(m.va(), 4 * GPU_PAGE, Kind::Revocable)?;
        // A failure in the middle is none before 580: the last page's counts. (Translated addresses would be
        // unmapped twice then, which DMA-API reports.)
        if mode == 595 {
            t.lab.fault_n("map_partial", 2, 1)?;
            if stops {
                refused!(all.map(t.peer), libc::EIO);
            } else {
                all.map(t.peer)?;
                all.unmap()?;
            }
            t.lab.fault_n("map_partial", 4, 1)?;
            refused!(all.map(t.peer), libc::EIO);
        }
        t.lab.fault_n("map_topology", 1, 1)?;
        refused!(all.map(t.peer), libc::EOPNOTSUPP);
    }
    m.free()?;
    t.lab.reset_config()?;
    let c = t.rm.request(0, 2 * MIB).coherent(true).alloc()?;
    let p = t.gdr.pin(c.va(), 2 * MIB, Kind::Persistent)?;
    same!(t.counter("bar1_used")?, 0);
    p.map(t.peer)?;
    c.write(5, b"coherent")?;
    Ok(())
}

/// Returns whether the driver's front is one of 580 or later.
fn has_gates(t: &Test) -> Result<bool, nvlab::Error> {
    let has = t.lab.set("localized", 1).is_ok();
    t.lab.reset_config()?;
    Ok(has)
}

/// Asks for what drivers from 580 on refuse, and sees how older ones answer where they are asked at
/// all (gates.c). The peer is below no switch.
fn gates(t: &Test) -> Outcome {
    let (m, c) = (t.rm.alloc(0, MIB)?, t.rm.request(0, MIB).coherent(true).alloc()?);
    let whole = |m: &nvlab::Memory| [Piece { handle: m.handle(), offset: 0, len: MIB }];
    if !has_gates(t)? {
        refused!(t.lab.set("unapproved_chipset", 1), libc::EOPNOTSUPP);
        refused!(t.gdr.pin(m.va(), MIB, Kind::Forced), libc::EINVAL);
        refused!(t.gdr.pin(c.va(), MIB, Kind::Forced), libc::EINVAL);
        refused!(t.rm.export_forced(0, &whole(&m)), libc::EINVAL);
        return Ok(());
    }
    // Localized memory: of coherent memory alone, and unless PCIe is forced.
    t.lab.set("localized", 1)?;
    for kind in [Kind::Revocable, Kind::Persistent] {
        refused!(t.gdr.pin(c.va(), MIB, kind), libc::EOPNOTSUPP);
        t.gdr.pin(m.va(), MIB, kind)?.map(t.peer)?;
    }
    refused!(t.rm.export(0, &whole(&c)), libc::EOPNOTSUPP);
    t.gdr.attach(t.rm.export(0, &whole(&m))?.as_fd(), t.peer)?;
    t.gdr.pin(c.va(), MIB, Kind::Forced)?.unpin()?;
    t.lab.set("localized", 0)?;
    // Topology: only memory of a BAR is refused.
    t.lab.set("unapproved_chipset", 1)?;
    for kind in [Kind::Revocable, Kind::Persistent] {
        refused!(t.gdr.pin(m.va(), MIB, kind)?.map(t.peer), libc::EOPNOTSUPP);
        t.gdr.pin(c.va(), MIB, kind)?.map(t.peer)?;
    }
    refused!(t.gdr.attach(t.rm.export(0, &whole(&m))?.as_fd(), t.peer), libc::EOPNOTSUPP);
    t.gdr.attach(t.rm.export(0, &whole(&c))?.as_fd(), t.peer)?;
    t.lab.set("unapproved_chipset", 0)?;
    t.gdr.pin(m.va(), MIB, Kind::Persistent)?.map(t.peer)?;
    // Forced PCIe: on a coherent GPU alone, and nobody maps such a pin.
    refused!(t.gdr.pin(m.va(), MIB, Kind::Forced), libc::EOPNOTSUPP);
    let pin = t.gdr.pin(c.va(), MIB, Kind::Forced)?;
    refused!(pin.map(t.peer), libc::EOPNOTSUPP);
    pin.unpin()?;
    // IOMMU group: who attaches to a forced dma-buf is in the GPU's.
    refused!(t.gdr.attach(t.rm.export_forced(0, &whole(&m))?.as_fd(), t.peer), libc::EOPNOTSUPP);
    let group = |(domain, bus, device, function): Pci| {
        std::fs::read_link(format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.{function}/iommu_group"))
            .ok()
    };
    let attached = t.gdr.attach(t.rm.export_forced(0, &whole(&c))?.as_fd(), t.peer);
    if group(t.peer) == group(t.rm.info(0)?.pci) {
        attached?;
    } else {
        refused!(attached, libc::EOPNOTSUPP);
    }
    m.free()?;
    c.free()?;
    Ok(t.lab.reset_config()?)
}

/// The last page of the BAR cannot be mapped. If it is not the table's last, drivers before 580 do
/// not report that.
fn last_page_in_front(t: &Test) -> Outcome {
    let stops = has_gates(t)?;
    let size = t.rm.info(0)?.memory;
    t.lab.set("crc_max", 0)?;
    t.lab.set("bar1_reserve", 0)?;
    let m = t.rm.request(0, size).layout(Layout::Broken64K).alloc()?;
    let card = t.gdr.pin(m.va(), size, Kind::Revocable)?;
    let first = t.gdr.pin(m.va(), GPU_PAGE, Kind::Revocable)?;
    same!(first.first, card.first);
    refused!(first.map(t.peer), libc::EIO);
    if stops {
        refused!(card.map(t.peer), libc::EIO);
    } else {
        card.map(t.peer)?;
    }
    card.unpin()?;
    drop(first);
    m.free()?;
    Ok(t.lab.reset_config()?)
}

/// While an unbind waits for a pin, nobody can open the GPU, but RM still maps it.
fn map_while_unbound(t: &Test) -> Outcome {
    const DRIVER: &str = "/sys/bus/pci/drivers/nvidia";
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), MIB, Kind::Persistent)?;
    let (domain, bus, device, function) = t.rm.info(0)?.pci;
    let pci = format!("{domain:04x}:{bus:02x}:{device:02x}.{function}");
    std::thread::scope(|s| -> Outcome {
        let unbind = s.spawn(|| std::fs::write(format!("{DRIVER}/unbind"), &pci));
        let outcome = (|| -> Outcome {
            let start = std::time::Instant::now();
            while t.rm.info(0).is_ok() && start.elapsed() < SOON {
                std::thread::sleep(Duration::from_millis(5));
            }
            refused!(t.rm.info(0), libc::ENODEV);
            refused!(t.gdr.pin(m.va(), MIB, Kind::Persistent), libc::ENODEV);
            pin.map(t.peer)?;
            same!(t.counter("live_mappings")?, 1);
            pin.unpin()?;
            Ok(m.free()?)
        })();
        t.lab.end_unbind()?;
        unbind.join().map_err(|_| "unbind")??;
        std::fs::write(format!("{DRIVER}/bind"), &pci)?;
        outcome
    })
}

/// The provider refuses a call from a callback, because its thread has the RM API lock.
fn reentry(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), MIB, Kind::Reentering)?;
    let before = t.counter("reentries")?;
    m.free()?;
    same!(pin.callbacks()?, 1);
    same!(pin.reentry()?, -libc::EIO);
    same!(t.counter("reentries")? - before, 1);
    Ok(())
}

/// Tests a NIC's access to a page that nobody has pinned.
fn violation(t: &Test) -> Outcome {
    t.lab.set("dma_mode", 550)?;
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), GPU_PAGE, Kind::Persistent)?;
    let dma = pin.map(t.peer)?;
    let translates = dma != pin.first;
    t.gdr.dma_write(t.peer, dma, b"pinned")?;
    same!(t.counter("violations")?, 0);
    let behind = t.gdr.dma_write(t.peer, dma + GPU_PAGE - 2, b"half of it");
    drop(pin);
    let after = t.gdr.dma_write(t.peer, dma, b"unpinned");
    let counted = t.counter("violations")?;
    // Where an IOMMU translates, the access never reaches the GPU.
    same!((behind.is_err(), after.is_err(), counted), (translates, translates, if translates { 0 } else { 2 }));
    t.lab.reset_accounting()?;
    t.lab.reset_config()?;
    Ok(())
}

/// Each GPU has its memory, its BAR1 and its name. (This tests nothing on a machine with one GPU.)
fn two_gpus(t: &Test) -> Outcome {
    let first = t.rm.info(0)?;
    refused!(t.rm.info(first.gpus), libc::ENODEV);
    if first.gpus < 2 {
        return Ok(());
    }
    let second = t.rm.info(1)?;
    same!(first.uuid == second.uuid || first.pci == second.pci, false);
    let big = t.rm.alloc(1, second.memory - BACKING)?;
    same!(t.rm.info(0)?.memory_free, first.memory);
    let small = t.rm.alloc(0, MIB)?;
    same!(t.phys(big.va())? == t.phys(small.va())?, false);
    // Pin all of the second GPU's memory but the reserve. It does not use the first GPU's BAR1.
    let most = second.memory - 36 * MIB;
    let a = t.gdr.pin(big.va(), most, Kind::Persistent)?;
    refused!(t.gdr.pin(big.va() + most, GPU_PAGE, Kind::Persistent), libc::ENOMEM);
    let b = t.gdr.pin(small.va(), MIB, Kind::Revocable)?;
    same!(t.counter("bar1_used")?, (most + MIB) as i64);
    drop((a, b));
    Ok(())
}

/// Frees memory in each gap of a get.
fn gaps(t: &Test) -> Outcome {
    for (point, ends) in [
        ("get_alloc", Err(libc::EINVAL)),
        ("get_found", Err(libc::EINVAL)),
        ("get_filled", Err(libc::EINVAL)),
        ("get_done", Ok(1)),
    ] {
        let m = t.rm.alloc(0, MIB)?;
        let (va, hold) = (m.va(), t.lab.arm(point)?);
        let leaked = t.counter("leaked_tables")?;
        let got = std::thread::scope(|s| -> Result<_, nvlab::Error> {
            let pinner = s.spawn(|| {
                t.gdr
                    .pin(va, MIB, Kind::Revocable)
                    .map_err(|e| e.errno().unwrap_or(0))
                    .and_then(|p| p.callbacks().map_err(|_| 0))
            });
            hold.wait(SOON)?;
            m.free()?;
            hold.release()?;
            Ok(pinner.join().unwrap_or(Err(-1)))
        })?;
        same!((point, got), (point, ends));
        // The provider itself leaks here: the range was mapped, then freed before the get ended.
        let leaks = i64::from(point == "get_found" || point == "get_filled");
        same!((point, t.counter("leaked_tables")? - leaked), (point, leaks));
    }
    same!(t.counter("live_pins")?, 0);
    same!(t.counter("bar1_used")?, 0);
    Ok(())
}

/// A put that waits for the RM API lock while the callback runs finds nothing to put.
fn put_behind_callback(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    let missed = t.counter("puts_not_found")?;
    let hold = t.lab.arm("callback_before")?;
    std::thread::scope(|s| -> Outcome {
        let freer = s.spawn(|| m.free());
        hold.wait(SOON)?;
        let putter = s.spawn(|| pin.unpin());
        std::thread::sleep(Duration::from_millis(300));
        same!(putter.is_finished(), false);
        hold.release()?;
        putter.join().map_err(|_| "putter")??;
        freer.join().map_err(|_| "freer")??;
        Ok(())
    })?;
    same!(t.counter("puts_not_found")? - missed, 1);
    Ok(())
}

/// The driver asks vmalloc for what is larger than 128 KiB, also where kmalloc has as much.
/// (`table_bytes` counts what kmalloc gave.)
fn large_arrays(t: &Test) -> Outcome {
    let bytes = |len: u64| -> Result<i64, Box<dyn std::error::Error>> {
        let hold = t.lab.arm("get_alloc")?;
        std::thread::scope(|s| {
            let pinner = s.spawn(|| t.gdr.pin(1 << 40, len, Kind::Revocable).map(drop).err().and_then(|e| e.errno()));
            hold.wait(SOON)?;
            let bytes = t.counter("table_bytes")?;
            hold.release()?;
            match pinner.join() {
                Ok(Some(libc::EINVAL)) => Ok(bytes),
                other => Err(format!("a pin of nobody's memory: {other:?}").into()),
            }
        })
    };
    // 8 bytes a page for addresses, and twice 4 for what only Fermi needs.
    let small = bytes(GPU_PAGE)?;
    same!(bytes(GPU_PAGE << 14)? - small > 250 << 10, true);
    same!(bytes(GPU_PAGE << 16)? < small, true);
    Ok(())
}

/// The address of the pinner's table is used again at once, so that a stale put would hit the new
/// one.
fn key_reuse(t: &Test) -> Outcome {
    t.lab.set("key_reuse", 1)?;
    let m = t.rm.alloc(0, MIB)?;
    let a = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    let table = a.table;
    a.unpin()?;
    same!(t.gdr.pin(m.va(), MIB, Kind::Revocable)?.table, table);
    t.lab.reset_config()?;
    Ok(())
}

/// A get that fails once the range is pinned forgets the pin. The pin stays until the memory is
/// freed, and the next one whose table has the same address uses it again.
fn forgotten_pin(t: &Test) -> Outcome {
    t.lab.set("key_reuse", 1)?;
    let m = t.rm.alloc(0, MIB)?;
    let before = t.counter("callbacks")?;
    t.lab.fault_n("get_nomem", 3, 1)?;
    refused!(t.gdr.pin(m.va(), MIB, Kind::Revocable), libc::ENOMEM);
    same!((t.counter("live_pins")?, t.counter("bar1_used")?), (1, MIB as i64));
    let pin = t.gdr.pin(m.va(), GPU_PAGE, Kind::Revocable)?;
    same!(t.counter("live_pins")?, 1);
    pin.unpin()?;
    same!((t.counter("live_pins")?, t.counter("bar1_used")?), (0, MIB as i64));
    t.lab.fault_n("get_nomem", 3, 1)?;
    refused!(t.gdr.pin(m.va(), MIB, Kind::Revocable), libc::ENOMEM);
    m.free()?;
    same!((t.counter("live_pins")?, t.counter("bar1_used")?, t.counter("callbacks")?), (0, 0, before));
    t.lab.reset_config()?;
    Ok(())
}

fn closing(t: &Test) -> Outcome {
    for deferred in [0, 1] {
        t.lab.set("close_deferred", deferred)?;
        let rm = Client::open()?;
        let m = rm.alloc(0, MIB)?;
        let pin = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
        let hold = t.lab.arm("callback_before")?;
        std::thread::scope(|s| -> Outcome {
            let closer = s.spawn(|| rm.close());
            hold.wait(SOON)?;
            std::thread::sleep(Duration::from_millis(200));
            // Either the closing task is the one that waits, or it has long ended.
            same!((deferred, closer.is_finished()), (deferred, deferred == 1));
            hold.release()?;
            closer.join().map_err(|_| "closer")?;
            Ok(())
        })?;
        let start = std::time::Instant::now();
        while t.counter("live_clients")? != 1 && start.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(5));
        }
        same!(pin.callbacks()?, 1);
        same!(m.free().err().and_then(|e| e.errno()), Some(libc::EBADF));
    }
    t.lab.reset_config()?;
    // This process just dies.
    let before = t.counter("callbacks")?;
    same!(
        t.forked(|| {
            // A dying process releases first the files that it opened last.
            let Ok(gdr) = Gdr::open() else { return 1 };
            let Ok(rm) = Client::open() else { return 1 };
            let Ok(m) = rm.alloc(0, MIB) else { return 1 };
            let ok = gdr.pin(m.va(), MIB, Kind::Revocable).map(std::mem::forget).is_ok();
            std::mem::forget((m, rm, gdr));
            i32::from(!ok)
        }),
        0
    );
    same!(t.counter("callbacks")? - before, 1);
    Ok(())
}

fn unregistering(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let pin = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    m.unregister()?;
    same!(pin.callbacks()?, 1);
    refused!(t.gdr.pin(m.va(), MIB, Kind::Revocable), libc::EINVAL);
    let crc = m.crc32(0, MIB)?;
    m.register()?;
    t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
    same!(m.crc32(0, MIB)?, crc);
    refused!(m.register(), libc::EEXIST);
    Ok(())
}

fn costs(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    for sleep in [0, 1] {
        t.lab.cost("sleep", sleep)?;
        t.lab.cost("pin_base", 30_000_000)?;
        t.lab.cost("pin_gib", 1_000_000_000)?;
        t.lab.reset_accounting()?;
        let start = std::time::Instant::now();
        let p = t.gdr.pin(m.va(), MIB, Kind::Revocable)?;
        same!(start.elapsed() >= Duration::from_nanos(30_976_562), true);
        // Three quarters of the time are spent under the RM API lock, whatever came before.
        same!(t.counter("api_lock_held_ns")? >= 23_232_421, true);
        drop(p);
    }
    t.lab.reset_cost()?;
    Ok(())
}

/// Get and put wait for the GPU lock, whatever has it. The mapping of pages does not.
fn gpu_lock(t: &Test) -> Outcome {
    let m = t.rm.alloc(0, MIB)?;
    let beside = |name: &str, waits: bool, call: &(dyn Fn() -> Outcome + Sync)| -> Outcome {
        let hold = t.lab.arm("gpu_busy")?;
        std::thread::scope(|s| -> Outcome {
            let busy = s.spawn(|| t.lab.use_gpu());
            hold.wait(SOON)?;
            let call = s.spawn(|| call().map_err(|e| e.to_string()));
            let start = std::time::Instant::now();
            while !call.is_finished() && start.elapsed() < Duration::from_millis(if waits { 300 } else { 20_000 }) {
                std::thread::sleep(Duration::from_millis(5));
            }
            same!((name, call.is_finished()), (name, !waits));
            hold.release()?;
            call.join().map_err(|_| "the call")??;
            busy.join().map_err(|_| "who is busy")??;
            Ok(())
        })
    };
    for kind in [Kind::Revocable, Kind::Persistent] {
        let pin = std::sync::Mutex::new(None);
        let taken = || pin.lock().unwrap().take().ok_or("no pin");
        beside("get", true, &|| {
            *pin.lock().unwrap() = Some(t.gdr.pin(m.va(), MIB, kind)?);
            Ok(())
        })?;
        beside("map", false, &|| {
            let p = taken()?;
            p.map(t.peer)?;
            p.unmap()?;
            *pin.lock().unwrap() = Some(p);
            Ok(())
        })?;
        beside("put", true, &|| Ok(taken()?.unpin()?))?;
    }
    Ok(())
}

/// The first open of a GPU starts it, and the last close shuts it down, which takes time. A
/// persistent pin and a dma-buf keep it open, as memory does, and an open may fail.
fn opening(t: &Test) -> Outcome {
    const LONG: Duration = Duration::from_millis(300);
    fn long<T>(
        name: &str,
        wanted: bool,
        call: impl FnOnce() -> Result<T, nvlab::Error>,
    ) -> Result<T, Box<dyn std::error::Error>> {
        let start = std::time::Instant::now();
        let result = call()?;
        same!((name, start.elapsed() >= LONG), (name, wanted));
        Ok(result)
    }
    t.lab.cost("sleep", 1)?;
    t.lab.cost("gpu_start", LONG.as_nanos() as u64)?;
    t.lab.cost("gpu_stop", LONG.as_nanos() as u64)?;
    let m = long("the first memory", true, || t.rm.alloc(0, MIB))?;
    let pin = long("a pin beside it", false, || t.gdr.pin(m.va(), MIB, Kind::Persistent))?;
    let part = Piece { handle: m.handle(), offset: 0, len: MIB };
    let fd = long("a dma-buf beside it", false, || t.rm.export(0, &[part]))?;
    long("freeing what is pinned", false, || m.free())?;
    long("closing the dma-buf", false, || {
        drop(fd);
        Ok(())
    })?;
    long("the last put", true, || pin.unpin())?;
    t.lab.reset_cost()?;
    let m = t.rm.alloc(0, MIB)?;
    t.lab.fault("open_errno", libc::EIO as u64)?;
    refused!(t.gdr.pin(m.va(), MIB, Kind::Persistent), libc::ENODEV);
    let part = Piece { handle: m.handle(), offset: 0, len: MIB };
    refused!(t.rm.export(0, &[part]), libc::EIO);
    t.gdr.pin(m.va(), MIB, Kind::Revocable)?.unpin()?;
    t.lab.reset_faults()?;
    Ok(())
}

type Case = (&'static str, fn(&Test) -> Outcome);

fn main() {
    let words: Vec<u32> = std::env::args()
        .nth(1)
        .unwrap_or_default()
        .split([':', '.'])
        .filter_map(|w| u32::from_str_radix(w, 16).ok())
        .collect();
    let &[domain, bus, device, function] = words.as_slice() else {
        eprintln!("nvlab-selftest: name a PCI device, as 0000:00:02.0");
        std::process::exit(2);
    };
    let t = Test {
        rm: Client::open().expect("client"),
        lab: Lab::open().expect("lab"),
        gdr: Gdr::open().expect("gdr"),
        peer: (domain, bus, device, function),
    };
    let cases: &[Case] = &[
        ("addresses", addresses),
        ("contents", contents),
        ("layouts", layouts),
        ("reuse", reuse),
        ("revocable", revocable),
        ("persistent", persistent),
        ("ownership", ownership),
        ("two_owners", two_owners),
        ("callbacks_in_order", callbacks_in_order),
        ("foreign_put", foreign_put),
        ("shared_pid", shared_pid),
        ("bar1", bar1),
        ("extents", extents),
        ("dma_buf", dma_buf),
        ("dma_buf_of_coherent_memory", dma_buf_of_coherent_memory),
        ("faults", faults),
        ("puts_that_fail", puts_that_fail),
        ("dma", dma),
        ("gates", gates),
        ("last_page_in_front", last_page_in_front),
        ("map_while_unbound", map_while_unbound),
        ("put_behind_callback", put_behind_callback),
        ("large_arrays", large_arrays),
        ("key_reuse", key_reuse),
        ("forgotten_pin", forgotten_pin),
        ("reentry", reentry),
        ("two_gpus", two_gpus),
        ("violation", violation),
        ("closing", closing),
        ("unregistering", unregistering),
        ("costs", costs),
        ("gpu_lock", gpu_lock),
        ("opening", opening),
        // This test is the last, because it leaves the provider's leaked tables behind on purpose.
        ("gaps", gaps),
    ];
    println!("KTAP version 1\n1..{}", cases.len());
    let mut bad = 0;
    for (i, (name, case)) in cases.iter().enumerate() {
        let mut outcome = case(&t);
        if outcome.is_ok() {
            outcome = t.lab.accounting().map_err(Into::into).and_then(|b| left_over(&b, *name == "gaps"));
        }
        match outcome {
            Ok(()) => println!("ok {} {name}", i + 1),
            Err(e) => {
                bad += 1;
                println!("# {e}\nnot ok {} {name}", i + 1);
                let _ = t.lab.reset_faults();
                let _ = t.lab.reset_config();
                let _ = t.lab.release_all();
            }
        }
    }
    std::process::exit(i32::from(bad != 0));
}

fn left_over(accounting: &Accounting, leaks: bool) -> Outcome {
    let mut dirt = accounting.dirt();
    dirt.retain(|d| !leaks || !d.starts_with("leaked_tables="));
    if dirt.is_empty() {
        Ok(())
    } else {
        Err(format!("left over: {}", dirt.join(" ")).into())
    }
}
