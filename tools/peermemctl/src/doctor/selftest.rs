// SPDX-License-Identifier: GPL-2.0
//! Section 11: whether a registration of our own would have what it needs. `doctor` touches no GPU.

use crate::check::Check;
use crate::machine::Machine;

pub fn checks(machine: &Machine) -> Vec<Check> {
    const ID: &str = "selftest";
    let missing = if machine.loaded.is_none() {
        "nvidia_peermem is not loaded"
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
