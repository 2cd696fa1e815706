// SPDX-License-Identifier: GPL-2.0
//! The few calls of the CUDA driver API that an RDMA application makes. They go through
//! libcuda.so.1, found as such a program finds it.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use anyhow::{bail, Context as _, Result};
use libloading::{Library, Symbol};

type Handle = *mut c_void;

struct Driver {
    lib: Library,
}

impl Driver {
    /// Returns the function `name`, which must have the signature `F`.
    fn function<F>(&self, name: &str) -> Result<Symbol<'_, F>> {
        // SAFETY: each caller names a documented driver-API function with its documented C
        // signature.
        unsafe { self.lib.get(name.as_bytes()) }.with_context(|| format!("libcuda.so.1 has no {name}"))
    }
}

fn check(call: &str, rc: c_int) -> Result<()> {
    if rc != 0 {
        bail!("{call}: CUDA error {rc}");
    }
    Ok(())
}

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
        // SAFETY: loading runs the initialisers of the stand-in (or of NVIDIA's library), which are
        // made for that.
        let lib = unsafe { Library::new("libcuda.so.1") }.context("open libcuda.so.1")?;
        let driver = Driver { lib };
        let mut device: c_int = 0;
        let mut context: Handle = std::ptr::null_mut();
        {
            let init = driver.function::<unsafe extern "C" fn(u32) -> c_int>("cuInit")?;
            let get = driver.function::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>("cuDeviceGet")?;
            let create = driver.function::<unsafe extern "C" fn(*mut Handle, u32, c_int) -> c_int>("cuCtxCreate_v2")?;
            // SAFETY: documented calls, valid out-parameters.
            check("cuInit", unsafe { init(0) })?;
            // SAFETY: as above.
            check("cuDeviceGet", unsafe { get(&mut device, gpu) })?;
            // SAFETY: as above; the new context is current for this thread.
            check("cuCtxCreate", unsafe { create(&mut context, 0, device) })?;
        }
        Ok(Arc::new(Self { driver, context: context as usize, gpu }))
    }

    /// Makes the context current for the calling thread.
    pub fn attach(&self) -> Result<()> {
        let set = self.driver.function::<unsafe extern "C" fn(Handle) -> c_int>("cuCtxSetCurrent")?;
        // SAFETY: the context was created by cuCtxCreate and is never destroyed.
        check("cuCtxSetCurrent", unsafe { set(self.context as Handle) })
    }

    pub fn alloc(self: &Arc<Self>, size: usize) -> Result<DeviceMemory> {
        let alloc = self.driver.function::<unsafe extern "C" fn(*mut u64, usize) -> c_int>("cuMemAlloc_v2")?;
        let mut va = 0u64;
        // SAFETY: valid out-parameter.
        check("cuMemAlloc", unsafe { alloc(&mut va, size) })?;
        Ok(DeviceMemory { va: Some(va), size, cuda: Arc::clone(self) })
    }
}

impl Cuda {
    /// Exports whole pages as a dma-buf.
    pub fn dma_buf(&self, va: u64, len: usize) -> Result<OwnedFd> {
        const DMA_BUF_FD: c_int = 1;
        type Export = unsafe extern "C" fn(*mut c_int, u64, usize, c_int, u64) -> c_int;
        let export = self.driver.function::<Export>("cuMemGetHandleForAddressRange")?;
        let mut fd = -1;
        // SAFETY: an int for the descriptor; the driver checks the range.
        check("cuMemGetHandleForAddressRange", unsafe { export(&mut fd, va, len, DMA_BUF_FD, 0) })?;
        // SAFETY: the driver made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Allocates managed memory, for the rest of this process.
    pub fn managed(&self, size: usize) -> Result<u64> {
        const GLOBAL: u32 = 1;
        type Alloc = unsafe extern "C" fn(*mut u64, usize, u32) -> c_int;
        let alloc = self.driver.function::<Alloc>("cuMemAllocManaged")?;
        let mut va = 0u64;
        // SAFETY: valid out-parameter.
        check("cuMemAllocManaged", unsafe { alloc(&mut va, size, GLOBAL) })?;
        Ok(va)
    }

    /// Allocates page-locked host memory, for the rest of this process.
    pub fn page_locked(&self, size: usize) -> Result<u64> {
        let alloc = self.driver.function::<unsafe extern "C" fn(*mut Handle, usize) -> c_int>("cuMemAllocHost_v2")?;
        let mut at: Handle = std::ptr::null_mut();
        // SAFETY: valid out-parameter.
        check("cuMemAllocHost", unsafe { alloc(&mut at, size) })?;
        Ok(at as u64)
    }

    fn write(&self, va: u64, bytes: &[u8]) -> Result<()> {
        let copy =
            self.driver.function::<unsafe extern "C" fn(u64, *const c_void, usize) -> c_int>("cuMemcpyHtoD_v2")?;
        // SAFETY: the source is a live slice; the driver checks the device range.
        check("cuMemcpyHtoD", unsafe { copy(va, bytes.as_ptr().cast(), bytes.len()) })
    }

    fn read(&self, va: u64, len: usize) -> Result<Vec<u8>> {
        let copy = self.driver.function::<unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int>("cuMemcpyDtoH_v2")?;
        let mut out = vec![0u8; len];
        // SAFETY: the destination is a live slice of that length; the driver checks the device
        // range.
        check("cuMemcpyDtoH", unsafe { copy(out.as_mut_ptr().cast(), va, len) })?;
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

/// CUmemAllocationProp.
#[repr(C)]
struct Prop {
    kind: c_int,
    handle_types: c_int,
    location: c_int,
    device: c_int,
    win32: Handle,
    compression: u8,
    rdma: u8,
    rest: [u8; 6],
}

type Map = unsafe extern "C" fn(u64, usize, usize, u64, u64) -> c_int;
type Create = unsafe extern "C" fn(*mut u64, usize, *const Prop, u64) -> c_int;

impl Cuda {
    /// Reserves `len` bytes, a multiple of 2 MiB.
    pub fn reserve(self: &Arc<Self>, len: usize) -> Result<Segments> {
        let reserve = self
            .driver
            .function::<unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int>("cuMemAddressReserve")?;
        let mut va = 0u64;
        // SAFETY: valid out-parameter.
        check("cuMemAddressReserve", unsafe { reserve(&mut va, len, 0, 0, 0) })?;
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
        let create = driver.function::<Create>("cuMemCreate")?;
        let map = driver.function::<Map>("cuMemMap")?;
        let access =
            driver.function::<unsafe extern "C" fn(u64, usize, *const [c_int; 3], usize) -> c_int>("cuMemSetAccess")?;
        let release = driver.function::<unsafe extern "C" fn(u64) -> c_int>("cuMemRelease")?;
        let prop = Prop {
            kind: 1,
            handle_types: 0,
            location: 1,
            device: self.cuda.gpu,
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma: rdma.into(),
            rest: [0; 6],
        };
        let (mut handle, va) = (0u64, self.va + at as u64);
        // SAFETY: documented calls, valid out-parameters and blocks of the documented layout.
        unsafe {
            check("cuMemCreate", create(&mut handle, size, &prop, 0))?;
            check("cuMemMap", map(va, size, 0, handle, 0))?;
            // The arguments are a device, its number, and read-write access.
            check("cuMemSetAccess", access(va, size, &[1, self.cuda.gpu, 3], 1))?;
            // The mapping keeps the memory alive.
            check("cuMemRelease", release(handle))?;
        }
        self.mapped.push((at, size));
        Ok(())
    }

    /// Unmaps the memory at this offset.
    pub fn unmap(&mut self, at: usize) -> Result<()> {
        let unmap = self.cuda.driver.function::<unsafe extern "C" fn(u64, usize) -> c_int>("cuMemUnmap")?;
        let which = self.mapped.iter().position(|m| m.0 == at).context("nothing is mapped there")?;
        let (at, size) = self.mapped.swap_remove(which);
        // SAFETY: mapped by us, and taken out: no second call.
        check("cuMemUnmap", unsafe { unmap(self.va + at as u64, size) })
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
        if let Ok(free) = self.cuda.driver.function::<unsafe extern "C" fn(u64, usize) -> c_int>("cuMemAddressFree") {
            // SAFETY: reserved by us; this is the last use.
            unsafe { free(self.va, self.len) };
        }
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
        let free = self.cuda.driver.function::<unsafe extern "C" fn(u64) -> c_int>("cuMemFree_v2")?;
        // SAFETY: va came from cuMemAlloc and was taken out: no second call.
        check("cuMemFree", unsafe { free(va) })
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
