// SPDX-License-Identifier: GPL-2.0
//! The part of the CUDA driver API that peermemctl and the guest call, declared in our own words,
//! and libcuda opened at run time. The lab's stand-in is compared with these declarations when it
//! is compiled. A version beside a function is the first one of CUDA that has it.
//!
//! The crate cudarc does not serve here, for the reasons that `user/gpumr/src/cuda.rs` has: peermemctl asks old
//! drivers, too, and says which function they lack.

use anyhow::{bail, Context as _, Result};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

/// The result of every function: 0, or the number of an error.
pub type Status = c_uint;
/// An address of the GPU.
pub type DevicePointer = u64;
/// A context, opaque to the caller.
pub type Context = *mut c_void;

/// The device attribute that says whether memory can be exported as a dma-buf.
pub const DMA_BUF_SUPPORTED: c_int = 124;
/// The pointer attribute that makes copies wait for what the NIC wrote before.
pub const SYNC_MEMOPS: c_int = 6;
/// The kind of handle that `cuMemGetHandleForAddressRange()` makes: a dma-buf's file descriptor.
pub const DMA_BUF_FD: c_int = 1;
/// The flag of a dma-buf that is mapped through PCIe, also where there is a coherent link
/// (CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, 12.8).
pub const DMA_BUF_PCIE: u64 = 1;
/// The flag of managed memory that every stream may use.
pub const ATTACH_GLOBAL: c_uint = 1;

/// The kind of memory that stays where it is.
const PINNED: c_int = 1;
/// The kind of place that is a GPU.
const DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

/// `CUmemAllocationProp`: the properties of memory without an address.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    kind: c_int,
    /// The kinds of handles that can be exported.
    pub handle_types: c_int,
    location: c_int,
    device: c_int,
    win32: *mut c_void,
    compression: u8,
    /// gpuDirectRDMACapable.
    pub rdma: u8,
    rest: [u8; 6],
}

impl AllocationProp {
    /// Returns the properties of plain memory of a GPU.
    pub fn plain(device: c_int, handle_types: c_int, rdma: bool) -> Self {
        Self {
            kind: PINNED,
            handle_types,
            location: DEVICE,
            device,
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma: rdma.into(),
            rest: [0; 6],
        }
    }

    /// Returns the GPU, or `None` for anything but plain memory of one GPU.
    pub fn device(&self) -> Option<c_int> {
        (self.kind == PINNED && self.location == DEVICE).then_some(self.device)
    }
}

/// `CUmemAccessDesc`: what a GPU may do with mapped memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    kind: c_int,
    device: c_int,
    /// 0, or 1 for reading, 3 for reading and writing.
    pub access: c_int,
}

impl AccessDesc {
    /// Returns what lets a GPU read and write.
    pub fn full(device: c_int) -> Self {
        Self { kind: DEVICE, device, access: READ_WRITE }
    }

    /// Returns the GPU, or `None` for another place.
    pub fn device(&self) -> Option<c_int> {
        (self.kind == DEVICE).then_some(self.device)
    }
}

type ErrorName = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;

/// The library libcuda.
pub struct Driver(Library);

impl Driver {
    /// Opens the library. It does not start the driver.
    pub fn open() -> Result<Self, libloading::Error> {
        // SAFETY: libcuda's constructors are safe to run.
        unsafe { Library::new("libcuda.so.1") }.map(Self)
    }

    /// Returns an error that names the function and the status, unless that is 0.
    fn checked(&self, name: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: The type is the documented one. `text` is a local that is set to a static string
        // or left alone.
        let known = unsafe {
            self.0.get::<ErrorName>(b"cuGetErrorName\0").is_ok_and(|function| function(status, &mut text) == 0)
        };
        if known && !text.is_null() {
            // SAFETY: A static string of the library.
            let text = unsafe { CStr::from_ptr(text) };
            bail!("{name}: {} ({status})", text.to_string_lossy());
        }
        bail!("{name}: error {status}");
    }
}

/// Declares functions, each with the method of [`Driver`] that looks it up and calls it.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $method:ident = $name:ident($($argument:ident: $kind:ty),*);)*) => {
        /// The functions of a library, for one that stands in for libcuda: it can only be made of
        /// functions of the right types.
        #[allow(non_snake_case)]
        pub struct Functions {
            /// Stores the name of an error, which is a static string. (6.0)
            pub cuGetErrorName: ErrorName,
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($kind),*) -> Status,)*
        }

        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                ///
                /// Each pointer is good for what the function reads or writes there, and a string ends
                /// with NUL. Contexts, handles and addresses are the library's, and have not been given
                /// back. What is given back is not used any more.
                pub unsafe fn $method(&self, $($argument: $kind),*) -> Result<()> {
                    let (name, with_end) = (stringify!($name), concat!(stringify!($name), "\0"));
                    // SAFETY: The type is the documented one. The caller vouches for the arguments.
                    let status = unsafe {
                        self.0
                            .get::<unsafe extern "C" fn($($kind),*) -> Status>(with_end.as_bytes())
                            .with_context(|| format!("libcuda has no {name}"))?($($argument),*)
                    };
                    self.checked(name, status)
                }
            )*
        }
    };
}

functions! {
    /// Starts the driver. `flags` is 0. (2.0)
    fn init = cuInit(flags: c_uint);
    /// Stores the version of the API: 13000 is 13.0. (2.2)
    fn driver_version = cuDriverGetVersion(version: *mut c_int);
    /// Stores the GPU of an ordinal. (2.0)
    fn device = cuDeviceGet(device: *mut c_int, ordinal: c_int);
    /// Stores the GPU at a PCI address, which is a C string. (4.1)
    fn device_by_pci_address = cuDeviceGetByPCIBusId(device: *mut c_int, address: *const c_char);
    /// Stores the name of a GPU in a buffer of `length` bytes. (2.0)
    fn device_name = cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    /// Stores an attribute of a GPU. (2.0)
    fn device_attribute = cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    /// Makes a context and makes it current in this thread. (3.2)
    fn create_context = cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: c_int);
    /// Makes a context current in this thread. (4.0)
    fn set_current = cuCtxSetCurrent(context: Context);
    /// Waits for the GPU. (2.0)
    fn synchronize = cuCtxSynchronize();
    /// Takes a reference to the primary context of a GPU. (7.0)
    fn retain_primary = cuDevicePrimaryCtxRetain(context: *mut Context, device: c_int);
    /// Gives that reference back. (11.0)
    fn release_primary = cuDevicePrimaryCtxRelease_v2(device: c_int);
    /// Stores how many bytes of the current GPU's memory are free, and how many there are. (3.2)
    fn memory = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// Allocates bytes of GPU memory. (3.2)
    fn allocate = cuMemAlloc_v2(address: *mut DevicePointer, bytes: usize);
    /// Frees GPU memory or managed memory. (3.2)
    fn free = cuMemFree_v2(address: DevicePointer);
    /// Allocates bytes of managed memory, which moves between GPU and host. (6.0)
    fn allocate_managed = cuMemAllocManaged(address: *mut DevicePointer, bytes: usize, flags: c_uint);
    /// Allocates bytes of page-locked host memory. (3.2)
    fn allocate_host = cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize);
    /// Sets bytes of GPU memory. (3.2)
    fn set_bytes = cuMemsetD8_v2(to: DevicePointer, value: u8, bytes: usize);
    /// Copies bytes from the host to the GPU. (3.2)
    fn copy_to_gpu = cuMemcpyHtoD_v2(to: DevicePointer, from: *const c_void, bytes: usize);
    /// Copies bytes from the GPU to the host. (3.2)
    fn copy_to_host = cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePointer, bytes: usize);
    /// Sets an attribute of the memory at an address. (6.0)
    fn set_pointer_attribute = cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: DevicePointer);
    /// Exports whole pages. For a dma-buf, a `c_int` is stored at `handle`. (11.7)
    fn export = cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: DevicePointer, bytes: usize, kind: c_int, flags: u64
    );
    /// Reserves bytes of addresses, with an alignment and a wish, both of which may be 0. (10.2)
    fn reserve = cuMemAddressReserve(
        address: *mut DevicePointer, bytes: usize, alignment: usize, wish: DevicePointer, flags: u64
    );
    /// Gives reserved addresses back. (10.2)
    fn unreserve = cuMemAddressFree(address: DevicePointer, bytes: usize);
    /// Makes bytes of memory without an address, and stores its handle. (10.2)
    fn create_memory = cuMemCreate(handle: *mut u64, bytes: usize, prop: *const AllocationProp, flags: u64);
    /// Gives a handle back. What is mapped keeps the memory. (10.2)
    fn release_memory = cuMemRelease(handle: u64);
    /// Maps the memory of a handle at a reserved address. (10.2)
    fn map = cuMemMap(address: DevicePointer, bytes: usize, offset: usize, handle: u64, flags: u64);
    /// Lets GPUs use a mapped range. (10.2)
    fn set_access = cuMemSetAccess(address: DevicePointer, bytes: usize, access: *const AccessDesc, count: usize);
    /// Unmaps whole mappings. (10.2)
    fn unmap = cuMemUnmap(address: DevicePointer, bytes: usize);
}
