// SPDX-License-Identifier: GPL-2.0
//! Runs an agent of NIXL through the C interface of its published library (`libnixl_capi.so`, which
//! NVIDIA's own Rust bindings use). The process does what a test tells it, line by line, and
//! answers each command with `ok …` or `error …`.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::io::{self, BufRead};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use libloading::{Library, Symbol};

use crate::common::{page, pattern};
use crate::cuda::{Cuda, DeviceMemory, Segments};

/// The folder in which the wheel is unpacked.
pub const WHEEL: &str = "/programs/nixl";
/// The time that a transfer or a notification may take on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// `NIXL_CAPI_IN_PROG`.
const IN_PROGRESS: c_int = 1;
/// The size in bytes of each of several allocations.
const SEGMENT: usize = 2 << 20;

/// A handle of the library.
type Handle = *mut c_void;

/// The kinds of memory that can be made.
const KINDS: &str = "dram, vram, segments or part";
/// The size in bytes of an allocation that is handed out in parts, as PyTorch's caching allocator
/// does.
const BLOCK: usize = 20 << 20;
/// A part begins at a multiple of this many bytes.
const ROUND: usize = 512;

/// The kinds of memory, by the library's numbers.
#[derive(Clone, Copy)]
enum Kind {
    Dram = 0,
    Vram = 1,
}

impl Kind {
    fn named(word: &str) -> Result<Self> {
        match word {
            "dram" => Ok(Self::Dram),
            "vram" | "segments" | "part" => Ok(Self::Vram),
            _ => bail!("{word}: {KINDS}"),
        }
    }
}

/// The library and one agent.
struct Nixl {
    library: Library,
    agent: Handle,
    /// The options that name the backend in each call.
    options: Handle,
    /// The GPU whose memory the agent registers.
    gpu: u64,
}

/// Calls a function of the library and returns its status.
macro_rules! call {
    ($nixl:expr, $name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> c_int;
        let name = stringify!($name);
        // SAFETY: the type is that of the library's wrapper.h (1.5).
        let function: Symbol<Function> = unsafe { $nixl.get(name.as_bytes()) }.with_context(|| format!("no {name}"))?;
        // SAFETY: handles that the library gave, live strings, and out-parameters that are locals.
        let status = unsafe { function($($arg),*) };
        ensure!(status >= 0, "{name}: status {status}");
        status
    }};
}

/// Memory that an agent has registered.
enum Memory {
    Host(Vec<u8>),
    Gpu(DeviceMemory),
    /// Several allocations, one behind the other.
    Segments(Rc<RefCell<Segments>>, usize),
    /// A part of a block: its offset, and its number of bytes.
    Part(Rc<DeviceMemory>, usize, usize),
}

impl Memory {
    fn at(&self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.as_ptr() as u64,
            Self::Gpu(memory) => memory.va(),
            Self::Segments(segments, _) => segments.borrow().va(),
            Self::Part(block, offset, _) => block.va() + *offset as u64,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Gpu(memory) => memory.size(),
            Self::Segments(_, len) | Self::Part(_, _, len) => *len,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Host(to) => to.copy_from_slice(bytes),
            Self::Gpu(memory) => memory.write(0, bytes)?,
            Self::Segments(segments, _) => segments.borrow().write(0, bytes)?,
            Self::Part(block, offset, _) => block.write(*offset, bytes)?,
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Host(bytes) => Ok(bytes.clone()),
            Self::Gpu(memory) => memory.read(0, memory.size()),
            Self::Segments(segments, len) => segments.borrow().read(0, *len),
            Self::Part(block, offset, len) => block.read(*offset, *len),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Host(_) => Kind::Dram,
            Self::Gpu(_) | Self::Segments(..) | Self::Part(..) => Kind::Vram,
        }
    }
}

struct Agent {
    nixl: Nixl,
    cuda: Arc<Cuda>,
    memory: Vec<Option<Memory>>,
    /// The allocation that is handed out in parts, and the offset up to which it was.
    block: Option<(Rc<DeviceMemory>, usize)>,
}

/// Runs an agent of that name with memory of that GPU.
pub fn run(name: &str, gpu: &str) -> Result<()> {
    let gpu: i32 = gpu.parse().context("which GPU")?;
    let cuda = Cuda::open_on(gpu)?;
    let mut agent = Agent { nixl: Nixl::open(name, gpu)?, cuda, memory: Vec::new(), block: None };
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line.context("read a command")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match agent.act(&words) {
            Ok(said) => println!("ok {said}"),
            Err(e) => println!("error {}: {e:#}", line.chars().take(80).collect::<String>()),
        }
    }
    Ok(())
}

impl Nixl {
    /// Makes an agent with UCX as its backend.
    fn open(name: &str, gpu: i32) -> Result<Self> {
        let file = Path::new(WHEEL).join(".nixl_cu12.mesonpy.libs/libnixl_capi.so");
        // SAFETY: loading runs the library's initialisers, which are made for that.
        let library = unsafe { Library::new(&file) }.with_context(|| format!("open {}", file.display()))?;
        let name = CString::new(name)?;
        let (mut agent, mut backend, mut options): (Handle, Handle, Handle) = (null_mut(), null_mut(), null_mut());
        let (mut memories, mut parameters): (Handle, Handle) = (null_mut(), null_mut());
        call!(library, nixl_capi_create_agent(name.as_ptr() => *const c_char, &mut agent => *mut Handle));
        call!(library, nixl_capi_get_plugin_params(agent => Handle, c"UCX".as_ptr() => *const c_char,
            &mut memories => *mut Handle, &mut parameters => *mut Handle));
        call!(library, nixl_capi_create_backend(agent => Handle, c"UCX".as_ptr() => *const c_char,
            parameters => Handle, &mut backend => *mut Handle));
        call!(library, nixl_capi_create_opt_args(&mut options => *mut Handle));
        call!(library, nixl_capi_opt_args_add_backend(options => Handle, backend => Handle));
        Ok(Self { library, agent, options, gpu: u64::try_from(gpu)? })
    }

    fn descriptors(&self, memory: &Memory) -> Result<Handle> {
        let mut list: Handle = null_mut();
        call!(self.library, nixl_capi_create_reg_dlist(memory.kind() as c_int => c_int, &mut list => *mut Handle));
        call!(self.library, nixl_capi_reg_dlist_add_desc(list => Handle, memory.at() => u64, memory.len() => usize,
            self.gpu => u64, std::ptr::null() => *const c_void, 0 => usize));
        Ok(list)
    }

    fn register(&self, memory: &Memory) -> Result<()> {
        let list = self.descriptors(memory)?;
        call!(self.library, nixl_capi_register_mem(self.agent => Handle, list => Handle, self.options => Handle));
        call!(self.library, nixl_capi_destroy_reg_dlist(list => Handle));
        Ok(())
    }

    fn deregister(&self, memory: &Memory) -> Result<()> {
        let list = self.descriptors(memory)?;
        call!(self.library, nixl_capi_deregister_mem(self.agent => Handle, list => Handle, self.options => Handle));
        call!(self.library, nixl_capi_destroy_reg_dlist(list => Handle));
        Ok(())
    }

    /// Returns the data that another agent needs to reach this one.
    fn metadata(&self) -> Result<Vec<u8>> {
        let (mut data, mut len): (Handle, usize) = (null_mut(), 0);
        call!(self.library, nixl_capi_get_local_md(self.agent => Handle, &mut data => *mut Handle,
            &mut len => *mut usize));
        // SAFETY: the library's bytes, as many as it says; its wrapper makes them by malloc().
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec();
        // SAFETY: as above; this is their last use.
        unsafe { libc::free(data) };
        Ok(bytes)
    }

    fn load(&self, metadata: &[u8]) -> Result<String> {
        let mut name: *mut c_char = null_mut();
        call!(self.library, nixl_capi_load_remote_md(self.agent => Handle, metadata.as_ptr().cast() => *const c_void,
            metadata.len() => usize, &mut name => *mut *mut c_char));
        // SAFETY: a C string that the library made by strdup().
        let said = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: as above; this is its last use.
        unsafe { libc::free(name.cast()) };
        Ok(said)
    }

    fn forget(&self, remote: &str) -> Result<()> {
        let remote = CString::new(remote)?;
        call!(self.library, nixl_capi_invalidate_remote_md(self.agent => Handle, remote.as_ptr() => *const c_char));
        Ok(())
    }

    fn transfer_list(&self, kind: Kind, at: u64, len: usize, gpu: u64) -> Result<Handle> {
        let mut list: Handle = null_mut();
        call!(self.library, nixl_capi_create_xfer_dlist(kind as c_int => c_int, &mut list => *mut Handle));
        call!(self.library, nixl_capi_xfer_dlist_add_desc(list => Handle, at => u64, len => usize, gpu => u64));
        Ok(list)
    }

    /// Moves the bytes and waits until that is done. With a notification, the other agent learns of
    /// it.
    fn transfer(&self, write: bool, local: &Memory, remote: (&str, Kind, u64, u64), notification: &str) -> Result<()> {
        let from = self.transfer_list(local.kind(), local.at(), local.len(), self.gpu)?;
        let to = self.transfer_list(remote.1, remote.2, local.len(), remote.3)?;
        let name = CString::new(remote.0)?;
        call!(self.library, nixl_capi_opt_args_set_has_notif(self.options => Handle, true => bool));
        call!(self.library, nixl_capi_opt_args_set_notif_msg(self.options => Handle,
            notification.as_ptr().cast() => *const c_void, notification.len() => usize));
        let mut request: Handle = null_mut();
        call!(self.library, nixl_capi_create_xfer_req(self.agent => Handle, c_int::from(write) => c_int, from => Handle,
            to => Handle, name.as_ptr() => *const c_char, &mut request => *mut Handle, self.options => Handle));
        let begin = Instant::now();
        let mut status = call!(self.library, nixl_capi_post_xfer_req(self.agent => Handle, request => Handle, self.options => Handle));
        while status == IN_PROGRESS {
            ensure!(begin.elapsed() < PATIENCE, "the transfer is not done after {PATIENCE:?}");
            status = call!(self.library, nixl_capi_get_xfer_status(self.agent => Handle, request => Handle));
        }
        call!(self.library, nixl_capi_release_xfer_req(self.agent => Handle, request => Handle));
        call!(self.library, nixl_capi_destroy_xfer_req(request => Handle));
        call!(self.library, nixl_capi_destroy_xfer_dlist(from => Handle));
        call!(self.library, nixl_capi_destroy_xfer_dlist(to => Handle));
        call!(self.library, nixl_capi_opt_args_set_has_notif(self.options => Handle, false => bool));
        Ok(())
    }

    /// Waits for the next notification of another agent.
    fn notification(&self, of: &str) -> Result<String> {
        let mut map: Handle = null_mut();
        let of = CString::new(of)?;
        call!(self.library, nixl_capi_create_notif_map(&mut map => *mut Handle));
        let begin = Instant::now();
        let mut agents = 0usize;
        while agents == 0 {
            ensure!(begin.elapsed() < PATIENCE, "no notification came within {PATIENCE:?}");
            call!(self.library, nixl_capi_get_notifs(self.agent => Handle, map => Handle, self.options => Handle));
            call!(self.library, nixl_capi_notif_map_size(map => Handle, &mut agents => *mut usize));
            sleep(Duration::from_millis(1));
        }
        let (mut data, mut len): (*const c_void, usize) = (std::ptr::null(), 0);
        call!(self.library, nixl_capi_notif_map_get_notif(map => Handle, of.as_ptr() => *const c_char, 0 => usize,
            &mut data => *mut *const c_void, &mut len => *mut usize));
        // SAFETY: bytes of the map, as many as it says, while the map lives.
        let text = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        let text = String::from_utf8_lossy(text).into_owned();
        call!(self.library, nixl_capi_destroy_notif_map(map => Handle));
        Ok(text)
    }
}

impl Agent {
    fn memory(&self, index: &str) -> Result<&Memory> {
        let index: usize = index.parse().context("which memory")?;
        self.memory.get(index).and_then(Option::as_ref).with_context(|| format!("there is no memory {index}"))
    }

    fn act(&mut self, words: &[&str]) -> Result<String> {
        let done = || Ok(String::new());
        match words {
            // Makes memory with the bytes of a seed and registers it. Returns its number and
            // address.
            ["make", kind, size, seed] => {
                let size: usize = size.parse()?;
                let mut memory = match *kind {
                    "dram" => Memory::Host(vec![0; size]),
                    "vram" => Memory::Gpu(self.cuda.alloc(size)?),
                    "segments" => {
                        // Reserve addresses for twice the size, so that it can grow.
                        let mut segments = self.cuda.reserve(2 * size)?;
                        for at in (0..size).step_by(SEGMENT) {
                            segments.map(at, SEGMENT, true)?;
                        }
                        Memory::Segments(Rc::new(RefCell::new(segments)), size)
                    }
                    "part" => {
                        let block = match self.block.take() {
                            Some(block) => block,
                            None => (Rc::new(self.cuda.alloc(BLOCK)?), ROUND),
                        };
                        let (block, at) = block;
                        ensure!(at + size <= BLOCK, "the block has no room for {size} bytes");
                        self.block = Some((Rc::clone(&block), (at + size + 1).next_multiple_of(ROUND)));
                        Memory::Part(block, at, size)
                    }
                    _ => bail!("{kind}: {KINDS}"),
                };
                memory.write(&bytes(seed, size)?)?;
                self.nixl.register(&memory)?;
                let said = format!("{} {}", self.memory.len(), memory.at());
                self.memory.push(Some(memory));
                Ok(said)
            }
            // Does what expandable segments do when they grow: maps more of them behind the
            // registered ones, and registers the whole anew.
            ["grow", index, seed] => {
                let Memory::Segments(segments, len) = self.memory(index)? else { bail!("{index} is no segments") };
                let (segments, len) = (Rc::clone(segments), *len);
                for at in (len..2 * len).step_by(SEGMENT) {
                    segments.borrow_mut().map(at, SEGMENT, true)?;
                }
                let mut memory = Memory::Segments(segments, 2 * len);
                memory.write(&bytes(seed, 2 * len)?)?;
                self.nixl.register(&memory)?;
                let said = format!("{} {}", self.memory.len(), memory.at());
                self.memory.push(Some(memory));
                Ok(said)
            }
            // Forks a process that ends at once.
            ["fork"] => {
                // SAFETY: the child does nothing but end.
                match unsafe { nix::unistd::fork() }? {
                    // SAFETY: ends the child without running anything of the parent's.
                    nix::unistd::ForkResult::Child => unsafe { libc::_exit(0) },
                    nix::unistd::ForkResult::Parent { child } => drop(nix::sys::wait::waitpid(child, None)?),
                }
                done()
            }
            ["fill", index, seed] => {
                let index: usize = index.parse()?;
                let memory = self.memory.get_mut(index).and_then(Option::as_mut).context("there is no such memory")?;
                let bytes = bytes(seed, memory.len())?;
                memory.write(&bytes).and_then(|()| done())
            }
            // Returns how many bytes are not those of the seed.
            ["spoilt", index, seed] => {
                let memory = self.memory(index)?;
                let wanted = bytes(seed, memory.len())?;
                Ok(memory.read()?.iter().zip(&wanted).filter(|(a, b)| a != b).count().to_string())
            }
            ["metadata"] => Ok(self.nixl.metadata()?.iter().map(|byte| format!("{byte:02x}")).collect()),
            ["load", hex] => {
                let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16);
                let bytes = (0..hex.len() / 2).map(|i| byte(2 * i)).collect::<Result<Vec<u8>, _>>()?;
                self.nixl.load(&bytes)
            }
            ["forget", remote] => self.nixl.forget(remote).and_then(|()| done()),
            [operation @ ("read" | "write"), index, remote, kind, gpu, at, notification] => {
                let write = *operation == "write";
                let remote = (*remote, Kind::named(kind)?, at.parse()?, gpu.parse()?);
                self.nixl.transfer(write, self.memory(index)?, remote, notification).and_then(|()| done())
            }
            ["notification", of] => self.nixl.notification(of),
            ["deregister", index] => {
                self.nixl.deregister(self.memory(index)?)?;
                done()
            }
            // Frees the memory, registered or not.
            ["free", index] => {
                let index: usize = index.parse()?;
                match self.memory.get_mut(index).and_then(Option::take).context("there is no such memory")? {
                    Memory::Gpu(memory) => memory.free()?,
                    other => drop(other),
                }
                done()
            }
            _ => bail!("no such command"),
        }
    }
}

/// Returns bytes that depend on this seed alone. No whole page of them occurs twice.
fn bytes(seed: &str, len: usize) -> Result<Vec<u8>> {
    ensure!(len % page() == 0, "{len} bytes are not whole pages");
    Ok(pattern(&mut fastrand::Rng::with_seed(seed.parse()?), len))
}
