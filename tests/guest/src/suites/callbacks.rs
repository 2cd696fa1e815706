// SPDX-License-Identifier: GPL-2.0
//! Tests the order in which the core calls us, and how often we call the provider.

use anyhow::{ensure, Context, Result};
use serde_json::json;

use super::scenarios::beside::{free_beside, reg_beside, Stop};
use super::scenarios::process::dereg_in_fork;
use crate::common::{expect_errno, page, Bench, KIB, MIB};
use crate::gpu;
use crate::lab::{self, DmaFail, Event};
use crate::machine::Mode;
use crate::test::{emit, in_modes, Env, NvidiaC, Suite};

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];

const REGISTER: [&str; 4] = ["acquire", "get_pages", "dma_map", "get_page_size"];
const DEREGISTER: [&str; 3] = ["dma_unmap", "put_pages", "release"];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in BOTH {
        for (name, means, run) in [
            ("each_callback_once_in_order", NvidiaC::Same, each_callback_once_in_order as fn(&Env) -> Result<()>),
            ("a_failed_mapping_is_undone", NvidiaC::Recorded, a_failed_mapping_is_undone),
            ("pins_once", NvidiaC::Recorded, pins_once),
            ("callbacks_name_the_range_asked_for", NvidiaC::Recorded, callbacks_name_the_range_asked_for),
        ] {
            tests.extend(in_modes(nvidia_c, &[mode], name, run).into_iter().map(|t| t.nvidia_c(means)));
        }
    }
    // NVIDIA's module goes on using what its callback gave back.
    tests.extend(
        in_modes(nvidia_c, &[Mode::Legacy], "revocation_order", revocation_order)
            .into_iter()
            .map(|t| t.nvidia_c(NvidiaC::Recorded)),
    );
    if !nvidia_c {
        // NVIDIA's module leaves no orphans.
        tests.extend(in_modes(nvidia_c, &[Mode::Legacy], "orphans_are_reaped_in_part", orphans_are_reaped_in_part));
    }
    tests.extend(
        in_modes(nvidia_c, &[Mode::Legacy], "many_freed_at_once", many_freed_at_once)
            .into_iter()
            .map(|t| t.nvidia_c(NvidiaC::Recorded)),
    );
    // A persistent pin outlives its memory, and get_pages does not fail.
    tests.extend(
        in_modes(
            nvidia_c,
            &[Mode::Legacy],
            "memory_gone_before_get_pages_is_refused",
            memory_gone_before_get_pages_is_refused,
        )
        .into_iter()
        .map(|t| t.nvidia_c(NvidiaC::Recorded)),
    );
    Suite { name: "callbacks", tests }
}

/// A registration ends at most eight orphans of its process, because all registrations of the
/// machine wait for it. A deregistration, for which nobody waits, ends the rest.
fn orphans_are_reaped_in_part(_: &Env) -> Result<()> {
    const ORPHANS: usize = 16;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    // Each has 64 KiB of its own, because many mappings of one place alarm the DMA API's own
    // checks.
    let reg = |i: usize| bench.reg(memory.va() + (i * 64 * KIB) as u64, 64 * KIB);
    // Register all before the first becomes an orphan, because each registration would end some.
    let mrs = (0..ORPHANS).map(reg).collect::<std::io::Result<Vec<_>>>()?;
    for mr in mrs {
        dereg_in_fork(mr)?;
    }
    ensure!(gpu::pins()? == 16, "{} pins, wanted {ORPHANS} orphans", gpu::pins()?);
    let mr = reg(0)?;
    ensure!(
        gpu::pins()? == 16 - 8 + 1,
        "{} pins after a registration beside {ORPHANS} orphans, wanted 9",
        gpu::pins()?
    );
    mr.dereg()?;
    ensure!(gpu::pins()? == 0, "{} pins after the deregistration", gpu::pins()?);
    Ok(())
}

/// One free takes back 512 registrations, one after the other. The NIC is stopped for each, and
/// meanwhile no other process gets anything from any GPU. The test records how long that takes.
fn many_freed_at_once(_: &Env) -> Result<()> {
    const MANY: u64 = 512;
    /// The time that the NIC takes to stop. It is a guess, because no NIC in the field was
    /// measured.
    const FENCE_US: u64 = 20;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MANY as usize * 64 * KIB)?;
    let place = |n: u64| memory.va() + n * (64 * KIB) as u64;
    let mrs = (0..MANY).map(|n| bench.reg(place(n), 64 * KIB)).collect::<std::io::Result<Vec<_>>>()?;
    lab::set_nic("fence_us", FENCE_US)?;
    let (fences, killed) = (lab::nic_stat("fences")?, lab::nic_stat("mrs_killed")?);
    let held_before = gpu::accounting()?.get("api_lock_held_ns");
    memory.free()?;
    let held_ns = gpu::accounting()?.get("api_lock_held_ns") - held_before;
    let (fences, killed) = (lab::nic_stat("fences")? - fences, lab::nic_stat("mrs_killed")? - killed);
    ensure!((fences, killed) == (MANY, MANY), "{fences} fences, {killed} MRs stopped, wanted {MANY}");
    ensure!(gpu::pins()? == 0, "{} pins after the free", gpu::pins()?);
    let least = i64::try_from(MANY * FENCE_US * 1000)?;
    ensure!(held_ns >= least, "the RM API lock was held for {held_ns} ns, and the fences alone took {least}");
    emit("many_freed_at_once", &json!({ "registrations": MANY, "fence_us": FENCE_US, "api_lock_held_ns": held_ns }));
    println!("the RM API lock was held for {} us", held_ns / 1000);
    lab::set_nic("fence_us", 0)?;
    for mr in mrs {
        mr.dereg()?;
    }
    Ok(())
}

/// Returns the client's callbacks, without the core's own events.
fn callbacks(events: &[Event]) -> Vec<&str> {
    events.iter().map(|e| e.callback.as_str()).filter(|c| REGISTER.contains(c) || DEREGISTER.contains(c)).collect()
}

fn each_callback_once_in_order(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    lab::clear_trace()?;
    let mr = bench.reg(memory.va(), MIB)?;
    let registered = lab::trace()?;
    lab::clear_trace()?;
    mr.dereg()?;
    let deregistered = lab::trace()?;
    for e in registered.iter().chain(&deregistered) {
        println!("{:>3} {:<13} {:<9} ret={} nents={} {} ns", e.seq, e.callback, e.client, e.ret, e.nents, e.ns);
    }
    ensure!(callbacks(&registered) == REGISTER, "register: {:?}, wanted {REGISTER:?}", callbacks(&registered));
    ensure!(
        callbacks(&deregistered) == DEREGISTER,
        "deregister: {:?}, wanted {DEREGISTER:?}",
        callbacks(&deregistered)
    );
    let all = || registered.iter().chain(&deregistered);
    ensure!(all().all(|e| e.client == "nv_mem"), "another client than nv_mem was called");
    let asked = registered.first().context("empty trace")?;
    ensure!(asked.ret > 0, "acquire said {}, wanted more than 0 (\"mine\")", asked.ret);
    ensure!(
        all().filter(|e| ["get_pages", "dma_map", "dma_unmap"].contains(&e.callback.as_str())).all(|e| e.ret == 0),
        "a callback failed"
    );
    // The notifier is armed only for a client that can stop the NIC, and only after everything is
    // mapped.
    let place = |events: &[Event], name: &str| events.iter().position(|e| e.callback == name);
    if env.mode()? == Mode::Legacy {
        let armed = place(&registered, "activate").context("the notifier was never armed")?;
        ensure!(Some(armed) > place(&registered, "dma_map"), "the notifier was armed before dma_map");
        let stopped = place(&deregistered, "stop").context("the notifier was never stopped")?;
        ensure!(Some(stopped) < place(&deregistered, "dma_unmap"), "dma_unmap came before the notifier's stop");
    }
    Ok(())
}

/// Memory is freed while it is registered (docs/facts.md#invalidate). The core fences and leaves
/// the rest to the client. `release` comes with the deregistration.
fn revocation_order(_: &Env) -> Result<()> {
    freed_while_registered(&Bench::new()?, &["invalidate", "fence"])
}

/// Checks what the core does when registered memory is freed, and then at the deregistration.
pub fn freed_while_registered(bench: &Bench, at_the_free: &[&str]) -> Result<()> {
    let (memory, mr) = bench.registered(MIB)?;
    lab::clear_trace()?;
    memory.free()?;
    let freed = lab::trace()?;
    lab::clear_trace()?;
    mr.dereg()?;
    let deregistered = lab::trace()?;
    let names = |events: &[Event]| events.iter().map(|e| e.callback.clone()).collect::<Vec<_>>();
    ensure!(names(&freed) == at_the_free, "the free: {:?}, wanted {at_the_free:?}", names(&freed));
    let wanted = ["stop", "release"];
    ensure!(names(&deregistered) == wanted, "the deregistration: {:?}, wanted {wanted:?}", names(&deregistered));
    Ok(())
}

/// If dma_map fails, the core calls put_pages without dma_unmap, and then release. Nothing may stay
/// behind.
fn a_failed_mapping_is_undone(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    // A module that was just loaded first asks the provider about the pair of GPU and NIC.
    bench.reg(memory.va(), MIB).context("nothing fails yet")?.dereg()?;
    // Our module maps by itself. NVIDIA's maps through the provider, which has a switch for
    // failures.
    let fail = DmaFail::load()?;
    if env.nvidia_c {
        gpu::lab()?.fault("map_errno", libc::EIO as u64)?;
    } else {
        fail.set(1)?;
    }
    lab::clear_trace()?;
    let refused = bench.refused("dma_map must fail", memory.va(), MIB);
    gpu::lab()?.reset_faults()?;
    expect_errno("dma_map fails", refused?, libc::EIO)?;
    let events = lab::trace()?;
    let wanted = ["acquire", "get_pages", "dma_map", "put_pages", "release"];
    ensure!(callbacks(&events) == wanted, "{:?}, wanted {wanted:?}", callbacks(&events));
    for e in &events {
        let right = match e.callback.as_str() {
            "acquire" => e.ret > 0,
            "get_pages" => e.ret == 0,
            "dma_map" => e.ret == -i64::from(libc::EIO),
            _ => true,
        };
        ensure!(right, "{} said {}", e.callback, e.ret);
    }
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// The memory is freed between acquire and get_pages. The core calls release, and nothing that
/// would undo what get_pages did not do (docs/facts.md#calls).
fn memory_gone_before_get_pages_is_refused(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    lab::clear_trace()?;
    let stop = Stop::core("before_get_pages")?;
    let reg = reg_beside(&bench, memory.va());
    stop.wait()?;
    free_beside(&bench, memory).finish("the free")?;
    stop.release()?;
    ensure!(reg.finish("the registration")?.is_err(), "memory that is gone was registered");
    let events = lab::trace()?;
    let wanted = ["acquire", "get_pages", "release"];
    ensure!(callbacks(&events) == wanted, "{:?}, wanted {wanted:?}", callbacks(&events));
    ensure!(events.iter().any(|e| e.callback == "get_pages" && e.ret < 0), "get_pages did not fail");
    ensure!(gpu::pins()? == 0, "{} pins left", gpu::pins()?);
    Ok(())
}

/// A registration causes one pin and one unpin.
fn pins_once(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    // A module that was just loaded first asks the provider about the pair of GPU and NIC.
    bench.reg(memory.va(), MIB)?.dereg()?;
    let gpu = gpu::lab()?;
    gpu.reset_accounting()?;
    bench.reg(memory.va(), MIB)?.dereg()?;
    let accounting = gpu.accounting()?;
    let names = ["gets", "puts", "persistent_gets", "persistent_puts", "dma_maps", "dma_unmaps"];
    let calls: Vec<(&str, i64)> = names.iter().map(|n| (*n, accounting.get(n))).collect();
    emit("provider_calls", &json!({"mode": env.mode()?.name(), "nvidia_c": env.nvidia_c, "calls": calls}));
    let wanted: [i64; 6] = match env.mode()? {
        Mode::Persistent => [0, 0, 1, 1, 0, 0],
        _ => [1, 1, 0, 0, 0, 0],
    };
    let got: Vec<i64> = calls.iter().map(|c| c.1).collect();
    ensure!(got == wanted, "{names:?}: {got:?}, wanted {wanted:?}");
    Ok(())
}

/// Every callback of a registration is about the range that the user named.
fn callbacks_name_the_range_asked_for(_: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(MIB)?;
    let (va, len) = (memory.va() + 12_345, 400_001);
    lab::clear_trace()?;
    bench.reg(va, len)?.dereg()?;
    for e in lab::trace()? {
        if ["acquire", "get_pages"].contains(&e.callback.as_str()) {
            ensure!((e.address, e.size) == (va, len as u64), "{} of {:#x}+{}", e.callback, e.address, e.size);
        }
        if e.callback == "dma_map" {
            ensure!(e.nents == 1, "{} sg entries for contiguous memory", e.nents);
        }
        if e.callback == "get_page_size" {
            ensure!(e.ret == page() as i64, "get_page_size says {}, wanted {}", e.ret, page());
        }
    }
    Ok(())
}
