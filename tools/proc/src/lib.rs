// SPDX-License-Identifier: GPL-2.0
//! Reads the files in /proc/driver/nvidia-peermem (docs/proc.md), which `src/peer/proc.rs`
//! writes. `tests/host/kernel-lite/tests/proc.rs` reads with this crate what the module writes.

pub mod kernel_log;

use std::collections::BTreeMap;

/// The folder of the files.
pub const DIR: &str = "/proc/driver/nvidia-peermem";

/// The format of docs/proc.md that is understood here.
const FORMAT: &str = "1";

/// The file `stats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats(BTreeMap<String, String>);

impl Stats {
    /// Reads the file's text. A line that is no key and value is left out.
    pub fn parse(text: &str) -> Self {
        let pair = |line: &str| line.split_once(' ').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self(text.lines().filter_map(pair).collect())
    }

    /// Returns whether this and the other files have the format that is understood here.
    pub fn is_known(&self) -> bool {
        self.text("format") == Some(FORMAT)
    }

    /// Returns a value.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns a value that is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.text(key)?.parse().ok()
    }

    /// Returns the names of the clients, in the order in which the core asks them.
    pub fn clients(&self) -> Vec<&str> {
        self.text("clients").unwrap_or_default().split_ascii_whitespace().collect()
    }

    /// Returns the GPUs and NICs that met in a registration, and what the GPU driver says of the
    /// two: `supported`, `unsupported`, `unasked`.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.0.iter().filter_map(|(key, value)| {
            let (gpu, nic) = key.strip_prefix("pair.")?.split_once('/')?;
            Some((gpu, nic, value.as_str()))
        })
    }

    /// Returns the numbers whose keys begin with `prefix`, by the rest of their keys.
    pub fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> + 'a {
        self.0.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value.parse().ok()?)))
    }

    /// Returns those of `below()` that are not zero.
    pub fn nonzero<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> + 'a {
        self.below(prefix).filter(|(_, count)| *count > 0)
    }
}

/// A line of `registrations`, `failures` or `callbacks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(BTreeMap<String, String>);

impl Row {
    /// Reads a line. What names no process is no row.
    pub fn parse(line: &str) -> Option<Self> {
        // `text` comes last and runs to the end of the line.
        let (fields, text) = match line.split_once(" text=") {
            Some((fields, text)) => (fields, Some(text)),
            None => (line, None),
        };
        let fields = fields.split(' ').filter_map(|field| field.split_once('='));
        let fields = fields.chain(text.map(|text| ("text", text)));
        let row = Self(fields.map(|(key, value)| (key.to_owned(), unescaped(value))).collect());
        row.text("pid").is_some().then_some(row)
    }

    /// Returns the names of the fields.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns a field without its escapes.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns a field whose value the module knows.
    pub fn known(&self, key: &str) -> Option<&str> {
        self.text(key).filter(|value| !value.is_empty() && *value != "-")
    }

    /// Returns a field that is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        let value = self.text(key)?;
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    }
}

/// Reads the text of `registrations`, `failures` or `callbacks`.
pub fn rows(text: &str) -> impl Iterator<Item = Row> + '_ {
    text.lines().filter_map(Row::parse)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_spaces_of_text_and_comm() {
        let row = Row::parse(r"seq=3 pid=7 comm=a\040b\134 errno=12 found=- text=BAR1 is full; see x=y").unwrap();
        assert!(Row::parse("").is_none() && Row::parse("half of a row=").is_none());
        assert_eq!(row.text("comm"), Some(r"a b\"));
        assert_eq!(row.text("text"), Some("BAR1 is full; see x=y"));
        assert_eq!((row.known("found"), row.number("found"), row.text("x")), (None, None, None));
        assert_eq!(row.number("errno"), Some(12));
        assert_eq!(row.keys().collect::<Vec<_>>(), ["comm", "errno", "found", "pid", "seq", "text"]);
    }

    #[test]
    fn a_value_that_the_module_does_not_know_is_none() {
        let text = "pid=1 found=- nic=\nno row\npid=2 found=hole nic=0000:00:04.0\n";
        let [unknown, known] = &rows(text).collect::<Vec<_>>()[..] else { panic!("two rows") };
        assert_eq!((unknown.known("found"), unknown.known("nic"), unknown.known("none")), (None, None, None));
        assert_eq!((known.known("found"), known.known("nic")), (Some("hole"), Some("0000:00:04.0")));
    }

    #[test]
    fn stats_ignore_what_they_do_not_know() {
        let stats = Stats::parse(
            "format 1\nclients nv_mem nv_mem_nc\nnew.thing a b c\ntotal.live 3\nrefused.busy 0\nrefused.freed 2\npair.0000:00:08.0/0000:00:04.0 unasked\n",
        );
        assert_eq!((stats.number("total.live"), stats.number("nothing")), (Some(3), None));
        assert_eq!(stats.clients(), ["nv_mem", "nv_mem_nc"]);
        assert_eq!(stats.below("refused.").collect::<Vec<_>>(), [("busy", 0), ("freed", 2)]);
        assert_eq!(stats.nonzero("refused.").collect::<Vec<_>>(), [("freed", 2)]);
        assert_eq!(stats.pairs().collect::<Vec<_>>(), [("0000:00:08.0", "0000:00:04.0", "unasked")]);
    }

    #[test]
    fn another_format_is_not_known() {
        assert!(Stats::parse("format 1\n").is_known());
        for text in ["", "format 2\n", "format 10\n", "version 1\n"] {
            assert!(!Stats::parse(text).is_known(), "{text:?}");
        }
    }
}
