// SPDX-License-Identifier: GPL-2.0
//! Completion queues and queue pairs, of which loopbacks and endpoints are made.

use std::ffi::c_int;
use std::io;
use std::ptr::{null_mut, NonNull};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use verbs as sys;

use super::device::{check, Device, Pd, PORT};
use super::region::{Mr, FULL_ACCESS, REMOTE_ATOMIC};

pub use sys::ibv_wc_status as Status;

/// The time that a single request may take on a debug kernel under emulation.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Memory that another process registered, with the address and key that it sent.
#[derive(Debug, Clone, Copy)]
pub struct Remote {
    pub addr: u64,
    pub rkey: u32,
}

/// The end of a work request.
#[derive(Debug, Clone, Copy)]
pub struct Completion {
    pub id: u64,
    pub status: Status,
    pub bytes: u32,
    /// The immediate that came with it.
    pub immediate: Option<u32>,
}

/// A completion queue. Each queue pair on it keeps it alive.
pub struct CompletionQueue {
    cq: NonNull<sys::ibv_cq>,
    device: Arc<Device>,
}

impl CompletionQueue {
    pub fn new(device: &Arc<Device>, entries: c_int) -> Result<Rc<Self>> {
        // SAFETY: ctx is open; no completion channel.
        let cq = NonNull::new(unsafe { sys::ibv_create_cq(device.ctx.as_ptr(), entries, null_mut(), null_mut(), 0) })
            .ok_or_else(io::Error::last_os_error)
            .context("ibv_create_cq")?;
        Ok(Rc::new(Self { cq, device: Arc::clone(device) }))
    }

    /// Returns the next completion, within `limit`.
    pub fn poll(&self, limit: Duration) -> Result<Completion> {
        let end = Instant::now() + limit;
        let mut wc = sys::ibv_wc::default();
        loop {
            // SAFETY: the queue is live, wc has room for one entry.
            match unsafe { sys::ibv_poll_cq(self.cq.as_ptr(), 1, &mut wc) } {
                0 if Instant::now() > end => {
                    bail!("no completion within {limit:?}; the NIC's counters: {}", self.device.counters())
                }
                0 => std::thread::sleep(Duration::from_micros(200)),
                1 => {
                    let immediate = (wc.wc_flags & sys::ibv_wc_flags_IBV_WC_WITH_IMM != 0)
                        // SAFETY: the flag says that the union holds the immediate.
                        .then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
                    return Ok(Completion { id: wc.wr_id, status: wc.status, bytes: wc.byte_len, immediate });
                }
                e => bail!("ibv_poll_cq: {e}"),
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created by us; its queue pairs are gone.
        unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// Returns the entry of a work request for `len` bytes from offset `at` of a range.
pub fn sge((mr, at): (&Mr, usize), len: usize) -> io::Result<sys::ibv_sge> {
    let length = u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
    Ok(sys::ibv_sge { addr: mr.addr() + at as u64, length, lkey: mr.lkey() })
}

/// An RC queue pair, whose requests and receives complete on one queue.
pub struct QueuePair {
    qp: NonNull<sys::ibv_qp>,
    pub cq: Rc<CompletionQueue>,
    pub pd: Arc<Pd>,
}

impl QueuePair {
    /// Makes a queue pair with room for these numbers of requests and receives, each with one
    /// range.
    pub fn new(pd: &Arc<Pd>, cq: &Rc<CompletionQueue>, requests: u32, receives: u32) -> Result<Self> {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: cq.cq.as_ptr(),
            recv_cq: cq.cq.as_ptr(),
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
            ..Default::default()
        };
        init.cap.max_send_wr = requests;
        init.cap.max_recv_wr = receives;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        // SAFETY: pd and cq are live; init is fully set.
        let qp = NonNull::new(unsafe { sys::ibv_create_qp(pd.pd.as_ptr(), &mut init) })
            .ok_or_else(io::Error::last_os_error)
            .context("ibv_create_qp")?;
        Ok(Self { qp, cq: Rc::clone(cq), pd: Arc::clone(pd) })
    }

    pub fn as_ptr(&self) -> *mut sys::ibv_qp {
        self.qp.as_ptr()
    }

    /// Returns the number that the other end connects to.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { self.qp.as_ref().qp_num }
    }

    pub fn connect(&self, peer: u32, (index, gid): (u8, sys::ibv_gid)) -> io::Result<()> {
        use sys::{ibv_mtu, ibv_qp_state as state};
        let modify = |attr: &mut sys::ibv_qp_attr, mask: c_int| {
            // SAFETY: the queue pair is live; attr is set for every bit of the mask.
            check(unsafe { sys::ibv_modify_qp(self.qp.as_ptr(), attr, mask) })
        };
        let mut init = sys::ibv_qp_attr {
            qp_state: state::IBV_QPS_INIT,
            port_num: PORT,
            qp_access_flags: (FULL_ACCESS | REMOTE_ATOMIC) as u32,
            ..Default::default()
        };
        modify(&mut init, sys::TO_INIT)?;
        let mut rtr = sys::ibv_qp_attr {
            qp_state: state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_4096,
            dest_qp_num: peer,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            ..Default::default()
        };
        rtr.ah_attr.is_global = 1;
        rtr.ah_attr.port_num = PORT;
        rtr.ah_attr.grh.dgid = gid;
        rtr.ah_attr.grh.sgid_index = index;
        rtr.ah_attr.grh.hop_limit = 1;
        modify(&mut rtr, sys::TO_RTR)?;
        let mut rts = sys::ibv_qp_attr {
            qp_state: state::IBV_QPS_RTS,
            // 4.096 us * 2^21 = 8.6 s, because an emulated machine may stand still for a second. No
            // packet is ever lost here, and where rxe sends some again, it may lose count of them:
            // then the receive is flushed and the request never completes.
            timeout: 21,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..Default::default()
        };
        modify(&mut rts, sys::TO_RTS)
    }

    /// Posts RDMA of `len` bytes between a local and a remote range.
    pub fn rdma(&self, opcode: u32, id: u64, local: (&Mr, usize), remote: Remote, len: usize) -> io::Result<()> {
        let mut sge = sge(local, len)?;
        let mut wr = sys::ibv_send_wr {
            wr_id: id,
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = remote.addr;
        wr.wr.rdma.rkey = remote.rkey;
        self.post(&mut wr)
    }

    pub fn post(&self, wr: &mut sys::ibv_send_wr) -> io::Result<()> {
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the request and its list live through the call, which
        // copies them.
        check(unsafe { sys::ibv_post_send(self.qp.as_ptr(), wr, &mut bad) })
    }

    pub fn recv(&self, id: u64, into: (&Mr, usize), len: usize) -> io::Result<()> {
        let mut sge = sge(into, len)?;
        let mut wr = sys::ibv_recv_wr { wr_id: id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: as in post().
        check(unsafe { sys::ibv_post_recv(self.qp.as_ptr(), &mut wr, &mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created by us, last use; its completion queue and protection domain go after it.
        unsafe { sys::ibv_destroy_qp(self.qp.as_ptr()) };
    }
}
