// SPDX-License-Identifier: GPL-2.0
//! Answers as text: as wide as the terminal, colour only there.

mod doctor;
mod explain;
mod failures;
mod list;
pub(crate) mod matrix;
mod page;
mod selftest;
mod status;
mod topo;
mod verify;
mod watch;

pub use page::{Detail, Page, WIDTH};
pub use watch::watch_head;

use crate::answer::Answer;

impl Page {
    /// Returns the text of an answer. The caller prints it to a stream that drops colour where
    /// there is no terminal.
    pub fn show(mut self, answer: &Answer) -> String {
        match answer {
            Answer::Status(status) => status::print(&mut self, status),
            Answer::Doctor(report) => doctor::print(&mut self, report),
            Answer::List(list) => list::print(&mut self, list),
            Answer::Watch(tick) => watch::print(&mut self, tick),
            Answer::Failures(failures) => failures::print(&mut self, failures),
            Answer::Topo(topo) => topo::print(&mut self, topo),
            Answer::Matrix(matrix) => matrix::print(&mut self, matrix),
            Answer::Selftest(selftest) => selftest::print(&mut self, selftest),
            Answer::Verify(verify) => verify::print(&mut self, verify),
            Answer::Explain(explanations) => explain::print(&mut self, explanations),
        }
        self.text
    }
}

/// Returns the text of an answer without colour, and fails if one of its lines is too long.
#[cfg(test)]
fn fits(answer: &Answer) -> String {
    for width in [page::NARROWEST, 80, page::WIDEST, WIDTH] {
        let text = Page::of_width(width, Detail::Normal).show(answer);
        for line in anstream::adapter::strip_str(&text).to_string().lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
    anstream::adapter::strip_str(&Page::of_width(WIDTH, Detail::Normal).show(answer)).to_string()
}
