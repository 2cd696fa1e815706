// SPDX-License-Identifier: GPL-2.0
//! Tries each way of registering with each GPU and NIC: what is registered is written to and read by
//! the NIC, and compared; nothing of the machine is changed, and nothing needs root.

use super::checks::{how_pinned, pinned_words};
use super::interrupt::go_on;
use super::process;
use super::rig::{same, GPU_PAGE, KIB, MIB};
use super::watchdog::Watchdog;
use crate::answer::{Verify, VerifyPair, VerifyWay, NOT_TRIED};
use crate::check::Level;
use crate::cuda::{Cuda, Gpu};
use crate::environment::Environment;
use crate::machine::Machine;
use crate::pci::{Device, Distance};
use crate::rdma::RdmaDevice;
use crate::root::Root;
use crate::speed;
use crate::trial::{self, Before, How};
use crate::verbs::{self, status_words, Domain, Loopback, Op, PortAddress, Verbs, NO_COMPLETION, SUCCESS};
use crate::way::{self, Way};
use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The bytes that are allocated: memory of this size has a block of its own.
const BLOCK: usize = 2 * MIB;
/// The bytes of it, and of the host's memory, that are registered.
const SPAN: usize = 3 * GPU_PAGE;
/// The same where little may be locked.
const SMALL: usize = 8 * KIB;
/// The bytes that are registered to measure the bandwidth; the next constant is what one RDMA write
/// moves of them.
pub const MOVED: usize = 16 * MIB;
pub const PIECE: u32 = MIB as u32;
/// The part of what the link can do below which a way is slow.
const SLOW: f64 = 0.5;
/// The number of times that a way is measured before it is called slow.
const TRIES: usize = 3;
const TIME_IS_UP: &str = "the time is up (--gpu and --nic choose)";
/// The kind of process that tries the preload library.
pub const PRELOAD: &str = "preload";

/// The depth to which each way is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Registers, writes, reads, compares.
    Quick,
    /// Every offset class, all operations, a free, and the bandwidth for a moment.
    Normal,
    /// The same as `Quick`, and the bandwidth as a median.
    Rates,
}

/// A way, as `--way` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum WayWord {
    /// Registering by a plain ibv_reg_mr(): nvidia-peermem
    PeerMemory,
    /// Registering a dma-buf; with the forced PCIe mapping and by Data Direct, too, where programs
    /// take these
    DmaBuf,
    /// A plain ibv_reg_mr() in a process with libgpumr-preload.so
    Preload,
    /// All of them, also those that doctor expects to fail
    All,
}

/// The plan of a run: what is tried, and until when.
pub struct Plan<'a> {
    /// The ways that are tried; if there are none, each one that exists.
    pub words: &'a [WayWord],
    pub depth: Depth,
    /// The time after which nothing more begins.
    pub until: Instant,
    pub seed: u64,
}

impl Plan<'_> {
    /// Returns the time within which a request ends; a NIC that takes longer hangs.
    fn patience(&self) -> Duration {
        Duration::from_secs(if self.depth == Depth::Quick { 3 } else { 10 })
    }

    /// Returns the time after which a call that has not returned is written down.
    fn longest_call(&self) -> Duration {
        self.patience() * 3
    }

    /// Returns how many rounds make a figure of bandwidth, and how long each of them takes.
    fn rounds(&self) -> (usize, Duration) {
        match self.depth {
            Depth::Rates => (5, Duration::from_millis(60)),
            _ => (1, Duration::from_millis(40)),
        }
    }

    fn asks_for(&self, word: WayWord) -> bool {
        self.words.contains(&word) || self.words.contains(&WayWord::All)
    }
}

/// Returns the ways to try with a GPU and a NIC, each with the reason if it is not to be tried.
fn wanted(machine: &Machine, plan: &Plan, gpu: &Device, nic: &RdmaDevice) -> Vec<(Way, Option<String>)> {
    let of = |word: WayWord, ways: Vec<Way>| {
        let asked = plan.asks_for(word);
        let judged = move |way: Way| {
            let no = way::possible(machine, gpu, nic, way);
            // Each requested way is tried, even if doctor expects it to fail.
            let because = (!asked && no.is_no()).then(|| no.because().to_owned());
            (way, because)
        };
        let is_wanted = asked || plan.words.is_empty();
        ways.into_iter().filter(move |_| is_wanted).map(judged)
    };
    let plain = of(WayWord::PeerMemory, vec![Way::PeerMemory]);
    plain.chain(of(WayWord::DmaBuf, trial::by_dma_buf(machine, gpu, nic))).collect()
}

/// The facts that the tries so far have shown of NICs.
#[derive(Default)]
struct Learned {
    /// Bytes per second between two places of the host's memory.
    host: BTreeMap<String, f64>,
    /// Ways in which a NIC did not answer, with the reason.
    hung: BTreeMap<(String, Way), String>,
}

/// Tries what `plan` asks for with each of these GPUs and NICs, and puts the results into `verify`.
pub fn run(
    machine: &Machine,
    plan: &Plan,
    gpus: &[&Device],
    nics: &[&RdmaDevice],
    watchdog: &Watchdog<Verify>,
    verify: &mut Verify,
) -> Result<()> {
    let (cuda, verbs) = (Cuda::open()?, Verbs::open()?);
    let mut learned = Learned::default();
    for (n, gpu) in gpus.iter().enumerate() {
        // Each GPU has its part of the time, so that the last ones are tried as well.
        let left = plan.until.saturating_duration_since(Instant::now());
        let until = Instant::now() + left / u32::try_from(gpus.len() - n).unwrap_or(1);
        let mut near: Vec<(&RdmaDevice, Option<Distance>)> =
            nics.iter().map(|nic| (*nic, distance(machine, gpu, nic))).collect();
        near.sort_by_key(|(_, distance)| (distance.is_none(), *distance));
        let opened = cuda.gpu(&gpu.address);
        let mut pairs = Vec::new();
        for (nic, distance) in near {
            go_on()?;
            let mut pair = VerifyPair {
                gpu: gpu.address.clone(),
                nic: nic.name.clone(),
                distance,
                nccl: nccl(machine, gpu, nic),
                ways: Vec::new(),
            };
            for (way, because) in wanted(machine, plan, gpu, nic) {
                let known = learned.hung.get(&(nic.name.clone(), way));
                let done = match (&because, &opened, known) {
                    (Some(because), ..) => VerifyWay::skipped(way, format!("{NOT_TRIED}: {because}")),
                    (_, Err(error), _) => VerifyWay::skipped(way, format!("{NOT_TRIED}: {error:#}")),
                    _ if !nic.is_active() => {
                        VerifyWay::skipped(way, format!("{NOT_TRIED}: no port of {} is active", nic.name))
                    }
                    _ if nic.iwarp => VerifyWay::skipped(
                        way,
                        format!(
                            "{NOT_TRIED}: {} is an iWARP device, whose queue pairs this program does not connect",
                            nic.name
                        ),
                    ),
                    _ if !nic.can_connect() => VerifyWay::skipped(
                        way,
                        format!(
                            "{NOT_TRIED}: no active port of {} has a GID: give its network interface an address",
                            nic.name
                        ),
                    ),
                    (_, Ok(opened), _) if way != Way::PeerMemory && !opened.has_dma_buf() => {
                        VerifyWay::skipped(way, format!("{NOT_TRIED}: the GPU driver does not offer dma-bufs"))
                    }
                    (.., Some(known)) => VerifyWay::skipped(way, format!("{NOT_TRIED}: {known}")),
                    _ if Instant::now() > until => VerifyWay::skipped(way, format!("{NOT_TRIED}: {TIME_IS_UP}")),
                    (None, Ok(opened), None) => {
                        let id = format!("{}, GPU {} with {}", way.text(), gpu.address, nic.name);
                        let mut all = verify.clone();
                        all.pairs.extend(pairs.iter().cloned());
                        watchdog.begin(all, id, plan.longest_call());
                        let target = Target { machine, gpu, nic, way, opened, verbs: &verbs, plan };
                        let done = target.tried(&mut learned);
                        watchdog.end();
                        done
                    }
                };
                pair.ways.push(done);
            }
            pairs.push(pair);
        }
        drop(opened);
        if plan.asks_for(WayWord::Preload) || plan.words.is_empty() {
            preload(machine, plan, gpu, &mut pairs, until);
        }
        verify.pairs.append(&mut pairs);
    }
    Ok(())
}

/// Returns what doctor expects of each pair, where nothing can be tried.
pub fn expected(machine: &Machine, gpus: &[&Device], nics: &[&RdmaDevice]) -> Vec<VerifyPair> {
    let pairs = gpus.iter().flat_map(|gpu| nics.iter().map(move |nic| (*gpu, *nic)));
    let of = |(gpu, nic): (&Device, &RdmaDevice)| {
        let ways = std::iter::once(Way::PeerMemory).chain(trial::by_dma_buf(machine, gpu, nic));
        let ways = ways.map(|way| {
            let judged = way::possible(machine, gpu, nic, way);
            VerifyWay::skipped(way, format!("{NOT_TRIED}; expected: {}, {}", judged.text(), judged.because()))
        });
        VerifyPair {
            gpu: gpu.address.clone(),
            nic: nic.name.clone(),
            distance: distance(machine, gpu, nic),
            nccl: nccl(machine, gpu, nic),
            ways: ways.collect(),
        }
    };
    pairs.map(of).collect()
}

fn distance(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Option<Distance> {
    Some(gpu.distance_to(machine.pci(nic.pci.as_deref()?)?))
}

/// Says what NCCL does with a GPU and a NIC, in a few words.
fn nccl(machine: &Machine, gpu: &Device, nic: &RdmaDevice) -> Option<String> {
    use crate::consumer::{self, Does};
    let pairings = consumer::pairings(machine);
    let pairing = pairings.iter().find(|pair| pair.gpu.address == gpu.address && pair.nic.name == nic.name)?;
    Some(match consumer::nccl::NCCL.does(pairing, machine, &Environment::own(machine.root)) {
        Does::Direct(way, _) => way.text().to_owned(),
        Does::Copies(_) => "copies through host memory".to_owned(),
        Does::Unknown(_) => "unknown".to_owned(),
    })
}

/// One way of one pair.
struct Target<'a> {
    machine: &'a Machine<'a>,
    gpu: &'a Device,
    nic: &'a RdmaDevice,
    way: Way,
    opened: &'a Gpu<'a>,
    verbs: &'a Verbs,
    plan: &'a Plan<'a>,
}

impl Target<'_> {
    fn tried(&self, learned: &mut Learned) -> VerifyWay {
        let mut found = VerifyWay::of(self.way);
        let before = Before::look(self.machine.root);
        let mut at = 0;
        let Err(error) = self.attempt(&mut found, learned, &mut at) else {
            self.judge_speed(&mut found);
            return found;
        };
        if verbs::has_no_connections(&error) {
            // Without connections nothing is known of bytes, so there is no verdict.
            let took = found.register_us.take();
            found.deregister_us = None;
            let registers = took.map_or(String::new(), |us| format!(", which registers GPU memory (in {us:.1} µs),"));
            let why = format!(
                "{NOT_TRIED}: {}{registers} makes no reliable connections (RC), and verify moves bytes by these alone",
                self.nic.name
            );
            (found.level, found.message) = (Level::Skip, Some(why));
            return found;
        }
        let hung = format!("{error:#}").contains(NO_COMPLETION);
        (found.level, found.message) = match found.register_us {
            // The memory was registered, so what fails later is no refusal.
            Some(_) if hung => (Level::Fail, Some(format!("{} hangs: {error:#}", self.nic.name))),
            Some(_) => (Level::Fail, Some(format!("registers, and then: {error:#}"))),
            None => {
                let (level, why) = trial::why(self.machine, self.nic, self.way, &error, &before, at);
                (level, Some(why))
            }
        };
        if hung {
            let known = format!("{} did not answer before: {error:#}", self.nic.name);
            learned.hung.insert((self.nic.name.clone(), self.way), known);
        }
        found
    }

    fn attempt(&self, found: &mut VerifyWay, learned: &mut Learned, at: &mut u64) -> Result<()> {
        let how = How::of(self.way, self.machine.has_c2c(self.gpu));
        let port = self.nic.port().with_context(|| format!("{} has no port", self.nic.name))?;
        let port = PortAddress::read(self.machine.root, &self.nic.name, &port.number)?;
        let device = self.verbs.device(&self.nic.name)?;
        let domain = device.domain()?;
        let mut rng = Rng::with_seed(self.plan.seed);

        // This is the host's side of each transfer, as large as the limit of locked memory allows.
        let mut host: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(SPAN).collect();
        let mut span = SPAN;
        let ours = match domain.register(host.as_mut_ptr() as u64, span) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                span = SMALL;
                found.details.push(format!("{span} bytes only, as registering {SPAN} of the host's fails: {error}"));
                domain.register(host.as_mut_ptr() as u64, span)
            }
            other => other,
        };
        let ours = ours.context("register host memory")?;
        let from = |offset: usize| (&ours, host.as_ptr() as u64 + offset as u64);
        let link = || -> Result<Loopback> {
            // One queue pair takes least memory.
            let link = if span == SMALL { domain.loopback(&port) } else { domain.pair(&port) };
            Ok(link?.within(self.plan.patience()))
        };

        let memory = self.opened.allocate(BLOCK)?;
        *at = memory.address();
        let mut wanted = vec![0; BLOCK];
        rng.fill(&mut wanted);
        memory.write(0, &wanted)?;
        let start = Instant::now();
        let region = how.register(&domain, &memory, 0, span).context("register GPU memory")?;
        found.register_us = Some(micros(start));
        if let Some(row) = how_pinned(self.machine.root, &memory)? {
            found.page_bytes = Some(row.page_size).filter(|size| *size > 0);
            found.details.push(pinned_words(&row));
        }
        let start = Instant::now();
        region.deregister().context("deregister GPU memory")?;
        found.deregister_us = Some(micros(start));

        // Each place in a page at which a registration can begin and end.
        let written = link()?;
        for (start, length) in classes(self.plan.depth, span) {
            let what = format!("{length} bytes from {start:#x} on");
            let region = how.register(&domain, &memory, start, length).with_context(|| format!("register {what}"))?;
            let target = (&region, memory.address() + start as u64);
            written.write(from(0), target, u32::try_from(length)?).with_context(|| format!("write {what}"))?;
            wanted.splice(start..start + length, host.iter().take(length).copied());
            // This compares what lies beside it, too; all of the memory is compared below.
            let around = start.saturating_sub(GPU_PAGE)..(start + length + GPU_PAGE).min(BLOCK);
            let got = memory.read_part(around.start, around.len())?;
            let begin = around.start;
            same(&format!("after a write of {what}"), &got, wanted.get(around).context("around")?, begin)?;
            region.deregister().context("deregister GPU memory")?;
            found.offsets += 1;
        }
        same("after all these writes", &memory.read()?, &wanted, 0)?;
        found.operations.push("write".to_owned());

        let region = how.register(&domain, &memory, 0, span).context("register GPU memory")?;
        let place = |offset: usize| (&region, memory.address() + offset as u64);
        let length = u32::try_from(span / 2)?;
        let half = span / 2;
        // Into the second half of the host's memory: by a read, and by a write from the GPU.
        for (op, what) in [(Op::Read, "read"), (Op::Write, "write from the GPU")] {
            let (local, remote) = match op {
                Op::Read => (from(half), place(0)),
                _ => (place(0), from(half)),
            };
            rng.fill(wanted.get_mut(..half).context("half")?);
            memory.write(0, wanted.get(..half).context("half")?)?;
            written.run(op, local, remote, length).with_context(|| what.to_owned())?;
            // SAFETY: The NIC has written there; no reference to these bytes lives meanwhile.
            let got = unsafe { std::slice::from_raw_parts(host.as_ptr().add(half), half) }.to_vec();
            same(&format!("after a {what}"), &got, wanted.get(..half).context("half")?, 0)?;
            found.operations.push(what.to_owned());
        }
        if self.plan.depth == Depth::Normal {
            written.run(Op::Send, from(0), place(0), length).context("send")?;
            wanted.splice(..half, host.iter().take(half).copied());
            same("after a send", &memory.read()?, &wanted, 0)?;
            found.operations.push("send".to_owned());
        }
        if self.plan.depth == Depth::Normal && device.has_atomics() {
            let link = link()?;
            let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let before = word(&wanted);
            let run = link.run(Op::FetchAdd(5), from(0), place(0), 8);
            let after = word(&memory.read_part(0, 8)?);
            match run {
                Err(error) => {
                    found.level = Level::Warn;
                    found.message = Some(format!("no atomics: {error:#}"));
                }
                Ok(()) => {
                    ensure!(after == before.wrapping_add(5), "an atomic add of 5 to {before:#x} left {after:#x}");
                    found.operations.push("atomics".to_owned());
                }
            }
            wanted.splice(..8, after.to_ne_bytes());
        }
        if self.plan.depth == Depth::Normal {
            let start = Instant::now();
            let address = memory.address();
            memory.free().context("free registered memory")?;
            found.free_us = Some(micros(start));
            let next = self.opened.allocate(BLOCK)?;
            rng.fill(&mut wanted);
            next.write(0, &wanted)?;
            let status = link()?.attempt(Op::Write, from(0), (&region, address), length)?;
            same("memory that was allocated after a free of registered memory", &next.read()?, &wanted, 0)?;
            let words = if status == SUCCESS { "succeed".to_owned() } else { format!("end: {}", status_words(status)) };
            found
                .details
                .push(format!("writes after a free of registered memory {words}; the next memory is untouched"));
            region.deregister().context("deregister memory that was freed")?;
        } else {
            region.deregister().context("deregister GPU memory")?;
        }
        drop(written);
        drop(ours);
        if self.plan.depth != Depth::Quick {
            self.rates(found, learned, &domain, &port, how)?;
        }
        Ok(())
    }

    /// Measures how fast the NIC moves bytes between host and GPU, and how fast the link alone can
    /// be.
    fn rates<'a>(
        &self,
        found: &mut VerifyWay,
        learned: &mut Learned,
        domain: &'a Domain<'a>,
        port: &PortAddress,
        how: How,
    ) -> Result<()> {
        let host = vec![0u8; 2 * MOVED];
        let at = host.as_ptr() as u64;
        let ours = match domain.register(at, 2 * MOVED) {
            Ok(region) => region,
            Err(error) => {
                found.details.push(format!("bandwidth not measured: {} of host memory: {error}", 2 * MOVED));
                return Ok(());
            }
        };
        let memory = self.opened.allocate(MOVED)?;
        memory.clear()?;
        let theirs = match how.register(domain, &memory, 0, MOVED) {
            Ok(region) => region,
            Err(error) => {
                found.details.push(format!("bandwidth not measured: {MOVED} bytes of GPU memory: {error}"));
                return Ok(());
            }
        };
        let link = domain.pair(port)?.within(self.plan.patience());
        let (rounds, span) = self.plan.rounds();
        let one = |from, to| -> Result<f64> {
            let start = Instant::now();
            link.write(from, to, PIECE)?;
            let took = start.elapsed();
            // If one write takes long, many at once would take very long.
            match took > span {
                true => Ok(f64::from(PIECE) / took.as_secs_f64()),
                false => link.rate(from, to, MOVED as u64, PIECE, span),
            }
        };
        let rate = |from, to| -> Result<(f64, Option<f64>)> {
            middle((0..rounds).map(|_| one(from, to)).collect::<Result<_>>()?).context("no rate")
        };
        let memory_at = (&theirs, memory.address());
        let link_limit = speed::limit(self.machine, self.gpu, self.nic);
        // What is slow is measured again, with the NIC alone beside it: the machine may be busy.
        let mut known = learned.host.get(&self.nic.name).copied();
        while_slow(|| {
            let by_host = match known.take() {
                Some(known) => known,
                None => rate((&ours, at), (&ours, at + MOVED as u64)).context("between two places of host memory")?.0,
            };
            learned.host.insert(self.nic.name.clone(), by_host);
            let (to_gpu, to_spread) = rate((&ours, at), memory_at).context("to the GPU")?;
            let (from_gpu, from_spread) = rate(memory_at, (&ours, at)).context("from the GPU")?;
            (found.to_gpu, found.from_gpu) = (Some(to_gpu), Some(from_gpu));
            found.spread = to_spread.zip(from_spread).map(|(to, from)| to.max(from));
            let (limit, by) = link_limit
                .clone()
                .filter(|(limit, _)| *limit < by_host)
                .unwrap_or((by_host, "what the NIC moves between two places of host memory".to_owned()));
            (found.limit, found.limit_by) = (Some(limit), Some(by));
            Ok(found.slower().is_none_or(|slower| is_slow(slower, limit)))
        })
    }

    /// Adds a warning to a way that works and is slow.
    fn judge_speed(&self, found: &mut VerifyWay) {
        let Some(slower) = found.slower() else { return };
        let (limit, by) = (found.limit.unwrap_or_default(), found.limit_by.clone().unwrap_or_default());
        if is_slow(slower, limit) {
            found.level = found.level.max(Level::Warn);
            let said = format!("slow: {:.2} GB/s of {:.2} ({by})", slower / 1e9, limit / 1e9);
            found.message = Some(found.message.take().map_or(said.clone(), |other| format!("{other}; {said}")));
        }
    }
}

/// Returns whether a way is slow that moves so many bytes in a second, where the link could move
/// `limit`.
fn is_slow(rate: f64, limit: f64) -> bool {
    rate < SLOW * limit
}

/// Measures again as long as the measurement says that the way is slow, but not for ever.
fn while_slow(mut measure: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..TRIES {
        if !measure()? {
            break;
        }
    }
    Ok(())
}

/// Returns the median of rounds, and how far they lie apart as a part of the median. The latter is
/// `None` if there is one round only.
fn middle(mut rates: Vec<f64>) -> Option<(f64, Option<f64>)> {
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2).copied()?;
    let (least, most) = (rates.first()?, rates.last()?);
    Some((median, (rates.len() > 1).then(|| (most - least) / median)))
}

/// Returns where registrations begin, and how long they are.
fn classes(depth: Depth, span: usize) -> Vec<(usize, usize)> {
    const PAGE: usize = 4 * KIB;
    let starts: &[usize] = match depth {
        Depth::Normal => &[0, 1, PAGE - 1, PAGE, GPU_PAGE - 1, GPU_PAGE, GPU_PAGE + PAGE + 1],
        _ => &[0, PAGE - 1],
    };
    let lengths: &[usize] = match depth {
        Depth::Normal => &[1, PAGE - 1, PAGE + 1, GPU_PAGE + 1],
        _ => &[PAGE + 1],
    };
    let all = starts.iter().flat_map(|start| lengths.iter().map(|length| (*start, *length)));
    all.filter(|(_, length)| *length <= span).collect()
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// A line of the process that has the preload library.
#[derive(Serialize, Deserialize)]
struct Line {
    nic: String,
    way: VerifyWay,
}

/// Tries the preload library with a GPU and the NICs of `pairs`, in a process that has it.
fn preload(machine: &Machine, plan: &Plan, gpu: &Device, pairs: &mut [VerifyPair], until: Instant) {
    let all = |pairs: &mut [VerifyPair], message: &str| {
        for pair in pairs.iter_mut().filter(|pair| pair.ways.iter().all(|way| way.way != Way::Preload)) {
            pair.ways.push(VerifyWay::skipped(Way::Preload, message.to_owned()));
        }
    };
    let Some(library) = way::preload_library(machine.root) else {
        return all(pairs, &format!("{NOT_TRIED}: libgpumr-preload.so is not installed"));
    };
    if Instant::now() > until {
        return all(pairs, &format!("{NOT_TRIED}: {TIME_IS_UP}"));
    }
    if let Err(error) = preloaded(machine, plan, gpu, &library, pairs, until) {
        all(pairs, &format!("{NOT_TRIED}: {error:#}"));
    }
}

fn preloaded(
    machine: &Machine,
    plan: &Plan,
    gpu: &Device,
    library: &str,
    pairs: &mut [VerifyPair],
    until: Instant,
) -> Result<()> {
    let mut command = process::command(&["--root".as_ref(), machine.root.path().as_os_str()], PRELOAD)?;
    command.args(["--gpu", &gpu.address]);
    if plan.depth == Depth::Quick {
        command.arg("--quick");
    }
    let others = std::env::var("LD_PRELOAD").map(|others| format!(":{others}")).unwrap_or_default();
    command.args(["--seed", &plan.seed.to_string()]);
    let library = machine.root.at(library);
    let library = library.to_str().context("the path of the library")?;
    command.env("LD_PRELOAD", format!("{library}:libibverbs.so.1{others}"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start a process")?;
    let output = BufReader::new(child.stdout.take().context("the process's output")?);
    // All its output together is waited for no longer than one NIC may take.
    let end = until + plan.patience();
    let (send, lines) = channel();
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let ended = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let Ok(Line { nic, way }) = serde_json::from_str(&line) else { continue };
                pairs.iter_mut().filter(|pair| pair.nic == nic).for_each(|pair| pair.ways.push(way.clone()));
            }
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    let _ = child.kill();
    let status = child.wait().context("wait for the process")?;
    ensure!(ended, "the process with {library} did not end in time");
    if !status.success() {
        bail!("the process with {library} ended early ({status})");
    }
    Ok(())
}

/// Runs as the process that has the preload library, and prints a line for each NIC.
pub fn preload_process(root: &Root, plan: &Plan, gpu: &str) -> Result<u8> {
    let machine = Machine::look(root);
    let gpu = crate::select::gpu(&machine, gpu)?;
    let cuda = Cuda::open()?;
    let opened = cuda.gpu(&gpu.address)?;
    let verbs = Verbs::open_preloaded()?;
    let mut learned = Learned::default();
    for nic in machine.rdma.iter().filter(|nic| nic.is_active()) {
        let way = Way::Preload;
        let target = Target { machine: &machine, gpu, nic, way, opened: &opened, verbs: &verbs, plan };
        let line = Line { nic: nic.name.clone(), way: target.tried(&mut learned) };
        println!("{}", serde_json::to_string(&line)?);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_a_median_and_a_spread() {
        assert_eq!(middle(vec![10.0, 12.0, 9.0, 11.0, 10.0]), Some((10.0, Some(0.3))));
        assert_eq!(middle(vec![5.0]), Some((5.0, None)));
        assert_eq!(middle(Vec::new()), None);
    }

    fn plan(depth: Depth) -> Plan<'static> {
        Plan { words: &[], depth, until: Instant::now(), seed: 1 }
    }

    #[test]
    fn a_nic_that_hangs_costs_ten_seconds_or_three_and_a_call_three_times_that() {
        let seconds = |depth| [plan(depth).patience().as_secs(), plan(depth).longest_call().as_secs()];
        assert_eq!(seconds(Depth::Normal), [10, 30]);
        assert_eq!(seconds(Depth::Rates), [10, 30]);
        assert_eq!(seconds(Depth::Quick), [3, 9]);
    }

    #[test]
    fn a_matrix_has_medians_of_five_rounds() {
        assert_eq!(plan(Depth::Rates).rounds().0, 5);
    }

    #[test]
    fn slow_is_below_half() {
        assert!(!is_slow(12.5e9, 25e9));
        assert!(is_slow(12.49e9, 25e9));
    }

    #[test]
    fn what_is_slow_is_measured_three_times() {
        let times = |slow: fn(usize) -> bool| {
            let mut times = 0;
            while_slow(|| {
                times += 1;
                Ok(slow(times))
            })
            .unwrap();
            times
        };
        assert_eq!(times(|_| true), 3);
        assert_eq!(times(|time| time < 2), 2);
        assert_eq!(times(|_| false), 1);
    }
}
