// SPDX-License-Identifier: GPL-2.0
//! Tests what happens after the memory is gone: the next owner has it, while the first one and its
//! peer go on as if nothing had happened.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::beside::{Beside, SIZE};
use crate::common::{Bench, KIB};
use crate::gpu;
use crate::helper::Helper;
use crate::machine::{wait_for, Mode};
use crate::modules;
use crate::test::Env;
use crate::verbs::{Endpoint, Loopback, Mr, Pd, Status, PATIENCE};

const PIECE: usize = 64 * KIB;
/// The number of requests of one attempt, unless one of them fails.
const REQUESTS: u64 = 8;

/// Makes the peer write to `target` through queues of its own. Returns how many writes succeeded.
fn remote_writes(pd: &Arc<Pd>, peer: &mut Helper, target: &Mr) -> Result<u64> {
    let theirs = peer.number("endpoint")?;
    let here = Endpoint::new(pd)?;
    here.connect(u32::try_from(theirs)?)?;
    let (number, addr, rkey) = (here.number(), target.addr(), target.rkey());
    let said = peer.ask(&format!("write {number} {addr} {rkey} {PIECE} {REQUESTS}"))?;
    let (good, _) = said.split_once(' ').with_context(|| format!("a stream ended with {said:?}"))?;
    Ok(good.parse()?)
}

/// Reads from `from` into `into`, so that the NIC writes locally. Returns how many reads succeeded.
fn local_reads(pd: &Arc<Pd>, from: &Arc<Mr>, into: &Arc<Mr>) -> Result<u64> {
    let link = Loopback::new(pd)?;
    for good in 0..REQUESTS {
        link.read(good, (into, 0), (from, 0), PIECE)?;
        if link.wait(PATIENCE)?.status != Status::IBV_WC_SUCCESS {
            return Ok(good);
        }
    }
    Ok(REQUESTS)
}

/// A thread that posts without end.
struct Poster {
    over: Arc<AtomicBool>,
    attempts: Arc<AtomicU64>,
    ends: Beside<Tally>,
}

/// The successful requests, by the time at which they were tried.
#[derive(Default)]
struct Tally {
    before: u64,
    /// The number of attempts that began after the free had returned, and of their successful
    /// requests.
    attempts_after: u64,
    after: u64,
}

impl Poster {
    /// Starts the thread. `freed` says that the free has returned.
    fn start(freed: &Arc<AtomicBool>, mut attempt: impl FnMut() -> Result<u64> + Send + 'static) -> Self {
        let (over, attempts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count, freed) = (Arc::clone(&over), Arc::clone(&attempts), Arc::clone(freed));
        let ends = Beside::start(move || {
            let mut tally = Tally::default();
            while !stop.load(Ordering::SeqCst) {
                let after = freed.load(Ordering::SeqCst);
                let good = attempt()?;
                if after {
                    tally.attempts_after += 1;
                    tally.after += good;
                } else {
                    tally.before += good;
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(tally)
        });
        Self { over, attempts, ends }
    }

    /// Waits until it has begun an attempt after this call, and ended it.
    fn posts_again(&self, what: &str) -> Result<()> {
        let wanted = self.attempts.load(Ordering::SeqCst) + 2;
        wait_for(what, || self.attempts.load(Ordering::SeqCst) >= wanted).or_else(|slow| {
            self.ends.ended(Duration::ZERO).map_or(Err(slow), |end| match end {
                Ok(_) => bail!("{what}: over too early"),
                Err(e) => Err(e.context(what.to_string())),
            })
        })
    }

    fn finish(self, what: &str) -> Result<Tally> {
        self.over.store(true, Ordering::SeqCst);
        self.ends.finish(what)
    }
}

/// The freed range goes to another process at once, which fills it. The first process reads into it
/// and its peer writes to it, before, during and after, without a pause. With revocable pins, every
/// request posted after the free ends in an error. With persistent pins, the requests go on into
/// memory that is kept for them. Not one byte of the next owner's changes.
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
    let mut next = Helper::start(&["actor", "nic"])?;

    // Address and key are right, so a later failure can only mean that the memory is gone.
    let good = remote_writes(&bench.pd, &mut peer, &target_mr)?;
    ensure!(good == REQUESTS, "{good} of {REQUESTS} remote writes to live memory succeeded");
    let freed = Arc::new(AtomicBool::new(false));
    let (pd, to) = (Arc::clone(&bench.pd), Arc::clone(&target_mr));
    let remote = Poster::start(&freed, move || remote_writes(&pd, &mut peer, &to));
    let (pd, to) = (Arc::clone(&bench.pd), Arc::clone(&target_mr));
    let local = Poster::start(&freed, move || local_reads(&pd, &source_mr, &to));
    let both_post = || -> Result<()> {
        remote.posts_again("the peer's writes")?;
        local.posts_again("the process's own reads")
    };
    both_post()?;
    target.free()?;
    freed.store(true, Ordering::SeqCst);
    next.ask(&format!("alloc {SIZE}"))?;
    let theirs = next.number("place")?;
    ensure!((theirs == place) != persistent, "the next owner has {theirs:#x}, the first one had {place:#x}");
    next.ask(&format!("fill {SEED}"))?;
    let unspoilt = |next: &mut Helper| -> Result<()> {
        let spoilt = next.number(&format!("spoilt {SEED}"))?;
        ensure!(spoilt == 0, "{spoilt} bytes of the next owner's memory changed");
        Ok(())
    };
    for _ in 0..ROUNDS {
        both_post()?;
        unspoilt(&mut next)?;
    }
    for (what, poster) in [("the peer's writes", remote), ("the process's own reads", local)] {
        let Tally { before, attempts_after, after } = poster.finish(what)?;
        println!("{what}: {before} good before the free, {after} in {attempts_after} attempts after it");
        ensure!(before > 0, "{what}: none was good before the free");
        ensure!(attempts_after >= ROUNDS, "{what}: {attempts_after} attempts after the free");
        let wanted = if persistent { attempts_after * REQUESTS } else { 0 };
        ensure!(after == wanted, "{what}: {after} succeeded after the free, wanted {wanted}");
    }
    unspoilt(&mut next)
}
