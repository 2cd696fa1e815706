// SPDX-License-Identifier: GPL-2.0
//! The text that describes one machine: a whole machine as examples/record.rs writes it, or an
//! overlay with only the differences from another machine, as examples/overlay.rs writes it. A
//! letter begins each entry:
//!
//!     # text            the situation
//!     F path            a file; a | begins each of its lines, or a \ the last one without a newline
//!     H path size       a file of bytes; lines of an offset and 32 bytes follow, unless all are zero
//!     L path -> target  a link
//!     E path            something that is only there
//!     M path            a module file; lines of .modinfo, `needs SYMBOL` and `signer NAME` follow
//!
//! An overlay also has:
//!
//!     base NAME         first, after the situation: this machine has all that the machine NAME has
//!     F H L E M         adds this entry, or replaces the base's
//!     R path            removes the base's entry, or all entries in that folder
//!     P path            patches the lines of the base's entry: -removed, +added. A line after a
//!                       space stays; it says where the next + goes. Each - and each such line
//!                       means its first match after the one before.

use similar::{capture_diff_slices, Algorithm, DiffOp};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// One machine.
#[derive(Default)]
pub struct Tree {
    /// What situation it is in.
    pub about: String,
    /// The machine that its file extends.
    pub base: Option<String>,
    /// The entries by path.
    pub entries: BTreeMap<String, Entry>,
}

#[derive(PartialEq)]
pub struct Entry {
    /// `F`, `H`, `L`, `E` or `M`; in an overlay also `R` or `P`.
    pub kind: String,
    /// What follows the path in the first line.
    pub rest: String,
    /// The other lines.
    pub lines: Vec<String>,
}

impl Tree {
    /// Reads the machine in `file`. Its base, if it has one, is in the same folder.
    pub fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::parse(&text, file)
    }

    /// Reads the machine that `text` describes; `file` is where it is or would be.
    pub fn parse(text: &str, file: &Path) -> Self {
        let mut tree = Self::default();
        let (mut about, mut base) = (String::new(), None);
        let mut own: Vec<(String, Entry)> = Vec::new();
        for line in text.lines() {
            match line.split_once(' ') {
                _ if line.starts_with(['|', '\\', '+', '-', ' ']) => {
                    own.last_mut().expect("a line without an entry").1.lines.push(line.to_owned());
                }
                Some(("#", text)) => about = text.to_owned(),
                Some(("base", name)) => {
                    tree = Self::read(&file.with_file_name(format!("{name}.tree")));
                    base = Some(name.to_owned());
                }
                Some((kind, path)) => {
                    let (path, rest) = path.split_once(' ').unwrap_or((path, ""));
                    let entry = Entry { kind: kind.to_owned(), rest: rest.to_owned(), lines: Vec::new() };
                    own.push((path.to_owned(), entry));
                }
                None => panic!("{}: {line}", file.display()),
            }
        }
        (tree.about, tree.base) = (about, base);
        for (path, entry) in own {
            tree.change(&path, entry).unwrap_or_else(|error| panic!("{}: {path}: {error}", file.display()));
        }
        tree
    }

    /// The text of this machine as an overlay of `base`, whose name is `name`.
    pub fn overlay(&self, name: &str, base: &Self) -> String {
        let mut text = format!("# {}\nbase {name}\n", self.about);
        let mut removed = "";
        for path in base.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            if removed.is_empty() || !Path::new(path).starts_with(removed) {
                removed = self.gone(path);
                writeln!(text, "R {removed}").unwrap();
            }
        }
        for (path, entry) in self.entries.iter().filter(|(path, entry)| base.entries.get(*path) != Some(entry)) {
            let patch = base.entries.get(path).and_then(|old| patch(old, entry));
            let (kind, rest, lines) = match &patch {
                Some(patch) if patch.len() < entry.lines.len() => ("P", "", patch),
                _ => (entry.kind.as_str(), entry.rest.as_str(), &entry.lines),
            };
            writeln!(text, "{}", format!("{kind} {path} {rest}").trim_end()).unwrap();
            for line in lines {
                writeln!(text, "{line}").unwrap();
            }
        }
        text
    }

    /// The topmost folder of `path` in which this machine has nothing; `path` itself if it has
    /// something in each.
    fn gone<'a>(&self, path: &'a str) -> &'a str {
        let is_gone = |folder: &&Path| !self.entries.keys().any(|other| Path::new(other).starts_with(folder));
        let gone = Path::new(path).ancestors().take_while(is_gone).last();
        gone.and_then(Path::to_str).unwrap_or(path)
    }

    /// Does what an entry of an overlay says.
    fn change(&mut self, path: &str, entry: Entry) -> Result<(), String> {
        match entry.kind.as_str() {
            "R" => {
                let before = self.entries.len();
                self.entries.retain(|other, _| !Path::new(other).starts_with(path));
                if self.entries.len() == before {
                    return Err("there is nothing to remove".to_owned());
                }
            }
            "P" => {
                let old = self.entries.get_mut(path).ok_or("there is nothing to patch")?;
                old.lines = patched(&old.lines, &entry.lines)?;
            }
            _ => drop(self.entries.insert(path.to_owned(), entry)),
        }
        Ok(())
    }
}

/// The lines of an entry after a patch. Those of the patch have a sign instead of the |.
fn patched(old: &[String], patch: &[String]) -> Result<Vec<String>, String> {
    let mut new = Vec::new();
    let mut rest = old;
    for line in patch {
        let (sign, text) = line.split_at(1);
        let text = format!("|{text}");
        if sign == "+" {
            new.push(text);
            continue;
        }
        let at = rest.iter().position(|line| *line == text).ok_or(format!("no line {text} to patch"))?;
        new.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        if sign == " " {
            new.push(text);
        }
    }
    new.extend_from_slice(rest);
    Ok(new)
}

/// The patch that makes `new` of `old`, if a patch can.
fn patch(old: &Entry, new: &Entry) -> Option<Vec<String>> {
    // A patch changes lines only, and lines of one sort.
    let of_one_sort = |entry: &Entry| entry.lines.iter().all(|line| line.starts_with('|'));
    if (&old.kind, &old.rest) != (&new.kind, &new.rest) || !of_one_sort(old) || !of_one_sort(new) {
        return None;
    }
    let mut patch = Vec::new();
    let mut sign = |sign: char, line: &String| patch.push(format!("{sign}{}", &line[1..]));
    // The lines of `old` before this one are done.
    let mut done = 0;
    for op in capture_diff_slices(Algorithm::Myers, &old.lines, &new.lines) {
        if matches!(op, DiffOp::Equal { .. }) {
            continue;
        }
        let (removed, added) = (op.old_range(), op.new_range());
        // What is only added goes behind the line before.
        let place = if removed.is_empty() { removed.start.saturating_sub(1) } else { removed.start };
        let stays = removed.is_empty() && removed.start > done;
        // The first match must be the place: matches on the way there are named, too.
        if stays || !removed.is_empty() {
            while let Some(early) = (done..place).find(|early| old.lines[*early] == old.lines[place]) {
                sign(' ', &old.lines[early]);
                done = early + 1;
            }
        }
        if stays {
            sign(' ', &old.lines[place]);
        }
        for n in removed.clone() {
            sign('-', &old.lines[n]);
        }
        for n in added {
            sign('+', &new.lines[n]);
        }
        done = removed.end;
    }
    Some(patch)
}
