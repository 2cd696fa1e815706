// SPDX-License-Identifier: GPL-2.0
//! Tests GPU memory that is freed while it is registered, being registered, or being deregistered.

use anyhow::{ensure, Context, Result};

use super::beside::{
    after_the_free, dereg_beside, free_beside, nic_state, no_pins, reg_beside, write_status, Stop, A_WHILE, SIZE,
};
use crate::common::{expect_errno, pattern, same_bytes, Bench, KIB, MIB};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::lab;
use crate::machine::{wait_for, Mode};
use crate::test::Env;
use crate::verbs::{Loopback, Status, PATIENCE};

pub fn while_registered(env: &Env) -> Result<()> {
    match env.mode()? {
        Mode::Persistent => keeps_the_memory(env),
        _ => ends_the_mr(env),
    }
}

/// With persistent pins, the NIC goes on with the memory that the application gave up, until the MR
/// is deregistered.
fn keeps_the_memory(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let (source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    let bytes = pattern(&mut rng, SIZE);
    source.write(0, &bytes)?;
    target.free()?;
    ensure!(gpu::accounting()?.get("callbacks") == 0, "a persistent pin has no callback");
    ensure!(nic_state(&target_mr)?.as_deref() == Some("live"), "the MR is {:?}", nic_state(&target_mr)?);
    // The memory belongs to the NIC alone now. Another allocation must not share it.
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
    ensure!(kept()? == 1, "{} allocations are kept by pins, wanted 1", kept()?);
    target_mr.dereg()?;
    ensure!(kept()? == 0, "the memory is still kept after the deregistration");
    Ok(())
}

/// Returns the number of allocations that live on for a pin.
fn kept() -> Result<usize> {
    Ok(gpu::lab()?.allocations()?.iter().filter(|a| a.state == nvlab::State::Kept).count())
}

/// With revocable pins, the memory is freed at once, the MR ends in errors, and the memory's next
/// owner never sees a byte.
fn ends_the_mr(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
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
    // The next owner gets the same memory. Nothing from the dead MR may reach it.
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

/// One free ends many overlapping registrations.
pub fn with_many_mrs(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    let mrs = (0..16)
        .map(|i| bench.reg(memory.va() + i as u64 * 100 * KIB as u64, MIB))
        .collect::<std::io::Result<Vec<_>>>()?;
    memory.free()?;
    let (pins, callbacks, state) = if env.mode()? == Mode::Persistent { (16, 0, "live") } else { (0, 16, "killed") };
    ensure!(gpu::pins()? == pins, "{} pins after the free, wanted {pins}", gpu::pins()?);
    ensure!(gpu::accounting()?.get("callbacks") == callbacks, "{} callbacks", gpu::accounting()?.get("callbacks"));
    for mr in mrs {
        ensure!(nic_state(&mr)?.as_deref() == Some(state), "an MR is {:?}, wanted {state}", nic_state(&mr)?);
        mr.dereg()?;
    }
    no_pins("after the last deregistration")
}

/// The driver takes away the memory's address, but not the memory (cuMemUnmap). The MR ends as with
/// a free. Once the address is back, it can be registered as before, whatever becomes of the dead
/// MR.
pub fn unmapped_and_mapped(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let rm = nvlab::Client::open()?;
    let (source, source_mr) = bench.registered(SIZE)?;
    let memory = rm.alloc(0, SIZE as u64)?;
    let holds = |what: &str, wanted: &[u8]| -> Result<()> {
        let mut got = vec![0; SIZE];
        memory.read(0, &mut got)?;
        same_bytes(what, &got, wanted)
    };
    let bytes = pattern(&mut rng, SIZE);
    memory.write(0, &bytes)?;
    let dead = bench.reg(memory.va(), SIZE)?;
    memory.unregister()?;
    ensure!(gpu::accounting()?.get("callbacks") == 1, "{} callbacks", gpu::accounting()?.get("callbacks"));
    ensure!(nic_state(&dead)?.as_deref() == Some("killed"), "the MR is {:?}, wanted killed", nic_state(&dead)?);
    let status = write_status(&bench, &source_mr, &dead)?;
    ensure!(status != Status::IBV_WC_SUCCESS, "a write to memory without an address succeeded");
    holds("memory without an address", &bytes)?;
    expect_errno("without an address", bench.refused("without an address", memory.va(), SIZE)?, libc::EFAULT)?;

    memory.register()?;
    let mr = bench.reg(memory.va(), SIZE).context("register at the address that is back")?;
    let link = Loopback::new(&bench.pd)?;
    let mut arrives = |when: &str| -> Result<()> {
        let bytes = pattern(&mut rng, SIZE);
        source.write(0, &bytes)?;
        link.write(1, (&source_mr, 0), (&mr, 0), SIZE)?;
        link.done(1).with_context(|| when.to_string())?;
        holds(when, &bytes)
    };
    arrives("a write beside the dead MR")?;
    dead.dereg().context("deregister the dead MR")?;
    ensure!(gpu::pins()? == 2, "{} pins, wanted the source's and the new MR's", gpu::pins()?);
    arrives("a write after the dead MR")?;
    Ok(mr.dereg()?)
}

/// Frees memory while another thread stands at `stop`, and then releases that thread. If the free
/// `waits` for the thread, it is released before the free ends.
fn free_while_it_stands(bench: &Bench, memory: DeviceMemory, stop: Stop, waits: bool) -> Result<()> {
    stop.wait()?;
    let free = free_beside(bench, memory);
    if waits {
        free.waits("the free")?;
        stop.release()?;
        free.finish("the free")
    } else {
        free.finish("the free, which needs nothing that the other thread holds")?;
        stop.release()
    }
}

/// Frees the memory while its registration stands at `stop`. `waits` says whether the free has to
/// wait until the registration goes on, `succeeds` whether the registration succeeds.
fn free_at(env: &Env, bench: &Bench, stop: Stop, waits: bool, succeeds: bool) -> Result<()> {
    let memory = bench.cuda.alloc(SIZE)?;
    let reg = reg_beside(bench, memory.va());
    free_while_it_stands(bench, memory, stop, waits)?;
    after_the_free(env, bench, reg.finish("ibv_reg_mr")?, succeeds)
}

/// Frees memory in each gap of the provider's get, up to a callback that comes before the get
/// returns. Its table is gone then. In the gap between a revocable pin and its callback, the
/// provider loses its own table, with any module.
pub fn during_get_pages(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let persistent = env.mode()? == Mode::Persistent;
    let gap: &[&str] = if persistent { &["get_found"] } else { &["get_found", "get_filled"] };
    for point in ["get_alloc"].iter().chain(gap).chain(&["get_done"]) {
        // Before the provider has found the memory, it is too late for a pin that would keep it.
        let succeeds = persistent && *point != "get_alloc";
        free_at(env, &bench, Stop::pinning(env.mode()?, point)?, false, succeeds)?;
    }
    let lost = gpu::accounting()?.get("leaked_tables");
    let wanted = if persistent { 0 } else { gap.len() as i64 };
    ensure!(lost == wanted, "the provider lost {lost} tables, wanted {wanted}");
    // This process has the GPU open, so the GPU's driver cannot be unloaded here.
    Ok(gpu::lab()?.forget_leaked()?)
}

pub fn before_get_pages(env: &Env) -> Result<()> {
    free_at(env, &Bench::new()?, Stop::core("before_get_pages")?, false, env.mode()? == Mode::Persistent)
}

pub fn before_dma_map(env: &Env) -> Result<()> {
    free_at(env, &Bench::new()?, Stop::core("before_dma_map")?, false, env.mode()? == Mode::Persistent)
}

/// Frees memory while it is being mapped. Our module maps by itself, NVIDIA's through the provider.
pub fn during_dma_map(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    if env.nvidia_c {
        free_at(env, &bench, Stop::gpu("map_before")?, false, false)?;
        free_at(env, &bench, Stop::gpu("map_after")?, false, false)
    } else {
        free_at(env, &bench, Stop::core("in_dma_map")?, false, env.mode()? == Mode::Persistent)
    }
}

/// The memory is mapped and the mkey is live, but the notifier is not armed. Nobody could stop the
/// NIC, so a free has to wait.
pub fn before_activation(env: &Env) -> Result<()> {
    let waits = env.mode()? != Mode::Persistent;
    free_at(env, &Bench::new()?, Stop::core("before_activate")?, waits, true)
}

/// Frees memory at every place of a deregistration up to the provider's put. The core holds no lock
/// there, so the free does not wait.
pub fn during_dereg(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    for point in ["before_stop", "in_stop", "before_dma_unmap", "before_put_pages", "before_release"] {
        free_during(&bench, || Stop::core(point), false)?;
    }
    if !env.nvidia_c {
        // The deregistration stands in the kernel's unmapping, under the registration's own lock.
        free_during(&bench, || Stop::core("in_dma_unmap"), env.mode()? != Mode::Persistent)?;
    }
    Ok(())
}

/// Tests the revocable client that steps in where persistent pins are impossible.
pub fn of_the_fallback(env: &Env) -> Result<()> {
    gpu::lab()?.fault("persistent_errno", 524)?;
    let revocable = Env {
        mode: Some(Mode::Legacy),
        generation: env.generation,
        nvidia_c: env.nvidia_c,
        values: env.values.clone(),
    };
    before_dma_map(&revocable)?;
    before_activation(&revocable)?;
    during_dereg(&revocable)?;
    dereg_during_callback(&revocable)
}

/// Frees memory during the provider's put, before it has the RM API lock, with it, and after. (The
/// provider puts a persistent pin without the free noticing.)
pub fn during_put(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let mode = env.mode()?;
    free_during(&bench, || Stop::pinning(mode, "put_before"), false)?;
    free_during(&bench, || Stop::pinning(mode, "put_after"), false)?;
    if mode != Mode::Persistent {
        free_during(&bench, || Stop::gpu("put_locked"), true)?;
    }
    Ok(())
}

/// Frees the memory while its deregistration stands at the stop that `arm` makes. The stop is armed
/// once the memory is registered, because a registration with NVIDIA's module puts, too.
fn free_during(bench: &Bench, arm: impl FnOnce() -> Result<Stop>, waits: bool) -> Result<()> {
    let (memory, mr) = bench.registered(SIZE)?;
    let stop = arm()?;
    let dereg = dereg_beside(mr);
    free_while_it_stands(bench, memory, stop, waits)?;
    dereg.finish("ibv_dereg_mr")?;
    no_pins("after the deregistration")
}

/// Deregisters while the callback is about to run, is inside the core's hook, or has just run, with
/// the RM API lock held. The deregistration waits for that at most. Inside the hook it must wait,
/// because the core forgets the umem's client when the client has released, and a callback that has
/// found the umem reads that client through it.
pub fn dereg_during_callback(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let mut stops = vec![
        // The RM API lock is held, and the deregistration has to put.
        ((|| Stop::gpu("callback_before")) as fn() -> Result<Stop>, true),
        // The umem is found, but its lock is not taken.
        (|| Stop::core("invalidate_found"), true),
        (|| Stop::core("invalidate_entry"), true),
        // The core's lock is held.
        (|| Stop::core("invalidate_fence"), true),
        (|| Stop::gpu("callback_after"), false),
    ];
    if !env.nvidia_c {
        // The callback stands in the kernel's unmapping, under the registration's own lock.
        stops.push((|| Stop::core("in_dma_unmap"), true));
    }
    for (stop, waits) in stops {
        let stop = stop()?;
        let (memory, mr) = bench.registered(SIZE)?;
        let free = free_beside(&bench, memory);
        stop.wait()?;
        let dereg = dereg_beside(mr);
        if env.nvidia_c {
            // No rule says whether NVIDIA's module waits here.
            let early = dereg.ended(A_WHILE);
            stop.release()?;
            free.finish("the free")?;
            early.unwrap_or_else(|| dereg.finish("ibv_dereg_mr"))?;
        } else if waits {
            dereg.waits("ibv_dereg_mr")?;
            stop.release()?;
            free.finish("the free")?;
            dereg.finish("ibv_dereg_mr")?;
        } else {
            dereg.finish("ibv_dereg_mr, which needs nothing that the callback holds")?;
            stop.release()?;
            free.finish("the free")?;
        }
        no_pins("after both")?;
    }
    Ok(())
}

/// Repeats these scenarios with each table at the address of the one before. The provider knows a
/// pin by that address.
pub fn again_with_reused_tables(env: &Env) -> Result<()> {
    gpu::lab()?.set("key_reuse", 1)?;
    for run in [before_dma_map as fn(&Env) -> Result<()>, before_activation, during_dereg, during_put] {
        run(env)?;
    }
    if env.mode()? != Mode::Persistent {
        dereg_during_callback(env)?;
    }
    Ok(())
}

/// The NIC writes when the memory is freed, and takes its time to stop. Until it has to stop,
/// everything goes on. Then one write stands in it, begun but not done, and the free waits for that
/// one, too. The next owner sees nothing of it. (A write without a pin is a violation in the
/// accounting, which the runner reads.)
pub fn under_traffic(env: &Env) -> Result<()> {
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (_source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    lab::set_nic("fence_us", 200_000)?;
    let stop = Stop::core("invalidate_fence")?;
    let free = free_beside(&bench, target);
    stop.wait()?;
    // The callback is about to stop the NIC, which still writes as before.
    link.write(1, (&source_mr, 0), (&target_mr, 0), SIZE)?;
    let first = link.wait(PATIENCE)?.status;
    ensure!(first == Status::IBV_WC_SUCCESS, "a write before the NIC was told to stop: {first:?}");
    let under_way = Stop::core("nic_write")?;
    link.write(2, (&source_mr, 0), (&target_mr, 0), SIZE)?;
    under_way.wait()?;
    stop.release()?;
    // From then on, no write begins. The one that stands keeps the free waiting.
    wait_for("the NIC takes no more writes", || nic_state(&target_mr).is_ok_and(|s| s.as_deref() == Some("killed")))?;
    free.waits("the free, while a write is under way")?;
    under_way.release()?;
    free.finish("the free under traffic")?;
    let next = bench.cuda.alloc(SIZE)?;
    let theirs = pattern(&mut rng, SIZE);
    next.write(0, &theirs)?;
    // Its first bytes went to memory that was still pinned. The rest of it was refused.
    let end = link.wait(PATIENCE)?.status;
    ensure!(end != Status::IBV_WC_SUCCESS, "a write of which most comes after the fence succeeded");
    println!("the write under way ended with {end:?}");
    let after = write_status(&bench, &source_mr, &target_mr)?;
    ensure!(after != Status::IBV_WC_SUCCESS, "a write after the free succeeded");
    same_bytes("the next owner's memory", &next.read(0, SIZE)?, &theirs)?;
    Ok(target_mr.dereg()?)
}
