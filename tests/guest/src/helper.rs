// SPDX-License-Identifier: GPL-2.0
//! The second process that some tests need: `guest helper NAME ARGUMENTS`. It prints `ready …` when it has done its
//! part and stays until its standard input ends (or it is killed).

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{bail, Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::{setgid, setgroups, setuid, Gid, Pid, Uid};

use crate::cuda::Cuda;
use crate::machine::RDMA_DEVICE;
use crate::storm::{self, Counts};
use crate::test::FAIL_MARK;
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

pub fn run(name: &str, args: &[&str]) -> Result<()> {
    match (name, args) {
        // Allocates, and registers that many times; says where.
        ("hold", [size, mrs]) => {
            let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
            let cuda = Cuda::open()?;
            let memory = cuda.alloc(size.parse().context("size")?)?;
            let mrs = (0..mrs.parse().context("mrs")?)
                .map(|_| Mr::reg(&pd, memory.va(), memory.size(), FULL_ACCESS))
                .collect::<io::Result<Vec<_>>>()
                .context("ibv_reg_mr")?;
            println!("ready {:#x}", memory.va());
            io::stdin().read_to_end(&mut Vec::new()).context("read stdin")?;
            drop(mrs);
            Ok(())
        }
        // As an ordinary user with so many bytes of RLIMIT_MEMLOCK: registers single pages until one is refused, lets
        // one go, and tries again. Says how many there were, and both errnos.
        ("memlock", [limit]) => {
            let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
            let cuda = Cuda::open()?;
            let memory = cuda.alloc(2 << 20)?;
            as_user(limit.parse().context("limit")?)?;
            let reg = |n: usize| Mr::reg(&pd, memory.va() + n as u64 * 4096, 4096, FULL_ACCESS);
            let mut mrs = Vec::new();
            let refused = loop {
                match reg(mrs.len()) {
                    Ok(mr) if mrs.len() < 512 => mrs.push(mr),
                    Ok(_) => break 0,
                    Err(e) => break e.raw_os_error().unwrap_or(-1),
                }
            };
            let count = mrs.len();
            mrs.pop().context("not a single page")?.dereg().context("ibv_dereg_mr")?;
            let again = reg(0).map_or_else(|e| e.raw_os_error().unwrap_or(-1), |_| 0);
            println!("ready {count} {refused} {again}");
            io::stdin().read_to_end(&mut Vec::new()).context("read stdin")?;
            drop(mrs);
            Ok(())
        }
        ("storm", [seed, process, life, registrations, counts]) => {
            let number = |text: &str| text.parse().with_context(|| format!("{text:?} is no number"));
            let counts = Counts::parse(counts)?;
            storm::main(number(seed)?, number(process)?, number(life)?, number(registrations)?, counts)
        }
        ("storm-victim", [seed]) => storm::victim(seed.parse().context("seed")?),
        _ => bail!("no helper {name} with {} arguments", args.len()),
    }
}

/// Nobody special from here on, with a limit on locked memory.
fn as_user(limit: u64) -> Result<()> {
    const NOBODY: u32 = 65534;
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: a valid structure, which the call only reads.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } != 0 {
        return Err(io::Error::last_os_error()).context("setrlimit");
    }
    setgroups(&[]).context("setgroups")?;
    setgid(Gid::from_raw(NOBODY)).context("setgid")?;
    setuid(Uid::from_raw(NOBODY)).context("setuid")
}

/// A helper that has said `ready`.
pub struct Helper {
    child: Child,
    /// What it said after `ready`.
    pub said: String,
}

impl Helper {
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg("helper")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a helper")?;
        let mut out = BufReader::new(child.stdout.take().context("helper's output")?);
        let mut line = String::new();
        out.read_line(&mut line).context("read from the helper")?;
        match line.trim().strip_prefix("ready") {
            Some(said) => Ok(Self { said: said.trim().to_string(), child }),
            None => {
                let mut rest = String::new();
                let _ = out.read_to_string(&mut rest);
                let _ = child.wait();
                bail!("helper {args:?}: {}", format!("{line}{rest}").replace(FAIL_MARK, ""))
            }
        }
    }

    /// kill -9, and until it is gone.
    pub fn kill(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGKILL).context("kill")?;
        self.child.wait().context("wait for the killed helper")?;
        Ok(())
    }

    /// Lets it end by itself.
    pub fn finish(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().context("wait for the helper")?;
        if !status.success() {
            bail!("the helper: {status}");
        }
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Gone already in kill() and finish(); after a failed test it is in the way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
