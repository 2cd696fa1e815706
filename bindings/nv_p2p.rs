// SPDX-License-Identifier: GPL-2.0
// Made from bindings/nv_p2p.h by `make bindings`.

pub const NVIDIA_P2P_PAGE_SIZE_4KB: u32 = 0;
pub const NVIDIA_P2P_PAGE_SIZE_64KB: u32 = 1;
pub const NVIDIA_P2P_PAGE_SIZE_128KB: u32 = 2;
pub const NVIDIA_P2P_PAGE_TABLE_MAJOR_V1: u32 = 1;
pub const NVIDIA_P2P_PAGE_TABLE_MAJOR_V2: u32 = 2;
pub const NVIDIA_P2P_PAGE_TABLE_FLAGS_CPU_CACHEABLE: u32 = 1;
pub const NVIDIA_P2P_DMA_MAPPING_MAJOR: u32 = 2;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct pci_dev {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct nvidia_p2p_page {
    pub physical_address: u64,
    pub registers: [u32; 6usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct nvidia_p2p_page_table {
    pub version: u32,
    pub page_size: u32,
    pub pages: *mut *mut nvidia_p2p_page,
    pub entries: u32,
    pub gpu_uuid: *mut u8,
    pub flags: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct nvidia_p2p_dma_mapping {
    pub version: u32,
    pub page_size_type: u32,
    pub entries: u32,
    pub dma_addresses: *mut u64,
    pub private_data: *mut ::kernel::ffi::c_void,
    pub pci_dev: *mut pci_dev,
}
