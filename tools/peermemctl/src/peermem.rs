// SPDX-License-Identifier: GPL-2.0
//! What the module tells in /proc/driver/nvidia-peermem: see docs/proc.md.

use crate::kernel;
use crate::root::{Missing, Root};
use peermem_proc::Row;
use schemars::JsonSchema;
use serde::Serialize;

pub use peermem_proc::{Stats, DIR};

/// The message about files of another format; the next constant says what to do about it.
pub const UNKNOWN: &str = "the module's files have a format that this peermemctl does not know";
pub const KNOW_IT: &str = "install the peermemctl that comes with the module";

/// A callback this old has stopped the GPU driver for all its users.
pub const STUCK_MS: u64 = 10_000;

/// A row of `registrations`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Registration {
    /// Process that registered, by its number in the initial namespace.
    pub pid: u32,
    /// Its name when it registered.
    pub comm: String,
    pub client: String,
    /// `persistent` or `revocable`.
    pub kind: String,
    pub state: String,
    /// Address in the process.
    pub va: u64,
    /// Bytes asked for.
    pub length: u64,
    /// Bytes pinned for it.
    pub pinned_bytes: u64,
    /// Allocations, or parts of one, that were pinned apart.
    pub pieces: u64,
    /// Bytes of each page that the GPU driver pinned; 0 where the module does not tell.
    pub page_size: u64,
    pub runs: u64,
    /// PCI address of the GPU, once mapped.
    pub gpu: Option<String>,
    /// PCI address of the NIC, once mapped.
    pub nic: Option<String>,
    pub age_ms: u64,
    /// Whether a process of that number still exists; `null` in a container, whose numbers are
    /// others.
    pub process_alive: Option<bool>,
}

/// A row of `failures`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Failure {
    pub seq: u64,
    /// Seconds since 1970.
    pub time: f64,
    pub pid: u32,
    pub comm: String,
    pub client: String,
    pub va: u64,
    pub length: u64,
    pub errno: i32,
    /// One of the names in docs/proc.md.
    pub reason: String,
    /// The offending number or address, of some reasons.
    pub found: Option<String>,
    /// The reason in words, and what to do.
    pub text: String,
}

/// A row of `callbacks`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Callback {
    pub pid: u32,
    pub comm: String,
    pub client: String,
    pub va: u64,
    pub length: u64,
    /// `entered` or `invalidating`.
    pub stage: String,
    pub age_ms: u64,
}

/// Reads the file `stats`. `Absent` means that the loaded module is not ours, or that there is
/// none. `Unknown` goes for the other files as well.
pub fn stats(root: &Root) -> Result<Stats, Missing> {
    let stats = Stats::parse(&root.text(&format!("{DIR}/stats"))?);
    match stats.is_known() {
        true => Ok(stats),
        false => Err(Missing::Unknown),
    }
}

/// Reads one of the files of rows.
fn rows<T>(root: &Root, file: &str, read: impl Fn(&Row) -> T) -> Result<Vec<T>, Missing> {
    stats(root)?;
    let text = root.text(&format!("{DIR}/{file}"))?;
    Ok(peermem_proc::rows(&text).map(|row| read(&row)).collect())
}

/// Returns a field as text, which is empty if the row has no such field.
fn text(row: &Row, key: &str) -> String {
    row.text(key).unwrap_or_default().to_owned()
}

/// Returns a field as a number, which is 0 if the module does not tell one.
fn number(row: &Row, key: &str) -> u64 {
    row.number(key).unwrap_or(0)
}

fn pid(row: &Row) -> u32 {
    u32::try_from(number(row, "pid")).unwrap_or(0)
}

fn registration(row: &Row) -> Registration {
    Registration {
        pid: pid(row),
        comm: text(row, "comm"),
        client: text(row, "client"),
        kind: text(row, "kind"),
        state: text(row, "state"),
        va: number(row, "va"),
        length: number(row, "length"),
        pinned_bytes: number(row, "pinned_bytes"),
        pieces: number(row, "pieces"),
        page_size: number(row, "page_size"),
        runs: number(row, "runs"),
        gpu: row.known("gpu").map(str::to_owned),
        nic: row.known("nic").map(str::to_owned),
        age_ms: number(row, "age_ms"),
        process_alive: None,
    }
}

fn failure(row: &Row) -> Failure {
    Failure {
        seq: number(row, "seq"),
        time: text(row, "time").parse().unwrap_or(0.0),
        pid: pid(row),
        comm: text(row, "comm"),
        client: text(row, "client"),
        va: number(row, "va"),
        length: number(row, "length"),
        errno: i32::try_from(number(row, "errno")).unwrap_or(0),
        reason: text(row, "reason"),
        found: row.known("found").map(str::to_owned),
        text: text(row, "text"),
    }
}

fn callback(row: &Row) -> Callback {
    Callback {
        pid: pid(row),
        comm: text(row, "comm"),
        client: text(row, "client"),
        va: number(row, "va"),
        length: number(row, "length"),
        stage: text(row, "stage"),
        age_ms: number(row, "age_ms"),
    }
}

/// Returns the live registrations; those of the most bytes come first.
pub fn registrations(root: &Root) -> Result<Vec<Registration>, Missing> {
    let mut rows = rows(root, "registrations", registration)?;
    if kernel::has_initial_pids(root) {
        for row in &mut rows {
            row.process_alive = Some(root.exists(&format!("/proc/{}/comm", row.pid)));
        }
    }
    rows.sort_by_key(|row| (std::cmp::Reverse(row.pinned_bytes), row.pid, row.va));
    Ok(rows)
}

/// Returns the last refusals; the oldest comes first.
pub fn failures(root: &Root) -> Result<Vec<Failure>, Missing> {
    rows(root, "failures", failure)
}

/// Returns the free callbacks that run now; the oldest comes first.
pub fn callbacks(root: &Root) -> Result<Vec<Callback>, Missing> {
    let mut rows = rows(root, "callbacks", callback)?;
    rows.sort_by_key(|row| std::cmp::Reverse(row.age_ms));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// docs/proc.md shows a row of each file; tests/host compares it with what the module writes.
    #[test]
    fn each_field_of_the_documented_rows_is_read() {
        let rows: Vec<Row> = include_str!("../../../docs/proc.md").lines().filter_map(Row::parse).collect();
        let [listed, refused, running] = rows.as_slice() else { panic!("{rows:?}") };
        let read = (json!(registration(listed)), json!(failure(refused)), json!(callback(running)));
        let va = 0x7f95_ffe0_0000_u64;
        let wanted = (
            json!({
                "pid": 812, "comm": "ib_write_bw", "client": "nv_mem", "kind": "persistent", "state": "mapped",
                "va": va, "length": 131_072, "pinned_bytes": 131_072, "pieces": 1, "page_size": 65_536, "runs": 1,
                "gpu": "0000:00:04.0", "nic": "0000:00:03.0", "age_ms": 1520, "process_alive": null,
            }),
            json!({
                "seq": 3, "time": 1_763_635_473.123, "pid": 812, "comm": "ib_write_bw", "client": "nv_mem",
                "va": va, "length": 1_u64 << 30, "errno": 12, "reason": "out_of_bar", "found": null,
                "text": "its start can be pinned but not all of it: BAR1 is full; see ...",
            }),
            json!({
                "pid": 812, "comm": "app", "client": "nv_mem_rv", "va": va, "length": 131_072,
                "stage": "invalidating", "age_ms": 12,
            }),
        );
        assert_eq!(read, wanted);
    }
}
