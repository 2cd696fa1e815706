// SPDX-License-Identifier: GPL-2.0
//! Tests processes that die, fork, exec, leave their files to others, or register what is not
//! theirs.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::beside::{Stop, SIZE};
use crate::common::{Bench, FAR, MIB};
use crate::gpu;
use crate::helper::Helper;
use crate::lab;
use crate::machine::{wait_for, Mode};
use crate::modules::{self, PEERMEM};
use crate::test::Env;
use crate::verbs::Mr;

/// The time in which what a dead process left must be gone.
const SETTLE: Duration = Duration::from_secs(15);

fn count() -> Result<i32> {
    modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded")
}

/// Checks the numbers of pins and of users of the module. NVIDIA's module need not keep itself
/// loaded for a pin.
fn expect(env: &Env, when: &str, pins: i64, users: i32) -> Result<()> {
    let got = (gpu::pins()?, if env.nvidia_c { users } else { count()? });
    ensure!(got == (pins, users), "{when}: {} pins and {} users, wanted {pins} and {users}", got.0, got.1);
    Ok(())
}

pub fn actor(first: &str) -> Result<Helper> {
    let mut actor = Helper::start(&["actor", first])?;
    actor.ask(&format!("alloc {SIZE}"))?;
    Ok(actor)
}

pub fn killed(_: &Env) -> Result<()> {
    let helper = Helper::start(&["hold", &(8 * MIB).to_string(), "8"])?;
    ensure!(gpu::pins()? == 8, "{} pins for 8 MRs", gpu::pins()?);
    helper.kill()?;
    gpu::wait_clean(SETTLE)
}

/// Kills a process while it stands in `command` at the stop that `arm` makes, and releases it only
/// then. The stop is armed after the preparations for the command, because a registration with
/// NVIDIA's module puts, too.
fn killed_at(command: &str, arm: impl FnOnce() -> Result<Stop>) -> Result<()> {
    let mut actor = actor("nic")?;
    if command != "reg" {
        actor.ask("reg")?;
    }
    let stop = arm()?;
    actor.tell(command)?;
    stop.wait()?;
    // When kill() has returned, every thread has the signal pending, so no interruptible sleep
    // lasts.
    actor.shoot()?;
    stop.release()?;
    actor.bury()?;
    gpu::wait_clean(SETTLE)
}

pub fn killed_in_acquire(env: &Env) -> Result<()> {
    killed_at("reg", || Stop::core("before_acquire"))?;
    for point in ["get_alloc", "get_found", "get_done"] {
        killed_at("reg", || Stop::pinning(env.mode()?, point))?;
    }
    Ok(())
}

pub fn killed_in_get_pages(_: &Env) -> Result<()> {
    killed_at("reg", || Stop::core("before_get_pages"))
}

pub fn killed_in_dma_map(env: &Env) -> Result<()> {
    killed_at("reg", || Stop::core("before_dma_map"))?;
    killed_at("reg", || if env.nvidia_c { Stop::gpu("map_before") } else { Stop::core("in_dma_map") })
}

pub fn killed_before_activation(_: &Env) -> Result<()> {
    killed_at("reg", || Stop::core("before_activate"))
}

pub fn killed_in_dereg(env: &Env) -> Result<()> {
    for point in ["before_stop", "in_stop", "before_dma_unmap", "before_put_pages", "before_release"] {
        killed_at("dereg", || Stop::core(point))?;
    }
    if !env.nvidia_c {
        killed_at("dereg", || Stop::core("in_dma_unmap"))?;
    }
    let mode = env.mode()?;
    killed_at("dereg", || Stop::pinning(mode, "put_before"))?;
    if mode != Mode::Persistent {
        killed_at("dereg", || Stop::gpu("put_locked"))?;
    }
    killed_at("dereg", || Stop::pinning(mode, "put_after"))
}

pub fn killed_in_callback(env: &Env) -> Result<()> {
    killed_at("free", || Stop::gpu("callback_before"))?;
    for point in ["invalidate_entry", "invalidate_found", "invalidate_fence"] {
        killed_at("free", || Stop::core(point))?;
    }
    if !env.nvidia_c {
        killed_at("free", || Stop::core("in_dma_unmap"))?;
    }
    killed_at("free", || Stop::gpu("callback_after"))
}

/// The GPU's file is closed before or after the NIC's, in the dying task or in a kernel thread
/// beside it.
pub fn dying_process_leaves_nothing(_: &Env) -> Result<()> {
    for deferred in [0, 1] {
        gpu::lab()?.set("close_deferred", deferred)?;
        for first in ["nic", "gpu"] {
            println!("{first} opened first, close_deferred={deferred}");
            let mut actor = actor(first)?;
            actor.ask("reg")?;
            actor.kill()?;
            gpu::wait_clean(SETTLE)?;
        }
    }
    Ok(())
}

/// A kernel thread closes the GPU's file while the dying task closes the NIC's. Either of them is
/// held up, and the other does its work.
pub fn closes_meet(env: &Env) -> Result<()> {
    gpu::lab()?.set("close_deferred", 1)?;
    println!("the NIC's is first");
    let mut held = actor("gpu")?;
    held.ask("reg")?;
    let stop = Stop::gpu("deferred")?;
    held.shoot()?;
    stop.wait()?;
    wait_no_mr()?;
    ensure!(gpu::pins()? == 0, "{} pins after the deregistration", gpu::pins()?);
    stop.release()?;
    held.bury()?;
    gpu::wait_clean(SETTLE)?;
    for point in ["before_stop", "before_release"] {
        println!("the GPU's is first, beside a deregistration");
        // A dying task closes first what it opened last.
        let mut held = actor("nic")?;
        held.ask("reg")?;
        let stop = Stop::core(point)?;
        held.shoot()?;
        stop.wait()?;
        // A persistent pin outlives its memory's owner. NVIDIA's module waits for the core.
        if env.mode()? != Mode::Persistent && !env.nvidia_c {
            wait_for("the memory's end", || gpu::pins().is_ok_and(|pins| pins == 0))?;
        }
        stop.release()?;
        held.bury()?;
        gpu::wait_clean(SETTLE)?;
    }
    Ok(())
}

/// Waits until the deregistration has ended that a dying process or a kernel thread makes. The NIC
/// takes a region off its list before the core unmaps and puts the pin, but counts it until then.
pub fn wait_no_mr() -> Result<()> {
    let end = Instant::now() + SETTLE;
    while lab::nic_stat("mrs_live")? != 0 {
        ensure!(Instant::now() < end, "the NIC still has MRs after {SETTLE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A kernel thread closes the NIC's file and thereby deregisters. Nobody may put a revocable pin
/// then. It waits for its owner's next registration, or for the memory's end.
pub fn deregistered_by_a_kernel_thread(env: &Env) -> Result<()> {
    let orphans = i64::from(env.mode()? != Mode::Persistent);
    let mut actor = actor("nic")?;
    for ended_by in ["the next registration", "the free"] {
        println!("ended by {ended_by}");
        actor.ask("reg")?;
        actor.ask("leave nic")?;
        wait_no_mr()?;
        expect(env, "after the kernel thread", orphans, i32::try_from(orphans)?)?;
        if ended_by == "the free" {
            actor.ask("free")?;
        } else {
            actor.ask("open nic")?;
            actor.ask("reg")?;
            expect(env, "while registered again", 1, 1)?;
            actor.ask("dereg")?;
        }
        expect(env, ended_by, 0, 0)?;
    }
    actor.finish()
}

/// A kernel thread deregisters, and then the process dies. The orphan ends with its memory.
pub fn dies_after_a_kernel_thread(_: &Env) -> Result<()> {
    let mut actor = actor("nic")?;
    actor.ask("reg")?;
    actor.ask("leave nic")?;
    actor.kill()?;
    gpu::wait_clean(SETTLE)
}

/// The process executes a new program, from the first thread or from another one, with the files
/// open or closed.
pub fn executes(env: &Env) -> Result<()> {
    for thread in ["", " from-a-thread"] {
        for files in ["keep", "close"] {
            println!("exec {files}{thread}");
            let mut actor = actor("nic")?;
            actor.ask("reg")?;
            actor.ask(&format!("exec {files}{thread}"))?;
            if files == "keep" {
                expect(env, "after exec", 1, 1)?;
            } else {
                gpu::wait_clean(SETTLE)?;
            }
            actor.finish()?;
            gpu::wait_clean(SETTLE)?;
        }
    }
    Ok(())
}

/// Memory of another process is refused. If the driver shared it, it can be registered, and either
/// process may go first.
pub fn registers_foreign_memory(env: &Env) -> Result<()> {
    let persistent = env.mode()? == Mode::Persistent;
    let rm = nvlab::Client::open()?;
    let mut other = Helper::start(&["actor", "nic"])?;
    let reg = format!("reg {FAR} {SIZE}");
    let memory = || rm.request(0, SIZE as u64).at(FAR).alloc();
    let mine = memory()?;
    let said = other.ask(&reg)?;
    ensure!(said == format!("refused {}", libc::EFAULT), "memory that is not theirs: {said}");
    rm.share_with(other.pid())?;
    let shared = |other: &mut Helper| -> Result<()> {
        let said = other.ask(&reg)?;
        ensure!(!said.starts_with("refused"), "memory that is shared with them: {said}");
        expect(env, "registered by the other", 1, 1)
    };
    println!("they deregister");
    shared(&mut other)?;
    other.ask("dereg")?;
    expect(env, "deregistered by the other", 0, 0)?;
    println!("the memory goes first");
    shared(&mut other)?;
    mine.free()?;
    ensure!(gpu::pins()? == i64::from(persistent), "{} pins after the free", gpu::pins()?);
    other.ask("dereg")?;
    expect(env, "deregistered after the free", 0, 0)?;
    println!("no longer shared when they deregister: the provider says 0 and leaves the pin");
    let mine = memory()?;
    shared(&mut other)?;
    rm.unshare(other.pid())?;
    other.ask("dereg")?;
    mine.free()?;
    expect(env, "in the end", 0, 0)?;
    other.finish()
}

/// Deregisters in a forked process, which has the file and the MR but did not pin.
pub fn dereg_in_fork(mr: Mr) -> Result<()> {
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

/// The provider takes a revocable pin back only from its pinner. What a child deregisters stays
/// pinned, and the module stays loaded, until the pinner's next registration or the memory's end.
pub fn deregistered_by_a_child(env: &Env) -> Result<()> {
    let orphans = i64::from(env.mode()? != Mode::Persistent);
    let bench = Bench::new()?;
    // NVIDIA's module does not get beyond the free.
    let ends = if env.nvidia_c { vec!["the free"] } else { vec!["the next registration", "the free"] };
    for ended_by in ends {
        let (memory, mr) = bench.registered(SIZE)?;
        dereg_in_fork(mr)?;
        expect(env, "after the child", orphans, i32::try_from(orphans)?)?;
        if orphans != 0 && !env.nvidia_c {
            ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod went through with a pin left");
        }
        if ended_by == "the free" {
            memory.free()?;
        } else {
            bench.reg(memory.va(), SIZE)?.dereg()?;
        }
        expect(env, ended_by, 0, 0)?;
    }
    Ok(())
}
