// SPDX-License-Identifier: GPL-2.0
//! Section 11: whether a registration of our own would have what it needs. `doctor` touches no GPU.

use crate::check::Check;
use crate::machine::Machine;

pub fn checks(machine: &Machine) -> Vec<Check> {
    const ID: &str = "selftest";
    let no_way = machine.loaded.is_none() && !machine.dma_buf();
    let missing = if no_way {
        "nvidia_peermem is not loaded, and dma-buf does not work"
    } else if machine.rdma.is_empty() {
        "there is no RDMA device"
    } else if machine.gpus().is_empty() {
        "there is no GPU"
    } else {
        return vec![Check::skip(
            ID,
            "doctor changes nothing; peermemctl selftest registers GPU memory and writes to it",
        )];
    };
    vec![Check::skip(ID, format!("not possible: {missing}"))]
}
