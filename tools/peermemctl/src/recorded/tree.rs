// SPDX-License-Identifier: GPL-2.0
//! The text that describes one machine: a whole machine as `peermemctl record` writes it, or an
//! overlay with only the differences from another machine, as examples/overlay.rs writes it. A
//! letter begins each entry:
//!
//! ```text
//! # text            the situation
//! ? LEVEL id        what doctor finds there: the finding that the situation is about first
//! ? UNKNOWN         that the verdict is unknown
//! F path            a file; a | begins each of its lines, or a \ the last one without a newline
//! H path size       a file of bytes; lines of an offset and 32 bytes follow, unless all are zero
//! L path -> target  a link
//! E path            something that is only there
//! M path            a module file; lines of .modinfo, `needs SYMBOL`, `wants SYMBOL VERSION`,
//!                   `exports SYMBOL VERSION` and `signer NAME` follow
//! ```
//!
//! An overlay also has:
//!
//! ```text
//! base NAME         after the situation: this machine has all that the machine NAME has
//! F H L E M         adds this entry, or replaces the base's
//! R path            removes the base's entry, or all entries in that folder
//! P path            patches the lines of the base's entry: -removed, +added. A line after a
//!                   space stays; it says where the next + goes. Each - and each such line
//!                   means its first match after the one before.
//! ```

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// One machine.
#[derive(Default)]
pub struct Tree {
    /// The situation that it is in.
    pub about: String,
    /// The findings of doctor there, such as `FAIL api.exported`.
    pub findings: Vec<String>,
    /// The machine that its file extends.
    pub base: Option<String>,
    /// The entries by path.
    pub entries: BTreeMap<String, Entry>,
}

#[derive(PartialEq)]
pub struct Entry {
    /// `F`, `H`, `L`, `E` or `M`; in an overlay also `R` or `P`.
    pub kind: String,
    /// The text that follows the path in the first line.
    pub rest: String,
    /// The other lines.
    pub lines: Vec<String>,
}

impl Tree {
    /// Reads the machine in `file`. Its base, if it has one, is in the same folder.
    pub fn read(file: &Path) -> Result<Self> {
        Self::read_base(file, 0)
    }

    fn read_base(file: &Path, depth: usize) -> Result<Self> {
        /// The most bases that may stand on one another. No real machine has as many.
        const DEEPEST: usize = 32;
        if depth > DEEPEST {
            bail!("{}: more than {DEEPEST} bases, one on another: does one stand on itself?", file.display());
        }
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Self::parse_at(&text, file, depth)
    }

    /// Reads the machine that `text` describes; `file` is where it is or would be.
    pub fn parse(text: &str, file: &Path) -> Result<Self> {
        Self::parse_at(text, file, 0)
    }

    fn parse_at(text: &str, file: &Path, depth: usize) -> Result<Self> {
        let mut tree = Self::default();
        let (mut about, mut base, mut findings) = (String::new(), None, Vec::new());
        let mut own: Vec<(String, Entry)> = Vec::new();
        for line in text.lines() {
            match line.split_once(' ') {
                _ if line.starts_with(['|', '\\', '+', '-', ' ']) => {
                    let (_, entry) = own.last_mut().with_context(|| format!("a line without an entry: {line}"))?;
                    entry.lines.push(line.to_owned());
                }
                Some(("#", text)) => about = text.to_owned(),
                Some(("?", finding)) => findings.push(finding.to_owned()),
                Some(("base", name)) => {
                    tree = Self::read_base(&file.with_file_name(format!("{name}.tree")), depth + 1)?;
                    base = Some(name.to_owned());
                }
                Some((kind @ ("F" | "H" | "L" | "E" | "M" | "R" | "P"), path)) => {
                    let (path, rest) = path.split_once(' ').unwrap_or((path, ""));
                    let entry = Entry { kind: kind.to_owned(), rest: rest.to_owned(), lines: Vec::new() };
                    own.push((path.to_owned(), entry));
                }
                _ => bail!("{} is no recorded machine: {line}", file.display()),
            }
        }
        (tree.about, tree.base, tree.findings) = (about, base, findings);
        for (path, entry) in own {
            tree.change(&path, entry).with_context(|| format!("{}: {path}", file.display()))?;
        }
        Ok(tree)
    }

    /// Changes an entry as an entry of an overlay says.
    fn change(&mut self, path: &str, entry: Entry) -> Result<()> {
        match entry.kind.as_str() {
            "R" => {
                let before = self.entries.len();
                self.entries.retain(|other, _| !Path::new(other).starts_with(path));
                if self.entries.len() == before {
                    bail!("there is nothing to remove");
                }
            }
            "P" => {
                let old = self.entries.get_mut(path).context("there is nothing to patch")?;
                old.lines = patched(&old.lines, &entry.lines)?;
            }
            _ => drop(self.entries.insert(path.to_owned(), entry)),
        }
        Ok(())
    }
}

/// Applies a patch to the lines of an entry. The lines of the patch have a sign instead of the |.
fn patched(old: &[String], patch: &[String]) -> Result<Vec<String>> {
    let mut new = Vec::new();
    let mut rest = old.iter();
    for line in patch {
        let (sign, text) = line.split_at(1);
        let text = format!("|{text}");
        if sign == "+" {
            new.push(text);
            continue;
        }
        loop {
            let line = rest.next().with_context(|| format!("no line {text} to patch"))?;
            if *line == text {
                break;
            }
            new.push(line.clone());
        }
        if sign == " " {
            new.push(text);
        }
    }
    new.extend(rest.cloned());
    Ok(new)
}
