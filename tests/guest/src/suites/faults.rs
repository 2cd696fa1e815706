// SPDX-License-Identifier: GPL-2.0
//! Makes everything inside ibv_reg_mr() and ibv_dereg_mr() fail once, one after the other: each
//! allocation (of the RDMA core, the NIC, the provider and the module alike) and each call of the
//! provider, until a run passes without a failure. Each time, the errno must be right, nothing may
//! be left behind, and the next registration must work.

use std::io;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use crate::common::{errno_name, expect_errno, Bench, GPU_PAGE, KIB, MIB, STOP_TEST};
use crate::counters::settled;
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::inject::{self, Allocations, Calls, Hit, Memory, Sweep, Tally};
use crate::kmsg;
use crate::machine::{Generation, Mode};
use crate::modules::{self, PEERMEM};
use crate::peermem::{self, Stats};
use crate::test::{emit, in_modes, skip, Env, NvidiaC, Suite};
use crate::verbs::Mr;

const BOTH: [Mode; 2] = [Mode::Persistent, Mode::Legacy];
const PERSISTENT: &[Mode] = &[Mode::Persistent];
const FALLBACK: &[Mode] = &[Mode::Fallback];
const NVIDIA_C: NvidiaC = NvidiaC::Skip("each failure is judged by what our statistics say of it");
/// The time in which everything must settle when no process was killed.
const SOON: Duration = Duration::from_secs(5);
/// The kernel's ENOTSUPP, which has no name in user space.
const ENOTSUPP: i32 = 524;

pub fn suite(nvidia_c: bool) -> Suite {
    let mut tests = Vec::new();
    let mut add = |modes: &[Mode], limit: u64, name: &str, revocable: &[Mode], run: fn(&Env) -> Result<()>| {
        tests.extend(in_modes(nvidia_c, modes, name, run).into_iter().map(|t| {
            let hangs = t.level.mode().is_some_and(|mode| revocable.contains(&mode));
            let t = t.nvidia_c(NVIDIA_C).limit(limit);
            if hangs {
                t.not_on(Generation::V2410, STOP_TEST)
            } else {
                t
            }
        }));
    };
    // The modes in which an allocation may fail between the mapping and the mkey of a revocable
    // client. The provider's calls come before that.
    const LEGACY: &[Mode] = &[Mode::Legacy];
    const NEVER: &[Mode] = &[];
    add(PERSISTENT, 300, "calls_of_a_new_pair", NEVER, calls_of_a_new_pair);
    add(PERSISTENT, 900, "allocations_of_a_new_pair", NEVER, allocations_of_a_new_pair);
    add(&BOTH, 300, "allocations_contiguous", LEGACY, allocations_contiguous);
    add(&BOTH, 900, "allocations_fragmented", LEGACY, allocations_fragmented);
    add(PERSISTENT, 300, "allocations_coherent", NEVER, allocations_coherent);
    add(FALLBACK, 300, "allocations_of_the_fallback", FALLBACK, allocations_of_the_fallback);
    add(&BOTH, 300, "provider_calls", NEVER, provider_calls);
    add(PERSISTENT, 300, "calls_on_coherent_memory", NEVER, calls_on_coherent_memory);
    add(&BOTH, 300, "calls_of_a_long_range", NEVER, calls_of_a_long_range);
    add(FALLBACK, 300, "calls_of_the_fallback", NEVER, calls_of_the_fallback);
    add(&BOTH, 300, "provider_puts", NEVER, provider_puts);
    Suite { name: "faults", tests }
}

/// Loads the module anew, so that it forgets what it allocated and asked once.
fn load_anew(env: &Env) -> Result<()> {
    modules::rmmod(PEERMEM)?;
    modules::modprobe("nvidia-peermem", env.mode()?.parameters(env.nvidia_c))?;
    Ok(())
}

/// Registers, and returns the MR or the errno that the application saw.
fn register(bench: &Bench, memory: &DeviceMemory) -> Result<Result<Mr, i32>> {
    match bench.reg(memory.va(), memory.size()) {
        Ok(mr) => Ok(Ok(mr)),
        Err(e) => Ok(Err(e.raw_os_error().with_context(|| format!("ibv_reg_mr: {e} has no errno"))?)),
    }
}

/// Checks a registration that failed for lack of memory. The module has recorded whether the
/// provider or the module was refused memory. EFAULT is the core's answer if nobody claims the
/// memory, and it is right only if the module could not find out whose memory it is: either the
/// module had no memory for a registration, which comes before the first question, or there was
/// none for the question that follows a provider's ENOMEM. If everything fails from some place on,
/// the registration may survive a failure at that place and be ended by a failure in the core or
/// the NIC.
fn out_of_memory(errno: i32, hit: &Hit, memory: Memory, refused_before: i64) -> Result<()> {
    let recorded = match Stats::read()?.number("total.refused")? - refused_before {
        0 => None,
        1 => peermem::last_failure()?,
        n => bail!("{n} refusals were recorded for one registration"),
    };
    let ours = memory != Memory::Exhausted && ["nvidia", "nvidia_peermem"].contains(&hit.owner.as_str());
    let right = match (errno, &recorded) {
        (libc::ENOMEM, None) => !ours,
        (libc::ENOMEM, Some(f)) => f.errno == errno && ["no_memory", "out_of_bar"].contains(&f.reason.as_str()),
        // The provider could not duplicate the object, and reports that as EIO.
        (libc::EIO, Some(f)) => f.errno == errno && f.reason == "provider_fault" && hit.owner == "nvidia",
        (libc::EFAULT, Some(f)) if f.reason == "persistent_fault" => f.errno == errno && memory == Memory::Exhausted,
        (libc::EFAULT, Some(f)) => {
            f.errno == errno && f.reason == "unproven" && (hit.owner == "nvidia_peermem" || memory == Memory::Exhausted)
        }
        _ => false,
    };
    ensure!(right, "{}, recorded: {recorded:?}", errno_name(errno));
    Ok(())
}

/// Checks that everything is back where it was, and that memory can be registered as before.
fn as_before(bench: &Bench, memory: &DeviceMemory) -> Result<()> {
    settled(SOON)?;
    match register(bench, memory)? {
        Ok(mr) => mr.dereg().context("deregister again")?,
        Err(e) => bail!("the next registration: {}", errno_name(e)),
    }
    settled(SOON).context("after the next registration")
}

/// Makes one allocation after the other fail, in the registration and in the deregistration of
/// `memory`.
fn allocations(env: &Env, shape: &str, bench: &Bench, memory: &DeviceMemory) -> Result<()> {
    if !inject::available() {
        skip("this kernel has no fault injection");
        return Ok(());
    }
    // Allocations that the library or the RDMA stack makes only once do not belong to a
    // registration. The module's have a test of their own.
    as_before(bench, memory)?;
    for kind in [Memory::Objects, Memory::Pages, Memory::Exhausted] {
        let mut faults = Allocations::prepare(kind)?;
        let mut tally = Tally::default();
        for _ in 0..SWEEPS {
            let mut sweep = Sweep::new(env.values.contains_key("every_allocation"));
            while one_fails(&mut sweep, bench, memory, kind, &mut faults, &mut tally).with_context(|| kind.name())? {}
            if kind != Memory::Objects || too_few(&tally, shape).is_none() {
                break;
            }
        }
        report(env, shape, "ibv_reg_mr", kind, &tally)?;
        if let (Memory::Objects, Some(owner)) = (kind, too_few(&tally, shape)) {
            bail!("of {owner} failed in {SWEEPS} sweeps no more than {:?}: nothing was tested", tally.named(owner));
        }
        ensure!(tally.total() > 0, "no allocation of {} failed: nothing was tested", kind.name());
        let tally = deregistering(bench, memory, &mut faults).with_context(|| kind.name())?;
        report(env, shape, "ibv_dereg_mr", kind, &tally)?;
    }
    Ok(())
}

/// The number of sweeps. A place that one sweep missed is met by the next.
const SWEEPS: usize = 3;

/// Returns an owner of whose allocations too few have failed. (On longer tables, the sweep meets
/// one place of the NIC's, and a row that counts as the kernel's.)
fn too_few(tally: &Tally, shape: &str) -> Option<&'static str> {
    let (ours, provider, nic) = match shape {
        // The module's one place is a registration, which holds the one run and its scatterlist.
        "contiguous" => (1, 3, 2),
        // There is only one sweep, which may miss one place of the NIC's.
        NEW_PAIR => (2, 6, 1),
        _ => (4, 3, 1),
    };
    let least = [("nvidia_peermem", ours), ("nvidia", provider), ("rdma_rxe", nic)];
    least.into_iter().find_map(|(owner, least)| (tally.places(owner) < least).then_some(owner))
}

/// Makes one registration in which the sweep's next allocation fails. Returns whether there is
/// another one to try.
fn one_fails(
    sweep: &mut Sweep,
    bench: &Bench,
    memory: &DeviceMemory,
    kind: Memory,
    faults: &mut Allocations,
    tally: &mut Tally,
) -> Result<bool> {
    let refused = Stats::read()?.number("total.refused")?;
    let (result, hit) = faults.during(sweep.n, || register(bench, memory))?;
    let result = result?;
    match &hit {
        None => result.map_err(io::Error::from_raw_os_error).context("no allocation failed")?.dereg()?,
        Some(hit) => {
            tally.add(hit, result.is_ok());
            match result {
                // Memory could be registered, so it can be again.
                Ok(mr) => mr.dereg().context("dereg").and_then(|()| settled(SOON)),
                Err(errno) => out_of_memory(errno, hit, kind, refused).and_then(|()| as_before(bench, memory)),
            }
            .with_context(|| format!("allocation {} of ibv_reg_mr failed in {}", sweep.n, hit.place()))?;
        }
    }
    Ok(sweep.next(hit.as_ref()))
}

fn deregistering(bench: &Bench, memory: &DeviceMemory, faults: &mut Allocations) -> Result<Tally> {
    let mut tally = Tally::default();
    for n in 1.. {
        let mr = register(bench, memory)?.map_err(io::Error::from_raw_os_error).context("register")?;
        let (result, hit) = faults.during(n, || mr.try_dereg())?;
        let Some(hit) = hit else {
            result.map_err(|(_, e)| e).context("no allocation failed")?;
            break;
        };
        tally.add(&hit, result.is_ok());
        match result {
            Ok(()) => Ok(()),
            // The MR is as it was.
            Err((mr, e)) if e.raw_os_error() == Some(libc::ENOMEM) => mr.dereg().context("deregister again"),
            Err((_, e)) => Err(e.into()),
        }
        .and_then(|()| as_before(bench, memory))
        .with_context(|| format!("allocation {n} of ibv_dereg_mr failed in {}", hit.place()))?;
    }
    Ok(tally)
}

fn report(env: &Env, shape: &str, call: &str, kind: Memory, tally: &Tally) -> Result<()> {
    let (points, survived) = (tally.total(), tally.survived);
    let places: Vec<_> = tally.owners.keys().map(|owner| (owner, tally.places(owner))).collect();
    println!(
        "{call}, {shape}, {}: {points} failed, {survived} without effect: {:?}, places {places:?}",
        kind.name(),
        tally.owners
    );
    let row = serde_json::json!({
        "mode": env.mode()?.name(), "layout": shape, "call": call, "memory": kind.name(), "points": points,
        "survived": survived, "owners": tally.owners,
    });
    emit("failed_allocations", &row);
    Ok(())
}

fn allocations_contiguous(env: &Env) -> Result<()> {
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    allocations(env, "contiguous", &bench, &memory)
}

/// Uses 272 runs: more than a page of records, so that kvmalloc falls back to vmalloc, and three
/// pages of scatterlist.
fn allocations_fragmented(env: &Env) -> Result<()> {
    gpu::lab()?.set("layout", 4)?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(17 * MIB)?;
    allocations(env, "fragmented", &bench, &memory)
}

/// Uses memory outside every BAR, which the provider maps. NVIDIA's own front allocates to unmap it, and
/// warns where that fails, so this runs on the odd flavour of the GPU driver.
fn allocations_coherent(env: &Env) -> Result<()> {
    gpu::lab()?.set("table_version", 0x2_0000)?;
    gpu::lab()?.set("coherent", 1)?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    allocations(env, "coherent", &bench, &memory)
}

/// Where the provider refuses persistent pins, a revocable client takes the range.
fn allocations_of_the_fallback(env: &Env) -> Result<()> {
    gpu::lab()?.fault("persistent_errno", ENOTSUPP as u64)?;
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    allocations(env, "fallback", &bench, &memory)
}

const NEW_PAIR: &str = "new pair";

/// Makes the first registration after the module was loaded, with what it allocates once, and what
/// the provider does when it is asked whether GPU and NIC reach each other.
fn allocations_of_a_new_pair(env: &Env) -> Result<()> {
    if !inject::available() {
        skip("this kernel has no fault injection");
        return Ok(());
    }
    let bench = Bench::new()?;
    let memory = bench.cuda.alloc(4 * MIB)?;
    as_before(&bench, &memory)?;
    for kind in [Memory::Objects, Memory::Pages] {
        let (mut faults, mut tally) = (Allocations::prepare(kind)?, Tally::default());
        let mut sweep = Sweep::new(false);
        loop {
            load_anew(env)?;
            if !one_fails(&mut sweep, &bench, &memory, kind, &mut faults, &mut tally).with_context(|| kind.name())? {
                break;
            }
        }
        report(env, NEW_PAIR, "ibv_reg_mr", kind, &tally)?;
        if let (Memory::Objects, Some(owner)) = (kind, too_few(&tally, NEW_PAIR)) {
            bail!("of {owner} failed no more than {:?}: nothing was tested that others have not", tally.named(owner));
        }
    }
    Ok(())
}

/// The calls of the provider, as the module makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A pin of the first granule of a range that is longer than 1 GiB.
    Probe,
    Unprobe,
    Get,
    /// The get after the provider refused a persistent pin.
    GetRevocable,
    /// A mapping for use.
    Map,
    /// A mapping that only serves to learn whether GPU and NIC reach each other.
    Ask,
    Unmap,
    Put,
}

const PROVIDER: [&str; 6] = [
    "nvidia_p2p_get_pages",
    "nvidia_p2p_get_pages_persistent",
    "nvidia_p2p_put_pages",
    "nvidia_p2p_put_pages_persistent",
    "nvidia_p2p_dma_map_pages",
    "nvidia_p2p_dma_unmap_pages",
];

const ERRORS: [i32; 6] = [libc::ENOMEM, libc::EIO, libc::EBUSY, libc::ENODEV, ENOTSUPP, libc::EINVAL];

/// The properties by which one case of provider calls differs from another.
struct Case {
    mode: Mode,
    coherent: bool,
    /// Whether the provider refuses persistent pins.
    fallback: bool,
    size: usize,
    /// The calls of a registration in which nothing fails, in order.
    register: &'static [Call],
    /// The calls of its deregistration.
    deregister: &'static [Call],
    /// Whether to load the module anew before each failure, because it would remember.
    reload: bool,
    errors: &'static [i32],
}

impl Case {
    /// Returns the case of contiguous memory in the BAR, from which the others differ.
    fn plain(env: &Env) -> Result<Self> {
        Ok(Self {
            mode: env.mode()?,
            coherent: false,
            fallback: false,
            size: 4 * MIB,
            register: &[Call::Get],
            deregister: &[Call::Put],
            reload: false,
            errors: &ERRORS,
        })
    }

    /// Returns whether a call can fail with this errno and have no other effect. Injection keeps
    /// the driver's function from running. No put fails like that except a revocable one for lack
    /// of memory (`provider_puts`).
    fn can_fail(&self, call: Call, errno: i32) -> bool {
        let put = [Call::Put, Call::Unprobe].contains(&call);
        !put || (errno == libc::ENOMEM && (self.mode == Mode::Legacy || self.fallback))
    }

    /// Returns the errno and the recorded reason that the application and the admin must see, or
    /// `None` if the registration must work.
    fn wanted(&self, call: Call, errno: i32) -> Option<(i32, Option<&'static str>)> {
        use libc::{EBUSY, EFAULT, EINVAL, EIO, ENODEV, ENOMEM, EOPNOTSUPP};
        let one_page = call == Call::Probe || self.size <= GPU_PAGE;
        let get = [Call::Probe, Call::Get, Call::GetRevocable].contains(&call);
        let persistent = self.mode == Mode::Persistent && call != Call::GetRevocable;
        Some(match (call, errno) {
            // The module asks about the start of the range next, and learns that persistent pins
            // are refused.
            (Call::Get, ENOMEM | EIO | EINVAL | ENOTSUPP) if self.fallback => return None,
            // The provider reports this before it knows whose memory it is, and the start of the
            // range proves no more.
            (_, EIO) if get && one_page && persistent => (EFAULT, Some("persistent_fault")),
            (_, ENOMEM | EIO) if get && one_page => (EFAULT, Some("unproven")),
            (_, EINVAL) if get && one_page => (EFAULT, None),
            // The provider refuses the whole range but not its parts, so it is pinned in parts.
            (_, EINVAL) if get && persistent => return None,
            (_, ENOMEM) if get => (ENOMEM, Some("out_of_bar")),
            (_, EIO) if get => (EIO, Some("provider_fault")),
            (_, EINVAL) if get => (EINVAL, Some("leaves_allocation")),
            (_, EBUSY) if get => (EBUSY, Some("busy")),
            (_, ENODEV) if get => (ENODEV, Some("no_gpu")),
            (_, ENOTSUPP) if get && persistent => (EOPNOTSUPP, Some("not_persistent")),
            (_, ENOTSUPP) if get => (EOPNOTSUPP, Some("not_supported")),
            // The next registration puts this pin.
            (Call::Unprobe, _) => return None,
            (Call::Map | Call::Ask, ENOTSUPP) => (EOPNOTSUPP, Some("topology")),
            (Call::Map, ENOMEM) => (ENOMEM, Some("no_memory")),
            (Call::Map, _) => (EIO, Some("dma_mapping")),
            // Whatever else failed with this mapping, the module makes the mapping that counts.
            (Call::Ask, _) => return None,
            (Call::Unmap, _) => return None,
            _ => unreachable!("a registration does not call {call:?}"),
        })
    }

    /// Checks the result of a registration in which `call` failed with `errno`.
    fn judge(&self, call: Call, errno: i32, result: Result<Mr, i32>, refused_before: i64) -> Result<()> {
        let refused = Stats::read()?.number("total.refused")? - refused_before;
        let (got, wanted) = match (result, self.wanted(call, errno)) {
            (Ok(mr), None) => return mr.dereg().context("dereg"),
            (Ok(_), Some((wanted, _))) => bail!("it succeeded, wanted {}", errno_name(wanted)),
            (Err(got), None) => bail!("{}, wanted success", errno_name(got)),
            (Err(got), Some(wanted)) => (got, wanted),
        };
        expect_errno("ibv_reg_mr", got, wanted.0)?;
        ensure!(refused == i64::from(wanted.1.is_some()), "{refused} refusals were recorded, wanted {:?}", wanted.1);
        if let Some(reason) = wanted.1 {
            let failure = peermem::last_failure()?.context("no failure is recorded")?;
            ensure!(
                (failure.errno, failure.reason.as_str()) == (got, reason),
                "recorded: {failure:?}, wanted {reason}"
            );
        }
        Ok(())
    }

    fn registrations(&self, env: &Env, bench: &Bench, memory: &DeviceMemory, calls: &Calls) -> Result<usize> {
        let mut failed = 0;
        for &errno in self.errors {
            for n in 1.. {
                if self.register.get(n as usize - 1).is_some_and(|call| !self.can_fail(*call, errno)) {
                    continue;
                }
                if self.reload {
                    load_anew(env)?;
                }
                let refused = Stats::read()?.number("total.refused")?;
                let (result, hit) = calls.during(n, errno, || register(bench, memory))?;
                let result = result?;
                let Some(&call) = self.register.get(n as usize - 1) else {
                    ensure!(!hit, "ibv_reg_mr makes more provider calls than {:?}", self.register);
                    result.map_err(io::Error::from_raw_os_error).context("no call failed")?.dereg()?;
                    break;
                };
                ensure!(hit, "ibv_reg_mr makes fewer provider calls than {:?}", self.register);
                failed += 1;
                self.judge(call, errno, result, refused)
                    .and_then(|()| if call == Call::Unprobe { self.ends_the_orphan(bench, memory) } else { Ok(()) })
                    .and_then(|()| if self.reload { settled(SOON) } else { as_before(bench, memory) })
                    .with_context(|| format!("call {n} of ibv_reg_mr, {call:?}, failed with {errno}"))?;
            }
        }
        Ok(failed)
    }

    /// Checks that the next registration ends what could not be put, before it pins.
    fn ends_the_orphan(&self, bench: &Bench, memory: &DeviceMemory) -> Result<()> {
        let orphans = Stats::read()?.number("total.orphans")?;
        ensure!(orphans == 1, "{orphans} orphans after a put that lacked memory");
        register(bench, memory)?.map_err(io::Error::from_raw_os_error).context("the next one")?.dereg().context("dereg")
    }

    /// Checks that a deregistration works for the application, whatever the provider returns. If a put
    /// did nothing, the next registration ends the pin. Returns how many calls were made to fail.
    fn deregistrations(&self, bench: &Bench, memory: &DeviceMemory, calls: &Calls, errno: i32) -> Result<usize> {
        for (failed, n) in (1..).enumerate() {
            let call = self.deregister.get(failed);
            if call.is_some_and(|call| !self.can_fail(*call, errno)) {
                return Ok(failed);
            }
            let mr = register(bench, memory)?.map_err(io::Error::from_raw_os_error).context("register")?;
            let (result, hit) = calls.during(n, errno, || mr.dereg())?;
            result.with_context(|| format!("call {n} of ibv_dereg_mr failed with {errno}"))?;
            let Some(call) = call else {
                ensure!(!hit, "ibv_dereg_mr makes more provider calls than {:?}", self.deregister);
                return Ok(failed);
            };
            ensure!(hit, "ibv_dereg_mr makes fewer provider calls than {:?}", self.deregister);
            let orphans = Stats::read()?.number("total.orphans")?;
            ensure!(orphans == i64::from(*call == Call::Put), "{orphans} orphans after a failed {call:?}");
            if *call == Call::Put {
                self.ends_the_orphan(bench, memory)?;
            }
            as_before(bench, memory)
                .with_context(|| format!("call {n} of ibv_dereg_mr, {call:?}, failed with {errno}"))?;
        }
        unreachable!("the loop ends when no call fails")
    }

    fn run(&self, env: &Env) -> Result<()> {
        if !inject::available() {
            skip("this kernel has no fault injection");
            return Ok(());
        }
        gpu::lab()?.set("coherent", u64::from(self.coherent))?;
        if self.fallback {
            gpu::lab()?.fault("persistent_errno", ENOTSUPP as u64)?;
        }
        let bench = Bench::new()?;
        let memory = bench.cuda.alloc(self.size)?;
        if !self.reload {
            as_before(&bench, &memory)?;
        }
        let calls = Calls::of(&PROVIDER)?;
        let failed = self.registrations(env, &bench, &memory, &calls)?;
        println!("{} KiB: {failed} provider calls failed in ibv_reg_mr", self.size / KIB);
        let can = |calls: &[Call], errno| calls.iter().filter(|call| self.can_fail(**call, errno)).count();
        let wanted: usize = self.errors.iter().map(|errno| can(self.register, *errno)).sum();
        ensure!(failed == wanted, "{failed} calls failed, there are {wanted}");
        for errno in [libc::ENOMEM, libc::EIO] {
            let failed = self.deregistrations(&bench, &memory, &calls, errno)?;
            println!("{} KiB: {failed} provider calls failed with {errno} in ibv_dereg_mr", self.size / KIB);
            let wanted = can(self.deregister, errno);
            ensure!(failed == wanted, "{failed} calls failed with {errno}, there are {wanted}");
        }
        Ok(())
    }
}

fn provider_calls(env: &Env) -> Result<()> {
    for size in [4 * MIB, GPU_PAGE] {
        Case { size, ..Case::plain(env)? }.run(env)?;
    }
    Ok(())
}

fn calls_on_coherent_memory(env: &Env) -> Result<()> {
    Case {
        coherent: true,
        register: &[Call::Get, Call::Map],
        deregister: &[Call::Unmap, Call::Put],
        ..Case::plain(env)?
    }
    .run(env)
}

/// The range is longer than 1 GiB, so its first granule is pinned separately beforehand.
fn calls_of_a_long_range(env: &Env) -> Result<()> {
    let size = 1024 * MIB + GPU_PAGE;
    // If nothing can be made to fail, `run` reports that.
    if inject::available() && nvlab::Client::open()?.info(0)?.memory < 2 * size as u64 {
        skip("the card has less than 2 GiB");
        return Ok(());
    }
    Case { size, register: &[Call::Probe, Call::Unprobe, Call::Get], ..Case::plain(env)? }.run(env)
}

/// The provider refuses persistent pins, and the calls that follow fail, too.
fn calls_of_the_fallback(env: &Env) -> Result<()> {
    Case { fallback: true, register: &[Call::Get, Call::GetRevocable], ..Case::plain(env)? }.run(env)
}

/// When a GPU and a NIC meet for the first time, the module asks the provider whether they reach
/// each other.
fn calls_of_a_new_pair(env: &Env) -> Result<()> {
    Case {
        register: &[Call::Get, Call::Ask, Call::Unmap],
        reload: true,
        errors: &[libc::ENOMEM, libc::EIO, ENOTSUPP],
        ..Case::plain(env)?
    }
    .run(env)
}

/// Puts fail in the provider's own way: a revocable put has done nothing, and a persistent pin is
/// lost.
fn provider_puts(env: &Env) -> Result<()> {
    let persistent = env.mode()? == Mode::Persistent;
    let fault = if persistent { "persistent_put_errno" } else { "put_errno" };
    let bench = Bench::new()?;
    let mut memory = bench.cuda.alloc(4 * MIB)?;
    let first = memory.va();
    let mut said = Vec::new();
    for errno in ERRORS {
        let mr = register(&bench, &memory)?.map_err(io::Error::from_raw_os_error).context("register")?;
        let errors = Stats::read()?.number("put_errors")?;
        gpu::lab()?.fault_n(fault, errno as u64, 1)?;
        let mut log = kmsg::Mark::now()?;
        mr.dereg().with_context(|| format!("deregister, the put fails with {errno}"))?;
        said.extend(log.since()?.into_iter().filter(|l| l.contains("to take back the")));
        let told = persistent || errno != libc::ENOMEM;
        let now = Stats::read()?;
        let (orphans, errors) = (now.number("total.orphans")?, now.number("put_errors")? - errors);
        ensure!(
            (orphans, errors, gpu::pins()?) == (i64::from(!persistent), i64::from(told), 1),
            "a put that failed with {errno}: {orphans} orphans, {errors} put_errors, {} pins",
            gpu::pins()?
        );
        register(&bench, &memory)?.map_err(io::Error::from_raw_os_error).context("the next one")?.dereg()?;
        ensure!(gpu::pins()? == i64::from(told), "{} pins after the next registration", gpu::pins()?);
        if persistent {
            gpu::lab()?.end_lost_pins()?;
        } else if told {
            // The pin ends with its memory, and not before.
            memory.free()?;
            memory = bench.cuda.alloc(4 * MIB)?;
        }
        as_before(&bench, &memory).with_context(|| format!("after a put that failed with {errno}"))?;
    }
    // The first of a burst of ERRORs says whose pin it is and what to do. The others came within
    // seconds.
    let fate = if persistent { "until the driver shuts this GPU down" } else { "stays pinned" };
    let whose = format!("process {} ", std::process::id());
    let where_ = format!("{first:#x}");
    ensure!(
        said.first().is_some_and(|l| l.contains(&whose) && l.contains(&where_) && l.contains(fate)),
        "the log says {said:?}"
    );
    Ok(())
}
