// SPDX-License-Identifier: GPL-2.0
//! Both ends of a connection in one process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Context, Result};

use verbs as sys;

use super::device::Pd;
use super::queue::{Completion, CompletionQueue, QueuePair, Remote, Status, PATIENCE};
use super::region::Mr;

/// Two connected RC queue pairs on the same device with one completion queue. Each receives what
/// the other sends.
pub struct Loopback {
    pub(super) qp: [QueuePair; 2],
}

impl Loopback {
    pub fn new(pd: &Arc<Pd>) -> Result<Self> {
        let cq = CompletionQueue::new(&pd.device, 64)?;
        let create = || QueuePair::new(pd, &cq, 16, 16);
        let qp = [create()?, create()?];
        let gid = pd.device.gid()?;
        for i in 0..2 {
            qp[i].connect(qp[1 - i].number(), gid).with_context(|| format!("connect queue pair {i}"))?;
        }
        Ok(Self { qp })
    }

    /// Posts RDMA of `len` bytes between offset `at` of a local and offset `to` of a remote range,
    /// on the first queue pair.
    fn rdma(&self, opcode: u32, id: u64, local: (&Mr, usize), (mr, to): (&Mr, usize), len: usize) -> io::Result<()> {
        self.qp[0].rdma(opcode, id, local, Remote { addr: mr.addr() + to as u64, rkey: mr.rkey() }, len)
    }

    pub fn write(&self, id: u64, local: (&Mr, usize), remote: (&Mr, usize), len: usize) -> io::Result<()> {
        self.rdma(sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, id, local, remote, len)
    }

    pub fn read(&self, id: u64, local: (&Mr, usize), remote: (&Mr, usize), len: usize) -> io::Result<()> {
        self.rdma(sys::ibv_wr_opcode::IBV_WR_RDMA_READ, id, local, remote, len)
    }

    /// Posts a receive on the second queue pair.
    pub fn recv(&self, id: u64, into: (&Mr, usize), len: usize) -> io::Result<()> {
        self.qp[1].recv(id, into, len)
    }

    /// Sends from the first queue pair to the second.
    pub fn send(&self, id: u64, from: (&Mr, usize), len: usize) -> io::Result<()> {
        // The remote half of an RDMA request is ignored for a send.
        self.rdma(sys::ibv_wr_opcode::IBV_WR_SEND, id, from, from, len)
    }

    /// Returns the next completion, within `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Completion> {
        self.qp[0].cq.poll(limit)
    }

    /// Waits for the completion of `id`, and fails unless it was a success.
    pub fn done(&self, id: u64) -> Result<Completion> {
        let c = self.wait(PATIENCE)?;
        if c.id != id || c.status != Status::IBV_WC_SUCCESS {
            bail!("work request {id}: completion {c:?}");
        }
        Ok(c)
    }
}
