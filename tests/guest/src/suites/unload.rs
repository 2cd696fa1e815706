// SPDX-License-Identifier: GPL-2.0
//! Tries rmmod at every inconvenient moment. It is refused as long as anything of the module is in
//! use, and leaves nothing behind from then on.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use nix::kmod::{delete_module, finit_module, DeleteModuleFlags, ModuleInitFlags};

use super::end::KMEMLEAK;
use super::scenarios::beside::{dereg_beside, free_beside};
use super::scenarios::process::dereg_in_fork;
use super::scenarios::row_of;
use crate::common::{errno_name, pattern, same_bytes, Bench, KIB, MIB};
use crate::counters::settled;
use crate::gpu;
use crate::lab::CoreHold;
use crate::machine::Mode;
use crate::modules::{self, PEERMEM};
use crate::test::{emit, in_modes, Env, NvidiaC, Suite};
use crate::verbs::{Loopback, PATIENCE};

const NAME: &CStr = c"nvidia_peermem";
const SIZE: usize = MIB;
/// The time in which what has ended must be seen as ended.
const SETTLE: Duration = Duration::from_secs(5);
const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];
/// The number of loads of `again_and_again`, unless `guest.loads=` names another.
const LOADS: u32 = 30;
/// NVIDIA's module skips the tests that are not rows of the scenario table.
const OURS: NvidiaC = NvidiaC::Skip("it has neither statistics nor tracepoints, and keeps what it cannot put");

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    let mut add =
        |modes: &[Mode], name, run: fn(&Env) -> Result<()>| tests.extend(in_modes(nvidia_c, modes, name, run));
    add(&BOTH, "with_live_mrs", with_live_mrs);
    add(&[Mode::Legacy], "with_orphans", with_orphans);
    add(&BOTH, "with_a_pin_that_was_not_put", with_a_pin_that_was_not_put);
    add(&[Mode::Legacy], "before_invalidate", before_invalidate);
    add(&[Mode::Legacy], "during_a_callback", during_a_callback);
    add(&[Mode::Legacy], "after_the_callback_returned", after_the_callback_returned);
    add(&BOTH, "while_observed", while_observed);
    add(&BOTH, "beside_registrations", beside_registrations);
    // A thousand loads take a second each on a busy machine with the debug kernel.
    let again = in_modes(nvidia_c, &BOTH, "again_and_again", again_and_again);
    tests.extend(again.into_iter().map(|t| t.limit(4 * 3600)));
    Suite {
        name: "unload",
        tests: tests
            .into_iter()
            .map(|t| if row_of("unload", &t.name).is_some() { t.nvidia_c(NvidiaC::Recorded) } else { t.nvidia_c(OURS) })
            .collect(),
    }
}

/// Unloads the module as rmmod does, without the program.
fn unload() -> Result<(), Errno> {
    delete_module(NAME, DeleteModuleFlags::O_NONBLOCK)
}

/// Loads the module with the parameters that it had.
struct Loader {
    file: File,
    parameters: std::ffi::CString,
}

impl Loader {
    fn new(env: &Env) -> Result<Self> {
        let path = modules::file_of("nvidia-peermem")?;
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let parameters = env.mode()?.parameters(env.nvidia_c).join(" ");
        Ok(Self { file, parameters: std::ffi::CString::new(parameters)? })
    }

    fn load(&self) -> Result<()> {
        finit_module(&self.file, &self.parameters, ModuleInitFlags::empty()).context("finit_module")
    }
}

/// Checks that rmmod reports "in use", and leaves everything as it is.
fn refused(why: &str) -> Result<()> {
    match unload() {
        Err(Errno::EWOULDBLOCK) => Ok(()),
        Ok(()) => bail!("rmmod went through: {why}"),
        Err(e) => bail!("rmmod: {}, wanted EWOULDBLOCK: {why}", errno_name(e as i32)),
    }
}

/// Checks that rmmod works now, and so does the module that is loaded after it.
fn unloads(env: &Env, bench: &Bench) -> Result<()> {
    // NVIDIA's module keeps no accounting of its own.
    let settled = || if env.nvidia_c { gpu::wait_clean(SETTLE) } else { settled(SETTLE) };
    settled()?;
    unload().context("rmmod")?;
    ensure!(!modules::loaded(PEERMEM)?, "it is still there");
    Loader::new(env)?.load()?;
    let (_memory, mr) = bench.registered(SIZE)?;
    mr.dereg()?;
    settled()
}

fn with_live_mrs(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    let link = Loopback::new(&bench.pd)?;
    let mut rng = env.rng()?;
    for id in 0..3 {
        refused("two MRs are live")?;
        let bytes = pattern(&mut rng, SIZE);
        source.write(0, &bytes)?;
        link.write(id, (&source_mr, 0), (&target_mr, 0), SIZE)?;
        link.done(id)?;
        same_bytes("after a refused rmmod", &target.read(0, SIZE)?, &bytes)?;
    }
    source_mr.dereg()?;
    refused("one MR is live")?;
    target_mr.dereg()?;
    unloads(env, &bench)
}

/// A file of /proc is half read, and the tracepoints are on. Neither keeps the module loaded, and
/// neither outlives it.
fn while_observed(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let mut stats = File::open("/proc/driver/nvidia-peermem/stats").context("open stats")?;
    let mut some = [0; 16];
    stats.read_exact(&mut some).context("read stats")?;
    // A module built with kernel-lite has no tracepoints.
    let events = Path::new("/sys/kernel/tracing/events/nvidia_peermem/enable");
    let traced = events.exists();
    if traced {
        fs::write(events, "1").context("enable nvidia_peermem:*")?;
    }
    let (_memory, mr) = bench.registered(SIZE)?;
    refused("an MR is live")?;
    mr.dereg()?;
    settled(SETTLE)?;
    unload().context("rmmod")?;
    ensure!(!events.exists(), "its tracepoints are still there");
    match stats.read(&mut some) {
        Err(e) if e.raw_os_error() == Some(libc::EIO) => (),
        other => bail!("reading on after rmmod: {other:?}, wanted EIO"),
    }
    Loader::new(env)?.load()?;
    if traced {
        let on = fs::read_to_string(events).context("read enable")?;
        ensure!(on.trim() == "0", "the tracepoints of the new module are {on:?}");
    }
    let (_memory, mr) = bench.registered(SIZE)?;
    mr.dereg()?;
    settled(SETTLE)
}

/// Only the owner can put what a child deregistered.
fn with_orphans(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    dereg_in_fork(mr)?;
    refused("there is an orphan")?;
    memory.free()?;
    unloads(env, &bench)
}

/// The provider failed to put a pin. A revocable pin still has its callback, and waits for the next
/// registration (only after a lack of memory) or for the free. A persistent pin is lost, and nobody
/// waits for it.
fn with_a_pin_that_was_not_put(env: &Env) -> Result<()> {
    let persistent = env.mode()? == Mode::Persistent;
    let fault = if persistent { "persistent_put_errno" } else { "put_errno" };
    for errno in [libc::ENOMEM, libc::EIO] {
        let bench = Bench::new()?;
        let (memory, mr) = bench.registered(SIZE)?;
        gpu::lab()?.fault_n(fault, errno as u64, 1)?;
        mr.dereg()?;
        if persistent {
            ensure!(gpu::pins()? == 1, "{} pins after a put that failed, wanted 1", gpu::pins()?);
            unload().context("rmmod beside a lost pin")?;
            Loader::new(env)?.load()?;
            memory.free()?;
            gpu::lab()?.end_lost_pins()?;
            unloads(env, &bench)?;
            continue;
        }
        refused("a pin is left that could not be put")?;
        if errno == libc::ENOMEM {
            bench.reg(memory.va(), SIZE)?.dereg()?;
            let mr = bench.reg(memory.va(), SIZE)?;
            gpu::lab()?.fault_n(fault, errno as u64, 1)?;
            mr.dereg()?;
        }
        memory.free()?;
        unloads(env, &bench)?;
    }
    Ok(())
}

/// The callback has set its mark and is about to call invalidate, with the core's handle in hand.
/// The deregistration waits for it. Unloading would free that handle.
fn before_invalidate(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let hold = CoreHold::arm("invalidate_entry")?;
    let free = free_beside(&bench, memory);
    hold.wait(PATIENCE)?;
    refused("an MR is live, and its callback runs")?;
    let dereg = dereg_beside(mr);
    dereg.waits("ibv_dereg_mr beside a callback that is about to call invalidate")?;
    refused("a callback is about to call invalidate")?;
    hold.release();
    free.finish("the free")?;
    dereg.finish("ibv_dereg_mr")?;
    unloads(env, &bench)
}

/// The callback stands in the core's fence, or in the provider just before it calls us.
fn during_a_callback(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let hold = CoreHold::arm("invalidate_fence")?;
    let free = free_beside(&bench, memory);
    hold.wait(PATIENCE)?;
    refused("a callback waits for the fence")?;
    hold.release();
    free.finish("the free")?;
    refused("the MR is dead, but there")?;
    mr.dereg()?;

    if !env.nvidia_c {
        // The callback stands in the kernel's unmapping. In our module, the callback unmaps after
        // the fence; with NVIDIA's, the provider unmaps.
        let (memory, mr) = bench.registered(SIZE)?;
        let hold = CoreHold::arm("in_dma_unmap")?;
        let free = free_beside(&bench, memory);
        hold.wait(PATIENCE)?;
        refused("a callback unmaps")?;
        hold.release();
        free.finish("the free")?;
        mr.dereg()?;
    }

    let (memory, mr) = bench.registered(SIZE)?;
    let hold = gpu::lab()?.arm("callback_before")?;
    let free = free_beside(&bench, memory);
    hold.wait(PATIENCE)?;
    refused("a callback is about to begin")?;
    hold.release()?;
    free.finish("the free")?;
    mr.dereg()?;
    unloads(env, &bench)
}

/// The callback has left our code and the MR is gone. There is nothing left to wait for, although
/// the provider is still in the middle of its free.
fn after_the_callback_returned(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let hold = gpu::lab()?.arm("callback_after")?;
    let free = free_beside(&bench, memory);
    hold.wait(PATIENCE)?;
    refused("the MR is dead, but there")?;
    dereg_beside(mr).finish("ibv_dereg_mr after the callback")?;
    unload().context("rmmod after the callback")?;
    hold.release()?;
    free.finish("the free")?;
    Loader::new(env)?.load()?;
    unloads(env, &bench)
}

/// One thread registers as fast as it can, while another unloads and loads the module. Each
/// registration works, or finds no client.
fn beside_registrations(env: &Env) -> Result<()> {
    const UNLOADS: u32 = 4;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let registering = {
        let (stop, good, pd, va) = (Arc::clone(&stop), Arc::clone(&good), Arc::clone(&bench.pd), memory.va());
        std::thread::spawn(move || -> Result<u32> {
            let mut bad = 0;
            while !stop.load(Ordering::Relaxed) {
                match crate::verbs::Mr::reg(&pd, va, SIZE, crate::verbs::FULL_ACCESS) {
                    Ok(mr) => {
                        mr.dereg()?;
                        good.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(e) if e.raw_os_error() == Some(libc::EFAULT) => bad += 1,
                    Err(e) => bail!("ibv_reg_mr while the module goes and comes: {e}"),
                }
            }
            Ok(bad)
        })
    };
    let loader = Loader::new(env)?;
    let mut busy = 0;
    for _ in 0..UNLOADS {
        // Wait for some registrations with each module that is loaded.
        let (before, end) = (good.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while good.load(Ordering::Relaxed) < before + 2 && !registering.is_finished() {
            ensure!(Instant::now() < end, "nothing can be registered after a reload");
            std::thread::sleep(Duration::from_millis(1));
        }
        while let Err(e) = unload() {
            ensure!(e == Errno::EWOULDBLOCK, "rmmod: {}", errno_name(e as i32));
            ensure!(Instant::now() < end, "rmmod never went through");
            busy += 1;
            // Unload at another moment of the next registration.
            std::thread::sleep(Duration::from_micros(500));
        }
        loader.load()?;
    }
    stop.store(true, Ordering::Relaxed);
    let bad = registering.join().map_err(|_| anyhow::anyhow!("the registering thread panicked"))??;
    let good = good.load(Ordering::Relaxed);
    println!("{UNLOADS} unloads, refused {busy} times; {good} registrations worked, {bad} found no client");
    unloads(env, &bench)
}

/// A line of /proc/meminfo: its name, and its value in KiB.
type Figure = (&'static str, i64);

/// Returns the kernel memory in use, after the allocators gave back what they only keep.
fn kernel_memory() -> Result<Vec<Figure>> {
    // Shrinking a cache also takes it out of KASAN's quarantine.
    for cache in fs::read_dir("/sys/kernel/slab").context("read /sys/kernel/slab")? {
        // A cache may go meanwhile.
        let _ = fs::write(cache?.path().join("shrink"), "1");
    }
    let meminfo = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    ["Slab", "VmallocUsed", "Percpu", "PageTables", "KernelStack"]
        .into_iter()
        .map(|name| {
            let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            let line = line.with_context(|| format!("/proc/meminfo has no {name}"))?;
            let kib = line.trim().trim_end_matches(" kB").parse().with_context(|| format!("{name}: {line:?}"))?;
            Ok((name, kib))
        })
        .collect()
}

/// Returns, in words, what grew by more than `bound` KiB.
fn grown(before: &[Figure], after: &[Figure], bound: i64) -> Vec<String> {
    let pairs = before.iter().zip(after);
    pairs.filter(|(b, a)| a.1 - b.1 > bound).map(|(b, a)| format!("{} by {} KiB", b.0, a.1 - b.1)).collect()
}

/// Loads and unloads the module `guest.loads=` times, and up to three times as often if memory
/// seems to grow with it. Every tenth module registers once. On a kernel with all alarms, it makes
/// only the first ten loads, and asks kmemleak instead.
fn again_and_again(env: &Env) -> Result<()> {
    /// The number of loads after which caches and tables that grow once have grown.
    const WARM: u32 = 10;
    /// The change of the figures, in KiB, although nothing is lost.
    const NOISE_KIB: i64 = 100;
    const PAGE_KIB: i64 = 4;
    /// The number of rounds. Slabs occasionally change by a little more than the noise, but not
    /// repeatedly, as a loss with each load would.
    const ROUNDS: i64 = 3;
    let loads = env.number("loads", LOADS)?;
    // A quarter of a page per load counts as growth, if that is more than noise.
    let bound = i64::from(loads).max(NOISE_KIB);
    ensure!(i64::from(loads) * PAGE_KIB > bound, "guest.loads={loads}: a page lost with each would pass for noise");
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    let loader = Loader::new(env)?;
    let cycle = |n: u32| -> Result<()> {
        unload().with_context(|| format!("unload {n}"))?;
        loader.load().with_context(|| format!("load {n}"))?;
        if n % 10 == 0 {
            bench.reg(memory.va(), SIZE).with_context(|| format!("register with load {n}"))?.dereg()?;
        }
        Ok(())
    };
    (0..WARM).try_for_each(cycle)?;
    if Path::new(KMEMLEAK).exists() {
        println!("not compared: under KASAN memory shrinks and grows by more than a page per load; kmemleak looks at the end");
        return Ok(());
    }
    let figures =
        |v: &[Figure]| v.iter().map(|(n, k)| ((*n).to_string(), (*k).into())).collect::<serde_json::Map<_, _>>();
    let before = kernel_memory()?;
    let start = Instant::now();
    let mut round = 1;
    let grew = loop {
        (0..loads).try_for_each(cycle)?;
        let (all, took) = (round * i64::from(loads), start.elapsed());
        let after = kernel_memory()?;
        println!("{all} loads in {took:.1?}");
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            println!("{name}: {before} KiB before, {after} after");
        }
        let row = serde_json::json!({
            "mode": env.mode()?.name(), "loads": all, "seconds": took.as_secs(),
            "before_kib": figures(&before), "after_kib": figures(&after),
        });
        emit("loads", &row);
        let grew = grown(&before, &after, round * bound);
        if grew.is_empty() || round == ROUNDS {
            break grew;
        }
        round += 1;
    };
    ensure!(grew.is_empty(), "{} loads: {}", ROUNDS * i64::from(loads), grew.join(", "));
    ensure!(memory.size() > KIB, "the memory was kept until here");
    unloads(env, &bench)
}
