// SPDX-License-Identifier: GPL-2.0
//! Frees a buffer that is registered with two NICs.

use anyhow::{ensure, Result};

use super::rig::Nic;
use crate::common::MIB;
use crate::gpu;
use crate::machine::{SecondNic, RDMA_DEVICE};
use crate::test::Env;
use crate::verbs::{Op, Status};

/// Both NICs have released the buffer when the free returns.
pub fn freed(_: &Env) -> Result<()> {
    let second = SecondNic::add()?;
    let nics = [Nic::open(RDMA_DEVICE)?, Nic::open(second.name())?];
    let memory = nvlab::Client::open()?.alloc(0, MIB as u64)?;
    let va = memory.va();
    let host = vec![0u8; MIB];
    let mut ends = Vec::new();
    for nic in &nics {
        ends.push((nic, nic.reg(va, MIB)?, nic.reg(host.as_ptr() as u64, MIB)?));
    }
    for (nic, mr, source) in &ends {
        nic.link.run(Op::Write, (source, 0), (mr, 0), MIB)?;
    }
    memory.free()?;
    for (nic, mr, source) in &ends {
        let held = nic.held(mr)?;
        ensure!(held.state == "killed", "{}: the memory was freed, and its region is {}", held.initiator, held.state);
        let status = nic.link.attempt(Op::Write, (source, 0), (mr.rkey(), va), 8)?;
        ensure!(status == Status::IBV_WC_REM_ACCESS_ERR, "{}: a write ended with {status:?}", held.initiator);
    }
    ensure!(gpu::pins()? == 0, "{} pins outlived the free", gpu::pins()?);
    for (_, mr, source) in ends {
        mr.dereg()?;
        source.dereg()?;
    }
    Ok(())
}
