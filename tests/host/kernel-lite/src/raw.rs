// SPDX-License-Identifier: GPL-2.0

//! The foreign ABIs as bindgen made them. They are here a second time, because those of the module
//! are private.

#![allow(dead_code, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::all)]

include!("../../../../bindings/peer_mem.rs");
include!("../../../../bindings/nv_p2p.rs");
include!("../../../../bindings/shim.rs");
