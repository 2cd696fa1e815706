// SPDX-License-Identifier: GPL-2.0
//! One end of a connection whose other end may be in another process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use verbs as sys;

use super::device::Pd;
use super::queue::{CompletionQueue, QueuePair, Remote, Status};
use super::region::Mr;

/// A queue pair with a completion queue of its own.
pub struct Endpoint(QueuePair);

impl Endpoint {
    pub fn new(pd: &Arc<Pd>) -> Result<Self> {
        QueuePair::new(pd, &CompletionQueue::new(&pd.device, 16)?, 8, 1).map(Self)
    }

    /// Returns the number that the other end connects to.
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// Connects to an endpoint on the same device.
    pub fn connect(&self, peer: u32) -> Result<()> {
        let gid = self.0.pd.device.gid()?;
        self.0.connect(peer, gid).with_context(|| format!("connect to queue pair {peer}"))
    }

    /// Posts an RDMA write of `len` bytes to the first bytes of `to`.
    pub fn write(&self, id: u64, local: (&Mr, usize), to: Remote, len: usize) -> io::Result<()> {
        self.0.rdma(sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, id, local, to, len)
    }

    /// Returns the status of the oldest request that has ended.
    pub fn wait(&self, limit: Duration) -> Result<Status> {
        Ok(self.0.cq.poll(limit)?.status)
    }
}
