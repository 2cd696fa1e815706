// SPDX-License-Identifier: GPL-2.0

//! Tests that each source file names its licence.

use build_tests::{repository, run};
use std::fs;
use std::process::Command;

/// Returns whether a file is a program's source, by its name or because it names an interpreter. Left
/// out are the kernel's configurations (.config): a kernel is cached by their bytes, so that a comment
/// in them would cost everybody a build of half an hour.
fn is_source(path: &str, text: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let ends = [".rs", ".c", ".h", ".in", ".map", ".mk", ".py", ".sed", ".sh", ".toml"];
    let by_name = ends.iter().any(|end| name.ends_with(end)) || ["Makefile", "Kbuild"].contains(&name);
    by_name || text.starts_with("#!")
}

/// Returns the licence that a file's head names.
fn licence(path: &str) -> &'static str {
    if path.starts_with("user/") || path.starts_with("tests/faults/") {
        "GPL-2.0 OR BSD-3-Clause"
    } else {
        "GPL-2.0"
    }
}

#[test]
fn each_source_file_says_its_licence() {
    let repository = repository();
    let listed = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&repository));
    assert!(listed.ok, "git: {}", listed.text);
    let (mut sources, mut without) = (0, Vec::new());
    for path in listed.text.lines() {
        let file = repository.join(path);
        // git also lists what was removed since the last commit, and a nested repository as a folder.
        if !file.is_file() {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&file).expect("a file that git lists")).into_owned();
        if !is_source(path, &text) {
            continue;
        }
        sources += 1;
        let wanted = format!("SPDX-License-Identifier: {}", licence(path));
        // The first line of a program names its interpreter.
        if !text.lines().take(2).any(|line| line.contains(&wanted)) {
            without.push(path);
        }
    }
    assert!(sources > 300, "git lists {sources} source files");
    assert!(without.is_empty(), "no SPDX line of its licence in the first two lines of: {without:?}");
}
