// SPDX-License-Identifier: GPL-2.0
//! Uses `/dev/edu-dma` of the sample driver (samples/edu-dma), and the device behind it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::machine::{number, wait_for};
use crate::modules;
use crate::test::Env;

#[allow(dead_code)]
#[path = "../../../samples/edu-dma/uapi.rs"]
mod uapi;

pub(crate) use uapi::{End, Stats};

/// The driver's name as the kernel writes it.
pub const DRIVER: &str = "edu_dma";
const NODE: &str = "/dev/edu-dma";
const DEVICES: &str = "/sys/bus/pci/devices";
/// The number of bytes that the driver moves by one pair of commands (`CHUNK` in engine.rs).
pub const CHUNK: u64 = 2048;

/// The kind of pin, which decides how long the GPU driver keeps memory that is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Persistent,
    Revocable,
}

impl Kind {
    pub const BOTH: [Self; 2] = [Self::Persistent, Self::Revocable];
}

/// Returns an end in this process's memory, from this address on.
pub fn host(at: *const u8) -> End {
    End { kind: uapi::HOST, handle: 0, at: at as u64 }
}

/// Returns an end in a pin, from this byte on.
pub fn gpu(handle: u32, at: u64) -> End {
    End { kind: uapi::GPU, handle, at }
}

/// The result of a copy that did not reach its end: the errno, and how many bytes it moved.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped {
    pub errno: i32,
    pub done: u64,
}

/// An open file of the driver.
pub struct Edu(File);

impl Edu {
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(NODE).with_context(|| format!("open {NODE}"))?;
        Ok(Self(file))
    }

    fn call<T>(&self, number: u32, argument: &mut T) -> io::Result<()> {
        let number = 3 << 30 | (size_of::<T>() as u64) << 16 | u64::from(uapi::TYPE) << 8 | u64::from(number);
        // SAFETY: a live block of the size that the number encodes. Addresses in it are a test's
        // own buffers, or bad on purpose, which the driver answers with an error.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Pins memory and returns the new pin's handle.
    pub fn pin(&self, kind: Kind, va: u64, length: u64) -> io::Result<u32> {
        let flags = if kind == Kind::Revocable { uapi::REVOCABLE } else { 0 };
        let mut argument = uapi::Pin { va, length, flags, handle: u32::MAX };
        self.call(uapi::PIN, &mut argument).map(|()| argument.handle)
    }

    pub fn unpin(&self, handle: u32) -> io::Result<()> {
        self.call(uapi::UNPIN, &mut uapi::Unpin { handle })
    }

    pub fn copy(&self, from: End, to: End, length: u64) -> Result<(), Stopped> {
        let mut argument = uapi::Copy { from, to, length, done: u64::MAX };
        let copied = self.call(uapi::COPY, &mut argument);
        match copied {
            Ok(()) if argument.done == length => Ok(()),
            Ok(()) => Err(Stopped { errno: 0, done: argument.done }),
            Err(e) => Err(Stopped { errno: e.raw_os_error().unwrap_or(-1), done: argument.done }),
        }
    }

    pub fn stats(&self) -> Result<Stats> {
        let mut stats = Stats::default();
        self.call(uapi::STATS, &mut stats).context("the device's counters")?;
        Ok(stats)
    }

    /// Waits until the engine works on a command that it did not have before.
    pub fn wait_until_running(&self, before: &Stats) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.stats()?;
            if now.started > before.started && now.started > now.finished {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the engine did not begin: {now:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Loads the driver and the GPU's. The boot says how wide the device's addresses are.
pub fn load(env: &Env) -> Result<()> {
    modules::load("nvidia", &[])?;
    // QEMU's own device reaches GPU memory at the addresses of the BAR, without the stand-ins.
    crate::gpu::lab()?.set("bar1_static", 1)?;
    if !modules::loaded(DRIVER)? {
        modules::modprobe("edu-dma", &[&format!("dma_bits={}", bits(env)?)])?;
    }
    wait_for(NODE, || Path::new(NODE).exists())
}

/// Returns the number of address bits that the boot's device puts on the bus.
pub fn bits(env: &Env) -> Result<u32> {
    let bits = env.number("dma_bits", 0)?;
    ensure!(bits != 0, "this suite needs a boot with a device of the sample driver");
    Ok(bits)
}

/// Returns the PCI name of the driver's device.
pub fn pci_name() -> Result<String> {
    for entry in fs::read_dir(DEVICES).with_context(|| format!("read {DEVICES}"))? {
        let dir = entry?.path();
        let id = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let bound = fs::read_link(dir.join("driver")).is_ok_and(|driver| driver.ends_with(DRIVER));
        if bound && id("vendor").trim() == "0x1234" && id("device").trim() == "0x11e8" {
            return Ok(dir.file_name().context("a name")?.to_string_lossy().into_owned());
        }
    }
    bail!("{DRIVER} has no PCI device 1234:11e8")
}

/// Removes the device, as `echo 1 > remove` does, and returns when it is gone.
pub fn remove_device() -> Result<()> {
    let file = PathBuf::from(DEVICES).join(pci_name()?).join("remove");
    fs::write(&file, "1").with_context(|| format!("write to {}", file.display()))
}

/// Finds the device again.
pub fn rescan() -> Result<()> {
    fs::write("/sys/bus/pci/rescan", "1").context("rescan the PCI bus")?;
    wait_for(NODE, || Path::new(NODE).exists())
}

/// Returns how many interrupts of the device the kernel has counted. All of them must be MSI.
pub fn kernel_interrupts() -> Result<u64> {
    let text = fs::read_to_string("/proc/interrupts").context("read /proc/interrupts")?;
    let line = text.lines().find(|l| l.ends_with("edu-dma")).context("/proc/interrupts has no edu-dma")?;
    ensure!(line.contains("MSI"), "no MSI: {line}");
    Ok(line.split_whitespace().skip(1).map_while(|w| w.parse::<u64>().ok()).sum())
}

/// Returns the number of users of the driver, as lsmod shows it.
pub fn users() -> Result<u64> {
    number(&format!("/sys/module/{DRIVER}/refcnt"))
}

impl Edu {
    /// Closes the file first here, and then in a forked child.
    pub fn closed_by_a_child(self) -> Result<()> {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().context("a pair of sockets")?;
        // SAFETY: the child makes two system calls and ends without unwinding.
        match unsafe { nix::unistd::fork() }.context("fork")? {
            nix::unistd::ForkResult::Child => {
                let mut byte = 0u8;
                // SAFETY: a local is written; the end closes what is open, and nothing of the
                // parent's is dropped twice.
                unsafe {
                    libc::read(theirs.as_raw_fd(), (&raw mut byte).cast(), 1);
                    libc::_exit(0)
                }
            }
            nix::unistd::ForkResult::Parent { child } => {
                drop(self);
                io::Write::write_all(&mut ours, &[1]).context("tell the child")?;
                nix::sys::wait::waitpid(child, None).context("wait for the child")?;
                Ok(())
            }
        }
    }
}

/// A page, followed by a page that no process may touch.
pub struct Guarded(*mut libc::c_void);

const PAGE: usize = 4096;

pub fn guarded_page() -> Result<Guarded> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: anonymous memory where the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    let guarded = Guarded(at);
    // SAFETY: the second page is ours.
    let done = unsafe { libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE) };
    ensure!(done == 0, "mprotect: {}", io::Error::last_os_error());
    Ok(guarded)
}

impl Guarded {
    /// Returns its last `len` bytes, and what is behind them.
    pub fn end(&self, len: u64) -> End {
        let at = self.0 as u64 + PAGE as u64 - len;
        host(at as *const u8)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by `guarded_page()`, and used by nobody any more.
        unsafe { libc::munmap(self.0, 2 * PAGE) };
    }
}

/// Runs the helper `edu`, which has memory and a pin of its own. `copy` moves random bytes there,
/// `check` compares them with the GPU's, `free` frees the memory.
pub fn helper(kind: &str, len: &str) -> Result<()> {
    let kind = match kind {
        "Persistent" => Kind::Persistent,
        "Revocable" => Kind::Revocable,
        _ => bail!("a pin of kind {kind}"),
    };
    let len: usize = len.parse().context("a length")?;
    let edu = Edu::open()?;
    let mut memory = Some(nvlab::Client::open()?.alloc(0, len as u64)?);
    let pin = edu.pin(kind, memory.as_ref().context("memory")?.va(), len as u64).context("pin")?;
    let mut bytes = vec![0u8; len];
    println!("ready");
    for line in io::stdin().lines() {
        let did = match line.context("read a command")?.as_str() {
            "copy" => {
                fastrand::fill(&mut bytes);
                edu.copy(host(bytes.as_ptr()), gpu(pin, 0), len as u64).map_err(|e| format!("{e:?}"))
            }
            "check" => {
                let mut got = vec![0u8; len];
                let read = memory.as_ref().map(|m| m.read(0, &mut got));
                match read {
                    Some(Ok(())) if got == bytes => Ok(()),
                    other => Err(format!("other bytes than were copied ({other:?})")),
                }
            }
            "free" => memory.take().map_or(Ok(()), nvlab::Memory::free).map_err(|e| e.to_string()),
            other => Err(format!("{other:?} is no command")),
        };
        match did {
            Ok(()) => println!("ok"),
            Err(e) => println!("error {e}"),
        }
    }
    Ok(())
}
