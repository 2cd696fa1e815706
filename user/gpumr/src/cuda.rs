// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The CUDA driver, opened at run time: twelve functions. cudarc does not serve here. 0.19.10 needs
//! Rust 1.88 (by libloading 0.9), opens libcuda by itself and panics where a function is missing.
//! 0.18.2 builds with 1.85 and takes a library that is open, but panics if that lacks any of its
//! hundreds of functions. Both return a Rust enum, for which an error code of a newer driver is
//! undefined behaviour.

use crate::backend::{Gpu, Kind};
use crate::checkpoint::Watch;
use crate::error::Error;
use crate::nvml::{Nvml, Uuid};
use crate::range::{page_size, Range};
use libloading::os::unix::{Library, Symbol, RTLD_LAZY};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void, CStr};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const RDMA_CAPABLE: c_int = 15;
const MEMORY_POOL: c_int = 17;
const MAPPING_SIZE: c_int = 18;
const MAPPING_START: c_int = 19;
const DMA_BUF_FD: c_int = 1;
/// CUDA does not know the address.
const INVALID_VALUE: c_int = 1;
/// Nobody called cuInit(), or this is a child of a process that did.
const NOT_INITIALIZED: c_int = 3;
/// CUDA ends with the process.
const DEINITIALIZED: c_int = 4;
/// The question needs another context: no context is current in this thread, the memory belongs to
/// another GPU than the current context, or the current context is destroyed.
const WRONG_CONTEXT: [c_int; 3] = [201, 500, 709];
/// The state of a process that is neither locked for a checkpoint nor in one.
const RUNNING: c_int = 0;
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
/// The number of times that a refused export is tried again, since a neighbour may have changed meanwhile. Of a pool's
/// memory CUDA refuses all but the first allocation for good.
const TRIES: u32 = 16;
const NO_EXPORT: &str = "libcuda has no cuMemGetHandleForAddressRange (CUDA 11.7)";
/// A flag of dlopen: open only what the program has loaded itself.
const RTLD_NOLOAD: c_int = 4;

type GetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;
type GetAttributes = unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut c_void, u64) -> c_int;
type GetRange = unsafe extern "C" fn(*mut u64, *mut usize, u64) -> c_int;
type GetHandle = unsafe extern "C" fn(*mut c_int, u64, usize, c_int, c_ulonglong) -> c_int;
type Context = *mut c_void;
type PushContext = unsafe extern "C" fn(Context) -> c_int;
type PopContext = unsafe extern "C" fn(*mut Context) -> c_int;
type RetainPrimary = unsafe extern "C" fn(*mut Context, c_int) -> c_int;
type ReleasePrimary = unsafe extern "C" fn(c_int) -> c_int;
type PrimaryState = unsafe extern "C" fn(c_int, *mut c_uint, *mut c_int) -> c_int;
type GetUuid = unsafe extern "C" fn(*mut Uuid, c_int) -> c_int;
type ProcessState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// libcuda, opened at run time.
#[derive(Debug)]
pub struct Cuda {
    flags: c_ulonglong,
    attribute: Symbol<GetAttribute>,
    /// It exists since CUDA 7.0, the attributes of a range since 10.2.
    attributes: Option<Symbol<GetAttributes>>,
    range: Symbol<GetRange>,
    /// It exists since CUDA 11.7.
    handle: Option<Symbol<GetHandle>>,
    /// It exists since CUDA 11.4.
    uuid: Option<Symbol<GetUuid>>,
    /// It exists since CUDA 12.8.
    process: Option<Symbol<ProcessState>>,
    name: Symbol<ErrorName>,
    push: Symbol<PushContext>,
    pop: Symbol<PopContext>,
    retain: Symbol<RetainPrimary>,
    release: Symbol<ReleasePrimary>,
    /// It exists since CUDA 7.0.
    state: Option<Symbol<PrimaryState>>,
    /// The GPUs whose primary context was made for a question, a bit each. The context is kept,
    /// because making one takes 400 ms.
    kept: AtomicU64,
    watch: Watch,
    /// The library. The field is the last, because the functions are the library's.
    _lib: Library,
}

impl Cuda {
    /// Opens the library. It does not start the driver, which is up to the program: a process that
    /// called cuInit() has children that cannot use CUDA. Fails if the library is missing.
    pub fn open() -> Result<Self, Error> {
        Self::with(RTLD_LAZY)
    }

    /// Sets flags for `cuMemGetHandleForAddressRange()`. 1 asks for dma-bufs that a NIC reaches
    /// over PCIe, even if the GPU is attached to the processor directly (CUDA 12.8).
    pub fn with_dma_buf_flags(mut self, flags: u64) -> Self {
        self.flags = flags;
        self
    }

    /// Fails if [`Gpu::memory()`] has no answer because NVML is missing.
    #[doc(hidden)]
    pub fn knows_memory(&self) -> Result<(), Error> {
        Nvml::get().map(|_| ())
    }

    /// Returns the library if the program has it loaded. It does not start the driver.
    #[doc(hidden)]
    pub fn loaded() -> Option<Self> {
        Self::with(RTLD_LAZY | RTLD_NOLOAD).ok()
    }

    fn with(flags: c_int) -> Result<Self, Error> {
        // SAFETY: libcuda's constructors are safe to run.
        let lib = unsafe { Library::open(Some("libcuda.so.1"), flags) }.map_err(|error| {
            Error::Library(format!("libcuda.so.1 cannot be opened: install the GPU driver's user space ({error})"))
        })?;
        let missing = |error| Error::Library(format!("libcuda.so.1 is too old: {error}"));
        // SAFETY: The types are those of cuda.h.
        unsafe {
            Ok(Self {
                flags: 0,
                attribute: lib.get(b"cuPointerGetAttribute\0").map_err(missing)?,
                attributes: lib.get(b"cuPointerGetAttributes\0").ok(),
                range: lib.get(b"cuMemGetAddressRange_v2\0").map_err(missing)?,
                handle: lib.get(b"cuMemGetHandleForAddressRange\0").ok(),
                uuid: lib.get(b"cuDeviceGetUuid_v2\0").ok(),
                process: lib.get(b"cuCheckpointProcessGetState\0").ok(),
                name: lib.get(b"cuGetErrorName\0").map_err(missing)?,
                push: lib.get(b"cuCtxPushCurrent_v2\0").map_err(missing)?,
                pop: lib.get(b"cuCtxPopCurrent_v2\0").map_err(missing)?,
                retain: lib.get(b"cuDevicePrimaryCtxRetain\0").map_err(missing)?,
                release: lib.get(b"cuDevicePrimaryCtxRelease_v2\0").map_err(missing)?,
                state: lib.get(b"cuDevicePrimaryCtxGetState\0").ok(),
                kept: AtomicU64::new(0),
                watch: Watch::default(),
                _lib: lib,
            })
        }
    }

    /// Returns an attribute that is a number of at most eight bytes. Bytes that CUDA does not write
    /// are 0.
    fn number(&self, attribute: c_int, address: u64) -> Result<u64, c_int> {
        let mut value = 0u64;
        // SAFETY: The attributes asked for here have at most eight bytes; every address may be asked
        // for.
        match unsafe { (self.attribute)((&raw mut value).cast(), attribute, address) } {
            0 => Ok(value),
            status => Err(status),
        }
    }

    /// Returns the range that two attributes describe.
    fn bounds(&self, start: c_int, size: c_int, address: u64) -> Option<Range> {
        Range::new(self.number(start, address).ok()?, self.number(size, address).ok()?).ok()
    }

    /// Returns the answer of `ask` in a context in which CUDA can give it: the current one, or one
    /// of the memory's GPU. A thread that only talks to NICs has no context, and a context of
    /// another GPU does not know the memory.
    fn in_context(&self, address: u64, ask: impl Fn() -> c_int) -> c_int {
        let status = ask();
        if !WRONG_CONTEXT.contains(&status) {
            return status;
        }
        self.in_its_context(address, &ask).unwrap_or(status)
    }

    /// Returns the answer in a context of the memory's GPU, whatever is current, or `None` if there
    /// is no such context. The program is registering the memory, so it does not end its context.
    fn in_its_context(&self, address: u64, ask: impl Fn() -> c_int) -> Option<c_int> {
        // The memory exists, so its context does, too.
        let mut context = self.number(CONTEXT, address).unwrap_or(0) as Context;
        let device = self.number(DEVICE_ORDINAL, address).ok()? as c_int;
        // Memory of a pool, and virtual memory, belong to no context.
        let primary = context.is_null();
        // SAFETY: Locals. What is pushed here is popped here, what is retained is released, or kept
        // and released once in drop.
        unsafe {
            if primary && (self.retain_primary(&mut context, device)) != 0 {
                return None;
            }
            let mut status = (self.push)(context);
            if status == 0 {
                status = ask();
                (self.pop)(&mut context);
            }
            if primary {
                (self.release)(device);
            }
            Some(status)
        }
    }

    /// Returns `pages` and the pages of the whole allocation at its beginning, if these are more. The
    /// first page of a small allocation may begin in a neighbour that was freed. CUDA then exports nothing
    /// less than the allocation. Returns `None` where the pages begin in memory that CUDA knows.
    fn whole(&self, pages: Range, memory: Range) -> Option<Range> {
        if self.buffer_id(pages.start()).is_some() {
            return None;
        }
        let first = self.allocation(memory.start())?.widened(page_size())?;
        let (start, end) = (first.start().min(pages.start()), first.end().max(pages.end()));
        Range::new(start, end - start).ok().filter(|whole| *whole != pages)
    }

    /// Returns whether this process is outside of a checkpoint, if CUDA says so.
    fn runs(&self) -> Option<bool> {
        let (ask, mut state) = (self.process.as_ref()?, -1);
        // SAFETY: A local; this process.
        let status = unsafe { ask(libc::getpid(), &mut state) };
        (status == 0).then_some(state == RUNNING)
    }

    /// Returns whether a GPU's primary context is in use, if CUDA says so.
    fn is_primary_active(&self, device: c_int) -> Option<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: Locals.
        let status = unsafe { self.state.as_ref()?(device, &mut flags, &mut active) };
        (status == 0).then_some(active != 0)
    }

    /// Retains the primary context of a GPU. A context that nobody uses yet is retained once more,
    /// for as long as this lives.
    ///
    /// # Safety
    ///
    /// `device` is a number that `cuDevicePrimaryCtxRetain()` takes.
    unsafe fn retain_primary(&self, context: &mut Context, device: c_int) -> c_int {
        let inactive = self.is_primary_active(device) == Some(false);
        let bit = u32::try_from(device).ok().and_then(|device| 1u64.checked_shl(device)).unwrap_or(0);
        if inactive && bit != 0 && self.kept.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            // SAFETY: By this function's contract; drop() releases it.
            let status = unsafe { (self.retain)(context, device) };
            if status != 0 {
                self.kept.fetch_and(!bit, Ordering::Relaxed);
                return status;
            }
        }
        // SAFETY: By this function's contract.
        unsafe { (self.retain)(context, device) }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let kept = *self.kept.get_mut();
        for device in (0..u64::BITS).filter(|device| kept >> device & 1 != 0) {
            // SAFETY: It was retained here once.
            unsafe { (self.release)(device as c_int) };
        }
    }
}

impl Gpu for Cuda {
    fn buffer_id(&self, address: u64) -> Option<u64> {
        let mut id: c_ulonglong = 0;
        // SAFETY: This attribute is a number of eight bytes; every address may be asked for.
        let status = unsafe { (self.attribute)(std::ptr::from_mut(&mut id).cast(), BUFFER_ID, address) };
        (status == 0).then_some(id)
    }

    #[inline]
    fn buffer(&self, address: u64) -> Option<(u64, Range)> {
        let ask = self.attributes.as_ref()?;
        let (mut id, mut start, mut size) = (0u64, 0u64, 0usize);
        let mut what = [BUFFER_ID, RANGE_START, RANGE_SIZE];
        let mut out: [*mut c_void; 3] = [(&raw mut id).cast(), (&raw mut start).cast(), (&raw mut size).cast()];
        // SAFETY: Three attributes of eight bytes each, and room for each; every address may be
        // asked for.
        let status = unsafe { ask(3, what.as_mut_ptr(), out.as_mut_ptr(), address) };
        // For an address that CUDA does not know, the number is 0 and the range is empty, which is
        // no error.
        if status != 0 || id == 0 {
            return None;
        }
        Range::new(start, size as u64).ok().map(|range| (id, range))
    }

    #[inline]
    fn epoch(&self) -> Option<u64> {
        self.watch.epoch(|| self.runs())
    }

    fn fresh_epoch(&self) -> Option<u64> {
        self.watch.fresh_epoch(|| self.runs())
    }

    fn kind(&self, address: u64) -> Kind {
        let managed = self.number(IS_MANAGED, address).is_ok_and(|managed| managed as u32 == 1);
        match self.number(MEMORY_TYPE, address) {
            Ok(_) if managed => Kind::Managed,
            Ok(kind) if kind as c_uint == HOST => Kind::Host,
            Ok(kind) if kind as c_uint == DEVICE => Kind::Device,
            Ok(_) | Err(INVALID_VALUE) => Kind::Unknown,
            Err(NOT_INITIALIZED | DEINITIALIZED) => Kind::NotStarted,
            Err(status) => Kind::Failed(status),
        }
    }

    fn allocation(&self, address: u64) -> Option<Range> {
        let range = self.bounds(RANGE_START, RANGE_SIZE, address);
        // For memory that belongs to a context, the range is the allocation. For virtual memory, it
        // is the whole reservation.
        if range.is_some() && self.number(CONTEXT, address).is_ok_and(|context| context != 0) {
            return range;
        }
        let segment = self.bounds(MAPPING_START, MAPPING_SIZE, address).or_else(|| {
            let (base, size) = (Cell::new(0u64), Cell::new(0usize));
            // SAFETY: Two locals; every address may be asked for.
            let status = self.in_context(address, || unsafe { (self.range)(base.as_ptr(), size.as_ptr(), address) });
            (status == 0).then(|| Range::new(base.get(), size.get() as u64).ok())?
        })?;
        range.map_or(Some(segment), |range| range.common(&segment))
    }

    fn capable(&self, address: u64) -> Option<bool> {
        Some(self.number(RDMA_CAPABLE, address).ok()? as u8 != 0)
    }

    fn pooled(&self, address: u64) -> bool {
        self.number(MEMORY_POOL, address).is_ok_and(|pool| pool != 0)
    }

    fn device(&self, address: u64) -> i32 {
        self.number(DEVICE_ORDINAL, address).unwrap_or(0) as i32
    }

    fn memory(&self, address: u64) -> Option<(u64, u64)> {
        let device = self.number(DEVICE_ORDINAL, address).ok()? as c_int;
        let mut uuid = Uuid::default();
        // SAFETY: A local; a wrong device is refused.
        let status = unsafe { self.uuid.as_ref()?(&mut uuid, device) };
        (status == 0).then(|| Nvml::get().ok()?.memory(uuid))?
    }

    fn words(&self, status: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: `text` is a local, set to a static string or left alone.
        let known = unsafe { (self.name)(status, &mut text) } == 0 && !text.is_null();
        if known {
            // SAFETY: A static string of the library.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            format!("CUDA error {status}")
        }
    }

    fn exports(&self) -> std::io::Result<()> {
        let lacks = || std::io::Error::new(std::io::ErrorKind::Unsupported, NO_EXPORT);
        self.handle.as_ref().map(|_| ()).ok_or_else(lacks)
    }

    fn export(&self, pages: Range, memory: Range) -> Result<(OwnedFd, Range), String> {
        let handle = self.handle.as_ref().ok_or(NO_EXPORT)?;
        let fd: Cell<c_int> = Cell::new(-1);
        let export = |pages: Range| {
            let (at, length) = (pages.start(), pages.length() as usize);
            // SAFETY: A local; the range is made of whole pages, and a wrong one is refused.
            self.in_context(memory.start(), || unsafe { handle(fd.as_ptr(), at, length, DMA_BUF_FD, self.flags) })
        };
        let (mut exported, mut status) = (pages, export(pages));
        // The neighbour may be freed, or allocated anew, between two questions, and then the first answer
        // counts for nothing.
        let pooled = status == INVALID_VALUE && self.pooled(memory.start());
        for _ in 0..if pooled { 1 } else { TRIES } {
            let whole = if status == INVALID_VALUE { self.whole(pages, memory) } else { break };
            if pooled && whole.is_none() {
                break;
            }
            exported = whole.unwrap_or(pages);
            status = export(exported);
        }
        if status != 0 || fd.get() < 0 {
            return Err(format!("cuMemGetHandleForAddressRange: {}", self.words(status)));
        }
        // SAFETY: The driver made it for us.
        Ok((unsafe { OwnedFd::from_raw_fd(fd.get()) }, exported))
    }
}
