// SPDX-License-Identifier: GPL-2.0
//! Tests the sample driver on the pin layer, which moves GPU memory to and from QEMU's `edu`
//! device.
//!
//! The device takes 100 ms for each command, and the driver moves 2 KiB by two commands. The boots
//! of this suite count instructions as time, and QEMU skips waits, so a command costs only what the
//! kernel does for it. 64 MiB take 65 536 commands, which the suite `edu_long` runs in the soak.
//! The tests check state: commands, interrupts, pins and bytes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nvlab::{Client, Layout, Memory};

use super::iommu::{kind, Iommu};
use crate::common::{errno_name, expect_errno, pattern, same_bytes, GPU_PAGE, KIB, MIB};
use crate::edu::{self, gpu as gpu_end, host, Edu, Kind, Stopped, CHUNK, DRIVER};
use crate::gpu;
use crate::helper::Helper;
use crate::lab;
use crate::machine::Level;
use crate::modules;
use crate::test::{Env, Suite, Test};

pub fn suite() -> Suite {
    let test = |name, run| Test::new(name, Level::Any, run);
    let tests = vec![
        test("without_the_gpu_driver", without_the_gpu_driver),
        test("second_device", second_device),
        test("both_directions", both_directions),
        test("from_gpu_to_gpu", from_gpu_to_gpu),
        test("copies_take_turns", copies_take_turns),
        test("two_processes", two_processes),
        test("device_that_cannot_reach_is_refused", device_that_cannot_reach_is_refused),
        test("wrong_arguments", wrong_arguments),
        test("free_stops_the_engine", free_stops_the_engine),
        test("freed_before_the_copy", freed_before_the_copy),
        test("persistent_outlives_the_free", persistent_outlives_the_free),
        test("killed_process_leaves_nothing", killed_process_leaves_nothing),
        test("closed_by_a_child", closed_by_a_child),
        test("device_removed", device_removed),
        test("module_stays_while_a_file_is_open", module_stays_while_a_file_is_open),
    ];
    Suite { name: "edu", tests }
}

/// Returns the tests that take minutes, or hours by the machine's own clock: the time limit allows for
/// hours.
pub fn long() -> Suite {
    let test = |name, run| Test::new(name, Level::Any, run).limit(8 * 3600);
    Suite { name: "edu_long", tests: vec![test("lengths", lengths), test("storm", storm)] }
}

/// The number of bytes of a copy that a test interrupts: 128 commands.
const LONG: usize = 64 * CHUNK as usize;

/// GPU memory with a copy of its contents.
struct Known {
    memory: Memory,
    bytes: Vec<u8>,
}

impl Known {
    fn new(rng: &mut fastrand::Rng, rm: &Client, layout: Layout, size: usize) -> Result<Self> {
        gpu::seed_layout(rng)?;
        let memory = rm.request(0, size as u64).layout(layout).alloc()?;
        let bytes = pattern(rng, size);
        memory.write(0, &bytes)?;
        Ok(Self { memory, bytes })
    }

    /// Compares each byte of the memory, including those around a copy.
    fn check(&self, what: &str) -> Result<()> {
        let mut got = vec![0; self.bytes.len()];
        self.memory.read(0, &mut got)?;
        same_bytes(what, &got, &self.bytes)
    }
}

fn copied(what: &str, got: Result<(), Stopped>) -> Result<()> {
    match got {
        Ok(()) => Ok(()),
        Err(Stopped { errno, done }) => bail!("{what}: {} after {done} bytes", errno_name(errno)),
    }
}

fn stopped(what: &str, got: Result<(), Stopped>, errno: i32) -> Result<u64> {
    match got {
        Err(stopped) if stopped.errno == errno => Ok(stopped.done),
        Err(Stopped { errno: other, done }) => {
            bail!("{what}: {} after {done} bytes, wanted {}", errno_name(other), errno_name(errno))
        }
        Ok(()) => bail!("{what}: it went through, wanted {}", errno_name(errno)),
    }
}

/// Copies there and back again, and compares each byte: those of the copy, and those around it in
/// both memories.
fn there_and_back(
    rng: &mut fastrand::Rng,
    edu: &Edu,
    kind: Kind,
    known: &mut Known,
    at: usize,
    len: usize,
) -> Result<()> {
    const AROUND: usize = 64;
    let what = format!("{kind:?}, {len} bytes at {at:#x}");
    let pin = edu.pin(kind, known.memory.va() + at as u64, len as u64).with_context(|| what.clone())?;
    let bytes = pattern(rng, len);
    copied(&format!("{what}, host to GPU"), edu.copy(host(bytes.as_ptr()), gpu_end(pin, 0), len as u64))?;
    known.bytes[at..at + len].copy_from_slice(&bytes);
    known.check(&format!("{what}, host to GPU"))?;

    known.bytes[at..at + len].copy_from_slice(&pattern(rng, len));
    known.memory.write(0, &known.bytes)?;
    let mut wanted = vec![0x5a; len + 2 * AROUND];
    let got = wanted.clone();
    copied(&format!("{what}, GPU to host"), edu.copy(gpu_end(pin, 0), host(got[AROUND..].as_ptr()), len as u64))?;
    wanted[AROUND..AROUND + len].copy_from_slice(&known.bytes[at..at + len]);
    // The driver wrote without the compiler's knowledge.
    same_bytes(&format!("{what}, GPU to host"), &std::hint::black_box(got), &wanted)?;
    edu.unpin(pin).with_context(|| format!("{what}, unpin"))
}

/// Returns the number of commands for a copy with one end in GPU memory, if that memory is
/// contiguous.
fn commands(len: u64) -> u64 {
    2 * len.div_ceil(CHUNK)
}

fn both_directions(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm, edu) = (env.rng()?, Client::open()?, Edu::open()?);
    let layouts = [Layout::Contiguous, Layout::Broken64K, Layout::Shuffled];
    for kind in Kind::BOTH {
        for layout in layouts {
            let mut known = Known::new(&mut rng, &rm, layout, 4 * GPU_PAGE)?;
            // These ranges cross the end of a GPU page, or do not begin at a word.
            for (at, len) in [(4097, 1), (GPU_PAGE - 3, 7), (GPU_PAGE - 1025, 2 * CHUNK as usize + 1)] {
                there_and_back(&mut rng, &edu, kind, &mut known, at, len).with_context(|| format!("{layout:?}"))?;
            }
        }
    }
    // The copy takes as many commands as the bytes need, and an interrupt for each, which the
    // kernel has counted, too.
    let mut known = Known::new(&mut rng, &rm, Layout::Contiguous, 2 * GPU_PAGE)?;
    let (before, seen) = (edu.stats()?, edu::kernel_interrupts()?);
    let len = 9 * CHUNK + 5;
    there_and_back(&mut rng, &edu, Kind::Persistent, &mut known, 12345, len as usize)?;
    let after = edu.stats()?;
    let wanted = 2 * commands(len);
    let moved = (after.started - before.started, after.interrupts - before.interrupts);
    ensure!(moved == (wanted, wanted), "{moved:?} commands and interrupts, wanted {wanted} of each");
    let seen = edu::kernel_interrupts()? - seen;
    ensure!(seen == wanted, "/proc/interrupts counted {seen}, wanted {wanted}");
    ensure!(gpu::pins()? == 0, "{} pins are left", gpu::pins()?);
    Ok(())
}

/// Copies between GPU memory and GPU memory with different alignment, and between ranges of one
/// memory.
fn from_gpu_to_gpu(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm, edu) = (env.rng()?, Client::open()?, Edu::open()?);
    let source = Known::new(&mut rng, &rm, Layout::Broken64K, 4 * GPU_PAGE)?;
    let mut target = Known::new(&mut rng, &rm, Layout::Shuffled, 4 * GPU_PAGE)?;
    let len = GPU_PAGE + 3 * KIB + 1;
    let (from, to) = (GPU_PAGE - 777, 2 * GPU_PAGE - 4099);
    let size = source.bytes.len() as u64;
    let a = edu.pin(Kind::Persistent, source.memory.va(), size)?;
    let b = edu.pin(Kind::Revocable, target.memory.va(), size)?;
    copied("GPU to GPU", edu.copy(gpu_end(a, from as u64), gpu_end(b, to as u64), len as u64))?;
    target.bytes[to..to + len].copy_from_slice(&source.bytes[from..from + len]);
    target.check("the target")?;
    source.check("the source")
}

/// Several threads copy at the same time. The engine runs one command at a time, all copies end,
/// and each has its own bytes.
fn copies_take_turns(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let edu = Arc::new(Edu::open()?);
    let before = edu.stats()?;
    let mut requests = Vec::new();
    for _ in 0..4 {
        let known = Known::new(&mut rng, &rm, Layout::Broken64K, GPU_PAGE)?;
        let pin = edu.pin(Kind::Revocable, known.memory.va(), GPU_PAGE as u64)?;
        requests.push((known, pin, pattern(&mut rng, 6 * CHUNK as usize + 1)));
    }
    let running: Vec<_> = requests
        .into_iter()
        .map(|(known, pin, bytes)| {
            let edu = edu.clone();
            thread::spawn(move || {
                let ended = edu.copy(host(bytes.as_ptr()), gpu_end(pin, 3), bytes.len() as u64);
                // At this time, some other thread is not done, unless this one is the last.
                (known, pin, bytes, ended, edu.stats())
            })
        })
        .collect();
    let mut most = 0;
    while running.iter().any(|r| !r.is_finished()) {
        let now = edu.stats()?;
        most = most.max(now.started - now.finished);
        thread::sleep(Duration::from_millis(5));
    }
    ensure!(most == 1, "{most} commands at once, wanted one");
    let mut ends = Vec::new();
    for request in running {
        let (mut known, pin, bytes, ended, stats) = request.join().ok().context("a thread panicked")?;
        copied("one of four", ended)?;
        known.bytes[3..3 + bytes.len()].copy_from_slice(&bytes);
        known.check("one of four")?;
        ends.push(stats?.finished - before.finished);
        edu.unpin(pin)?;
    }
    // The threads took turns. The first to end had waited for the others, so it did not end after
    // its own commands alone.
    let first = *ends.iter().min().context("four")?;
    let alone = commands(6 * CHUNK + 1);
    ensure!(first > 2 * alone, "one request was done after {first} commands of all, {alone} of them its own");
    Ok(())
}

/// Starts the second process that some tests need. It pins and copies on command.
fn helper(kind: Kind, len: usize) -> Result<Helper> {
    Helper::start(&["edu", &format!("{kind:?}"), &len.to_string()])
}

fn two_processes(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm, edu) = (env.rng()?, Client::open()?, Edu::open()?);
    let len = 8 * CHUNK as usize;
    let mut other = helper(Kind::Revocable, len)?;
    let before = edu.stats()?;
    other.tell("copy")?;
    edu.wait_until_running(&before)?;
    let mut known = Known::new(&mut rng, &rm, Layout::Broken64K, GPU_PAGE)?;
    there_and_back(&mut rng, &edu, Kind::Revocable, &mut known, 1, len)?;
    other.answer()?;
    other.ask("check")?;
    other.finish()
}

/// A device that cannot reach the BAR is refused with a reason in words, and nothing stays pinned,
/// unless an IOMMU gives it addresses.
fn device_that_cannot_reach_is_refused(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let translated = kind(&edu::pci_name()?)? == Iommu::Translating;
    modules::rmmod(DRIVER)?;
    modules::modprobe("edu-dma", &["dma_bits=28"])?;
    let edu = Edu::open()?;
    let mut known = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
    ensure!(*gpu::bar(&rm, 0)?.start() >> 28 != 0, "the BAR lies where 28 bits reach: this test shows nothing");
    if translated {
        there_and_back(&mut rng, &edu, Kind::Revocable, &mut known, 1, 77)?;
    } else {
        for pin_kind in Kind::BOTH {
            let mut log = crate::kmsg::Mark::now()?;
            let refused = edu.pin(pin_kind, known.memory.va() + 1, 77);
            let errno = refused.map_or_else(|e| e.raw_os_error().unwrap_or(-1), |_| 0);
            ensure!(errno == libc::EOPNOTSUPP, "{pin_kind:?}: {}", errno_name(errno));
            let said = log.since()?;
            let words = ["77 bytes", "28 bits", "dma_bits", "dma_mask", "IOMMU"];
            ensure!(
                said.iter().any(|l| l.starts_with("edu_dma: ") && words.iter().all(|w| l.contains(w))),
                "{pin_kind:?}: the log does not say it: {said:?}"
            );
            ensure!(gpu::pins()? == 0, "{pin_kind:?}: {} pins stay", gpu::pins()?);
        }
    }
    drop(edu);
    modules::rmmod(DRIVER)?;
    let wrong = modules::try_modprobe("edu-dma", &["dma_bits=65"])?;
    ensure!(!wrong.ok, "65 bits were taken");
    wrong.one_line(&["edu_dma", "dma_bits=65", "at most 64"])?;
    edu::load(env)
}

fn wrong_arguments(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm, edu) = (env.rng()?, Client::open()?, Edu::open()?);
    let known = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
    let bytes = vec![0u8; 3 * CHUNK as usize];
    let refused = |what: &str, got: std::io::Result<u32>, errno: i32| {
        let got = got.map_or_else(|e| e.raw_os_error().unwrap_or(-1), |_| 0);
        expect_errno(what, got, errno)
    };
    for kind in Kind::BOTH {
        let pin = |va, len| edu.pin(kind, va, len);
        refused("no GPU memory", pin(bytes.as_ptr() as u64, 4096), libc::EFAULT)?;
        refused("no bytes", pin(known.memory.va(), 0), libc::EFAULT)?;
        refused("beyond the address space", pin(u64::MAX - 10, 4096), libc::EFAULT)?;
    }
    let pin = edu.pin(Kind::Persistent, known.memory.va() + 5, 5000)?;
    let at = host(bytes.as_ptr());
    let before = edu.stats()?;
    for (what, from, to, len) in [
        ("one byte too many", at, gpu_end(pin, 0), 5001),
        ("one byte too late", gpu_end(pin, 4999), at, 2),
        ("an end that wraps", gpu_end(pin, u64::MAX), at, 2),
        ("another file's handle", gpu_end(pin + 1, 0), at, 1),
        ("no GPU memory at all", at, at, 1),
        ("an unknown kind", edu::End { kind: 7, ..at }, gpu_end(pin, 0), 1),
    ] {
        ensure!(stopped(what, edu.copy(from, to, len), libc::EINVAL)? == 0, "{what}: some bytes were moved");
    }
    copied("no bytes", edu.copy(at, gpu_end(pin, 5000), 0))?;
    ensure!(edu.stats()?.started == before.started, "the device was asked");
    // The page of the second chunk does not exist.
    let half = crate::edu::guarded_page()?;
    let done = stopped("half a buffer", edu.copy(gpu_end(pin, 0), half.end(CHUNK), 2 * CHUNK), libc::EFAULT)?;
    ensure!(done == CHUNK, "{done} bytes done, wanted those of the first chunk");
    known.check("GPU memory that nobody wrote")?;
    edu.unpin(pin)?;
    refused("twice", edu.unpin(pin).map(|()| 0), libc::EINVAL)
}

/// The free of revocable memory returns when the engine stands still, and not before. The copy ends
/// with ECANCELED, and the memory's next owner finds what it wrote. This holds in both directions.
fn free_stops_the_engine(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let edu = Arc::new(Edu::open()?);
    let (bar, name) = (gpu::bar(&rm, 0)?, edu::pci_name()?);
    for to_gpu in [true, false] {
        let what = if to_gpu { "host to GPU" } else { "GPU to host" };
        let known = Known::new(&mut rng, &rm, Layout::Contiguous, LONG)?;
        let pin = edu.pin(Kind::Revocable, known.memory.va(), LONG as u64)?;
        let before = edu.stats()?;
        let copy = copy_in_thread(&edu, pin, to_gpu);
        edu.wait_until_running(&before)?;
        known.memory.free()?;
        let now = edu.stats()?;
        ensure!(now.started == now.finished, "{what}: the free returned while the engine was at work: {now:?}");
        if lab::tells_dma_mappings() {
            let mapped = lab::dma_mappings(&name, &bar)?;
            ensure!(mapped == 0, "{what}: {mapped} DMA mappings outlive the free");
        }
        ensure!(gpu::pins()? == 0, "{what}: {} pins outlive the free", gpu::pins()?);
        let next = Known::new(&mut rng, &rm, Layout::Contiguous, LONG)?;
        let (_, ended) = copy.join().ok().context("the thread panicked")?;
        let done = stopped(what, ended, libc::ECANCELED)?;
        ensure!(done < LONG as u64, "{what}: {done} bytes");
        ensure!(edu.stats()?.started == now.started, "{what}: commands after the free: {:?}", edu.stats()?);
        next.check(&format!("{what}: the next owner's memory"))?;
        edu.unpin(pin)?;
    }
    Ok(())
}

/// Copies all of a pin in a thread.
fn copy_in_thread(edu: &Arc<Edu>, pin: u32, to_gpu: bool) -> thread::JoinHandle<(Vec<u8>, Result<(), Stopped>)> {
    let edu = edu.clone();
    thread::spawn(move || {
        let bytes = vec![0xee; LONG];
        let (a, b) = (host(bytes.as_ptr()), gpu_end(pin, 0));
        let (from, to) = if to_gpu { (a, b) } else { (b, a) };
        let ended = edu.copy(from, to, LONG as u64);
        (std::hint::black_box(bytes), ended)
    })
}

/// Nothing is copied from or to memory that is gone, and its free does not wait for other
/// processes' commands.
fn freed_before_the_copy(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm, edu) = (env.rng()?, Client::open()?, Edu::open()?);
    let known = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
    let other = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
    let pin = edu.pin(Kind::Revocable, known.memory.va(), GPU_PAGE as u64)?;
    let alive = edu.pin(Kind::Revocable, other.memory.va(), GPU_PAGE as u64)?;
    known.memory.free()?;
    let bytes = [0u8; 8];
    let before = edu.stats()?;
    for (from, to) in [
        (host(bytes.as_ptr()), gpu_end(pin, 0)),
        (gpu_end(pin, 0), host(bytes.as_ptr())),
        (gpu_end(pin, 0), gpu_end(alive, 0)),
        (gpu_end(alive, 0), gpu_end(pin, 0)),
    ] {
        ensure!(stopped("memory that is gone", edu.copy(from, to, 8), libc::ECANCELED)? == 0, "bytes were moved");
    }
    ensure!(edu.stats()?.started == before.started, "the device was asked for memory that is gone");
    edu.unpin(pin)?;
    other.check("memory beside it")
}

fn persistent_outlives_the_free(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let edu = Arc::new(Edu::open()?);
    let known = Known::new(&mut rng, &rm, Layout::Contiguous, LONG)?;
    let pin = edu.pin(Kind::Persistent, known.memory.va(), LONG as u64)?;
    let before = edu.stats()?;
    let copy = copy_in_thread(&edu, pin, false);
    edu.wait_until_running(&before)?;
    known.memory.free()?;
    // The next allocation gets other memory.
    let next = Known::new(&mut rng, &rm, Layout::Contiguous, LONG)?;
    let (bytes, ended) = copy.join().ok().context("the thread panicked")?;
    copied("persistent memory that was freed", ended)?;
    same_bytes("persistent memory that was freed", &bytes, &known.bytes)?;
    next.check("the next allocation")?;
    ensure!(gpu::pins()? == 1, "{} pins, wanted the one", gpu::pins()?);
    edu.unpin(pin)?;
    ensure!(gpu::pins()? == 0, "{} pins after the unpin", gpu::pins()?);
    Ok(())
}

/// A process that dies in the middle leaves no pin, no mapping and no command.
fn killed_process_leaves_nothing(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (rm, edu) = (Client::open()?, Edu::open()?);
    let (bar, name) = (gpu::bar(&rm, 0)?, edu::pci_name()?);
    for kind in Kind::BOTH {
        let mut other = helper(kind, LONG)?;
        let before = edu.stats()?;
        other.tell("copy")?;
        edu.wait_until_running(&before)?;
        other.kill()?;
        gpu::wait_clean(Duration::from_secs(5)).with_context(|| format!("{kind:?}"))?;
        let now = edu.stats()?;
        ensure!(now.started == now.finished, "{kind:?}: the engine is at work for a dead process: {now:?}");
        ensure!(now.started - before.started < commands(LONG as u64), "{kind:?}: it had ended before: {now:?}");
        if lab::tells_dma_mappings() {
            let mapped = lab::dma_mappings(&name, &bar)?;
            ensure!(mapped == 0, "{kind:?}: {mapped} DMA mappings are left");
        }
        ensure!(edu::users()? == 1, "{kind:?}: {} users of the driver, wanted this test's file", edu::users()?);
    }
    Ok(())
}

/// The last holder of the file is another process, which cannot give back a revocable pin. The next
/// call of the pin's owner does.
fn closed_by_a_child(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let known = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
    let edu = Edu::open()?;
    edu.pin(Kind::Revocable, known.memory.va(), GPU_PAGE as u64)?;
    edu.closed_by_a_child()?;
    ensure!(gpu::pins()? == 1, "{} pins, wanted the one that only this process may give back", gpu::pins()?);
    ensure!(edu::users()? == 1, "{} users of the driver, wanted the pin", edu::users()?);
    let edu = Edu::open()?;
    let pin = edu.pin(Kind::Revocable, known.memory.va(), GPU_PAGE as u64)?;
    ensure!(gpu::pins()? == 1, "{} pins, wanted the new one", gpu::pins()?);
    edu.unpin(pin)?;
    known.check("memory that nobody wrote")
}

/// The device is removed in the middle of a command. The copy ends with ENODEV, nothing is mapped,
/// and the pins stay until their file is closed. A device that comes back works.
fn device_removed(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let (bar, name) = (gpu::bar(&rm, 0)?, edu::pci_name()?);
    for kind in Kind::BOTH {
        let edu = Arc::new(Edu::open()?);
        let known = Known::new(&mut rng, &rm, Layout::Broken64K, LONG)?;
        let pin = edu.pin(kind, known.memory.va(), LONG as u64)?;
        let before = edu.stats()?;
        let copy = copy_in_thread(&edu, pin, false);
        edu.wait_until_running(&before)?;
        edu::remove_device()?;
        let now = edu.stats()?;
        ensure!(now.started == now.finished, "{kind:?}: the device went while it was at work: {now:?}");
        if lab::tells_dma_mappings() {
            let mapped = lab::dma_mappings(&name, &bar)?;
            ensure!(mapped == 0, "{kind:?}: {mapped} DMA mappings of a device that is gone");
        }
        let (_, ended) = copy.join().ok().context("the thread panicked")?;
        stopped("the device is gone", ended, libc::ENODEV)?;
        ensure!(gpu::pins()? == 1, "{kind:?}: {} pins, wanted the one", gpu::pins()?);
        let again = edu.pin(kind, known.memory.va(), 1).map_or_else(|e| e.raw_os_error(), |_| None);
        ensure!(again == Some(libc::ENODEV), "{kind:?}: a pin for a device that is gone: {again:?}");
        ensure!(Edu::open().is_err(), "{kind:?}: a device that is gone can be opened");
        edu::rescan()?;
        // The old file stays with the old device.
        stopped("the old file", edu.copy(gpu_end(pin, 0), host([0u8].as_ptr()), 1), libc::ENODEV)?;
        let anew = Edu::open()?;
        let mut known_anew = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
        there_and_back(&mut rng, &anew, kind, &mut known_anew, 11, 3000)?;
        if kind == Kind::Revocable {
            // There is no device left to wait for.
            known.memory.free()?;
        }
        drop(edu);
        ensure!(gpu::pins()? == 0, "{kind:?}: {} pins outlive their file", gpu::pins()?);
    }
    Ok(())
}

/// rmmod is refused while a file is open, whatever the file does, and leaves nothing behind
/// afterwards.
fn module_stays_while_a_file_is_open(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm) = (env.rng()?, Client::open()?);
    let edu = Arc::new(Edu::open()?);
    let known = Known::new(&mut rng, &rm, Layout::Contiguous, LONG)?;
    let pin = edu.pin(Kind::Revocable, known.memory.va(), 16 * CHUNK)?;
    let before = edu.stats()?;
    let copy = {
        let edu = edu.clone();
        thread::spawn(move || {
            let bytes = vec![0; 16 * CHUNK as usize];
            let ended = edu.copy(gpu_end(pin, 0), host(bytes.as_ptr()), 16 * CHUNK);
            (std::hint::black_box(bytes), ended)
        })
    };
    edu.wait_until_running(&before)?;
    let refused = modules::try_rmmod(DRIVER)?;
    ensure!(!refused.ok && refused.said.contains("in use"), "rmmod in the middle: {refused:?}");
    let (bytes, ended) = copy.join().ok().context("the thread panicked")?;
    copied("beside rmmod", ended)?;
    same_bytes("beside rmmod", &bytes, &known.bytes[..bytes.len()])?;
    ensure!(!modules::try_rmmod(DRIVER)?.ok, "the module goes under an open file");
    drop(edu);
    modules::rmmod(DRIVER)?;
    ensure!(gpu::pins()? == 0, "{} pins outlive the module", gpu::pins()?);
    edu::load(env)?;
    let mut known = Known::new(&mut rng, &rm, Layout::Contiguous, GPU_PAGE)?;
    there_and_back(&mut rng, &Edu::open()?, Kind::Revocable, &mut known, 0, 5)
}

fn without_the_gpu_driver(env: &Env) -> Result<()> {
    modules::unload_with_users(DRIVER)?;
    modules::unload_with_users("nvidia")?;
    let refused = modules::try_insmod(&modules::file_of("edu-dma")?, &[])?;
    ensure!(!refused.ok, "it was loaded without the GPU driver");
    refused.one_line(&["edu_dma", "the GPU driver is not loaded"])?;
    edu::load(env)
}

/// The machine has two devices. The driver serves one, and logs that it leaves the other.
fn second_device(env: &Env) -> Result<()> {
    edu::load(env)?;
    modules::rmmod(DRIVER)?;
    let loaded = modules::modprobe("edu-dma", &[&format!("dma_bits={}", edu::bits(env)?)])?;
    loaded.one_line(&["edu_dma: ", "serves one device"])?;
    edu::pci_name()?;
    Edu::open()?.stats().map(drop)
}

/// Copies from one byte to 64 MiB.
fn lengths(env: &Env) -> Result<()> {
    edu::load(env)?;
    let (mut rng, rm, edu) = (env.rng()?, Client::open()?, Edu::open()?);
    for (len, layout) in [
        (1, Layout::Contiguous),
        (CHUNK as usize - 1, Layout::Shuffled),
        (CHUNK as usize, Layout::Contiguous),
        (CHUNK as usize + 1, Layout::Broken64K),
        (4096, Layout::Shuffled),
        (GPU_PAGE, Layout::Shuffled),
        (GPU_PAGE + 1, Layout::Broken64K),
        (MIB + 7, Layout::Shuffled),
        (8 * MIB - 1, Layout::Broken2M),
        (64 * MIB, Layout::Shuffled),
    ] {
        let at = 4096 + 7;
        let mut known = Known::new(&mut rng, &rm, layout, at + len + GPU_PAGE)?;
        let kind = if rng.bool() { Kind::Persistent } else { Kind::Revocable };
        there_and_back(&mut rng, &edu, kind, &mut known, at, len).with_context(|| format!("{layout:?}"))?;
        println!("{len} bytes, {layout:?}: there and back");
    }
    Ok(())
}

/// Six processes pin, copy, free and die at random, while this one sometimes removes the device.
fn storm(env: &Env) -> Result<()> {
    edu::load(env)?;
    let mut rng = env.rng()?;
    let rounds = env.number("edu_rounds", 60)?;
    let mut others: Vec<Option<Helper>> = (0..6).map(|_| None).collect();
    for round in 0..rounds {
        for place in &mut others {
            let Some(other) = place else {
                let kind = if rng.bool() { Kind::Persistent } else { Kind::Revocable };
                *place = Some(helper(kind, (1 + rng.usize(..40)) * 1000)?);
                continue;
            };
            match rng.u32(..6) {
                0 => drop(place.take().map(Helper::kill).transpose()?),
                1 => drop(place.take().map(Helper::finish).transpose()?),
                // The result depends on when the device is removed. Only the end state matters.
                2 | 3 => other.tell("copy")?,
                4 => other.tell("free")?,
                _ => thread::sleep(Duration::from_millis(rng.u64(..200))),
            }
        }
        if rng.u32(..10) == 0 {
            edu::remove_device()?;
            edu::rescan()?;
        }
        if round % 10 == 0 {
            println!("round {round} of {rounds}");
        }
    }
    for other in others.into_iter().flatten() {
        other.kill()?;
    }
    gpu::wait_clean(Duration::from_secs(10))?;
    let stats = Edu::open()?.stats()?;
    ensure!(stats.started == stats.finished, "the engine is at work for nobody: {stats:?}");
    modules::rmmod(DRIVER)?;
    edu::load(env)
}
