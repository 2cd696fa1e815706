// SPDX-License-Identifier: GPL-2.0
//! Runs whole operations on a [`Loopback`]: request, receive where one is needed, completions.

use std::time::Duration;

use anyhow::{bail, ensure, Result};

use verbs as sys;

use super::loopback::Loopback;
use super::queue::{sge, Status, PATIENCE};
use super::region::Mr;

/// One kind of work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Write,
    WriteImm(u32),
    Read,
    Send,
    SendImm(u32),
    FetchAdd(u64),
    CmpSwap { compare: u64, swap: u64 },
}

impl Op {
    fn opcode(self) -> u32 {
        use sys::ibv_wr_opcode as code;
        match self {
            Self::Write => code::IBV_WR_RDMA_WRITE,
            Self::WriteImm(_) => code::IBV_WR_RDMA_WRITE_WITH_IMM,
            Self::Read => code::IBV_WR_RDMA_READ,
            Self::Send => code::IBV_WR_SEND,
            Self::SendImm(_) => code::IBV_WR_SEND_WITH_IMM,
            Self::FetchAdd(_) => code::IBV_WR_ATOMIC_FETCH_AND_ADD,
            Self::CmpSwap { .. } => code::IBV_WR_ATOMIC_CMP_AND_SWP,
        }
    }

    fn immediate(self) -> Option<u32> {
        match self {
            Self::WriteImm(imm) | Self::SendImm(imm) => Some(imm),
            _ => None,
        }
    }

    /// Returns `compare_add` and `swap` of an atomic.
    fn operands(self) -> Option<(u64, u64)> {
        match self {
            Self::FetchAdd(add) => Some((add, 0)),
            Self::CmpSwap { compare, swap } => Some((compare, swap)),
            _ => None,
        }
    }

    /// Returns the length of the receive that it takes at the other end. An immediate takes a
    /// receive, but none of its memory.
    fn receive(self, len: usize) -> Option<usize> {
        match self {
            Self::Send | Self::SendImm(_) => Some(len),
            Self::WriteImm(_) => Some(0),
            _ => None,
        }
    }
}

const REQUEST: u64 = 1;
const RECEIVE: u64 = 2;

impl Loopback {
    /// Does `op` between a local and a remote range, and fails unless every completion is right:
    /// status, length, immediate. The local range is the source, except for a read, and for an
    /// atomic, which leaves there what it found.
    pub fn run(&self, op: Op, local: (&Mr, usize), remote: (&Mr, usize), len: usize) -> Result<()> {
        self.run_within(PATIENCE, op, local, remote, len)
    }

    /// Does the same as [`Loopback::run`], with another time limit.
    pub fn run_within(
        &self,
        limit: Duration,
        op: Op,
        local: (&Mr, usize),
        remote: (&Mr, usize),
        len: usize,
    ) -> Result<()> {
        let receive = op.receive(len);
        if let Some(room) = receive {
            self.recv(RECEIVE, remote, room)?;
        }
        self.post_op(op, local, (remote.0.rkey(), remote.0.addr() + remote.1 as u64), len)?;
        // Both ends complete on one queue, in either order.
        for _ in 0..1 + usize::from(receive.is_some()) {
            let c = self.wait(limit)?;
            if c.status != Status::IBV_WC_SUCCESS {
                // A receive that was flushed does not say why, but its request does.
                bail!("{op:?} of {len} bytes: {c:?}; after it: {:?}", self.wait(Duration::from_secs(10)));
            }
            if c.id == RECEIVE {
                ensure!(c.bytes as usize == len, "{op:?}: received {} bytes of {len}", c.bytes);
                ensure!(c.immediate == op.immediate(), "{op:?}: immediate {:x?}", c.immediate);
            }
        }
        Ok(())
    }

    /// Returns how a request to a plain key and address ends. After a failure, the queue pairs are
    /// in the error state.
    pub fn attempt(&self, op: Op, local: (&Mr, usize), (rkey, remote): (u32, u64), len: usize) -> Result<Status> {
        self.post_op(op, local, (rkey, remote), len)?;
        Ok(self.wait(PATIENCE)?.status)
    }

    fn post_op(&self, op: Op, local: (&Mr, usize), (rkey, remote_addr): (u32, u64), len: usize) -> Result<()> {
        let mut sge = sge(local, len)?;
        let mut wr = sys::ibv_send_wr {
            wr_id: REQUEST,
            sg_list: &mut sge,
            num_sge: 1,
            opcode: op.opcode(),
            send_flags: sys::ibv_send_flags_IBV_SEND_SIGNALED,
            ..Default::default()
        };
        if let Some((compare_add, swap)) = op.operands() {
            wr.wr.atomic.remote_addr = remote_addr;
            wr.wr.atomic.rkey = rkey;
            wr.wr.atomic.compare_add = compare_add;
            wr.wr.atomic.swap = swap;
        } else {
            // A send ignores this.
            wr.wr.rdma.remote_addr = remote_addr;
            wr.wr.rdma.rkey = rkey;
        }
        if let Some(immediate) = op.immediate() {
            wr.__bindgen_anon_1.imm_data = immediate.to_be();
        }
        Ok(self.qp[0].post(&mut wr)?)
    }
}
