// SPDX-License-Identifier: GPL-2.0

//! The lab's `libcuda.so`: the part of the CUDA driver API that RDMA programs call.
//!
//! It models `docs/facts.md#cuda` and `#cuda-programs`, which were read on a real card: the codes
//! for a call before `cuInit`, for a bad device, for a host or freed pointer; small allocations
//! that share blocks of 2 MiB (`block.rs`); addresses that belong to a mapping of the process and
//! that the CPU cannot touch; the same address again after a free, with a new BUFFER_ID; the
//! attributes about GPUDirect RDMA; virtual memory management, where each mapping is a buffer of
//! its own, with its own BUFFER_ID. After a fork, the child is not initialised.
//!
//! A range can be exported as dma-buf, over as many allocations and mappings as it touches, up to
//! the end of the last one's memory. A range with a hole, with memory of the host, or with memory
//! of two GPUs is refused with INVALID_VALUE (nobody tried memory of two GPUs on a card).
//!
//! Streams and events are in `stream.rs`. A copy from or to memory of the host that CUDA does not
//! know is done when the call returns, as on a card.
//!
//! Left out: kernels, pools, a handle that is mapped twice (NOT_SUPPORTED where it can be pinned),
//! access rights of mappings (`cuMemSetAccess` only checks its arguments), and dma-buf over PCIe
//! where the memory is coherent (the flag gives NOT_SUPPORTED, as on a machine that has no such
//! way). Managed memory never migrates: it is host memory. The names that the real library keeps
//! for 32-bit device pointers (`cuMemAlloc` without `_v2`) are missing on purpose.
//!
//! Processes cannot share memory. The library gives a handle for another process where a card gives
//! one, but opening it there gives NOT_SUPPORTED, unlike a card. Making a file descriptor of
//! `cuMemCreate` memory gives NOT_SUPPORTED already.
//!
//! Programs that look `cuGetProcAddress` up by name call it without a suffix, with four or five
//! arguments (perftest 25.07 and later). The function does not touch the fifth.
#![allow(non_snake_case)]

mod abi;
mod attribute;
mod block;
mod code;
mod copy;
mod driver;
mod entry;
mod pointer;
mod stream;

use abi::{answer, put, CuContext, CuHandle, CuPtr, CuResult, HostFunction, StreamCallback};
use code::{Code, Res, NAMES};
use copy::{copy, copy_later, fill, fill_now};
pub use cuda_driver::{AccessDesc, AllocationProp};
use cuda_driver::{Functions, DMA_BUF_FD, SYNC_MEMOPS};
use driver::{driver, init};
use entry::proc_address;
use nvlab::BACKING;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::os::fd::IntoRawFd;

/// Defines C functions. Each body is a block of `Res<()>`.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are NULL or good for what CUDA's manual says is read or written there.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CuResult {
            answer(|| $body)
        }
    )*};
}

/// These functions have the types with which peermemctl and the guest call them.
const _: Functions = Functions {
    cuInit,
    cuDriverGetVersion,
    cuDeviceGet,
    cuDeviceGetByPCIBusId,
    cuDeviceGetName,
    cuDeviceGetAttribute,
    cuCtxCreate_v2,
    cuCtxSetCurrent,
    cuCtxSynchronize,
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxRelease_v2,
    cuMemGetInfo_v2,
    cuMemAlloc_v2,
    cuMemFree_v2,
    cuMemAllocManaged,
    cuMemAllocHost_v2,
    cuMemsetD8_v2,
    cuMemcpyHtoD_v2,
    cuMemcpyDtoH_v2,
    cuPointerSetAttribute,
    cuMemGetHandleForAddressRange,
    cuMemAddressReserve,
    cuMemAddressFree,
    cuMemCreate,
    cuMemRelease,
    cuMemMap,
    cuMemSetAccess,
    cuMemUnmap,
    cuGetErrorName,
};

/// Copies a string with its NUL into a buffer of `len` bytes, cut to fit.
///
/// # Safety
///
/// `to` is NULL or good for writing `len` bytes.
unsafe fn put_text(to: *mut c_char, len: c_int, text: &str) -> Res<()> {
    let room = usize::try_from(len).map_err(|_| Code::InvalidValue)?;
    if to.is_null() || room == 0 {
        return Err(Code::InvalidValue);
    }
    let n = text.len().min(room - 1);
    // SAFETY: n + 1 <= len bytes, which the caller vouches for.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, n);
        to.add(n).write(0);
    }
    Ok(())
}

api! {
    /// Initialises the library.
    fn cuInit(flags: c_uint) { init(flags) }

    /// Returns the version of the driver API. It needs no initialisation.
    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(version, 13000) }
    }

    /// Returns the number of GPUs.
    fn cuDeviceGetCount(count: *mut c_int) {
        let n = c_int::try_from(driver()?.devices().len()).map_err(|_| Code::Unknown)?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, n) }
    }

    /// Returns a GPU by its ordinal.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        driver()?.device(ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, ordinal) }
    }

    /// Returns one attribute of a GPU.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let (_, info) = driver()?.device(device)?;
        let v = attribute::device(attribute, info).ok_or(Code::InvalidValue)?;
        // SAFETY: the caller's pointer.
        unsafe { put(value, v) }
    }

    /// Returns a GPU's name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        driver()?.device(device)?;
        // SAFETY: the caller's buffer and its length.
        unsafe { put_text(name, len, "NVIDIA lab stand-in") }
    }

    /// Returns a GPU's PCI address as text.
    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's buffer and its length.
        unsafe { put_text(text, len, &pci_text(info.pci)) }
    }

    /// Returns a GPU by its PCI address.
    fn cuDeviceGetByPCIBusId(device: *mut c_int, text: *const c_char) {
        let d = driver()?;
        if text.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: not NULL, so a C string, says the caller.
        let text = unsafe { CStr::from_ptr(text) };
        let wanted = text.to_str().ok().and_then(pci_parse).ok_or(Code::InvalidValue)?;
        let n = d.devices().iter().position(|i| i.pci == wanted).ok_or(Code::InvalidDevice)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, n as c_int) }
    }

    /// Returns a GPU's UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, info.uuid) }
    }

    /// Returns a GPU's UUID. Only on partitioned GPUs would it differ from cuDeviceGetUuid's.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, info.uuid) }
    }

    /// Returns the size of the video memory in bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, info.memory as usize) }
    }

    /// Creates a context and makes it current.
    fn cuCtxCreate_v2(context: *mut CuContext, _flags: c_uint, device: c_int) {
        // SAFETY: the same pointer with the same promise.
        unsafe { create(context, device) }
    }

    /// Creates a context with parameters of CUDA 13, which change nothing here.
    fn cuCtxCreate_v4(context: *mut CuContext, _params: *mut c_void, _flags: c_uint, device: c_int) {
        // SAFETY: the same pointer with the same promise.
        unsafe { create(context, device) }
    }

    /// Destroys a context with its memory.
    fn cuCtxDestroy_v2(context: CuContext) { driver()?.destroy(context as usize) }

    /// Makes a context current, or none for NULL.
    fn cuCtxSetCurrent(context: CuContext) { driver()?.set_current(context as usize) }

    /// Returns the current context, or NULL.
    fn cuCtxGetCurrent(context: *mut CuContext) {
        let current = driver()?.current();
        // SAFETY: the caller's pointer.
        unsafe { put(context, current as CuContext) }
    }

    /// Returns the current context's GPU.
    fn cuCtxGetDevice(device: *mut c_int) {
        let (_, n) = driver()?.here()?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, n as c_int) }
    }

    /// Pushes a context.
    fn cuCtxPushCurrent_v2(context: CuContext) { driver()?.push(context as usize) }

    /// Pops the current context.
    fn cuCtxPopCurrent_v2(context: *mut CuContext) {
        let popped = driver()?.pop()?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's pointer.
        unsafe { put(context, popped as CuContext) }
    }

    /// Waits for the GPU.
    fn cuCtxSynchronize() {
        let d = driver()?;
        d.here()?;
        d.drain(None);
        Ok(())
    }

    /// Takes a reference to a GPU's primary context.
    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: c_int) {
        let d = driver()?;
        if context.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(context, d.retain(device)? as CuContext) }
    }

    /// Drops a reference; the last one frees the context's memory.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { driver()?.release(device, false) }

    /// Returns whether a GPU has a primary context, and its flags.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        let (of, is) = driver()?.primary(device)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(flags, of)?;
            put(active, c_int::from(is))
        }
    }

    /// Returns a context's number, which no other context of the process has.
    fn cuCtxGetId(context: CuContext, id: *mut u64) {
        let of = driver()?.context_id(context as usize)?;
        // SAFETY: the caller's pointer.
        unsafe { put(id, of) }
    }

    /// Returns the current context's flags.
    fn cuCtxGetFlags(flags: *mut c_uint) {
        let of = driver()?.context_flags()?;
        // SAFETY: the caller's pointer.
        unsafe { put(flags, of) }
    }

    /// Sets the current context's flags.
    fn cuCtxSetFlags(flags: c_uint) { driver()?.set_context_flags(flags) }

    /// Returns whether one GPU can reach another's memory. Here none can, and the answer for a GPU
    /// and itself is no, too.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let d = driver()?;
        d.device(device)?;
        d.device(peer)?;
        // SAFETY: the caller's pointer.
        unsafe { put(can, 0) }
    }

    /// Drops all references.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) { driver()?.release(device, true) }

    /// Returns the free and total video memory of the current GPU.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let d = driver()?;
        let (_, n) = d.here()?;
        let all = d.devices().get(n).map_or(0, |i| i.memory);
        // SAFETY: the caller's pointers.
        unsafe {
            put(free, d.memory_free(n)? as usize)?;
            put(total, all as usize)
        }
    }

    /// Allocates video memory.
    fn cuMemAlloc_v2(address: *mut CuPtr, size: usize) {
        let d = driver()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc(size as u64)?) }
    }

    /// Allocates managed memory (here: host memory).
    fn cuMemAllocManaged(address: *mut CuPtr, size: usize, flags: c_uint) {
        let d = driver()?;
        // ATTACH_GLOBAL or ATTACH_HOST
        if address.is_null() || (flags != 1 && flags != 2) {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc_host(size as u64, true)?) }
    }

    /// Frees video or managed memory.
    fn cuMemFree_v2(address: CuPtr) {
        let d = driver()?;
        if address == 0 { Ok(()) } else { d.free(address, false) }
    }

    /// Allocates page-locked host memory.
    fn cuMemAllocHost_v2(address: *mut *mut c_void, size: usize) {
        let d = driver()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc_host(size as u64, false)? as *mut c_void) }
    }

    /// Allocates page-locked host memory with flags, which change nothing here.
    fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, _flags: c_uint) {
        let d = driver()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc_host(size as u64, false)? as *mut c_void) }
    }

    /// Page-locks memory of the program itself.
    fn cuMemHostRegister_v2(address: *mut c_void, size: usize, _flags: c_uint) {
        driver()?.register_host(address as u64, size as u64)
    }

    /// Undoes cuMemHostRegister.
    fn cuMemHostUnregister(address: *mut c_void) { driver()?.unregister_host(address as u64) }

    /// Returns the GPU's address of page-locked memory, which is the same as the CPU's.
    fn cuMemHostGetDevicePointer_v2(to: *mut CuPtr, address: *mut c_void, flags: c_uint) {
        let d = driver()?;
        if flags != 0 || !d.buffer(address as u64).is_some_and(|b| b.on_host() && !b.is_managed()) {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(to, address as u64) }
    }

    /// Returns what was advised for managed memory: nothing, because no call here can advise.
    fn cuMemRangeGetAttribute(data: *mut c_void, size: usize, attribute: c_int, address: CuPtr, len: usize) {
        let d = driver()?;
        let there = d.buffer(address).filter(|b| b.is_managed() && address - b.base + len as u64 <= b.size);
        // PREFERRED_LOCATION, LAST_PREFETCH_LOCATION
        if there.is_none() || size != size_of::<c_int>() || ![2, 4].contains(&attribute) {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer, for an int with these attributes.
        unsafe { put(data.cast(), -2 as c_int) }
    }

    /// Frees page-locked host memory.
    fn cuMemFreeHost(address: *mut c_void) { driver()?.free(address as u64, true) }

    /// Returns the granularity in which memory can be made and mapped.
    fn cuMemGetAllocationGranularity(size: *mut usize, prop: *const AllocationProp, option: c_int) {
        driver()?;
        // SAFETY: the caller's pointer.
        unsafe { prop.as_ref() }.and_then(AllocationProp::device).ok_or(Code::InvalidValue)?;
        // MINIMUM or RECOMMENDED
        if option != 0 && option != 1 {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(size, BACKING as usize) }
    }

    /// Reserves addresses. It ignores the caller's wish for an address, as the real library may.
    fn cuMemAddressReserve(address: *mut CuPtr, size: usize, alignment: usize, _at: CuPtr, flags: u64) {
        let d = driver()?;
        if address.is_null() || flags != 0 || alignment as u64 > BACKING {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.reserve(size as u64)?) }
    }

    /// Frees reserved addresses.
    fn cuMemAddressFree(address: CuPtr, size: usize) { driver()?.unreserve(address, size as u64) }

    /// Makes memory without an address.
    fn cuMemCreate(handle: *mut u64, size: usize, prop: *const AllocationProp, flags: u64) {
        let d = driver()?;
        // SAFETY: the caller's pointer.
        let prop = unsafe { prop.as_ref() }.ok_or(Code::InvalidValue)?;
        let device = prop.device().ok_or(Code::InvalidValue)?;
        match prop.handle_types {
            0 | POSIX_FD => {}
            FABRIC => return Err(Code::NotPermitted),
            _ => return Err(Code::InvalidValue),
        }
        if handle.is_null() || flags != 0 {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(handle, d.create_memory(device, size as u64, prop.rdma != 0, prop.handle_types)?) }
    }

    /// Returns one more handle of mapped memory.
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) {
        let d = driver()?;
        if handle.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(handle, d.retain_memory(address as u64)?) }
    }

    /// Returns the properties with which a handle's memory was made.
    fn cuMemGetAllocationPropertiesFromHandle(prop: *mut AllocationProp, handle: u64) {
        let of = driver()?.physical(handle)?;
        let prop_of = AllocationProp::plain(of.device as c_int, of.handle_types, of.rdma);
        // SAFETY: the caller's pointer.
        unsafe { put(prop, prop_of) }
    }

    /// Makes a handle for another process.
    fn cuMemExportToShareableHandle(_to: *mut c_void, handle: u64, kind: c_int, flags: u64) {
        let of = driver()?.physical(handle)?;
        if flags != 0 || kind == 0 || of.handle_types & kind == 0 {
            return Err(Code::InvalidValue);
        }
        Err(Code::NotSupported)
    }

    /// Imports another process's handle: there is none here.
    fn cuMemImportFromShareableHandle(_handle: *mut u64, _from: *mut c_void, _kind: c_int) {
        driver()?;
        Err(Code::Unknown)
    }

    /// Makes a handle for another process. It holds this process's id and the first address.
    fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: CuPtr) {
        let d = driver()?;
        let b = d.buffer(address).filter(|b| b.is_legacy_ipc_capable()).ok_or(Code::InvalidValue)?;
        // SAFETY: the caller's pointer.
        unsafe { put(handle, IpcHandle { pid: u64::from(std::process::id()), base: b.base, zero: [0; 6] }) }
    }

    /// Opens another process's memory.
    fn cuIpcOpenMemHandle_v2(_to: *mut CuPtr, handle: IpcHandle, flags: c_uint) {
        driver()?.here()?;
        // LAZY_ENABLE_PEER_ACCESS
        if flags != 1 || handle.zero != [0; 6] {
            return Err(Code::InvalidValue);
        }
        // Opening a handle of this very process gives the code that a card gives.
        if handle.pid == u64::from(std::process::id()) { Err(Code::InvalidContext) } else { Err(Code::NotSupported) }
    }

    /// Closes another process's memory: none can be open here.
    fn cuIpcCloseMemHandle(_address: CuPtr) {
        driver()?;
        Err(Code::InvalidValue)
    }

    /// Exports a pointer of a pool: there is no pool here.
    fn cuMemPoolExportPointer(_to: *mut c_void, _address: CuPtr) {
        driver()?;
        Err(Code::InvalidValue)
    }

    /// Exports a pool: there is none here.
    fn cuMemPoolExportToShareableHandle(_to: *mut c_void, _pool: CuHandle, _kind: c_int, _flags: u64) {
        driver()?;
        Err(Code::InvalidValue)
    }

    /// Imports another process's pool: there is none here.
    fn cuMemPoolImportFromShareableHandle(_pool: *mut CuHandle, _from: *mut c_void, _kind: c_int, _flags: u64) {
        driver()?;
        Err(Code::Unknown)
    }

    /// Imports a pointer of another process's pool: there is none here.
    fn cuMemPoolImportPointer(_to: *mut CuPtr, _pool: CuHandle, _from: *mut c_void) {
        driver()?;
        Err(Code::InvalidValue)
    }

    /// Sets who may access a pool: there is none here.
    fn cuMemPoolSetAccess(_pool: CuHandle, _desc: *const AccessDesc, _count: usize) {
        driver()?;
        Err(Code::InvalidValue)
    }

    /// Destroys a pool: there is none here.
    fn cuMemPoolDestroy(_pool: CuHandle) {
        driver()?;
        Err(Code::InvalidValue)
    }

    /// Releases a handle.
    fn cuMemRelease(handle: u64) { driver()?.release_memory(handle) }

    /// Maps all of a handle's memory.
    fn cuMemMap(address: CuPtr, size: usize, offset: usize, handle: u64, flags: u64) {
        let d = driver()?;
        if offset != 0 || flags != 0 {
            return Err(Code::InvalidValue);
        }
        d.map(address, size as u64, handle)
    }

    /// Lets GPUs use a mapped range.
    fn cuMemSetAccess(address: CuPtr, size: usize, desc: *const AccessDesc, count: usize) {
        let d = driver()?;
        if desc.is_null() || count == 0 || !d.is_mapped(address, size as u64) {
            return Err(Code::InvalidValue);
        }
        for i in 0..count {
            // SAFETY: an array of `count` elements, says the caller.
            let access = unsafe { *desc.add(i) };
            let device = access.device().ok_or(Code::InvalidValue)?;
            // NONE, READ or READWRITE
            if ![0, 1, 3].contains(&access.access) {
                return Err(Code::InvalidValue);
            }
            d.device(device)?;
        }
        Ok(())
    }

    /// Unmaps whole mappings. It waits for the callbacks of all their pins.
    fn cuMemUnmap(address: CuPtr, size: usize) { driver()?.unmap(address, size as u64) }

    /// Returns base and size of the allocation that contains an address. Video memory of another GPU
    /// than the current context's is not found.
    fn cuMemGetAddressRange_v2(base: *mut CuPtr, size: *mut usize, address: CuPtr) {
        let d = driver()?;
        let (_, device) = d.here()?;
        let b = d.buffer(address).filter(|b| b.on_host() || b.device == device).ok_or(Code::NotFound)?;
        // SAFETY: each is checked for NULL, which means "not wanted"; else the caller's pointer.
        unsafe {
            if !base.is_null() {
                put(base, b.base)?;
            }
            if !size.is_null() {
                put(size, b.size as usize)?;
            }
        }
        Ok(())
    }

    /// Copies between any two addresses.
    fn cuMemcpy(dst: CuPtr, src: CuPtr, size: usize) {
        // SAFETY: the caller vouches for host addresses.
        unsafe { copy(dst, src, size) }
    }

    /// Copies host to device.
    fn cuMemcpyHtoD_v2(dst: CuPtr, src: *const c_void, size: usize) {
        // SAFETY: the caller vouches for the host address.
        unsafe { copy(dst, src as u64, size) }
    }

    /// Copies device to host.
    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CuPtr, size: usize) {
        // SAFETY: the caller vouches for the host address.
        unsafe { copy(dst as u64, src, size) }
    }

    /// Copies device to device.
    fn cuMemcpyDtoD_v2(dst: CuPtr, src: CuPtr, size: usize) {
        // SAFETY: the caller vouches for managed addresses.
        unsafe { copy(dst, src, size) }
    }

    /// Copies between any two addresses, in a stream.
    fn cuMemcpyAsync(dst: CuPtr, src: CuPtr, size: usize, stream: CuHandle) {
        // SAFETY: the caller vouches for host addresses, until the stream has done it.
        unsafe { copy_later(dst, src, size, stream) }
    }

    /// Copies device to device, in a stream.
    fn cuMemcpyDtoDAsync_v2(dst: CuPtr, src: CuPtr, size: usize, stream: CuHandle) {
        let d = driver()?;
        if [dst, src].iter().any(|at| d.buffer(*at).is_none()) {
            return Err(Code::InvalidValue);
        }
        // SAFETY: managed addresses are this library's own.
        unsafe { copy_later(dst, src, size, stream) }
    }

    /// Copies host to device, in a stream.
    fn cuMemcpyHtoDAsync_v2(dst: CuPtr, src: *const c_void, size: usize, stream: CuHandle) {
        // SAFETY: the caller vouches for the host address, until the stream has done it.
        unsafe { copy_later(dst, src as u64, size, stream) }
    }

    /// Copies device to host, in a stream.
    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CuPtr, size: usize, stream: CuHandle) {
        // SAFETY: the caller vouches for the host address, until the stream has done it.
        unsafe { copy_later(dst as u64, src, size, stream) }
    }

    /// Sets bytes, in a stream.
    fn cuMemsetD8Async(dst: CuPtr, value: u8, count: usize, stream: CuHandle) {
        let d = driver()?;
        let Some(stream) = d.stream(stream as usize)? else { return fill(dst, u32::from(value), 1, count) };
        if d.buffer(dst).is_none() {
            return Err(Code::InvalidValue);
        }
        stream.give(Box::new(move || {
            let _ = fill_now(d, dst, u32::from(value), 1, count);
        }));
        Ok(())
    }

    /// Makes a stream.
    fn cuStreamCreate(stream: *mut CuHandle, flags: c_uint) {
        // SAFETY: the same pointer with the same promise.
        unsafe { create_stream(stream, flags) }
    }

    /// Makes a stream with a priority, which changes nothing here.
    fn cuStreamCreateWithPriority(stream: *mut CuHandle, flags: c_uint, _priority: c_int) {
        // SAFETY: the same pointer with the same promise.
        unsafe { create_stream(stream, flags) }
    }

    /// Destroys a stream once its work is done.
    fn cuStreamDestroy_v2(stream: CuHandle) { driver()?.destroy_stream(stream as usize) }

    /// Returns whether a stream's work is done.
    fn cuStreamQuery(stream: CuHandle) {
        match driver()?.stream(stream as usize)? {
            Some(stream) if !stream.mark().is_done() => Err(Code::NotReady),
            _ => Ok(()),
        }
    }

    /// Waits for a stream's work.
    fn cuStreamSynchronize(stream: CuHandle) {
        let d = driver()?;
        let stream = d.stream(stream as usize)?;
        d.drain(stream.as_deref());
        Ok(())
    }

    /// Lets a stream wait for an event.
    fn cuStreamWaitEvent(stream: CuHandle, event: CuHandle, _flags: c_uint) {
        let d = driver()?;
        match (d.stream(stream as usize)?, d.event(event as usize)?) {
            (_, None) => {}
            (Some(stream), Some(mark)) => stream.give(Box::new(move || mark.wait())),
            (None, Some(mark)) => mark.wait(),
        }
        Ok(())
    }

    /// Makes a stream call a function after its earlier work.
    fn cuStreamAddCallback(stream: CuHandle, callback: StreamCallback, data: *mut c_void, flags: c_uint) {
        let d = driver()?;
        let callback = callback.filter(|_| flags == 0).ok_or(Code::InvalidValue)?;
        let (at, data) = (stream as usize, data as usize);
        let call = move || {
            // SAFETY: the caller's function, with what it is to be called with.
            unsafe { callback(at as CuHandle, 0, data as *mut c_void) };
        };
        match d.stream(at)? {
            Some(stream) => stream.give(Box::new(call)),
            None => call(),
        }
        Ok(())
    }

    /// Makes a stream call a function that takes only the caller's pointer.
    fn cuLaunchHostFunc(stream: CuHandle, function: HostFunction, data: *mut c_void) {
        let d = driver()?;
        let function = function.ok_or(Code::InvalidValue)?;
        let data = data as usize;
        let call = move || {
            // SAFETY: the caller's function, with what it is to be called with.
            unsafe { function(data as *mut c_void) };
        };
        match d.stream(stream as usize)? {
            Some(stream) => stream.give(Box::new(call)),
            None => call(),
        }
        Ok(())
    }

    /// Makes an event. The flags are BLOCKING_SYNC, DISABLE_TIMING and INTERPROCESS.
    fn cuEventCreate(event: *mut CuHandle, flags: c_uint) {
        let d = driver()?;
        d.here()?;
        if event.is_null() || flags > 7 {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(event, d.create_event()? as CuHandle) }
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: CuHandle) { driver()?.destroy_event(event as usize) }

    /// Records the present end of a stream's work in an event.
    fn cuEventRecord(event: CuHandle, stream: CuHandle) { driver()?.record(event as usize, stream as usize) }

    /// Returns whether the stream has done the work that it had when the event was recorded.
    fn cuEventQuery(event: CuHandle) {
        match driver()?.event(event as usize)? {
            Some(mark) if !mark.is_done() => Err(Code::NotReady),
            _ => Ok(()),
        }
    }

    /// Waits until the stream has done the work that it had when the event was recorded.
    fn cuEventSynchronize(event: CuHandle) {
        if let Some(mark) = driver()?.event(event as usize)? {
            mark.wait();
        }
        Ok(())
    }

    /// Sets bytes.
    fn cuMemsetD8_v2(dst: CuPtr, value: u8, count: usize) { fill(dst, u32::from(value), 1, count) }

    /// Sets 16-bit words.
    fn cuMemsetD16_v2(dst: CuPtr, value: u16, count: usize) { fill(dst, u32::from(value), 2, count) }

    /// Sets 32-bit words.
    fn cuMemsetD32_v2(dst: CuPtr, value: c_uint, count: usize) { fill(dst, value, 4, count) }

    /// Returns one attribute of an address.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, address: CuPtr) {
        let d = driver()?;
        let b = d.buffer(address).ok_or(Code::InvalidValue)?;
        // SAFETY: the caller's pointer, for the attribute's type.
        unsafe { pointer::attribute(data, attribute, &b, address) }
    }

    /// Returns several attributes of an address. They are zero where there is no answer, as for a
    /// host address.
    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *const c_int,
        data: *const *mut c_void,
        address: CuPtr,
    ) {
        let d = driver()?;
        if attributes.is_null() || data.is_null() {
            return Err(Code::InvalidValue);
        }
        let b = d.buffer(address);
        for i in 0..count as usize {
            // SAFETY: arrays of `count` elements, says the caller.
            let (attribute, to) = unsafe { (*attributes.add(i), *data.add(i)) };
            match &b {
                // SAFETY: the caller's pointer, for the attribute's type.
                Some(b) => unsafe { pointer::attribute(to, attribute, b, address)? },
                // SAFETY: the same.
                None => unsafe { pointer::zero(to, attribute)? },
            }
        }
        Ok(())
    }

    /// Sets an attribute of an address. The only one is SYNC_MEMOPS, which is always in force here.
    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: CuPtr) {
        let d = driver()?;
        match d.buffer(address) {
            Some(b) if b.is_mapping() && attribute == SYNC_MEMOPS => Err(Code::NotSupported),
            Some(b) if !b.on_host() && attribute == SYNC_MEMOPS && !value.is_null() => Ok(()),
            _ => Err(Code::InvalidValue),
        }
    }

    /// Exports a range as dma-buf.
    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void,
        address: CuPtr,
        size: usize,
        kind: c_int,
        flags: u64,
    ) {
        let d = driver()?;
        // The only kind there is.
        if handle.is_null() || kind != DMA_BUF_FD {
            return Err(Code::InvalidValue);
        }
        let fd = d.export(address, size as u64, flags)?;
        // SAFETY: the caller's pointer, for an int with this kind.
        unsafe { put(handle.cast(), fd.into_raw_fd()) }
    }

    /// Waits until the GPU sees what NICs wrote. It always does here.
    fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        driver()?.here()?;
        if target != 0 || (scope != 100 && scope != 200) {
            return Err(Code::InvalidValue);
        }
        Ok(())
    }

    /// Returns the name of a code.
    fn cuGetErrorName(code: c_uint, text: *mut *const c_char) {
        // SAFETY: the caller's pointer.
        unsafe { put_static(text, NAMES.iter().find(|n| n.0 == code).map(|n| n.1)) }
    }

    /// Returns the sentence for a code.
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) {
        // SAFETY: the caller's pointer.
        unsafe { put_static(text, NAMES.iter().find(|n| n.0 == code).map(|n| n.2)) }
    }

    /// Returns a function of this library by name and version.
    fn cuGetProcAddress(
        name: *const c_char,
        function: *mut *const c_void,
        version: c_int,
        _flags: u64,
    ) {
        // SAFETY: the same pointers with the same promise.
        unsafe { proc_address(name, function, version).map_err(|(code, _)| code) }
    }

    /// Returns a function of this library by name and version, and the reason if there is none.
    fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *const c_void,
        version: c_int,
        _flags: u64,
        why: *mut c_int,
    ) {
        // SAFETY: the same pointers with the same promise.
        let found = unsafe { proc_address(name, function, version) };
        match found {
            // A caller that asks for the reason gets success as the code.
            Err((Code::NotFound, reason)) if !why.is_null() => {
                // SAFETY: not NULL, so the caller's pointer.
                unsafe { put(why, reason) }
            }
            _ => {
                if !why.is_null() {
                    // SAFETY: not NULL, so the caller's pointer.
                    unsafe { put(why, 0)? };
                }
                found.map_err(|(code, _)| code)
            }
        }
    }
}

/// The kinds of handles for another process: a file descriptor, and a handle for other machines.
const POSIX_FD: c_int = 1;
const FABRIC: c_int = 8;

/// `CUipcMemHandle`: 64 bytes that only this library understands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle {
    pid: u64,
    base: u64,
    zero: [u64; 6],
}

/// Creates a context and stores it where the caller wants it.
///
/// # Safety
///
/// `context` is NULL or good for writing a pointer.
unsafe fn create(context: *mut CuContext, device: c_int) -> Res<()> {
    let d = driver()?;
    if context.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: the caller's promise.
    unsafe { put(context, d.create(device)? as CuContext) }
}

/// Makes a stream and stores it where the caller wants it.
///
/// # Safety
///
/// `stream` is NULL or good for writing a pointer.
unsafe fn create_stream(stream: *mut CuHandle, flags: c_uint) -> Res<()> {
    let d = driver()?;
    d.here()?;
    // DEFAULT or NON_BLOCKING
    if stream.is_null() || flags > 1 {
        return Err(Code::InvalidValue);
    }
    // SAFETY: the caller's promise.
    unsafe { put(stream, d.create_stream()? as CuHandle) }
}

/// Stores a static string, or NULL and an error if there is none.
///
/// # Safety
///
/// `to` is NULL or good for writing a pointer.
unsafe fn put_static(to: *mut *const c_char, text: Option<&'static CStr>) -> Res<()> {
    // SAFETY: the caller's promise.
    unsafe { put(to, text.map_or(std::ptr::null(), CStr::as_ptr))? };
    text.map(drop).ok_or(Code::InvalidValue)
}

fn pci_text((domain, bus, device, function): (u32, u32, u32, u32)) -> String {
    format!("{domain:04X}:{bus:02X}:{device:02X}.{function:X}")
}

/// Parses `[domain:]bus:device[.function]` in hexadecimal.
fn pci_parse(text: &str) -> Option<(u32, u32, u32, u32)> {
    let hex = |t: &str| u32::from_str_radix(t, 16).ok();
    let (rest, function) = match text.split_once('.') {
        Some((rest, f)) => (rest, hex(f)?),
        None => (text, 0),
    };
    match rest.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, device] => Some((hex(domain)?, hex(bus)?, hex(device)?, function)),
        [bus, device] => Some((0, hex(bus)?, hex(device)?, function)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_the_version_waits_for_init() {
        let mut n = 0;
        let mut a = 0u64;
        let at: *mut u64 = &mut a;
        // SAFETY: live locals, or NULL where the call fails before it looks.
        unsafe {
            assert_eq!(cuDriverGetVersion(&mut n), 0);
            assert_eq!(n, 13000);
            for rc in [
                cuDeviceGetCount(&mut n),
                cuDeviceGet(&mut n, 0),
                cuDeviceGetAttribute(&mut n, 116, 0),
                cuCtxCreate_v2(std::ptr::null_mut(), 0, 0),
                cuCtxSynchronize(),
                cuMemAlloc_v2(at, 1),
                cuMemFree_v2(0x1000),
                cuPointerGetAttribute(at.cast(), 7, 0x1000),
            ] {
                assert_eq!(rc, 3);
            }
            assert_eq!(cuInit(1), 1);
        }
    }

    #[test]
    fn pci_addresses_go_round() {
        let address = (0x10, 0xaf, 0x1f, 7);
        assert_eq!(pci_text(address), "0010:AF:1F.7");
        assert_eq!(pci_parse(&pci_text(address)), Some(address));
        assert_eq!(pci_parse("af:1f"), Some((0, 0xaf, 0x1f, 0)));
        assert_eq!(pci_parse("0:0:0:0"), None);
        assert_eq!(pci_parse("gpu"), None);
    }

    #[test]
    fn codes_have_names() {
        let mut text = std::ptr::null();
        // SAFETY: live locals; the strings are static.
        unsafe {
            assert_eq!(cuGetErrorName(Code::NotSupported as u32, &mut text), 0);
            assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_NOT_SUPPORTED");
            assert_eq!(cuGetErrorString(4711, &mut text), 1);
            assert!(text.is_null());
        }
    }
}
