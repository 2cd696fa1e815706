// SPDX-License-Identifier: GPL-2.0
// Made from verbs.h by `make bindings`.
use libc::{pthread_cond_t, pthread_mutex_t};

#[repr(C)]
#[derive(Default)]
pub struct __IncompleteArrayField<T>(::core::marker::PhantomData<T>, [T; 0]);
impl<T> __IncompleteArrayField<T> {
    #[inline]
    pub const fn new() -> Self {
        __IncompleteArrayField(::core::marker::PhantomData, [])
    }
    #[inline]
    pub fn as_ptr(&self) -> *const T {
        self as *const _ as *const T
    }
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self as *mut _ as *mut T
    }
    #[inline]
    pub unsafe fn as_slice(&self, len: usize) -> &[T] {
        ::core::slice::from_raw_parts(self.as_ptr(), len)
    }
    #[inline]
    pub unsafe fn as_mut_slice(&mut self, len: usize) -> &mut [T] {
        ::core::slice::from_raw_parts_mut(self.as_mut_ptr(), len)
    }
}
impl<T> ::core::fmt::Debug for __IncompleteArrayField<T> {
    fn fmt(&self, fmt: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        fmt.write_str("__IncompleteArrayField")
    }
}
pub type __u16 = libc::c_ushort;
pub type __u32 = libc::c_uint;
pub type __u64 = libc::c_ulonglong;
pub type __be32 = __u32;
pub type __be64 = __u64;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_GET_CONTEXT: ib_uverbs_write_cmds = 0;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_QUERY_DEVICE: ib_uverbs_write_cmds = 1;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_QUERY_PORT: ib_uverbs_write_cmds = 2;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_ALLOC_PD: ib_uverbs_write_cmds = 3;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DEALLOC_PD: ib_uverbs_write_cmds = 4;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CREATE_AH: ib_uverbs_write_cmds = 5;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_MODIFY_AH: ib_uverbs_write_cmds = 6;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_QUERY_AH: ib_uverbs_write_cmds = 7;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DESTROY_AH: ib_uverbs_write_cmds = 8;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REG_MR: ib_uverbs_write_cmds = 9;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REG_SMR: ib_uverbs_write_cmds = 10;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REREG_MR: ib_uverbs_write_cmds = 11;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_QUERY_MR: ib_uverbs_write_cmds = 12;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DEREG_MR: ib_uverbs_write_cmds = 13;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_ALLOC_MW: ib_uverbs_write_cmds = 14;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_BIND_MW: ib_uverbs_write_cmds = 15;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DEALLOC_MW: ib_uverbs_write_cmds = 16;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: ib_uverbs_write_cmds = 17;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CREATE_CQ: ib_uverbs_write_cmds = 18;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_RESIZE_CQ: ib_uverbs_write_cmds = 19;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DESTROY_CQ: ib_uverbs_write_cmds = 20;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POLL_CQ: ib_uverbs_write_cmds = 21;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_PEEK_CQ: ib_uverbs_write_cmds = 22;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ: ib_uverbs_write_cmds = 23;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CREATE_QP: ib_uverbs_write_cmds = 24;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_QUERY_QP: ib_uverbs_write_cmds = 25;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_MODIFY_QP: ib_uverbs_write_cmds = 26;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DESTROY_QP: ib_uverbs_write_cmds = 27;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND: ib_uverbs_write_cmds = 28;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV: ib_uverbs_write_cmds = 29;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_ATTACH_MCAST: ib_uverbs_write_cmds = 30;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DETACH_MCAST: ib_uverbs_write_cmds = 31;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CREATE_SRQ: ib_uverbs_write_cmds = 32;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_MODIFY_SRQ: ib_uverbs_write_cmds = 33;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_QUERY_SRQ: ib_uverbs_write_cmds = 34;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_DESTROY_SRQ: ib_uverbs_write_cmds = 35;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SRQ_RECV: ib_uverbs_write_cmds = 36;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_OPEN_XRCD: ib_uverbs_write_cmds = 37;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CLOSE_XRCD: ib_uverbs_write_cmds = 38;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_CREATE_XSRQ: ib_uverbs_write_cmds = 39;
pub const ib_uverbs_write_cmds_IB_USER_VERBS_CMD_OPEN_QP: ib_uverbs_write_cmds = 40;
pub type ib_uverbs_write_cmds = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ib_uverbs_cmd_hdr {
    pub command: __u32,
    pub in_words: __u16,
    pub out_words: __u16,
}
#[repr(C)]
#[derive(Debug, Default)]
pub struct ib_uverbs_rereg_mr {
    pub response: __u64,
    pub mr_handle: __u32,
    pub flags: __u32,
    pub start: __u64,
    pub length: __u64,
    pub hca_va: __u64,
    pub pd_handle: __u32,
    pub access_flags: __u32,
    pub driver_data: __IncompleteArrayField<__u64>,
}
#[repr(C)]
#[derive(Debug, Default)]
pub struct ib_uverbs_rereg_mr_resp {
    pub lkey: __u32,
    pub rkey: __u32,
    pub driver_data: __IncompleteArrayField<__u64>,
}
pub const ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = 0;
pub const ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = 1;
pub const ib_uverbs_advise_mr_advice_IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice = 2;
pub type ib_uverbs_advise_mr_advice = libc::c_uint;
pub const ib_uverbs_advise_mr_flag_IB_UVERBS_ADVISE_MR_FLAG_FLUSH: ib_uverbs_advise_mr_flag = 1;
pub type ib_uverbs_advise_mr_flag = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
impl Default for ibv_gid {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const ibv_node_type_IBV_NODE_UNKNOWN: ibv_node_type = -1;
pub const ibv_node_type_IBV_NODE_CA: ibv_node_type = 1;
pub const ibv_node_type_IBV_NODE_SWITCH: ibv_node_type = 2;
pub const ibv_node_type_IBV_NODE_ROUTER: ibv_node_type = 3;
pub const ibv_node_type_IBV_NODE_RNIC: ibv_node_type = 4;
pub const ibv_node_type_IBV_NODE_USNIC: ibv_node_type = 5;
pub const ibv_node_type_IBV_NODE_USNIC_UDP: ibv_node_type = 6;
pub const ibv_node_type_IBV_NODE_UNSPECIFIED: ibv_node_type = 7;
pub type ibv_node_type = libc::c_int;
pub const ibv_transport_type_IBV_TRANSPORT_UNKNOWN: ibv_transport_type = -1;
pub const ibv_transport_type_IBV_TRANSPORT_IB: ibv_transport_type = 0;
pub const ibv_transport_type_IBV_TRANSPORT_IWARP: ibv_transport_type = 1;
pub const ibv_transport_type_IBV_TRANSPORT_USNIC: ibv_transport_type = 2;
pub const ibv_transport_type_IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = 3;
pub const ibv_transport_type_IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = 4;
pub type ibv_transport_type = libc::c_int;
pub const ibv_atomic_cap_IBV_ATOMIC_NONE: ibv_atomic_cap = 0;
pub const ibv_atomic_cap_IBV_ATOMIC_HCA: ibv_atomic_cap = 1;
pub const ibv_atomic_cap_IBV_ATOMIC_GLOB: ibv_atomic_cap = 2;
pub type ibv_atomic_cap = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [libc::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: libc::c_int,
    pub max_qp_wr: libc::c_int,
    pub device_cap_flags: libc::c_uint,
    pub max_sge: libc::c_int,
    pub max_sge_rd: libc::c_int,
    pub max_cq: libc::c_int,
    pub max_cqe: libc::c_int,
    pub max_mr: libc::c_int,
    pub max_pd: libc::c_int,
    pub max_qp_rd_atom: libc::c_int,
    pub max_ee_rd_atom: libc::c_int,
    pub max_res_rd_atom: libc::c_int,
    pub max_qp_init_rd_atom: libc::c_int,
    pub max_ee_init_rd_atom: libc::c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: libc::c_int,
    pub max_rdd: libc::c_int,
    pub max_mw: libc::c_int,
    pub max_raw_ipv6_qp: libc::c_int,
    pub max_raw_ethy_qp: libc::c_int,
    pub max_mcast_grp: libc::c_int,
    pub max_mcast_qp_attach: libc::c_int,
    pub max_total_mcast_qp_attach: libc::c_int,
    pub max_ah: libc::c_int,
    pub max_fmr: libc::c_int,
    pub max_map_per_fmr: libc::c_int,
    pub max_srq: libc::c_int,
    pub max_srq_wr: libc::c_int,
    pub max_srq_sge: libc::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
impl Default for ibv_device_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub mod ibv_mtu {
    pub type Type = libc::c_uint;
    pub const IBV_MTU_256: Type = 1;
    pub const IBV_MTU_512: Type = 2;
    pub const IBV_MTU_1024: Type = 3;
    pub const IBV_MTU_2048: Type = 4;
    pub const IBV_MTU_4096: Type = 5;
}
pub const ibv_port_state_IBV_PORT_NOP: ibv_port_state = 0;
pub const ibv_port_state_IBV_PORT_DOWN: ibv_port_state = 1;
pub const ibv_port_state_IBV_PORT_INIT: ibv_port_state = 2;
pub const ibv_port_state_IBV_PORT_ARMED: ibv_port_state = 3;
pub const ibv_port_state_IBV_PORT_ACTIVE: ibv_port_state = 4;
pub const ibv_port_state_IBV_PORT_ACTIVE_DEFER: ibv_port_state = 5;
pub type ibv_port_state = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu::Type,
    pub active_mtu: ibv_mtu::Type,
    pub gid_tbl_len: libc::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}
impl Default for ibv_port_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_wc_status {
    pub const IBV_WC_SUCCESS: ibv_wc_status = ibv_wc_status(0);
    pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = ibv_wc_status(1);
    pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = ibv_wc_status(2);
    pub const IBV_WC_LOC_EEC_OP_ERR: ibv_wc_status = ibv_wc_status(3);
    pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = ibv_wc_status(4);
    pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = ibv_wc_status(5);
    pub const IBV_WC_MW_BIND_ERR: ibv_wc_status = ibv_wc_status(6);
    pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = ibv_wc_status(7);
    pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = ibv_wc_status(8);
    pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = ibv_wc_status(9);
    pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = ibv_wc_status(10);
    pub const IBV_WC_REM_OP_ERR: ibv_wc_status = ibv_wc_status(11);
    pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(12);
    pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(13);
    pub const IBV_WC_LOC_RDD_VIOL_ERR: ibv_wc_status = ibv_wc_status(14);
    pub const IBV_WC_REM_INV_RD_REQ_ERR: ibv_wc_status = ibv_wc_status(15);
    pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = ibv_wc_status(16);
    pub const IBV_WC_INV_EECN_ERR: ibv_wc_status = ibv_wc_status(17);
    pub const IBV_WC_INV_EEC_STATE_ERR: ibv_wc_status = ibv_wc_status(18);
    pub const IBV_WC_FATAL_ERR: ibv_wc_status = ibv_wc_status(19);
    pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = ibv_wc_status(20);
    pub const IBV_WC_GENERAL_ERR: ibv_wc_status = ibv_wc_status(21);
    pub const IBV_WC_TM_ERR: ibv_wc_status = ibv_wc_status(22);
    pub const IBV_WC_TM_RNDV_INCOMPLETE: ibv_wc_status = ibv_wc_status(23);
}
#[repr(transparent)]
#[derive(Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_status(pub libc::c_uint);
pub const ibv_wc_opcode_IBV_WC_SEND: ibv_wc_opcode = 0;
pub const ibv_wc_opcode_IBV_WC_RDMA_WRITE: ibv_wc_opcode = 1;
pub const ibv_wc_opcode_IBV_WC_RDMA_READ: ibv_wc_opcode = 2;
pub const ibv_wc_opcode_IBV_WC_COMP_SWAP: ibv_wc_opcode = 3;
pub const ibv_wc_opcode_IBV_WC_FETCH_ADD: ibv_wc_opcode = 4;
pub const ibv_wc_opcode_IBV_WC_BIND_MW: ibv_wc_opcode = 5;
pub const ibv_wc_opcode_IBV_WC_LOCAL_INV: ibv_wc_opcode = 6;
pub const ibv_wc_opcode_IBV_WC_TSO: ibv_wc_opcode = 7;
pub const ibv_wc_opcode_IBV_WC_ATOMIC_WRITE: ibv_wc_opcode = 9;
pub const ibv_wc_opcode_IBV_WC_RECV: ibv_wc_opcode = 128;
pub const ibv_wc_opcode_IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = 129;
pub const ibv_wc_opcode_IBV_WC_TM_ADD: ibv_wc_opcode = 130;
pub const ibv_wc_opcode_IBV_WC_TM_DEL: ibv_wc_opcode = 131;
pub const ibv_wc_opcode_IBV_WC_TM_SYNC: ibv_wc_opcode = 132;
pub const ibv_wc_opcode_IBV_WC_TM_RECV: ibv_wc_opcode = 133;
pub const ibv_wc_opcode_IBV_WC_TM_NO_TAG: ibv_wc_opcode = 134;
pub const ibv_wc_opcode_IBV_WC_DRIVER1: ibv_wc_opcode = 135;
pub const ibv_wc_opcode_IBV_WC_DRIVER2: ibv_wc_opcode = 136;
pub const ibv_wc_opcode_IBV_WC_DRIVER3: ibv_wc_opcode = 137;
pub type ibv_wc_opcode = libc::c_uint;
pub const ibv_wc_flags_IBV_WC_GRH: ibv_wc_flags = 1;
pub const ibv_wc_flags_IBV_WC_WITH_IMM: ibv_wc_flags = 2;
pub const ibv_wc_flags_IBV_WC_IP_CSUM_OK: ibv_wc_flags = 4;
pub const ibv_wc_flags_IBV_WC_WITH_INV: ibv_wc_flags = 8;
pub const ibv_wc_flags_IBV_WC_TM_SYNC_REQ: ibv_wc_flags = 16;
pub const ibv_wc_flags_IBV_WC_TM_MATCH: ibv_wc_flags = 32;
pub const ibv_wc_flags_IBV_WC_TM_DATA_VALID: ibv_wc_flags = 64;
pub type ibv_wc_flags = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub __bindgen_anon_1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: libc::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
impl Default for ibv_wc__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_wc {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const ibv_access_flags_IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
pub const ibv_access_flags_IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 2;
pub const ibv_access_flags_IBV_ACCESS_REMOTE_READ: ibv_access_flags = 4;
pub const ibv_access_flags_IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = 8;
pub const ibv_access_flags_IBV_ACCESS_MW_BIND: ibv_access_flags = 16;
pub const ibv_access_flags_IBV_ACCESS_ZERO_BASED: ibv_access_flags = 32;
pub const ibv_access_flags_IBV_ACCESS_ON_DEMAND: ibv_access_flags = 64;
pub const ibv_access_flags_IBV_ACCESS_HUGETLB: ibv_access_flags = 128;
pub const ibv_access_flags_IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1048576;
pub type ibv_access_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: libc::c_uint,
}
impl Default for ibv_mw_bind_info {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
pub mod ibv_rereg_mr_flags {
    pub type Type = libc::c_uint;
    pub const IBV_REREG_MR_CHANGE_TRANSLATION: Type = 1;
    pub const IBV_REREG_MR_CHANGE_PD: Type = 2;
    pub const IBV_REREG_MR_CHANGE_ACCESS: Type = 4;
    pub const IBV_REREG_MR_FLAGS_SUPPORTED: Type = 7;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut libc::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
pub mod ibv_mw_type {
    pub type Type = libc::c_uint;
    pub const IBV_MW_TYPE_1: Type = 1;
    pub const IBV_MW_TYPE_2: Type = 2;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type::Type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
impl Default for ibv_global_route {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
impl Default for ibv_ah_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub mod ibv_qp_type {
    pub type Type = libc::c_uint;
    pub const IBV_QPT_RC: Type = 2;
    pub const IBV_QPT_UC: Type = 3;
    pub const IBV_QPT_UD: Type = 4;
    pub const IBV_QPT_RAW_PACKET: Type = 8;
    pub const IBV_QPT_XRC_SEND: Type = 9;
    pub const IBV_QPT_XRC_RECV: Type = 10;
    pub const IBV_QPT_DRIVER: Type = 255;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut libc::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type::Type,
    pub sq_sig_all: libc::c_int,
}
impl Default for ibv_qp_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const ibv_qp_attr_mask_IBV_QP_STATE: ibv_qp_attr_mask = 1;
pub const ibv_qp_attr_mask_IBV_QP_CUR_STATE: ibv_qp_attr_mask = 2;
pub const ibv_qp_attr_mask_IBV_QP_EN_SQD_ASYNC_NOTIFY: ibv_qp_attr_mask = 4;
pub const ibv_qp_attr_mask_IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = 8;
pub const ibv_qp_attr_mask_IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = 16;
pub const ibv_qp_attr_mask_IBV_QP_PORT: ibv_qp_attr_mask = 32;
pub const ibv_qp_attr_mask_IBV_QP_QKEY: ibv_qp_attr_mask = 64;
pub const ibv_qp_attr_mask_IBV_QP_AV: ibv_qp_attr_mask = 128;
pub const ibv_qp_attr_mask_IBV_QP_PATH_MTU: ibv_qp_attr_mask = 256;
pub const ibv_qp_attr_mask_IBV_QP_TIMEOUT: ibv_qp_attr_mask = 512;
pub const ibv_qp_attr_mask_IBV_QP_RETRY_CNT: ibv_qp_attr_mask = 1024;
pub const ibv_qp_attr_mask_IBV_QP_RNR_RETRY: ibv_qp_attr_mask = 2048;
pub const ibv_qp_attr_mask_IBV_QP_RQ_PSN: ibv_qp_attr_mask = 4096;
pub const ibv_qp_attr_mask_IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = 8192;
pub const ibv_qp_attr_mask_IBV_QP_ALT_PATH: ibv_qp_attr_mask = 16384;
pub const ibv_qp_attr_mask_IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = 32768;
pub const ibv_qp_attr_mask_IBV_QP_SQ_PSN: ibv_qp_attr_mask = 65536;
pub const ibv_qp_attr_mask_IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = 131072;
pub const ibv_qp_attr_mask_IBV_QP_PATH_MIG_STATE: ibv_qp_attr_mask = 262144;
pub const ibv_qp_attr_mask_IBV_QP_CAP: ibv_qp_attr_mask = 524288;
pub const ibv_qp_attr_mask_IBV_QP_DEST_QPN: ibv_qp_attr_mask = 1048576;
pub const ibv_qp_attr_mask_IBV_QP_RATE_LIMIT: ibv_qp_attr_mask = 33554432;
pub type ibv_qp_attr_mask = libc::c_uint;
pub mod ibv_qp_state {
    pub type Type = libc::c_uint;
    pub const IBV_QPS_RESET: Type = 0;
    pub const IBV_QPS_INIT: Type = 1;
    pub const IBV_QPS_RTR: Type = 2;
    pub const IBV_QPS_RTS: Type = 3;
    pub const IBV_QPS_SQD: Type = 4;
    pub const IBV_QPS_SQE: Type = 5;
    pub const IBV_QPS_ERR: Type = 6;
    pub const IBV_QPS_UNKNOWN: Type = 7;
}
pub const ibv_mig_state_IBV_MIG_MIGRATED: ibv_mig_state = 0;
pub const ibv_mig_state_IBV_MIG_REARM: ibv_mig_state = 1;
pub const ibv_mig_state_IBV_MIG_ARMED: ibv_mig_state = 2;
pub type ibv_mig_state = libc::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state::Type,
    pub cur_qp_state: ibv_qp_state::Type,
    pub path_mtu: ibv_mtu::Type,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: libc::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
impl Default for ibv_qp_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub mod ibv_wr_opcode {
    pub type Type = libc::c_uint;
    pub const IBV_WR_RDMA_WRITE: Type = 0;
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: Type = 1;
    pub const IBV_WR_SEND: Type = 2;
    pub const IBV_WR_SEND_WITH_IMM: Type = 3;
    pub const IBV_WR_RDMA_READ: Type = 4;
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: Type = 5;
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: Type = 6;
    pub const IBV_WR_LOCAL_INV: Type = 7;
    pub const IBV_WR_BIND_MW: Type = 8;
    pub const IBV_WR_SEND_WITH_INV: Type = 9;
    pub const IBV_WR_TSO: Type = 10;
    pub const IBV_WR_DRIVER1: Type = 11;
    pub const IBV_WR_ATOMIC_WRITE: Type = 15;
}
pub const ibv_send_flags_IBV_SEND_FENCE: ibv_send_flags = 1;
pub const ibv_send_flags_IBV_SEND_SIGNALED: ibv_send_flags = 2;
pub const ibv_send_flags_IBV_SEND_SOLICITED: ibv_send_flags = 4;
pub const ibv_send_flags_IBV_SEND_INLINE: ibv_send_flags = 8;
pub const ibv_send_flags_IBV_SEND_IP_CSUM: ibv_send_flags = 16;
pub type ibv_send_flags = libc::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
    pub opcode: ibv_wr_opcode::Type,
    pub send_flags: libc::c_uint,
    pub __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub __bindgen_anon_2: ibv_send_wr__bindgen_ty_4,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
impl Default for ibv_send_wr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
impl Default for ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_send_wr__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
impl Default for ibv_send_wr__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
impl Default for ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut libc::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
impl Default for ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_send_wr__bindgen_ty_4 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_send_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: libc::c_int,
}
impl Default for ibv_recv_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: libc::c_uint,
    pub bind_info: ibv_mw_bind_info,
}
impl Default for ibv_mw_bind {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_srq {
    pub _bindgen_opaque_blob: [u64; 16usize],
}
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut libc::c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state::Type,
    pub qp_type: ibv_qp_type::Type,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_comp_channel {
    pub _bindgen_opaque_blob: [u64; 2usize],
}
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut libc::c_void,
    pub handle: u32,
    pub cqe: libc::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_ah {
    pub _bindgen_opaque_blob: [u64; 3usize],
}
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ibv_device_ops {
    pub _bindgen_opaque_blob: [u64; 2usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [libc::c_char; 64usize],
    pub dev_name: [libc::c_char; 64usize],
    pub dev_path: [libc::c_char; 256usize],
    pub ibdev_path: [libc::c_char; 256usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _compat_ibv_port_attr {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_context_ops {
    pub _compat_query_device: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            device_attr: *mut ibv_device_attr,
        ) -> libc::c_int,
    >,
    pub _compat_query_port: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> libc::c_int,
    >,
    pub _compat_alloc_pd: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_dealloc_pd: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_reg_mr: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_rereg_mr: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_dereg_mr: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub alloc_mw: ::core::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type::Type) -> *mut ibv_mw,
    >,
    pub bind_mw: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            mw: *mut ibv_mw,
            mw_bind: *mut ibv_mw_bind,
        ) -> libc::c_int,
    >,
    pub dealloc_mw: ::core::option::Option<
        unsafe extern "C" fn(mw: *mut ibv_mw) -> libc::c_int,
    >,
    pub _compat_create_cq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub poll_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: libc::c_int,
            wc: *mut ibv_wc,
        ) -> libc::c_int,
    >,
    pub req_notify_cq: ::core::option::Option<
        unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: libc::c_int) -> libc::c_int,
    >,
    pub _compat_cq_event: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_resize_cq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_destroy_cq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_create_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_modify_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_query_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_destroy_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub post_srq_recv: ::core::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub _compat_create_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_query_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_modify_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_destroy_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub post_send: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> libc::c_int,
    >,
    pub post_recv: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> libc::c_int,
    >,
    pub _compat_create_ah: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_destroy_ah: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_attach_mcast: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_detach_mcast: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
    pub _compat_async_event: ::core::option::Option<
        unsafe extern "C" fn() -> *mut libc::c_void,
    >,
}
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: libc::c_int,
    pub async_fd: libc::c_int,
    pub num_comp_vectors: libc::c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut libc::c_void,
}
unsafe extern "C" {
    pub fn ibv_wc_status_str(status: ibv_wc_status) -> *const libc::c_char;
    pub fn ibv_get_device_list(num_devices: *mut libc::c_int) -> *mut *mut ibv_device;
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const libc::c_char;
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn ibv_close_device(context: *mut ibv_context) -> libc::c_int;
    pub fn ibv_query_device(
        context: *mut ibv_context,
        device_attr: *mut ibv_device_attr,
    ) -> libc::c_int;
    #[link_name = "___ibv_query_port__extern"]
    pub fn ___ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> libc::c_int;
    pub fn ibv_query_gid(
        context: *mut ibv_context,
        port_num: u8,
        index: libc::c_int,
        gid: *mut ibv_gid,
    ) -> libc::c_int;
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> libc::c_int;
    pub fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut libc::c_void,
        length: usize,
        access: libc::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut libc::c_void,
        length: usize,
        iova: u64,
        access: libc::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: libc::c_int,
        access: libc::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> libc::c_int;
    #[link_name = "ibv_alloc_mw__extern"]
    pub fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type::Type) -> *mut ibv_mw;
    #[link_name = "ibv_dealloc_mw__extern"]
    pub fn ibv_dealloc_mw(mw: *mut ibv_mw) -> libc::c_int;
    #[link_name = "ibv_inc_rkey__extern"]
    pub fn ibv_inc_rkey(rkey: u32) -> u32;
    #[link_name = "ibv_bind_mw__extern"]
    pub fn ibv_bind_mw(
        qp: *mut ibv_qp,
        mw: *mut ibv_mw,
        mw_bind: *mut ibv_mw_bind,
    ) -> libc::c_int;
    #[link_name = "ibv_advise_mr__extern"]
    pub fn ibv_advise_mr(
        pd: *mut ibv_pd,
        advice: ib_uverbs_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> libc::c_int;
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: libc::c_int,
        cq_context: *mut libc::c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: libc::c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> libc::c_int;
    #[link_name = "ibv_poll_cq__extern"]
    pub fn ibv_poll_cq(
        cq: *mut ibv_cq,
        num_entries: libc::c_int,
        wc: *mut ibv_wc,
    ) -> libc::c_int;
    pub fn ibv_create_qp(
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> *mut ibv_qp;
    pub fn ibv_modify_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: libc::c_int,
    ) -> libc::c_int;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> libc::c_int;
    #[link_name = "ibv_post_send__extern"]
    pub fn ibv_post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> libc::c_int;
    #[link_name = "ibv_post_recv__extern"]
    pub fn ibv_post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> libc::c_int;
}
