// SPDX-License-Identifier: GPL-2.0
//! Writes a recorded machine as an overlay of another one: src/recorded/tree.rs describes the
//! format.

use peermemctl::recorded::tree::{Entry, Tree};
use similar::{capture_diff_slices, Algorithm, DiffOp};
use std::fmt::Write;
use std::path::Path;

/// The text of `tree` as an overlay of `base`, whose name is `name`.
pub fn overlay(tree: &Tree, name: &str, base: &Tree) -> String {
    let mut text = format!("# {}\n", tree.about);
    for finding in &tree.findings {
        writeln!(text, "? {finding}").unwrap();
    }
    writeln!(text, "base {name}").unwrap();
    let mut removed = "";
    for path in base.entries.keys().filter(|path| !tree.entries.contains_key(*path)) {
        if removed.is_empty() || !Path::new(path).starts_with(removed) {
            removed = gone(tree, path);
            writeln!(text, "R {removed}").unwrap();
        }
    }
    for (path, entry) in tree.entries.iter().filter(|(path, entry)| base.entries.get(*path) != Some(entry)) {
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

/// The topmost folder of `path` in which `tree` has nothing; `path` itself if it has something in
/// each.
fn gone<'a>(tree: &Tree, path: &'a str) -> &'a str {
    let is_gone = |folder: &&Path| !tree.entries.keys().any(|other| Path::new(other).starts_with(folder));
    let gone = Path::new(path).ancestors().take_while(is_gone).last();
    gone.and_then(Path::to_str).unwrap_or(path)
}

/// Returns a patch from `old` to `new`, if one exists.
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
        // Pure additions are inserted after the preceding line.
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
