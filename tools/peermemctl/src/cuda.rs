// SPDX-License-Identifier: GPL-2.0
//! The few calls of the CUDA driver API that `selftest` and `verify` make; libcuda is opened at run
//! time.

use anyhow::{bail, Context as _, Result};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd};

type Status = c_int;
type DevicePointer = u64;

const DMA_BUF_SUPPORTED: c_int = 124;
const SYNC_MEMOPS: c_int = 6;
const HANDLE_TYPE_DMA_BUF_FD: c_int = 1;

/// How the GPU driver maps a dma-buf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// The driver chooses.
    Default = 0,
    /// Through PCIe, also where there is a coherent link (CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE).
    Pcie = 1,
}

/// The library libcuda.
pub struct Cuda {
    lib: Library,
}

macro_rules! call {
    ($cuda:expr, $name:literal, ($($type:ty),*), $($arg:expr),*) => {{
        // SAFETY: The type is the one that CUDA documents for this function; the arguments are
        // checked by the caller.
        let status = unsafe {
            let function = $cuda.lib.get::<unsafe extern "C" fn($($type),*) -> Status>(concat!($name, "\0").as_bytes())
                .with_context(|| format!("libcuda has no {}", $name))?;
            function($($arg),*)
        };
        $cuda.checked($name, status)
    }};
}

impl Cuda {
    /// Opens the library and starts the driver.
    pub fn open() -> Result<Self> {
        // SAFETY: libcuda's constructors are safe to run.
        let lib = unsafe { Library::new("libcuda.so.1") }
            .context("libcuda.so.1 cannot be opened: install the user-space part of the GPU driver")?;
        let cuda = Self { lib };
        call!(cuda, "cuInit", (c_uint), 0)?;
        Ok(cuda)
    }

    fn checked(&self, name: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: As documented; `text` is a local that is set to a static string or left alone.
        let known = unsafe {
            self.lib
                .get::<unsafe extern "C" fn(Status, *mut *const c_char) -> Status>(b"cuGetErrorName\0")
                .is_ok_and(|function| function(status, &mut text) == 0)
        };
        if known && !text.is_null() {
            // SAFETY: A static string of the library.
            let text = unsafe { CStr::from_ptr(text) };
            bail!("{name}: {} ({status})", text.to_string_lossy());
        }
        bail!("{name}: error {status}");
    }

    /// Returns the version of the API as the driver numbers it: 13000 is 13.0.
    pub fn version(&self) -> Result<c_int> {
        let mut version: c_int = 0;
        call!(self, "cuDriverGetVersion", (*mut c_int), &mut version)?;
        Ok(version)
    }

    /// Opens the GPU at a PCI address and makes its primary context current in this thread.
    pub fn gpu(&self, address: &str) -> Result<Gpu<'_>> {
        let mut device: c_int = 0;
        let text = CString::new(address).context("PCI address")?;
        call!(self, "cuDeviceGetByPCIBusId", (*mut c_int, *const c_char), &mut device, text.as_ptr())?;
        let mut context: *mut c_void = std::ptr::null_mut();
        call!(self, "cuDevicePrimaryCtxRetain", (*mut *mut c_void, c_int), &mut context, device)?;
        let gpu = Gpu { cuda: self, device };
        call!(self, "cuCtxSetCurrent", (*mut c_void), context)?;
        Ok(gpu)
    }
}

/// A GPU whose primary context is held.
pub struct Gpu<'a> {
    cuda: &'a Cuda,
    device: c_int,
}

impl<'a> Gpu<'a> {
    /// Returns the name of the GPU.
    pub fn name(&self) -> Result<String> {
        let mut name = [0u8; 128];
        call!(self.cuda, "cuDeviceGetName", (*mut u8, c_int, c_int), name.as_mut_ptr(), 128, self.device)?;
        let text = CStr::from_bytes_until_nul(&name).context("the GPU's name has no end")?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns whether memory of this GPU can be handed out as a dma-buf.
    pub fn has_dma_buf(&self) -> bool {
        let mut value: c_int = 0;
        let asked = || {
            call!(
                self.cuda,
                "cuDeviceGetAttribute",
                (*mut c_int, c_int, c_int),
                &mut value,
                DMA_BUF_SUPPORTED,
                self.device
            )
        };
        let mut asked = asked;
        asked().is_ok() && value == 1
    }

    /// Returns how many bytes of the GPU's memory are free, and how many there are in all.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self.cuda, "cuMemGetInfo_v2", (*mut usize, *mut usize), &mut free, &mut total)?;
        Ok((free, total))
    }

    /// Allocates `size` bytes of GPU memory.
    pub fn allocate(&self, size: usize) -> Result<Memory<'a>> {
        let mut at: DevicePointer = 0;
        call!(self.cuda, "cuMemAlloc_v2", (*mut DevicePointer, usize), &mut at, size)?;
        let memory = Memory { cuda: self.cuda, at, size };
        // This makes our copies see what the NIC wrote before.
        let on: c_uint = 1;
        call!(
            self.cuda,
            "cuPointerSetAttribute",
            (*const c_void, c_int, DevicePointer),
            std::ptr::from_ref(&on).cast(),
            SYNC_MEMOPS,
            at
        )?;
        Ok(memory)
    }
}

impl Drop for Gpu<'_> {
    fn drop(&mut self) {
        let release = || call!(self.cuda, "cuDevicePrimaryCtxRelease_v2", (c_int), self.device);
        if let Err(error) = release() {
            eprintln!("peermemctl: {error:#}");
        }
    }
}

/// GPU memory, freed when dropped.
pub struct Memory<'a> {
    cuda: &'a Cuda,
    at: DevicePointer,
    size: usize,
}

impl Memory<'_> {
    /// Returns the address of the memory.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Fills the memory with zeros.
    pub fn clear(&self) -> Result<()> {
        call!(self.cuda, "cuMemsetD8_v2", (DevicePointer, u8, usize), self.at, 0, self.size)?;
        call!(self.cuda, "cuCtxSynchronize", (),)
    }

    /// Returns the size of the memory in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Copies all of the memory to the host.
    pub fn read(&self) -> Result<Vec<u8>> {
        self.read_part(0, self.size)
    }

    /// Copies `length` bytes of the memory from `offset` on to the host.
    pub fn read_part(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        self.within(offset, length)?;
        let mut bytes = vec![0u8; length];
        let from = self.at + offset as u64;
        call!(self.cuda, "cuMemcpyDtoH_v2", (*mut u8, DevicePointer, usize), bytes.as_mut_ptr(), from, length)?;
        Ok(bytes)
    }

    /// Copies `bytes` to the memory, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.within(offset, bytes.len())?;
        let to = self.at + offset as u64;
        call!(self.cuda, "cuMemcpyHtoD_v2", (DevicePointer, *const u8, usize), to, bytes.as_ptr(), bytes.len())
    }

    fn within(&self, offset: usize, length: usize) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => bail!("{length} bytes from {offset} on, of {}", self.size),
        }
    }

    /// Frees the memory.
    pub fn free(self) -> Result<()> {
        // ManuallyDrop keeps the memory from being freed twice.
        let this = std::mem::ManuallyDrop::new(self);
        call!(this.cuda, "cuMemFree_v2", (DevicePointer), this.at)
    }

    /// Exports all of the memory as a dma-buf.
    pub fn dma_buf(&self, mapping: Mapping) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        call!(
            self.cuda,
            "cuMemGetHandleForAddressRange",
            (*mut c_int, DevicePointer, usize, c_int, u64),
            &mut fd,
            self.at,
            self.size,
            HANDLE_TYPE_DMA_BUF_FD,
            mapping as u64
        )?;
        if fd < 0 {
            bail!("cuMemGetHandleForAddressRange: no file descriptor");
        }
        // SAFETY: The driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let free = || call!(self.cuda, "cuMemFree_v2", (DevicePointer), self.at);
        if let Err(error) = free() {
            eprintln!("peermemctl: {error:#}");
        }
    }
}
