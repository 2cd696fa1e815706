// SPDX-License-Identifier: GPL-2.0
//! The one answer of `status`, `doctor`, `check` and `metrics`.

use crate::check::Level;
use schemars::JsonSchema;
use serde::Serialize;

/// Whether programs can use GPUDirect RDMA here: at least one pair of a GPU and a NIC has a way that
/// the programs which were asked about take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Usable,
    /// It works, and something is wrong or not for long.
    UsableWithWarnings,
    NotUsable,
    /// Something that decides could not be read, or was not understood.
    Unknown,
}

impl Outcome {
    /// Returns what the program exits with.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usable => 0,
            Self::UsableWithWarnings => 1,
            Self::NotUsable => 2,
            Self::Unknown => 3,
        }
    }

    /// Returns what a custom plugin of Node Problem Detector exits with: 0 for usable, 1 for not
    /// usable, 2 for unknown. A warning is no reason to take a node away.
    pub fn plugin_code(self) -> u8 {
        match self {
            Self::Usable | Self::UsableWithWarnings => 0,
            Self::NotUsable => 1,
            Self::Unknown => 2,
        }
    }

    /// Returns the level of a check that says the same.
    pub fn level(self) -> Level {
        match self {
            Self::Usable => Level::Ok,
            Self::UsableWithWarnings => Level::Warn,
            Self::NotUsable => Level::Fail,
            Self::Unknown => Level::Skip,
        }
    }

    /// Returns whether it is usable; `None` if that is unknown.
    pub fn usable(self) -> Option<bool> {
        match self {
            Self::Usable | Self::UsableWithWarnings => Some(true),
            Self::NotUsable => Some(false),
            Self::Unknown => None,
        }
    }

    /// Returns the answer in a word or two.
    pub fn text(self) -> &'static str {
        match self {
            Self::Usable => "USABLE",
            Self::UsableWithWarnings => "USABLE WITH WARNINGS",
            Self::NotUsable => "NOT USABLE",
            Self::Unknown => "UNKNOWN",
        }
    }
}
