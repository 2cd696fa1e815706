// SPDX-License-Identifier: GPL-2.0
//! Other processes that checks need: `peermemctl verify --process KIND`, which says `ready`, then
//! what it counted, line by line.

use super::rig::{self, deliver, Conditions, Place, Rig, GPU_PAGE, MIB};
use crate::root::Root;
use crate::verbs::{Op, Region};
use anyhow::{bail, ensure, Context, Result};
use fastrand::Rng;
use rustix::process::{getppid, set_parent_process_death_signal, Pid, Signal};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::ManuallyDrop;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The process that registers, moves bytes and compares them until its input ends.
pub const MOVER: &str = "mover";
/// The process that forks children that exit and run exec.
pub const FORK: &str = "fork";
/// The process that does the same, and forks a child that deregisters.
pub const FORK_DEREGISTER: &str = "fork-deregister";
/// The process that is one life in the storm.
pub const STORM: &str = "storm";

/// The variable that tells a process who started it.
const PARENT: &str = "PEERMEMCTL_PARENT";

/// Returns `peermemctl verify --process KIND`, which ends with this process: `words` come first.
pub fn command(words: &[&OsStr], kind: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.args(words).args(["verify", "--process", kind]).env(PARENT, std::process::id().to_string());
    Ok(command)
}

/// Has this process killed when its parent ends, however that ends: it may wait for a NIC, or
/// register for minutes, and would go on although nobody reads what it prints. The parent is the
/// thread that started it, and each thread waits for its processes. An error means that the parent
/// has ended already.
pub fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to be ended with the parent")?;
    // The kernel sends no signal for a parent that ended before this call.
    let parent = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok());
    let is_there = parent.is_none_or(|parent: i32| Pid::as_raw(getppid()) == parent);
    ensure!(is_there, "the process that started this one has ended");
    Ok(())
}

/// The work that a process did.
#[derive(Default, Clone, Copy)]
pub struct Counts {
    pub registered: u64,
    /// Registrations whose memory was freed first.
    pub freed: u64,
    /// Bytes that were moved.
    pub moved: u64,
    pub forks: u64,
}

impl Counts {
    fn line(&self) -> String {
        format!("counts {} {} {} {}", self.registered, self.freed, self.moved, self.forks)
    }

    fn parse(line: &str) -> Option<Self> {
        let numbers: Vec<u64> = line.strip_prefix("counts ")?.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [registered, freed, moved, forks] = *numbers.as_slice() else { return None };
        Some(Self { registered, freed, moved, forks })
    }

    fn add(&mut self, other: &Self) {
        self.registered += other.registered;
        self.freed += other.freed;
        self.moved += other.moved;
        self.forks += other.forks;
    }
}

/// A process that was started; killed when dropped.
pub struct Child {
    child: std::process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub fn start(kind: &str, conditions: &Conditions, seed: u64) -> Result<Self> {
        let mut command = command(&[], kind)?;
        command.args(["--seed", &seed.to_string()]);
        command.args(["--gpu", &conditions.place.gpu, "--nic", &conditions.place.nic]);
        // Kernels before 5.12 copy pinned pages of the host at fork without it.
        command.env("RDMAV_FORK_SAFE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start a process")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("the process's output")?);
        Ok(Self { child, input, output })
    }

    /// Waits until the process has registered.
    pub fn ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("read from the process")?;
        match line.trim_end() {
            "ready" => Ok(()),
            other => bail!("a process ended before it had registered anything: {other}"),
        }
    }

    /// Lets the process end, and returns what it counted.
    pub fn finish(mut self) -> Result<Counts> {
        drop(self.input.take());
        let (counts, status, said) = self.end()?;
        ensure!(status.success(), "{said} ({status})");
        Ok(counts)
    }

    /// Kills the process with SIGKILL, waits until it is gone, and returns its last counts.
    pub fn kill(mut self) -> Result<Counts> {
        self.child.kill().context("kill -9")?;
        Ok(self.end()?.0)
    }

    /// Waits until the process is gone, and returns its last counts, how it ended, and its other
    /// words.
    fn end(&mut self) -> Result<(Counts, ExitStatus, String)> {
        let mut text = Vec::new();
        self.output.read_to_end(&mut text).context("read from the process")?;
        let status = self.child.wait().context("wait for the process")?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let counts = text.lines().rev().find_map(Counts::parse).unwrap_or_default();
        let said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("failed: ")).collect();
        Ok((counts, status, said.join("; ")))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The process is gone already, unless a check failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of processes of the storm at a time.
const AT_ONCE: u64 = 4;

/// Starts processes until the time is up, and kills half of them with SIGKILL. Returns what all of
/// them counted, and how many were killed.
pub fn storm(conditions: &Conditions) -> Result<(Counts, u64)> {
    let end = Instant::now() + conditions.storm;
    let lives = |slot: u64| -> Result<(Counts, u64)> {
        let mut rng = Rng::with_seed(conditions.seed.wrapping_add(slot));
        let (mut counts, mut killed) = (Counts::default(), 0);
        while Instant::now() < end {
            let seed = rng.u64(..);
            let mut child = Child::start(STORM, conditions, seed)?;
            child.ready().with_context(|| format!("process {slot}, seed {seed}"))?;
            let life = Duration::from_millis(rng.u64(500..6000));
            thread::sleep(life.min(end.saturating_duration_since(Instant::now())));
            let kill = rng.bool();
            let ended = if kill { child.kill() } else { child.finish() };
            killed += u64::from(kill);
            counts.add(&ended.with_context(|| format!("process {slot}, seed {seed}"))?);
        }
        Ok((counts, killed))
    };
    thread::scope(|scope| {
        let slots: Vec<_> = (0..AT_ONCE).map(|slot| scope.spawn(move || lives(slot))).collect();
        let mut all = (Counts::default(), 0);
        for slot in slots {
            let (counts, killed) = slot.join().map_err(|_| anyhow::anyhow!("a thread of the storm panicked"))??;
            all.0.add(&counts);
            all.1 += killed;
        }
        Ok(all)
    })
}

/// Does the work of such a process, and returns its exit code.
pub fn run(root: &Root, kind: &str, place: &Place, seed: u64) -> u8 {
    let done = rig::with(root, place, |rig| match kind {
        MOVER => mover(rig, seed),
        FORK => forks(rig, seed, false),
        FORK_DEREGISTER => forks(rig, seed, true),
        STORM => life(rig, seed),
        _ => bail!("--process {kind}: there is no such process"),
    });
    match done {
        Ok(()) => 0,
        Err(error) => {
            say(&format!("failed: {error:#}"));
            2
        }
    }
}

/// Writes a line for the parent. Ends this process if the parent is gone.
fn say(line: &str) {
    let mut out = std::io::stdout();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(2);
    }
}

/// Returns a flag that is set once the input has ended.
fn end_of_input() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&ended);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Ordering::Relaxed);
    });
    ended
}

fn mover(rig: &Rig, seed: u64) -> Result<()> {
    const SIZE: usize = 2 * MIB;
    let mut rng = Rng::with_seed(seed);
    let link = rig.link()?;
    let mut host = rig.host(SIZE, &mut rng)?;
    let mut target = rig.on_gpu(SIZE, &mut rng)?;
    let ended = end_of_input();
    say("ready");
    let mut counts = Counts { registered: 1, ..Counts::default() };
    while !ended.load(Ordering::Relaxed) {
        let op = if rng.bool() { Op::Write } else { Op::Send };
        let length = rng.usize(1..=SIZE / 2);
        let (from, to) = (rng.usize(0..=SIZE / 2), rng.usize(0..=SIZE / 2));
        deliver(&link, op, (&mut host, from), (&mut target, to), length, &mut rng)?;
        deliver(&link, Op::Read, (&mut target, to), (&mut host, from), length, &mut rng)?;
        counts.moved += 2 * length as u64;
    }
    target.deregister().context("deregister")?;
    say(&counts.line());
    Ok(())
}

/// Runs `run` in a child of fork, which then ends at once, and returns its exit code.
fn in_child(run: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: The child runs `run`, which takes no lock that another thread may have held, and ends
    // without unwinding.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            let code = run();
            // SAFETY: Ends the child at once: what it inherited is its parent's to release.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: A child of this process, and a local for its status.
            if unsafe { libc::waitpid(child, &mut status, 0) } != child {
                return Err(std::io::Error::last_os_error()).context("wait for the child");
            }
            ensure!(libc::WIFEXITED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
            Ok(libc::WEXITSTATUS(status))
        }
    }
}

fn exec() -> i32 {
    let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
    // SAFETY: A terminated list of strings that live.
    unsafe { libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()) };
    127
}

/// Checks that the parent's registration outlives a child that exits, one that runs exec, and one
/// that deregisters another registration.
fn forks(rig: &Rig, seed: u64, deregister: bool) -> Result<()> {
    const SIZE: usize = MIB;
    let mut rng = Rng::with_seed(seed);
    let link = rig.link()?;
    let mut host = rig.host(SIZE, &mut rng)?;
    let mut target = rig.on_gpu(SIZE, &mut rng)?;
    let other = rig.gpu.allocate(SIZE)?;
    let others = rig.register(&other, 0, SIZE).context("register GPU memory")?;
    say("ready");
    let mut works = |what: &str| {
        deliver(&link, Op::Write, (&mut host, 1), (&mut target, 2), SIZE / 2, &mut rng).with_context(|| what.to_owned())
    };
    ensure!(in_child(|| 0)? == 0, "the child that exits");
    works("after a child that exited")?;
    ensure!(in_child(exec)? == 0, "the child that runs exec");
    works("after a child that ran exec")?;
    if deregister {
        // The kernel has no such registration any more, and this process shall not ask for its end.
        let others = ManuallyDrop::new(others);
        let code = in_child(|| match ManuallyDrop::into_inner(others).deregister() {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(255),
        })?;
        ensure!(code == 0, "the child could not deregister: {}", std::io::Error::from_raw_os_error(code));
        works("after a child that deregistered another registration")?;
        // The owner's next call ends what the child could not.
        rig.register(&other, 0, SIZE).context("register what the child deregistered")?.deregister()?;
    }
    target.deregister().context("deregister")?;
    Ok(())
}

/// Does everything at random until the input ends.
fn life(rig: &Rig, seed: u64) -> Result<()> {
    const LARGEST: usize = 8 * MIB;
    const PIECE: usize = 2 * GPU_PAGE;
    /// The number of rounds of which one forks.
    const FORKS: u32 = 16;
    let mut rng = Rng::with_seed(seed);
    let mut host = rig.host(PIECE, &mut rng)?;
    let ended = end_of_input();
    let mut counts = Counts::default();
    say("ready");
    while !ended.load(Ordering::Relaxed) {
        let link = rig.link()?;
        let size = rng.usize(1..=LARGEST);
        let memory = rig.gpu.allocate(size)?;
        let mut regions: Vec<(usize, usize, Region)> = Vec::new();
        for _ in 0..rng.usize(1..=4) {
            let start = rng.usize(0..size);
            let length = rng.usize(1..=size - start);
            let region = rig.register(&memory, start, length);
            regions.push((start, length, region.with_context(|| format!("register {length} bytes of {size}"))?));
            counts.registered += 1;
        }
        for (start, length, region) in &regions {
            let part = rng.usize(1..=(*length).min(PIECE));
            let at = rng.usize(0..=length - part);
            let place = (region, memory.address() + (start + at) as u64);
            host.refill(0..part, &mut rng)?;
            link.write(host.at(0), place, u32::try_from(part)?)?;
            let bytes = host.wanted.get(..part).context("part")?;
            rig::same("the storm's bytes", &memory.read_part(start + at, part)?, bytes, start + at)?;
            counts.moved += part as u64;
        }
        if rng.u32(..) % FORKS == 0 {
            ensure!(in_child(|| 0)? == 0, "the child that exits");
            counts.forks += 1;
        }
        rng.shuffle(&mut regions);
        let first = rng.usize(0..=regions.len());
        let mut regions = regions.into_iter().map(|(_, _, region)| region);
        for region in regions.by_ref().take(first) {
            region.deregister().context("deregister")?;
        }
        let left: Vec<Region> = regions.collect();
        counts.freed += left.len() as u64;
        memory.free().context("free")?;
        for region in left {
            region.deregister().context("deregister memory that was freed")?;
        }
        say(&counts.line());
    }
    Ok(())
}
