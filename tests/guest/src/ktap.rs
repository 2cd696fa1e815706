// SPDX-License-Identifier: GPL-2.0
//! Writes KTAP version 1 to the second serial line. There are no subtests: a test's name contains
//! its suite. `# json` lines carry results.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::sys::termios;
use serde_json::Value;

/// The outcome of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
    Skip(String),
}

/// The stream to the host.
pub struct Ktap {
    out: File,
    results: usize,
}

impl Ktap {
    /// Opens the line. A terminal is made raw, so that the host gets plain line feeds.
    pub fn open(path: &str) -> io::Result<Self> {
        let out = OpenOptions::new().write(true).open(path)?;
        if let Ok(mut t) = termios::tcgetattr(out.as_fd()) {
            termios::cfmakeraw(&mut t);
            termios::tcsetattr(out.as_fd(), termios::SetArg::TCSANOW, &t)?;
        }
        Ok(Self { out, results: 0 })
    }

    fn line(&mut self, text: &str) {
        // A line that cannot be written cannot be reported either. The host sees that the plan is
        // not fulfilled.
        let _ = writeln!(self.out, "{text}");
    }

    pub fn start(&mut self, tests: usize) {
        self.line("KTAP version 1");
        self.line(&format!("1..{tests}"));
    }

    pub fn result(&mut self, name: &str, verdict: &Verdict) {
        self.results += 1;
        let number = self.results;
        let text = match verdict {
            Verdict::Pass => format!("ok {number} {name}"),
            Verdict::Fail => format!("not ok {number} {name}"),
            Verdict::Skip(why) => format!("ok {number} {name} # SKIP {why}"),
        };
        self.line(&text);
    }

    pub fn note(&mut self, text: &str) {
        for l in text.lines() {
            self.line(&format!("# {l}"));
        }
    }

    pub fn json(&mut self, name: &str, value: &Value) {
        self.line(&format!("# json {name} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_says_all_of_it() {
        let path = std::env::temp_dir().join(format!("ktap.{}", std::process::id()));
        File::create(&path).unwrap();
        let mut k = Ktap::open(path.to_str().unwrap()).unwrap();
        k.start(2);
        k.note("two\nlines");
        k.json("row", &serde_json::json!({"a": 1}));
        k.result("smoke/one", &Verdict::Fail);
        k.result("smoke/two", &Verdict::Skip("no device".into()));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            text,
            "KTAP version 1\n1..2\n# two\n# lines\n# json row {\"a\":1}\nnot ok 1 smoke/one\n\
             ok 2 smoke/two # SKIP no device\n"
        );
    }
}
