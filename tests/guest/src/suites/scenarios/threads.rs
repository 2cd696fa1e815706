// SPDX-License-Identifier: GPL-2.0
//! Tests threads of one process that get in each other's way.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::beside::{dereg_beside, free_beside, no_pins, reg_beside, Beside, Stop, SIZE};
use crate::common::{Bench, FAR, KIB};
use crate::gpu;
use crate::machine::{unload_devices, Mode, RDMA_DEVICE};
use crate::test::Env;
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

/// Stops one thread's registration between acquire and get_pages, completes another's, and frees the
/// memory of both.
fn two_meet(env: &Env, pd: &Arc<Pd>, rm: &nvlab::Client) -> Result<()> {
    let memory = rm.request(0, SIZE as u64).at(FAR).alloc()?;
    let stop = Stop::core("before_get_pages")?;
    let theirs = Arc::clone(pd);
    let first = Beside::start(move || Ok(Mr::reg(&theirs, FAR, SIZE, FULL_ACCESS)));
    stop.wait()?;
    let second = Mr::reg(pd, FAR, SIZE, FULL_ACCESS).context("the second registration")?;
    memory.free()?;
    stop.release()?;
    let first = first.finish("the first registration")?;
    let persistent = env.mode()? == Mode::Persistent;
    ensure!(env.nvidia_c || first.is_ok() == persistent, "the first registration: {:?}", first.err());
    if let Ok(mr) = first {
        mr.dereg()?;
    }
    second.dereg()?;
    no_pins("after both")
}

/// Two threads register and deregister at one address, while a third one frees and allocates there.
pub fn one_address(env: &Env) -> Result<()> {
    const ROUNDS: usize = 40;
    let mut rng = env.rng()?;
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let rm = nvlab::Client::open()?;
    two_meet(env, &pd, &rm)?;
    let over = Arc::new(AtomicBool::new(false));
    // Registrations that succeeded, and that were refused.
    let all = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let registrars: Vec<Beside<()>> = (0..2)
        .map(|_| {
            let (pd, over, all) = (Arc::clone(&pd), Arc::clone(&over), Arc::clone(&all));
            Beside::start(move || {
                while !over.load(Ordering::Relaxed) {
                    let registered = Mr::reg(&pd, FAR, SIZE, FULL_ACCESS);
                    all[usize::from(registered.is_err())].fetch_add(1, Ordering::Relaxed);
                    registered.map_or(Ok(()), Mr::dereg)?;
                }
                Ok(())
            })
        })
        .collect();
    // The memory was registered, refused, and freed under a registration at least once each, however
    // slow the machine is: each round of forty keeps it longer. A persistent registration has no
    // callback.
    let callbacks = || -> Result<i64> { Ok(gpu::accounting()?.get("callbacks")) };
    let before = callbacks()?;
    let met = || -> Result<bool> {
        let freed_under_it = env.mode()? == Mode::Persistent || callbacks()? > before;
        Ok(freed_under_it && all.iter().all(|count| count.load(Ordering::Relaxed) > 0))
    };
    let mut rounds = 0;
    while rounds < ROUNDS || !met()? {
        ensure!(rounds < 10 * ROUNDS, "{rounds} times freed, and the threads never met: {all:?} registered, refused");
        let memory = rm.request(0, SIZE as u64).at(FAR).alloc()?;
        let longest = 20_000 * (1 + rounds / ROUNDS) as u64;
        std::thread::sleep(Duration::from_micros(rng.u64(0..longest)));
        memory.free()?;
        rounds += 1;
    }
    over.store(true, Ordering::Relaxed);
    for registrar in registrars {
        registrar.finish("a registering thread")?;
    }
    println!("{rounds} times freed, {all:?} registered, refused");
    no_pins("in the end")?;
    let lost = gpu::accounting()?.get("leaked_tables");
    if lost > 0 {
        // The memory was freed in the gap between a revocable pin and its callback. The provider
        // then forgets its own table, with any module.
        println!("the provider lost {lost} tables by its own bug");
        drop((rm, pd));
        unload_devices()?;
    }
    Ok(())
}

/// A callback holds the RM API lock and waits for the umem mapping lock of a registration. An
/// acquire holds the peer mutex and waits for the RM API lock. A deregistration has to put, for
/// which it needs the RM API lock. The task that has the umem mapping lock registers.
pub fn three_wait(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (_third, third_mr) = bench.registered(SIZE)?;
    let second = bench.cuda.alloc(SIZE)?;
    let host = vec![0u8; 64 * KIB];
    let memory = bench.cuda.alloc(SIZE)?;
    let stop = Stop::core("before_activate")?;
    let holder = reg_beside(&bench, memory.va());
    stop.wait()?;
    let free = free_beside(&bench, memory);
    free.waits("the free")?;
    let acquire = reg_beside(&bench, second.va());
    acquire.waits("the registration of other memory")?;
    let dereg = dereg_beside(third_mr);
    dereg.waits("the deregistration of other memory")?;
    // Ordinary memory needs none of these locks.
    bench.reg(host.as_ptr() as u64, host.len()).context("ordinary memory")?.dereg()?;
    stop.release()?;
    drop(holder.finish("the registration that held the lock")?);
    free.finish("the free")?;
    dereg.finish("the deregistration of other memory")?;
    acquire.finish("the registration of other memory")?.context("ibv_reg_mr")?.dereg()?;
    no_pins("in the end")
}

/// A put is on its way when its pin is freed. The provider knows the pin only by its table's
/// address, so no pin of ours may get that address before the put is over.
pub fn no_new_pin_before_a_stale_put(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    gpu::lab()?.set("key_reuse", 1)?;
    let second = bench.cuda.alloc(SIZE)?;
    let (memory, mr) = bench.registered(SIZE)?;
    let stop = Stop::gpu("put_before")?;
    let dereg = dereg_beside(mr);
    stop.wait()?;
    free_beside(&bench, memory).finish("the free")?;
    let reg = reg_beside(&bench, second.va());
    reg.waits("a registration beside a put")?;
    stop.release()?;
    dereg.finish("ibv_dereg_mr")?;
    let mr = reg.finish("ibv_reg_mr")??;
    ensure!(gpu::pins()? == 1, "the stale put took the new pin: {} pins", gpu::pins()?);
    mr.dereg()?;
    no_pins("in the end")
}
