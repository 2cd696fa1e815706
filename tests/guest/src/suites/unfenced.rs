// SPDX-License-Identifier: GPL-2.0
//! Tests GPU memory under an object that the NIC cannot fence, such as a queue or a DevX umem. For
//! these, the core asks only clients whose memory never goes away by itself
//! (docs/facts.md#nic-drivers). rxe's queues are kernel memory, so the lab's NIC asks for an MR in
//! that way (`no_invalidation`).

use anyhow::{ensure, Result};

use crate::common::{expect_errno, pattern, same_bytes, Bench, KIB, MIB};
use crate::gpu;
use crate::lab;
use crate::machine::Mode;
use crate::peermem;
use crate::test::{in_modes, Env, NvidiaC, Suite};
use crate::verbs::Loopback;

const SIZE: usize = MIB;
const ALL: [Mode; 3] = [Mode::Persistent, Mode::Fallback, Mode::Legacy];

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    for mode in ALL {
        tests.extend(in_modes(
            nvidia_c,
            &[mode],
            "is_served_until_the_queue_is_destroyed",
            is_served_until_the_queue_is_destroyed,
        ));
        for (name, run) in [
            ("is_refused_with_a_reason", is_refused_with_a_reason as fn(&Env) -> Result<()>),
            ("host_memory_is_left_alone", host_memory_is_left_alone),
        ] {
            let tested = in_modes(nvidia_c, &[mode], name, run);
            tests.extend(tested.into_iter().map(|t| t.nvidia_c(NvidiaC::Recorded)));
        }
    }
    Suite { name: "unfenced", tests }
}

/// Returns the clients that were asked, in order.
fn asked() -> Result<Vec<String>> {
    Ok(lab::trace()?.into_iter().filter(|e| e.callback == "acquire").map(|e| e.client).collect())
}

/// The persistent client serves it in every mode. The memory outlives its free, and the object can
/// be used until it is destroyed.
fn is_served_until_the_queue_is_destroyed(env: &Env) -> Result<()> {
    let owner = match env.mode()? {
        Mode::Persistent | Mode::Fallback => "nv_mem",
        Mode::Legacy => "nv_mem_nc",
    };
    let mut rng = env.rng()?;
    let bench = Bench::new()?;
    let link = Loopback::new(&bench.pd)?;
    let (source, source_mr) = bench.registered(SIZE)?;
    let memory = bench.cuda.alloc(SIZE)?;
    lab::clear_trace()?;
    lab::set_nic("no_invalidation", 1)?;
    let mr = bench.reg(memory.va(), SIZE)?;
    ensure!(asked()? == [owner], "asked: {:?}, wanted {owner} alone", asked()?);
    ensure!(lab::last_owner()? == owner, "{} serves it, wanted {owner}", lab::last_owner()?);
    let bytes = pattern(&mut rng, SIZE);
    source.write(0, &bytes)?;
    link.write(1, (&source_mr, 0), (&mr, 0), SIZE)?;
    link.done(1)?;
    same_bytes("written", &memory.read(0, SIZE)?, &bytes)?;
    if !env.nvidia_c {
        // The CPU has no page behind a BAR, but NVIDIA's module lets the kernel look for one.
        let read = lab::set_nic("copy_from", mr.lkey().into()).expect_err("the kernel read a queue in GPU memory");
        let errno = read.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        expect_errno("a queue that the kernel reads", errno.unwrap_or(0), libc::EINVAL)?;
    }

    let callbacks = gpu::accounting()?.get("callbacks");
    memory.free()?;
    ensure!(gpu::accounting()?.get("callbacks") == callbacks, "a pin that nobody can fence was taken back");
    link.read(2, (&source_mr, 0), (&mr, 0), SIZE)?;
    link.done(2)?;
    same_bytes("read after the free", &source.read(0, SIZE)?, &bytes)?;
    lab::clear_trace()?;
    mr.dereg()?;
    // Without a notifier, there is nothing to stop.
    let events = lab::trace()?;
    let names: Vec<&str> = events.iter().map(|e| e.callback.as_str()).collect();
    ensure!(names == ["dma_unmap", "put_pages", "release"], "the end: {names:?}");
    Ok(())
}

/// Where the platform refuses persistent pins, only a revocable client could serve, and errno and
/// reason say so. An MR of the same memory works if there is such a client.
fn is_refused_with_a_reason(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(SIZE)?;
    gpu::lab()?.fault("persistent_errno", 524)?;
    lab::clear_trace()?;
    lab::set_nic("no_invalidation", 1)?;
    let errno = bench.refused("without persistent pins", memory.va(), SIZE)?;
    lab::set_nic("no_invalidation", 0)?;
    let (revocable, reason) = match env.mode()? {
        Mode::Persistent => (None, "not_persistent"),
        Mode::Fallback => (Some("nv_mem_rv"), "not_supported"),
        _ => (Some("nv_mem"), "not_supported"),
    };
    ensure!(
        !asked()?.iter().any(|c| Some(c.as_str()) == revocable),
        "{revocable:?} was asked for what it cannot serve"
    );
    expect_errno("without persistent pins", errno, libc::EOPNOTSUPP)?;
    let failure = peermem::last_failure()?;
    let said = failure.as_ref().map(|f| (f.pid, f.va, f.length, f.errno, f.reason.as_str()));
    let wanted = (std::process::id(), memory.va(), SIZE as u64, libc::EOPNOTSUPP, reason);
    ensure!(said == Some(wanted), "recorded as {failure:?}, wanted {wanted:?}");
    ensure!(gpu::pins()? == 0, "refused, but {} pins stay", gpu::pins()?);

    let Some(revocable) = revocable else {
        return expect_errno(
            "an MR without the fallback",
            bench.refused("an MR", memory.va(), SIZE)?,
            libc::EOPNOTSUPP,
        );
    };
    let mr = bench.reg(memory.va(), SIZE)?;
    ensure!(lab::last_owner()? == revocable, "{} serves the MR, wanted {revocable}", lab::last_owner()?);
    ensure!(peermem::last_failure()? == failure, "an MR that is served was recorded as a refusal");
    Ok(mr.dereg()?)
}

/// Memory that nobody knows costs one question to the provider and no line in the log, as for MRs.
fn host_memory_is_left_alone(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    // NVIDIA's module records none.
    let recorded = || if env.nvidia_c { Ok(None) } else { peermem::last_failure() };
    let failures = recorded()?;
    gpu::lab()?.reset_accounting()?;
    lab::set_nic("no_invalidation", 1)?;
    let errno = bench.refused("a bad host address", 0x7000_dead_0000, 4 * KIB)?;
    lab::set_nic("no_invalidation", 0)?;
    expect_errno("a bad host address", errno, libc::EFAULT)?;
    let (gets, puts) = gpu::provider_calls()?;
    ensure!((gets, puts) == (1, 0), "{gets} gets and {puts} puts for memory that is not ours");
    ensure!(recorded()? == failures, "a host address was recorded as a failure of ours");
    Ok(())
}
