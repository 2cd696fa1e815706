// SPDX-License-Identifier: GPL-2.0
//! `list`: live registrations by process.

use super::told::told;
use crate::kernel;
use crate::peermem::{self, Registration};
use crate::root::Root;
use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Live registrations.
#[derive(Serialize, JsonSchema)]
pub struct List {
    /// The most bytes first.
    pub processes: Vec<Process>,
    /// How often the module is in use; it can be unloaded at 0. `null` on a kernel that unloads no
    /// module.
    pub references: Option<i64>,
}

/// A process and what it has registered.
#[derive(Serialize, JsonSchema)]
pub struct Process {
    pub pid: u32,
    pub comm: String,
    /// `null` in a container, whose process numbers are not those that the module writes.
    pub alive: Option<bool>,
    pub bytes: u64,
    pub registrations: Vec<Registration>,
}

impl Process {
    /// Returns whether the process holds what nobody will use again: it is gone, or another process
    /// deregistered one of its registrations.
    pub(super) fn is_stale(&self) -> bool {
        self.alive == Some(false) || self.registrations.iter().any(|row| row.state == "orphan")
    }
}

/// The registrations that are asked for; `None` in a field asks for any.
#[derive(Default)]
pub struct Wanted {
    pub pid: Option<u32>,
    /// PCI address.
    pub gpu: Option<String>,
    /// PCI address.
    pub nic: Option<String>,
}

impl Wanted {
    fn is(&self, row: &Registration) -> bool {
        let fits = |wanted: &Option<String>, is: &Option<String>| wanted.is_none() || wanted == is;
        self.pid.is_none_or(|pid| pid == row.pid) && fits(&self.gpu, &row.gpu) && fits(&self.nic, &row.nic)
    }
}

/// Answers `list`.
pub fn list(root: &Root, wanted: &Wanted) -> Result<List> {
    let registrations = told(root, peermem::registrations(root))?;
    let mut by_process: BTreeMap<(u32, String), Process> = BTreeMap::new();
    for row in registrations.iter().filter(|row| wanted.is(row)) {
        let process = by_process.entry((row.pid, row.comm.clone())).or_insert_with(|| Process {
            pid: row.pid,
            comm: row.comm.clone(),
            alive: row.process_alive,
            bytes: 0,
            registrations: Vec::new(),
        });
        process.bytes = process.bytes.saturating_add(row.pinned_bytes);
        process.registrations.push(row.clone());
    }
    let mut processes: Vec<Process> = by_process.into_values().collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
    let references = kernel::loaded_modules(root).get(crate::machine::NAME).map_or(Some(0), |module| module.refcount);
    Ok(List { processes, references })
}
