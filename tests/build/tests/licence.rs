// SPDX-License-Identifier: GPL-2.0

//! Tests that each file names its licence.

use build_tests::{repository, run};
use std::fs;
use std::process::Command;

/// The files without an SPDX line: why they have none, and how their paths end.
const WITHOUT: [(&str, &[&str]); 6] = [
    ("has no comments", &[".json", "/VERSION", "/debian/source/format"]),
    ("states a licence", &["/LICENSE", "/LICENSE.GPL-2.0", "/debian/copyright"]),
    ("is written by cargo", &[".lock"]),
    ("keeps what a machine or a program said", &[".log", ".tree", ".txt"]),
    // A comment would cost everybody a build of half an hour.
    ("decides by its bytes which cached kernel is taken", &[".config"]),
    ("has a title or what it is about in its first line", &[".md", ".patch"]),
];

/// The file of an editor that allows comments in its JSON.
const JSON_WITH_COMMENTS: &str = "/.vscode/settings.json";

/// Returns the licence that a file's head names.
fn licence(path: &str) -> &'static str {
    if path.starts_with("user/") || path.starts_with("tests/faults/") {
        "GPL-2.0 OR BSD-3-Clause"
    } else {
        "GPL-2.0"
    }
}

#[test]
fn each_file_says_its_licence() {
    let repository = repository();
    let listed = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&repository));
    assert!(listed.ok, "git: {}", listed.text);
    let mut unused: Vec<&str> = WITHOUT.iter().flat_map(|(_, ends)| ends.iter().copied()).collect();
    let mut without = Vec::new();
    for path in listed.text.lines() {
        let file = repository.join(path);
        // git also lists what was removed since the last commit, and a nested repository as a folder.
        if !file.is_file() {
            continue;
        }
        let text = fs::read(&file).expect("a file that git lists");
        let wanted = format!("SPDX-License-Identifier: {}", licence(path));
        // The first line of a program names its interpreter.
        if String::from_utf8_lossy(&text).lines().take(2).any(|line| line.contains(&wanted)) {
            continue;
        }
        let path = format!("/{path}");
        let ends = WITHOUT.iter().flat_map(|(_, ends)| ends.iter()).find(|end| path.ends_with(*end));
        match ends.filter(|_| path != JSON_WITH_COMMENTS) {
            Some(end) => unused.retain(|other| other != end),
            None => without.push(path),
        }
    }
    assert!(without.is_empty(), "no SPDX line of its licence in the first two lines of: {without:?}");
    assert!(unused.is_empty(), "WITHOUT names what no file needs: {unused:?}");
}
