// SPDX-License-Identifier: GPL-2.0
//! libibverbs as its header declares it. peermemctl opens the library at run time, and takes the
//! types of its functions from here. The guest turns the feature `link` on and calls them: a call
//! without that feature fails when the program is linked.
//!
//! The crate sideway does not serve here: as `user/gpumr/src/ibverbs.rs` says, what it is made of opens libibverbs in
//! a constructor and defines its functions. peermemctl starts where the library is missing, and the guest calls the
//! functions of whatever library stands first, to test the preload library.

use libc::c_int;
pub use sys::*;

#[path = "../bindings/verbs.rs"]
#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn
)]
#[rustfmt::skip]
mod sys;

/// The attributes that take a queue pair of a reliable connection to the state INIT.
pub const TO_INIT: c_int = (ibv_qp_attr_mask_IBV_QP_STATE
    | ibv_qp_attr_mask_IBV_QP_PKEY_INDEX
    | ibv_qp_attr_mask_IBV_QP_PORT
    | ibv_qp_attr_mask_IBV_QP_ACCESS_FLAGS) as c_int;
/// The attributes that take it to the state RTR, in which it receives.
pub const TO_RTR: c_int = (ibv_qp_attr_mask_IBV_QP_STATE
    | ibv_qp_attr_mask_IBV_QP_AV
    | ibv_qp_attr_mask_IBV_QP_PATH_MTU
    | ibv_qp_attr_mask_IBV_QP_DEST_QPN
    | ibv_qp_attr_mask_IBV_QP_RQ_PSN
    | ibv_qp_attr_mask_IBV_QP_MAX_DEST_RD_ATOMIC
    | ibv_qp_attr_mask_IBV_QP_MIN_RNR_TIMER) as c_int;
/// The attributes that take it to the state RTS, in which it sends, too.
pub const TO_RTS: c_int = (ibv_qp_attr_mask_IBV_QP_STATE
    | ibv_qp_attr_mask_IBV_QP_TIMEOUT
    | ibv_qp_attr_mask_IBV_QP_RETRY_CNT
    | ibv_qp_attr_mask_IBV_QP_RNR_RETRY
    | ibv_qp_attr_mask_IBV_QP_SQ_PSN
    | ibv_qp_attr_mask_IBV_QP_MAX_QP_RD_ATOMIC) as c_int;

/// The layouts of the library's ABI, which are the same since its version 1.1 on each architecture with
/// 64 bits: peermemctl meets libraries of any version.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(ibv_context, ops.poll_cq) == 96 && offset_of!(ibv_context, ops.post_send) == 208);
    assert!(offset_of!(ibv_context, ops.post_recv) == 216);
    assert!(offset_of!(ibv_mr, lkey) == 36 && offset_of!(ibv_mr, rkey) == 40 && offset_of!(ibv_qp, qp_num) == 52);
    assert!(size_of::<ibv_qp_init_attr>() == 64 && size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, pkey_index) == 120);
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_recv_wr>() == 32 && size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_device_attr>() == 232 && offset_of!(ibv_device_attr, atomic_cap) == 164);
};

#[cfg(feature = "link")]
impl std::fmt::Debug for ibv_wc_status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: The library returns a static string for every number.
        let words = unsafe { std::ffi::CStr::from_ptr(ibv_wc_status_str(*self)) };
        write!(f, "{} ({})", words.to_string_lossy(), self.0)
    }
}
