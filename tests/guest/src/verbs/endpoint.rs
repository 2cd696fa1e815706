// SPDX-License-Identifier: GPL-2.0
//! One end of a connection whose other end may be in another process.

use std::io;
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::{check, connect, sys, Mr, Pd, Status};

/// Memory that another process registered, as it told.
#[derive(Debug, Clone, Copy)]
pub struct Remote {
    pub addr: u64,
    pub rkey: u32,
}

/// A queue pair with a completion queue of its own.
pub struct Endpoint {
    qp: NonNull<sys::ibv_qp>,
    cq: NonNull<sys::ibv_cq>,
    pd: Arc<Pd>,
}

impl Endpoint {
    pub fn new(pd: &Arc<Pd>) -> Result<Self> {
        // SAFETY: the context is open; no completion channel.
        let cq = NonNull::new(unsafe { sys::ibv_create_cq(pd.device.ctx.as_ptr(), 16, null_mut(), null_mut(), 0) })
            .ok_or_else(io::Error::last_os_error)
            .context("ibv_create_cq")?;
        let mut init = sys::ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
            ..Default::default()
        };
        init.cap.max_send_wr = 8;
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        // SAFETY: pd and cq are live; init is fully set.
        let qp = NonNull::new(unsafe { sys::ibv_create_qp(pd.pd.as_ptr(), &mut init) });
        let Some(qp) = qp else {
            let e = io::Error::last_os_error();
            // SAFETY: created above, without a queue pair on it.
            unsafe { sys::ibv_destroy_cq(cq.as_ptr()) };
            return Err(e).context("ibv_create_qp");
        };
        Ok(Self { qp, cq, pd: Arc::clone(pd) })
    }

    /// What the other end connects to.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { self.qp.as_ref().qp_num }
    }

    /// To an endpoint on the same device.
    pub fn connect(&self, peer: u32) -> Result<()> {
        connect(self.qp, peer, self.pd.device.gid()?).with_context(|| format!("connect to queue pair {peer}"))
    }

    /// Posts an RDMA write of `len` bytes to the first ones of `to`.
    pub fn write(&self, id: u64, local: (&Mr, usize), to: Remote, len: usize) -> io::Result<()> {
        let mut sge = sys::ibv_sge {
            addr: local.0.addr() + local.1 as u64,
            length: u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?,
            lkey: local.0.lkey(),
        };
        let mut wr = sys::ibv_send_wr {
            wr_id: id,
            sg_list: &mut sge,
            num_sge: 1,
            opcode: sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = to.addr;
        wr.wr.rdma.rkey = to.rkey;
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the request and its list live through the call, which copies them.
        check(unsafe { sys::ibv_post_send(self.qp.as_ptr(), &mut wr, &mut bad) })
    }

    /// How the oldest request that has ended did.
    pub fn wait(&self, limit: Duration) -> Result<Status> {
        let end = Instant::now() + limit;
        let mut wc = sys::ibv_wc::default();
        loop {
            // SAFETY: the queue is live, wc has room for one entry.
            match unsafe { sys::ibv_poll_cq(self.cq.as_ptr(), 1, &mut wc) } {
                0 if Instant::now() > end => bail!("no completion within {limit:?}"),
                0 => std::thread::sleep(Duration::from_micros(200)),
                1 => return Ok(wc.status),
                e => bail!("ibv_poll_cq: {e}"),
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: created by us, last use.
        unsafe { sys::ibv_destroy_qp(self.qp.as_ptr()) };
        // SAFETY: created by us; its queue pair is gone.
        unsafe { sys::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}
