// SPDX-License-Identifier: GPL-2.0
//! What the module tells in /proc/driver/nvidia-peermem: see docs/proc.md.

use crate::kernel;
use crate::root::{Missing, Root};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The module's directory.
pub const DIR: &str = "/proc/driver/nvidia-peermem";

/// The format of docs/proc.md that is understood here.
const FORMAT: &str = "1";
/// What is wrong with another one, and what to do about it.
pub const UNKNOWN: &str = "the module's files have a format that this peermemctl does not know";
pub const KNOW_IT: &str = "install the peermemctl that comes with the module";

/// The file `stats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats(BTreeMap<String, String>);

impl Stats {
    /// Reads the file. `Absent`: the loaded module is not ours, or there is none. `Unknown` goes
    /// for the other files as well.
    pub fn read(root: &Root) -> Result<Self, Missing> {
        let stats = Self::parse(&root.text(&format!("{DIR}/stats"))?);
        match stats.text("format") {
            Some(FORMAT) => Ok(stats),
            _ => Err(Missing::Unknown),
        }
    }

    pub(crate) fn parse(text: &str) -> Self {
        let pair = |line: &str| line.split_once(' ').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self(text.lines().filter_map(pair).collect())
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }

    /// Names of the clients, in the order in which the core asks them.
    pub fn clients(&self) -> Vec<&str> {
        self.text("clients").unwrap_or_default().split_ascii_whitespace().collect()
    }

    /// GPUs and NICs that met in a registration, and what the GPU driver says of the two:
    /// `supported`, `unsupported`, `unasked`.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.0.iter().filter_map(|(key, value)| {
            let (gpu, nic) = key.strip_prefix("pair.")?.split_once('/')?;
            Some((gpu, nic, value.as_str()))
        })
    }

    /// All keys and values that are numbers.
    pub fn numbers(&self) -> BTreeMap<String, u64> {
        self.0.iter().filter_map(|(key, value)| Some((key.clone(), value.parse().ok()?))).collect()
    }

    /// The counters below a prefix that are not zero.
    pub fn nonzero<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> + 'a {
        self.0.iter().filter_map(move |(key, value)| {
            let count = value.parse().ok().filter(|count| *count > 0)?;
            Some((key.strip_prefix(prefix)?, count))
        })
    }
}

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

/// One line of fields.
struct Row<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Row<'a> {
    /// Reads a line; what names no process is no row.
    fn parse(line: &'a str) -> Option<Self> {
        // `text` comes last and runs to the end of the line.
        let (fields, text) = match line.split_once(" text=") {
            Some((fields, text)) => (fields, Some(text)),
            None => (line, None),
        };
        let fields = fields.split(' ').filter_map(|field| field.split_once('='));
        let row = Self(fields.chain(text.map(|text| ("text", text))).collect());
        row.0.contains_key("pid").then_some(row)
    }

    fn text(&self, key: &str) -> String {
        self.0.get(key).map_or(String::new(), |value| unescaped(value))
    }

    fn known(&self, key: &str) -> Option<String> {
        Some(self.text(key)).filter(|value| !value.is_empty() && value != "-")
    }

    fn number(&self, key: &str) -> u64 {
        let Some(value) = self.0.get(key) else { return 0 };
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap_or(0),
            None => value.parse().unwrap_or(0),
        }
    }

    fn pid(&self) -> u32 {
        u32::try_from(self.number("pid")).unwrap_or(0)
    }
}

/// Undoes `\ooo`.
fn unescaped(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or(&[]);
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text of one of the files of rows.
fn rows(root: &Root, file: &str) -> Result<String, Missing> {
    Stats::read(root)?;
    root.text(&format!("{DIR}/{file}"))
}

/// Live registrations; those of the most bytes first.
pub fn registrations(root: &Root) -> Result<Vec<Registration>, Missing> {
    let text = rows(root, "registrations")?;
    let has_initial_pids = kernel::has_initial_pids(root);
    let mut rows: Vec<Registration> = text
        .lines()
        .filter_map(Row::parse)
        .map(|row| Registration {
            pid: row.pid(),
            comm: row.text("comm"),
            client: row.text("client"),
            kind: row.text("kind"),
            state: row.text("state"),
            va: row.number("va"),
            length: row.number("length"),
            pinned_bytes: row.number("pinned_bytes"),
            pieces: row.number("pieces"),
            page_size: row.number("page_size"),
            runs: row.number("runs"),
            gpu: row.known("gpu"),
            nic: row.known("nic"),
            age_ms: row.number("age_ms"),
            process_alive: has_initial_pids.then(|| root.exists(&format!("/proc/{}/comm", row.pid()))),
        })
        .collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.pinned_bytes), row.pid, row.va));
    Ok(rows)
}

/// The last refusals, oldest first.
pub fn failures(root: &Root) -> Result<Vec<Failure>, Missing> {
    let text = rows(root, "failures")?;
    Ok(text
        .lines()
        .filter_map(Row::parse)
        .map(|row| Failure {
            seq: row.number("seq"),
            time: row.text("time").parse().unwrap_or(0.0),
            pid: row.pid(),
            comm: row.text("comm"),
            client: row.text("client"),
            va: row.number("va"),
            length: row.number("length"),
            errno: i32::try_from(row.number("errno")).unwrap_or(0),
            reason: row.text("reason"),
            found: row.known("found"),
            text: row.text("text"),
        })
        .collect())
}

/// Free callbacks that run now; the oldest first.
pub fn callbacks(root: &Root) -> Result<Vec<Callback>, Missing> {
    let text = rows(root, "callbacks")?;
    let mut rows: Vec<Callback> = text
        .lines()
        .filter_map(Row::parse)
        .map(|row| Callback {
            pid: row.pid(),
            comm: row.text("comm"),
            client: row.text("client"),
            va: row.number("va"),
            length: row.number("length"),
            stage: row.text("stage"),
            age_ms: row.number("age_ms"),
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.age_ms));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_spaces_of_text_and_comm() {
        let row = Row::parse(r"seq=3 pid=7 comm=a\040b\134 errno=12 found=- text=BAR1 is full; see x=y").unwrap();
        assert!(Row::parse("").is_none() && Row::parse("half of a row=").is_none());
        assert_eq!(row.text("comm"), r"a b\");
        assert_eq!(row.text("text"), "BAR1 is full; see x=y");
        assert_eq!(row.known("found"), None);
        assert_eq!(row.number("errno"), 12);
    }

    #[test]
    fn stats_ignore_what_they_do_not_know() {
        let stats = Stats::parse(
            "format 1\nnew.thing a b c\ntotal.live 3\nrefused.busy 0\nrefused.freed 2\npair.0000:00:08.0/0000:00:04.0 unasked\n",
        );
        assert_eq!(stats.number("total.live"), Some(3));
        assert_eq!(stats.nonzero("refused.").collect::<Vec<_>>(), [("freed", 2)]);
        assert_eq!(stats.pairs().collect::<Vec<_>>(), [("0000:00:08.0", "0000:00:04.0", "unasked")]);
    }
}
