// SPDX-License-Identifier: GPL-2.0
//! What `selftest` did.

use crate::check::Level;
use schemars::JsonSchema;
use serde::Serialize;

/// What `selftest` did.
#[derive(Serialize, JsonSchema)]
pub struct Selftest {
    pub level: Level,
    pub gpu: String,
    /// Name of the RDMA device.
    pub nic: String,
    pub bytes: u64,
    /// By peer memory, then by dma-buf, then by dma-buf as NCCL asks for it on GPUs with a coherent
    /// link, and by Data Direct with a ConnectX-8.
    pub ways: Vec<SelftestWay>,
}

/// One way of registering.
#[derive(Serialize, JsonSchema)]
pub struct SelftestWay {
    /// `peer-memory`, `dma-buf`, on GPUs with a coherent link `dma-buf-pcie`, with a ConnectX-8
    /// `data-direct`.
    pub way: &'static str,
    pub level: Level,
    /// What went wrong, or why it was not tried.
    pub message: Option<String>,
    pub register_us: Option<f64>,
    pub write_us: Option<f64>,
    pub deregister_us: Option<f64>,
    /// Whether the bytes that the NIC wrote are in GPU memory.
    pub bytes_equal: Option<bool>,
    /// `null` if it was not measured.
    pub bandwidth: Option<Bandwidth>,
}

/// What a NIC moves, in bytes per second.
#[derive(Serialize, JsonSchema)]
pub struct Bandwidth {
    /// From host memory to the GPU.
    pub to_gpu: f64,
    pub from_gpu: f64,
    /// Bytes that were registered of each.
    pub registered: u64,
    /// Bytes of one RDMA write.
    pub piece: u64,
}
