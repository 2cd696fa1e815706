// SPDX-License-Identifier: GPL-2.0

//! Tests that each source file names its licence.

use build_tests::{repository, run};
use std::fs;
use std::process::Command;

/// Returns whether a file of this name is a program's source.
fn is_source(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let ends = [".rs", ".c", ".h", ".sh", ".py", ".mk"];
    ends.iter().any(|end| name.ends_with(end)) || ["Makefile", "Kbuild"].contains(&name)
}

#[test]
fn each_source_file_says_its_licence() {
    let repository = repository();
    let listed = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&repository));
    assert!(listed.ok, "git: {}", listed.text);
    let sources: Vec<&str> = listed.text.lines().filter(|path| is_source(path)).collect();
    assert!(sources.len() > 300, "git lists {} source files", sources.len());
    let silent = |path: &&str| {
        let file = repository.join(path);
        // git also lists what was removed since the last commit.
        if !file.exists() {
            return false;
        }
        let text = String::from_utf8_lossy(&fs::read(&file).expect("a file that git lists")).into_owned();
        // The first line of a program names its interpreter.
        !text.lines().take(2).any(|line| line.contains("SPDX-License-Identifier: GPL-2.0"))
    };
    let without: Vec<&str> = sources.into_iter().filter(silent).collect();
    assert!(without.is_empty(), "no SPDX line in the first two lines of: {without:?}");
}
