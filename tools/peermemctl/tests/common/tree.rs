// SPDX-License-Identifier: GPL-2.0
//! The text that describes one machine: a whole machine as examples/record.rs writes it, or an overlay with only the
//! differences from another machine, as examples/overlay.rs writes it. A letter begins each entry:
//!
//!     # text            the situation
//!     F path            a file; a | begins each of its lines, or a \ if it is the last one and has no newline
//!     H path size       a file of bytes; lines of an offset and 32 bytes follow, without those that are all zero
//!     L path -> target  a link
//!     E path            something that is only there
//!     M path            a module file; lines of .modinfo, `needs SYMBOL` and `signer NAME` follow
//!
//! An overlay also has:
//!
//!     base NAME         first, after the situation: this machine has all that the machine NAME has
//!     F H L E M         adds this entry, or replaces the base's
//!     R path            removes the base's entry, or all entries in that folder
//!     P path            patches the lines of the base's entry: -removed, +added. A line after a space stays; it says
//!                       where the next + goes. Each - and each such line means its first match after the one before.

use std::collections::BTreeMap;
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
