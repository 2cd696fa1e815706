// SPDX-License-Identifier: GPL-2.0
//! Has the parts of scenarios: a call beside the test, a stop on its way, and the checks after it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::common::{Bench, KIB, MIB};
use crate::cuda::DeviceMemory;
use crate::gpu;
use crate::lab::{self, CoreHold};
use crate::machine::Mode;
use crate::test::Env;
use crate::verbs::{Loopback, Mr, Status, FULL_ACCESS, PATIENCE};

/// The size that most scenarios register. A buffer of this size shares its memory with no other.
pub(super) const SIZE: usize = 2 * MIB;

/// The time that NVIDIA's module gets to do something that no rule requires.
pub(super) const A_WHILE: Duration = Duration::from_millis(300);

pub(super) fn nic_state(mr: &Mr) -> Result<Option<String>> {
    Ok(lab::nic_mrs()?.into_iter().find(|m| m.lkey == mr.lkey()).map(|m| m.state))
}

/// Writes to `target` through a fresh pair of queues, and returns the status.
pub(super) fn write_status(bench: &Bench, source: &Mr, target: &Mr) -> Result<Status> {
    let link = Loopback::new(&bench.pd)?;
    link.write(1, (source, 0), (target, 0), 4 * KIB)?;
    Ok(link.wait(PATIENCE)?.status)
}

pub(super) fn no_pins(when: &str) -> Result<()> {
    ensure!(gpu::pins()? == 0, "{when}: {} pins left", gpu::pins()?);
    Ok(())
}

/// A call in a thread of its own, because it may have to wait for somebody.
pub struct Beside<T> {
    done: Receiver<Result<T>>,
    /// The task that makes the call, or 0 before it has begun.
    task: Arc<AtomicI32>,
}

impl<T: Send + 'static> Beside<T> {
    pub fn start(call: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let task = Arc::new(AtomicI32::new(0));
        let mine = Arc::clone(&task);
        Self::of(task, move || {
            mine.store(nix::unistd::gettid().as_raw(), Ordering::SeqCst);
            call()
        })
    }

    pub(super) fn of(task: Arc<AtomicI32>, call: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let (tell, done) = channel();
        // The thread is not joined: if it hangs, it must not hang the test beyond the test's own
        // limit.
        std::thread::spawn(move || {
            // Sending fails only if the test has failed already.
            let _ = tell.send(call());
        });
        Self { done, task }
    }

    pub fn finish(self, what: &str) -> Result<T> {
        match self.done.recv_timeout(PATIENCE) {
            Ok(result) => result.with_context(|| what.to_string()),
            Err(_) => bail!("{what}: not done within {PATIENCE:?}"),
        }
    }

    /// Returns the call's result if it ends within `limit`.
    pub fn ended(&self, limit: Duration) -> Option<Result<T>> {
        self.done.recv_timeout(limit).ok()
    }

    /// Checks that the call has to wait for a task that does not move. The kernel reports where the
    /// call sleeps. That must not be a hold point or a wait that ends by itself.
    pub fn waits(&self, what: &str) -> Result<()> {
        const LOOKS: usize = 4;
        let end = Instant::now() + PATIENCE;
        let mut seen: Vec<String> = Vec::new();
        while seen.len() < LOOKS {
            ensure!(self.ended(Duration::ZERO).is_none(), "{what} did not wait");
            ensure!(Instant::now() < end, "{what} neither ended nor slept at one place within {PATIENCE:?}: {seen:?}");
            std::thread::sleep(Duration::from_millis(10));
            match asleep_at(self.task.load(Ordering::SeqCst)) {
                Some(stack) if seen.last().is_none_or(|last| *last == stack) => seen.push(stack),
                other => seen = other.into_iter().collect(),
            }
        }
        let stack: Vec<&str> = seen.iter().flat_map(|stack| stack.lines()).take(4).collect();
        println!("{what} waits in {}", stack.join(" <- "));
        Ok(())
    }
}

/// Returns the kernel's functions in which a task sleeps, beginning with the innermost. Returns
/// `None` if it runs, can be interrupted by any signal, stands at a hold point, or waits for time
/// to pass or for RCU.
pub(super) fn asleep_at(task: i32) -> Option<String> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{task}/{file}")).ok();
    // `93 (comm) D …`: the name may hold anything.
    let uninterruptible = read("stat")?.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('D'));
    let stack = read("stack").filter(|stack| uninterruptible && !stack.is_empty())?;
    (!["lab_hold", "msleep", "usleep", "synchronize_", "rcu_barrier"].iter().any(|function| stack.contains(function)))
        .then(|| stack.lines().filter_map(|line| line.split_whitespace().nth(1)).map(|f| format!("{f}\n")).collect())
}

impl Beside<()> {
    /// Runs a program.
    pub(super) fn program(mut program: Command) -> Result<Self> {
        let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.with_context(|| format!("start {program:?}"))?;
        let task = Arc::new(AtomicI32::new(i32::try_from(child.id())?));
        Ok(Self::of(task, move || {
            let out = child.wait_with_output()?;
            ensure!(out.status.success(), "{program:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
            Ok(())
        }))
    }
}

pub fn free_beside(bench: &Bench, memory: DeviceMemory) -> Beside<()> {
    let cuda = Arc::clone(&bench.cuda);
    Beside::start(move || {
        cuda.attach()?;
        memory.free()
    })
}

pub fn reg_beside(bench: &Bench, va: u64) -> Beside<std::io::Result<Mr>> {
    let pd = Arc::clone(&bench.pd);
    Beside::start(move || Ok(Mr::reg(&pd, va, SIZE, FULL_ACCESS)))
}

pub fn dereg_beside(mr: Mr) -> Beside<()> {
    Beside::start(move || Ok(mr.dereg()?))
}

/// An armed hold point of the core or of the GPU stand-in. Dropping it releases the tasks that
/// stand there.
pub enum Stop {
    Core(CoreHold),
    Gpu(nvlab::Hold),
}

impl Stop {
    pub fn core(point: &'static str) -> Result<Self> {
        println!("{point}");
        Ok(Self::Core(CoreHold::arm(point)?))
    }

    pub fn gpu(point: &str) -> Result<Self> {
        println!("{point}");
        Ok(Self::Gpu(gpu::lab()?.arm(point)?))
    }

    /// Returns a stop in the provider's get. The GPU stand-in's points have names of their own for
    /// persistent pins.
    pub fn pinning(mode: Mode, point: &str) -> Result<Self> {
        if mode == Mode::Persistent {
            Self::gpu(&format!("p{point}"))
        } else {
            Self::gpu(point)
        }
    }

    /// Waits until a thread stands there.
    pub fn wait(&self) -> Result<()> {
        match self {
            Self::Core(hold) => hold.wait(PATIENCE),
            Self::Gpu(hold) => Ok(hold.wait(PATIENCE)?),
        }
    }

    pub fn release(self) -> Result<()> {
        match self {
            Self::Core(hold) => hold.release(),
            Self::Gpu(hold) => hold.release()?,
        }
        Ok(())
    }
}

/// Checks a registration whose memory was freed on the way. If it `succeeds`, it is dead with a
/// revocable pin, and with a persistent pin it works until it is deregistered. If not, the
/// application saw EFAULT.
pub(super) fn after_the_free(env: &Env, bench: &Bench, mr: std::io::Result<Mr>, succeeds: bool) -> Result<()> {
    // No rule says what becomes of it with NVIDIA's module.
    ensure!(env.nvidia_c || mr.is_ok() == succeeds, "ibv_reg_mr: {:?}", mr.err());
    match mr {
        Err(e) => {
            println!("ibv_reg_mr: {e}");
            ensure!(env.nvidia_c || e.raw_os_error() == Some(libc::EFAULT), "ibv_reg_mr: {e}, wanted EFAULT");
        }
        Ok(mr) => {
            println!("ibv_reg_mr succeeded; the MR is {:?}", nic_state(&mr)?);
            let (_source, source_mr) = bench.registered(SIZE)?;
            let status = write_status(bench, &source_mr, &mr)?;
            let works = status == Status::IBV_WC_SUCCESS;
            let persistent = env.mode()? == Mode::Persistent;
            ensure!(works || !persistent, "an MR over memory that is kept for it: {status:?}");
            ensure!(!works || persistent, "an MR over freed memory works");
            mr.dereg()?;
        }
    }
    no_pins("after the deregistration")
}
