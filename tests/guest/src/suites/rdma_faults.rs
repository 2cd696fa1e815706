// SPDX-License-Identifier: GPL-2.0
//! Tests faults of RDMA cores and NIC drivers, as they are in mlx5 of OFED 25.10
//! (ci/qemu/ofed/rxe/rxe_peer.c). What the module can prevent does not happen, and what it cannot
//! help (docs/safety.md) is what a user sees.
//!
//! After a test of the suite `rdma_leaks` something stays until reboot, or the kernel has
//! complained about the driver. So these tests have boots of their own, which they end.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use peermem_proc::Row;

use super::scenarios::beside::{free_beside, reg_beside, Beside, Stop};
use super::scenarios::process::actor;
use crate::common::{expect_errno, pattern, same_bytes, Bench, GPU_PAGE, KIB, MIB};
use crate::gpu;
use crate::kmsg::Mark;
use crate::lab;
use crate::machine::{wait_for, Mode};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::{in_modes, Env, NvidiaC, Suite};
use crate::verbs::{Loopback, Mr, Op, Rereg};

pub const LEAKS: &str = "rdma_leaks";

/// A buffer of this size shares its memory with no other.
const SIZE: usize = 2 * MIB;

const BOTH: &[Mode] = &[Mode::Persistent, Mode::Legacy];
const PERSISTENT: &[Mode] = &[Mode::Persistent];
/// The other mode has no callback, so its umems have no notifier.
const LEGACY: &[Mode] = &[Mode::Legacy];

type Run = fn(&Env) -> Result<()>;

pub fn suite(nvidia_c: bool) -> Suite {
    let tests: [(&str, &[Mode], Run); 8] = [
        ("no_fence_works_any_more", BOTH, no_fence_works_any_more),
        ("fences_stop_nothing", BOTH, fences_stop_nothing),
        ("fenced_twice", LEGACY, fenced_twice),
        ("one_key_at_a_time", BOTH, one_key_at_a_time),
        ("pages_of_a_queue", BOTH, pages_of_a_queue),
        ("rereg_without_a_stop", PERSISTENT, rereg_without_a_stop),
        ("counted_at_the_stop", LEGACY, counted_at_the_stop),
        ("folder_of_the_last_client", PERSISTENT, folder_of_the_last_client),
    ];
    of("rdma_faults", nvidia_c, &tests)
}

/// Returns the tests in this order, because each leaves more than the one before.
pub fn leaks(nvidia_c: bool) -> Suite {
    let tests: [(&str, &[Mode], Run); 4] = [
        // This comes before any free: after one, lockdep would report a circle here, and nothing
        // more after that.
        ("rereg_without_a_stop", LEGACY, rereg_without_a_stop),
        ("never_stopped", LEGACY, never_stopped),
        ("key_of_a_killed_process", BOTH, key_of_a_killed_process),
        ("lost_mr", BOTH, lost_mr),
    ];
    of(LEAKS, nvidia_c, &tests)
}

fn of(name: &'static str, nvidia_c: bool, tests: &[(&str, &[Mode], Run)]) -> Suite {
    let means = NvidiaC::Skip("it looks at what ours says and keeps");
    let mut all = Vec::new();
    // The order is by mode, so that the module is loaded as seldom as possible.
    for mode in BOTH {
        for (name, _, run) in tests.iter().filter(|(_, modes, _)| modes.contains(mode)) {
            all.extend(in_modes(nvidia_c, &[*mode], name, *run).into_iter().map(|t| t.nvidia_c(means)));
        }
    }
    Suite { name, tests: all }
}

fn users() -> Result<i32> {
    modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded")
}

fn nothing_left(when: &str) -> Result<()> {
    let (pins, users) = (gpu::pins()?, users()?);
    ensure!((pins, users) == (0, 0), "{when}: {pins} pins and {users} users of the module are left");
    Ok(())
}

/// Returns the state and the pinned bytes of each registration of a process.
fn listed(pid: u32) -> Result<Vec<(String, u64)>> {
    let rows = peermem::rows("registrations")?;
    let own = rows.iter().filter(|row| row.number("pid") == Some(pid.into()));
    let told = |row: &Row| Some((row.text("state")?.to_string(), row.number("pinned_bytes")?));
    own.map(|row| told(row).with_context(|| format!("registrations: a field is missing: {row:?}"))).collect()
}

fn is_listed(pid: u32, state: &str, bytes: usize) -> Result<()> {
    let (rows, wanted) = (listed(pid)?, [(state.to_string(), bytes as u64)]);
    ensure!(rows == wanted, "registrations of process {pid}: {rows:?}, wanted {wanted:?}");
    Ok(())
}

fn state_of(mr: &Mr) -> Result<String> {
    Ok(lab::nic_mr(mr.lkey())?.state)
}

/// Deregisters, which must fail with this errno. Returns the MR.
fn not_deregistered(mr: Mr, errno: i32) -> Result<Mr> {
    let (mr, error) = mr.try_dereg().err().context("ibv_dereg_mr succeeded")?;
    expect_errno("ibv_dereg_mr", error.raw_os_error().context("an errno")?, errno)?;
    Ok(mr)
}

/// After one failed recovery, each fence of the NIC fails. A free returns all the same, each
/// deregistration fails as often as it is tried, and what nobody freed stays pinned. When the NIC
/// works again, nothing is left.
fn no_fence_works_any_more(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (freed, freed_mr) = bench.registered(SIZE)?;
    let (kept, kept_mr) = bench.registered(SIZE)?;
    lab::set_nic("fence_broken", 1)?;
    freed.free()?;
    let pins = if env.mode()? == Mode::Legacy { 1 } else { 2 };
    let mut mrs = vec![freed_mr, kept_mr];
    for _ in 0..2 {
        mrs = mrs.into_iter().map(|mr| not_deregistered(mr, libc::EFAULT)).collect::<Result<_>>()?;
        ensure!(gpu::pins()? == pins, "{} pins, wanted {pins}", gpu::pins()?);
    }
    for mr in &mrs {
        ensure!(state_of(mr)? == "fence_failed", "the MR is {}", state_of(mr)?);
    }
    ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod went through with two MRs left");
    lab::set_nic("fence_broken", 0)?;
    for mr in mrs {
        mr.dereg()?;
    }
    kept.free()?;
    nothing_left("the NIC works again")
}

/// The NIC has reported an internal error, so its driver takes each fence for done. Nothing hangs,
/// and nothing stays pinned. (`iommu/fence_fails_and_no_byte_reaches_the_next_owner` looks where the NIC's writes go.)
fn fences_stop_nothing(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (freed, freed_mr) = bench.registered(SIZE)?;
    let (_kept, kept_mr) = bench.registered(SIZE)?;
    lab::set_nic("internal_error", 1)?;
    freed.free()?;
    ensure!(state_of(&freed_mr)? == "live", "the MR is {}", state_of(&freed_mr)?);
    let pins = if env.mode()? == Mode::Legacy { 1 } else { 2 };
    ensure!(gpu::pins()? == pins, "{} pins after the free, wanted {pins}", gpu::pins()?);
    freed_mr.dereg()?;
    kept_mr.dereg()?;
    nothing_left("all is deregistered")
}

/// The deregistration of a region that is dead already fences it once more. That takes its time,
/// and may fail.
fn fenced_twice(_: &Env) -> Result<()> {
    const FENCE: Duration = Duration::from_millis(200);
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let fences = lab::nic_stat("fences")?;
    lab::set_nic("fence_us", FENCE.as_micros().try_into()?)?;
    memory.free()?;
    let begin = Instant::now();
    mr.dereg()?;
    let took = begin.elapsed();
    lab::set_nic("fence_us", 0)?;
    let fences = lab::nic_stat("fences")? - fences;
    // The sleep of the kernel and this clock differ by a percent on an emulated machine.
    ensure!(fences == 2 && took > FENCE / 2, "{fences} fences; the deregistration took {took:?}, one fence {FENCE:?}");
    let (memory, mr) = bench.registered(SIZE)?;
    memory.free()?;
    lab::set_nic("fence_fail", 1)?;
    let mr = not_deregistered(mr, libc::EIO)?;
    is_listed(std::process::id(), "revoked", 0)?;
    mr.dereg()?;
    nothing_left("the second try")
}

/// The NIC makes one key at a time. Who registers meanwhile waits, with the memory pinned. A free of
/// other memory does not wait. A free of that memory waits for both registrations if the pin is
/// revocable.
fn one_key_at_a_time(env: &Env) -> Result<()> {
    let legacy = env.mode()? == Mode::Legacy;
    let bench = Bench::new()?;
    let (first, second) = (bench.cuda.alloc(SIZE)?, bench.cuda.alloc(SIZE)?);
    let (third, third_mr) = bench.registered(SIZE)?;
    let stop = Stop::core("nic_mkey")?;
    let first_reg = reg_beside(&bench, first.va());
    stop.wait()?;
    let second_reg = reg_beside(&bench, second.va());
    second_reg.waits("a registration while the NIC makes another's key")?;
    ensure!(gpu::pins()? == 3, "{} pins, wanted 3", gpu::pins()?);
    free_beside(&bench, third).finish("the free of memory that has its key")?;
    third_mr.dereg()?;
    let free = free_beside(&bench, second);
    if legacy {
        free.waits("the free of memory whose key has to wait for another's")?;
        stop.release()?;
    } else {
        free.finish("the free of memory that the pin keeps")?;
        stop.release()?;
        return ended(first_reg, second_reg, "live");
    }
    free.finish("the free of memory whose key had to wait")?;
    ended(first_reg, second_reg, "killed")
}

/// Finishes two registrations, and checks that the NIC says `state` of the second one's MR.
fn ended(first: Beside<std::io::Result<Mr>>, second: Beside<std::io::Result<Mr>>, state: &str) -> Result<()> {
    let first = first.finish("the first registration")?.context("the first registration")?;
    let second = second.finish("the second registration")?.context("the second registration")?;
    ensure!(state_of(&second)? == state, "the second MR is {}, wanted {state}", state_of(&second)?);
    first.dereg()?;
    second.dereg()?;
    nothing_left("both are deregistered")
}

/// For a queue or a DevX umem, the NIC chooses its pages by the DMA address alone. That gives other
/// pages than an MR of the same memory has, and the same bytes.
fn pages_of_a_queue(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    let mut source = vec![0u8; 2 * MIB];
    let source_mr = bench.reg(source.as_ptr() as u64, source.len())?;
    for (from, len) in [
        (0, 2 * MIB),
        (GPU_PAGE, MIB),
        (GPU_PAGE + 4 * KIB + 36, MIB + 100),
        (3 * GPU_PAGE, 64),
        (2 * MIB - 2 * GPU_PAGE, 4 * GPU_PAGE),
    ] {
        let what = format!("{len} bytes from {from} on");
        let mr = bench.reg(memory.va() + from as u64, len)?;
        let page_of_mr = lab::nic_mr(mr.lkey())?.page_size;
        mr.dereg()?;
        lab::set_nic("no_invalidation", 1)?;
        let queue = bench.reg(memory.va() + from as u64, len)?;
        let page = lab::nic_mr(queue.lkey())?.page_size;
        let dma = lab::translations(queue.lkey())?.first().context("no translation")?.dma;
        println!("{what}, at {dma:#x}: pages of {page}, those of an MR have {page_of_mr}");
        // Where one page holds all of it, that page may begin before it.
        ensure!(
            dma % page == 0 || lab::nic_mr(queue.lkey())?.mtts == 1,
            "{what}: pages of {page} bytes from {dma:#x} on"
        );
        if from == GPU_PAGE {
            ensure!(page < page_of_mr, "{what}: pages of {page}, and an MR has {page_of_mr}");
        }
        let mut wanted = pattern(&mut rng, memory.size());
        memory.write(0, &wanted)?;
        rng.fill(&mut source[..len]);
        link.run(Op::Write, (&source_mr, 0), (&queue, 0), len)?;
        wanted[from..][..len].copy_from_slice(&source[..len]);
        same_bytes(&what, &memory.read(0, memory.size())?, &wanted)?;
        rng.fill(&mut source[..len]);
        link.run(Op::Read, (&source_mr, 0), (&queue, 0), len)?;
        same_bytes(&format!("{what}, read"), &source[..len], &wanted[from..][..len])?;
        queue.dereg()?;
    }
    source_mr.dereg()?;
    nothing_left("all is deregistered")
}

/// A region moves from host to GPU memory, and then the NIC cannot do it. Its driver releases the
/// memory without a stop. The user sees the errno, and the region is as it was. Nothing stays
/// pinned, and the memory can be freed: the lock that is never unlocked goes with the umem.
fn rereg_without_a_stop(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let memory = bench.cuda.alloc(SIZE)?;
    let mut bytes = vec![0u8; MIB];
    let host = vec![0u8; MIB];
    let source_mr = bench.reg(bytes.as_ptr() as u64, MIB)?;
    let mut mr = bench.reg(host.as_ptr() as u64, MIB)?;
    let key = mr.rkey();
    lab::set_nic("rereg_fail", 1)?;
    let failed = mr.rereg(Rereg { translation: Some((memory.va(), MIB)), ..Default::default() });
    let error = failed.err().context("it went through")?;
    expect_errno("ibv_rereg_mr", error.raw_os_error().unwrap_or(0), libc::EFAULT)?;
    ensure!(mr.rkey() == key, "it failed, but the key is another");
    nothing_left("after the failure")?;
    rng.fill(&mut bytes);
    link.run(Op::Write, (&source_mr, 0), (&mr, 0), MIB)?;
    same_bytes("host memory", &host, &bytes)?;
    memory.free()?;
    mr.dereg()?;
    source_mr.dereg()?;
    nothing_left("in the end")
}

/// An invalidated region counts as deallocated at once, and its bytes at its deregistration.
fn counted_at_the_stop(_: &Env) -> Result<()> {
    let counted = |file| lab::client_number("nv_mem", file);
    let read = || Ok::<_, anyhow::Error>((counted("num_dealloc_mrs")?, counted("num_dereg_bytes")?));
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let (mrs, bytes) = read()?;
    memory.free()?;
    ensure!(read()? == (mrs + 1, bytes), "after the free: {:?}, before it {:?}", read()?, (mrs, bytes));
    mr.dereg()?;
    let wanted = (mrs + 1, bytes + SIZE as u64);
    ensure!(read()? == wanted, "after the deregistration: {:?}, wanted {wanted:?}", read()?);
    Ok(())
}

/// The core forgets /sys/kernel/mm/memory_peers when its last client unregisters, and the folder
/// stays until that client's memory is gone. A client that comes meanwhile is refused, and can come
/// afterwards. A core without that folder takes it at once.
fn folder_of_the_last_client(_: &Env) -> Result<()> {
    const OTHER: &str = "lab_second_client";
    let has_folder = lab::has_memory_peers();
    let stop = Stop::core("before_drain")?;
    let removal = Beside::start(|| modules::rmmod(PEERMEM));
    stop.wait()?;
    let outcome = modules::try_modprobe(OTHER, &[])?;
    if has_folder {
        ensure!(!outcome.ok, "a second memory_peers was made");
        outcome.one_line(&["memory_peers of the client before is still there"])?;
    } else {
        ensure!(outcome.ok, "modprobe {OTHER}: {}{}", outcome.said, outcome.kernel.join("\n"));
        modules::rmmod(OTHER)?;
    }
    stop.release()?;
    removal.finish("rmmod")?;
    ensure!(!lab::has_memory_peers(), "memory_peers stays, with {:?}", lab::clients()?);
    modules::modprobe(OTHER, &[])?;
    ensure!(lab::clients()? == ["second"], "clients: {:?}", lab::clients()?);
    modules::rmmod(OTHER)
}

/// A deregistration that does not stop the notifier. The core says so and unmaps all the same, so
/// nothing stays.
fn never_stopped(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let mut log = Mark::now()?;
    lab::set_nic("skip_stop", 1)?;
    mr.dereg()?;
    let said = log.since()?;
    let warnings = said.iter().filter(|l| l.starts_with("WARNING: ") && l.contains("ib_peer_umem_release")).count();
    ensure!(warnings == 1, "{warnings} warnings about a notifier that was never stopped: {}", said.join("\n"));
    nothing_left("after the deregistration")?;
    memory.free()?;
    bench.registered(SIZE)?.1.dereg()?;
    nothing_left("in the end")
}

/// A key that the NIC driver cannot destroy, also when its process has ended. Nobody tries again.
/// The end of the process frees memory of a revocable pin. A persistent pin stays, and doctor says
/// that it does so until reboot. The module stays in use either way.
fn key_of_a_killed_process(env: &Env) -> Result<()> {
    let (pins, users_before) = (gpu::pins()?, users()?);
    let mut actor = actor("nic")?;
    let pid = actor.pid();
    actor.ask("reg")?;
    lab::set_nic("destroy_fail", 1000)?;
    actor.kill()?;
    lab::set_nic("destroy_fail", 0)?;
    ensure!(users()? == users_before + 1, "{} users, wanted one more than {users_before}", users()?);
    ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod went through with a key left");
    if env.mode()? == Mode::Legacy {
        ensure!(gpu::pins()? == pins, "the memory of a process that has ended is pinned");
        return is_listed(pid, "revoked", 0);
    }
    ensure!(gpu::pins()? == pins + 1, "{} pins, wanted one more than {pins}", gpu::pins()?);
    is_listed(pid, "key_not_destroyed", SIZE)?;
    doctor_says("registrations.left_key", &format!("of process {pid} "), "until reboot")
}

/// A registration fails, and so does the fence that would undo it. The NIC driver looks at neither
/// and loses the region: the user sees the errno, and the memory stays pinned. With a persistent pin
/// it stays so after the process has ended, until reboot. With a revocable one the core's lock stays
/// locked, and the free waits for it for ever, with every GPU locked.
fn lost_mr(env: &Env) -> Result<()> {
    let pins = gpu::pins()?;
    let mut actor = actor("nic")?;
    let pid = actor.pid();
    lab::set_nic("lose_mr", 1)?;
    let said = actor.ask("reg")?;
    ensure!(said == format!("refused {}", libc::EFAULT), "a registration that is lost: {said}");
    is_listed(pid, "mapped", SIZE)?;
    ensure!(gpu::pins()? == pins + 1, "{} pins, wanted one more than {pins}", gpu::pins()?);
    if env.mode()? == Mode::Persistent {
        actor.ask("free")?;
        actor.kill()?;
        is_listed(pid, "mapped", SIZE)?;
        ensure!(gpu::pins()? == pins + 1, "{} pins, wanted one more than {pins}", gpu::pins()?);
        return doctor_says("registrations.stale", &format!("process {pid} "), "without the process");
    }
    actor.tell("free")?;
    let waits = || {
        let rows = peermem::rows("callbacks").unwrap_or_default();
        rows.iter().any(|row| row.number("pid") == Some(pid.into()) && row.text("stage") == Some("invalidating"))
    };
    wait_for("the callback waits in the core", waits)?;
    actor.shoot()?;
    std::thread::sleep(Duration::from_secs(1));
    // It cannot be buried.
    std::mem::forget(actor);
    let stack = fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
    ensure!(waits() && stack.contains("ib_invalidate_peer_memory"), "it was killed in the core's hook: {stack}");
    Ok(())
}

/// Checks that doctor's finding `id` has both texts.
fn doctor_says(id: &str, of: &str, what: &str) -> Result<()> {
    let (report, _) = peermem::peermemctl_json(&["doctor"])?;
    let sections = report["sections"].as_array().context("no sections")?;
    let checks = sections.iter().flat_map(|s| s["checks"].as_array().into_iter().flatten());
    let said: Vec<&str> = checks.filter(|c| c["id"] == id).filter_map(|c| c["message"].as_str()).collect();
    if !said.iter().any(|text| text.contains(of) && text.contains(what)) {
        bail!("doctor's {id} says {said:?}, wanted {of:?} and {what:?}");
    }
    println!("{}", said.join("\n"));
    Ok(())
}
