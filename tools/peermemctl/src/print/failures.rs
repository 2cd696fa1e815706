// SPDX-License-Identifier: GPL-2.0
//! `failures` as text.

use super::{tame, wrapped};
use crate::answer::Failures;
use crate::text;
use anstyle::Style;
use std::fmt::Write;

pub(super) fn print(out: &mut String, failures: &Failures) {
    if failures.failures.is_empty() {
        let _ = writeln!(out, "No registration of GPU memory was refused.");
        return;
    }
    for row in &failures.failures {
        let who = format!("process {} ({}), {} at {:#x}", row.pid, tame(&row.comm), text::bytes(row.length), row.va);
        wrapped(
            out,
            &format!("{}  ", text::time(row.time)),
            &format!("{who}: {}", text::errno(row.errno)),
            Style::new().bold(),
        );
        wrapped(out, "    ", &format!("{} [{}, client {}]", row.text, row.reason, row.client), Style::new());
    }
}
