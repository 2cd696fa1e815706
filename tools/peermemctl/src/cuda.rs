// SPDX-License-Identifier: GPL-2.0
//! The few calls of the CUDA driver API that `selftest` and `verify` make; libcuda is opened at run
//! time.

use anyhow::{bail, Context as _, Result};
use cuda_driver::{DevicePointer, Driver, DMA_BUF_FD, DMA_BUF_PCIE, DMA_BUF_SUPPORTED, SYNC_MEMOPS};
use std::ffi::{c_int, c_uint, CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd};

/// How the GPU driver maps a dma-buf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// The driver chooses.
    Default,
    /// Through PCIe, also where there is a coherent link.
    Pcie,
}

/// The library libcuda.
pub struct Cuda {
    driver: Driver,
}

impl Cuda {
    /// Opens the library and starts the driver.
    pub fn open() -> Result<Self> {
        let driver =
            Driver::open().context("libcuda.so.1 cannot be opened: install the user-space part of the GPU driver")?;
        // SAFETY: There is no pointer.
        unsafe { driver.init(0) }?;
        Ok(Self { driver })
    }

    /// Returns the version of the API as the driver numbers it: 13000 is 13.0.
    pub fn version(&self) -> Result<c_int> {
        let mut version: c_int = 0;
        // SAFETY: `version` is a local.
        unsafe { self.driver.driver_version(&mut version) }?;
        Ok(version)
    }

    /// Opens the GPU at a PCI address and makes its primary context current in this thread.
    pub fn gpu(&self, address: &str) -> Result<Gpu<'_>> {
        let mut device: c_int = 0;
        let text = CString::new(address).context("PCI address")?;
        // SAFETY: `device` is a local, `text` a C string.
        unsafe { self.driver.device_by_pci_address(&mut device, text.as_ptr()) }?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is a local.
        unsafe { self.driver.retain_primary(&mut context, device) }?;
        let gpu = Gpu { driver: &self.driver, device };
        // SAFETY: The context is held until `gpu` is dropped.
        unsafe { self.driver.set_current(context) }?;
        Ok(gpu)
    }
}

/// A GPU whose primary context is held.
pub struct Gpu<'a> {
    driver: &'a Driver,
    device: c_int,
}

impl<'a> Gpu<'a> {
    /// Returns the name of the GPU.
    pub fn name(&self) -> Result<String> {
        let mut name = [0u8; 128];
        // SAFETY: The buffer has that length.
        unsafe { self.driver.device_name(name.as_mut_ptr().cast(), 128, self.device) }?;
        let text = CStr::from_bytes_until_nul(&name).context("the GPU's name has no end")?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns whether memory of this GPU can be handed out as a dma-buf.
    pub fn has_dma_buf(&self) -> bool {
        let mut value: c_int = 0;
        // SAFETY: `value` is a local.
        unsafe { self.driver.device_attribute(&mut value, DMA_BUF_SUPPORTED, self.device) }.is_ok() && value == 1
    }

    /// Returns how many bytes of the GPU's memory are free, and how many there are in all.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: Both are locals.
        unsafe { self.driver.memory(&mut free, &mut total) }?;
        Ok((free, total))
    }

    /// Allocates `size` bytes of GPU memory.
    pub fn allocate(&self, size: usize) -> Result<Memory<'a>> {
        let mut at: DevicePointer = 0;
        // SAFETY: `at` is a local.
        unsafe { self.driver.allocate(&mut at, size) }?;
        let memory = Memory { driver: self.driver, at, size };
        // This makes our copies see what the NIC wrote before.
        let on: c_uint = 1;
        // SAFETY: The attribute is a number of this type.
        unsafe { self.driver.set_pointer_attribute(std::ptr::from_ref(&on).cast(), SYNC_MEMOPS, at) }?;
        Ok(memory)
    }
}

impl Drop for Gpu<'_> {
    fn drop(&mut self) {
        // SAFETY: The reference was taken in `Cuda::gpu` and is given back once. The driver refuses
        // memory that ended with the context.
        if let Err(error) = unsafe { self.driver.release_primary(self.device) } {
            eprintln!("peermemctl: {error:#}");
        }
    }
}

/// GPU memory, freed when dropped.
pub struct Memory<'a> {
    driver: &'a Driver,
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
        // SAFETY: The memory is allocated and has that size.
        unsafe { self.driver.set_bytes(self.at, 0, self.size) }?;
        // SAFETY: There is no pointer.
        unsafe { self.driver.synchronize() }
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
        // SAFETY: Both places have that length.
        unsafe { self.driver.copy_to_host(bytes.as_mut_ptr().cast(), from, length) }?;
        Ok(bytes)
    }

    /// Copies `bytes` to the memory, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.within(offset, bytes.len())?;
        let to = self.at + offset as u64;
        // SAFETY: Both places have that length.
        unsafe { self.driver.copy_to_gpu(to, bytes.as_ptr().cast(), bytes.len()) }
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
        // SAFETY: The memory is allocated, and nobody uses it any more.
        unsafe { this.driver.free(this.at) }
    }

    /// Exports all of the memory as a dma-buf.
    pub fn dma_buf(&self, mapping: Mapping) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        let flags = if mapping == Mapping::Pcie { DMA_BUF_PCIE } else { 0 };
        // SAFETY: `fd` is a local of the type that this kind of handle has.
        unsafe { self.driver.export((&raw mut fd).cast(), self.at, self.size, DMA_BUF_FD, flags) }?;
        if fd < 0 {
            bail!("cuMemGetHandleForAddressRange: no file descriptor");
        }
        // SAFETY: The driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: The memory is allocated, and nobody uses it any more.
        if let Err(error) = unsafe { self.driver.free(self.at) } {
            eprintln!("peermemctl: {error:#}");
        }
    }
}
