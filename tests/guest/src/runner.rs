// SPDX-License-Identifier: GPL-2.0
//! Runs suites. Each test runs in a child process with a time limit, and the accounting is checked
//! after each.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;
use serde_json::{json, Value};

use crate::cmdline::Request;
use crate::complaint::{Complaint, Kind};
use crate::gpu;
use crate::kmsg::{self, Mark};
use crate::ktap::{Ktap, Verdict};
use crate::lab;
use crate::machine::{Level, Machine, Mode};
use crate::modules::{self, PEERMEM};
use crate::suites::{leaves_something, raises_alarms, scenarios::row_of};
use crate::test::{Env, NvidiaC, Suite, Test, FAIL_MARK, JSON_MARK, SKIP_MARK};

/// The time that a killed process may take to go. If it takes longer, it hangs in the kernel, and
/// everything after it may hang, too.
const DEATH: Duration = Duration::from_secs(20);

pub struct Runner<'a> {
    request: &'a Request,
    ktap: &'a mut Ktap,
    machine: Machine,
    /// The test that left a process which cannot be killed.
    wedged_by: Option<String>,
    /// Whether the last test left something behind, so that everything must be loaded anew for the
    /// next one.
    dirty: bool,
    /// Whether the kernel has complained.
    alarmed: bool,
}

/// The result of a child process.
struct Ended {
    status: Option<ExitStatus>,
    timed_out: bool,
    skip: Option<String>,
    failures: Vec<String>,
    rows: Vec<(String, Value)>,
    notes: Vec<String>,
}

impl<'a> Runner<'a> {
    pub fn new(request: &'a Request, ktap: &'a mut Ktap) -> Self {
        Self { request, ktap, machine: Machine::new(request.nvidia_c), wedged_by: None, dirty: false, alarmed: false }
    }

    /// Loads everything, for the prompt.
    pub fn load_everything(&mut self) -> Result<()> {
        let mode = Mode::all(self.request.nvidia_c)[0];
        self.machine.reach(Level::Peermem(mode), self.request.generation)
    }

    /// Runs the suites and returns whether all tests passed.
    pub fn suites(&mut self, suites: &[Suite]) -> bool {
        let wanted = |suite| self.wanted(suite).into_iter().map(move |test| (suite, test));
        let tests: Vec<(&Suite, &Test)> = suites.iter().flat_map(wanted).collect();
        self.ktap.start(tests.len());
        let mut all = true;
        for (suite, test) in tests {
            let begin = Instant::now();
            let verdict = self.test(suite, test);
            self.ktap.note(&format!("{}: {} ms", test.name, begin.elapsed().as_millis()));
            self.ktap.result(&format!("{}/{}", suite.name, test.name), &verdict);
            all &= verdict != Verdict::Fail;
            if self.over() {
                self.ktap.json("stopped", &json!({ "alarm": self.alarmed }));
                return false;
            }
        }
        all
    }

    /// Returns whether to stop because of `guest.fragile=1`: after an alarm or a hang, further
    /// results say nothing about a module that is known to break.
    fn over(&self) -> bool {
        self.request.values.contains_key("fragile") && (self.alarmed || self.wedged_by.is_some())
    }

    /// Returns the tests of a suite that the command line leaves: with `guest.only=`, those whose
    /// name contains one of its words; with `guest.after=`, those after that test in its suite;
    /// with `guest.table=1`, those that the scenario table has for the boot's generation. Tests of
    /// another mode or generation belong to another boot.
    fn wanted<'s>(&self, suite: &'s Suite) -> Vec<&'s Test> {
        let only = self.request.values.get("only");
        let after = self.request.values.get("after").and_then(|a| a.strip_prefix(suite.name)?.strip_prefix('/'));
        let first = after.and_then(|a| suite.tests.iter().position(|t| t.name == a)).map_or(0, |at| at + 1);
        let table = self.request.values.contains_key("table");
        suite
            .tests
            .iter()
            .skip(first)
            .filter(|t| {
                let here = t.generation.is_none_or(|g| g == self.request.generation);
                !table || suite.name == "end" || (here && row_of(suite.name, &t.name).is_some())
            })
            // The checks at the end of a boot run whatever else ran in it.
            .filter(|t| {
                suite.name == "end" || {
                    let name = format!("{}/{}", suite.name, t.name);
                    self.is_here(t) && only.is_none_or(|o| o.split(',').any(|word| name.contains(word)))
                }
            })
            .collect()
    }

    /// Returns whether a test is of the mode in `guest.mode=` and of the boot's generation, or
    /// depends on neither. Without `guest.mode=`, all are.
    fn is_here(&self, test: &Test) -> bool {
        self.request.values.get("mode").is_none_or(|here| {
            test.level.mode().is_none_or(|mode| mode.boots().name() == here)
                && test.generation.is_none_or(|generation| generation == self.request.generation)
        })
    }

    fn test(&mut self, suite: &Suite, test: &Test) -> Verdict {
        if let Some(by) = &self.wedged_by {
            self.ktap.note(&format!("not run: {by} left a process that cannot be killed"));
            return Verdict::Fail;
        }
        let generation = test.generation.unwrap_or(self.request.generation);
        let row = row_of(suite.name, &test.name).map(|row| {
            json!({
                "scenario": row.clause, "test": format!("{}/{}", suite.name, test.name), "generation": generation.name(),
                "mode": test.level.mode().map(Mode::name),
            })
        });
        if self.request.nvidia_c {
            if let NvidiaC::Skip(why) = test.nvidia_c {
                if let Some(row) = row {
                    self.tell(row, Some(why), &[]);
                }
                return Verdict::Skip(format!("NVIDIA's module: {why}"));
            }
        }
        if let Some((_, why)) = test.not_on.filter(|(not, _)| *not == generation) {
            return Verdict::Skip(format!("generation {}: {why}", generation.name()));
        }
        // This line on the console gives context to the kernel's messages.
        println!("guest: {}/{}", suite.name, test.name);
        if self.dirty {
            if let Err(e) = self.machine.reach(Level::Bare, generation) {
                self.ktap.note(&format!("clean up after the test before: {e:#}"));
            }
        }
        if let Err(e) = self.machine.reach(test.level, generation) {
            self.ktap.note(&format!("prepare {:?}: {e:#}", test.level));
            return Verdict::Fail;
        }
        if let Err(e) = reset_stand_ins() {
            self.ktap.note(&format!("reset the stand-ins: {e:#}"));
            return Verdict::Fail;
        }
        if let Some(row) = &row {
            // If the machine stops in this test, the host knows at least this.
            self.ktap.json("begin", row);
        }
        let mut reasons = Vec::new();
        let log = Mark::now();
        let ended = match self.child(suite, test) {
            Ok(ended) => ended,
            Err(e) => {
                self.ktap.note(&format!("start the test's process: {e:#}"));
                return Verdict::Fail;
            }
        };
        for (name, value) in &ended.rows {
            self.ktap.json(name, value);
        }
        for note in &ended.notes {
            self.ktap.note(note);
        }
        if ended.timed_out {
            reasons.push(Kind::Hang.said(format!("did not end within {:?}", test.limit)));
        }
        let failures = ended.failures.into_iter().map(|why| Kind::Promise.said(why));
        match ended.status {
            // Failures count as well if another thread or process of the test reported them.
            Some(s) if s.success() => reasons.extend(failures),
            Some(s) if ended.timed_out && s.signal() == Some(libc::SIGKILL) => {}
            // The child has reported the reason, unless it panicked or was killed.
            Some(s) if failures.len() == 0 => reasons.push(Kind::Promise.said(format!("the test's process: {s}"))),
            Some(_) => reasons.extend(failures),
            None => {
                reasons.push(Kind::Hang.said("its process cannot be killed".into()));
                self.wedged_by = Some(format!("{}/{}", suite.name, test.name));
            }
        }
        match log.and_then(|mut l| l.since()) {
            // If a suite raises alarms on purpose, the host judges them.
            Ok(said) if !raises_alarms(suite.name) => {
                let alarms = kmsg::alarms(said);
                self.alarmed |= !alarms.is_empty();
                reasons.extend(alarms.into_iter().map(|line| Kind::Kernel.said(line)));
            }
            Ok(_) => {}
            Err(e) => reasons.push(Kind::Promise.said(format!("{e:#}"))),
        }
        // A task that died in the kernel may have died with the accounting's lock.
        if self.wedged_by.is_none() && !self.over() && !leaves_something(suite.name) {
            let left = left_behind();
            self.dirty = !left.is_empty();
            reasons.extend(left);
        }
        if let Some(row) = row {
            self.tell(row, ended.skip.as_deref(), &reasons);
        }
        self.judge(suite, test, reasons, ended.skip)
    }

    /// Sends the outcome for a row of the scenario table to the host.
    fn tell(&mut self, mut row: Value, skipped: Option<&str>, what: &[Complaint]) {
        row["skipped"] = json!(skipped);
        row["what"] = what.iter().map(Complaint::row).collect();
        self.ktap.json("scenario", &row);
    }

    fn judge(&mut self, suite: &Suite, test: &Test, reasons: Vec<Complaint>, skip: Option<String>) -> Verdict {
        for reason in &reasons {
            self.ktap.note(&reason.to_string());
        }
        if self.request.nvidia_c && test.nvidia_c == NvidiaC::Recorded {
            let what: Vec<Value> = reasons.iter().map(Complaint::row).collect();
            let row = json!({ "suite": suite.name, "test": test.name, "clean": what.is_empty(), "what": what });
            self.ktap.json("nvidia_c", &row);
            return Verdict::Pass;
        }
        match (reasons.is_empty(), skip) {
            (true, Some(why)) => Verdict::Skip(why),
            (true, None) => Verdict::Pass,
            (false, _) => Verdict::Fail,
        }
    }

    fn child(&mut self, suite: &Suite, test: &Test) -> Result<Ended> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["test", suite.name, &test.name])
            .env("GUEST_NVIDIA_C", if self.request.nvidia_c { "1" } else { "0" })
            .env("GUEST_GENERATION", test.generation.unwrap_or(self.request.generation).name())
            .env("GUEST_VALUES", json!(self.request.values).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().context("spawn")?;
        let (to, lines) = channel();
        forward(child.stdout.take(), to.clone());
        forward(child.stderr.take(), to);
        let group = Pid::from_raw(i32::try_from(child.id())?);

        let mut ended = Ended {
            status: None,
            timed_out: false,
            skip: None,
            failures: Vec::new(),
            rows: Vec::new(),
            notes: Vec::new(),
        };
        ended.status = listen(&mut child, &lines, test.limit, &mut ended)?;
        if ended.status.is_none() {
            ended.timed_out = true;
            ended.notes.extend(stacks());
            // A task at a hold point cannot be killed there.
            if let Err(e) = release_holds() {
                ended.notes.push(format!("release the hold points: {e:#}"));
            }
        }
        // This also kills everything that the test started and left.
        let _ = killpg(group, Signal::SIGKILL);
        if ended.timed_out {
            ended.status = listen(&mut child, &lines, DEATH, &mut ended)?;
        }
        // Grandchildren may still have had the pipe. By now they are dead or cannot die.
        drain(&lines, Duration::from_secs(1), &mut ended);
        Ok(ended)
    }
}

fn forward(pipe: Option<impl Read + Send + 'static>, to: Sender<String>) {
    let Some(pipe) = pipe else { return };
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
}

/// Reads lines until the child ends or the time is up.
fn listen(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    ended: &mut Ended,
) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => ended.take(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(20)),
        }
        if let Some(status) = child.try_wait().context("wait for the test")? {
            return Ok(Some(status));
        }
        if Instant::now() > end {
            return Ok(None);
        }
    }
}

fn drain(lines: &Receiver<String>, limit: Duration, ended: &mut Ended) {
    let end = Instant::now() + limit;
    while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        ended.take(line);
    }
}

impl Ended {
    fn take(&mut self, line: String) {
        if let Some(why) = line.strip_prefix(SKIP_MARK) {
            self.skip = Some(why.to_string());
        } else if let Some(why) = line.strip_prefix(FAIL_MARK) {
            self.failures.push(why.to_string());
        } else if let Some(row) = line.strip_prefix(JSON_MARK) {
            match row.split_once(' ').map(|(name, v)| (name, serde_json::from_str(v))) {
                Some((name, Ok(value))) => self.rows.push((name.to_string(), value)),
                _ => self.notes.push(format!("bad result row: {row}")),
            }
        } else {
            self.notes.push(line);
        }
    }
}

/// Returns the GPU's debugfs, or `None` if the GPU is not loaded.
fn gpu_if_loaded() -> Result<Option<nvlab::Lab>> {
    Ok(if modules::loaded("nvidia")? { Some(gpu::lab()?) } else { None })
}

fn release_holds() -> Result<()> {
    if let Some(gpu) = gpu_if_loaded()? {
        gpu.release_all()?;
    }
    lab::release_core_holds()
}

/// Removes faults, holds and costs of an earlier test, and sets the counters to zero.
fn reset_stand_ins() -> Result<()> {
    if let Some(gpu) = gpu_if_loaded()? {
        gpu.reset_faults()?;
        gpu.reset_config()?;
        gpu.reset_cost()?;
        gpu.reset_accounting()?;
    }
    release_holds()?;
    if modules::loaded("lab_pcie")? {
        lab::reset_fabric()?;
    }
    let knobs = [
        "fence_us",
        "fence_fail",
        "fence_broken",
        "internal_error",
        "destroy_fail",
        "skip_stop",
        "fail_mkey",
        "lose_mr",
        "rereg_fail",
        "no_invalidation",
    ];
    for knob in knobs {
        let file = format!("/sys/kernel/debug/rxe_peer/{knob}");
        if fs::exists(&file)? {
            fs::write(&file, "0").with_context(|| format!("write 0 to {file}"))?;
        }
    }
    Ok(())
}

/// Returns what the test left and no test may leave: pins, memory, references.
fn left_behind() -> Vec<Complaint> {
    let mut out = Vec::new();
    let gpu = gpu_if_loaded().unwrap_or_else(|e| {
        out.push(Kind::Promise.said(format!("{e:#}")));
        None
    });
    if let Some(gpu) = gpu {
        // A file that a dying process closes is released a moment after its parent learns of the
        // death.
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            match gpu.accounting() {
                Ok(accounting) if accounting.is_clean() => break,
                Ok(_) if Instant::now() < end => thread::sleep(Duration::from_millis(50)),
                Ok(accounting) => {
                    out.push(Kind::Pinned.said(format!("the GPU's accounting is not clean: {:?}", accounting.dirt())));
                    if let Ok(pins) = fs::read_to_string("/sys/kernel/debug/nvidia_lab/pins") {
                        out.extend(pins.lines().map(|l| Kind::Pinned.said(format!("still pinned: {l}"))));
                    }
                    break;
                }
                Err(e) => {
                    out.push(Kind::Promise.said(format!("read the GPU's accounting: {e}")));
                    break;
                }
            }
        }
    }
    if modules::loaded("lab_pcie").unwrap_or(false) {
        match lab::fabric() {
            Ok(fabric) if fabric.errors() == 0 => {}
            Ok(fabric) => {
                out.push(Kind::Promise.said(format!("the fabric saw accesses that nobody may make: {fabric:?}")));
            }
            Err(e) => out.push(Kind::Promise.said(format!("{e:#}"))),
        }
    }
    match modules::use_count(PEERMEM) {
        Ok(None | Some(0)) => {}
        Ok(Some(n)) => out.push(Kind::Promise.said(format!("{PEERMEM} still has {n} users"))),
        Err(e) => out.push(Kind::Promise.said(format!("{e:#}"))),
    }
    out
}

/// Returns the kernel stacks of every thread that sleeps uninterruptibly, and of all of our own
/// processes.
fn stacks() -> Vec<String> {
    let mut out = Vec::new();
    let Ok(all) = procfs::process::all_processes() else { return out };
    for process in all.flatten().filter(|p| p.pid() != 1) {
        let Ok(tasks) = process.tasks() else { continue };
        // Kernel threads have no command line.
        let kernel = process.cmdline().map_or(true, |c| c.is_empty());
        for task in tasks.flatten() {
            let Ok(stat) = task.stat() else { continue };
            if stat.state != 'D' && kernel {
                continue;
            }
            out.push(format!("stuck? pid {} tid {} {} state {}", task.pid, task.tid, stat.comm, stat.state));
            if let Ok(stack) = fs::read_to_string(format!("/proc/{}/task/{}/stack", task.pid, task.tid)) {
                out.extend(stack.lines().map(|l| format!("    {l}")));
            }
        }
    }
    out
}

/// Runs one test in the child: `guest test SUITE NAME`.
pub fn run_one(suites: &[Suite], suite: &str, name: &str, env: &mut Env) -> Result<()> {
    let test = suites
        .iter()
        .filter(|s| s.name == suite)
        .flat_map(|s| &s.tests)
        .find(|t| t.name == name)
        .with_context(|| format!("no test {suite}/{name}"))?;
    env.mode = test.level.mode();
    (test.run)(env)
}
