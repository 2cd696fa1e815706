// SPDX-License-Identifier: GPL-2.0
//! Runs one process of the storm: it registers, posts, deregisters, frees, forks, kills, execs and
//! removes the NIC as its plan says, and checks each result. The suite `storm` runs several of them
//! at once.

pub mod log;
pub mod plan;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::time::{clock_gettime, ClockId};
use nix::unistd::{fork, ForkResult, Pid};

use crate::common::{pattern, same_bytes, KIB, MIB};
use crate::cuda::{Cuda, DeviceMemory};
use crate::init::run;
use crate::machine::RDMA_DEVICE;
use crate::rusage;
use crate::test::FAIL_MARK;
use crate::verbs::{Completion, Device, Loopback, Mr, Pd, Status, FULL_ACCESS};
use log::Log;
use plan::{Op, Plan, Who, MEMS, MRS};

/// The time that anything may take with eight processes under emulation. If it takes longer, it
/// hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the processor time of this process and of its children that have ended, in microseconds.
fn processor_us() -> Result<u64> {
    Ok(u64::try_from((rusage::own()? + rusage::children()?).as_micros())?)
}

/// The number of registrations of one process from which on a storm is a long one.
const LONG: u64 = 10_000;

/// This file exists while the NIC is away.
const AWAY: &str = "/tmp/storm-away";

/// The names of the results of [`Counts::chain`]: one for the operations, one for operations and
/// times.
pub const SEQUENCE: &str = "sequence";
pub const INTERLEAVING: &str = "interleaving";

/// The counts of a process over all its lives.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// The counts by [`Op::name`], and `registered`, `refused`, `arrived`, `errors`, `slow`,
    /// `hca_lost`; the microseconds of processor time, as `NAME us`; and two chains.
    pub of: BTreeMap<String, u64>,
}

impl Counts {
    pub fn add(&mut self, name: &str) {
        *self.of.entry(name.to_string()).or_default() += 1;
    }

    /// Adds the processor time since `begin`, as `NAME us`.
    fn took(&mut self, name: &str, begin: u64) -> Result<()> {
        *self.of.entry(format!("{name} us")).or_default() += processor_us()? - begin;
        Ok(())
    }

    /// Adds to a number that is the same in another run if everything that was chained is the same,
    /// in the same order.
    fn chain(&mut self, name: &str, what: impl Hash) {
        let so_far = self.of.entry(name.to_string()).or_default();
        // This hasher has fixed keys.
        let mut hasher = std::hash::DefaultHasher::new();
        (*so_far, what).hash(&mut hasher);
        *so_far = hasher.finish();
    }

    pub fn get(&self, name: &str) -> u64 {
        self.of.get(name).copied().unwrap_or(0)
    }

    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self { of: serde_json::from_str(text).with_context(|| format!("counts {text:?}"))? })
    }

    pub fn print(&self) -> String {
        serde_json::json!(self.of).to_string()
    }
}

/// This process's open NIC.
struct Nic {
    device: Arc<Device>,
    pd: Arc<Pd>,
    /// The link, which is made when it is needed, and again after an error.
    link: Option<Loopback>,
}

impl Nic {
    /// Opens the NIC. It may be away just now, so this waits for it.
    fn open() -> Result<Self> {
        const PAUSE: Duration = Duration::from_millis(30);
        let end = Instant::now() + LIMIT;
        loop {
            match Device::open(RDMA_DEVICE).and_then(|device| Ok(Self { pd: Pd::new(&device)?, device, link: None })) {
                Ok(nic) => return Ok(nic),
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => std::thread::sleep(PAUSE),
            }
            // Each try takes a quarter of a second from the processor that brings it back.
            while Path::new(AWAY).exists() && Instant::now() < end {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Returns whether the NIC was removed while it was open. The present one is another.
    fn is_gone(&self) -> bool {
        Pd::new(&self.device).is_err()
    }
}

struct Allocation {
    memory: DeviceMemory,
    id: Id,
}

/// The identity of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Id {
    number: u64,
    /// Whether no other allocation shares its memory, so that its free ends a revocable
    /// registration.
    alone: bool,
}

struct Registration {
    mr: Mr,
    /// The allocation, and the offset in it.
    memory: Id,
    at: usize,
    len: usize,
    /// Whether its memory was freed meanwhile.
    freed: bool,
}

impl Registration {
    fn overlaps(&self, other: &Self) -> bool {
        self.memory == other.memory && self.at < other.at + other.len && other.at < self.at + self.len
    }
}

/// The outcome of an operation that did not fail.
enum Flow {
    Next,
    /// The NIC is gone.
    Gone,
}

struct Process {
    plan: Plan,
    who: Who,
    log: Option<Log>,
    /// Whether revocable pins come first.
    legacy: bool,
    cuda: Arc<Cuda>,
    nic: Nic,
    mems: [Option<Allocation>; MEMS],
    mrs: [Option<Registration>; MRS],
    allocations: u64,
    counts: Counts,
}

/// Runs `guest helper storm SEED PROCESS LIFE REGISTRATIONS COUNTS`.
pub fn main(seed: u64, process: u64, life: u64, registrations: u64, counts: Counts) -> Result<()> {
    let who = Who { seed, process, life, victim: false, long: registrations >= LONG };
    let log = Log::open(process, life == 0, counts.get("log"))?;
    if process == 0 && life == 0 {
        // An earlier storm that failed may have left the file.
        let _ = std::fs::remove_file(AWAY);
    }
    let mut this = Process::start(who, Some(log), counts)?;
    while this.counts.get("registered") < registrations {
        this.step(registrations)?;
    }
    println!("storm {}", this.counts.print());
    // The plan decides whether the process releases what is still registered and allocated, or
    // leaves that to its own end.
    if this.plan.rng().bool() {
        std::mem::forget(this);
    }
    Ok(())
}

/// Runs `guest helper storm-victim SEED`: a process that is to be killed.
pub fn victim(seed: u64) -> Result<()> {
    let who = Who { seed, process: 0, life: 0, victim: true, long: false };
    let mut this = Process::start(who, None, Counts::default())?;
    println!("ready");
    io::stdout().flush().context("flush")?;
    loop {
        this.step(0)?;
    }
}

impl Process {
    fn start(who: Who, log: Option<Log>, counts: Counts) -> Result<Self> {
        let stats = "/proc/driver/nvidia-peermem/stats";
        let legacy =
            std::fs::read_to_string(stats).with_context(|| format!("read {stats}"))?.contains("\nmode legacy\n");
        let begin = processor_us()?;
        let mut plan = Plan::new(who);
        // The order decides which file a dying process releases first.
        let (cuda, nic) = if plan.rng().bool() {
            let cuda = Cuda::open()?;
            (cuda, Nic::open()?)
        } else {
            let nic = Nic::open()?;
            (Cuda::open()?, nic)
        };
        let mut counts = counts;
        counts.took("start", begin)?;
        let (mems, mrs) = Default::default();
        Ok(Self { plan, who, log, legacy, cuda, nic, mems, mrs, allocations: 0, counts })
    }

    fn note(&mut self, text: &str) -> Result<()> {
        match &mut self.log {
            Some(log) => {
                self.counts.add("log");
                log.line(text)
            }
            None => Ok(()),
        }
    }

    fn step(&mut self, registrations: u64) -> Result<()> {
        let op = self.plan.next();
        let text = format!("life {} {op:?}", self.who.life);
        self.note(&text)?;
        self.counts.add(op.name());
        self.counts.chain(SEQUENCE, &text);
        // The time is exact to the nanosecond: where the clock counts instructions, equal times
        // mean equal interleavings.
        self.counts.chain(INTERLEAVING, (&text, clock_gettime(ClockId::CLOCK_MONOTONIC)?.num_nanoseconds()));
        let begin = processor_us()?;
        let flow = self.apply(op, registrations).with_context(|| format!("life {} {op:?}", self.who.life))?;
        self.counts.took(op.name(), begin)?;
        if matches!(flow, Flow::Gone) {
            self.counts.add("hca_lost");
            self.note("    the NIC is gone")?;
            self.mrs = Default::default();
            let begin = processor_us()?;
            self.nic = Nic::open().context("open the NIC again")?;
            self.counts.took("reopen", begin)?;
        }
        // Collect children that held files open for a while.
        while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
            waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG))
        {}
        Ok(())
    }

    fn apply(&mut self, op: Op, registrations: u64) -> Result<Flow> {
        match op {
            Op::Alloc { mem, kib } => {
                self.free(mem)?;
                self.alloc(mem, kib * KIB)?;
            }
            Op::Free { mem } => self.free(mem)?,
            Op::Register { mr, mem, times } => {
                for _ in 0..times {
                    if let Flow::Gone = self.register(mr, mem)? {
                        return Ok(Flow::Gone);
                    }
                }
            }
            Op::Deregister { mr } => return self.deregister(mr),
            Op::Write { from, to, kib } => return self.transfer(from, to, kib * KIB, true),
            Op::Read { from, to, kib } => return self.transfer(from, to, kib * KIB, false),
            Op::FreeAndRegister { mem, mr } => return self.free_and_register(mem, mr),
            Op::FreeAndDeregister { mr } => return self.free_and_deregister(mr),
            Op::FreeAndWrite { from, to } => return self.free_and_write(from, to),
            Op::DeregisterAndRegister { mr, into } => return self.deregister_and_register(mr, into),
            Op::ForkDeregister { mr } => return self.fork_deregister(mr),
            Op::ForkHold { us } => hold_files(us)?,
            Op::Kill { seed, us } => kill_victim(seed, us)?,
            Op::Exec { thread } => self.exec(thread, registrations)?,
            Op::RemoveHca => {
                std::fs::write(AWAY, "").with_context(|| format!("write {AWAY}"))?;
                run("rdma", &["link", "delete", RDMA_DEVICE])?;
                run("rdma", &["link", "add", RDMA_DEVICE, "type", "rxe", "netdev", "eth0"])?;
                std::fs::remove_file(AWAY).with_context(|| format!("remove {AWAY}"))?;
                return Ok(Flow::Gone);
            }
        }
        Ok(Flow::Next)
    }

    fn alloc(&mut self, mem: usize, size: usize) -> Result<&Allocation> {
        self.allocations += 1;
        let memory = self.cuda.alloc(size)?;
        let id = Id { number: self.allocations, alone: size >= 2 * MIB };
        Ok(self.mems[mem].insert(Allocation { memory, id }))
    }

    /// Returns the memory in this slot, and allocates it if there is none.
    fn memory(&mut self, mem: usize) -> Result<&Allocation> {
        if self.mems[mem].is_none() {
            return self.alloc(mem, 512 * KIB);
        }
        self.mems[mem].as_ref().context("just looked at")
    }

    fn free(&mut self, mem: usize) -> Result<()> {
        let Some(allocation) = self.mems[mem].take() else { return Ok(()) };
        self.is_freed(allocation.id);
        allocation.memory.free()
    }

    fn is_freed(&mut self, id: Id) {
        for registration in self.mrs.iter_mut().flatten().filter(|r| r.memory == id) {
            registration.freed = true;
        }
    }

    /// Checks that a failed registration has a reason: the NIC is gone, or another thread frees the
    /// memory.
    fn refused(&mut self, error: &io::Error, memory_goes: bool) -> Result<Flow> {
        self.counts.add("refused");
        if self.nic.is_gone() {
            return Ok(Flow::Gone);
        }
        match error.raw_os_error() {
            Some(libc::EFAULT) if memory_goes => Ok(Flow::Next),
            _ => bail!("ibv_reg_mr: {error}"),
        }
    }

    fn keep(&mut self, mr: usize, registration: Registration) {
        self.counts.add("registered");
        self.mrs[mr] = Some(registration);
    }

    fn register(&mut self, mr: usize, mem: usize) -> Result<Flow> {
        if let Flow::Gone = self.deregister(mr)? {
            return Ok(Flow::Gone);
        }
        let rng = self.plan.rng();
        let (a, b, odd) = (rng.usize(..4096), rng.usize(..4096), rng.usize(..4096));
        let (from, to) = (a.min(b), a.max(b));
        let allocation = self.memory(mem)?;
        let (memory, va, size) = (allocation.id, allocation.memory.va(), allocation.memory.size());
        let at = (size / 4096 * from + odd).min(size - 1);
        let len = (size / 4096 * (to - from)).clamp(1, size - at);
        match Mr::reg(&self.nic.pd, va + at as u64, len, FULL_ACCESS) {
            Ok(new) => self.keep(mr, Registration { mr: new, memory, at, len, freed: false }),
            Err(e) => return self.refused(&e, false),
        }
        Ok(Flow::Next)
    }

    fn deregister(&mut self, mr: usize) -> Result<Flow> {
        match self.mrs[mr].take() {
            Some(registration) => {
                let result = registration.mr.dereg();
                self.deregistered(result)
            }
            None => Ok(Flow::Next),
        }
    }

    fn deregistered(&self, result: io::Result<()>) -> Result<Flow> {
        match result {
            Ok(()) => Ok(Flow::Next),
            Err(_) if self.nic.is_gone() => Ok(Flow::Gone),
            Err(e) => bail!("ibv_dereg_mr: {e}"),
        }
    }

    /// Returns the pair of queues, or `None` if the NIC is gone.
    fn link(&mut self) -> Result<Option<&Loopback>> {
        if self.nic.link.is_none() {
            match Loopback::new(&self.nic.pd) {
                Ok(link) => self.nic.link = Some(link),
                Err(_) if self.nic.is_gone() => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(self.nic.link.as_ref())
    }

    /// Returns the next completion, or `None` if the NIC is gone.
    fn completion(&mut self) -> Result<Option<Completion>> {
        let end = Instant::now() + LIMIT;
        loop {
            let link = self.nic.link.as_ref().context("something was posted")?;
            match link.wait(Duration::from_millis(100)) {
                Ok(completion) => {
                    if completion.status != Status::IBV_WC_SUCCESS {
                        // The queues are in the error state now.
                        self.counts.add("errors");
                    }
                    return Ok(Some(completion));
                }
                Err(_) if self.nic.is_gone() => return Ok(None),
                Err(e) if Instant::now() > end => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// Returns the first registration from slot `mr` on.
    fn held(&self, mr: usize) -> usize {
        (mr..MRS).chain(0..mr).find(|at| self.mrs[*at].is_some()).unwrap_or(mr)
    }

    /// Moves bytes and checks that they arrive or that the completion is an error, which must have
    /// a reason.
    fn transfer(&mut self, from: usize, to: usize, most: usize, write: bool) -> Result<Flow> {
        let from = self.held(from);
        let to = self.held((to + from + 1) % MRS);
        if from == to {
            return Ok(Flow::Next);
        }
        if self.link()?.is_none() {
            return Ok(Flow::Gone);
        }
        let (Some(a), Some(b)) = (&self.mrs[from], &self.mrs[to]) else { return Ok(Flow::Next) };
        let len = a.len.min(b.len).min(most);
        let dead = self.legacy && [a, b].iter().any(|r| r.freed && r.memory.alone);
        // If it shares its memory, it is dead only once the last allocation is freed.
        let may_be_dead = self.legacy && (a.freed || b.freed);
        let find = |r: &Registration| self.mems.iter().flatten().find(|m| m.id == r.memory && !r.freed);
        let checked = match (find(a), find(b)) {
            (Some(source), Some(target)) if !a.overlaps(b) => {
                let bytes = pattern(self.plan.rng(), len);
                source.memory.write(a.at, &bytes)?;
                Some((target.id, b.at, bytes))
            }
            _ => None,
        };
        let link = self.nic.link.as_ref().context("just made")?;
        // A read brings the remote bytes here, so the source is the remote side.
        let posted =
            if write { link.write(1, (&a.mr, 0), (&b.mr, 0), len) } else { link.read(1, (&b.mr, 0), (&a.mr, 0), len) };
        if let Err(e) = posted {
            return if self.nic.is_gone() { Ok(Flow::Gone) } else { Err(e).context("ibv_post_send") };
        }
        let Some(completion) = self.completion()? else { return Ok(Flow::Gone) };
        match completion.status {
            Status::IBV_WC_SUCCESS if dead => bail!("an access to freed memory succeeded"),
            Status::IBV_WC_SUCCESS => {}
            status => {
                self.nic.link = None;
                if self.nic.is_gone() {
                    return Ok(Flow::Gone);
                }
                // With eight processes under emulation, an answer may be later than the queue pair
                // waits.
                if !may_be_dead && status == Status::IBV_WC_RETRY_EXC_ERR {
                    self.counts.add("slow");
                    return Ok(Flow::Next);
                }
                ensure!(may_be_dead, "an access to live memory: {status:?}");
                return Ok(Flow::Next);
            }
        }
        if let Some((id, at, bytes)) = checked {
            let target = self.mems.iter().flatten().find(|m| m.id == id).context("the target's memory")?;
            same_bytes("what was written", &target.memory.read(at, len)?, &bytes)?;
            self.counts.add("arrived");
        }
        Ok(Flow::Next)
    }

    /// Frees memory in another thread while `beside` runs in this one.
    fn free_beside<T>(&mut self, mem: usize, beside: impl FnOnce(&Nic) -> T) -> Result<T> {
        let Allocation { memory, id } = self.mems[mem].take().context("the caller looked")?;
        let (cuda, start) = (Arc::clone(&self.cuda), Barrier::new(2));
        let (freed, result) = scope(|s| {
            let other = s.spawn(|| -> Result<()> {
                cuda.attach()?;
                start.wait();
                memory.free()
            });
            start.wait();
            let result = beside(&self.nic);
            (other.join(), result)
        });
        self.is_freed(id);
        freed.map_err(|_| anyhow::anyhow!("the freeing thread panicked"))??;
        Ok(result)
    }

    fn free_and_register(&mut self, mem: usize, mr: usize) -> Result<Flow> {
        if let Flow::Gone = self.deregister(mr)? {
            return Ok(Flow::Gone);
        }
        let allocation = self.memory(mem)?;
        let (memory, va, len) = (allocation.id, allocation.memory.va(), allocation.memory.size());
        match self.free_beside(mem, |nic| Mr::reg(&nic.pd, va, len, FULL_ACCESS))? {
            Ok(new) => self.keep(mr, Registration { mr: new, memory, at: 0, len, freed: true }),
            Err(e) => return self.refused(&e, true),
        }
        Ok(Flow::Next)
    }

    /// Returns the slot of the memory under this registration, if it still exists.
    fn memory_of(&self, mr: usize) -> Option<usize> {
        let id = self.mrs[mr].as_ref()?.memory;
        self.mems.iter().position(|m| m.as_ref().is_some_and(|m| m.id == id))
    }

    fn free_and_deregister(&mut self, mr: usize) -> Result<Flow> {
        let Some(mem) = self.memory_of(mr) else { return self.deregister(mr) };
        let registration = self.mrs[mr].take().context("it has memory")?;
        let result = self.free_beside(mem, |_| registration.mr.dereg())?;
        self.deregistered(result)
    }

    /// Frees memory while the NIC uses it. Its next owner must not see a byte of that, unless the
    /// block has another user and so stays where it is.
    fn free_and_write(&mut self, from: usize, to: usize) -> Result<Flow> {
        const WRITES: u64 = 4;
        let to = self.held(to);
        let from = self.held((from + to + 1) % MRS);
        let Some(mem) = self.memory_of(to) else { return self.deregister(to) };
        if from == to || self.mrs[from].is_none() {
            return Ok(Flow::Next);
        }
        if self.link()?.is_none() {
            return Ok(Flow::Gone);
        }
        let (a, b) = (self.mrs[from].take().context("just looked")?, self.mrs[to].take().context("it has memory")?);
        let len = a.len.min(b.len);
        let size = self.mems[mem].as_ref().context("it has memory")?.memory.size();
        let posted = std::cell::Cell::new(0);
        let result = self.free_beside(mem, |nic| -> io::Result<()> {
            for id in 0..WRITES {
                match &nic.link {
                    Some(link) => link.write(id, (&a.mr, 0), (&b.mr, 0), len)?,
                    None => break,
                }
                posted.set(posted.get() + 1);
            }
            Ok(())
        })?;
        let (freed, source_freed, alone) = (true, a.freed || a.memory == b.memory, b.memory.alone);
        self.mrs[from] = Some(Registration { freed: source_freed, ..a });
        self.mrs[to] = Some(Registration { freed, ..b });
        let theirs = pattern(self.plan.rng(), 64 * KIB);
        self.alloc(mem, size)?.memory.write(0, &theirs)?;
        for _ in 0..posted.get() {
            match self.completion()? {
                None => return Ok(Flow::Gone),
                Some(c)
                    if c.status != Status::IBV_WC_SUCCESS
                        && !self.legacy
                        && c.status != Status::IBV_WC_RETRY_EXC_ERR =>
                {
                    let flushed = c.status == Status::IBV_WC_WR_FLUSH_ERR;
                    ensure!(flushed || self.nic.is_gone(), "a write to memory that is kept: {:?}", c.status);
                }
                Some(_) => {}
            }
        }
        // Any of the requests may have failed.
        self.nic.link = None;
        let next = self.mems[mem].as_ref().context("just allocated")?;
        if alone {
            same_bytes("the next owner's memory", &next.memory.read(0, theirs.len())?, &theirs)?;
        }
        match result {
            Err(e) if !self.nic.is_gone() => Err(e).context("ibv_post_send"),
            Err(_) => Ok(Flow::Gone),
            Ok(()) => Ok(Flow::Next),
        }
    }

    fn deregister_and_register(&mut self, mr: usize, into: usize) -> Result<Flow> {
        let (Some(mem), true) = (self.memory_of(mr), mr != into) else { return self.deregister(mr) };
        if let Flow::Gone = self.deregister(into)? {
            return Ok(Flow::Gone);
        }
        let old = self.mrs[mr].take().context("it has memory")?;
        let (at, len, memory) = (old.at, old.len, old.memory);
        let va = self.mems[mem].as_ref().context("it is there")?.memory.va() + at as u64;
        let (pd, start) = (Arc::clone(&self.nic.pd), Barrier::new(2));
        let (old, new) = scope(|s| {
            let other = s.spawn(|| {
                start.wait();
                old.mr.dereg()
            });
            start.wait();
            let new = Mr::reg(&pd, va, len, FULL_ACCESS);
            (other.join(), new)
        });
        let old = old.map_err(|_| anyhow::anyhow!("the deregistering thread panicked"))?;
        match new {
            Ok(new) => self.keep(into, Registration { mr: new, memory, at, len, freed: false }),
            Err(e) => {
                if let Flow::Gone = self.refused(&e, false)? {
                    return Ok(Flow::Gone);
                }
            }
        }
        self.deregistered(old)
    }

    /// Deregisters in a child, which has the file but did not pin.
    fn fork_deregister(&mut self, mr: usize) -> Result<Flow> {
        let Some(registration) = self.mrs[mr].take() else { return Ok(Flow::Next) };
        // SAFETY: this process has one thread; the child calls the library and ends without
        // unwinding.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => {
                let code = i32::from(registration.mr.dereg().is_err());
                // SAFETY: ends the child at once; nothing of the parent's is flushed or dropped
                // twice.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => {
                // The child has done the kernel's part; drop only the library's part here.
                std::mem::forget(registration);
                match waitpid(child, None).context("wait for the child")? {
                    WaitStatus::Exited(_, 0) => Ok(Flow::Next),
                    _ if self.nic.is_gone() => Ok(Flow::Gone),
                    status => bail!("the child that deregisters: {status:?}"),
                }
            }
        }
    }

    /// Runs exec. Everything that is open and pinned goes with the old program, or with a child
    /// that still has it.
    fn exec(&mut self, thread: bool, registrations: u64) -> Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["helper", "storm"]);
        command.args([self.who.seed, self.who.process, self.who.life + 1, registrations].map(|n| n.to_string()));
        command.arg(self.counts.print());
        let error = if thread {
            scope(|s| s.spawn(|| command.exec()).join())
                .map_err(|_| anyhow::anyhow!("the thread that execs panicked"))?
        } else {
            command.exec()
        };
        Err(error).context("exec")
    }
}

/// Starts a child that has all our files and does nothing with them.
fn hold_files(us: u64) -> Result<()> {
    // SAFETY: this process has one thread; the child sleeps and ends without unwinding.
    if let ForkResult::Child = unsafe { fork() }.context("fork")? {
        std::thread::sleep(Duration::from_micros(us));
        // SAFETY: ends the child at once; nothing of the parent's is flushed or dropped twice.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}

fn kill_victim(seed: u64, us: u64) -> Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["helper", "storm-victim", &seed.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start a victim")?;
    let mut out = BufReader::new(child.stdout.take().context("the victim's output")?);
    let mut said = String::new();
    out.read_line(&mut said).context("read from the victim")?;
    std::thread::sleep(Duration::from_micros(us));
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGKILL).context("kill the victim")?;
    child.wait().context("wait for the victim")?;
    out.read_to_string(&mut said).context("read from the victim")?;
    ensure!(!said.contains(FAIL_MARK), "victim {seed}: {}", said.replace(FAIL_MARK, ""));
    Ok(())
}
