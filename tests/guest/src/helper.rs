// SPDX-License-Identifier: GPL-2.0
//! Runs other processes for tests: `guest helper NAME ARGUMENTS`. A helper prints `ready …` when it
//! has begun, and ends when its standard input ends (or when it is killed).

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nix::sys::ptrace;
use nix::sys::signal::{kill, raise, Signal};
use nix::unistd::{setgid, setgroups, setuid, Gid, Pid, Uid};

use crate::actor;
use crate::common::{errno_name, page};
use crate::cuda::Cuda;
use crate::fuzz::Fuzzer;
use crate::machine::RDMA_DEVICE;
use crate::storm::log::Log;
use crate::storm::{self, Counts};
use crate::test::FAIL_MARK;
use crate::verbs::{Device, Mr, Pd, FULL_ACCESS};

/// Runs the program `name`.
pub fn run(name: &str, args: &[&str]) -> Result<()> {
    match (name, args) {
        ("hold", [size, mrs]) => hold(size, mrs),
        ("read", [file]) => read(file),
        ("bad-addresses", []) => bad_addresses(),
        ("memlock", [limit]) => memlock(limit),
        ("storm", [seed, process, life, registrations, counts]) => {
            let counts = Counts::parse(counts)?;
            storm::main(number(seed)?, number(process)?, number(life)?, number(registrations)?, counts)
        }
        ("fuzz", [seed, process, steps]) => fuzz(seed, process, steps),
        ("storm-victim", [seed]) => storm::victim(seed.parse().context("seed")?),
        // Executes commands line by line.
        ("actor", [first]) => actor::run(first),
        // Runs an agent of NIXL that executes commands.
        ("nixl", [name, gpu]) => crate::nixl::run(name, gpu),
        // Runs a user of the sample driver that executes commands.
        ("edu", [kind, len]) => crate::edu::helper(kind, len),
        ("host-memory", [cuda]) => host_memory(cuda),
        ("wrong-input", []) => wrong_input(),
        ("reach", []) => reach(),
        ("idle", []) => idle(),
        _ => bail!("no helper {name} with {} arguments", args.len()),
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().with_context(|| format!("{text:?} is no number"))
}

/// Waits until the test closes this program's input.
fn wait_for_the_end() -> Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).context("read stdin")?;
    Ok(())
}

/// Allocates memory, registers it this many times, and prints its address.
fn hold(size: &str, mrs: &str) -> Result<()> {
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let cuda = Cuda::open()?;
    let memory = cuda.alloc(size.parse().context("size")?)?;
    let mrs = (0..mrs.parse().context("mrs")?)
        .map(|_| Mr::reg(&pd, memory.va(), memory.size(), FULL_ACCESS))
        .collect::<io::Result<Vec<_>>>()
        .context("ibv_reg_mr")?;
    println!("ready {:#x}", memory.va());
    wait_for_the_end()?;
    drop(mrs);
    Ok(())
}

/// Reads a file repeatedly until it is killed.
fn read(file: &str) -> Result<()> {
    println!("ready");
    loop {
        std::fs::read(file).with_context(|| format!("read {file}"))?;
    }
}

/// Registers an address that nobody has, repeatedly until a line arrives. Then prints how long the
/// longest attempt took, in microseconds, and the number of attempts.
fn bad_addresses() -> Result<()> {
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let told = Arc::new(AtomicBool::new(false));
    let listener = Arc::clone(&told);
    println!("ready");
    std::thread::spawn(move || {
        // Any line ends this, and so does the end of the input.
        let _ = io::stdin().read_line(&mut String::new());
        listener.store(true, Ordering::SeqCst);
    });
    let (mut longest, mut attempts) = (Duration::ZERO, 0);
    while !told.load(Ordering::SeqCst) {
        let begin = Instant::now();
        match Mr::reg(&pd, page() as u64, page(), FULL_ACCESS) {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => (),
            other => bail!("an address that nobody has: {:?}, wanted EFAULT", other.err()),
        }
        longest = longest.max(begin.elapsed());
        attempts += 1;
    }
    println!("ok {} {attempts}", longest.as_micros());
    Ok(())
}

/// Runs as an ordinary user with `limit` bytes of RLIMIT_MEMLOCK. Registers single pages until one
/// is refused, releases one, and tries again. Prints how many there were, and both errnos.
fn memlock(limit: &str) -> Result<()> {
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let cuda = Cuda::open()?;
    let memory = cuda.alloc(2 << 20)?;
    as_user(limit.parse().context("limit")?)?;
    let reg = |n: usize| Mr::reg(&pd, memory.va() + (n * page()) as u64, page(), FULL_ACCESS);
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
    wait_for_the_end()?;
    drop(mrs);
    Ok(())
}

/// Makes random calls as an ordinary user.
fn fuzz(seed: &str, process: &str, steps: &str) -> Result<()> {
    // Open what only root may open on this machine before changing the user.
    let (cuda, log) = (Cuda::open()?, Log::open(number(process)?, true, 0)?);
    as_user(libc::RLIM_INFINITY)?;
    Fuzzer::new(number(seed)?, number(process)?, cuda, log)?.run(number(steps)?)
}

/// Registers host memory. Stops before and after that, for a test that looks at its system calls.
fn host_memory(cuda: &str) -> Result<()> {
    let _cuda = (cuda == "with-cuda").then(Cuda::open).transpose()?;
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let memory = vec![0u8; 1 << 20];
    let at = memory.as_ptr() as u64;
    let register = || -> io::Result<()> {
        Mr::reg(&pd, at, memory.len(), FULL_ACCESS)?.dereg()?;
        // This registration has another address, with the same offset in its page.
        Mr::reg_iova(&pd, at, memory.len(), 0x7000_0000 + at % page() as u64, FULL_ACCESS)?.dereg()
    };
    // Registers once beforehand, because some calls are made only the first time.
    register()?;
    ptrace::traceme().context("ptrace")?;
    raise(Signal::SIGSTOP)?;
    for _ in 0..5 {
        register()?;
    }
    raise(Signal::SIGSTOP)?;
    Ok(())
}

/// Tries registrations that cannot work, and prints how each ends.
fn wrong_input() -> Result<()> {
    const SEGMENT: usize = 2 << 20;
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let cuda = Cuda::open()?;
    let attempt = |what: &str, at: u64, len: usize| {
        let errno = Mr::reg(&pd, at, len, FULL_ACCESS).map_or_else(|e| e.raw_os_error().unwrap_or(-1), |_| 0);
        println!("{what}: {}", errno_name(errno));
    };
    let memory = cuda.alloc(SEGMENT)?;
    let freed = memory.va();
    memory.free()?;
    attempt("freed", freed, SEGMENT);
    let mut segments = cuda.reserve(3 * SEGMENT)?;
    segments.map(0, SEGMENT, true)?;
    segments.map(2 * SEGMENT, SEGMENT, true)?;
    attempt("over a hole", segments.va(), 3 * SEGMENT);
    attempt("of no length", segments.va(), 0);
    attempt("an end that wraps", segments.va(), usize::MAX);
    Ok(())
}

/// Registers GPU memory, and a dma-buf of it, by functions of libibverbs that are found as programs find
/// them. Prints for each of these ways whether that worked.
fn reach() -> Result<()> {
    type Plain = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> *mut c_void;
    type Iova2 = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64, c_uint) -> *mut c_void;
    type DmaBuf = unsafe extern "C" fn(*mut c_void, u64, usize, u64, c_int, c_int) -> *mut c_void;
    const LEN: usize = 2 << 20;
    let pd = Pd::new(&Device::open(RDMA_DEVICE)?)?;
    let cuda = Cuda::open()?;
    let memory = cuda.alloc(LEN)?;
    let dma_buf = cuda.dma_buf(memory.va(), LEN)?;
    let (domain, at) = (pd.raw().as_ptr(), memory.va() as *mut c_void);
    let everywhere = libloading::os::unix::Library::this();
    // SAFETY: It is loaded already.
    let handle = unsafe { libloading::os::unix::Library::new("libibverbs.so.1") }?;
    let linked = Mr::reg(&pd, memory.va(), LEN, FULL_ACCESS).is_ok();
    // SAFETY: The types are verbs.h's; the domain and the memory are live, and the library touches no byte
    // of the memory. (The regions end with this process.)
    let found = unsafe {
        let plain = |library: &libloading::os::unix::Library| -> Result<bool> {
            Ok(!library.get::<Plain>(b"ibv_reg_mr")?(domain, at, LEN, FULL_ACCESS).is_null())
        };
        let iova2 = handle.get::<Iova2>(b"ibv_reg_mr_iova2")?;
        let own = everywhere.get::<DmaBuf>(b"ibv_reg_dmabuf_mr")?;
        [
            ("is linked with libibverbs", linked),
            ("finds the functions by dlsym(RTLD_DEFAULT)", plain(&everywhere)?),
            ("finds ibv_reg_mr by a handle, as NCCL does", plain(&handle)?),
            (
                "finds ibv_reg_mr_iova2 by a handle",
                !iova2(domain, at, LEN, memory.va(), FULL_ACCESS as c_uint).is_null(),
            ),
            (
                "registers a dma-buf itself",
                !own(domain, 0, LEN, memory.va(), dma_buf.as_raw_fd(), FULL_ACCESS).is_null(),
            ),
        ]
    };
    for (how, works) in found {
        println!("{how}\t{}", if works { "works" } else { "fails" });
    }
    Ok(())
}

/// Waits, as what an actor becomes by exec: it keeps only the actor's open files.
fn idle() -> Result<()> {
    println!("ok");
    wait_for_the_end()
}

/// Becomes an ordinary user with a limit on locked memory.
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

/// A helper that has printed `ready`.
pub struct Helper {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The text that it printed after `ready`.
    pub said: String,
}

impl Helper {
    pub fn start(args: &[&str]) -> Result<Self> {
        Self::start_with(args, &BTreeMap::new())
    }

    /// Starts a helper with additional environment variables.
    pub fn start_with(args: &[&str], settings: &BTreeMap<&str, String>) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg("helper")
            .args(args)
            .envs(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a helper")?;
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().context("helper's output")?);
        let mut line = String::new();
        output.read_line(&mut line).context("read from the helper")?;
        match line.trim().strip_prefix("ready") {
            Some(said) => Ok(Self { said: said.trim().to_string(), child, input, output }),
            None => {
                let mut rest = String::new();
                let _ = output.read_to_string(&mut rest);
                let _ = child.wait();
                bail!("helper {args:?}: {}", format!("{line}{rest}").replace(FAIL_MARK, ""))
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an actor its next command, without waiting for the answer.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        let input = self.input.as_mut().context("the helper's input is closed")?;
        writeln!(input, "{command}").with_context(|| format!("tell the helper {command:?}"))
    }

    /// Returns the answer to the oldest command that has none yet.
    pub fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("read from the helper")?;
        match line.trim().strip_prefix("ok") {
            Some(rest) => Ok(rest.trim().to_string()),
            None => bail!("the helper says {:?}", line.replace(FAIL_MARK, "")),
        }
    }

    pub fn ask(&mut self, command: &str) -> Result<String> {
        self.tell(command)?;
        self.answer().with_context(|| command.to_string())
    }

    /// Returns the number that an actor answers to a command.
    pub fn number(&mut self, command: &str) -> Result<u64> {
        let said = self.ask(command)?;
        said.parse().with_context(|| format!("{command}: {said:?} is no number"))
    }

    /// Sends SIGKILL without waiting.
    pub fn shoot(&self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGKILL).context("kill")
    }

    /// Waits until it is gone, however it ends.
    pub fn bury(mut self) -> Result<()> {
        drop(self.input.take());
        self.child.wait().context("wait for the helper")?;
        Ok(())
    }

    /// Sends SIGKILL and waits until it is gone.
    pub fn kill(self) -> Result<()> {
        self.shoot()?;
        self.bury()
    }

    /// Closes its input and waits until it ends by itself.
    pub fn finish(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.child.wait().context("wait for the helper")?;
        if !status.success() {
            bail!("the helper: {status}");
        }
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // After bury() and finish() the process is gone already. After a failed test it would be in
        // the way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
