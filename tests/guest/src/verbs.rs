// SPDX-License-Identifier: GPL-2.0
//! The verbs that the suites use, over the system's libibverbs. Each object releases itself. A
//! release that can fail and matters to a test (deregistration) has a method of its own.

mod device;
mod endpoint;
mod loopback;
mod queue;
mod region;
mod rereg;
mod window;
mod work;

pub use device::{Device, Pd};
pub use endpoint::Endpoint;
pub use loopback::Loopback;
pub use queue::{Completion, Remote, Status, PATIENCE};
pub use region::{
    Mr, FULL_ACCESS, LOCAL_WRITE, MW_BIND, ON_DEMAND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, ZERO_BASED,
};
pub use rereg::Rereg;
pub use window::{Window, WindowType};
pub use work::Op;

#[cfg(test)]
mod tests {
    use ::verbs::*;
    use std::mem::{offset_of, size_of};

    /// The guest is built with another version of rdma-core than the one that the bindings were
    /// made from.
    #[test]
    fn the_bindings_are_those_of_the_header() {
        let ours = [
            size_of::<ibv_context>(),
            offset_of!(ibv_context, ops.poll_cq),
            offset_of!(ibv_context, ops.post_send),
            offset_of!(ibv_context, ops.post_recv),
            offset_of!(ibv_context, cmd_fd),
            size_of::<ibv_pd>(),
            size_of::<ibv_mr>(),
            offset_of!(ibv_mr, rkey),
            size_of::<ibv_mw>(),
            size_of::<ibv_cq>(),
            size_of::<ibv_qp>(),
            offset_of!(ibv_qp, qp_num),
            size_of::<ibv_qp_attr>(),
            size_of::<ibv_qp_init_attr>(),
            size_of::<ibv_send_wr>(),
            size_of::<ibv_recv_wr>(),
            size_of::<ibv_wc>(),
            size_of::<ibv_port_attr>(),
            size_of::<ibv_device_attr>(),
            size_of::<ibv_mw_bind>(),
            size_of::<ib_uverbs_rereg_mr>(),
        ];
        extern "C" {
            static verbs_layout: [usize; 21];
        }
        // SAFETY: layout.c has as many, which nobody writes.
        assert_eq!(ours, unsafe { verbs_layout });
    }

    /// gpumr is published alone, so it has declarations of its own.
    #[test]
    fn gpumr_declares_the_same_region_and_rights() {
        use gpumr::{ibverbs::RawMr, Access};
        macro_rules! offsets {
            ($kind:ty) => {
                [offset_of!($kind, addr), offset_of!($kind, handle), offset_of!($kind, lkey), offset_of!($kind, rkey)]
            };
        }
        assert_eq!(offsets!(RawMr), offsets!(ibv_mr));
        let flags = [
            (Access::LOCAL_WRITE, ibv_access_flags_IBV_ACCESS_LOCAL_WRITE),
            (Access::REMOTE_WRITE, ibv_access_flags_IBV_ACCESS_REMOTE_WRITE),
            (Access::REMOTE_READ, ibv_access_flags_IBV_ACCESS_REMOTE_READ),
            (Access::REMOTE_ATOMIC, ibv_access_flags_IBV_ACCESS_REMOTE_ATOMIC),
            (Access::RELAXED_ORDERING, ibv_access_flags_IBV_ACCESS_RELAXED_ORDERING),
        ];
        assert!(flags.iter().all(|(ours, theirs)| ours.bits() as u32 == *theirs), "{flags:x?}");
    }
}
