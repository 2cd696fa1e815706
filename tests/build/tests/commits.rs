// SPDX-License-Identifier: GPL-2.0

//! Tests that each commit says what it changes in a subject of 72 characters, and why in a body.

use build_tests::{repository, run};
use std::process::Command;

const SUBJECT: usize = 72;

/// Returns what git prints, or `None` where there is no history: in the archive of a release.
fn git(words: &[&str]) -> Option<String> {
    let out = run(Command::new("git").args(words).current_dir(repository()));
    (out.ok && !out.text.trim().is_empty()).then_some(out.text)
}

/// Returns what is wrong with a commit message, if anything.
fn wrong(message: &str) -> Option<String> {
    let (subject, body) = message.split_once('\n').unwrap_or((message, ""));
    let length = subject.chars().count();
    if length > SUBJECT {
        return Some(format!("{subject:?} has {length} characters, at most {SUBJECT} are wanted"));
    }
    // A body begins after an empty line; a sign-off is none.
    let says = |line: &str| !line.is_empty() && !line.starts_with("Signed-off-by:");
    (!body.lines().any(says)).then(|| format!("{subject:?} has no body that says why"))
}

/// Messages cannot be changed afterwards, so those before this test do not count.
#[test]
fn each_commit_has_a_short_subject_and_a_body() {
    let first = git(&["log", "--diff-filter=A", "--format=%H", "--", "tests/build/tests/commits.rs"]);
    let Some(first) = first.as_deref().and_then(|list| list.lines().last()) else {
        println!("skipped: there is no history here");
        return;
    };
    let messages = git(&["log", "--no-merges", "--format=%B%x00", &format!("{first}..HEAD")]).unwrap_or_default();
    let complaints: Vec<String> =
        messages.split('\0').map(str::trim).filter(|m| !m.is_empty()).filter_map(wrong).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_long_subject_and_a_missing_body_are_found() {
    assert_eq!(wrong("scope: do it\n\nBecause."), None);
    assert!(wrong(&format!("scope: {}\n\nBecause.", "x".repeat(SUBJECT))).is_some());
    assert!(wrong("scope: do it").is_some() && wrong("scope: do it\n\nSigned-off-by: A <a@b>").is_some());
}
