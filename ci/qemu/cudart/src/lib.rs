// SPDX-License-Identifier: GPL-2.0

//! The lab's `libcudart.so.12`: the calls of the CUDA runtime API that UCX, NIXL and Mooncake make.
//! Each uses the driver API of whatever `libcuda.so.1` the process has.
//!
//! It models what the real library (12.9) answered on an H100 (docs/facts.md#cuda-programs): the
//! codes; that the last error stays until a call asks for it; that a pointer which belongs to
//! nobody is reported as unregistered and is no error; and that the first call that needs a context
//! makes the device's primary context current.
//!
//! Left out: kernels (a launch gives NOT_SUPPORTED; what a program registers for the GPU is
//! accepted and ignored), capture (no stream captures), pools, textures, and the batched copy
//! (NOT_SUPPORTED).
#![allow(non_snake_case, non_camel_case_types)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

/// The result of every function. The runtime uses the numbers of the driver API.
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
    /// The thread's last error, until cudaGetLastError is called.
    static LAST: Cell<cudaError_t> = const { Cell::new(0) };
}

/// Returns libcuda, initialised, or an error if there is no libcuda or no GPU.
fn driver() -> Result<&'static Library, cudaError_t> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: libcuda's constructors ask for nothing.
    let library = LIBRARY.get_or_init(|| unsafe { Library::new("libcuda.so.1") }.ok());
    library.as_ref().ok_or(INSUFFICIENT_DRIVER)
}

/// Calls a function of the driver API and returns its code.
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
fn keep_error(call: impl FnOnce() -> Result<(), cudaError_t>) -> cudaError_t {
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
            keep_error(|| $body)
        }
    )*};
}

/// Stores a result where the caller wants it.
///
/// # Safety
///
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

/// Returns the device's primary context, which is retained once for the process.
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

/// Makes a context current if none is.
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

/// Returns one attribute of an address that belongs to CUDA, or `None` for any other address.
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

/// Returns whether the address is on a GPU. Managed memory counts.
fn on_device(at: u64) -> bool {
    attribute(MEMORY_TYPE, at).is_some_and(|kind| kind as c_int == 2)
}

/// Fails unless the ends of a copy are what its kind says: 0 host to host, 1 host to device, 2
/// device to host, 3 device to device, 4 as the pointers say.
fn ends(dst: u64, src: u64, kind: c_int) -> Result<(), cudaError_t> {
    // An end that must be on the device has to be there. Memory of the host may be given in place
    // of anything else.
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
// This is the size in CUDA 12. The struct of CUDA 13 is longer.
const _: () = assert!(size_of::<PointerAttributes>() == 24);

/// `cudaDeviceProp` of CUDA 12, 1032 bytes.
type DeviceProp = [u8; 1032];

api! {
    /// Returns the number of GPUs.
    fn cudaGetDeviceCount(count: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(count, devices()?) }
    }

    /// Returns the thread's GPU.
    fn cudaGetDevice(device: *mut c_int) {
        devices()?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, DEVICE.get()) }
    }

    /// Chooses the thread's GPU.
    fn cudaSetDevice(device: c_int) {
        if !(0..devices()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        DEVICE.set(device);
        let context = primary(device)?;
        cu!(cuCtxSetCurrent(context => Handle))
    }

    /// Waits for the GPU.
    fn cudaDeviceSynchronize() {
        context()?;
        cu!(cuCtxSynchronize())
    }

    /// Returns a GPU's PCI address as text, in lower case.
    fn cudaDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) {
        if !(0..devices()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        // A buffer shorter than the text and its NUL, 13 bytes, is refused.
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

    /// Returns a GPU by its PCI address.
    fn cudaDeviceGetByPCIBusId(device: *mut c_int, text: *const c_char) {
        devices()?;
        cu!(cuDeviceGetByPCIBusId(device => *mut c_int, text => *const c_char))
    }

    /// Returns one attribute of a GPU. The runtime uses the driver's numbers.
    fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        devices()?;
        cu!(cuDeviceGetAttribute(value => *mut c_int, attribute => c_int, device => c_int))
    }

    /// Returns whether one GPU can reach another's memory.
    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        devices()?;
        cu!(cuDeviceCanAccessPeer(can => *mut c_int, device => c_int, peer => c_int))
    }

    /// Lets this GPU reach another's memory: none does here.
    fn cudaDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) {
        context()?;
        Err(PEER_ACCESS_UNSUPPORTED)
    }

    /// Returns a GPU's properties: name, uuid, memory, compute capability, processors and PCI
    /// address. The rest is 0.
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
        // Each pair is an offset in the struct and the number of the attribute to store there.
        for (at, number) in [(308, 10), (360, 75), (364, 76), (388, 16), (584, 33), (588, 34), (592, 50), (604, 41)] {
            let mut value: c_int = 0;
            cu!(cuDeviceGetAttribute(&mut value => *mut c_int, number => c_int, device => c_int))?;
            of[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        // SAFETY: the caller's pointer.
        unsafe { put(prop, of) }
    }

    /// Allocates video memory, or none for 0 bytes.
    fn cudaMalloc(address: *mut u64, size: usize) {
        context()?;
        if size == 0 {
            // SAFETY: the caller's pointer.
            return unsafe { put(address, 0) };
        }
        cu!(cuMemAlloc_v2(address => *mut u64, size => usize))
    }

    /// Allocates managed memory.
    fn cudaMallocManaged(address: *mut u64, size: usize, flags: c_uint) {
        context()?;
        cu!(cuMemAllocManaged(address => *mut u64, size => usize, flags => c_uint))
    }

    /// Frees video or managed memory.
    fn cudaFree(address: u64) {
        context()?;
        cu!(cuMemFree_v2(address => u64))
    }

    /// Allocates page-locked memory of the host.
    fn cudaMallocHost(address: *mut *mut c_void, size: usize) {
        context()?;
        cu!(cuMemAllocHost_v2(address => *mut *mut c_void, size => usize))
    }

    /// Allocates page-locked memory of the host with flags.
    fn cudaHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint) {
        context()?;
        cu!(cuMemHostAlloc(address => *mut *mut c_void, size => usize, flags => c_uint))
    }

    /// Frees page-locked memory of the host.
    fn cudaFreeHost(address: *mut c_void) {
        context()?;
        cu!(cuMemFreeHost(address => *mut c_void))
    }

    /// Page-locks memory of the program itself.
    fn cudaHostRegister(address: *mut c_void, size: usize, flags: c_uint) {
        context()?;
        cu!(cuMemHostRegister_v2(address => *mut c_void, size => usize, flags => c_uint))
    }

    /// Undoes cudaHostRegister.
    fn cudaHostUnregister(address: *mut c_void) {
        context()?;
        cu!(cuMemHostUnregister(address => *mut c_void))
    }

    /// Returns the GPU's address of page-locked memory.
    fn cudaHostGetDevicePointer(to: *mut u64, address: *mut c_void, flags: c_uint) {
        context()?;
        cu!(cuMemHostGetDevicePointer_v2(to => *mut u64, address => *mut c_void, flags => c_uint))
    }

    /// Returns the attributes of an address.
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

    /// Copies memory.
    fn cudaMemcpy(dst: u64, src: u64, size: usize, kind: c_int) {
        context()?;
        ends(dst, src, kind)?;
        cu!(cuMemcpy(dst => u64, src => u64, size => usize))
    }

    /// Copies memory in a stream.
    fn cudaMemcpyAsync(dst: u64, src: u64, size: usize, kind: c_int, stream: Handle) {
        context()?;
        ends(dst, src, kind)?;
        cu!(cuMemcpyAsync(dst => u64, src => u64, size => usize, stream => Handle))
    }

    /// Copies many ranges at once: not supported here.
    fn cudaMemcpyBatchAsync() { Err(NOT_SUPPORTED) }

    /// Sets bytes of video memory.
    fn cudaMemset(dst: u64, value: c_int, size: usize) {
        context()?;
        if !on_device(dst) {
            return Err(INVALID_VALUE);
        }
        cu!(cuMemsetD8_v2(dst => u64, value as u8 => u8, size => usize))
    }

    /// Sets bytes of video memory in a stream.
    fn cudaMemsetAsync(dst: u64, value: c_int, size: usize, stream: Handle) {
        context()?;
        if !on_device(dst) {
            return Err(INVALID_VALUE);
        }
        cu!(cuMemsetD8Async(dst => u64, value as u8 => u8, size => usize, stream => Handle))
    }

    /// Makes a stream.
    fn cudaStreamCreate(stream: *mut Handle) {
        context()?;
        cu!(cuStreamCreate(stream => *mut Handle, 0 => c_uint))
    }

    /// Makes a stream with flags.
    fn cudaStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) {
        context()?;
        cu!(cuStreamCreate(stream => *mut Handle, flags => c_uint))
    }

    /// Destroys a stream.
    fn cudaStreamDestroy(stream: Handle) {
        context()?;
        cu!(cuStreamDestroy_v2(stream => Handle))
    }

    /// Returns whether a stream's work is done.
    fn cudaStreamQuery(stream: Handle) {
        context()?;
        cu!(cuStreamQuery(stream => Handle))
    }

    /// Waits for a stream's work.
    fn cudaStreamSynchronize(stream: Handle) {
        context()?;
        cu!(cuStreamSynchronize(stream => Handle))
    }

    /// Lets a stream wait for an event.
    fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        context()?;
        cu!(cuStreamWaitEvent(stream => Handle, event => Handle, flags => c_uint))
    }

    /// Returns whether a stream is being captured: none is here.
    fn cudaStreamIsCapturing(_stream: Handle, status: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(status, 0) }
    }

    /// Makes a stream call a function.
    fn cudaLaunchHostFunc(stream: Handle, function: *const c_void, data: *mut c_void) {
        context()?;
        cu!(cuLaunchHostFunc(stream => Handle, function => *const c_void, data => *mut c_void))
    }

    /// Runs a kernel: no GPU here can.
    fn cudaLaunchKernel() { Err(NOT_SUPPORTED) }

    /// Makes an event.
    fn cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) {
        context()?;
        cu!(cuEventCreate(event => *mut Handle, flags => c_uint))
    }

    /// Makes an event.
    fn cudaEventCreate(event: *mut Handle) {
        context()?;
        cu!(cuEventCreate(event => *mut Handle, 0 => c_uint))
    }

    /// Destroys an event.
    fn cudaEventDestroy(event: Handle) {
        context()?;
        cu!(cuEventDestroy_v2(event => Handle))
    }

    /// Records the present end of a stream's work in an event.
    fn cudaEventRecord(event: Handle, stream: Handle) {
        context()?;
        cu!(cuEventRecord(event => Handle, stream => Handle))
    }

    /// Returns whether the stream has done the work that it had when the event was recorded.
    fn cudaEventQuery(event: Handle) {
        context()?;
        cu!(cuEventQuery(event => Handle))
    }

    /// Waits until the stream has done the work that it had when the event was recorded.
    fn cudaEventSynchronize(event: Handle) {
        context()?;
        cu!(cuEventSynchronize(event => Handle))
    }

    /// Makes a handle for another process.
    fn cudaIpcGetMemHandle(handle: *mut IpcHandle, address: u64) {
        context()?;
        cu!(cuIpcGetMemHandle(handle => *mut IpcHandle, address => u64))
    }

    /// Opens another process's memory: no handle can do that here.
    fn cudaIpcOpenMemHandle() {
        context()?;
        Err(NOT_SUPPORTED)
    }

    /// Closes another process's memory.
    fn cudaIpcCloseMemHandle(address: u64) {
        context()?;
        cu!(cuIpcCloseMemHandle(address => u64))
    }

    /// Returns the size of a program's own variable on the GPU: there is none here.
    fn cudaGetSymbolSize(_size: *mut usize, _symbol: *const c_void) { Err(INVALID_VALUE) }

    /// Returns the configuration of a launch: nothing is launched here.
    fn __cudaPopCallConfiguration() { Err(NOT_SUPPORTED) }
}

/// Returns the thread's last error, and clears it.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetLastError() -> cudaError_t {
    LAST.replace(0)
}

/// Returns the thread's last error.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaPeekAtLastError() -> cudaError_t {
    LAST.get()
}

/// The codes that only the runtime has, or that it names differently from the driver API.
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

/// Returns the name of a code.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetErrorName(code: cudaError_t) -> *const c_char {
    of(code).0.as_ptr()
}

/// Returns the sentence for a code.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetErrorString(code: cudaError_t) -> *const c_char {
    of(code).1.as_ptr()
}

/// Accepts a program's kernels: returns a pointer that is not NULL.
///
/// # Safety
///
/// None: nothing is read.
#[no_mangle]
pub unsafe extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut *mut c_void {
    static mut NONE: *mut c_void = std::ptr::null_mut();
    &raw mut NONE
}

/// Defines functions that accept what a program registers and ignore it.
macro_rules! ignored {
    ($($name:ident)*) => {$(
        /// Accepts what a program has for the GPU, and ignores it.
        ///
        /// # Safety
        ///
        /// None: nothing is read.
        #[no_mangle]
        pub unsafe extern "C" fn $name() {}
    )*};
}
ignored! { __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterFunction __cudaRegisterVar }

/// Refuses the configuration of a launch, because no launch works.
///
/// # Safety
///
/// None: nothing is read.
#[no_mangle]
pub unsafe extern "C" fn __cudaPushCallConfiguration() -> c_uint {
    1
}
