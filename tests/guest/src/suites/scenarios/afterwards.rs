// SPDX-License-Identifier: GPL-2.0
//! After the memory is gone: its next owner, while the first one and its peer go on as if nothing had happened.

use std::sync::Arc;

use anyhow::{ensure, Context, Result};

use super::{Beside, A_WHILE, KIB, SIZE};
use crate::gpu;
use crate::helper::Helper;
use crate::machine::Mode;
use crate::modules;
use crate::suites::{Bench, PATIENCE};
use crate::test::Env;
use crate::verbs::{Endpoint, Loopback, Mr, Status};

/// More than is done before the free comes.
const ENDLESS: u64 = 4096;
const PIECE: usize = 64 * KIB;

/// Tells `peer` to write to `target` in a stream; the end of the connection that is here must outlive it.
fn stream(bench: &Bench, peer: &mut Helper, target: &Mr, times: u64) -> Result<Endpoint> {
    let theirs = peer.number("endpoint")?;
    let here = Endpoint::new(&bench.pd)?;
    here.connect(u32::try_from(theirs)?)?;
    peer.tell(&format!("write {} {} {} {PIECE} {times}", here.number(), target.addr(), target.rkey()))?;
    Ok(here)
}

/// How many writes of a stream succeeded, and how it ended.
fn ended(peer: &mut Helper) -> Result<(u64, String)> {
    let said = peer.answer()?;
    let (good, status) = said.split_once(' ').with_context(|| format!("a stream ended with {said:?}"))?;
    Ok((good.parse()?, status.to_string()))
}

/// Reads from `from` into `into` over and over, as long as it works: what the NIC writes locally.
fn reads(bench: &Bench, from: &Arc<Mr>, into: &Arc<Mr>, times: u64) -> Beside<(u64, Status)> {
    let (pd, from, into) = (Arc::clone(&bench.pd), Arc::clone(from), Arc::clone(into));
    Beside::start(move || {
        let link = Loopback::new(&pd)?;
        for good in 0..times {
            link.read(good, (&into, 0), (&from, 0), PIECE)?;
            let status = link.wait(PATIENCE)?.status;
            if status != Status::IBV_WC_SUCCESS {
                return Ok((good, status));
            }
        }
        Ok((times, Status::IBV_WC_SUCCESS))
    })
}

/// The freed range goes to another process at once, which fills it. The first process reads into it and its peer writes
/// to it, before, during and after: revocable, every request posted after the free ends in an error; persistent, they
/// go on into memory that is kept for them. Not one byte of the next owner's changes.
pub fn next_owner_is_safe(env: &Env) -> Result<()> {
    const ROUNDS: u64 = 5;
    const SEED: u64 = 0x5eed;
    let persistent = env.mode()? == Mode::Persistent;
    modules::modprobe("nvlab_gdr", &[])?;
    let bench = Bench::new()?;
    let (_source, source_mr) = bench.registered(SIZE)?;
    let (target, target_mr) = bench.registered(SIZE)?;
    let (source_mr, target_mr) = (Arc::new(source_mr), Arc::new(target_mr));
    let place = gpu::place(target.va())?;
    let mut peer = Helper::start(&["actor", "nic"])?;
    let mut second = Helper::start(&["actor", "nic"])?;
    let mut next = Helper::start(&["actor", "nic"])?;

    // Address and key are right: what fails later fails because the memory is gone.
    let first = stream(&bench, &mut peer, &target_mr, 4)?;
    let (good, status) = ended(&mut peer)?;
    ensure!(good == 4, "{good} of 4 remote writes to live memory succeeded: {status}");
    drop(first);
    let here = stream(&bench, &mut peer, &target_mr, ENDLESS)?;
    let local = reads(&bench, &source_mr, &target_mr, ENDLESS);
    ensure!(local.ended(A_WHILE).is_none(), "the local stream is over before the free");
    target.free()?;
    next.ask(&format!("alloc {SIZE}"))?;
    next.ask(&format!("fill {SEED}"))?;
    let theirs = next.number("place")?;
    ensure!((theirs == place) != persistent, "the next owner has {theirs:#x}, the first one had {place:#x}");
    if !persistent {
        let (good, status) = local.finish("the local stream")?;
        println!("{good} local reads before {status:?}");
        ensure!(status != Status::IBV_WC_SUCCESS, "the local stream never failed");
        let (good, status) = ended(&mut peer)?;
        println!("{good} remote writes before {status}");
        ensure!(status != "IBV_WC_SUCCESS", "the remote stream never failed");
    }
    // The old streams are dead, or go on; each new one is posted after the free.
    let (mut tried, mut succeeded) = (0, 0);
    for _ in 0..ROUNDS {
        // Persistent: the old stream goes on, so this is another peer's.
        let writer = if persistent { &mut second } else { &mut peer };
        let here = stream(&bench, writer, &target_mr, 4)?;
        let (good, _) = ended(writer)?;
        drop(here);
        succeeded += good;
        tried += 1;
        let (good, _) = reads(&bench, &source_mr, &target_mr, 4).finish("reads after the free")?;
        succeeded += good;
        tried += 1;
        let spoilt = next.number(&format!("spoilt {SEED}"))?;
        ensure!(spoilt == 0, "{spoilt} bytes of the next owner's memory changed");
    }
    if persistent {
        ensure!(succeeded == tried * 4, "{succeeded} of {} requests to kept memory succeeded", tried * 4);
        // Long before its end; the kernel ends what it has posted.
        peer.kill()?;
    } else {
        ensure!(succeeded == 0, "{succeeded} requests posted after the free succeeded");
    }
    drop(here);
    let spoilt = next.number(&format!("spoilt {SEED}"))?;
    ensure!(spoilt == 0, "{spoilt} bytes of the next owner's memory changed");
    Ok(())
}
