// SPDX-License-Identifier: GPL-2.0
//! `matrix`: what each GPU and each NIC can do together, measured.

use super::topo::Place;
use super::verify::{of_pairs, VerifyPair};
use crate::outcome::Outcome;
use schemars::JsonSchema;
use serde::Serialize;

/// What each GPU and each NIC can do together.
#[derive(Serialize, JsonSchema)]
pub struct Matrix {
    /// Bytes of one RDMA write; each figure is the median of several rounds, whose `spread` is beside it.
    pub message_bytes: u64,
    /// Whether it was measured; of a recorded machine it is what doctor expects.
    pub measured: bool,
    /// What this machine lacks, so that nothing could be measured.
    pub missing: Vec<String>,
    /// NICs that were left out because none of their ports is active.
    pub nics_without_a_link: Vec<String>,
    pub gpus: Vec<Place>,
    pub nics: Vec<Place>,
    pub pairs: Vec<VerifyPair>,
}

impl Matrix {
    /// Returns what the ways say; unknown where there is no pair.
    pub fn outcome(&self) -> Outcome {
        of_pairs(&self.pairs).unwrap_or(Outcome::Unknown)
    }
}
