// SPDX-License-Identifier: GPL-2.0
//! The checks: what users of GPU memory and RDMA count on.

use super::module::{self, Pins};
use super::process::{self, Child};
use super::rig::{deliver, same, Conditions, Rig, GPU_PAGE, KIB, MIB};
use crate::cuda::Memory;
use crate::peermem::{self, Registration};
use crate::root::Root;
use crate::text;
use crate::verbs::{status_words, Op, FLUSHED, SUCCESS};
use anyhow::{bail, ensure, Context, Result};
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The end of a check that found nothing wrong.
pub enum Held {
    /// It held: what was tried, and figures.
    Yes(String, Vec<String>),
    /// It could not be tried, for this reason.
    Skipped(String),
}

pub struct Check {
    pub id: &'static str,
    pub run: fn(&Rig, &Conditions) -> Result<Held>,
}

/// All checks, in the order in which they run.
pub const CHECKS: [Check; 12] = [
    Check { id: "register.offsets", run: offsets },
    Check { id: "register.refused", run: refused },
    Check { id: "register.sizes", run: sizes },
    Check { id: "bytes.write", run: |rig, conditions| moved(rig, conditions, Op::Write) },
    Check { id: "bytes.read", run: |rig, conditions| moved(rig, conditions, Op::Read) },
    Check { id: "bytes.send", run: |rig, conditions| moved(rig, conditions, Op::Send) },
    Check { id: "bytes.atomics", run: atomics },
    Check { id: "free.registered", run: free_registered },
    Check { id: "free.traffic", run: free_under_traffic },
    Check { id: "processes", run: processes },
    Check { id: "storm", run: storm },
    Check { id: "unload", run: unload },
];

fn held(message: impl Into<String>) -> Result<Held> {
    Ok(Held::Yes(message.into(), Vec::new()))
}

/// Registers from and to every place in a page at which a registration can begin and end: in the
/// host's page, in the GPU's, and in the next larger one.
fn offsets(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const LARGE: usize = 2 * MIB;
    const SIZE: usize = 3 * LARGE;
    const PAGE: usize = 4 * KIB;
    let starts = [0, 1, PAGE - 1, PAGE, PAGE + 1, GPU_PAGE - 1, GPU_PAGE, GPU_PAGE + PAGE + 1, LARGE - 1, LARGE];
    let lengths = [1, PAGE - 1, PAGE, PAGE + 1, GPU_PAGE, GPU_PAGE + 1, LARGE + 3, SIZE];
    let mut rng = Rng::with_seed(conditions.seed);
    let memory = rig.gpu.allocate(SIZE)?;
    let mut wanted = vec![0; SIZE];
    rng.fill(&mut wanted);
    memory.write(0, &wanted)?;
    let link = rig.link()?;
    let mut source = rig.host(SIZE, &mut rng)?;
    let mut count = 0;
    for start in starts {
        for length in lengths {
            let length = length.min(SIZE - start);
            let what = format!("{length} bytes from {start:#x} of an allocation of {SIZE}");
            let region = rig.register(&memory, start, length).with_context(|| format!("register {what}"))?;
            source.refill(0..length, &mut rng)?;
            let target = (&region, memory.address() + start as u64);
            link.write(source.at(0), target, u32::try_from(length)?).with_context(|| what.clone())?;
            let bytes = source.wanted.get(..length).context("length")?;
            wanted.get_mut(start..start + length).context("start")?.copy_from_slice(bytes);
            region.deregister().with_context(|| format!("deregister {what}"))?;
            // This compares all of the memory, so nothing beside the registration was written
            // either.
            same(&what, &memory.read()?, &wanted, 0)?;
            count += 1;
        }
    }
    held(format!("{count} registrations, of {} starts and {} lengths, each written whole", starts.len(), lengths.len()))
}

/// Checks that freed memory cannot be registered, and that nothing stays of the attempt.
fn refused(rig: &Rig, _: &Conditions) -> Result<Held> {
    let memory = rig.gpu.allocate(4 * MIB)?;
    let address = memory.address();
    let region = rig.register(&memory, 0, 4 * MIB).context("register GPU memory")?;
    region.deregister().context("deregister GPU memory")?;
    memory.free()?;
    match rig.domain.register(address, 4 * MIB) {
        Ok(_) => bail!("memory that was freed could be registered"),
        Err(error) => held(format!("memory that was freed is refused: {error}")),
    }
}

/// Registers small and large ranges, measures how long each takes, and reports how the memory is
/// pinned and mapped.
fn sizes(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const ROUNDS: usize = 9;
    /// A size that every GPU has room for.
    const SURE: usize = 16 * MIB;
    let (free, _) = rig.gpu.memory()?;
    let mut rng = Rng::with_seed(conditions.seed);
    let link = rig.link()?;
    let mut source = rig.host(GPU_PAGE, &mut rng)?;
    let mut details = Vec::new();
    for size in [4 * KIB, GPU_PAGE, MIB, 2 * MIB, SURE, 256 * MIB, 1 << 30, 4 << 30] {
        if size > free / 2 {
            break;
        }
        let memory = rig.gpu.allocate(size)?;
        let name = text::bytes(size as u64);
        let (mut registers, mut deregisters) = (Vec::new(), Vec::new());
        let mut pinned = String::new();
        for round in 0..ROUNDS {
            let start = Instant::now();
            let region = match rig.register(&memory, 0, size) {
                Ok(region) => region,
                Err(error) if size > SURE && error.raw_os_error() == Some(libc::ENOMEM) => {
                    details.push(format!("{name}: {error}; BAR1 or the limit of locked memory is too small"));
                    break;
                }
                Err(error) => return Err(error).with_context(|| format!("register {name}")),
            };
            registers.push(start.elapsed());
            if round == 0 {
                pinned = how_pinned(conditions.root, &memory)?
                    .map_or(String::new(), |row| format!(", {}", pinned_words(&row)));
                let length = size.min(GPU_PAGE);
                for at in [0, (size - length) / 16 * 8, size - length] {
                    source.refill(0..length, &mut rng)?;
                    link.write(source.at(0), (&region, memory.address() + at as u64), u32::try_from(length)?)?;
                    let bytes = source.wanted.get(..length).context("length")?;
                    same(&format!("{name}, at {at:#x}"), &memory.read_part(at, length)?, bytes, at)?;
                }
            }
            let start = Instant::now();
            region.deregister().with_context(|| format!("deregister {name}"))?;
            deregisters.push(start.elapsed());
        }
        if let (Some(register), Some(deregister)) = (median(registers), median(deregisters)) {
            details.push(format!(
                "{name}: register {:.1} µs, deregister {:.1} µs{pinned}",
                register.as_secs_f64() * 1e6,
                deregister.as_secs_f64() * 1e6
            ));
        }
    }
    Ok(Held::Yes(format!("{} sizes, medians of {ROUNDS}", details.len()), details))
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort();
    times.get(times.len() / 2).copied()
}

/// Returns what the module tells of the one registration of `memory`. Only this project's module
/// tells anything, and only to root.
pub(super) fn how_pinned(root: &Root, memory: &Memory) -> Result<Option<Registration>> {
    let rows = peermem::registrations(root).unwrap_or_default();
    let Some(row) = rows.into_iter().find(|row| row.va == memory.address() && row.pid == std::process::id()) else {
        return Ok(None);
    };
    ensure!(
        row.pinned_bytes >= row.length && row.pinned_bytes % GPU_PAGE as u64 == 0 && row.runs > 0,
        "the module lists a registration of {} bytes with {} pinned in {} runs",
        row.length,
        row.pinned_bytes,
        row.runs
    );
    Ok(Some(row))
}

/// Says in words how memory is pinned.
pub(super) fn pinned_words(row: &Registration) -> String {
    let runs = text::count(row.runs, "contiguous run");
    format!("{} pinned ({}), {runs}", text::bytes(row.pinned_bytes), row.kind)
}

/// Moves bytes between host and GPU, both ways, and between two places of the GPU, and compares
/// them.
fn moved(rig: &Rig, conditions: &Conditions, op: Op) -> Result<Held> {
    const SIZE: usize = 4 * MIB + GPU_PAGE;
    const BANDWIDTH: (u64, u32) = (4 * MIB as u64, MIB as u32);
    let mut rng = Rng::with_seed(conditions.seed);
    let link = rig.link()?;
    let mut host = rig.host(SIZE, &mut rng)?;
    let (mut near, mut far) = (rig.on_gpu(SIZE, &mut rng)?, rig.on_gpu(SIZE, &mut rng)?);
    let mut total = 0;
    for length in [1, 7, 4096, GPU_PAGE + 1, MIB + 3, 4 * MIB] {
        for way in 0..3 {
            let (from, to) = (rng.usize(0..=GPU_PAGE), rng.usize(0..=GPU_PAGE));
            let (source, target) = match way {
                0 => (&mut host, &mut near),
                1 => (&mut near, &mut far),
                _ => (&mut far, &mut host),
            };
            deliver(&link, op, (source, from), (target, to), length, &mut rng)?;
            total += length;
        }
    }
    let mut details = Vec::new();
    if matches!(op, Op::Write) {
        for (name, from, to) in [("to", &host, &near), ("from", &near, &host)] {
            let (size, piece) = BANDWIDTH;
            let rate = link.rate(from.at(0), to.at(0), size, piece, Duration::from_secs(1))?;
            details.push(format!("{name} the GPU {:.2} GB/s, in pieces of 1 MiB", rate / 1e9));
        }
    }
    for side in [near, far, host] {
        side.deregister().context("deregister")?;
    }
    let message =
        format!("{} from host to GPU, GPU to GPU, GPU to host; neighbours unchanged", text::bytes(total as u64));
    Ok(Held::Yes(message, details))
}

/// Runs fetch-and-add and compare-and-swap on words of GPU memory, at ends of pages and of the
/// registration.
fn atomics(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const SIZE: usize = 2 * MIB;
    if !rig.has_atomics {
        return Ok(Held::Skipped("this NIC has no atomic operations".to_owned()));
    }
    let mut rng = Rng::with_seed(conditions.seed);
    let link = rig.link()?;
    let mut target = rig.on_gpu(SIZE, &mut rng)?;
    let mut fetched = rig.host(GPU_PAGE, &mut rng)?;
    let mut count = 0;
    for at in [0, 8, 4096, GPU_PAGE - 8, GPU_PAGE, SIZE - 8] {
        let found = target.word(at);
        let add = rng.u64(..);
        let sum = found.wrapping_add(add);
        let (other, swap) = (rng.u64(..), rng.u64(..));
        // The third finds another word than it compares with.
        for (op, before, after) in [
            (Op::FetchAdd(add), found, sum),
            (Op::CompareSwap { compare: sum, swap }, sum, swap),
            (Op::CompareSwap { compare: swap ^ 1, swap: other }, swap, swap),
        ] {
            for (side, at, word) in [(&mut fetched, 0, before), (&mut target, at, after)] {
                side.wanted.get_mut(at..at + 8).context("word")?.copy_from_slice(&word.to_ne_bytes());
            }
            link.run(op, fetched.at(0), target.at(at), 8)?;
            fetched.check(&format!("{op:?} at {at:#x}, what was fetched"), 0..8)?;
            target.check(&format!("{op:?} at {at:#x}, the target"), at..at + 8)?;
            count += 1;
        }
    }
    target.deregister().context("deregister")?;
    held(format!("{count} operations on words of GPU memory"))
}

/// Frees memory while it is registered, and checks that memory allocated afterwards is never
/// written through the old registration.
fn free_registered(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const SIZE: usize = 4 * MIB;
    const ROUNDS: usize = 5;
    let mut rng = Rng::with_seed(conditions.seed);
    let mut took = Vec::new();
    let (mut errors, mut again) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let link = rig.link()?;
        let host = rig.host(SIZE, &mut rng)?;
        let memory = rig.gpu.allocate(SIZE)?;
        let address = memory.address();
        let region = rig.register(&memory, 0, SIZE).context("register GPU memory")?;
        link.write(host.at(0), (&region, address), u32::try_from(SIZE)?)?;
        let start = Instant::now();
        memory.free().context("free registered memory")?;
        took.push(start.elapsed());
        let next = rig.gpu.allocate(SIZE)?;
        again += usize::from(next.address() == address);
        let mut wanted = vec![0; SIZE];
        rng.fill(&mut wanted);
        next.write(0, &wanted)?;
        let status = link.attempt(Op::Write, host.at(0), (&region, address), u32::try_from(SIZE)?)?;
        same("memory allocated after the free", &next.read()?, &wanted, 0)?;
        judged(conditions.pins, status)?;
        errors.extend((status != SUCCESS).then_some(status));
        // The new memory beside the old registration, and after it.
        for _ in 0..2 {
            let link = rig.link()?;
            let fresh = rig.register(&next, 0, SIZE).context("register the memory allocated after the free")?;
            link.write(host.at(0), (&fresh, next.address()), u32::try_from(SIZE)?)?;
            same("memory allocated after the free, written", &next.read()?, &host.wanted, 0)?;
            fresh.deregister().context("deregister")?;
        }
        region.deregister().context("deregister memory that was freed")?;
    }
    let took = median(took).unwrap_or_default();
    let message = format!("{}; the memory allocated next is untouched", after_a_free(conditions.pins, &errors));
    let details = vec![format!(
        "a free of 4 MiB with one registration: {:.1} µs; {again} of {ROUNDS} times the next memory had the same address",
        took.as_secs_f64() * 1e6
    )];
    Ok(Held::Yes(message, details))
}

fn after_a_free(pins: Pins, errors: &[u32]) -> String {
    match (pins, errors) {
        (Pins::Persistent, _) => "writes after the free reach memory that stays until it is deregistered".to_owned(),
        (_, [first, ..]) => format!("writes after the free end with an error ({})", status_words(*first)),
        _ => "writes after the free end without an error".to_owned(),
    }
}

/// Checks that the status of a write after the free is what the module promises.
fn judged(pins: Pins, status: u32) -> Result<()> {
    match (pins, status) {
        (Pins::Persistent, status) if status != SUCCESS => {
            bail!("a write to memory with a persistent pin failed after the free: {}", status_words(status))
        }
        // A queue that broke for another reason is no proof.
        (_, FLUSHED) => bail!("a write after the free was {}", status_words(status)),
        (Pins::Revocable, SUCCESS) => bail!("the NIC still writes to memory whose pin was revoked by the free"),
        _ => Ok(()),
    }
}

/// Frees registered memory as `free_registered` does, while the NIC writes without a pause.
fn free_under_traffic(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const SIZE: usize = 4 * MIB;
    const PIECE: usize = 64 * KIB;
    const ROUNDS: usize = 5;
    /// Writes that are done before the memory is freed.
    const BEFORE: u64 = 50;
    const LIMIT: Duration = Duration::from_secs(30);
    let mut rng = Rng::with_seed(conditions.seed);
    let (mut took, mut errors, mut writes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let host = rig.host(SIZE, &mut rng)?;
        let memory = rig.gpu.allocate(SIZE)?;
        let address = memory.address();
        let region = rig.register(&memory, 0, SIZE).context("register GPU memory")?;
        let link = rig.link()?;
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let (count, status) = thread::scope(|scope| -> Result<(u64, u32)> {
            let (stop, done, region, host) = (&stop, &done, &region, &host);
            let traffic = scope.spawn(move || {
                link.stream(host.at(0), (region, address), SIZE as u64, u32::try_from(PIECE)?, |count| {
                    done.store(count, Ordering::Relaxed);
                    !stop.load(Ordering::Relaxed)
                })
            });
            let beside = || -> Result<()> {
                let begin = Instant::now();
                while done.load(Ordering::Relaxed) < BEFORE && !traffic.is_finished() {
                    ensure!(begin.elapsed() < LIMIT, "fewer than {BEFORE} writes within {} s", LIMIT.as_secs());
                    thread::sleep(Duration::from_millis(1));
                }
                ensure!(!traffic.is_finished(), "writes failed before the free");
                let start = Instant::now();
                memory.free().context("free memory under traffic")?;
                took.push(start.elapsed());
                let next = rig.gpu.allocate(SIZE)?;
                let mut wanted = vec![0; SIZE];
                rng.fill(&mut wanted);
                next.write(0, &wanted)?;
                thread::sleep(Duration::from_millis(100));
                same("memory allocated after a free under traffic", &next.read()?, &wanted, 0)
            };
            let beside = beside();
            stop.store(true, Ordering::Relaxed);
            let traffic = traffic.join().map_err(|_| anyhow::anyhow!("the thread that writes panicked"))?;
            beside?;
            traffic
        })?;
        judged(conditions.pins, status)?;
        writes += count;
        errors.extend((status != SUCCESS).then_some(status));
        region.deregister().context("deregister memory that was freed under traffic")?;
    }
    let longest = took.iter().max().copied().unwrap_or_default();
    let took = median(took).unwrap_or_default();
    let details = vec![format!(
        "a free of 4 MiB under traffic: {:.1} µs, the longest of {ROUNDS} {:.1} µs; {writes} writes of 64 KiB",
        took.as_secs_f64() * 1e6,
        longest.as_secs_f64() * 1e6
    )];
    Ok(Held::Yes(
        format!("{}; the memory allocated next is untouched", after_a_free(conditions.pins, &errors)),
        details,
    ))
}

/// Runs several processes at once, kills some in the middle of traffic, and forks.
fn processes(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const SEVERAL: u64 = 4;
    const KILLS: u64 = 3;
    const SPAN: Duration = Duration::from_secs(2);
    let child = |kind: &str, n: u64| Child::start(kind, conditions, conditions.seed.wrapping_add(n));
    let mut several = (0..SEVERAL).map(|n| child(process::MOVER, n)).collect::<Result<Vec<_>>>()?;
    several.iter_mut().try_for_each(Child::ready)?;
    thread::sleep(SPAN);
    let mut moved = 0;
    for mover in several {
        let counts = mover.finish().context("one of several processes")?;
        ensure!(counts.moved > 0, "one of several processes moved nothing");
        moved += counts.moved;
    }
    for n in 0..KILLS {
        let mut victim = child(process::MOVER, n)?;
        victim.ready()?;
        thread::sleep(Duration::from_millis(100 * (n + 1)));
        victim.kill()?;
    }
    // The resources of a killed process are available again.
    let region = rig.gpu.allocate(4 * MIB).and_then(|memory| Ok((rig.register(&memory, 0, 4 * MIB)?, memory)));
    let (region, _memory) = region.context("register after kill -9")?;
    region.deregister().context("deregister after kill -9")?;
    let (kind, forked) = match conditions.ours {
        true => (process::FORK_DEREGISTER, "children of fork exited, ran exec and deregistered"),
        // NVIDIA's module leaves a pin that nobody ends, and later uses freed memory.
        false => (process::FORK, "children of fork exited and ran exec; none deregistered, which only ours allows"),
    };
    child(kind, 0)?.finish().context("fork")?;
    held(format!(
        "{SEVERAL} at once moved {}; {KILLS} were killed in the middle of traffic; {forked}",
        text::bytes(moved)
    ))
}

/// Starts processes that allocate, register, move, free and fork at random, and kills them at
/// random.
fn storm(_: &Rig, conditions: &Conditions) -> Result<Held> {
    if conditions.storm.is_zero() {
        return Ok(Held::Skipped("--storm 0".to_owned()));
    }
    let (counts, killed) = process::storm(conditions)?;
    ensure!(
        counts.registered > 0 && counts.moved > 0 && counts.freed > 0,
        "nothing was tried: {} registrations, {} frees, {} moved",
        counts.registered,
        counts.freed,
        text::bytes(counts.moved)
    );
    held(format!(
        "{} s, {} registrations, {} freed while registered, {} moved and compared, {} forks, {killed} processes killed",
        conditions.storm.as_secs(),
        counts.registered,
        counts.freed,
        text::bytes(counts.moved),
        counts.forks
    ))
}

/// Tries to unload the module while memory is registered, which must be refused. Then unloads it,
/// checks that registrations find no module, and loads it again.
fn unload(rig: &Rig, conditions: &Conditions) -> Result<Held> {
    const ROUNDS: usize = 3;
    let load = match conditions.again {
        Ok(load) => load,
        Err(why) => return Ok(Held::Skipped(why.to_owned())),
    };
    let memory = rig.gpu.allocate(4 * MIB)?;
    for _ in 0..ROUNDS {
        let region = rig.register(&memory, 0, 4 * MIB).context("register GPU memory")?;
        let refused = module::unload();
        if refused.is_ok() {
            // What is registered without a module can only be got rid of.
            drop(region);
            load.load().context("load it again")?;
            bail!("the module was unloaded while memory was registered");
        }
        region.deregister().context("deregister GPU memory")?;
        settle(conditions.root, &Level::default(), Duration::from_secs(10))?;
        module::unload().context("unload it with nothing registered")?;
        let without = rig.register(&memory, 0, 4 * MIB).map(drop);
        load.load().context("load it again")?;
        ensure!(without.is_err(), "GPU memory could be registered without the module");
    }
    let region = rig.register(&memory, 0, 4 * MIB).context("register after loading it again")?;
    region.deregister().context("deregister")?;
    held(format!("{ROUNDS} times refused while memory was registered, then unloaded and loaded again"))
}

/// The registrations that there are at some moment.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// How often the module is used.
    references: i64,
    /// Live pins, where the module tells.
    live: u64,
}

impl Level {
    pub fn now(root: &Root) -> Self {
        let live = peermem::stats(root).ok().and_then(|stats| stats.number("total.live"));
        Self { references: module::references(root).unwrap_or(0), live: live.unwrap_or(0) }
    }
}

/// Waits until nothing more is registered than `before`.
pub fn settle(root: &Root, before: &Level, limit: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = Level::now(root);
        if now.references <= before.references && now.live <= before.live {
            return Ok(());
        }
        if start.elapsed() > limit {
            bail!(
                "left behind: the module is used {} times and has {} live pins, before {} times and {}; \
                 or does another program register GPU memory?",
                now.references,
                now.live,
                before.references,
                before.live
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
}
