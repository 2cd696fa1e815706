// SPDX-License-Identifier: GPL-2.0
//! Answers as text: at most 100 columns, colour only on a terminal.

mod doctor;
mod failures;
mod list;
mod selftest;
mod status;
mod topo;
mod watch;

pub use watch::watch_head;

use crate::answer::Answer;
use crate::check::{Check, Level};
use anstyle::{AnsiColor, Style};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::fmt::Write;

/// Columns of the text.
pub const WIDTH: usize = 100;

fn style(level: Level) -> Style {
    let colour = match level {
        Level::Ok => AnsiColor::Green,
        Level::Skip => AnsiColor::Cyan,
        Level::Warn => AnsiColor::Yellow,
        Level::Fail => AnsiColor::Red,
    };
    Style::new().bold().fg_color(Some(colour.into()))
}

/// `text`, with control characters of foreign origin taken out: a process chooses its own name.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `first` and then `text`, wrapped; later lines are indented as far as `first` is wide.
fn wrapped(out: &mut String, first: &str, text: &str, style: Style) {
    let text = tame(text);
    let indent = " ".repeat(first.chars().count());
    let options = textwrap::Options::new(WIDTH - indent.len()).word_splitter(textwrap::WordSplitter::NoHyphenation);
    for (n, line) in textwrap::wrap(&text, options).into_iter().enumerate() {
        let lead = if n == 0 { first } else { &indent };
        let _ = writeln!(out, "{lead}{style}{line}{style:#}");
    }
}

/// The text of an answer; the caller prints it to a stream that drops colour where there is no terminal.
pub fn text(answer: &Answer) -> String {
    let mut out = String::new();
    match answer {
        Answer::Status(status) => status::print(&mut out, status),
        Answer::Doctor(report) => doctor::print(&mut out, report),
        Answer::List(list) => list::print(&mut out, list),
        Answer::Watch(tick) => watch::print(&mut out, tick),
        Answer::Failures(failures) => failures::print(&mut out, failures),
        Answer::Topo(topo) => topo::print(&mut out, topo),
        Answer::Selftest(selftest) => selftest::print(&mut out, selftest),
    }
    out
}

/// What the program says on stderr when a command fails.
pub fn failed(error: &anyhow::Error) -> String {
    let mut out = String::new();
    wrapped(&mut out, "peermemctl: ", &format!("{error:#}"), Style::new());
    out
}

fn print_check(out: &mut String, check: &Check) {
    let style = style(check.level);
    let _ = write!(out, "  {style}{:<5}{style:#}", check.level.text());
    let mut body = String::new();
    wrapped(&mut body, "       ", &check.message, Style::new());
    out.push_str(body.trim_start());
    for evidence in &check.evidence {
        wrapped(out, "       seen: ", evidence, Style::new().dimmed());
    }
    if let Some(fix) = &check.fix {
        wrapped(out, "        fix: ", fix, Style::new().bold());
    }
}

fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    let width = u16::try_from(WIDTH).unwrap_or(u16::MAX);
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(width).set_header(head);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn print_table(out: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// The text of an answer, without colour; none of its lines is too long.
#[cfg(test)]
fn fits(answer: &Answer) -> String {
    let text = anstream::adapter::strip_str(&text(answer)).to_string();
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{line}");
    }
    text
}
