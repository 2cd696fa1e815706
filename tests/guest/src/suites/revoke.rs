// SPDX-License-Identifier: GPL-2.0
//! GPU memory that is freed while it is registered, or while it is being registered or deregistered.

use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::{pattern, same_bytes, Bench, KIB, MIB, PATIENCE};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::helper::Helper;
use crate::lab::{self, CoreHold};
use crate::machine::{Generation, Mode};
use crate::modules::{self, PEERMEM};
use crate::test::{in_modes, Env, Rival, Suite};
use crate::verbs::{Loopback, Mr, Status, FULL_ACCESS};

const SIZE: usize = MIB;

/// NVIDIA's dma_unmap hands a mapping to the provider that the callback has freed.
const RIVAL_OOPS: Rival = Rival::Skip("a use after free in its dma_unmap stops the machine");

pub fn suite(rival: bool) -> Suite {
    let mut tests = Vec::new();
    for (mode, name, means, run) in [
        (Mode::Persistent, "free_keeps_the_memory", Rival::Same, free_keeps_the_memory as fn(&Env) -> Result<()>),
        (Mode::Persistent, "kill", Rival::Same, kill),
        (Mode::Persistent, "exit_without_dereg", Rival::Same, exit_without_dereg),
        (Mode::Legacy, "free_ends_the_mr", Rival::Recorded, free_ends_the_mr),
        (Mode::Legacy, "free_with_many_mrs", Rival::Recorded, free_with_many_mrs),
        (Mode::Legacy, "kill", Rival::Recorded, kill),
        (Mode::Legacy, "exit_without_dereg", Rival::Recorded, exit_without_dereg),
        (Mode::Legacy, "free_before_get_returns", Rival::Recorded, free_before_get_returns),
        (Mode::Legacy, "free_before_dma_map", Rival::Recorded, free_before_dma_map),
        (Mode::Legacy, "free_before_activation", Rival::Recorded, free_before_activation),
        (Mode::Legacy, "free_during_dereg", RIVAL_OOPS, free_during_dereg),
        (Mode::Legacy, "dereg_during_callback", Rival::Recorded, dereg_during_callback),
        (Mode::Legacy, "again_with_reused_tables", RIVAL_OOPS, again_with_reused_tables),
        (Mode::Legacy, "free_under_traffic", Rival::Recorded, free_under_traffic),
        // The last one: it costs the rival KASAN's only report of the boot.
        (Mode::Legacy, "dereg_in_a_child", Rival::Recorded, dereg_in_a_child),
    ] {
        tests.extend(in_modes(rival, &[mode], name, run).into_iter().map(|t| t.rival(means).limit(90)));
    }
    Suite { name: "revoke", tests }
}

fn nic_state(mr: &Mr) -> Result<Option<String>> {
    Ok(lab::nic_mrs()?.into_iter().find(|m| m.lkey == mr.lkey()).map(|m| m.state))
}

/// A write to `target` through a fresh pair of queues; the status it ends with.
fn write_status(bench: &Bench, source: &Mr, target: &Mr) -> Result<Status> {
    let link = Loopback::new(&bench.pd)?;
    link.write(1, (source, 0), (target, 0), 4 * KIB)?;
    Ok(link.wait(PATIENCE)?.status)
}

/// Persistent: the NIC goes on with the memory that the application gave up, until the MR goes.
fn free_keeps_the_memory(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let (source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    let bytes = pattern(&mut rng, SIZE);
    source.write(0, &bytes)?;
    target.free()?;
    ensure!(gpu::books()?.get("callbacks") == 0, "a persistent pin has no callback");
    ensure!(nic_state(&target_mr)?.as_deref() == Some("live"), "the MR is {:?}", nic_state(&target_mr)?);
    // The memory is nobody's but the NIC's now: another allocation must not share it.
    let other = bench.cuda.alloc(SIZE)?;
    let untouched = pattern(&mut rng, SIZE);
    other.write(0, &untouched)?;
    let link = Loopback::new(&bench.pd)?;
    link.write(1, (&source_mr, 0), (&target_mr, 0), SIZE)?;
    link.done(1)?;
    same_bytes("memory allocated after the free", &other.read(0, SIZE)?, &untouched)?;
    // What was written can still be read back through the MR.
    let (copy, copy_mr) = bench.registered(SIZE)?;
    link.read(2, (&copy_mr, 0), (&target_mr, 0), SIZE)?;
    link.done(2)?;
    same_bytes("read back through the MR", &copy.read(0, SIZE)?, &bytes)?;
    let kept = gpu::lab()?.allocations()?.iter().filter(|a| a.state == nvlab::State::Kept).count();
    ensure!(kept == 1, "{kept} allocations are kept by pins, wanted 1");
    target_mr.dereg()?;
    let kept = gpu::lab()?.allocations()?.iter().filter(|a| a.state == nvlab::State::Kept).count();
    ensure!(kept == 0, "the memory is still kept after the deregistration");
    Ok(())
}

/// Revocable: freed at once, the MR ends in errors, the memory's next owner never sees a byte.
fn free_ends_the_mr(env: &Env) -> Result<()> {
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let (_source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    ensure!(write_status(&bench, &source_mr, &target_mr)? == Status::IBV_WC_SUCCESS, "the MR does not work at first");
    let pins = gpu::pins()?;
    target.free()?;
    ensure!(gpu::pins()? == pins - 1, "{} pins after the free, wanted {}", gpu::pins()?, pins - 1);
    ensure!(
        nic_state(&target_mr)?.as_deref() == Some("killed"),
        "the MR is {:?}, wanted killed",
        nic_state(&target_mr)?
    );
    // The next owner gets the same memory; nothing of the dead MR's may reach it.
    let next = bench.cuda.alloc(SIZE)?;
    let theirs = pattern(&mut rng, SIZE);
    next.write(0, &theirs)?;
    let status = write_status(&bench, &source_mr, &target_mr)?;
    ensure!(status != Status::IBV_WC_SUCCESS, "a write to freed memory succeeded");
    println!("a remote write to the dead MR: {status:?}");
    let status = write_status(&bench, &target_mr, &source_mr)?;
    ensure!(status != Status::IBV_WC_SUCCESS, "a write from freed memory succeeded");
    println!("a write from the dead MR: {status:?}");
    same_bytes("the next owner's memory", &next.read(0, SIZE)?, &theirs)?;
    target_mr.dereg().context("deregister the dead MR")?;
    ensure!(gpu::pins()? == 1, "{} pins, wanted the source's", gpu::pins()?);
    Ok(())
}

/// One free, many registrations, overlapping.
fn free_with_many_mrs(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    let mrs = (0..16)
        .map(|i| bench.reg(memory.va() + i as u64 * 100 * KIB as u64, MIB))
        .collect::<std::io::Result<Vec<_>>>()?;
    memory.free()?;
    ensure!(gpu::pins()? == 0, "{} pins after the free", gpu::pins()?);
    ensure!(gpu::books()?.get("callbacks") >= 16, "{} callbacks for 16 pins", gpu::books()?.get("callbacks"));
    for mr in mrs {
        ensure!(nic_state(&mr)?.as_deref() == Some("killed"), "an MR is {:?}", nic_state(&mr)?);
        mr.dereg()?;
    }
    Ok(())
}

fn kill(_: &Env) -> Result<()> {
    let helper = Helper::start(&["hold", &(8 * MIB).to_string(), "8"])?;
    ensure!(gpu::pins()? == 8, "{} pins for 8 MRs", gpu::pins()?);
    helper.kill()?;
    gpu::wait_clean(Duration::from_secs(10))
}

fn exit_without_dereg(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    // The process's end has to do it all.
    std::mem::forget((memory, mr, bench));
    Ok(())
}

/// Deregisters in a forked process, which has the file and the MR but is not the one that pinned.
pub(super) fn dereg_in_fork(mr: Mr) -> Result<()> {
    // SAFETY: this process has one thread; the child calls the library and ends without unwinding.
    match unsafe { nix::unistd::fork() }.context("fork")? {
        nix::unistd::ForkResult::Child => {
            let code = i32::from(mr.dereg().is_err());
            // SAFETY: ends the child at once; nothing of the parent's is flushed or dropped twice.
            unsafe { libc::_exit(code) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            std::mem::forget(mr);
            let status = nix::sys::wait::waitpid(child, None).context("wait for the child")?;
            ensure!(matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0)), "the child: {status:?}");
            Ok(())
        }
    }
}

/// The provider takes a revocable pin back from its pinner only: what a child deregisters stays pinned, and the module
/// loaded, until the pinner's next registration or the memory's end.
fn dereg_in_a_child(_: &Env) -> Result<()> {
    let count = || -> Result<i32> { modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded") };
    let bench = Bench::new()?;
    for ended_by in ["the next registration", "the free"] {
        let (memory, mr) = bench.registered(SIZE)?;
        dereg_in_fork(mr)?;
        ensure!((gpu::pins()?, count()?) == (1, 1), "{} pins and {} users after the child", gpu::pins()?, count()?);
        ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod went through with a pin left");
        if ended_by == "the free" {
            memory.free()?;
        } else {
            bench.reg(memory.va(), SIZE)?.dereg()?;
        }
        ensure!((gpu::pins()?, count()?) == (0, 0), "{ended_by} left {} pins, {} users", gpu::pins()?, count()?);
    }
    Ok(())
}

/// A call in a thread of its own, because it may have to wait for somebody.
pub struct Beside<T> {
    done: Receiver<Result<T>>,
}

impl<T: Send + 'static> Beside<T> {
    fn start(call: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let (tell, done) = channel();
        // Not joined: a thread that hangs must not hang the test beyond its own limit.
        std::thread::spawn(move || {
            // Nobody listens any more only where the test has failed already.
            let _ = tell.send(call());
        });
        Self { done }
    }

    pub fn finish(self, what: &str) -> Result<T> {
        match self.done.recv_timeout(PATIENCE) {
            Ok(result) => result.with_context(|| what.to_string()),
            Err(_) => bail!("{what}: not done within {PATIENCE:?}"),
        }
    }

    /// Has it ended within `limit`? Its result is taken then.
    fn ended(&self, limit: Duration) -> Option<Result<T>> {
        self.done.recv_timeout(limit).ok()
    }
}

pub fn free_beside(bench: &Bench, memory: DeviceMemory) -> Beside<()> {
    let cuda = Arc::clone(&bench.cuda);
    Beside::start(move || {
        cuda.attach()?;
        memory.free()
    })
}

fn reg_beside(bench: &Bench, va: u64) -> Beside<std::io::Result<Mr>> {
    let pd = Arc::clone(&bench.pd);
    Beside::start(move || Ok(Mr::reg(&pd, va, SIZE, FULL_ACCESS)))
}

pub fn dereg_beside(mr: Mr) -> Beside<()> {
    Beside::start(move || Ok(mr.dereg()?))
}

/// A registration that lost its memory on the way has failed, or it succeeded and is dead.
fn dead_or_failed(bench: &Bench, mr: std::io::Result<Mr>) -> Result<()> {
    match mr {
        Err(e) => println!("ibv_reg_mr: {e}"),
        Ok(mr) => {
            println!("ibv_reg_mr succeeded; the MR is {:?}", nic_state(&mr)?);
            let (_source, source_mr) = bench.registered(SIZE)?;
            let status = write_status(bench, &source_mr, &mr)?;
            ensure!(status != Status::IBV_WC_SUCCESS, "an MR over freed memory works");
            mr.dereg()?;
        }
    }
    Ok(())
}

/// The callback comes before nvidia_p2p_get_pages returns: the table that it returns is gone already.
fn free_before_get_returns(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    let hold = gpu::lab()?.arm("get_done")?;
    let reg = reg_beside(&bench, memory.va());
    hold.wait(PATIENCE)?;
    free_beside(&bench, memory).finish("the free during get_pages")?;
    ensure!(gpu::books()?.get("callbacks") == 1, "the callback did not come");
    hold.release()?;
    dead_or_failed(&bench, reg.finish("ibv_reg_mr")?)
}

/// Pinned, not mapped: the free must not wait for the registering thread.
fn free_before_dma_map(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    let hold = CoreHold::arm("before_dma_map")?;
    let reg = reg_beside(&bench, memory.va());
    hold.wait(PATIENCE)?;
    free_beside(&bench, memory).finish("the free before dma_map")?;
    hold.release();
    dead_or_failed(&bench, reg.finish("ibv_reg_mr")?)
}

/// Mapped, the mkey is live, the notifier is not armed: the free waits until it is, then the MR dies.
fn free_before_activation(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    let hold = CoreHold::arm("before_activate")?;
    let reg = reg_beside(&bench, memory.va());
    hold.wait(PATIENCE)?;
    let free = free_beside(&bench, memory);
    let early = free.ended(Duration::from_millis(500));
    hold.release();
    ensure!(
        early.is_none(),
        "the free returned ({early:?}) while the mkey was live and nobody could tell the NIC to stop"
    );
    free.finish("the free")?;
    dead_or_failed(&bench, reg.finish("ibv_reg_mr")?)?;
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// The core holds no lock in these places, so the free must not wait for the deregistration either; but one of 5.1 unmaps
/// under its lock, which the free has to wait for.
fn free_during_dereg(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    for point in ["before_stop", "in_stop", "before_dma_unmap", "before_put_pages", "before_release"] {
        println!("{point}");
        let (memory, mr) = bench.registered(SIZE)?;
        let hold = CoreHold::arm(point)?;
        let dereg = dereg_beside(mr);
        hold.wait(PATIENCE)?;
        let free = free_beside(&bench, memory);
        let locked = env.generation == Generation::G51 && !["before_stop", "before_release"].contains(&point);
        if locked {
            hold.release();
            free.finish("the free")?;
        } else {
            free.finish("the free")?;
            hold.release();
        }
        dereg.finish("ibv_dereg_mr")?;
        ensure!(gpu::pins()? == 0, "{point}: {} pins left", gpu::pins()?);
    }
    Ok(())
}

/// The callback is about to run, or has just run, with R held: the deregistration waits at most for R.
fn dereg_during_callback(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    for point in ["callback_before", "callback_after"] {
        println!("{point}");
        let (memory, mr) = bench.registered(SIZE)?;
        let hold = gpu::lab()?.arm(point)?;
        let free = free_beside(&bench, memory);
        hold.wait(PATIENCE)?;
        let dereg = dereg_beside(mr);
        let early = dereg.ended(Duration::from_millis(500));
        println!(
            "the deregistration {}",
            if early.is_some() { "did not wait" } else { "waits for the callback's end" }
        );
        hold.release()?;
        free.finish("the free")?;
        match early {
            Some(result) => result?,
            None => dereg.finish("ibv_dereg_mr")?,
        }
        ensure!(gpu::pins()? == 0, "{point}: {} pins left", gpu::pins()?);
    }
    Ok(())
}

/// The same with each table at the address of the one before, which is what the provider knows a pin by.
fn again_with_reused_tables(env: &Env) -> Result<()> {
    gpu::lab()?.set("key_reuse", 1)?;
    for run in [
        free_before_dma_map as fn(&Env) -> Result<()>,
        free_before_activation,
        free_during_dereg,
        dereg_during_callback,
    ] {
        run(env)?;
    }
    Ok(())
}

/// The NIC is in the middle of writing when the memory goes, and takes its time to stop: the free waits for it, and
/// the next owner sees nothing of it. (A write without a pin is a violation in the books, which the runner reads.)
fn free_under_traffic(env: &Env) -> Result<()> {
    const WRITES: u64 = 8;
    let mut rng = env.rng();
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (_source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    lab::set_nic("fence_ms", 200)?;
    for id in 0..WRITES {
        link.write(id, (&source_mr, 0), (&target_mr, 0), SIZE)?;
    }
    let free = free_beside(&bench, target);
    free.finish("the free under traffic")?;
    let next = bench.cuda.alloc(SIZE)?;
    let theirs = pattern(&mut rng, SIZE);
    next.write(0, &theirs)?;
    let mut ends = Vec::new();
    for _ in 0..WRITES {
        ends.push(link.wait(PATIENCE)?.status);
    }
    let good = ends.iter().filter(|s| **s == Status::IBV_WC_SUCCESS).count();
    println!("{good} of {WRITES} writes were done before the free, the last ended with {:?}", ends.last());
    same_bytes("the next owner's memory", &next.read(0, SIZE)?, &theirs)?;
    ensure!(nic_state(&target_mr)?.as_deref() == Some("killed"), "the MR is {:?}", nic_state(&target_mr)?);
    Ok(target_mr.dereg()?)
}
