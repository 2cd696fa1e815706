// SPDX-License-Identifier: GPL-2.0
//! The few calls of the CUDA driver API that an RDMA application makes, through libcuda.so.1 as such a program
//! finds it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use anyhow::{bail, Context as _, Result};
use libloading::{Library, Symbol};

type Handle = *mut c_void;

struct Driver {
    lib: Library,
}

impl Driver {
    /// The function `name`, which must have the signature `F`.
    fn function<F>(&self, name: &str) -> Result<Symbol<'_, F>> {
        // SAFETY: each caller names a documented driver-API function with its documented C signature.
        unsafe { self.lib.get(name.as_bytes()) }.with_context(|| format!("libcuda.so.1 has no {name}"))
    }
}

fn check(call: &str, rc: c_int) -> Result<()> {
    if rc != 0 {
        bail!("{call}: CUDA error {rc}");
    }
    Ok(())
}

/// A context on GPU 0, current for the thread that opened it.
pub struct Cuda {
    driver: Driver,
    /// CUcontext, kept as a number: any thread may make it current.
    context: usize,
}

impl Cuda {
    pub fn open() -> Result<Arc<Self>> {
        // SAFETY: loading runs the initialisers of the stand-in (or of NVIDIA's library), which are made for that.
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
            check("cuDeviceGet", unsafe { get(&mut device, 0) })?;
            // SAFETY: as above; the new context is current for this thread.
            check("cuCtxCreate", unsafe { create(&mut context, 0, device) })?;
        }
        Ok(Arc::new(Self { driver, context: context as usize }))
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

/// Memory from cuMemAlloc; freed when dropped.
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
        let copy =
            self.cuda.driver.function::<unsafe extern "C" fn(u64, *const c_void, usize) -> c_int>("cuMemcpyHtoD_v2")?;
        // SAFETY: the source is a live slice; the driver checks the device range.
        check("cuMemcpyHtoD", unsafe { copy(self.va() + at as u64, bytes.as_ptr().cast(), bytes.len()) })
    }

    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let copy =
            self.cuda.driver.function::<unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int>("cuMemcpyDtoH_v2")?;
        let mut out = vec![0u8; len];
        // SAFETY: the destination is a live slice of that length; the driver checks the device range.
        check("cuMemcpyDtoH", unsafe { copy(out.as_mut_ptr().cast(), self.va() + at as u64, len) })?;
        Ok(out)
    }

    fn release(&mut self) -> Result<()> {
        let Some(va) = self.va.take() else { return Ok(()) };
        let free = self.cuda.driver.function::<unsafe extern "C" fn(u64) -> c_int>("cuMemFree_v2")?;
        // SAFETY: va came from cuMemAlloc and was taken out: no second call.
        check("cuMemFree", unsafe { free(va) })
    }

    /// cuMemFree, with its answer.
    pub fn free(mut self) -> Result<()> {
        self.release()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A test that cares calls free().
        let _ = self.release();
    }
}
