// SPDX-License-Identifier: GPL-2.0
//! A process that does what a test tells it, line by line: `guest helper actor nic|gpu` opens the
//! NIC or the GPU first, then answers each command with `ok …` or `error …`. (The order decides
//! which file a dying process closes first.)

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::socket::{sendmsg, socketpair, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType};

use crate::cuda::{Cuda, DeviceMemory};
use crate::gpu;
use crate::machine::RDMA_DEVICE;
use crate::verbs::{Device, Endpoint, Mr, Pd, Remote, Status, FULL_ACCESS};

struct Actor {
    pd: Option<Arc<Pd>>,
    cuda: Option<Arc<Cuda>>,
    memory: Option<DeviceMemory>,
    mrs: Vec<Mr>,
    endpoint: Option<Endpoint>,
}

pub fn run(first: &str) -> Result<()> {
    let mut actor = Actor { pd: None, cuda: None, memory: None, mrs: Vec::new(), endpoint: None };
    match first {
        "nic" => {
            actor.pd = Some(open_nic()?);
            actor.cuda = Some(Cuda::open()?);
        }
        "gpu" => {
            actor.cuda = Some(Cuda::open()?);
            actor.pd = Some(open_nic()?);
        }
        _ => bail!("actor {first}: nic or gpu"),
    }
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line.context("read a command")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match actor.act(&words) {
            Ok(said) => println!("ok {said}"),
            Err(e) => println!("error {line}: {e:#}"),
        }
    }
    Ok(())
}

fn open_nic() -> Result<Arc<Pd>> {
    Pd::new(&Device::open(RDMA_DEVICE)?)
}

fn number(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("{word:?} is no number"))
}

impl Actor {
    fn pd(&self) -> Result<&Arc<Pd>> {
        self.pd.as_ref().context("the NIC is closed")
    }

    fn memory(&self) -> Result<&DeviceMemory> {
        self.memory.as_ref().context("nothing is allocated")
    }

    fn act(&mut self, words: &[&str]) -> Result<String> {
        let done = || Ok(String::new());
        match words {
            ["alloc", size] => {
                let cuda = self.cuda.as_ref().context("the GPU is closed")?;
                let memory = cuda.alloc(usize::try_from(number(size)?)?)?;
                Ok(self.memory.insert(memory).va().to_string())
            }
            ["free"] => self.memory.take().context("nothing is allocated")?.free().and_then(|()| done()),
            // The bytes come from this seed alone.
            ["fill", seed] => {
                let bytes = seeded(number(seed)?, self.memory()?.size());
                self.memory()?.write(0, &bytes)?;
                done()
            }
            ["place"] => Ok(gpu::place(self.memory()?.va())?.to_string()),
            // Returns how many bytes differ from what was filled in.
            ["spoilt", seed] => {
                let memory = self.memory()?;
                let wanted = seeded(number(seed)?, memory.size());
                let got = memory.read(0, memory.size())?;
                Ok(got.iter().zip(&wanted).filter(|(a, b)| a != b).count().to_string())
            }
            ["reg"] => {
                let (va, len) = (self.memory()?.va(), self.memory()?.size());
                self.reg(va, len)
            }
            ["reg", va, len] => self.reg(number(va)?, usize::try_from(number(len)?)?),
            ["dereg"] => {
                self.mrs.pop().context("nothing is registered")?.dereg()?;
                done()
            }
            // Makes one end of a connection and returns its number.
            ["endpoint"] => {
                let endpoint = Endpoint::new(self.pd()?)?;
                Ok(self.endpoint.insert(endpoint).number().to_string())
            }
            // Connects to `peer` and writes this many times to memory of its MR. Returns how many
            // writes succeeded, and how the last one ended.
            ["write", peer, addr, rkey, len, times] => {
                let endpoint = self.endpoint.take().context("no endpoint")?;
                endpoint.connect(u32::try_from(number(peer)?)?)?;
                let to = Remote { addr: number(addr)?, rkey: u32::try_from(number(rkey)?)? };
                self.write(&endpoint, to, usize::try_from(number(len)?)?, number(times)?)
            }
            // From now on, only a message refers to the NIC's file. The message lies unread in a
            // socket, and that socket lies in a message to itself. A kernel thread finds such
            // cycles, and closes the file.
            ["leave", "nic"] => {
                let nic = self.give_up("uverbs")?;
                hand_to_the_kernel(nic)?;
                done()
            }
            ["open", "nic"] => {
                self.pd = Some(open_nic()?);
                done()
            }
            // Starts a new program in this process, with both files open or closed.
            ["exec", files] => self.exec(files == &"keep", false),
            ["exec", files, "from-a-thread"] => self.exec(files == &"keep", true),
            _ => bail!("no such command"),
        }
    }

    fn reg(&mut self, va: u64, len: usize) -> Result<String> {
        match Mr::reg(self.pd()?, va, len, FULL_ACCESS) {
            Ok(mr) => {
                let key = mr.lkey().to_string();
                self.mrs.push(mr);
                Ok(key)
            }
            Err(e) => Ok(format!("refused {}", e.raw_os_error().unwrap_or_default())),
        }
    }

    fn write(&self, endpoint: &Endpoint, to: Remote, len: usize, times: u64) -> Result<String> {
        const OUTSTANDING: u64 = 4;
        let source = vec![0x5au8; len];
        let mr = Mr::reg(self.pd()?, source.as_ptr() as u64, len, FULL_ACCESS).context("register ordinary memory")?;
        let (mut posted, mut good) = (0, 0);
        while good < times {
            while posted < times && posted - good < OUTSTANDING {
                endpoint.write(posted, (&mr, 0), to, len)?;
                posted += 1;
            }
            let status = endpoint.wait(Duration::from_secs(30))?;
            if status != Status::IBV_WC_SUCCESS {
                return Ok(format!("{good} {status:?}"));
            }
            good += 1;
        }
        Ok(format!("{good} IBV_WC_SUCCESS"))
    }

    /// Forgets everything about that device, and returns its descriptor.
    fn give_up(&mut self, device: &str) -> Result<RawFd> {
        let files = device_files()?;
        let (_, fd) =
            files.iter().find(|(name, _)| name.contains(device)).with_context(|| format!("no {device} open"))?;
        for mr in self.mrs.drain(..) {
            std::mem::forget(mr);
        }
        std::mem::forget(self.pd.take());
        Ok(*fd)
    }

    fn exec(&mut self, keep: bool, from_a_thread: bool) -> Result<String> {
        for (name, fd) in device_files()? {
            if name.contains("uverbs") || name.contains("nvidiactl") {
                let flags = if keep { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
                // SAFETY: the descriptor was open a moment ago, and nothing in this process closes
                // one meanwhile.
                let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
                fcntl(file, FcntlArg::F_SETFD(flags)).with_context(|| format!("flags of {name}"))?;
            }
        }
        let exec = || Command::new("/proc/self/exe").args(["helper", "idle"]).exec();
        let e = if from_a_thread {
            std::thread::spawn(exec).join().map_err(|_| anyhow::anyhow!("the thread panicked"))?
        } else {
            exec()
        };
        Err(e).context("exec")
    }
}

/// Returns this process's descriptors of character devices, by the files that they are open on.
fn device_files() -> Result<BTreeMap<String, RawFd>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").context("read /proc/self/fd")? {
        let entry = entry?;
        // The folder's own descriptor is closed by the time it is looked at.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let fd = entry.file_name().to_string_lossy().parse().context("a name in /proc/self/fd")?;
        files.insert(target.to_string_lossy().into_owned(), fd);
    }
    ensure!(!files.is_empty(), "/proc/self/fd is empty");
    Ok(files)
}

fn seeded(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn hand_to_the_kernel(fd: RawFd) -> Result<()> {
    use std::os::fd::AsRawFd;
    let (to, from) = socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC)?;
    let fds = [fd, to.as_raw_fd(), from.as_raw_fd()];
    let text = [io::IoSlice::new(b"x")];
    sendmsg::<()>(from.as_raw_fd(), &text, &[ControlMessage::ScmRights(&fds)], MsgFlags::empty(), None)
        .context("send the descriptors")?;
    nix::unistd::close(fd).context("close the NIC's file")?;
    drop((to, from));
    // Neither file is released, because the message has them. The kernel looks for such cycles when
    // any other socket is released.
    socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC).map(drop).context("socketpair")
}
