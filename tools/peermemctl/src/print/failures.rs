// SPDX-License-Identifier: GPL-2.0
//! `failures` as text.

use super::page::{tame, Page};
use crate::answer::Failures;
use crate::text;
use anstyle::Style;

pub(super) fn print(page: &mut Page, failures: &Failures) {
    if failures.failures.is_empty() {
        page.line("No registration of GPU memory was refused.");
        return;
    }
    for row in &failures.failures {
        let who = format!("process {} ({}), {} at {:#x}", row.pid, tame(&row.comm), text::bytes(row.length), row.va);
        page.wrapped(
            &format!("{}  ", text::time(row.time)),
            &format!("{who}: {}", text::errno(row.errno)),
            Style::new().bold(),
        );
        let found = row.found.as_ref().map_or(String::new(), |found| format!(", found {}", tame(found)));
        page.wrapped("    ", &format!("{} [{}{found}, client {}]", row.text, row.reason, row.client), Style::new());
    }
}
