// SPDX-License-Identifier: GPL-2.0
//! A page of text, as wide as the terminal, and what all answers have on it.

use crate::check::{Check, Level};
use anstyle::{AnsiColor, Style};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::fmt::Write;
use terminal_size::{terminal_size, Width};

/// The number of columns if there is no terminal.
pub const WIDTH: usize = 100;
/// The largest number of columns: longer lines of prose are hard to read.
pub(super) const WIDEST: usize = 120;
/// The smallest number of columns: no table fits in fewer.
pub(super) const NARROWEST: usize = 60;

/// The amount of detail in the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Detail {
    /// Problems only.
    Quiet,
    #[default]
    Normal,
    /// Everything.
    Verbose,
}

/// Text of `width` columns.
pub struct Page {
    pub(super) text: String,
    pub(super) width: usize,
    pub(super) detail: Detail,
}

impl Page {
    /// Returns an empty page for stdout.
    pub fn new(detail: Detail) -> Self {
        let terminal = terminal_size().map(|(Width(columns), _)| usize::from(columns));
        // As ps and ls do: the environment may say how wide piped text shall be.
        let told = || std::env::var("COLUMNS").ok()?.parse().ok();
        let width = terminal.or_else(told).map_or(WIDTH, |columns| columns.clamp(NARROWEST, WIDEST));
        Self::of_width(width, detail)
    }

    pub fn of_width(width: usize, detail: Detail) -> Self {
        Self { text: String::new(), width, detail }
    }

    /// Returns what the program says on stderr when a command fails.
    pub fn failed(mut self, error: &anyhow::Error) -> String {
        self.wrapped("peermemctl: ", &format!("{error:#}"), Style::new());
        self.text
    }

    /// Adds a line as it is.
    pub(super) fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Adds `first` and then `text`, wrapped; later lines are indented as far as `first` is wide.
    pub(super) fn wrapped(&mut self, first: &str, text: &str, style: Style) {
        self.behind(first, Style::new(), text, style);
    }

    /// Adds `first` and then `text` as `wrapped` does, with a style for `first`, too.
    pub(super) fn behind(&mut self, first: &str, first_style: Style, text: &str, style: Style) {
        let text = tame(text);
        let columns = first.chars().count();
        let options = textwrap::Options::new(self.width - columns).word_splitter(textwrap::WordSplitter::NoHyphenation);
        for (n, line) in textwrap::wrap(&text, options).into_iter().enumerate() {
            let _ = match n {
                0 => write!(self.text, "{first_style}{first}{first_style:#}"),
                _ => write!(self.text, "{:columns$}", ""),
            };
            let _ = writeln!(self.text, "{style}{line}{style:#}");
        }
    }

    /// Adds one check: its message, and then what was seen and what to do, unless all is well and
    /// nobody wants everything.
    pub(super) fn check(&mut self, check: &Check, message: &str) {
        let first = format!("  {:<5}", check.level.text());
        self.behind(&first, style(check.level), &format!("[{}] {message}", check.id), Style::new());
        let in_full = self.detail == Detail::Verbose;
        if let Some(cause) = check.follows {
            self.wrapped("       follows from: ", cause, Style::new());
            // The cause's own lines tell what helps.
            if !in_full {
                return;
            }
        }
        if check.is_finding() || in_full {
            for evidence in &check.evidence {
                self.wrapped("       seen: ", evidence, Style::new().dimmed());
            }
        }
        if let Some(fix) = &check.fix {
            self.wrapped("       fix: ", fix, Style::new().bold());
        }
    }

    pub(super) fn table(&mut self, table: &mut Table) {
        table.set_width(u16::try_from(self.width).unwrap_or(u16::MAX));
        for line in table.lines() {
            let line = line.trim_end().to_owned();
            self.line(&line);
        }
    }
}

/// Names the NICs that were left out.
pub(super) fn without_a_link(page: &mut Page, nics: &[String]) {
    if !nics.is_empty() {
        page.wrapped("no link: ", &format!("{} (not tried: no port is active)", nics.join(", ")), Style::new());
    }
}

pub(super) fn style(level: Level) -> Style {
    let colour = match level {
        Level::Ok => AnsiColor::Green,
        Level::Skip => AnsiColor::Cyan,
        Level::Warn => AnsiColor::Yellow,
        Level::Fail => AnsiColor::Red,
    };
    Style::new().bold().fg_color(Some(colour.into()))
}

/// Replaces control characters in `text`, which may come from elsewhere: a process chooses its own
/// name.
pub(super) fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(super) fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(head);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
