//! The guest's second serial line: KTAP results, and `# json <name> {...}` lines that carry
//! numbers.

use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    Failed,
    Skipped(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// `suite/test`
    pub name: String,
    pub outcome: Outcome,
    /// Comment lines before the result.
    pub notes: Vec<String>,
}

/// In one piece: another lane may be printing too.
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

#[derive(Default)]
pub struct Parser {
    /// Comes before each test's name.
    label: String,
    levels: Vec<Level>,
    /// Name of the subtest that starts next.
    pending: Option<String>,
    notes: Vec<String>,
    pub tests: Vec<Test>,
    pub json: BTreeMap<String, Vec<Value>>,
}

struct Level {
    indent: usize,
    /// The subtest that this level is; the top has none.
    name: Option<String>,
    plan: Option<usize>,
    seen: usize,
    failed: bool,
}

impl Parser {
    pub fn new(label: &str) -> Self {
        Parser { label: label.to_string(), ..Default::default() }
    }

    /// Takes a line; returns how many tests are known now that were not before.
    pub fn line(&mut self, line: &str) -> usize {
        let before = self.tests.len();
        let text = line.trim_end();
        let indent = text.len() - text.trim_start().len();
        let text = text.trim_start();
        if let Some(rest) = text.strip_prefix("# json ") {
            self.json_line(rest);
        } else if let Some(name) = text.strip_prefix("# Subtest: ") {
            self.pending = Some(name.to_string());
        } else if let Some(note) = text.strip_prefix('#') {
            self.notes.push(note.trim().to_string());
        } else if let Some(plan) = text.strip_prefix("1..").and_then(|n| n.split_whitespace().next()?.parse().ok()) {
            self.level(indent).plan = Some(plan);
        } else if let Some(rest) = text.strip_prefix("not ok ") {
            self.result(indent, rest, false);
        } else if let Some(rest) = text.strip_prefix("ok ") {
            self.result(indent, rest, true);
        } else if let Some(why) = text.strip_prefix("Bail out!") {
            self.fail("the guest gave up", vec![why.trim().to_string()]);
        }
        self.tests.len() - before
    }

    /// After the last line: what was promised and did not come is a failure.
    pub fn finish(&mut self) {
        let complete = self.levels.first().is_some_and(|top| top.plan.is_some_and(|plan| plan == top.seen));
        if !complete {
            let mut notes = match self.levels.first() {
                Some(Level { plan: Some(plan), seen, .. }) => vec![format!("{seen} of {plan} results came")],
                Some(_) => vec!["no plan line came".to_string()],
                None => vec!["no result came at all".to_string()],
            };
            notes.append(&mut self.notes);
            self.fail("the guest did not run to its end", notes);
        }
        self.close(0);
    }

    fn json_line(&mut self, rest: &str) {
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match serde_json::from_str(text) {
            Ok(value) => self.json.entry(name.to_string()).or_default().push(value),
            Err(e) => self.fail(&format!("the guest's json line {name}"), vec![format!("{e}: {text}")]),
        }
    }

    fn fail(&mut self, name: &str, notes: Vec<String>) {
        self.tests.push(Test { name: format!("{}{name}", self.label), outcome: Outcome::Failed, notes });
    }

    /// The level of that indentation, opened if it is new.
    fn level(&mut self, indent: usize) -> &mut Level {
        if self.levels.last().is_none_or(|l| l.indent < indent) {
            let name = self.pending.take();
            self.levels.push(Level { indent, name, plan: None, seen: 0, failed: false });
        }
        let at = self.levels.iter().rposition(|l| l.indent <= indent).unwrap_or(0);
        &mut self.levels[at]
    }

    /// Closes every level deeper than `indent`; says whether there was one and whether a test in it
    /// failed.
    fn close(&mut self, indent: usize) -> (bool, bool) {
        let (mut any, mut failed) = (false, false);
        while self.levels.last().is_some_and(|l| l.indent > indent) {
            let Some(level) = self.levels.pop() else { break };
            any = true;
            if level.plan.is_some_and(|plan| plan != level.seen) {
                let note = format!("{} of {} results came", level.seen, level.plan.unwrap_or_default());
                self.fail(&format!("{}: plan", level.name.unwrap_or_default()), vec![note]);
                failed = true;
            }
            failed |= level.failed;
        }
        (any, failed)
    }

    fn result(&mut self, indent: usize, rest: &str, ok: bool) {
        let (parent, child_failed) = self.close(indent);
        let (name, directive) = match rest.split_once(" # ") {
            Some((name, directive)) => (name, Some(directive)),
            None => (rest, None),
        };
        let name = name.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
        let name = name.strip_prefix('-').unwrap_or(name).trim();
        let skip = directive.and_then(|d| {
            let upper = d.to_ascii_uppercase();
            upper.starts_with("SKIP").then(|| d[4..].trim().to_string())
        });
        let outcome = match (ok, skip) {
            (true, Some(why)) => Outcome::Skipped(why),
            (true, None) => Outcome::Passed,
            (false, _) => Outcome::Failed,
        };
        let level = self.level(indent);
        level.seen += 1;
        level.failed |= !ok || child_failed;
        let notes = std::mem::take(&mut self.notes);
        // A suite's own line is no test, unless it says more than its tests did.
        if parent && (ok || child_failed) {
            return;
        }
        let path: Vec<&str> = self.levels.iter().filter_map(|l| l.name.as_deref()).chain([name]).collect();
        self.tests.push(Test { name: format!("{}{}", self.label, path.join("/")), outcome, notes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Parser {
        let mut p = Parser::default();
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
    fn flat() {
        let p = parse("KTAP version 1\n1..3\nok 1 a\n# why it failed\nnot ok 2 - b\nok 3 c # SKIP no GPU\n");
        assert_eq!(p.tests.len(), 3);
        assert_eq!(p.tests[0].outcome, Outcome::Passed);
        assert_eq!((&p.tests[1].outcome, p.tests[1].notes.join("")), (&Outcome::Failed, "why it failed".into()));
        assert_eq!(p.tests[2].outcome, Outcome::Skipped("no GPU".into()));
    }

    #[test]
    fn a_label_comes_before_every_name() {
        let mut p = Parser::new("iommu: ");
        p.line("1..2");
        p.line("ok 1 a");
        p.finish();
        assert_eq!(names(&p), [("iommu: a", true), ("iommu: the guest did not run to its end", false)]);
    }

    #[test]
    fn nested_counts_the_leaves_once() {
        let text = "KTAP version 1\n1..2\n# Subtest: smoke\n    KTAP version 1\n    1..2\n    ok 1 load\n    not ok 2 pin\nnot ok 1 smoke\n\
            # Subtest: calls\n    1..1\n    ok 1 order\nok 2 calls\n";
        let p = parse(text);
        assert_eq!(names(&p), [("smoke/load", true), ("smoke/pin", false), ("calls/order", true)]);
    }

    #[test]
    fn a_suite_that_fails_without_a_failed_test_is_a_failure() {
        let p = parse("1..1\n# Subtest: smoke\n    1..1\n    ok 1 load\nnot ok 1 smoke\n");
        assert_eq!(names(&p), [("smoke/load", true), ("smoke", false)]);
    }

    #[test]
    fn what_was_promised_must_come() {
        assert_eq!(names(&parse("1..2\nok 1 a\n")), [("a", true), ("the guest did not run to its end", false)]);
        assert_eq!(names(&parse("")), [("the guest did not run to its end", false)]);
        assert_eq!(names(&parse("ok 1 a\n")), [("a", true), ("the guest did not run to its end", false)]);
        let p = parse("1..1\n# Subtest: s\n    1..2\n    ok 1 a\nok 1 s\n");
        assert_eq!(names(&p), [("s/a", true), ("s: plan", false)]);
        // The machine stopped in the middle of a suite.
        let p = parse("1..1\n# Subtest: s\n    1..2\n    ok 1 a\n");
        assert!(p.tests.iter().filter(|t| t.outcome == Outcome::Failed).count() >= 1);
    }

    #[test]
    fn json_lines() {
        let p = parse("1..1\n# json demo {\"mb_s\": 12.5}\n# json demo {\"mb_s\": 13}\nok 1 a\n");
        assert_eq!(p.json["demo"].len(), 2);
        assert_eq!(p.json["demo"][0]["mb_s"], 12.5);
        assert_eq!(parse("1..0\n# json demo {broken\n").tests[0].outcome, Outcome::Failed);
    }

    #[test]
    fn bail_out() {
        assert_eq!(parse("1..0\nBail out! no nvidia.ko\n").tests[0].notes, ["no nvidia.ko"]);
    }
}
