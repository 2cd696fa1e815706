// SPDX-License-Identifier: GPL-2.0
//! `explain` as text.

use super::page::Page;
use crate::answer::Explanations;
use anstyle::Style;

pub(super) fn print(page: &mut Page, explanations: &Explanations) {
    let bold = Style::new().bold();
    let widest = explanations.checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    for check in &explanations.checks {
        // All of them: a line each.
        if explanations.checks.len() > 1 {
            page.behind(&format!("{:<widest$}  ", check.id), bold, check.looks, Style::new());
            continue;
        }
        page.behind(&format!("{}: ", check.id), bold, check.looks, Style::new());
        page.wrapped("  ", check.why, Style::new());
        if let Some(source) = check.source {
            page.wrapped("  rule: ", source, Style::new().dimmed());
        }
    }
}
