// SPDX-License-Identifier: GPL-2.0

//! Tests that each commit says what it changes in a subject of 72 characters, and why in a body, and
//! that the commits that a page names are there. mk/not-run.sh has who runs the tests leave these two out
//! where there is no history, or not all of it.

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
        let is_word = |c: char| c.is_ascii_alphabetic() || c == '-';
        key == "Fixes"
            || (key.contains('-') && key.starts_with(|c: char| c.is_ascii_uppercase()) && key.chars().all(is_word))
    };
    let says = |line: &str| !line.is_empty() && !is_trailer(line);
    (!body.lines().any(says)).then(|| format!("{subject:?} has no body that says why"))
}

/// Messages cannot be changed afterwards, so those before this test's own do not count.
#[test]
fn each_commit_has_a_short_subject_and_a_body() {
    let first = git(&["log", "--diff-filter=A", "--format=%H", "--", "tests/build/tests/commits.rs"]);
    let first = first.as_deref().and_then(|list| list.lines().last()).map(|first| format!("{first}^"));
    // In a shallow clone, one commit brings all files.
    let before = first.filter(|before| git(&["rev-parse", "--quiet", "--verify", before]).is_some()).expect(
        "there is no history here: git fetch --unshallow, or -- --skip each_commit_has_a_short_subject_and_a_body",
    );
    let messages = git(&["log", "--no-merges", "--format=%B%x00", &format!("{before}..HEAD")]).expect("messages");
    let complaints: Vec<String> =
        messages.split('\0').map(str::trim).filter(|m| !m.is_empty()).filter_map(wrong).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Returns the commits that a page names: the words of eight hexadecimal digits.
fn named(page: &str) -> Vec<&str> {
    let words = page.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| word.len() == 8 && word.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))).collect()
}

#[test]
fn the_commits_that_the_page_of_findings_names_are_in_this_history() {
    // An archive that was unpacked in another repository has no such file in that one's history.
    let tracked = git(&["log", "-1", "--format=%H", "--", "tests/build/tests/commits.rs"]);
    let shallow = git(&["rev-parse", "--is-shallow-repository"]);
    assert!(
        tracked.is_some() && shallow.is_some_and(|answer| answer.trim() == "false"),
        "there is no history here, or not all of it: git fetch --unshallow, or -- --skip the_commits_that_the_page"
    );
    let page = std::fs::read_to_string(repository().join("docs/results/user-findings.md")).expect("the page");
    let commits = named(&page);
    assert!(!commits.is_empty(), "the page names no commit");
    let is_ancestor = |commit: &&str| {
        let mut git = Command::new("git");
        git.args(["merge-base", "--is-ancestor", commit, "HEAD"]).current_dir(repository());
        git.status().is_ok_and(|status| status.success())
    };
    let missing: Vec<&str> = commits.into_iter().filter(|commit| !is_ancestor(commit)).collect();
    assert!(missing.is_empty(), "docs/results/user-findings.md names what is no commit of this history: {missing:?}");
}

#[test]
fn a_commit_on_a_page_is_found() {
    assert_eq!(
        named("2cac8e68; bc43a68f, 8f273c86: files, hits-h200, deadbeef1"),
        ["2cac8e68", "bc43a68f", "8f273c86"]
    );
}

#[test]
fn a_long_subject_and_a_missing_body_are_found() {
    assert_eq!(wrong("scope: do it\n\nBecause."), None);
    assert!(wrong(&format!("scope: {}\n\nBecause.", "x".repeat(SUBJECT))).is_some());
    let trailers = "scope: do it\n\nFixes: 26b27100\nSigned-off-by: A <a@b>";
    assert!(wrong("scope: do it").is_some() && wrong(trailers).is_some());
    assert_eq!(wrong("scope: do it\n\naws-ofi-nccl#1057: it is slow."), None);
}
