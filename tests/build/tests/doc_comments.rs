// SPDX-License-Identifier: GPL-2.0

//! Tests that the doc comment of each function begins with a verb that says what the function does:
//! "Returns ...", "Retries ...". Such a word ends in "s".

use build_tests::{repository, run};
use std::fs;
use std::process::Command;

/// The sources whose functions are looked at, as git names them. Not among them are the functions
/// that are tests themselves: their comments say what must hold.
const SOURCES: [&str; 7] = [
    "src/*.rs",
    "tools/*/src/*.rs",
    "user/*/src/*.rs",
    "ci/qemu/*/src/*.rs",
    ":!ci/qemu/gpu/client/src/bin",
    "tests/guest/src/*.rs",
    ":!tests/guest/src/suites",
];

/// Returns the line without the word `word` and what stands in parentheses behind it, if the line
/// begins with that word.
fn without<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(word)?;
    let rest = match rest.strip_prefix('(') {
        Some(inside) => inside.split_once(')')?.1,
        None => rest,
    };
    rest.strip_prefix(' ')
}

/// Returns whether a line begins a function, whatever stands before its `fn`.
fn is_function(line: &str) -> bool {
    let mut rest = line;
    while let Some(less) =
        ["pub", "const", "async", "unsafe", "extern \"C\""].iter().find_map(|word| without(rest, word))
    {
        rest = less;
    }
    rest.starts_with("fn ")
}

/// Returns the first line of the doc comment of each function, with that line's number. Leaves out
/// the file's tests, which come last, and comments whose beginning is an argument of a macro.
fn comments(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.starts_with("mod tests")).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        let begin = at;
        at += 1;
        let Some(first) = line.strip_prefix("///").map(str::trim) else { continue };
        while lines.get(at).is_some_and(|line| line.starts_with("///")) {
            at += 1;
        }
        // An attribute may have several lines.
        let mut open = 0usize;
        while let Some(line) = lines.get(at).filter(|line| open > 0 || line.starts_with("#[")) {
            open = (open + line.matches('[').count()).saturating_sub(line.matches(']').count());
            at += 1;
        }
        if !first.is_empty() && lines.get(at).is_some_and(|line| is_function(line)) {
            found.push((begin + 1, first));
        }
    }
    found
}

/// Returns whether a comment begins with a word that can be a verb in the third person.
fn begins_with_a_verb(comment: &str) -> bool {
    let word = comment.split_whitespace().next().unwrap_or_default().trim_end_matches([',', '.', ':', ';']);
    let is_word = word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().skip(1).all(|c| c.is_ascii_lowercase() || c == '-');
    is_word && word.ends_with('s') && !["As", "Its", "This"].contains(&word)
}

#[test]
fn doc_comments_of_functions_say_what_these_do() {
    let repository = repository();
    let listed = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--"])
        .args(SOURCES)
        .current_dir(&repository));
    assert!(listed.ok, "git: {}", listed.text);
    let (mut count, mut wrong) = (0, Vec::new());
    for file in listed.text.lines() {
        // git also lists what was removed since the last commit.
        let Ok(text) = fs::read_to_string(repository.join(file)) else { continue };
        let found = comments(&text);
        count += found.len();
        let without_verb = found.iter().filter(|(_, comment)| !begins_with_a_verb(comment));
        wrong.extend(without_verb.map(|(line, comment)| format!("{file}:{line}: {comment}")));
    }
    assert!(count > 1500, "there are {count} comments");
    assert!(wrong.is_empty(), "these begin otherwise:\n{}", wrong.join("\n"));
}

#[test]
fn a_noun_or_an_imperative_is_found() {
    let text = "/// Reads it.\n#[cfg(\n    unix\n)]\npub(super) unsafe extern \"C\" fn a() {}\n\
                /// The size.\nconst SIZE: u8 = 1;\n\
                /// The size.\n/// Returns it.\n#[must_use]\npub const fn b() -> u8 {\n\
                /// Return it.\nfn c() {}\n\
                mod tests {\n/// A test.\nfn d() {}\n";
    let found = comments(text);
    assert_eq!(found, [(1, "Reads it."), (8, "The size."), (12, "Return it.")]);
    let verbs: Vec<bool> = found.iter().map(|(_, comment)| begins_with_a_verb(comment)).collect();
    assert_eq!(verbs, [true, false, false]);
}
