// SPDX-License-Identifier: GPL-2.0

//! Device attributes. They have the real card's values (docs/facts.md#cuda), except for 0 where
//! this library lacks what the attribute promises.

use nvlab::Info;

/// Answers `cuDeviceGetAttribute`. `None` means that the attribute is not modelled; the call is
/// then refused rather than answered wrongly.
pub fn device(attribute: i32, info: &Info) -> Option<i32> {
    let (domain, bus, device, _) = info.pci;
    Some(match attribute {
        1 => 1024,                         // MAX_THREADS_PER_BLOCK
        8 => 49152,                        // MAX_SHARED_MEMORY_PER_BLOCK
        13 => 1_980_000,                   // CLOCK_RATE
        10 => 32,                          // WARP_SIZE
        16 => 132,                         // MULTIPROCESSOR_COUNT
        18 => 0,                           // INTEGRATED
        19 => 1,                           // CAN_MAP_HOST_MEMORY
        20 => 0,                           // COMPUTE_MODE
        31 => 1,                           // CONCURRENT_KERNELS
        33 => i32::try_from(bus).ok()?,    // PCI_BUS_ID
        34 => i32::try_from(device).ok()?, // PCI_DEVICE_ID
        41 => 1,                           // UNIFIED_ADDRESSING
        50 => i32::try_from(domain).ok()?, // PCI_DOMAIN_ID
        75 => 9,                           // COMPUTE_CAPABILITY_MAJOR
        76 => 0,                           // COMPUTE_CAPABILITY_MINOR
        78 => 1,                           // STREAM_PRIORITIES_SUPPORTED
        83 => 1,                           // MANAGED_MEMORY
        84 => 0,                           // MULTI_GPU_BOARD
        86 => 0,                           // HOST_NATIVE_ATOMIC_SUPPORTED
        88 => 0,                           // PAGEABLE_MEMORY_ACCESS
        89 => 1,                           // CONCURRENT_MANAGED_ACCESS
        100 => 0,                          // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
        101 => 0,                          // DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
        102 => 1,                          // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        103 => 0,                          // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        110 => 1,                          // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        115 => 0,                          // MEMORY_POOLS_SUPPORTED
        116 => 1,                          // GPU_DIRECT_RDMA_SUPPORTED
        117 => 1,                          // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: HOST
        118 => 100,                        // GPU_DIRECT_RDMA_WRITES_ORDERING: OWNER
        119 => 0,                          // MEMPOOL_SUPPORTED_HANDLE_TYPES
        124 => i32::from(info.dma_buf),    // DMA_BUF_SUPPORTED
        128 => 0,                          // HANDLE_TYPE_FABRIC_SUPPORTED
        _ => return None,
    })
}
