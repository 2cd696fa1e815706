//! The foreign ABIs as bindgen made them, once more: those of the module are its own.

#![allow(dead_code, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::all)]

include!("../../../../bindings/peer_mem.rs");
include!("../../../../bindings/nv_p2p.rs");

/// As in shim.h.
#[repr(C)]
pub struct nvpm_process {
    pub start_ns: u64,
    pub tgid: u32,
}

/// As in shim.h.
#[repr(C)]
pub struct nvpm_bar {
    pub start: u64,
    pub last: u64,
    pub bus_offset: u64,
    pub device: u64,
}

/// As in shim.h.
#[repr(C)]
pub struct nvpm_traced {
    _unused: [u8; 0],
}
