// SPDX-License-Identifier: GPL-2.0

//! Tests that the comment of each function, in Rust and in the C of the lab, begins with a verb that
//! says what the function does: "Returns ...", "Retries ...". Such a word ends in "s".

use build_tests::{repository, run};
use std::fs;
use std::process::Command;

/// The sources whose functions are looked at, as git names them.
const SOURCES: [&str; 7] = [
    "src/*.rs",
    "tools/*/src/*.rs",
    "user/*/src/*.rs",
    "ci/qemu/*.rs",
    "tests/*.rs",
    "samples/*.rs",
    "kernel-lite/*.rs",
];

/// The sources in C, likewise.
const C_SOURCES: [&str; 6] =
    ["ci/qemu/*.c", "ci/qemu/*.h", "kernel-lite/*.c", "kernel-lite/*.h", "samples/*.c", "tests/*.c"];

/// The arguments of functions that a runner of ours calls as tests.
const TAKEN_BY_TESTS: [&str; 3] = ["&Env", "&Test", "&mut Test"];

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

/// Returns whether a function is a test itself, by its attributes or because it takes only what a
/// runner of tests gives.
fn is_test(attributes: &[&str], function: &str) -> bool {
    // `pub(super)` has parentheses, too.
    let behind = function.split_once("fn ").and_then(|(_, name)| name.split_once('(')).map_or("", |(_, rest)| rest);
    let taken = behind.split_once(')').map_or("", |(taken, _)| taken);
    let kind = taken.split_once(": ").map_or("", |(_, kind)| kind);
    TAKEN_BY_TESTS.contains(&kind) || attributes.contains(&"#[test]")
}

/// Returns the first line of the doc comment of each function, with that line's number. Leaves out
/// tests, whose comments say what must hold, the module of tests, which comes last in a file, and
/// comments whose beginning is an argument of a macro.
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
        let (mut open, attributes) = (0usize, at);
        while let Some(line) = lines.get(at).filter(|line| open > 0 || line.starts_with("#[")) {
            open = (open + line.matches('[').count()).saturating_sub(line.matches(']').count());
            at += 1;
        }
        let is_ours = |line: &&str| is_function(line) && !is_test(&lines[attributes..at], line);
        if !first.is_empty() && lines.get(at).is_some_and(is_ours) {
            found.push((begin + 1, first));
        }
    }
    found
}

/// Returns the first line of the comment before each function that a file in C defines, with that
/// line's number. Leaves out comments for kernel-doc, which begin with the function's name.
fn c_comments(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let words = |at: usize| lines.get(at).map_or("", |line| line.trim_matches(|c| " */".contains(c)));
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(begin) = (next..lines.len()).find(|at| lines[*at].starts_with("/*")) {
        let end = (begin..lines.len()).find(|at| lines[*at].ends_with("*/")).unwrap_or(lines.len());
        next = end + 1;
        let head = lines.get(next..).unwrap_or_default();
        let head_end = head.iter().position(|line| *line == "{" || line.is_empty() || line.contains(';'));
        let is_function = head_end.is_some_and(|at| at > 0 && head[at] == "{");
        if is_function && !lines[begin].starts_with("/**") {
            found.push((begin + 1, if words(begin).is_empty() { words(begin + 1) } else { words(begin) }));
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

/// Asserts that the comments in files of these names begin with a verb, and that there are many.
fn begin_with_a_verb(sources: &[&str], comments: fn(&str) -> Vec<(usize, &str)>, at_least: usize) {
    let repository = repository();
    let listed = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--"])
        .args(sources)
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
    assert!(count > at_least, "there are {count} comments");
    assert!(wrong.is_empty(), "these begin otherwise:\n{}", wrong.join("\n"));
}

#[test]
fn doc_comments_of_functions_say_what_these_do() {
    begin_with_a_verb(&SOURCES, comments, 2000);
}

#[test]
fn comments_of_functions_in_c_say_what_these_do() {
    begin_with_a_verb(&C_SOURCES, c_comments, 100);
}

#[test]
fn a_noun_or_an_imperative_is_found() {
    let text = "/// Reads it.\n#[cfg(\n    unix\n)]\npub(super) unsafe extern \"C\" fn a() {}\n\
                /// The size.\nconst SIZE: u8 = 1;\n\
                /// The size.\n/// Returns it.\n#[must_use]\npub const fn b() -> u8 {\n\
                /// Return it.\nfn c() {}\n\
                /// It holds.\n#[test]\nfn e() {}\n\
                /// It holds, too.\nfn f(env: &Env) -> Result<()> {}\n\
                /// It helps.\nfn g(env: &Env, more: u8) {}\n\
                mod tests {\n/// A test.\nfn d() {}\n";
    let found = comments(text);
    assert_eq!(found, [(1, "Reads it."), (8, "The size."), (12, "Return it."), (19, "It helps.")]);
    let verbs: Vec<bool> = found.iter().map(|(_, comment)| begins_with_a_verb(comment)).collect();
    assert_eq!(verbs, [true, false, false, false]);
}

#[test]
fn a_noun_before_a_function_in_c_is_found() {
    let text = "/* Reads it. */\nstatic int a(int b,\n\t     int c)\n{\n\treturn 0;\n}\n\n\
                /*\n * The size.\n * More.\n */\nint d(void)\n{\n}\n\n\
                /* The size. */\nstatic int e;\n\
                /* The size. */\nint f(void);\n\
                /* The size. */\nstruct g {\n};\n\
                /* --- a part --- */\n\nint h(void)\n{\n}\n\
                /** i - does it */\nint i(void)\n{\n}\n";
    assert_eq!(c_comments(text), [(1, "Reads it."), (8, "The size.")]);
}
