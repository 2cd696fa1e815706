// SPDX-License-Identifier: GPL-2.0

//! Tests that each commit says what it changes in a subject of 72 characters, and why in a body.

use build_tests::repository;
use std::process::Command;

const SUBJECT: usize = 72;

/// Returns what git prints, or `None` where there is no history: in the archive of a release.
fn git(words: &[&str]) -> Option<String> {
    // An archive may lie in the repository of somebody else.
    if !repository().join(".git").exists() {
        return None;
    }
    let out = Command::new("git").args(words).current_dir(repository()).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    (out.status.success() && !text.trim().is_empty()).then_some(text)
}

/// Returns what is wrong with a commit message, if anything.
fn wrong(message: &str) -> Option<String> {
    let (subject, body) = message.split_once('\n').unwrap_or((message, ""));
    let length = subject.chars().count();
    if length > SUBJECT {
        return Some(format!("{subject:?} has {length} characters, at most {SUBJECT} are wanted"));
    }
    // A body begins after an empty line; trailers, such as a sign-off, are none.
    let is_trailer = |line: &str| {
        let (key, _) = line.split_once(": ").unwrap_or_default();
        key == "Fixes" || (key.contains('-') && !key.contains(' '))
    };
    let says = |line: &str| !line.is_empty() && !is_trailer(line);
    (!body.lines().any(says)).then(|| format!("{subject:?} has no body that says why"))
}

/// Messages cannot be changed afterwards, so those before this test's own do not count.
#[test]
fn each_commit_has_a_short_subject_and_a_body() {
    let first = git(&["log", "--diff-filter=A", "--format=%H", "--", "tests/build/tests/commits.rs"]);
    let first = first.as_deref().and_then(|list| list.lines().last()).map(|first| format!("{first}^"));
    // In a clone without history, one commit brings all files.
    let Some(before) = first.filter(|before| git(&["rev-parse", "--quiet", "--verify", before]).is_some()) else {
        println!("skipped: there is no history here");
        return;
    };
    let messages = git(&["log", "--no-merges", "--format=%B%x00", &format!("{before}..HEAD")]).expect("messages");
    let complaints: Vec<String> =
        messages.split('\0').map(str::trim).filter(|m| !m.is_empty()).filter_map(wrong).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_long_subject_and_a_missing_body_are_found() {
    assert_eq!(wrong("scope: do it\n\nBecause."), None);
    assert!(wrong(&format!("scope: {}\n\nBecause.", "x".repeat(SUBJECT))).is_some());
    let trailers = "scope: do it\n\nFixes: 26b27100\nSigned-off-by: A <a@b>";
    assert!(wrong("scope: do it").is_some() && wrong(trailers).is_some());
}
