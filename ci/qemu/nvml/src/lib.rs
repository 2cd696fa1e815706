// SPDX-License-Identifier: GPL-2.0

//! The lab's `libnvidia-ml.so.1`: the calls of NVML that UCX (1.22, `libuct_cuda`) and gpumr make.
//!
//! Models what NVML 580.159.04 answered on an H100 without NVLink and without a fabric
//! (docs/facts.md#cuda-programs): every call before `nvmlInit_v2` is UNINITIALIZED, links and their peers are
//! NOT_SUPPORTED, and the fabric's state is 0. Left out: everything else that NVML has; a program
//! that needs more does not find the function.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvlab::{Client, Info};

/// `nvmlReturn_t`.
type Return = c_int;
const UNINITIALIZED: Return = 1;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const NOT_FOUND: Return = 6;
const DRIVER_NOT_LOADED: Return = 9;
const GPU_IS_LOST: Return = 15;
const VERSION_MISMATCH: Return = 25;

/// The number of starts that were not undone, the GPUs, and the driver, which is open from the first
/// start to the last shutdown.
static STATE: Mutex<(u32, Vec<Info>, Option<Client>)> = Mutex::new((0, Vec::new(), None));

fn state() -> MutexGuard<'static, (u32, Vec<Info>, Option<Client>)> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU's handle: its number, from 1 on, so that none is NULL.
type Device = *mut c_void;

fn gpu(device: Device) -> Result<Info, Return> {
    let state = state();
    if state.0 == 0 {
        return Err(UNINITIALIZED);
    }
    (device as usize).checked_sub(1).and_then(|n| state.1.get(n)).cloned().ok_or(INVALID_ARGUMENT)
}

fn answer(call: impl FnOnce() -> Result<(), Return>) -> Return {
    call().err().unwrap_or(0)
}

/// Defines C functions: each body is a block of `Result<(), Return>`.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are NULL or good for what NVML's manual says is read or written there.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> Return {
            answer(|| $body)
        }
    )*};
}

/// Stores a result where the caller wants it.
///
/// # Safety
///
/// `to` is NULL or good for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Return> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, so good for writing, says the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub struct PciInfo {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    id: [u8; 32],
}

/// `nvmlMemory_t`.
#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The head of `nvmlFieldValue_t`: 40 bytes, of which field and result are here.
#[repr(C)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_int,
    result: Return,
    value: u64,
}

/// `nvmlGpuFabricInfo_v2_t` and `_v3_t`, as far as they are alike.
#[repr(C)]
pub struct FabricInfo {
    version: c_uint,
    uuid: [u8; 16],
    status: Return,
    clique: c_uint,
    state: u8,
}

fn text<const N: usize>(words: &str) -> [u8; N] {
    let mut to = [0; N];
    to.iter_mut().take(N - 1).zip(words.bytes()).for_each(|(to, byte)| *to = byte);
    to
}

api! {
    /// Initialises the library.
    fn nvmlInit_v2() {
        let mut state = state();
        if state.0 == 0 {
            let client = Client::open().map_err(|_| DRIVER_NOT_LOADED)?;
            let first = client.info(0).map_err(|_| DRIVER_NOT_LOADED)?;
            let rest = (1..first.gpus).map(|i| client.info(i).map_err(|_| DRIVER_NOT_LOADED));
            state.1 = std::iter::once(Ok(first)).chain(rest).collect::<Result<_, _>>()?;
            state.2 = Some(client);
        }
        state.0 += 1;
        Ok(())
    }

    /// Initialises the library, by its older name (`nvmlInit_v2` has the new one).
    fn nvmlInit() {
        // SAFETY: it asks for nothing.
        match unsafe { nvmlInit_v2() } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Takes one initialisation back.
    fn nvmlShutdown() {
        let mut state = state();
        state.0 = state.0.checked_sub(1).ok_or(UNINITIALIZED)?;
        if state.0 == 0 {
            state.2 = None;
        }
        Ok(())
    }

    /// Returns the number of GPUs.
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) {
        let state = state();
        if state.0 == 0 {
            return Err(UNINITIALIZED);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(count, state.1.len() as c_uint) }
    }

    /// Returns a GPU by its number.
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) {
        let handle = (index as usize + 1) as Device;
        gpu(handle)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, handle) }
    }

    /// Returns a GPU by the name that its UUID makes.
    fn nvmlDeviceGetHandleByUUID(name: *const c_char, device: *mut Device) {
        let state = state();
        if state.0 == 0 {
            return Err(UNINITIALIZED);
        }
        if name.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let own = |uuid: [u8; 16]| {
            let parts = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]];
            format!("GPU-{}", parts.map(hex).join("-"))
        };
        let n = state.1.iter().position(|info| own(info.uuid).as_bytes() == name).ok_or(NOT_FOUND)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, (n + 1) as Device) }
    }

    /// Returns how much video memory a GPU has, and how much of it is free and in use.
    fn nvmlDeviceGetMemoryInfo(device: Device, to: *mut Memory) {
        gpu(device)?;
        let number = (device as usize - 1) as u32;
        let now = state().2.as_ref().ok_or(UNINITIALIZED)?.info(number).map_err(|_| GPU_IS_LOST)?;
        let (total, free) = (now.memory, now.memory_free);
        // SAFETY: the caller's pointer.
        unsafe { put(to, Memory { total, free, used: total - free }) }
    }

    /// Returns where a GPU is on the bus. The card's own numbers are those of the lab's stand-in.
    fn nvmlDeviceGetPciInfo_v3(device: Device, to: *mut PciInfo) {
        let (domain, bus, slot, function) = gpu(device)?.pci;
        let tail = format!("{bus:02X}:{slot:02X}.{function:X}");
        let of = PciInfo {
            legacy: text(&format!("{domain:04X}:{tail}")),
            domain,
            bus,
            device: slot,
            device_id: 0,
            subsystem_id: 0,
            id: text(&format!("{domain:08X}:{tail}")),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(to, of) }
    }

    /// Answers requests for numbers about a GPU: none of those that are asked for here (NVLink) is
    /// there.
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: *mut FieldValue) {
        gpu(device)?;
        if values.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        for i in 0..usize::try_from(count).map_err(|_| INVALID_ARGUMENT)? {
            // SAFETY: an array of `count` elements, says the caller.
            unsafe { (*values.add(i)).result = NOT_SUPPORTED };
        }
        Ok(())
    }

    /// Refuses to name the other end of a link, because there is no link.
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, _link: c_uint, _to: *mut PciInfo) {
        gpu(device)?;
        Err(NOT_SUPPORTED)
    }

    /// Says that the GPU belongs to no fabric.
    fn nvmlDeviceGetGpuFabricInfoV(device: Device, to: *mut FabricInfo) {
        gpu(device)?;
        if to.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, so the caller's struct.
        let to = unsafe { &mut *to };
        if ![2, 3].contains(&(to.version >> 24)) {
            return Err(VERSION_MISMATCH);
        }
        (to.uuid, to.status, to.clique, to.state) = ([0; 16], 0, 0, 0);
        Ok(())
    }
}

/// Returns the sentence for a code.
///
/// # Safety
///
/// None.
#[no_mangle]
pub unsafe extern "C" fn nvmlErrorString(code: Return) -> *const c_char {
    let text: &CStr = match code {
        0 => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        VERSION_MISMATCH => c"Function version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
