// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The ways in which memory can be registered.

/// The way in which memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Way {
    /// By plain `ibv_reg_mr()`, which nvidia-peermem serves.
    PeerMemory,
    /// By `ibv_reg_dmabuf_mr()`.
    DmaBuf,
}
