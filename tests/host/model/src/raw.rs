// SPDX-License-Identifier: GPL-2.0

//! The ABIs of the two neighbours, from the same bindings as the module.

#![allow(dead_code, non_camel_case_types, clippy::all)]

include!("../../../../bindings/peer_mem.rs");
include!("../../../../bindings/nv_p2p.rs");
include!("../../../../bindings/shim.rs");
