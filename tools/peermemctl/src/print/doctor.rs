// SPDX-License-Identifier: GPL-2.0
//! `doctor` as text.

use super::{print_check, style, wrapped};
use crate::check::Level;
use crate::doctor::Report;
use crate::text;
use anstyle::Style;
use std::fmt::Write;

pub(super) fn print(out: &mut String, report: &Report) {
    for (n, section) in report.sections.iter().enumerate() {
        let bold = Style::new().bold();
        let _ = writeln!(out, "{bold}{:>2} {}{bold:#}", n + 1, section.title);
        for check in &section.checks {
            print_check(out, check);
        }
    }
    let count = |level: Level| {
        report.sections.iter().flat_map(|section| &section.checks).filter(|check| check.level == level).count()
    };
    let style = style(report.verdict);
    let _ = writeln!(
        out,
        "{style}{}{style:#}: {} failed, {}, {} fine, {} skipped",
        report.verdict.text(),
        count(Level::Fail),
        text::count(count(Level::Warn), "warning"),
        count(Level::Ok),
        count(Level::Skip)
    );
    if let Some(fix) = first_fix(report) {
        wrapped(out, "Begin with: ", fix, Style::new().bold());
    }
}

/// What fixes the first failure, or without one the first warning: what comes later often follows from it. What the consumers
/// find always follows from the rest.
fn first_fix(report: &Report) -> Option<&str> {
    let checks = || report.sections.iter().flat_map(|section| &section.checks);
    let first = |level| checks().find(|check| check.level == level && !check.id.starts_with("consumers."));
    first(Level::Fail).or_else(|| first(Level::Warn))?.fix.as_deref()
}
