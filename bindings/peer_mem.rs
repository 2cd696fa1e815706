// SPDX-License-Identifier: GPL-2.0
// Made from bindings/peer_mem.h by `make bindings`.

pub const IB_PEER_MEMORY_NAME_MAX: u32 = 64;
pub const IB_PEER_MEMORY_VER_MAX: u32 = 16;
pub const PEER_MEM_INVALIDATE_UNMAPS: u32 = 1;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct device {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct sg_table {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct peer_memory_client {
    pub name: [::kernel::ffi::c_char; 64usize],
    pub version: [::kernel::ffi::c_char; 16usize],
    pub acquire: ::core::option::Option<
        unsafe extern "C" fn(
            addr: ::kernel::ffi::c_ulong,
            size: usize,
            private_data: *mut ::kernel::ffi::c_void,
            peer_name: *mut ::kernel::ffi::c_char,
            client_context: *mut *mut ::kernel::ffi::c_void,
        ) -> ::kernel::ffi::c_int,
    >,
    pub get_pages: ::core::option::Option<
        unsafe extern "C" fn(
            addr: ::kernel::ffi::c_ulong,
            size: usize,
            write: ::kernel::ffi::c_int,
            force: ::kernel::ffi::c_int,
            sg_head: *mut sg_table,
            client_context: *mut ::kernel::ffi::c_void,
            core_context: u64,
        ) -> ::kernel::ffi::c_int,
    >,
    pub dma_map: ::core::option::Option<
        unsafe extern "C" fn(
            sg_head: *mut sg_table,
            client_context: *mut ::kernel::ffi::c_void,
            dma_device: *mut device,
            dmasync: ::kernel::ffi::c_int,
            nmap: *mut ::kernel::ffi::c_int,
        ) -> ::kernel::ffi::c_int,
    >,
    pub dma_unmap: ::core::option::Option<
        unsafe extern "C" fn(
            sg_head: *mut sg_table,
            client_context: *mut ::kernel::ffi::c_void,
            dma_device: *mut device,
        ) -> ::kernel::ffi::c_int,
    >,
    pub put_pages: ::core::option::Option<
        unsafe extern "C" fn(
            sg_head: *mut sg_table,
            client_context: *mut ::kernel::ffi::c_void,
        ),
    >,
    pub get_page_size: ::core::option::Option<
        unsafe extern "C" fn(
            client_context: *mut ::kernel::ffi::c_void,
        ) -> ::kernel::ffi::c_ulong,
    >,
    pub release: ::core::option::Option<
        unsafe extern "C" fn(client_context: *mut ::kernel::ffi::c_void),
    >,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct peer_memory_client_ex {
    pub client: peer_memory_client,
    pub ex_size: usize,
    pub flags: u32,
}
pub type invalidate_peer_memory = ::core::option::Option<
    unsafe extern "C" fn(
        reg_handle: *mut ::kernel::ffi::c_void,
        core_context: u64,
    ) -> ::kernel::ffi::c_int,
>;
