// SPDX-License-Identifier: GPL-2.0
//! Tests a NIC that is removed, or runs out of keys.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::beside::{free_beside, nic_state, no_pins, reg_beside, Beside, Stop, A_WHILE, SIZE};
use crate::common::{expect_errno, Bench};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::lab;
use crate::machine::{load_rdma, Mode, RDMA_DEVICE};
use crate::modules::{self, PEERMEM};
use crate::peermem;
use crate::test::Env;

fn remove() -> Result<Beside<()>> {
    let mut rdma = Command::new("rdma");
    rdma.args(["link", "delete", RDMA_DEVICE]);
    Beside::program(rdma)
}

fn users() -> Result<i32> {
    modules::use_count(PEERMEM)?.context("nvidia_peermem is not loaded")
}

/// The task that removes the NIC deregisters for everybody. A revocable pin then waits for its
/// owner.
pub fn removed(env: &Env) -> Result<()> {
    let orphans = i64::from(env.mode()? != Mode::Persistent);
    for ended_by in ["the free", "the next registration"] {
        println!("ended by {ended_by}");
        let bench = Bench::new()?;
        let (memory, mr) = bench.registered(SIZE)?;
        remove()?.finish("the NIC's removal")?;
        ensure!(gpu::pins()? == orphans, "{} pins after the removal, wanted {orphans}", gpu::pins()?);
        ensure!(i64::from(users()?) == orphans, "{} users after the removal, wanted {orphans}", users()?);
        // The library decides what this returns. The kernel has deregistered it already.
        let _ = mr.dereg();
        if ended_by == "the free" {
            memory.free()?;
            drop(bench);
            load_rdma()?;
        } else {
            let Bench { pd, cuda } = bench;
            drop(pd);
            load_rdma()?;
            let bench = Bench { pd: Bench::new()?.pd, cuda };
            bench.reg(memory.va(), SIZE)?.dereg()?;
        }
        no_pins(ended_by)?;
        ensure!(users()? == 0, "{ended_by}: {} users", users()?);
    }
    Ok(())
}

/// The NIC is removed while the callback stands in the core. The removal waits, and neither touches
/// what the other took.
pub fn removed_during_callback(env: &Env) -> Result<()> {
    for point in ["invalidate_entry", "invalidate_found", "invalidate_fence", "in_dma_unmap"] {
        if env.nvidia_c && point == "in_dma_unmap" {
            continue;
        }
        let stop = Stop::core(point)?;
        let bench = Bench::new()?;
        let (memory, mr) = bench.registered(SIZE)?;
        let free = free_beside(&bench, memory);
        stop.wait()?;
        let removal = remove()?;
        if env.nvidia_c {
            // No rule says whether NVIDIA's module waits here.
            let early = removal.ended(A_WHILE);
            stop.release()?;
            early.unwrap_or_else(|| removal.finish("the NIC's removal"))?;
        } else {
            removal.waits("the NIC's removal")?;
            stop.release()?;
            removal.finish("the NIC's removal")?;
        }
        free.finish("the free")?;
        no_pins("after both")?;
        let _ = mr.dereg();
        drop(bench);
        load_rdma()?;
    }
    Ok(())
}

/// The NIC cannot be stopped for a deregistration. The deregistration fails, and MR, pin and module
/// stay until somebody tries again.
pub fn fence_fails_in_dereg(_: &Env) -> Result<()> {
    for between in ["nothing", "a free"] {
        let bench = Bench::new()?;
        let (memory, mr) = bench.registered(SIZE)?;
        lab::set_nic("fence_fail", 1)?;
        let (mr, error) = mr.try_dereg().err().context("it was deregistered although the fence failed")?;
        expect_errno("ibv_dereg_mr", error.raw_os_error().context("an errno")?, libc::EIO)?;
        ensure!(nic_state(&mr)?.as_deref() == Some("fence_failed"), "the MR is {:?}", nic_state(&mr)?);
        ensure!(gpu::pins()? == 1, "{} pins beside the MR that is left", gpu::pins()?);
        ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod went through with an MR left");
        if between == "a free" {
            memory.free()?;
        }
        mr.dereg().with_context(|| format!("the second ibv_dereg_mr, after {between}"))?;
        no_pins(between)?;
        ensure!(users()? == 0, "{between}: {} users", users()?);
    }
    Ok(())
}

/// The NIC is stopped, but then its key cannot be destroyed. The deregistration fails, the memory
/// stays with the registration, and `registrations` shows the reason. A second try ends it, and so
/// does the NIC's removal.
pub fn key_not_destroyed(env: &Env) -> Result<()> {
    let legacy = env.mode()? == Mode::Legacy;
    for between in ["nothing", "a free", "the NIC's removal"] {
        let bench = Bench::new()?;
        let (memory, mr) = bench.registered(SIZE)?;
        lab::set_nic("destroy_fail", 1)?;
        let (mr, error) = mr.try_dereg().err().context("it was deregistered although the key is left")?;
        expect_errno("ibv_dereg_mr", error.raw_os_error().context("an errno")?, libc::EIO)?;
        listed_as("key_not_destroyed", SIZE)?;
        ensure!(gpu::pins()? == 1, "{} pins beside the key that is left", gpu::pins()?);
        ensure!(!modules::try_rmmod(PEERMEM)?.ok, "rmmod went through with a key left");
        match between {
            "a free" => {
                memory.free()?;
                // The driver has taken a revocable pin back. A persistent one keeps the memory.
                match legacy {
                    true => listed_as("revoked", 0)?,
                    false => listed_as("key_not_destroyed", SIZE)?,
                }
                mr.dereg().context("the second ibv_dereg_mr, after a free")?;
            }
            "the NIC's removal" => {
                remove()?.finish("the NIC's removal")?;
                // The kernel has deregistered it already.
                let _ = mr.dereg();
                // Only its owner may put a revocable pin.
                ensure!(gpu::pins()? == i64::from(legacy), "{} pins after the NIC's removal", gpu::pins()?);
                memory.free()?;
                drop(bench);
                load_rdma()?;
            }
            _ => mr.dereg().context("the second ibv_dereg_mr")?,
        }
        no_pins(between)?;
        ensure!(users()? == 0, "{between}: {} users", users()?);
    }
    Ok(())
}

/// Checks that the one registration is shown in this state, and with this many bytes pinned.
fn listed_as(state: &str, bytes: usize) -> Result<()> {
    let rows = peermem::rows("registrations")?;
    let said: Vec<_> = rows.iter().map(|row| (row.text("state"), row.number("pinned_bytes"))).collect();
    ensure!(said == [(Some(state), Some(bytes as u64))], "registrations: {said:?}, wanted {state} and {bytes} bytes");
    Ok(())
}

/// No key is left after everything was mapped, so all of it is undone.
pub fn no_key(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    lab::set_nic("fail_mkey", 1)?;
    expect_errno("no mkey", bench.refused("no mkey", memory.va(), SIZE)?, libc::ENOMEM)?;
    no_pins("after the failure")?;
    ensure!(users()? == 0, "lsmod counts {}", users()?);
    bench.reg(memory.va(), SIZE)?.dereg()?;
    if env.mode()? == Mode::Legacy {
        no_key_beside_a_free(env, &bench, memory)?;
    }
    Ok(())
}

/// Forces a registration to end after a callback has found its umem. The core then forgets the umem's
/// client, and the callback reads it.
fn no_key_beside_a_free(env: &Env, bench: &Bench, memory: DeviceMemory) -> Result<()> {
    lab::set_nic("fail_mkey", 1)?;
    let ending = Stop::core("before_stop")?;
    let reg = reg_beside(bench, memory.va());
    ending.wait()?;
    let found = Stop::core("invalidate_found")?;
    let free = free_beside(bench, memory);
    found.wait()?;
    ending.release()?;
    if !env.nvidia_c {
        reg.waits("ibv_reg_mr without a key")?;
    }
    found.release()?;
    free.finish("the free")?;
    let failed = reg.finish("ibv_reg_mr without a key")?.err().context("it was registered without a key")?;
    expect_errno("no mkey", failed.raw_os_error().context("an errno")?, libc::ENOMEM)?;
    no_pins("after both")
}
