// SPDX-License-Identifier: GPL-2.0

//! The lab's `libcudart.so.12`: the calls of the CUDA runtime API that UCX, NIXL and Mooncake make,
//! each over the driver API of whatever `libcuda.so.1` the process has.
//!
//! Models what the real one (12.9) answered on an H100 (docs/facts.md#cuda-programs): the codes, that the
//! last error stays until it is asked for, that a pointer of nobody is an unregistered one and no
//! error, and that the first call that needs a context makes the device's primary one current.
//!
//! Left out: kernels (a launch is NOT_SUPPORTED; what a program registers of its own is taken and
//! forgotten), capture (no stream captures), pools, textures, and the batched copy (NOT_SUPPORTED).
#![allow(non_snake_case, non_camel_case_types)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

/// What every function returns. The numbers of the driver API are the runtime's, too.
type cudaError_t = c_int;
/// A stream or an event.
type Handle = *mut c_void;
/// `cudaIpcMemHandle_t`.
type IpcHandle = [u64; 8];

const INVALID_VALUE: cudaError_t = 1;
const INSUFFICIENT_DRIVER: cudaError_t = 35;
const INVALID_COPY_DIRECTION: cudaError_t = 21;
const INVALID_DEVICE: cudaError_t = 101;
const PEER_ACCESS_UNSUPPORTED: cudaError_t = 217;
const NOT_SUPPORTED: cudaError_t = 801;

thread_local! {
    /// The device that the thread has chosen.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    /// The last error of the thread that nobody has asked for.
    static LAST: Cell<cudaError_t> = const { Cell::new(0) };
}

/// libcuda, initialised; `None`: there is none, or no GPU.
fn driver() -> Result<&'static Library, cudaError_t> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: libcuda's constructors ask for nothing.
    let library = LIBRARY.get_or_init(|| unsafe { Library::new("libcuda.so.1") }.ok());
    library.as_ref().ok_or(INSUFFICIENT_DRIVER)
}

/// Calls a function of the driver API and gives its code.
macro_rules! cu {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> cudaError_t;
        driver().and_then(|library| {
            // SAFETY: the type is that of cuda.h.
            let function = unsafe { library.get::<Function>(concat!(stringify!($name), "\0").as_bytes()) };
            let function = function.map_err(|_| INSUFFICIENT_DRIVER)?;
            // SAFETY: what the function asks for is what the caller of the runtime promises for the
            // same argument, or a local.
            match unsafe { function($($arg),*) } {
                0 => Ok(()),
                code => Err(code),
            }
        })
    }};
}

/// Keeps an error for `cudaGetLastError`.
fn told(call: impl FnOnce() -> Result<(), cudaError_t>) -> cudaError_t {
    match call() {
        Ok(()) => 0,
        Err(code) => {
            LAST.set(code);
            code
        }
    }
}

/// Defines C functions: each body is a block of `Result<(), cudaError_t>`.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are NULL or good for what CUDA's manual says is read or written there.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> cudaError_t {
            told(|| $body)
        }
    )*};
}

/// # Safety
/// `to` is NULL or good for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), cudaError_t> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not NULL, so good for writing, says the caller.
    unsafe { to.write(value) };
    Ok(())
}

fn devices() -> Result<c_int, cudaError_t> {
    cu!(cuInit(0 => c_uint))?;
    let mut count = 0;
    cu!(cuDeviceGetCount(&mut count => *mut c_int))?;
    Ok(count)
}

/// The device's primary context, retained once for the process.
fn primary(device: c_int) -> Result<Handle, cudaError_t> {
    static RETAINED: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());
    let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, context)) = retained.iter().find(|(of, _)| *of == device) {
        return Ok(*context as Handle);
    }
    let mut context: Handle = std::ptr::null_mut();
    cu!(cuDevicePrimaryCtxRetain(&mut context => *mut Handle, device => c_int))?;
    retained.push((device, context as usize));
    Ok(context)
}

/// Makes a context current, if none is.
fn context() -> Result<(), cudaError_t> {
    let mut now: Handle = std::ptr::null_mut();
    cu!(cuInit(0 => c_uint))?;
    cu!(cuCtxGetCurrent(&mut now => *mut Handle))?;
    if now.is_null() {
        let context = primary(DEVICE.get())?;
        cu!(cuCtxSetCurrent(context => Handle))?;
    }
    Ok(())
}

/// One attribute of an address that belongs to CUDA; `None` for any other.
fn attribute(number: c_int, at: u64) -> Option<u64> {
    let mut value = 0u64;
    cu!(cuPointerGetAttribute(std::ptr::from_mut(&mut value).cast() => *mut c_void, number => c_int, at => u64))
        .ok()?;
    Some(value)
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_IS_MANAGED` and `_DEVICE_ORDINAL`.
const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;

/// Is the address on a GPU (managed memory is)?
fn on_device(at: u64) -> bool {
    attribute(MEMORY_TYPE, at).is_some_and(|kind| kind as c_int == 2)
}

/// Are the ends of a copy what its kind says? 0 host to host, 1 host to device, 2 device to host,
/// 3 device to device, 4: by the pointers.
fn ends(dst: u64, src: u64, kind: c_int) -> Result<(), cudaError_t> {
    // An end that is to be on the device must be; memory of the host may stand for anything else.
    let right = match kind {
        0 | 4 => true,
        1 => on_device(dst),
        2 => on_device(src),
        3 => on_device(dst) && on_device(src),
        _ => return Err(INVALID_COPY_DIRECTION),
    };
    if right {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// `cudaPointerAttributes`.
#[repr(C)]
pub struct PointerAttributes {
    /// 0 unregistered, 1 host, 2 device, 3 managed.
    kind: c_int,
    device: c_int,
    device_pointer: u64,
    host_pointer: u64,
}
// CUDA 12's; that of CUDA 13 is longer.
const _: () = assert!(size_of::<PointerAttributes>() == 24);

/// `cudaDeviceProp` of CUDA 12, 1032 bytes.
type DeviceProp = [u8; 1032];

api! {
    /// Number of GPUs.
    fn cudaGetDeviceCount(count: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(count, devices()?) }
    }

    /// The thread's GPU.
    fn cudaGetDevice(device: *mut c_int) {
        devices()?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, DEVICE.get()) }
    }

    /// Choose the thread's GPU.
    fn cudaSetDevice(device: c_int) {
        if !(0..devices()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        DEVICE.set(device);
        let context = primary(device)?;
        cu!(cuCtxSetCurrent(context => Handle))
    }

    /// Wait for the GPU.
    fn cudaDeviceSynchronize() {
        context()?;
        cu!(cuCtxSynchronize())
    }

    /// A GPU's PCI address as text, in lower case.
    fn cudaDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) {
        if !(0..devices()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        // Shorter room is refused: the text and its NUL are 13 bytes.
        if text.is_null() || len < 13 {
            return Err(INVALID_VALUE);
        }
        cu!(cuDeviceGetPCIBusId(text => *mut c_char, len => c_int, device => c_int))?;
        for i in 0..12 {
            // SAFETY: 13 bytes of the caller's buffer, which libcuda has written.
            unsafe { text.add(i).write((*text.add(i) as u8).to_ascii_lowercase() as c_char) };
        }
        Ok(())
    }

    /// A GPU by its PCI address.
    fn cudaDeviceGetByPCIBusId(device: *mut c_int, text: *const c_char) {
        devices()?;
        cu!(cuDeviceGetByPCIBusId(device => *mut c_int, text => *const c_char))
    }

    /// One number about a GPU. The runtime's numbers are the driver's.
    fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        devices()?;
        cu!(cuDeviceGetAttribute(value => *mut c_int, attribute => c_int, device => c_int))
    }

    /// Whether one GPU reaches another's memory.
    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        devices()?;
        cu!(cuDeviceCanAccessPeer(can => *mut c_int, device => c_int, peer => c_int))
    }

    /// Let this GPU reach another's memory: none does here.
    fn cudaDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) {
        context()?;
        Err(PEER_ACCESS_UNSUPPORTED)
    }

    /// What a GPU is. Written are name, uuid, memory, compute capability, processors and the PCI
    /// address; the rest is 0.
    fn cudaGetDeviceProperties_v2(prop: *mut DeviceProp, device: c_int) {
        if !(0..devices()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        let mut of: DeviceProp = [0; 1032];
        let mut bytes = 0usize;
        cu!(cuDeviceGetName(of.as_mut_ptr().cast() => *mut c_char, 256 => c_int, device => c_int))?;
        cu!(cuDeviceGetUuid_v2(of[256..].as_mut_ptr().cast() => *mut c_void, device => c_int))?;
        cu!(cuDeviceTotalMem_v2(&mut bytes => *mut usize, device => c_int))?;
        of[288..296].copy_from_slice(&bytes.to_le_bytes());
        // Place in the struct, and number of the attribute.
        for (at, number) in [(308, 10), (360, 75), (364, 76), (388, 16), (584, 33), (588, 34), (592, 50), (604, 41)] {
            let mut value: c_int = 0;
            cu!(cuDeviceGetAttribute(&mut value => *mut c_int, number => c_int, device => c_int))?;
            of[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        // SAFETY: the caller's pointer.
        unsafe { put(prop, of) }
    }

    /// Allocate video memory; nothing for 0 bytes.
    fn cudaMalloc(address: *mut u64, size: usize) {
        context()?;
        if size == 0 {
            // SAFETY: the caller's pointer.
            return unsafe { put(address, 0) };
        }
        cu!(cuMemAlloc_v2(address => *mut u64, size => usize))
    }

    /// Allocate managed memory.
    fn cudaMallocManaged(address: *mut u64, size: usize, flags: c_uint) {
        context()?;
        cu!(cuMemAllocManaged(address => *mut u64, size => usize, flags => c_uint))
    }

    /// Free video or managed memory.
    fn cudaFree(address: u64) {
        context()?;
        cu!(cuMemFree_v2(address => u64))
    }

    /// Allocate page-locked memory of the host.
    fn cudaMallocHost(address: *mut *mut c_void, size: usize) {
        context()?;
        cu!(cuMemAllocHost_v2(address => *mut *mut c_void, size => usize))
    }

    /// The same with flags.
    fn cudaHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint) {
        context()?;
        cu!(cuMemHostAlloc(address => *mut *mut c_void, size => usize, flags => c_uint))
    }

    /// Free it.
    fn cudaFreeHost(address: *mut c_void) {
        context()?;
        cu!(cuMemFreeHost(address => *mut c_void))
    }

    /// Page-lock memory of the program's own.
    fn cudaHostRegister(address: *mut c_void, size: usize, flags: c_uint) {
        context()?;
        cu!(cuMemHostRegister_v2(address => *mut c_void, size => usize, flags => c_uint))
    }

    /// Give such memory back.
    fn cudaHostUnregister(address: *mut c_void) {
        context()?;
        cu!(cuMemHostUnregister(address => *mut c_void))
    }

    /// The GPU's address of page-locked memory.
    fn cudaHostGetDevicePointer(to: *mut u64, address: *mut c_void, flags: c_uint) {
        context()?;
        cu!(cuMemHostGetDevicePointer_v2(to => *mut u64, address => *mut c_void, flags => c_uint))
    }

    /// What an address is.
    fn cudaPointerGetAttributes(to: *mut PointerAttributes, address: u64) {
        context()?;
        let mut of =
            PointerAttributes { kind: 0, device: -2, device_pointer: 0, host_pointer: address };
        if let Some(kind) = attribute(MEMORY_TYPE, address) {
            let managed = attribute(IS_MANAGED, address).is_some_and(|is| is as u8 != 0);
            of.kind = if managed { 3 } else { kind as c_int };
            of.device = attribute(DEVICE_ORDINAL, address).unwrap_or(0) as c_int;
            of.device_pointer = address;
            of.host_pointer = if of.kind == 2 { 0 } else { address };
        }
        // SAFETY: the caller's pointer.
        unsafe { put(to, of) }
    }

    /// Copy.
    fn cudaMemcpy(dst: u64, src: u64, size: usize, kind: c_int) {
        context()?;
        ends(dst, src, kind)?;
        cu!(cuMemcpy(dst => u64, src => u64, size => usize))
    }

    /// Copy in a stream.
    fn cudaMemcpyAsync(dst: u64, src: u64, size: usize, kind: c_int, stream: Handle) {
        context()?;
        ends(dst, src, kind)?;
        cu!(cuMemcpyAsync(dst => u64, src => u64, size => usize, stream => Handle))
    }

    /// Many copies at once: not here.
    fn cudaMemcpyBatchAsync() { Err(NOT_SUPPORTED) }

    /// Set bytes of video memory.
    fn cudaMemset(dst: u64, value: c_int, size: usize) {
        context()?;
        if !on_device(dst) {
            return Err(INVALID_VALUE);
        }
        cu!(cuMemsetD8_v2(dst => u64, value as u8 => u8, size => usize))
    }

    /// The same in a stream.
    fn cudaMemsetAsync(dst: u64, value: c_int, size: usize, stream: Handle) {
        context()?;
        if !on_device(dst) {
            return Err(INVALID_VALUE);
        }
        cu!(cuMemsetD8Async(dst => u64, value as u8 => u8, size => usize, stream => Handle))
    }

    /// Make a stream.
    fn cudaStreamCreate(stream: *mut Handle) {
        context()?;
        cu!(cuStreamCreate(stream => *mut Handle, 0 => c_uint))
    }

    /// Make a stream with flags.
    fn cudaStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) {
        context()?;
        cu!(cuStreamCreate(stream => *mut Handle, flags => c_uint))
    }

    /// Destroy a stream.
    fn cudaStreamDestroy(stream: Handle) {
        context()?;
        cu!(cuStreamDestroy_v2(stream => Handle))
    }

    /// Is its work done?
    fn cudaStreamQuery(stream: Handle) {
        context()?;
        cu!(cuStreamQuery(stream => Handle))
    }

    /// Wait for its work.
    fn cudaStreamSynchronize(stream: Handle) {
        context()?;
        cu!(cuStreamSynchronize(stream => Handle))
    }

    /// Let it wait for an event.
    fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        context()?;
        cu!(cuStreamWaitEvent(stream => Handle, event => Handle, flags => c_uint))
    }

    /// Is it being captured? No stream is.
    fn cudaStreamIsCapturing(_stream: Handle, status: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(status, 0) }
    }

    /// Have a stream call a function.
    fn cudaLaunchHostFunc(stream: Handle, function: *const c_void, data: *mut c_void) {
        context()?;
        cu!(cuLaunchHostFunc(stream => Handle, function => *const c_void, data => *mut c_void))
    }

    /// Run a kernel: no GPU here does.
    fn cudaLaunchKernel() { Err(NOT_SUPPORTED) }

    /// Make an event.
    fn cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) {
        context()?;
        cu!(cuEventCreate(event => *mut Handle, flags => c_uint))
    }

    /// Make an event.
    fn cudaEventCreate(event: *mut Handle) {
        context()?;
        cu!(cuEventCreate(event => *mut Handle, 0 => c_uint))
    }

    /// Destroy an event.
    fn cudaEventDestroy(event: Handle) {
        context()?;
        cu!(cuEventDestroy_v2(event => Handle))
    }

    /// Remember where a stream is.
    fn cudaEventRecord(event: Handle, stream: Handle) {
        context()?;
        cu!(cuEventRecord(event => Handle, stream => Handle))
    }

    /// Has the stream done what it had then?
    fn cudaEventQuery(event: Handle) {
        context()?;
        cu!(cuEventQuery(event => Handle))
    }

    /// Wait until it has.
    fn cudaEventSynchronize(event: Handle) {
        context()?;
        cu!(cuEventSynchronize(event => Handle))
    }

    /// A handle for another process.
    fn cudaIpcGetMemHandle(handle: *mut IpcHandle, address: u64) {
        context()?;
        cu!(cuIpcGetMemHandle(handle => *mut IpcHandle, address => u64))
    }

    /// Another process's memory: by no handle here.
    fn cudaIpcOpenMemHandle() {
        context()?;
        Err(NOT_SUPPORTED)
    }

    /// Give it back.
    fn cudaIpcCloseMemHandle(address: u64) {
        context()?;
        cu!(cuIpcCloseMemHandle(address => u64))
    }

    /// Bytes of a variable of the program's own on the GPU: it has none here.
    fn cudaGetSymbolSize(_size: *mut usize, _symbol: *const c_void) { Err(INVALID_VALUE) }

    /// What a launch leaves for the function that launches: nothing is launched.
    fn __cudaPopCallConfiguration() { Err(NOT_SUPPORTED) }
}

/// The thread's last error, once.
///
/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetLastError() -> cudaError_t {
    LAST.replace(0)
}

/// The thread's last error.
///
/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaPeekAtLastError() -> cudaError_t {
    LAST.get()
}

/// Codes that the runtime has, or names, otherwise than the driver API.
const NAMES: &[(cudaError_t, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"no error"),
    (1, c"cudaErrorInvalidValue", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"initialization error"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
    (35, c"cudaErrorInsufficientDriver", c"CUDA driver version is insufficient for CUDA runtime version"),
    (100, c"cudaErrorNoDevice", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"invalid device ordinal"),
    (201, c"cudaErrorDeviceUninitialized", c"invalid device context"),
    (217, c"cudaErrorPeerAccessUnsupported", c"peer access is not supported between these two devices"),
    (304, c"cudaErrorOperatingSystem", c"OS call failed or operation not supported on this OS"),
    (400, c"cudaErrorInvalidResourceHandle", c"invalid resource handle"),
    (600, c"cudaErrorNotReady", c"device not ready"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped"),
    (713, c"cudaErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region"),
    (800, c"cudaErrorNotPermitted", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"operation not supported"),
    (999, c"cudaErrorUnknown", c"unknown error"),
];

fn of(code: cudaError_t) -> (&'static CStr, &'static CStr) {
    let unknown = c"unrecognized error code";
    NAMES.iter().find(|name| name.0 == code).map_or((unknown, unknown), |name| (name.1, name.2))
}

/// Name of a code.
///
/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetErrorName(code: cudaError_t) -> *const c_char {
    of(code).0.as_ptr()
}

/// Sentence for a code.
///
/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetErrorString(code: cudaError_t) -> *const c_char {
    of(code).1.as_ptr()
}

/// Takes a program's kernels: a pointer that is not NULL.
///
/// # Safety
/// None: nothing is read.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut *mut c_void {
    static mut NONE: *mut c_void = std::ptr::null_mut();
    &raw mut NONE
}

/// Forgets what a program registers of its own.
macro_rules! ignored {
    ($($name:ident)*) => {$(
        /// Takes what a program has for the GPU, and forgets it.
        ///
        /// # Safety
        /// None: nothing is read.
        #[no_mangle]
        pub unsafe extern "C" fn $name() {}
    )*};
}
ignored! { __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterFunction __cudaRegisterVar }

/// What a launch is configured by: no launch works, so it is refused here already.
///
/// # Safety
/// None: nothing is read.
#[no_mangle]
pub unsafe extern "C" fn __cudaPushCallConfiguration() -> c_uint {
    1
}
