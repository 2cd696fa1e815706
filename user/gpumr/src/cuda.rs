// SPDX-License-Identifier: GPL-2.0
//! The CUDA driver, opened at run time: ten functions. cudarc does not serve here. 0.19.10 needs
//! Rust 1.88 (by libloading 0.9), opens libcuda by itself and panics where a function is missing.
//! 0.18.2 builds with 1.85 and takes a library that is open, but panics if that lacks any of its
//! hundreds of functions. Both return a Rust enum, for which an error code of a newer driver is
//! undefined behaviour.

use crate::backend::{Gpu, Kind};
use crate::error::Error;
use crate::range::Range;
use libloading::os::unix::{Library, Symbol, RTLD_LAZY};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void, CStr};
use std::os::fd::{FromRawFd, OwnedFd};

const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const DMA_BUF_FD: c_int = 1;
/// No context is current in this thread.
const INVALID_CONTEXT: c_int = 201;
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;
/// dlopen: only what the program has loaded itself.
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
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// libcuda.
pub struct Cuda {
    attribute: Symbol<GetAttribute>,
    /// Since CUDA 7.0; the attributes of a range since 10.2.
    attributes: Option<Symbol<GetAttributes>>,
    range: Symbol<GetRange>,
    /// Since CUDA 11.7.
    handle: Option<Symbol<GetHandle>>,
    name: Symbol<ErrorName>,
    push: Symbol<PushContext>,
    pop: Symbol<PopContext>,
    retain: Symbol<RetainPrimary>,
    release: Symbol<ReleasePrimary>,
    /// Last: the functions are its.
    _lib: Library,
}

impl Cuda {
    /// Opens the library and starts the driver. Errors: it is missing, or finds no GPU.
    pub fn open() -> Result<Self, Error> {
        let cuda = Self::with(RTLD_LAZY)?;
        // SAFETY: The type is cuda.h's; it may be called at any time.
        let status = unsafe {
            let init = cuda._lib.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0");
            init.map_err(|error| Error::Library(format!("libcuda has no cuInit: {error}")))?(0)
        };
        match status {
            0 => Ok(cuda),
            error => Err(Error::Library(format!("cuInit: {}: is there a GPU, and its driver?", cuda.words(error)))),
        }
    }

    /// The library, if the program has it loaded. It is not started.
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
                attribute: lib.get(b"cuPointerGetAttribute\0").map_err(missing)?,
                attributes: lib.get(b"cuPointerGetAttributes\0").ok(),
                range: lib.get(b"cuMemGetAddressRange_v2\0").map_err(missing)?,
                handle: lib.get(b"cuMemGetHandleForAddressRange\0").ok(),
                name: lib.get(b"cuGetErrorName\0").map_err(missing)?,
                push: lib.get(b"cuCtxPushCurrent_v2\0").map_err(missing)?,
                pop: lib.get(b"cuCtxPopCurrent_v2\0").map_err(missing)?,
                retain: lib.get(b"cuDevicePrimaryCtxRetain\0").map_err(missing)?,
                release: lib.get(b"cuDevicePrimaryCtxRelease_v2\0").map_err(missing)?,
                _lib: lib,
            })
        }
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
}

impl Cuda {
    /// What `ask` answers, in a context: a thread that only talks to NICs may have none. Any will
    /// do; that of the memory is there already.
    fn in_context(&self, address: u64, ask: impl Fn() -> c_int) -> c_int {
        let status = ask();
        if status != INVALID_CONTEXT {
            return status;
        }
        let (mut context, mut device): (Context, c_int) = (std::ptr::null_mut(), -1);
        // SAFETY: The first attribute is a pointer, the second a number of four bytes; both are
        // locals.
        unsafe {
            (self.attribute)(std::ptr::from_mut(&mut context).cast(), CONTEXT, address);
            (self.attribute)(std::ptr::from_mut(&mut device).cast(), DEVICE_ORDINAL, address);
        }
        // Memory of a pool, and virtual memory, belong to none.
        let primary = context.is_null();
        // SAFETY: A local. What is pushed here is popped here, what is retained is released.
        unsafe {
            if primary && (self.retain)(&mut context, device) != 0 {
                return status;
            }
            let mut status = (self.push)(context);
            if status == 0 {
                status = ask();
                (self.pop)(&mut context);
            }
            if primary {
                (self.release)(device);
            }
            status
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
        // What CUDA does not know has number 0 and no bytes, and is no error.
        if status != 0 || id == 0 {
            return None;
        }
        Range::new(start, size as u64).ok().map(|range| (id, range))
    }

    fn kind(&self, address: u64) -> Kind {
        let (mut kind, mut managed): (c_uint, c_uint) = (0, 0);
        // SAFETY: Both attributes are numbers of at most four bytes.
        let (known, _) = unsafe {
            (
                (self.attribute)(std::ptr::from_mut(&mut kind).cast(), MEMORY_TYPE, address),
                (self.attribute)(std::ptr::from_mut(&mut managed).cast(), IS_MANAGED, address),
            )
        };
        match (known, kind, managed) {
            (0, _, 1) => Kind::Managed,
            (0, HOST, _) => Kind::Host,
            (0, DEVICE, _) => Kind::Device,
            _ => Kind::Unknown,
        }
    }

    fn allocation(&self, address: u64) -> Option<Range> {
        let (base, size) = (Cell::new(0u64), Cell::new(0usize));
        // SAFETY: Two locals; every address may be asked for.
        let status = self.in_context(address, || unsafe { (self.range)(base.as_ptr(), size.as_ptr(), address) });
        if status != 0 {
            return None;
        }
        Range::new(base.get(), size.get() as u64).ok()
    }

    fn export(&self, range: Range) -> Result<OwnedFd, String> {
        let handle = self.handle.as_ref().ok_or("libcuda has no cuMemGetHandleForAddressRange (CUDA 11.7)")?;
        let fd: Cell<c_int> = Cell::new(-1);
        let (at, length) = (range.start(), range.length() as usize);
        // SAFETY: A local; the range is made of whole pages, and a wrong one is refused.
        let status = self.in_context(at, || unsafe { handle(fd.as_ptr(), at, length, DMA_BUF_FD, 0) });
        let fd = fd.get();
        if status != 0 || fd < 0 {
            return Err(format!("cuMemGetHandleForAddressRange: {}", self.words(status)));
        }
        // SAFETY: The driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
