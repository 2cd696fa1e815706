// SPDX-License-Identifier: GPL-2.0
//! Keeps the last operations of a process in a file that outlives it, because the process may be
//! killed, or hang.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// The number of operations that are kept, and the bytes for each.
const KEPT: u64 = 24;
const BYTES: usize = 160;

fn path(process: u64) -> PathBuf {
    PathBuf::from(format!("/tmp/storm-{process}"))
}

pub struct Log {
    file: File,
    next: u64,
}

impl Log {
    /// Opens the log. With `fresh`, it removes what an earlier run left. `next` is the number of
    /// lines that an earlier life wrote.
    pub fn open(process: u64, fresh: bool, next: u64) -> Result<Self> {
        let path = path(process);
        let file = OpenOptions::new()
            .create(true)
            .truncate(fresh)
            .write(true)
            .read(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        Ok(Self { file, next })
    }

    /// Writes down what is about to be done, or its outcome.
    pub fn line(&mut self, text: &str) -> Result<()> {
        let mut record = [b' '; BYTES];
        let text = format!("{:>6} {text}", self.next);
        let len = text.len().min(BYTES - 1);
        record[..len].copy_from_slice(&text.as_bytes()[..len]);
        record[BYTES - 1] = b'\n';
        let at = self.next % KEPT * BYTES as u64;
        self.next += 1;
        self.file.write_all_at(&record, at).context("write the storm's log")
    }
}

/// Returns the last lines of a process, beginning with the oldest.
pub fn last(process: u64) -> Vec<String> {
    let text = std::fs::read(path(process)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let number = |l: &str| l.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let mut lines: Vec<String> = text.lines().map(|l| l.trim_end().to_string()).collect();
    lines.sort_by_key(|l| number(l));
    lines
}
