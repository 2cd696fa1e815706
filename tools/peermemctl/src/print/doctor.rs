// SPDX-License-Identifier: GPL-2.0
//! `doctor` as text: checks that say the same of several devices are one line.

use super::page::{style, Detail, Page};
use crate::check::{Check, Level};
use crate::consumer::Verdict;
use crate::doctor::Report;
use crate::text;
use anstyle::Style;

pub(super) fn print(page: &mut Page, report: &Report) {
    for (n, section) in report.sections.iter().enumerate() {
        let shown = section.checks.iter().filter(|check| page.detail > Detail::Quiet || check.is_finding());
        let folded = fold(shown, page.detail);
        if folded.is_empty() {
            continue;
        }
        let bold = Style::new().bold();
        page.line(&format!("{bold}{:>2} {}{bold:#}", n + 1, section.title));
        for folded in folded {
            page.check(&folded.check, &folded.check.message);
        }
    }
    if page.detail == Detail::Verbose {
        pairs(page, report);
    }
    let count = |level: Level| report.checks().filter(|check| check.level == level).count();
    let style = style(report.verdict);
    let counts = format!(
        "{}: {} failed, {}, {} fine, {} skipped",
        report.outcome.text(),
        count(Level::Fail),
        text::count(count(Level::Warn), "warning"),
        count(Level::Ok),
        count(Level::Skip)
    );
    if let Some(why) = &report.unknown {
        page.wrapped("Unknown, because: ", why, Style::new());
    }
    if let Some(why) = &report.refused {
        page.wrapped("Not usable, because: ", why, Style::new());
    }
    page.wrapped("", &counts, style);
    if let Some(step) = &report.begin_with {
        page.wrapped("Begin with: ", &step.fix, Style::new().bold());
    }
}

/// Prints what applications do with pairs of GPUs and NICs. Pairs that they treat alike share one
/// line.
fn pairs(page: &mut Page, report: &Report) {
    let mut alike: Vec<(&Verdict, Vec<String>)> = Vec::new();
    for verdict in &report.pairs {
        let key = |v: &Verdict| (v.consumer, v.direct_by, v.distance, v.because.clone());
        let pair = format!("{}-{}", verdict.gpu, verdict.nic);
        match alike.iter_mut().find(|(other, _)| key(other) == key(verdict)) {
            Some((_, pairs)) => pairs.push(pair),
            None => alike.push((verdict, vec![pair])),
        }
    }
    if !alike.is_empty() {
        let bold = Style::new().bold();
        page.line(&format!("{bold}   Applications, each GPU and NIC{bold:#}"));
    }
    for (verdict, pairs) in alike {
        let said = match (verdict.direct_by, verdict.direct) {
            (Some(way), _) => format!("yes, by {}", way.text()),
            (None, None) => format!("unknown, {}", verdict.because),
            (None, Some(_)) => format!("no, because {}", verdict.because),
        };
        let set = verdict.set.as_ref().map_or(String::new(), |set| format!("; {set}"));
        let first = format!("  {} at {}: ", verdict.consumer, verdict.distance.text());
        page.wrapped(&first, &format!("{said}{set}: {}", pairs.join(", ")), Style::new());
    }
}

/// One or several checks, as one.
pub(super) struct Folded {
    pub check: Check,
    names: Vec<String>,
    fixes: Vec<String>,
}

/// Returns the checks in order. Those that say the same of several devices become one.
pub(super) fn fold<'a>(checks: impl Iterator<Item = &'a Check>, detail: Detail) -> Vec<Folded> {
    let mut all: Vec<Folded> = Vec::new();
    for check in checks {
        let same = |folded: &&mut Folded| {
            let (a, b) = (&folded.check, check);
            let subjects = a.subject.as_ref().zip(b.subject.as_ref());
            (a.id, a.level) == (b.id, b.level) && subjects.is_some_and(|(a, b)| a.kind == b.kind && a.many == b.many)
        };
        let name = check.subject.iter().map(|subject| subject.name.clone());
        match all.iter_mut().find(same).filter(|_| detail < Detail::Verbose) {
            Some(folded) => {
                folded.names.extend(name);
                folded.fixes.extend(check.fix.clone().filter(|fix| !folded.fixes.contains(fix)));
            }
            None => all.push(Folded {
                names: name.collect(),
                fixes: check.fix.iter().cloned().collect(),
                check: check.clone(),
            }),
        }
    }
    for folded in all.iter_mut().filter(|folded| folded.names.len() > 1) {
        folded.say_all();
    }
    all
}

impl Folded {
    /// Replaces what is said of the first device by what is said of all.
    fn say_all(&mut self) {
        let Some(subject) = &self.check.subject else { return };
        let several = text::count(self.names.len(), subject.kind.text());
        let message = match subject.many.contains("{}") {
            true => subject.many.replace("{}", &several),
            false => format!("{several} {}", subject.many),
        };
        self.check.message = match self.check.is_finding() {
            true => format!("{message}: {}", self.names.join(", ")),
            false => message,
        };
        self.check.evidence.truncate(1);
        if let (Some(fix), true) = (self.check.fix.as_mut(), self.fixes.len() > 1) {
            fix.push_str(&format!("; and so for the others (doctor -v names each of the {})", self.fixes.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Kind;

    #[test]
    fn what_is_said_of_several_is_one_line() {
        let ok = |gpu: &str, many: &str| Check::ok("gpus.bar1", format!("GPU {gpu}: fine")).about(Kind::Gpu, gpu, many);
        let checks =
            [ok("a", "have room"), ok("b", "have room"), ok("c", "have more"), Check::ok("gpus.bar1", "other")];
        let said = |detail| fold(checks.iter(), detail).into_iter().map(|f| f.check.message).collect::<Vec<_>>();
        assert_eq!(said(Detail::Normal), ["2 GPUs have room", "GPU c: fine", "other"]);
        assert_eq!(said(Detail::Verbose).len(), 4);
    }

    #[test]
    fn devices_of_a_finding_are_named_and_no_fix_is_lost() {
        let warn = |nic: &str| {
            Check::warn("fabric.port", format!("{nic} is down"), format!("ip link set {nic} up")).about(
                Kind::Nic,
                nic,
                "are down",
            )
        };
        let checks = [warn("a"), warn("b")];
        let folded = fold(checks.iter(), Detail::Normal);
        assert_eq!(folded[0].check.message, "2 NICs are down: a, b");
        let fix = folded[0].check.fix.as_deref().unwrap();
        assert!(fix.starts_with("ip link set a up; and so for the others") && fix.contains("doctor -v"), "{fix}");
    }
}
