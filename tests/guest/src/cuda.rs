// SPDX-License-Identifier: GPL-2.0
//! The few calls of the CUDA driver API that an RDMA application makes. They go through
//! libcuda.so.1, found as such a program finds it.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cuda_driver::{AccessDesc, AllocationProp, Context, Driver, ATTACH_GLOBAL, DMA_BUF_FD};

/// A context on a GPU. It is current for the thread that opened it.
pub struct Cuda {
    driver: Driver,
    /// The CUcontext, kept as a number so that any thread may make it current.
    context: usize,
    gpu: c_int,
}

impl Cuda {
    /// Opens a context on the first GPU.
    pub fn open() -> Result<Arc<Self>> {
        Self::open_on(0)
    }

    pub fn open_on(gpu: c_int) -> Result<Arc<Self>> {
        let driver = Driver::open().context("open libcuda.so.1")?;
        let mut device: c_int = 0;
        let mut context: Context = null_mut();
        // SAFETY: out-parameters that are locals; the new context is current for this thread.
        unsafe {
            driver.init(0)?;
            driver.device(&mut device, gpu)?;
            driver.create_context(&mut context, 0, device)?;
        }
        Ok(Arc::new(Self { driver, context: context as usize, gpu }))
    }

    /// Makes the context current for the calling thread.
    pub fn attach(&self) -> Result<()> {
        // SAFETY: the context was created by cuCtxCreate and is never destroyed.
        unsafe { self.driver.set_current(self.context as Context) }
    }

    pub fn alloc(self: &Arc<Self>, size: usize) -> Result<DeviceMemory> {
        let mut va = 0u64;
        // SAFETY: valid out-parameter.
        unsafe { self.driver.allocate(&mut va, size) }?;
        Ok(DeviceMemory { va: Some(va), size, cuda: Arc::clone(self) })
    }

    /// Exports whole pages as a dma-buf.
    pub fn dma_buf(&self, va: u64, len: usize) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        // SAFETY: an int for the descriptor; the driver checks the range.
        unsafe { self.driver.export((&raw mut fd).cast(), va, len, DMA_BUF_FD, 0) }?;
        // SAFETY: the driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Allocates managed memory, for the rest of this process.
    pub fn managed(&self, size: usize) -> Result<u64> {
        let mut va = 0u64;
        // SAFETY: valid out-parameter.
        unsafe { self.driver.allocate_managed(&mut va, size, ATTACH_GLOBAL) }?;
        Ok(va)
    }

    /// Allocates page-locked host memory, for the rest of this process.
    pub fn page_locked(&self, size: usize) -> Result<u64> {
        let mut at = null_mut();
        // SAFETY: valid out-parameter.
        unsafe { self.driver.allocate_host(&mut at, size) }?;
        Ok(at as u64)
    }

    fn write(&self, va: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the source is a live slice; the driver checks the device range.
        unsafe { self.driver.copy_to_gpu(va, bytes.as_ptr().cast(), bytes.len()) }
    }

    fn read(&self, va: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0u8; len];
        // SAFETY: the destination is a live slice of that length; the driver checks the device
        // range.
        unsafe { self.driver.copy_to_host(out.as_mut_ptr().cast(), va, len) }?;
        Ok(out)
    }
}

/// Addresses from cuMemAddressReserve, with a handle's memory in each mapped segment, like
/// PyTorch's expandable segments. Dropping it unmaps the segments and frees the addresses.
pub struct Segments {
    va: u64,
    len: usize,
    /// The offset and length of each mapped segment.
    mapped: Vec<(usize, usize)>,
    cuda: Arc<Cuda>,
}

impl Cuda {
    /// Reserves `len` bytes, a multiple of 2 MiB.
    pub fn reserve(self: &Arc<Self>, len: usize) -> Result<Segments> {
        let mut va = 0u64;
        // SAFETY: valid out-parameter.
        unsafe { self.driver.reserve(&mut va, len, 0, 0, 0) }?;
        Ok(Segments { va, len, mapped: Vec::new(), cuda: Arc::clone(self) })
    }

    /// Reserves `len` bytes and maps as many segments of `size` bytes, one behind the other, as
    /// that needs.
    pub fn segments(self: &Arc<Self>, size: usize, len: usize) -> Result<Segments> {
        let count = len.div_ceil(size);
        let mut segments = self.reserve(count * size)?;
        for i in 0..count {
            segments.map(i * size, size, true)?;
        }
        Ok(segments)
    }
}

impl Segments {
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Maps new memory of `size` bytes at this offset, with or without gpuDirectRDMACapable.
    pub fn map(&mut self, at: usize, size: usize, rdma: bool) -> Result<()> {
        let driver = &self.cuda.driver;
        let prop = AllocationProp::plain(self.cuda.gpu, 0, rdma);
        let access = AccessDesc::full(self.cuda.gpu);
        let (mut handle, va) = (0u64, self.va + at as u64);
        // SAFETY: valid out-parameters, and blocks that are locals.
        unsafe {
            driver.create_memory(&mut handle, size, &prop, 0)?;
            driver.map(va, size, 0, handle, 0)?;
            driver.set_access(va, size, &access, 1)?;
            // The mapping keeps the memory alive.
            driver.release_memory(handle)?;
        }
        self.mapped.push((at, size));
        Ok(())
    }

    /// Unmaps the memory at this offset.
    pub fn unmap(&mut self, at: usize) -> Result<()> {
        let which = self.mapped.iter().position(|m| m.0 == at).context("nothing is mapped there")?;
        let (at, size) = self.mapped.swap_remove(which);
        // SAFETY: mapped by us, and taken out: no second call.
        unsafe { self.cuda.driver.unmap(self.va + at as u64, size) }
    }

    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.cuda.write(self.va + at as u64, bytes)
    }

    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        self.cuda.read(self.va + at as u64, len)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        // Errors are ignored here: a test that cares about them calls unmap().
        while let Some(&(at, _)) = self.mapped.last() {
            let _ = self.unmap(at);
        }
        // SAFETY: reserved by us; this is the last use.
        let _ = unsafe { self.cuda.driver.unreserve(self.va, self.len) };
    }
}

/// Memory from cuMemAlloc. Dropping it frees the memory.
pub struct DeviceMemory {
    va: Option<u64>,
    size: usize,
    cuda: Arc<Cuda>,
}

impl DeviceMemory {
    pub fn va(&self) -> u64 {
        self.va.expect("freed only by value")
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.cuda.write(self.va() + at as u64, bytes)
    }

    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        self.cuda.read(self.va() + at as u64, len)
    }

    fn release(&mut self) -> Result<()> {
        let Some(va) = self.va.take() else { return Ok(()) };
        // SAFETY: va came from cuMemAlloc and was taken out: no second call.
        unsafe { self.cuda.driver.free(va) }
    }

    /// Frees the memory with cuMemFree and returns the result.
    pub fn free(mut self) -> Result<()> {
        self.release()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Errors are ignored here: a test that cares about them calls free().
        let _ = self.release();
    }
}
