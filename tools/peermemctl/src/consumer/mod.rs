// SPDX-License-Identifier: GPL-2.0
//! Programs that register GPU memory, and whether they do with a GPU and a NIC. Each judges by its
//! own rule: the file named in [`Consumer::source`] is where that was read.

pub mod libfabric;
pub mod mooncake;
pub mod nccl;
pub mod nvshmem;
mod rule;
pub mod ucx;

pub use rule::{cured_by, may_see, pairings, pairings_for, Consumer, Does, Pairing, Refusal, Registers, Verdict};

use crate::environment::Environment;
use crate::machine::Machine;

/// All that are known.
pub const ALL: [&Consumer; 7] =
    [&nccl::NCCL, &nccl::GIN, &nccl::SHARP, &ucx::UCX, &nvshmem::NVSHMEM, &libfabric::LIBFABRIC, &mooncake::MOONCAKE];

/// Returns what each program does with each GPU and NIC.
pub fn verdicts(machine: &Machine, environment: &Environment) -> Vec<Verdict> {
    let pairings = pairings_for(machine, environment);
    let of = |consumer: &&'static Consumer| -> Vec<Verdict> {
        pairings.iter().map(|pairing| consumer.judge(pairing, machine, environment)).collect()
    };
    ALL.iter().flat_map(of).collect()
}
