// SPDX-License-Identifier: GPL-2.0
//! One thing that was looked at, and what came of it.

use crate::catalogue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
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

    /// Returns the exit code of the program if this is the worst level there is.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok | Self::Skip => 0,
            Self::Warn => 1,
            Self::Fail => 2,
        }
    }
}

/// A sort of thing of which a machine has several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub enum Kind {
    #[serde(rename = "GPU")]
    Gpu,
    #[serde(rename = "NIC")]
    Nic,
}

impl Kind {
    pub fn text(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Nic => "NIC",
        }
    }
}

/// The device that a check is about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Subject {
    pub kind: Kind,
    /// PCI address of a GPU, name of a NIC.
    pub name: String,
    /// What is said of several at once, behind "8 GPUs".
    #[serde(skip)]
    pub many: String,
}

/// One check of `doctor`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// Stable name, such as `module.file`; `peermemctl explain` tells of each.
    pub id: &'static str,
    pub level: Level,
    /// The device that it is about, if it is about one.
    pub subject: Option<Subject>,
    /// What was found, in one sentence.
    pub message: String,
    /// Where that was read: file, value.
    pub evidence: Vec<String>,
    /// The one command or change that fixes it.
    pub fix: Option<String>,
    /// The id of another failure: as long as that lasts, this one does.
    pub follows: Option<&'static str>,
    /// The message in a few words.
    #[serde(skip)]
    pub brief: Option<String>,
}

impl Check {
    fn new(id: &'static str, level: Level, message: impl Into<String>) -> Self {
        debug_assert!(catalogue::CHECKS.iter().any(|entry| entry.id == id), "explain knows no {id}");
        let message = message.into();
        Self { id, level, subject: None, message, evidence: Vec::new(), fix: None, follows: None, brief: None }
    }

    pub fn ok(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, Level::Ok, message)
    }

    pub fn skip(id: &'static str, message: impl Into<String>) -> Self {
        Self::new(id, Level::Skip, message)
    }

    /// Returns a warning with what fixes it.
    pub fn warn(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..Self::new(id, Level::Warn, message) }
    }

    /// Returns a fault with what fixes it.
    pub fn fail(id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..Self::new(id, Level::Fail, message) }
    }

    /// Returns a warning if something works all the same, and a fault if nothing does.
    pub fn fail_unless(works: bool, id: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        match works {
            true => Self::warn(id, message, fix),
            false => Self::fail(id, message, fix),
        }
    }

    /// Adds what was read.
    pub fn seen(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// Says which device the check is about, and what is said when several devices are alike:
    /// `many` follows "8 GPUs".
    pub fn about(mut self, kind: Kind, name: impl Into<String>, many: impl Into<String>) -> Self {
        self.subject = Some(Subject { kind, name: name.into(), many: many.into() });
        self
    }

    /// Adds the message in a few words.
    pub fn brief(mut self, words: impl Into<String>) -> Self {
        self.brief = Some(words.into());
        self
    }

    /// Returns whether something is wrong.
    pub fn is_finding(&self) -> bool {
        self.level >= Level::Warn
    }

    /// Returns what was found, in few words if the check has such.
    pub fn headline(&self) -> &str {
        self.brief.as_deref().unwrap_or(&self.message)
    }
}

/// The checks of one section.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Section {
    pub title: &'static str,
    pub checks: Vec<Check>,
}
