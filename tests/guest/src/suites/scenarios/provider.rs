// SPDX-License-Identifier: GPL-2.0
//! Tests what the GPU's driver does that it should not, or that nobody expects.

use anyhow::{ensure, Context, Result};

use super::beside::{dereg_beside, free_beside, nic_state, no_pins, write_status, Stop, SIZE};
use super::process::{actor, wait_no_mr};
use crate::common::{errno_name, expect_errno, Bench, KIB};
use crate::gpu;
use crate::lab;
use crate::machine::{unload_devices, Mode};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::Env;
use crate::verbs::Status;

/// Returns our module's `late_callbacks`. NVIDIA's module has no such figure.
fn late_callbacks(env: &Env) -> Result<i64> {
    if env.nvidia_c {
        return Ok(0);
    }
    peermem::Stats::read()?.number("late_callbacks")
}

fn one_late(env: &Env, before: i64) -> Result<()> {
    let late = late_callbacks(env)? - before;
    ensure!(env.nvidia_c || late == 1, "{late} late callbacks were counted, wanted 1");
    Ok(())
}

/// The callback is called twice. The second call finds nothing to do.
pub fn callback_twice(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let before = late_callbacks(env)?;
    gpu::lab()?.fault_n("callback_double", 1, 1)?;
    memory.free()?;
    ensure!(gpu::accounting()?.get("callbacks") == 2, "{} callbacks", gpu::accounting()?.get("callbacks"));
    one_late(env, before)?;
    mr.dereg()?;
    no_pins("in the end")
}

/// The provider reports that the pin is put, but calls back all the same, long after the
/// registration has ended.
pub fn callback_late(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (memory, mr) = bench.registered(SIZE)?;
    let before = late_callbacks(env)?;
    gpu::lab()?.fault_n("put_forget", 1, 1)?;
    mr.dereg()?;
    memory.free()?;
    ensure!(gpu::accounting()?.get("callbacks") == 1, "{} callbacks", gpu::accounting()?.get("callbacks"));
    one_late(env, before)?;
    no_pins("in the end")
}

/// A GPU that is lost frees memory and calls nobody, although there is a registration and an
/// orphan. The orphan then ends with its owner's next registration.
pub fn callback_never_comes(env: &Env) -> Result<()> {
    // The provider gets back what it loses of its BAR when it is loaded anew.
    let users = |when: &str, wanted: i32| -> Result<()> {
        let users = modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded")?;
        ensure!(env.nvidia_c || users == wanted, "{when}: {users} users, wanted {wanted}");
        Ok(())
    };
    let mut owner = actor("nic")?;
    for orphan in [false, true] {
        println!("deregistered by {}", if orphan { "a kernel thread, before" } else { "its owner, after" });
        owner.ask("reg")?;
        if orphan {
            owner.ask("leave nic")?;
            wait_no_mr()?;
        }
        gpu::lab()?.fault_n("callback_none", 1, 1)?;
        owner.ask("free")?;
        ensure!(gpu::accounting()?.get("callbacks") == 0, "{} callbacks", gpu::accounting()?.get("callbacks"));
        users("after a free that nobody told of", 1)?;
        if orphan {
            owner.ask("open nic")?;
            owner.ask(&format!("alloc {SIZE}"))?;
            owner.ask("reg")?;
            users("while registered again", 1)?;
        }
        owner.ask("dereg")?;
        users("in the end", 0)?;
        no_pins("in the end")?;
        owner.ask(&format!("alloc {SIZE}"))?;
    }
    owner.finish()?;
    // The provider lost tables and a part of its BAR for good.
    unload_devices()
}

/// A put fails. A revocable pin is as it was: after a lack of memory, it stays until the owner's
/// next registration, and after another error until its memory is freed. A persistent pin is lost,
/// and no put of it is tried again, because the driver has given back its reference to the GPU, and
/// warns if it is given back twice.
pub fn put_fails(env: &Env) -> Result<()> {
    if env.mode()? == Mode::Persistent {
        return persistent_put_fails(env);
    }
    let bench = Bench::new()?;
    for errno in [libc::ENOMEM, libc::EIO] {
        let memory = bench.cuda.alloc(SIZE)?;
        let mr = bench.reg(memory.va(), SIZE)?;
        gpu::lab()?.fault_n("put_errno", errno as u64, 1)?;
        mr.dereg()?;
        expect_kept(&errno_name(errno), 1, 1)?;
        bench.reg(memory.va(), SIZE)?.dereg()?;
        let left = i32::from(errno != libc::ENOMEM);
        expect_kept("the owner's next registration", left.into(), left)?;
        memory.free()?;
        expect_kept("the free", 0, 0)?;
    }
    Ok(())
}

/// Tests the persistent case of [`put_fails`]. A lost pin stays until the driver shuts the GPU
/// down.
fn persistent_put_fails(env: &Env) -> Result<()> {
    let lost = || if env.nvidia_c { Ok(0) } else { peermem::Stats::read()?.number("total.lost") };
    let bench = Bench::new()?;
    for errno in [libc::ENOMEM, libc::EIO] {
        let memory = bench.cuda.alloc(SIZE)?;
        let mr = bench.reg(memory.va(), SIZE)?;
        let before = lost()?;
        gpu::lab()?.fault_n("persistent_put_errno", errno as u64, 1)?;
        mr.dereg()?;
        let name = errno_name(errno);
        expect_kept(&name, 1, 0)?;
        ensure!(env.nvidia_c || lost()? - before == 1, "{} pins are lost, {before} were before", lost()?);
        bench.reg(memory.va(), SIZE)?.dereg()?;
        memory.free()?;
        expect_kept("a registration and the free", 1, 0)?;
        gpu::lab()?.end_lost_pins()?;
        expect_kept("the GPU's shutdown", 0, 0)?;
    }
    Ok(())
}

/// Compares the pins, and who uses the module, with what is `wanted` after `event`.
fn expect_kept(event: &str, pins: i64, users: i32) -> Result<()> {
    let seen = (gpu::pins()?, modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded")?);
    ensure!(seen == (pins, users), "{} pins, {} users after {event}, wanted {pins} and {users}", seen.0, seen.1);
    Ok(())
}

/// Neither kind of pin is possible here, and the errno says so.
pub fn not_supported(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    // 524 is ENOTSUPP.
    gpu::lab()?.fault("get_errno", 524)?;
    if env.mode()? == Mode::Persistent {
        gpu::lab()?.fault("persistent_errno", 524)?;
    }
    let errno = bench.refused("without pins", memory.va(), SIZE)?;
    gpu::lab()?.reset_faults()?;
    expect_errno("without pins", errno, libc::EOPNOTSUPP)?;
    no_pins("after the refusal")
}

/// The provider has no memory to find out whose address it is. The user gets the answer for
/// ordinary memory, and the core asks the client after ours.
pub fn no_memory_for_a_host_range(_: &Env) -> Result<()> {
    let asked = || -> Result<u64> { lab::second_client_asked() };
    let bench = Bench::new()?;
    modules::modprobe("lab_second_client", &[])?;
    let before = asked()?;
    gpu::lab()?.fault("get_nomem", 1)?;
    let errno = bench.refused("a bad host address", 0x7000_dead_0000, 256 * KIB);
    gpu::lab()?.reset_faults()?;
    let after = asked()?;
    modules::rmmod("lab_second_client")?;
    expect_errno("a bad host address", errno?, libc::EFAULT)?;
    ensure!(after == before + 1, "the client behind ours was asked {} times", after - before);
    Ok(())
}

/// Memory with a persistent and a revocable pin is freed. Either may be deregistered first.
pub fn both_kinds(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let (_source, source_mr) = bench.registered(SIZE)?;
    for persistent_first in [true, false] {
        let memory = bench.cuda.alloc(SIZE)?;
        let persistent_mode = env.mode()? != Mode::Legacy;
        let kept = if persistent_mode {
            bench.reg(memory.va(), SIZE)?
        } else {
            // The NIC behaves as for a queue: nobody could stop it, so the pin must stay.
            lab::set_nic("no_invalidation", 1)?;
            bench.reg(memory.va(), SIZE).context("register without invalidation")?
        };
        if persistent_mode {
            gpu::lab()?.fault_n("persistent_errno", 524, 1)?;
        }
        let lost = bench.reg(memory.va(), SIZE)?;
        let accounting = gpu::accounting()?;
        let others = (i64::from(!persistent_mode), i64::from(persistent_mode));
        let kinds = (accounting.get("live_pins") - others.0, accounting.get("live_persistent") - others.1);
        ensure!(kinds == (1, 1), "{} revocable, {} persistent pins", kinds.0, kinds.1);
        memory.free()?;
        ensure!(nic_state(&kept)?.as_deref() == Some("live"), "the kept MR is {:?}", nic_state(&kept)?);
        ensure!(nic_state(&lost)?.as_deref() == Some("killed"), "the other MR is {:?}", nic_state(&lost)?);
        let status = write_status(&bench, &source_mr, &kept)?;
        ensure!(status == Status::IBV_WC_SUCCESS, "the kept MR does not work: {status:?}");
        let status = write_status(&bench, &source_mr, &lost)?;
        ensure!(status != Status::IBV_WC_SUCCESS, "the MR over freed memory works");
        if persistent_first {
            kept.dereg()?;
            lost.dereg()?;
        } else {
            lost.dereg()?;
            kept.dereg()?;
        }
        ensure!(gpu::pins()? == 1, "{} pins, wanted the source's", gpu::pins()?);
    }
    Ok(())
}

/// Another user of the provider in the same process gets the address that a freed table of ours
/// had.
pub fn table_goes_to_another_user(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    modules::modprobe("nvlab_gdr", &[])?;
    gpu::lab()?.set("key_reuse", 1)?;
    let gdr = nvlab::Gdr::open()?;
    let other = bench.cuda.alloc(SIZE)?;
    let table = |va: u64| -> Result<u64> {
        let lines = gpu::lab()?.pins()?;
        Ok(lines.iter().find(|p| p.va == va).context("no such pin")?.table)
    };

    let (memory, mr) = bench.registered(SIZE)?;
    let ours = table(memory.va())?;
    memory.free()?;
    let pin = gdr.pin(other.va(), SIZE as u64, nvlab::Kind::Revocable)?;
    ensure!(pin.table == ours, "the other user's table is at {:#x}, ours was at {ours:#x}", pin.table);
    mr.dereg()?;
    ensure!(gpu::pins()? == 1, "the deregistration took the other user's pin");
    pin.unpin()?;
    no_pins("after the other user")?;

    println!("the other user gets it while our put is on its way: the provider cannot tell them apart");
    let (memory, mr) = bench.registered(SIZE)?;
    let stop = Stop::gpu("put_before")?;
    let dereg = dereg_beside(mr);
    stop.wait()?;
    free_beside(&bench, memory).finish("the free")?;
    let pin = gdr.pin(other.va(), SIZE as u64, nvlab::Kind::Revocable)?;
    stop.release()?;
    dereg.finish("ibv_dereg_mr")?;
    println!("the other user has {} of its 1 pin left", gpu::pins()?);
    pin.unpin()?;
    no_pins("in the end")
}
