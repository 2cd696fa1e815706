// SPDX-License-Identifier: GPL-2.0
//! One thing that was looked at, and what came of it.

use schemars::JsonSchema;
use serde::Serialize;

/// How it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Could not be looked at, or does not apply.
    Skip,
    /// Works, but not well, or not for long.
    Warn,
    /// Does not work.
    Fail,
}

impl Level {
    pub fn text(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Skip => "SKIP",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }

    /// What the program exits with if this is the worst there is.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok | Self::Skip => 0,
            Self::Warn => 1,
            Self::Fail => 2,
        }
    }
}

/// One check of `doctor`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// Stable name, such as `module.file`; docs/checks.md lists all.
    pub id: &'static str,
    pub level: Level,
    /// What was found, in one sentence.
    pub message: String,
    /// Where that was read: file, value.
    pub evidence: Vec<String>,
    /// The one command or change that fixes it.
    pub fix: Option<String>,
}

impl Check {
    fn new(id: &'static str, level: Level, message: impl Into<String>) -> Self {
        Self { id, level, message: message.into(), evidence: Vec::new(), fix: None }
    }

    pub fn ok(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, Level::Ok, message)
    }

    pub fn skip(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, Level::Skip, message)
    }

    /// A warning, and what fixes it.
    pub fn warn(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..Self::new(id, Level::Warn, message) }
    }

    /// A fault, and what fixes it.
    pub fn fail(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..Self::new(id, Level::Fail, message) }
    }

    /// Adds what was read.
    pub fn seen(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }
}

/// The checks of one section.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Section {
    pub title: &'static str,
    pub checks: Vec<Check>,
}

impl Section {
    /// The worst of its checks.
    pub fn level(&self) -> Level {
        self.checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok)
    }
}
