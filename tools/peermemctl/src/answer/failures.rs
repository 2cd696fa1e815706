// SPDX-License-Identifier: GPL-2.0
//! `failures`: the last refusals.

use super::told::told;
use crate::peermem::{self, Failure};
use crate::root::Root;
use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

/// The last refusals.
#[derive(Serialize, JsonSchema)]
pub struct Failures {
    /// The oldest first.
    pub failures: Vec<Failure>,
}

/// Answers `failures`.
pub fn failures(root: &Root) -> Result<Failures> {
    Ok(Failures { failures: told(root, peermem::failures(root))? })
}
