// SPDX-License-Identifier: GPL-2.0

//! Reads the guest's second serial line: KTAP results, and `# json <name> {...}` lines that carry
//! numbers.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed,
    Skipped(String),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Test {
    /// The test's full name, `suite/test`.
    pub name: String,
    pub outcome: Outcome,
    /// The comment lines that precede the result.
    pub notes: Vec<String>,
}

impl Test {
    pub fn new(name: impl Into<String>, passed: bool, notes: Vec<String>) -> Self {
        Test { name: name.into(), outcome: if passed { Outcome::Passed } else { Outcome::Failed }, notes }
    }

    pub fn failed(name: impl Into<String>, why: impl Into<String>) -> Self {
        Test::new(name, false, vec![why.into()])
    }

    pub fn skipped(name: impl Into<String>, why: impl Into<String>) -> Self {
        Test { name: name.into(), outcome: Outcome::Skipped(why.into()), notes: Vec::new() }
    }

    pub fn has_failed(&self) -> bool {
        self.outcome == Outcome::Failed
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Counts {
    pub fn of<'a>(tests: impl IntoIterator<Item = &'a Test>) -> Self {
        let mut counts = Counts::default();
        for test in tests {
            match test.outcome {
                Outcome::Passed => counts.passed += 1,
                Outcome::Failed => counts.failed += 1,
                Outcome::Skipped(_) => counts.skipped += 1,
            }
        }
        counts
    }
}

/// Prints a test in one piece, because another lane may be printing at the same time.
pub fn print_test(test: &Test) {
    let text = match &test.outcome {
        Outcome::Passed => format!("ok      {}\n", test.name),
        Outcome::Skipped(why) => format!("skipped {}: {why}\n", test.name),
        Outcome::Failed => {
            let notes: String = test.notes.iter().map(|note| format!("        {note}\n")).collect();
            format!("FAILED  {}\n{notes}", test.name)
        }
    };
    print!("{text}");
}

/// Selects what is printed while a guest runs.
#[derive(Clone, Copy, Debug, Default)]
pub enum Screen {
    /// Prints each test's result.
    #[default]
    Tests,
    /// Prints each test that fails, and what this function returns for a row's name and the row.
    Rows(fn(&str, &Value) -> Option<String>),
}

impl Screen {
    /// Prints a test if this selection includes it.
    pub fn test(self, test: &Test) {
        if matches!(self, Screen::Tests) || test.has_failed() {
            print_test(test);
        }
    }
}

#[derive(Default)]
pub struct Parser {
    screen: Screen,
    /// The text before each test's name.
    label: String,
    plan: Option<usize>,
    results: usize,
    notes: Vec<String>,
    pub tests: Vec<Test>,
    pub json: BTreeMap<String, Vec<Value>>,
}

impl Parser {
    pub fn new(label: &str, screen: Screen) -> Self {
        Parser { label: label.to_string(), screen, ..Default::default() }
    }

    /// Parses a line, and prints the part of it that belongs on the screen.
    pub fn line(&mut self, line: &str) {
        let text = line.trim();
        if let Some(rest) = text.strip_prefix("# json ") {
            self.json_line(rest);
        } else if let Some(note) = text.strip_prefix('#') {
            self.notes.push(note.trim().to_string());
        } else if let Some(plan) = text.strip_prefix("1..") {
            self.plan = plan.parse().ok();
        } else if let Some(rest) = text.strip_prefix("not ok ") {
            self.result(rest, false);
        } else if let Some(rest) = text.strip_prefix("ok ") {
            self.result(rest, true);
        }
    }

    /// Ends the results after the last line. Each promised test that did not come counts as a
    /// failure.
    pub fn finish(&mut self) {
        if self.plan != Some(self.results) {
            let wanted = self.plan.map_or("no plan line came".to_string(), |plan| format!("{plan} were to come"));
            let mut notes = vec![format!("{} results came, {wanted}", self.results)];
            notes.append(&mut self.notes);
            self.fail("the guest did not run to its end", notes);
        }
    }

    fn json_line(&mut self, rest: &str) {
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match serde_json::from_str(text) {
            Ok(value) => {
                if let Screen::Rows(words) = self.screen {
                    words(name, &value).into_iter().for_each(|line| println!("{line}"));
                }
                self.json.entry(name.to_string()).or_default().push(value);
            }
            Err(e) => self.fail(&format!("the guest's json line {name}"), vec![format!("{e}: {text}")]),
        }
    }

    fn fail(&mut self, name: &str, notes: Vec<String>) {
        self.add(Test::new(name, false, notes));
    }

    /// Parses the rest of a result line: `7 smoke/load`, or `7 smoke/load # SKIP why`.
    fn result(&mut self, rest: &str, ok: bool) {
        let (name, skip) = match rest.split_once(" # SKIP") {
            Some((name, why)) => (name, Some(why.trim().to_string())),
            None => (rest, None),
        };
        let outcome = match (ok, skip) {
            (true, Some(why)) => Outcome::Skipped(why),
            (true, None) => Outcome::Passed,
            (false, _) => Outcome::Failed,
        };
        self.results += 1;
        let name = name.trim_start_matches(|c: char| c.is_ascii_digit()).trim().to_string();
        let notes = std::mem::take(&mut self.notes);
        self.add(Test { name, outcome, notes });
    }

    fn add(&mut self, mut test: Test) {
        test.name.insert_str(0, &self.label);
        self.screen.test(&test);
        self.tests.push(test);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Parser {
        let mut p = Parser::new("iommu: ", Screen::Tests);
        for line in text.lines() {
            p.line(line);
        }
        p.finish();
        p
    }

    fn names(p: &Parser) -> Vec<(&str, bool)> {
        p.tests.iter().map(|t| (t.name.as_str(), t.outcome == Outcome::Passed)).collect()
    }

    #[test]
    fn a_line_is_a_test() {
        let p = parse("KTAP version 1\n1..3\nok 1 s/a\n# why it failed\nnot ok 2 s/b\nok 3 s/c # SKIP no GPU\n");
        assert_eq!(names(&p), [("iommu: s/a", true), ("iommu: s/b", false), ("iommu: s/c", false)]);
        assert_eq!((&p.tests[1].outcome, p.tests[1].notes.join("")), (&Outcome::Failed, "why it failed".into()));
        assert_eq!(p.tests[2], Test::skipped("iommu: s/c", "no GPU"));
        assert_eq!(Counts::of(&p.tests), Counts { passed: 1, failed: 1, skipped: 1 });
    }

    #[test]
    fn what_was_promised_must_come() {
        let end = ("iommu: the guest did not run to its end", false);
        assert_eq!(names(&parse("1..1\nok 1 a\n")), [("iommu: a", true)]);
        for unfinished in ["1..2\nok 1 a\n", "ok 1 a\n"] {
            assert_eq!(names(&parse(unfinished)), [("iommu: a", true), end]);
        }
        assert_eq!(names(&parse("")), [end]);
        let stopped = parse("1..2\nok 1 a\n# a note of b\n");
        assert_eq!(stopped.tests[1].notes, ["1 results came, 2 were to come", "a note of b"]);
    }

    #[test]
    fn json_lines() {
        let p = parse("1..1\n# json demo {\"mb_s\": 12.5}\n# json demo {\"mb_s\": 13}\nok 1 a\n");
        assert_eq!(p.json["demo"].len(), 2);
        assert_eq!(p.json["demo"][0]["mb_s"], 12.5);
        assert_eq!(parse("1..0\n# json demo {broken\n").tests[0].outcome, Outcome::Failed);
    }
}
