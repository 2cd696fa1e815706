// SPDX-License-Identifier: GPL-2.0
//! The admin's configuration of modprobe, depmod and systemd-modules-load.

use crate::root::Root;

const MODPROBE: [&str; 4] = ["/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];
const MODULES_LOAD: [&str; 4] =
    ["/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d", "/lib/modules-load.d"];

/// A line of a configuration file.
pub struct Line {
    pub file: String,
    pub text: String,
}

fn lines(root: &Root, dirs: &[&str]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut seen = Vec::new();
    for dir in dirs {
        for name in root.names(dir).into_iter().filter(|name| name.ends_with(".conf")) {
            // A file hides those of the same name in later directories.
            if seen.contains(&name) {
                continue;
            }
            let file = format!("{dir}/{name}");
            seen.push(name);
            let text = root.text(&file).unwrap_or_default();
            lines.extend(
                text.lines()
                    .map(str::trim)
                    .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
                    .map(|line| Line { file: file.clone(), text: line.to_owned() }),
            );
        }
    }
    lines
}

fn is(word: Option<&str>, module: &str) -> bool {
    word.is_some_and(|word| word.replace('-', "_") == module)
}

/// `options` of a module: file, name and value.
pub fn options(root: &Root, module: &str) -> Vec<(Line, String, String)> {
    let mut found = Vec::new();
    for line in lines(root, &MODPROBE) {
        let text = line.text.clone();
        let mut words = text.split_ascii_whitespace();
        if words.next() == Some("options") && is(words.next(), module) {
            for option in words {
                let (name, value) = option.split_once('=').unwrap_or((option, ""));
                let line = Line { file: line.file.clone(), text: line.text.clone() };
                found.push((line, name.to_owned(), value.to_owned()));
            }
        }
    }
    found
}

/// The line that keeps modprobe from loading a module: `blacklist`, or `install` with a command
/// that loads nothing.
pub fn blocked(root: &Root, module: &str) -> Option<(Line, Block)> {
    lines(root, &MODPROBE).into_iter().find_map(|line| {
        let mut words = line.text.split_ascii_whitespace();
        let verb = words.next().map(str::to_owned);
        if !is(words.next(), module) {
            return None;
        }
        let nothing =
            words.next().is_some_and(|command| matches!(command, "/bin/false" | "/bin/true" | "false" | "true"));
        match verb.as_deref() {
            Some("blacklist") => Some((line, Block::Alias)),
            Some("install") if nothing => Some((line, Block::Always)),
            _ => None,
        }
    })
}

/// How a module is kept from being loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// By alias and at boot only; `modprobe NAME` loads it.
    Alias,
    /// Always.
    Always,
}

/// The file that has a module loaded at boot.
pub fn loaded_at_boot(root: &Root, module: &str) -> Option<String> {
    let conf = lines(root, &MODULES_LOAD).into_iter().find(|line| is(Some(&line.text), module)).map(|line| line.file);
    conf.or_else(|| {
        let etc = root.text("/etc/modules").unwrap_or_default();
        etc.lines().any(|line| is(line.split_ascii_whitespace().next(), module)).then(|| "/etc/modules".to_owned())
    })
}
