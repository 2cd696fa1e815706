// SPDX-License-Identifier: GPL-2.0

//! The module's own code under a model checker: the shipped files run unchanged between models of the provider, of
//! ib_core and of the HCA. See README.md of the workspace.

pub mod cli;
pub mod explore;
pub mod gpu;
pub mod raw;
pub mod rdma;
pub mod rt;
pub mod scenario;
pub mod world;
