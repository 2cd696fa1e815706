// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Opens NVML at run time, and asks it how much memory a GPU has free, which it says without a
//! context of CUDA. CUDA's own answer needs one, and must not be under way when the program ends that
//! context, as `cudaDeviceReset()` does at any time.

use crate::error::Error;
use libloading::os::unix::{Library, Symbol, RTLD_LAZY};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void, CString};
use std::sync::{Mutex, OnceLock, PoisonError};

type Init = unsafe extern "C" fn() -> c_int;
type Device = *mut c_void;
type DeviceByUuid = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
type MemoryInfo = unsafe extern "C" fn(Device, *mut Memory) -> c_int;

/// A GPU's or a partition's UUID, as CUDA has it.
pub(crate) type Uuid = [u8; 16];

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// NVML, which is started and stays until the process ends. It answers in exit handlers, too.
pub(crate) struct Nvml {
    init: Symbol<Init>,
    device: Symbol<DeviceByUuid>,
    memory: Symbol<MemoryInfo>,
    /// The addresses of the GPUs' handles, because it takes milliseconds to find one. `None` stands for
    /// a GPU whose memory NVML does not tell, so that nobody asks in vain all the time.
    devices: Mutex<BTreeMap<Uuid, Option<usize>>>,
    /// The library. The field is the last, because the functions are the library's.
    _lib: Library,
}

impl Nvml {
    /// Returns NVML. Starts it first if nobody has.
    pub(crate) fn get() -> Result<&'static Self, Error> {
        static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
        NVML.get_or_init(Self::open).as_ref().map_err(|why| Error::Library(why.clone()))
    }

    fn open() -> Result<Self, String> {
        let name = "libnvidia-ml.so.1";
        // SAFETY: NVML's constructors are safe to run.
        let lib = unsafe { Library::open(Some(name), RTLD_LAZY) }.map_err(|error| {
            format!("{name} cannot be opened: install it, or give the container the capability \"utility\" ({error})")
        })?;
        let missing = |error| format!("{name} is too old: {error}");
        // SAFETY: The types are those of nvml.h.
        let (init, device, memory): (Symbol<Init>, _, _) = unsafe {
            (
                lib.get(b"nvmlInit_v2\0").map_err(missing)?,
                lib.get(b"nvmlDeviceGetHandleByUUID\0").map_err(missing)?,
                lib.get(b"nvmlDeviceGetMemoryInfo\0").map_err(missing)?,
            )
        };
        // SAFETY: It takes no argument, and may be called any number of times.
        match unsafe { init() } {
            0 => Ok(Self { init, device, memory, devices: Mutex::default(), _lib: lib }),
            status => Err(format!("{name} cannot be started: nvmlInit_v2() answers {status}")),
        }
    }

    /// Returns how many bytes a GPU, or a partition of one, has free, and how many it has.
    pub(crate) fn memory(&self, uuid: Uuid) -> Option<(u64, u64)> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = devices.get(&uuid) {
            let answer = self.ask((*known)?);
            if answer.is_some() {
                return answer;
            }
        }
        // The program may have shut NVML down once too often, and a child needs it started anew: in both
        // cases the old handles are not valid any more.
        // SAFETY: It takes no argument, and may be called any number of times.
        unsafe { (self.init)() };
        let device = self.find("GPU", uuid).or_else(|| self.find("MIG", uuid));
        let answer = device.and_then(|device| self.ask(device));
        devices.insert(uuid, device.filter(|_| answer.is_some()));
        answer
    }

    fn ask(&self, device: usize) -> Option<(u64, u64)> {
        let mut memory = Memory::default();
        // SAFETY: NVML's handle: it refuses one that is not valid any more, of a process in which it was
        // started anew, by INVALID_ARGUMENT. A local.
        let status = unsafe { (self.memory)(device as Device, &mut memory) };
        (status == 0).then_some((memory.free, memory.total))
    }

    fn find(&self, kind: &str, uuid: Uuid) -> Option<usize> {
        let (name, mut device) = (CString::new(named(kind, uuid)).ok()?, std::ptr::null_mut());
        // SAFETY: A string and a local.
        let status = unsafe { (self.device)(name.as_ptr(), &mut device) };
        (status == 0).then_some(device as usize)
    }
}

/// Returns the name by which NVML knows a GPU or a partition.
fn named(kind: &str, uuid: Uuid) -> String {
    let digits = |from: usize, to: usize| uuid[from..to].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{kind}-{}-{}-{}-{}-{}", digits(0, 4), digits(4, 6), digits(6, 8), digits(8, 10), digits(10, 16))
}
