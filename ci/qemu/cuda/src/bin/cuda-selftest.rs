// SPDX-License-Identifier: GPL-2.0

//! Runs in the machine and tests that the library answers as the real card did
//! (docs/facts.md#cuda). Prints KTAP.

use cuda::*;
use std::ffi::{c_int, c_void, CStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A page of the host that CUDA does not know.
static HOST: [u8; 4096] = [0; 4096];

fn attribute(n: c_int) -> c_int {
    let mut v = -1;
    // SAFETY: a live local.
    assert_eq!(unsafe { cuDeviceGetAttribute(&mut v, n, 0) }, 0, "attribute {n}");
    v
}

fn pointer(n: c_int, at: u64) -> Result<u64, u32> {
    let mut v = 0u64;
    let to: *mut u64 = &mut v;
    // SAFETY: a live local, as large as the largest attribute.
    match unsafe { cuPointerGetAttribute(to.cast(), n, at) } {
        0 => Ok(v),
        rc => Err(rc),
    }
}

fn alloc(size: usize) -> Result<u64, u32> {
    let mut at = 0;
    // SAFETY: a live local.
    match unsafe { cuMemAlloc_v2(&mut at, size) } {
        0 => Ok(at),
        rc => Err(rc),
    }
}

fn free(at: u64) -> u32 {
    // SAFETY: takes no pointer that it follows.
    unsafe { cuMemFree_v2(at) }
}

fn devices() {
    let (mut n, mut d) = (0, 0);
    let mut name = [0; 64];
    let mut uuid = [0; 16];
    // SAFETY: live locals with their lengths.
    unsafe {
        assert_eq!(cuDeviceGetCount(&mut n), 3);
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuDeviceGetCount(&mut n), 0);
        assert!(n >= 1);
        assert_eq!(cuDeviceGet(&mut d, 99), 101);
        assert_eq!(cuDeviceGet(&mut d, 0), 0);
        assert_eq!(cuDeviceGetPCIBusId(name.as_mut_ptr(), 64, 0), 0);
        assert_eq!(cuDeviceGetByPCIBusId(&mut d, name.as_ptr()), 0);
        assert_eq!(d, 0);
        assert_eq!(cuDeviceGetByPCIBusId(&mut d, c"ff:1f.7".as_ptr()), 101);
        assert_eq!(cuDeviceGetName(name.as_mut_ptr(), 7, 0), 0);
        assert_eq!(CStr::from_ptr(name.as_ptr()), c"NVIDIA");
        assert_eq!(cuDeviceGetUuid(&mut uuid, 0), 0);
    }
    assert_ne!(uuid, [0; 16]);
    // GPU_DIRECT_RDMA_SUPPORTED, UNIFIED_ADDRESSING, FLUSH_WRITES_OPTIONS, WRITES_ORDERING.
    assert_eq!([116, 41, 117, 118].map(attribute), [1, 1, 1, 100]);
    // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED.
    assert_eq!([102, 110].map(attribute), [1, 1]);
    // DMA_BUF_SUPPORTED; INTEGRATED, PAGEABLE_MEMORY_ACCESS.
    assert_eq!([124, 18, 88].map(attribute), [1, 0, 0]);
    // SAFETY: a live local.
    assert_eq!(unsafe { cuDeviceGetAttribute(&mut n, 9999, 0) }, 1);
}

fn contexts() {
    let (mut a, mut b, mut now) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(alloc(1), Err(201));
    // SAFETY: live locals; contexts of this library.
    unsafe {
        assert_eq!(cuCtxCreate_v2(&mut a, 8, 7), 101);
        assert_eq!(cuCtxCreate_v2(&mut a, 8, 0), 0);
        let at = alloc(1 << 20).unwrap();
        assert_eq!(cuDevicePrimaryCtxRetain(&mut b, 0), 0);
        assert_eq!(cuCtxSetCurrent(b), 0);
        assert_eq!(cuCtxGetCurrent(&mut now), 0);
        assert_eq!(now, b);
        assert_eq!(pointer(1, at), Ok(a as u64));
        // Without a context, cuPointerGetAttribute still gives the buffer's number, but CUDA gives
        // neither the address range nor a dma-buf.
        assert_eq!(cuCtxSetCurrent(std::ptr::null_mut()), 0);
        assert!(pointer(7, at).is_ok());
        assert_eq!(cuMemGetAddressRange_v2(&mut 0, &mut 0, at), 201);
        assert_eq!(export(at, 4096, 1, 0).err(), Some(201));
        assert_eq!(cuCtxSetCurrent(b), 0);
        // Destroying a context frees its memory.
        assert_eq!(cuCtxDestroy_v2(a), 0);
        assert_eq!(cuCtxDestroy_v2(a), 201);
        assert_eq!(pointer(7, at), Err(1));
        assert_eq!(cuCtxSetCurrent(a), 201);
    }
}

fn buffers() {
    let mut last = 0;
    for size in [1, 65536, 1 << 20, 64 << 20] {
        let at = alloc(size).unwrap();
        assert_eq!(at % (2 << 20), 0);
        let (mut base, mut len) = (0, 0);
        // SAFETY: live locals.
        unsafe { assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut len, at), 0) };
        assert_eq!((base, len), (at, size));
        let id = pointer(7, at).unwrap();
        assert!(last == 0 || id == last + 1, "BUFFER_ID {id} after {last}");
        assert_eq!(pointer(15, at), Ok(1));
        assert_eq!(pointer(2, at).map(|v| v as u32), Ok(2));
        // SAFETY: a live word; addresses that are only looked up.
        unsafe {
            let on: *const u32 = &1;
            assert_eq!(cuPointerSetAttribute(on.cast(), 6, at), 0);
            assert_eq!(cuPointerSetAttribute(on.cast(), 6, HOST.as_ptr() as u64), 1);
        }
        assert_eq!(free(at), 0);
        assert_eq!(free(at), 1);
        assert_eq!(pointer(7, at), Err(1));
        // The same address comes back, with a new number.
        assert_eq!(alloc(size), Ok(at));
        last = pointer(7, at).unwrap();
        assert_eq!(last, id + 1);
        assert_eq!(free(at), 0);
    }
    assert_eq!(pointer(7, HOST.as_ptr() as u64), Err(1));
    assert_eq!(alloc(0), Err(1));
    assert_eq!(alloc(1 << 45), Err(2));
}

/// Exports a range as dma-buf, or returns the error code.
fn export(at: u64, size: usize, kind: c_int, flags: u64) -> Result<OwnedFd, u32> {
    let mut fd = -1;
    let to: *mut c_int = &mut fd;
    // SAFETY: a live local.
    match unsafe { cuMemGetHandleForAddressRange(to.cast(), at, size, kind, flags) } {
        // SAFETY: the call made it for us.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        rc => Err(rc),
    }
}

fn dma_buf() {
    const PAGE: usize = 4096;
    const BACKING: usize = 2 << 20;
    let at = alloc(BACKING + 1).unwrap();
    let refused = |at, size, kind, flags| export(at, size, kind, flags).err();
    // An export must consist of whole pages, be of the one kind, and have no flags.
    assert_eq!(refused(at, PAGE - 1, 1, 0), Some(1));
    assert_eq!(refused(at + 1, PAGE, 1, 0), Some(1));
    assert_eq!(refused(at, 0, 1, 0), Some(1));
    assert_eq!(refused(at, PAGE, 2, 0), Some(1));
    assert_eq!(refused(at, PAGE, 1, 1), Some(801));
    assert_eq!(refused(HOST.as_ptr() as u64, PAGE, 1, 0), Some(1));
    assert_eq!(refused(at, usize::MAX - PAGE + 1, 1, 0), Some(1));
    // An export may cover a part of a buffer, or reach up to the end of the memory behind it, but
    // no further.
    for (offset, size) in [(0, PAGE), (PAGE, BACKING), (0, 2 * BACKING)] {
        let fd = export(at + offset as u64, size, 1, 0).unwrap();
        let mut file = std::fs::File::from(fd);
        assert_eq!(std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap(), size as u64);
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap();
        // 550 has this name; 580 on a real card says nv_dmabuf.
        assert!(info.contains("exp_name:\tnvidia\n"), "{info}");
        // SAFETY: asks for the flags of a live descriptor.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
    }
    assert_eq!(refused(at, 2 * BACKING + PAGE, 1, 0), Some(1));
    assert_eq!(free(at), 0);
    assert_eq!(refused(at, PAGE, 1, 0), Some(1));
}

/// Returns the free video memory, in KiB.
fn room() -> usize {
    let (mut free, mut all) = (0, 0);
    // SAFETY: live locals.
    assert_eq!(unsafe { cuMemGetInfo_v2(&mut free, &mut all) }, 0);
    free >> 10
}

/// Tests that small allocations share a block of 2 MiB.
fn neighbours() {
    const PAGE: usize = 4096;
    const BLOCK: u64 = 2 << 20;
    let before = room();
    let sizes = [65536, 4096, 1, 100_000];
    let [a, b, c, d] = sizes.map(|size| alloc(size).unwrap());
    assert_eq!([a % BLOCK, b - a, c - b, d - c], [0, 65536, 4096, 512]);
    assert_eq!(before - room(), 2048);
    // Each allocation is a buffer of its own, and the bytes after it belong to nobody.
    for (at, size) in [a, b, c, d].into_iter().zip(sizes) {
        let (mut base, mut len) = (0, 0);
        // SAFETY: live locals.
        unsafe { assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut len, at), 0) };
        assert_eq!((base, len), (at, size));
    }
    assert_eq!(pointer(7, b).map(|id| id + 1), pointer(7, c));
    assert_eq!(pointer(7, c + 1), Err(1));
    // Bytes written to one buffer stay in it.
    let mut back = [0u8; 4096];
    // SAFETY: live buffers of the lengths that are copied.
    unsafe {
        assert_eq!(cuMemsetD8_v2(b, 5, 4096), 0);
        assert_eq!(cuMemsetD8_v2(a, 7, 65536), 0);
        assert_eq!(cuMemcpyDtoD_v2(c, a, 1), 0);
        assert_eq!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), b, 4096), 0);
        assert_eq!(back, [5; 4096]);
        assert_eq!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), c, 1), 0);
        assert_eq!(back[0], 7);
        assert_eq!(cuMemsetD8_v2(c, 5, 2), 1);
    }
    // A dma-buf must begin in a page of which some buffer has a byte, and may go on to the block's
    // end.
    assert!(export(d & !4095, PAGE, 1, 0).is_ok());
    assert!(export(a, BLOCK as usize, 1, 0).is_ok());
    assert_eq!(export(a, BLOCK as usize + PAGE, 1, 0).err(), Some(1));
    assert_eq!(export(a + BLOCK / 2, PAGE, 1, 0).err(), Some(1));
    // A free returns no memory while the block has another user, and the next allocation gets the
    // same address.
    assert_eq!(free(b), 0);
    assert_eq!(pointer(7, b), Err(1));
    assert_eq!(export(b, PAGE, 1, 0).err(), Some(1));
    assert!(export(a, 65536 + 2 * PAGE, 1, 0).is_ok());
    assert_eq!(before - room(), 2048);
    assert_eq!(alloc(4096), Ok(b));
    assert_eq!([a, b, c].map(free), [0; 3]);
    assert_eq!(before - room(), 2048);
    assert_eq!(free(d), 0);
    assert_eq!(before, room());
}

fn copies() {
    let (a, b) = (alloc(300_000).unwrap(), alloc(300_000).unwrap());
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 31 + i / 65521) as u8).collect();
    let mut back = vec![0u8; 300_000];
    let mut pinned = std::ptr::null_mut();
    // SAFETY: live buffers of the lengths that are copied.
    unsafe {
        assert_eq!(cuMemcpyHtoD_v2(a, bytes.as_ptr().cast(), 300_000), 0);
        assert_eq!(cuMemcpyDtoD_v2(b, a + 1000, 299_000), 0);
        assert_eq!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), b, 299_000), 0);
        assert_eq!(back[..299_000], bytes[1000..]);
        assert_eq!(cuMemcpyHtoD_v2(a + 1, bytes.as_ptr().cast(), 300_000), 1);
        assert_eq!(cuMemsetD32_v2(a, 0x0102_0304, 100), 0);
        assert_eq!(cuMemAllocHost_v2(&mut pinned, 4096), 0);
        assert_eq!(cuMemcpy(pinned as u64, a, 400), 0);
        assert_eq!(*pinned.cast::<u32>().add(99), 0x0102_0304);
        assert_eq!(free(pinned as u64), 1);
        assert_eq!(cuMemFreeHost(pinned), 0);
        let mut managed = 0;
        assert_eq!(cuMemAllocManaged(&mut managed, 4096, 1), 0);
        assert_eq!(cuMemsetD8_v2(managed, 7, 4096), 0);
        assert_eq!(*(managed as *const u8).add(4095), 7);
        assert_eq!(free(managed), 0);
    }
    assert_eq!((free(a), free(b)), (0, 0));
}

/// Tests a reservation with three handles, the last of which no NIC may use.
fn mappings() {
    const SEGMENT: usize = 2 << 20;
    let prop = |rdma| AllocationProp::plain(0, 0, rdma);
    let access = AccessDesc::full(0);
    let (mut at, mut granularity, mut handles) = (0, 0, [0u64; 3]);
    // SAFETY: live locals.
    unsafe {
        assert_eq!(cuMemGetAllocationGranularity(&mut granularity, &prop(true), 0), 0);
        assert_eq!(granularity, SEGMENT);
        assert_eq!(cuMemAddressReserve(&mut at, 4 * SEGMENT, 0, 0, 0), 0);
        assert_eq!(cuMemCreate(&mut handles[0], SEGMENT + 1, &prop(true), 0), 1);
        for (i, handle) in handles.iter_mut().enumerate() {
            assert_eq!(cuMemCreate(handle, SEGMENT, &prop(i < 2), 0), 0);
            assert_eq!(cuMemMap(at + (i * SEGMENT) as u64, SEGMENT, 0, *handle, 0), 0);
            // The mapping keeps the memory alive.
            assert_eq!(cuMemRelease(*handle), 0);
        }
        assert_eq!(cuMemMap(at, SEGMENT, 0, handles[0], 0), 1);
        assert_eq!(cuMemSetAccess(at, 4 * SEGMENT, &access, 1), 1);
        assert_eq!(cuMemSetAccess(at, 3 * SEGMENT, &access, 1), 0);
    }
    let segment = |i: usize| at + (i * SEGMENT) as u64;
    // Each mapping has an id of its own, and its address range is one segment.
    let ids: Vec<u64> = (0..3).map(|i| pointer(7, segment(i) + 5).unwrap()).collect();
    assert_eq!((ids[1], ids[2]), (ids[0] + 1, ids[0] + 2));
    assert_eq!([0, 1, 2].map(|i| pointer(15, segment(i)).map(|v| v as u32)), [Ok(1), Ok(1), Ok(0)]);
    // By the attributes, however, the range is the whole reservation, and it belongs to no context.
    assert_eq!([1, 11, 12].map(|fact| pointer(fact, segment(1))), [0, at, 4 * SEGMENT as u64].map(Ok));
    let (mut base, mut len) = (0, 0);
    let bytes: Vec<u8> = (0..3 * SEGMENT).map(|i| (i * 7 + i / 65521) as u8).collect();
    let mut back = vec![0u8; 3 * SEGMENT];
    // SAFETY: live locals and buffers of the lengths that are copied.
    unsafe {
        assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut len, segment(1) + 9), 0);
        assert_eq!((base, len), (segment(1), SEGMENT));
        let on: *const u32 = &1;
        assert_eq!(cuPointerSetAttribute(on.cast(), 6, at), 801);
        assert_eq!(free(at), 1);
        // A copy over all mappings works; a copy into the hole does not.
        assert_eq!(cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), 3 * SEGMENT), 0);
        assert_eq!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), at, 3 * SEGMENT), 0);
        assert_eq!(back, bytes);
        assert_eq!(cuMemcpyHtoD_v2(at + 1, bytes.as_ptr().cast(), 3 * SEGMENT), 1);
        assert_eq!(cuMemsetD8_v2(segment(1) - 1, 9, 2), 0);
        assert_eq!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), segment(1) - 2, 4), 0);
        assert_eq!(back[1..3], [9, 9]);
        // One dma-buf covers all mappings, whether or not a NIC may use them; none covers the hole.
        assert!(export(at + 4096, 3 * SEGMENT - 4096, 1, 0).is_ok());
        assert_eq!(export(at, 3 * SEGMENT + 4096, 1, 0).err(), Some(1));
        // An unmapped segment belongs to nobody. Another handle mapped there gets a new number.
        assert_eq!(cuMemUnmap(segment(1), SEGMENT / 2), 1);
        assert_eq!(cuMemUnmap(segment(1), SEGMENT), 0);
        assert_eq!(pointer(7, segment(1)), Err(1));
        assert_eq!(export(at, 3 * SEGMENT, 1, 0).err(), Some(1));
        assert_eq!(cuMemAddressFree(at, 4 * SEGMENT), 1);
        let mut other = 0;
        assert_eq!(cuMemCreate(&mut other, SEGMENT, &prop(true), 0), 0);
        assert_eq!(cuMemMap(segment(1), SEGMENT, 0, other, 0), 0);
        assert_eq!(cuMemRelease(other), 0);
        assert_eq!(pointer(7, segment(1)), Ok(ids[2] + 1));
        assert_eq!(cuMemUnmap(at, 3 * SEGMENT), 0);
        assert_eq!(cuMemAddressFree(at, 4 * SEGMENT), 0);
    }
}

/// Tests what programs merely ask for: handles for other processes, and registration of their own
/// memory.
fn handles() {
    let a = alloc(300_000).unwrap();
    let mut prop = AllocationProp::plain(0, 0, true);
    let host = HOST.as_ptr() as *mut c_void;
    let (mut handle, mut other, mut device, mut ipc, mut fd) = (0, 0, 0, [0u64; 8], -1);
    // SAFETY: live locals, as large as what is written there; a page of this program's own.
    unsafe {
        // Memory can be made with a file descriptor as its kind of handle, but not with a handle
        // for other machines.
        for (kind, code) in [(1, 0), (2, 1), (4, 1), (8, 800), (0, 0)] {
            prop.handle_types = kind;
            assert_eq!(cuMemCreate(&mut handle, 2 << 20, &prop, 0), code, "handle type {kind}");
            assert!(code != 0 || kind == 0 || cuMemRelease(handle) == 0);
        }
        let to: *mut c_int = &mut fd;
        assert_eq!(cuMemExportToShareableHandle(to.cast(), handle, 1, 0), 1);
        assert_eq!(cuMemGetAllocationPropertiesFromHandle(&mut prop, handle), 0);
        assert_eq!((prop.device(), prop.handle_types, prop.rdma), (Some(0), 0, 1));
        // Mapped memory gives one more handle; cuMemAlloc's memory has none.
        let mut at = 0;
        assert_eq!(cuMemAddressReserve(&mut at, 2 << 20, 0, 0, 0), 0);
        assert_eq!(cuMemMap(at, 2 << 20, 0, handle, 0), 0);
        assert_eq!(cuMemRetainAllocationHandle(&mut other, (at + 4096) as *mut c_void), 0);
        assert_ne!(handle, other);
        assert_eq!((cuMemRelease(other), cuMemRelease(handle)), (0, 0));
        assert_eq!(cuMemRetainAllocationHandle(&mut other, a as *mut c_void), 1);
        assert_eq!(cuMemRetainAllocationHandle(&mut other, host), 1);
        // Only cuMemAlloc's memory has a handle for another process, and this process cannot open
        // it.
        let ipc: *mut IpcHandle = ipc.as_mut_ptr().cast();
        assert_eq!(cuIpcGetMemHandle(ipc, at), 1);
        assert_eq!(cuIpcGetMemHandle(ipc, host as u64), 1);
        assert_eq!(cuIpcGetMemHandle(ipc, a + 4096), 0);
        assert_eq!([10, 14].map(|fact| pointer(fact, a)), [Ok(1), Ok(0)]);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut at.clone(), *ipc, 1), 201);
        assert_eq!(cuIpcOpenMemHandle_v2(&mut at.clone(), *ipc, 0), 1);
        assert_eq!(cuIpcCloseMemHandle(a), 1);
        assert_eq!((cuMemUnmap(at, 2 << 20), cuMemAddressFree(at, 2 << 20)), (0, 0));
        // Memory of the program itself can be registered once, and then counts as memory of the
        // host.
        assert_eq!(cuMemHostRegister_v2(host, 4096, 1), 0);
        assert_eq!(cuMemHostRegister_v2(host, 4096, 1), 712);
        assert_eq!(pointer(2, host as u64).map(|v| v as u32), Ok(1));
        assert!(pointer(7, host as u64).is_ok());
        assert_eq!(cuMemHostGetDevicePointer_v2(&mut device, host, 0), 0);
        assert_eq!(device, host as u64);
        assert_eq!((free(device), cuMemFreeHost(host)), (1, 1));
        assert_eq!((cuMemHostUnregister(host), cuMemHostUnregister(host)), (0, 713));
        assert_eq!(cuMemHostGetDevicePointer_v2(&mut device, host, 0), 1);
        assert_eq!(cuMemHostRegister_v2(0x1000 as *mut c_void, 4096, 0), 1);
    }
    assert_eq!(free(a), 0);
}

fn streams() {
    const LEN: usize = 32 << 20;
    let (a, b) = (alloc(LEN).unwrap(), alloc(LEN).unwrap());
    let (mut stream, mut event, mut other) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    let mut back = [0u8; 4096];
    // SAFETY: live locals; buffers of the lengths that are copied; streams and events of this library.
    unsafe {
        assert_eq!(cuStreamCreate(&mut stream, 7), 1);
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        assert_eq!((cuEventCreate(&mut event, 99), cuEventCreate(&mut event, 2)), (1, 0));
        // An event that was never recorded counts as done.
        assert_eq!((cuStreamQuery(stream), cuEventQuery(event), cuEventSynchronize(event)), (0, 0, 0));
        assert_eq!(cuMemsetD8_v2(b, 9, LEN), 0);
        // The copy is not done when the call returns.
        assert_eq!(cuMemcpyAsync(a, b, LEN, stream), 0);
        assert_eq!(cuEventRecord(event, stream), 0);
        assert_eq!((cuEventQuery(event), cuStreamQuery(stream)), (600, 600));
        assert_eq!((cuStreamSynchronize(stream), cuEventQuery(event)), (0, 0));
        assert_eq!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), a + LEN as u64 - 4096, 4096), 0);
        assert_eq!(back, [9; 4096]);
        // A copy to memory of the host that CUDA does not know is done when the call returns.
        assert_eq!(cuMemcpyAsync(back.as_mut_ptr() as u64, a, 4096, stream), 0);
        assert_eq!(back, [9; 4096]);
        assert_eq!(cuMemcpyAsync(0, a, 4096, stream), 1);
        assert_eq!(cuMemcpyAsync(a + LEN as u64 - 10, b, 4096, stream), 1);
        assert_eq!(cuMemcpyDtoDAsync_v2(a, back.as_ptr() as u64, 4096, stream), 1);
        assert_eq!(cuMemcpyAsync(a, b, 0, stream), 0);
        assert_eq!([0, 1, 2].map(|always| cuStreamSynchronize(always as *mut c_void)), [0; 3]);
        // An event belongs to its context.
        assert_eq!(cuCtxCreate_v2(&mut other, 0, 0), 0);
        assert_eq!(cuEventRecord(event, std::ptr::null_mut()), 400);
        assert_eq!(cuCtxPopCurrent_v2(&mut other), 0);
        assert_eq!(cuCtxDestroy_v2(other), 0);
        assert_eq!(cuStreamAddCallback(stream, None, std::ptr::null_mut(), 0), 1);
        assert_eq!((cuEventDestroy_v2(event), cuEventQuery(event)), (0, 400));
        assert_eq!((cuStreamDestroy_v2(stream), cuStreamDestroy_v2(stream)), (0, 400));
    }
    // A free waits for the streams whose work uses the memory.
    assert_eq!((free(a), free(b)), (0, 0));
}

fn fork() {
    // SAFETY: the only thread; the child ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: no pointer is followed before the refusal.
        unsafe { libc::_exit(i32::from(cuCtxSynchronize() != 3 || cuInit(0) != 3)) };
    }
    let mut status = -1;
    // SAFETY: waiting for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
}

fn main() {
    let cases: &[(&str, fn())] = &[
        ("devices", devices),
        ("contexts", contexts),
        ("buffers", buffers),
        ("dma_buf", dma_buf),
        ("neighbours", neighbours),
        ("copies", copies),
        ("mappings", mappings),
        ("handles", handles),
        ("fork", fork),
        // This test starts threads.
        ("streams", streams),
    ];
    println!("KTAP version 1\n1..{}", cases.len());
    let mut bad = 0;
    for (i, (name, case)) in cases.iter().enumerate() {
        let ok = std::panic::catch_unwind(case).is_ok();
        bad += i32::from(!ok);
        println!("{} {} {name}", if ok { "ok" } else { "not ok" }, i + 1);
    }
    std::process::exit(i32::from(bad != 0));
}
