// SPDX-License-Identifier: GPL-2.0

//! The lab's `libcuda.so`: the part of the CUDA driver API that RDMA programs call.
//!
//! Models `docs/facts.md#cuda` (read on a real card): the codes for a call before `cuInit`, for a
//! bad device, for a host or freed pointer; small allocations that share blocks of 2 MiB
//! (`block.rs`); addresses that belong to a mapping of the process and that the CPU cannot touch;
//! the same address again after a free, under a new BUFFER_ID; the attributes about GPUDirect RDMA;
//! virtual memory management, where each mapping is a buffer of its own, with its own BUFFER_ID. After
//! a fork the child is not initialised.
//!
//! A range can be exported as dma-buf, over as many allocations and mappings as it touches, up to
//! the end of the last one's memory; a hole, memory of the host and of two GPUs are INVALID_VALUE
//! (the last was not asked on a card).
//!
//! Left out: kernels, streams, events, a handle that is mapped twice (NOT_SUPPORTED where it can be
//! pinned), access rights of mappings (`cuMemSetAccess` checks its arguments), IPC, and dma-buf
//! over PCIe where the memory is coherent (the flag is NOT_SUPPORTED, as where there is no such
//! way). Managed memory never migrates: it is host memory. Names that the real library keeps for
//! 32-bit device pointers (`cuMemAlloc` without `_v2`) are missing on purpose.
//!
//! `cuGetProcAddress` without a suffix may be called with four or five arguments, as programs do
//! that look it up by name (perftest 25.07 and later): the fifth is not touched.
#![allow(non_snake_case)]

mod attribute;
mod block;
mod code;
mod driver;

use code::{Code, Res, NAMES};
use driver::{driver, init, Buffer, Driver, Place};
use nvlab::BACKING;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::os::fd::IntoRawFd;

/// What every function returns: 0 or a [`Code`].
type CuResult = c_uint;
/// A device address.
type CuPtr = u64;
/// A context, opaque to the caller.
type CuContext = *mut c_void;

fn answer(f: impl FnOnce() -> Res<()>) -> CuResult {
    match f() {
        Ok(()) => 0,
        Err(code) => code as CuResult,
    }
}

/// Store a result where the caller wants it.
///
/// # Safety
/// `to` is NULL or good for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Res<()> {
    if to.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not NULL, so good for writing, says the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// Define C functions: each body is a block of `Res<()>`.
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

/// Copy a string with its NUL into a buffer of `len` bytes, cut to fit.
///
/// # Safety
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
    /// Initialise the library.
    fn cuInit(flags: c_uint) { init(flags) }

    /// Version of the driver API; needs no initialisation.
    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's pointer.
        unsafe { put(version, 13000) }
    }

    /// Number of GPUs.
    fn cuDeviceGetCount(count: *mut c_int) {
        let n = c_int::try_from(driver()?.devices().len()).map_err(|_| Code::Unknown)?;
        // SAFETY: the caller's pointer.
        unsafe { put(count, n) }
    }

    /// A GPU by its ordinal.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        driver()?.device(ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, ordinal) }
    }

    /// One number about a GPU.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let (_, info) = driver()?.device(device)?;
        let v = attribute::device(attribute, info).ok_or(Code::InvalidValue)?;
        // SAFETY: the caller's pointer.
        unsafe { put(value, v) }
    }

    /// A GPU's name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        driver()?.device(device)?;
        // SAFETY: the caller's buffer and its length.
        unsafe { put_text(name, len, "NVIDIA lab stand-in") }
    }

    /// A GPU's PCI address as text.
    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's buffer and its length.
        unsafe { put_text(text, len, &pci_text(info.pci)) }
    }

    /// A GPU by its PCI address.
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

    /// A GPU's UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, info.uuid) }
    }

    /// The same; differs on partitioned GPUs only.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(uuid, info.uuid) }
    }

    /// Bytes of video memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let (_, info) = driver()?.device(device)?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, info.memory as usize) }
    }

    /// Create a context and make it current.
    fn cuCtxCreate_v2(context: *mut CuContext, _flags: c_uint, device: c_int) {
        // SAFETY: the same pointer with the same promise.
        unsafe { create(context, device) }
    }

    /// The same with parameters of CUDA 13, which change nothing here.
    fn cuCtxCreate_v4(context: *mut CuContext, _params: *mut c_void, _flags: c_uint, device: c_int) {
        // SAFETY: the same pointer with the same promise.
        unsafe { create(context, device) }
    }

    /// Destroy a context with its memory.
    fn cuCtxDestroy_v2(context: CuContext) { driver()?.destroy(context as usize) }

    /// Make a context current; NULL: none.
    fn cuCtxSetCurrent(context: CuContext) { driver()?.set_current(context as usize) }

    /// The current context, or NULL.
    fn cuCtxGetCurrent(context: *mut CuContext) {
        let current = driver()?.current();
        // SAFETY: the caller's pointer.
        unsafe { put(context, current as CuContext) }
    }

    /// The current context's GPU.
    fn cuCtxGetDevice(device: *mut c_int) {
        let (_, n) = driver()?.here()?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, n as c_int) }
    }

    /// Push a context.
    fn cuCtxPushCurrent_v2(context: CuContext) { driver()?.push(context as usize) }

    /// Pop the current context.
    fn cuCtxPopCurrent_v2(context: *mut CuContext) {
        let popped = driver()?.pop()?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's pointer.
        unsafe { put(context, popped as CuContext) }
    }

    /// Wait for the GPU: every call here is done when it returns.
    fn cuCtxSynchronize() { driver()?.here().map(drop) }

    /// Take a reference to a GPU's primary context.
    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: c_int) {
        let d = driver()?;
        if context.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(context, d.retain(device)? as CuContext) }
    }

    /// Drop a reference; the last one frees the context's memory.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { driver()?.release(device, false) }

    /// Drop all references.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) { driver()?.release(device, true) }

    /// Free and total video memory of the current GPU.
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

    /// Allocate video memory.
    fn cuMemAlloc_v2(address: *mut CuPtr, size: usize) {
        let d = driver()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc(size as u64)?) }
    }

    /// Allocate managed memory (here: host memory).
    fn cuMemAllocManaged(address: *mut CuPtr, size: usize, flags: c_uint) {
        let d = driver()?;
        // ATTACH_GLOBAL or ATTACH_HOST
        if address.is_null() || (flags != 1 && flags != 2) {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc_host(size as u64, true)?) }
    }

    /// Free video or managed memory.
    fn cuMemFree_v2(address: CuPtr) {
        let d = driver()?;
        if address == 0 { Ok(()) } else { d.free(address, false) }
    }

    /// Allocate page-locked host memory.
    fn cuMemAllocHost_v2(address: *mut *mut c_void, size: usize) {
        let d = driver()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc_host(size as u64, false)? as *mut c_void) }
    }

    /// The same with flags, which change nothing here.
    fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, _flags: c_uint) {
        let d = driver()?;
        if address.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.alloc_host(size as u64, false)? as *mut c_void) }
    }

    /// Free page-locked host memory.
    fn cuMemFreeHost(address: *mut c_void) { driver()?.free(address as u64, true) }

    /// Multiples in which memory can be made and mapped.
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

    /// Reserve addresses. A wish for an address is not heard, as the real one need not.
    fn cuMemAddressReserve(address: *mut CuPtr, size: usize, alignment: usize, _at: CuPtr, flags: u64) {
        let d = driver()?;
        if address.is_null() || flags != 0 || alignment as u64 > BACKING {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(address, d.reserve(size as u64)?) }
    }

    /// Give reserved addresses back.
    fn cuMemAddressFree(address: CuPtr, size: usize) { driver()?.unreserve(address, size as u64) }

    /// Make memory without an address.
    fn cuMemCreate(handle: *mut u64, size: usize, prop: *const AllocationProp, flags: u64) {
        let d = driver()?;
        // SAFETY: the caller's pointer.
        let prop = unsafe { prop.as_ref() }.ok_or(Code::InvalidValue)?;
        let device = prop.device().ok_or(Code::InvalidValue)?;
        if handle.is_null() || flags != 0 {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(handle, d.create_memory(device, size as u64, prop.rdma != 0)?) }
    }

    /// Give a handle back.
    fn cuMemRelease(handle: u64) { driver()?.release_memory(handle) }

    /// Map all of a handle's memory.
    fn cuMemMap(address: CuPtr, size: usize, offset: usize, handle: u64, flags: u64) {
        let d = driver()?;
        if offset != 0 || flags != 0 {
            return Err(Code::InvalidValue);
        }
        d.map(address, size as u64, handle)
    }

    /// Let GPUs use a mapped range.
    fn cuMemSetAccess(address: CuPtr, size: usize, desc: *const AccessDesc, count: usize) {
        let d = driver()?;
        if desc.is_null() || count == 0 || !d.is_mapped(address, size as u64) {
            return Err(Code::InvalidValue);
        }
        for i in 0..count {
            // SAFETY: an array of `count` elements, says the caller.
            let AccessDesc { kind, device, access } = unsafe { *desc.add(i) };
            // A device; NONE, READ or READWRITE
            if kind != 1 || ![0, 1, 3].contains(&access) {
                return Err(Code::InvalidValue);
            }
            d.device(device)?;
        }
        Ok(())
    }

    /// Unmap whole mappings: callbacks of all their pins.
    fn cuMemUnmap(address: CuPtr, size: usize) { driver()?.unmap(address, size as u64) }

    /// Base and size of the allocation that an address lies in.
    fn cuMemGetAddressRange_v2(base: *mut CuPtr, size: *mut usize, address: CuPtr) {
        let d = driver()?;
        d.here()?;
        let b = d.buffer(address).ok_or(Code::NotFound)?;
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

    /// Copy between any two addresses.
    fn cuMemcpy(dst: CuPtr, src: CuPtr, size: usize) {
        // SAFETY: the caller vouches for host addresses.
        unsafe { copy(dst, src, size) }
    }

    /// Copy host to device.
    fn cuMemcpyHtoD_v2(dst: CuPtr, src: *const c_void, size: usize) {
        // SAFETY: the caller vouches for the host address.
        unsafe { copy(dst, src as u64, size) }
    }

    /// Copy device to host.
    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CuPtr, size: usize) {
        // SAFETY: the caller vouches for the host address.
        unsafe { copy(dst as u64, src, size) }
    }

    /// Copy device to device.
    fn cuMemcpyDtoD_v2(dst: CuPtr, src: CuPtr, size: usize) {
        // SAFETY: the caller vouches for managed addresses.
        unsafe { copy(dst, src, size) }
    }

    /// Set bytes.
    fn cuMemsetD8_v2(dst: CuPtr, value: u8, count: usize) { fill(dst, u32::from(value), 1, count) }

    /// Set 16-bit words.
    fn cuMemsetD16_v2(dst: CuPtr, value: u16, count: usize) { fill(dst, u32::from(value), 2, count) }

    /// Set 32-bit words.
    fn cuMemsetD32_v2(dst: CuPtr, value: c_uint, count: usize) { fill(dst, value, 4, count) }

    /// One fact about an address.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, address: CuPtr) {
        let d = driver()?;
        let b = d.buffer(address).ok_or(Code::InvalidValue)?;
        // SAFETY: the caller's pointer, for the attribute's type.
        unsafe { pointer_attribute(data, attribute, &b, address) }
    }

    /// Several; where there is no answer (a host address), zero.
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
                Some(b) => unsafe { pointer_attribute(to, attribute, b, address)? },
                // SAFETY: the same.
                None => unsafe { pointer_zero(to, attribute)? },
            }
        }
        Ok(())
    }

    /// Set a fact about an address: only SYNC_MEMOPS, which is always in force here.
    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: CuPtr) {
        let d = driver()?;
        match d.buffer(address) {
            Some(b) if b.is_mapping() && attribute == SYNC_MEMOPS => Err(Code::NotSupported),
            Some(b) if !b.on_host() && attribute == SYNC_MEMOPS && !value.is_null() => Ok(()),
            _ => Err(Code::InvalidValue),
        }
    }

    /// Export a range as dma-buf.
    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void,
        address: CuPtr,
        size: usize,
        kind: c_int,
        flags: u64,
    ) {
        let d = driver()?;
        // DMA_BUF_FD is the only kind there is.
        if handle.is_null() || kind != 1 {
            return Err(Code::InvalidValue);
        }
        let fd = d.export(address, size as u64, flags)?;
        // SAFETY: the caller's pointer, for an int with this kind.
        unsafe { put(handle.cast(), fd.into_raw_fd()) }
    }

    /// Wait until what NICs wrote is visible to the GPU: it always is.
    fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
        driver()?.here()?;
        if target != 0 || (scope != 100 && scope != 200) {
            return Err(Code::InvalidValue);
        }
        Ok(())
    }

    /// Name of a code.
    fn cuGetErrorName(code: c_uint, text: *mut *const c_char) {
        // SAFETY: the caller's pointer.
        unsafe { put_static(text, NAMES.iter().find(|n| n.0 == code).map(|n| n.1)) }
    }

    /// Sentence for a code.
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) {
        // SAFETY: the caller's pointer.
        unsafe { put_static(text, NAMES.iter().find(|n| n.0 == code).map(|n| n.2)) }
    }

    /// A function of this library by name and version.
    fn cuGetProcAddress(
        name: *const c_char,
        function: *mut *const c_void,
        version: c_int,
        _flags: u64,
    ) {
        // SAFETY: the same pointers with the same promise.
        unsafe { proc_address(name, function, version).map_err(|(code, _)| code) }
    }

    /// The same, saying why there is none.
    fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *const c_void,
        version: c_int,
        _flags: u64,
        why: *mut c_int,
    ) {
        // SAFETY: the same pointers with the same promise.
        let found = unsafe { proc_address(name, function, version) };
        if !why.is_null() {
            // SAFETY: not NULL, so the caller's pointer.
            unsafe { put(why, found.err().map_or(0, |(_, why)| why))? };
        }
        found.map_err(|(code, _)| code)
    }
}

/// `CUmemAllocationProp`, as far as it is looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// PINNED is 1.
    pub kind: c_int,
    /// Kinds of handles to be exported.
    pub handle_types: c_int,
    /// DEVICE is 1.
    pub location: c_int,
    /// Which one.
    pub device: c_int,
    /// Of another system.
    pub win32: *mut c_void,
    /// Of allocFlags: compression.
    pub compression: u8,
    /// Of allocFlags: gpuDirectRDMACapable.
    pub rdma: u8,
    /// Of allocFlags: the rest.
    pub rest: [u8; 6],
}

impl AllocationProp {
    /// The GPU; `None` for anything but plain memory of one.
    fn device(&self) -> Option<c_int> {
        (self.kind == 1 && self.location == 1).then_some(self.device)
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// DEVICE is 1.
    pub kind: c_int,
    /// Which one.
    pub device: c_int,
    /// READWRITE is 3.
    pub access: c_int,
}

/// # Safety
/// `context` is NULL or good for writing a pointer.
unsafe fn create(context: *mut CuContext, device: c_int) -> Res<()> {
    let d = driver()?;
    if context.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: the caller's promise.
    unsafe { put(context, d.create(device)? as CuContext) }
}

/// `text` for a static string, NULL and an error where there is none.
///
/// # Safety
/// `to` is NULL or good for writing a pointer.
unsafe fn put_static(to: *mut *const c_char, text: Option<&'static CStr>) -> Res<()> {
    // SAFETY: the caller's promise.
    unsafe { put(to, text.map_or(std::ptr::null(), CStr::as_ptr))? };
    text.map(drop).ok_or(Code::InvalidValue)
}

fn pci_text((domain, bus, device, function): (u32, u32, u32, u32)) -> String {
    format!("{domain:04X}:{bus:02X}:{device:02X}.{function:X}")
}

/// `[domain:]bus:device[.function]`, hexadecimal.
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

/// One end of a copy.
enum End {
    Gpu(std::sync::Arc<Buffer>, u64),
    Host(u64),
}

/// What an address is for a copy of `size` bytes, and how many of them lie there. The next mapping
/// may begin behind one.
fn end(d: &Driver, at: u64, size: u64) -> Res<(End, u64)> {
    match d.buffer(at) {
        Some(b) if !b.on_host() => {
            let offset = at - b.base;
            let room = b.size - offset;
            if size > room && !b.is_mapping() {
                return Err(Code::InvalidValue);
            }
            Ok((End::Gpu(b, offset), room.min(size)))
        }
        _ => Ok((End::Host(at), size)),
    }
}

/// # Safety
/// Host addresses are good for `size` bytes.
unsafe fn copy(dst: u64, src: u64, size: usize) -> Res<()> {
    let d = driver()?;
    d.here()?;
    let len = size as u64;
    let mapped = |at: u64| d.buffer(at).is_some_and(|b| b.is_mapping());
    // Neither runs from a mapping into what is none.
    for at in [dst, src] {
        if mapped(at) && !d.is_mapped(at, len) {
            return Err(Code::InvalidValue);
        }
    }
    let mut done = 0;
    while done < len {
        let ((to, to_room), (from, room)) = (end(d, dst + done, len - done)?, end(d, src + done, len - done)?);
        let n = to_room.min(room);
        // SAFETY: the caller vouches for host addresses.
        unsafe { copy_part(to, from, n)? };
        done += n;
    }
    Ok(())
}

/// # Safety
/// Host addresses are good for `len` bytes.
unsafe fn copy_part(to: End, from: End, len: u64) -> Res<()> {
    let failed = |_| Code::InvalidValue;
    match (to, from) {
        (End::Gpu(to, at), End::Gpu(from, from_at)) => match (to.memory(), from.memory()) {
            (Some((to, to_begin)), Some((from, begin))) => {
                to.copy_from(to_begin + at, from, begin + from_at, len).map_err(failed)
            }
            _ => Err(Code::Unknown),
        },
        (End::Gpu(to, at), End::Host(from)) => match to.memory() {
            // SAFETY: the caller vouches for the host address.
            Some((to, begin)) => unsafe { to.write_from(begin + at, from as *const u8, len).map_err(failed) },
            None => Err(Code::Unknown),
        },
        (End::Host(to), End::Gpu(from, at)) => match from.memory() {
            // SAFETY: the caller vouches for the host address.
            Some((from, begin)) => unsafe { from.read_to(begin + at, to as *mut u8, len).map_err(failed) },
            None => Err(Code::Unknown),
        },
        (End::Host(to), End::Host(from)) => {
            // SAFETY: the caller vouches for both host addresses; they may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len as usize) };
            Ok(())
        }
    }
}

fn fill(dst: u64, value: u32, width: u32, count: usize) -> Res<()> {
    let d = driver()?;
    d.here()?;
    let mut at = dst;
    let mut left = (count as u64).checked_mul(u64::from(width)).ok_or(Code::InvalidValue)?;
    if dst % u64::from(width) != 0 || d.buffer(dst).is_none_or(|b| b.is_mapping() && !d.is_mapped(dst, left)) {
        return Err(Code::InvalidValue);
    }
    while left != 0 {
        let b = d.buffer(at).ok_or(Code::InvalidValue)?;
        let offset = at - b.base;
        let len = if b.is_mapping() { left.min(b.size - offset) } else { left };
        if len > b.size - offset {
            return Err(Code::InvalidValue);
        }
        match (&b.place, b.memory()) {
            (_, Some((memory, begin))) => {
                memory.fill_wide(begin + offset, len, value, width).map_err(|_| Code::InvalidValue)?;
            }
            (Place::Host { pages, .. }, _) if pages.fill(offset, len, &value.to_le_bytes()[..width as usize]) => {}
            _ => return Err(Code::InvalidValue),
        }
        at += len;
        left -= len;
    }
    Ok(())
}

const SYNC_MEMOPS: c_int = 6;

/// The answer to one pointer attribute, in the attribute's own type.
enum Fact {
    Word(u64),
    Int(u32),
    Flag(bool),
}

fn fact(attribute: c_int, b: &Buffer, address: u64) -> Option<Fact> {
    let managed = matches!(b.place, Place::Host { managed: true, .. });
    // Of a mapping the range is the whole reservation, and no context has it.
    let (start, size, context) = match b.place {
        Place::Mapped(_, start, size) => (start, size, 0),
        _ => (b.base, b.size, b.context),
    };
    Some(match attribute {
        1 => Fact::Word(context as u64),                             // CONTEXT
        2 => Fact::Int(if b.on_host() && !managed { 1 } else { 2 }), // MEMORY_TYPE
        3 => Fact::Word(address),                                    // DEVICE_POINTER
        4 if b.on_host() => Fact::Word(address),                     // HOST_POINTER
        SYNC_MEMOPS => Fact::Flag(true),
        7 => Fact::Word(b.id),              // BUFFER_ID
        8 => Fact::Flag(managed),           // IS_MANAGED
        9 => Fact::Int(b.device as u32),    // DEVICE_ORDINAL
        10 => Fact::Flag(false),            // IS_LEGACY_CUDA_IPC_CAPABLE
        11 => Fact::Word(start),            // RANGE_START_ADDR
        12 => Fact::Word(size),             // RANGE_SIZE
        13 => Fact::Flag(true),             // MAPPED
        14 => Fact::Word(0),                // ALLOWED_HANDLE_TYPES
        15 => Fact::Flag(b.rdma_capable()), // IS_GPU_DIRECT_RDMA_CAPABLE
        16 => Fact::Int(3),                 // ACCESS_FLAGS: read and write
        17 => Fact::Word(0),                // MEMPOOL_HANDLE
        _ => return None,
    })
}

/// # Safety
/// `to` is NULL or good for writing the attribute's type.
unsafe fn pointer_attribute(to: *mut c_void, attribute: c_int, b: &Buffer, address: u64) -> Res<()> {
    // SAFETY: the caller's promise, for each type.
    unsafe {
        match fact(attribute, b, address).ok_or(Code::InvalidValue)? {
            Fact::Word(v) => put(to.cast(), v),
            Fact::Int(v) => put(to.cast(), v),
            Fact::Flag(v) => put(to.cast(), c_uint::from(v)),
        }
    }
}

/// The answer of `cuPointerGetAttributes` for an address that is nobody's.
///
/// # Safety
/// `to` is NULL or good for writing the attribute's type.
unsafe fn pointer_zero(to: *mut c_void, attribute: c_int) -> Res<()> {
    // SAFETY: the caller's promise, for each type.
    unsafe {
        match attribute {
            1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => put(to.cast(), 0u64),
            2 | SYNC_MEMOPS | 8 | 10 | 13 | 15 | 16 => put(to.cast(), 0u32),
            9 => put(to.cast(), -2i32),
            _ => Err(Code::InvalidValue),
        }
    }
}

/// A function, from which version of CUDA on its name means it.
type Entry = (&'static str, c_int, *const c_void);

/// SYMBOL_NOT_FOUND and VERSION_NOT_SUFFICIENT of `CUdriverProcAddressQueryResult`.
const NO_SYMBOL: c_int = 1;
const OLD_VERSION: c_int = 2;

macro_rules! entries {
    ($($name:literal $version:literal $function:ident;)*) => {
        [$(($name, $version, $function as *const c_void)),*]
    };
}

fn entries() -> impl Iterator<Item = Entry> {
    entries! {
        "cuInit" 2000 cuInit;
        "cuDriverGetVersion" 2020 cuDriverGetVersion;
        "cuDeviceGetCount" 2000 cuDeviceGetCount;
        "cuDeviceGet" 2000 cuDeviceGet;
        "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute;
        "cuDeviceGetName" 2000 cuDeviceGetName;
        "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId;
        "cuDeviceGetByPCIBusId" 4010 cuDeviceGetByPCIBusId;
        "cuDeviceGetUuid" 9020 cuDeviceGetUuid;
        "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2;
        "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2;
        "cuCtxCreate" 3020 cuCtxCreate_v2;
        "cuCtxCreate" 12050 cuCtxCreate_v4;
        "cuCtxDestroy" 4000 cuCtxDestroy_v2;
        "cuCtxSetCurrent" 4000 cuCtxSetCurrent;
        "cuCtxGetCurrent" 4000 cuCtxGetCurrent;
        "cuCtxGetDevice" 2000 cuCtxGetDevice;
        "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2;
        "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2;
        "cuCtxSynchronize" 2000 cuCtxSynchronize;
        "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain;
        "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2;
        "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2;
        "cuMemGetInfo" 3020 cuMemGetInfo_v2;
        "cuMemAlloc" 3020 cuMemAlloc_v2;
        "cuMemAllocManaged" 6000 cuMemAllocManaged;
        "cuMemFree" 3020 cuMemFree_v2;
        "cuMemAllocHost" 3020 cuMemAllocHost_v2;
        "cuMemHostAlloc" 2020 cuMemHostAlloc;
        "cuMemFreeHost" 2000 cuMemFreeHost;
        "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2;
        "cuMemcpy" 4000 cuMemcpy;
        "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2;
        "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2;
        "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2;
        "cuMemsetD8" 3020 cuMemsetD8_v2;
        "cuMemsetD16" 3020 cuMemsetD16_v2;
        "cuMemsetD32" 3020 cuMemsetD32_v2;
        "cuPointerGetAttribute" 4000 cuPointerGetAttribute;
        "cuPointerGetAttributes" 7000 cuPointerGetAttributes;
        "cuPointerSetAttribute" 6000 cuPointerSetAttribute;
        "cuMemGetAllocationGranularity" 10020 cuMemGetAllocationGranularity;
        "cuMemAddressReserve" 10020 cuMemAddressReserve;
        "cuMemAddressFree" 10020 cuMemAddressFree;
        "cuMemCreate" 10020 cuMemCreate;
        "cuMemRelease" 10020 cuMemRelease;
        "cuMemMap" 10020 cuMemMap;
        "cuMemSetAccess" 10020 cuMemSetAccess;
        "cuMemUnmap" 10020 cuMemUnmap;
        "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange;
        "cuFlushGPUDirectRDMAWrites" 11030 cuFlushGPUDirectRDMAWrites;
        "cuGetErrorName" 6000 cuGetErrorName;
        "cuGetErrorString" 6000 cuGetErrorString;
        "cuGetProcAddress" 11030 cuGetProcAddress;
        "cuGetProcAddress" 12000 cuGetProcAddress_v2;
    }
    .into_iter()
}

/// The newest function of a name that a version knows, or the code and the reason.
fn lookup(name: &str, version: c_int) -> Result<*const c_void, (Code, c_int)> {
    entries().filter(|e| e.0 == name && e.1 <= version).max_by_key(|e| e.1).map(|e| e.2).ok_or_else(|| {
        let known = entries().any(|e| e.0 == name);
        (Code::NotFound, if known { OLD_VERSION } else { NO_SYMBOL })
    })
}

/// # Safety
/// `name` is NULL or a C string, `to` NULL or good for writing a pointer.
unsafe fn proc_address(name: *const c_char, to: *mut *const c_void, version: c_int) -> Result<(), (Code, c_int)> {
    let bad = (Code::InvalidValue, NO_SYMBOL);
    if name.is_null() {
        return Err(bad);
    }
    // SAFETY: not NULL, so a C string, says the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| bad)?;
    let found = lookup(name, version);
    // SAFETY: the caller's promise.
    unsafe { put(to, found.unwrap_or(std::ptr::null())) }.map_err(|_| bad)?;
    found.map(drop)
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
    fn a_name_means_what_its_version_knew() {
        let v2 = cuCtxCreate_v2 as *const c_void;
        let v4 = cuCtxCreate_v4 as *const c_void;
        assert_eq!(lookup("cuCtxCreate", 3020), Ok(v2));
        assert_eq!(lookup("cuCtxCreate", 12040), Ok(v2));
        assert_eq!(lookup("cuCtxCreate", 13000), Ok(v4));
        assert_eq!(lookup("cuCtxCreate", 3010), Err((Code::NotFound, OLD_VERSION)));
        assert_eq!(lookup("cuLaunch", 13000), Err((Code::NotFound, NO_SYMBOL)));
    }

    /// Every function that perftest 25.07 and later asks for, with the version it names.
    #[test]
    fn perftest_finds_all_it_asks_for() {
        for (name, version) in [
            ("cuInit", 2000),
            ("cuDeviceGetCount", 2000),
            ("cuDeviceGet", 2000),
            ("cuDeviceGetAttribute", 2000),
            ("cuDeviceGetName", 2000),
            ("cuCtxCreate", 3020),
            ("cuDevicePrimaryCtxRetain", 7000),
            ("cuCtxSetCurrent", 4000),
            ("cuCtxDestroy", 4000),
            ("cuDeviceGetByPCIBusId", 11030),
            ("cuMemAllocHost", 3020),
            ("cuMemAlloc", 3020),
            ("cuMemFreeHost", 3020),
            ("cuMemFree", 3020),
            ("cuMemcpy", 11030),
            ("cuMemcpyDtoD", 3020),
            ("cuMemGetHandleForAddressRange", 11070),
            ("cuDriverGetVersion", 2020),
            ("cuCtxSynchronize", 11030),
            ("cuMemAllocManaged", 11030),
        ] {
            assert!(lookup(name, version).is_ok(), "{name} {version}");
        }
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
