// SPDX-License-Identifier: GPL-2.0

//! `tests/promises.toml` names the test of each rule and of each number that docs/ promises: compared
//! with the pages and with the tests.

use build_tests::repository;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use toml::{Table, Value};

const RULES: &str = "docs/rules.md";
/// Numbers in words that a page may promise. "One" to "three" are left out, because they are
/// articles as often as numbers.
#[rustfmt::skip]
const WORDS: [&str; 15] = [
    "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "sixteen", "twenty", "hundred", "thousand",
    "half", "tenth", "twice",
];
/// Units behind which a number with a point is no version.
const UNITS: [&str; 11] = ["s", "ms", "µs", "ns", "%", "KiB", "MiB", "GiB", "TiB", "MB", "GB"];

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Returns the entries of one kind.
fn entries<'a>(list: &'a Table, kind: &str) -> Vec<&'a Table> {
    list[kind].as_array().expect("[[...]]").iter().map(|entry| entry.as_table().expect("[[...]]")).collect()
}

fn text<'a>(entry: &'a Table, key: &str) -> &'a str {
    entry.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("no {key} in {entry:?}"))
}

fn strings<'a>(entry: &'a Table, key: &str) -> Vec<&'a str> {
    let list = entry.get(key).and_then(Value::as_array).unwrap_or_else(|| panic!("no {key} in {entry:?}"));
    list.iter().map(|value| value.as_str().expect("a string")).collect()
}

/// Returns the sentences of a page in one line, without code blocks, targets of links and numbers
/// of lists.
fn sentences(page: &str) -> String {
    let mut words = String::new();
    let (mut is_code, mut is_list, mut is_after_gap) = (false, false, true);
    for line in page.lines() {
        let item = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_item = line.starts_with("- ") || (item.len() < line.len() && item.starts_with(". "));
        is_list = is_item || (is_list && (line.is_empty() || line.starts_with(' ') || !is_after_gap));
        // In a list, such a line is a paragraph of its item.
        let line_is_code = line.starts_with("    ") && !is_list && (is_after_gap || is_code);
        is_code = line_is_code || (is_code && line.is_empty());
        is_after_gap = line.is_empty();
        if line_is_code {
            continue;
        }
        let line = line.trim_start();
        let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let line = if digits > 0 { line[digits..].strip_prefix(". ").unwrap_or(line) } else { line };
        words.push_str(line);
        words.push(' ');
    }
    let mut plain = String::new();
    let mut rest = words.as_str();
    while let Some(at) = rest.find("](") {
        plain.push_str(&rest[..=at]);
        rest = rest[at..].split_once(')').map_or("", |(_, behind)| behind);
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the length of the digits behind the point of a number, if a unit follows them.
fn fraction(behind: &str) -> Option<usize> {
    let digits = behind.strip_prefix('.')?;
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    let unit = rest.strip_prefix(' ')?.split(|c: char| c != '%' && !c.is_alphanumeric()).next()?;
    (rest.len() < digits.len() && UNITS.contains(&unit)).then(|| behind.len() - rest.len())
}

/// Returns the places of numbers that a reader would take for a promise. Versions, names and rules
/// do not count.
fn numbers(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    for word in text.split_inclusive(|c: char| !is_word(c)) {
        let range = at..at + word.trim_end_matches(|c: char| !is_word(c)).len();
        at += word.len();
        let number = &text[range.clone()];
        let (before, behind) = (&text[..range.start], &text[range.end..]);
        if WORDS.contains(&number) {
            found.push(range);
            continue;
        }
        let fraction = fraction(behind);
        let is_part = before.ends_with(['.', '=', '#', '/', '-'])
            || behind.starts_with(['=', '/'])
            || (behind.starts_with('.') && behind[1..].starts_with(|c: char| c.is_ascii_digit()) && fraction.is_none());
        let is_rule = ["rule ", "Rule ", "rules "].iter().any(|rule| before.ends_with(rule))
            || before.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ').ends_with("and")
                && before.contains("rules ")
                && before[before.rfind("rules ").expect("it contains that")..].len() < 16;
        if number.is_empty() || !number.bytes().all(|c| c.is_ascii_digit()) || is_part || is_rule {
            continue;
        }
        // "65 536" is one number.
        match found.last_mut() {
            Some(last) if number.len() == 3 && last.end + 1 == range.start && &text[last.end..range.start] == " " => {
                last.end = range.end;
            }
            _ => found.push(range.start..range.end + fraction.unwrap_or(0)),
        }
    }
    found
}

/// Returns the numbers of the rules, as the page counts them.
fn rules() -> BTreeSet<i64> {
    let page = read(RULES);
    let list = page.split("\n## Rules\n").nth(1).expect("the page has a list of rules");
    list.lines().filter_map(|line| line.split_once(". ")?.0.parse().ok()).collect()
}

/// Returns what is wrong with the name of a test, if anything.
fn wrong(test: &str) -> Option<String> {
    let (file, function) = test.split_once("::").unwrap_or((test, ""));
    let Ok(source) = fs::read_to_string(repository().join(file)) else { return Some(format!("{test}: no such file")) };
    if function.is_empty() {
        let is_planted = file.starts_with("tests/faults/") && file.ends_with(".patch");
        return (!is_planted).then(|| format!("{test}: neither file::function nor a planted fault"));
    }
    let Some(at) = source.find(&format!("fn {function}(")) else { return Some(format!("{test}: no such function")) };
    // The guest's suites and the tests of packages list theirs by name, the latter in the file beside
    // them. Elsewhere, an attribute marks a test.
    let listed = format!("\"{function}\"");
    let is_test = if file.starts_with("tests/guest/") {
        source.contains(&listed)
    } else if file.starts_with("tests/packages/") {
        fs::read_to_string(repository().join(file).with_file_name("mod.rs")).is_ok_and(|list| list.contains(&listed))
    } else {
        let attributes = source[..at].rsplit("\n\n").next().expect("one at least");
        attributes.contains("#[test]") && !attributes.contains("#[ignore")
    };
    (!is_test).then(|| format!("{test}: is no test that runs"))
}

fn list() -> Table {
    read("tests/promises.toml").parse().expect("TOML")
}

#[test]
fn each_rule_names_its_tests() {
    let list = list();
    let named: Vec<i64> = entries(&list, "rule").iter().map(|r| r["number"].as_integer().expect("a number")).collect();
    let rules = rules();
    assert!(rules.len() >= 14 && rules.first() == Some(&1), "rules of the page: {rules:?}");
    assert_eq!(named, rules.into_iter().collect::<Vec<_>>(), "tests/promises.toml has other rules than {RULES}");
}

#[test]
fn each_test_that_is_named_exists() {
    let list = list();
    let mut complaints = Vec::new();
    for entry in entries(&list, "rule").into_iter().chain(entries(&list, "promise")) {
        let tests = strings(entry, "tests");
        assert!(!tests.is_empty(), "no test in {entry:?}");
        complaints.extend(tests.into_iter().filter_map(wrong));
    }
    assert!(complaints.is_empty(), "tests/promises.toml names tests that are not there:\n{}", complaints.join("\n"));
}

#[test]
fn each_number_that_a_page_promises_names_its_test() {
    let list = list();
    let mut said = entries(&list, "promise");
    let facts = entries(&list, "fact");
    assert!(facts.iter().all(|fact| !text(fact, "because").is_empty()));
    said.extend(facts);
    let mut pages: BTreeSet<&str> = strings(&list, "pages").into_iter().collect();
    let whole = pages.clone();
    pages.extend(said.iter().map(|entry| text(entry, "page")));
    let mut complaints = Vec::new();
    for page in pages {
        let whole_page = read(page);
        let sentences = sentences(&whole_page);
        let mut covered: Vec<Range<usize>> = Vec::new();
        for entry in said.iter().filter(|entry| text(entry, "page") == page) {
            let says = text(entry, "says");
            // A table or a passage is named by its beginning and its end.
            let to = entry.get("to").map(|to| to.as_str().expect("a string"));
            let before = covered.len();
            for (at, says) in sentences.match_indices(says) {
                let end = at + says.len();
                let further = to.map_or(Some(0), |to| Some(sentences[end..].find(to)? + to.len()));
                covered.extend(further.map(|further| at..end + further));
            }
            // A line of code may be promised, too.
            let is_code = to.is_none() && whole_page.contains(says);
            if covered.len() == before && !is_code {
                complaints.push(format!("{page} does not say {says:?} (any more): change the list with the page"));
            }
        }
        for number in numbers(&sentences).into_iter().filter(|_| whole.contains(page)) {
            if !covered.iter().any(|says| says.start <= number.start && number.end <= says.end) {
                let mut from = number.start.saturating_sub(50);
                while !sentences.is_char_boundary(from) {
                    from -= 1;
                }
                complaints.push(format!(
                    "{page}: no test for the number in \"...{}\": name it in tests/promises.toml, or say there what it is",
                    &sentences[from..number.end]
                ));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// The tests of this file rest on this.
#[test]
fn a_number_is_seen_in_a_sentence_and_not_in_code_names_or_versions() {
    let page = "Up to 65 536 of [64 KiB](facts.md#9), eight (rule 5, rules 7 and 8).\n\n    code 7\n\n3. From 25.10 on `a=1`,\n   5 µs or 2.5 s, half of 7.2.13.\n\n    So 6 are\n    left.\n";
    let plain = sentences(page);
    let seen: Vec<&str> = numbers(&plain).into_iter().map(|range| &plain[range]).collect();
    assert_eq!(seen, ["65 536", "64", "eight", "5", "2.5", "half", "6"], "{plain}");
}
