// SPDX-License-Identifier: GPL-2.0

//! Device attributes: what the real card answers (docs/facts.md#cuda), and 0 where this library
//! lacks what the attribute promises.

use nvlab::Info;

/// `cuDeviceGetAttribute`. `None`: not modelled, and refused rather than answered wrongly.
pub fn device(attribute: i32, info: &Info) -> Option<i32> {
    let (domain, bus, device, _) = info.pci;
    Some(match attribute {
        1 => 1024,                         // MAX_THREADS_PER_BLOCK
        10 => 32,                          // WARP_SIZE
        16 => 132,                         // MULTIPROCESSOR_COUNT
        18 => 0,                           // INTEGRATED
        19 => 1,                           // CAN_MAP_HOST_MEMORY
        20 => 0,                           // COMPUTE_MODE
        33 => i32::try_from(bus).ok()?,    // PCI_BUS_ID
        34 => i32::try_from(device).ok()?, // PCI_DEVICE_ID
        41 => 1,                           // UNIFIED_ADDRESSING
        50 => i32::try_from(domain).ok()?, // PCI_DOMAIN_ID
        75 => 9,                           // COMPUTE_CAPABILITY_MAJOR
        76 => 0,                           // COMPUTE_CAPABILITY_MINOR
        83 => 1,                           // MANAGED_MEMORY
        88 => 0,                           // PAGEABLE_MEMORY_ACCESS
        102 => 1,                          // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        110 => 1,                          // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        116 => 1,                          // GPU_DIRECT_RDMA_SUPPORTED
        117 => 1,                          // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: HOST
        118 => 100,                        // GPU_DIRECT_RDMA_WRITES_ORDERING: OWNER
        124 => i32::from(info.dma_buf),    // DMA_BUF_SUPPORTED
        _ => return None,
    })
}
