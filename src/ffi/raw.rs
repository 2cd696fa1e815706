// SPDX-License-Identifier: GPL-2.0

//! The foreign ABIs as bindgen made them, and the functions of `shim.h`. Nothing else.

#![allow(
    clippy::all,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub
)]

include!("../../bindings/peer_mem.rs");
include!("../../bindings/nv_p2p.rs");
include!("../../bindings/shim.rs");
