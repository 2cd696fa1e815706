// SPDX-License-Identifier: GPL-2.0
//! libibverbs as its header declares it. peermemctl opens the library at run time, and takes the
//! types of its functions from here. The guest turns the feature `link` on and calls them: a call
//! without that feature fails when the program is linked.

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

#[cfg(feature = "link")]
impl std::fmt::Debug for ibv_wc_status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: The library returns a static string for every number.
        let words = unsafe { std::ffi::CStr::from_ptr(ibv_wc_status_str(*self)) };
        write!(f, "{} ({})", words.to_string_lossy(), self.0)
    }
}
