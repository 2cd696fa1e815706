// SPDX-License-Identifier: GPL-2.0
//! `explain`: what a check looks at, and why it matters.

use crate::catalogue;
use crate::consumer;
use anyhow::{bail, Result};
use schemars::JsonSchema;
use serde::Serialize;

/// Checks and what there is to know of each.
#[derive(Serialize, JsonSchema)]
pub struct Explanations {
    pub checks: Vec<Explanation>,
}

/// What there is to know of a check.
#[derive(Serialize, JsonSchema)]
pub struct Explanation {
    pub id: &'static str,
    /// What it looks at.
    pub looks: &'static str,
    /// Why that matters, and how it is judged.
    pub why: &'static str,
    /// The source of the rule by which it judges, if the rule is another program's.
    pub source: Option<&'static str>,
}

/// Answers `explain`.
pub fn explain(id: Option<&str>) -> Result<Explanations> {
    let wanted = |entry: &&catalogue::Entry| id.is_none_or(|id| id == entry.id);
    let source = |id: &str| consumer::ALL.iter().find(|consumer| consumer.id == id).map(|consumer| consumer.source);
    let checks = catalogue::CHECKS.iter().filter(wanted);
    let checks = checks.map(|e| Explanation { id: e.id, looks: e.looks, why: e.why, source: source(e.id) });
    let checks: Vec<_> = checks.collect();
    if checks.is_empty() {
        bail!("there is no check {}; peermemctl explain lists all", id.unwrap_or_default());
    }
    Ok(Explanations { checks })
}
