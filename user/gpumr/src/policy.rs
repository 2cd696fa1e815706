// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Decides whether peer memory or dma-buf is tried first, and why.

use crate::error::Error;
pub use crate::way::Way;

/// The ways that may be tried, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    ways: &'static [Way],
    reason: &'static str,
    /// Says whether nvidia-peermem is known to be loaded.
    loaded: bool,
}

/// This folder exists while nvidia-peermem is loaded.
const MODULE: &str = "/sys/module/nvidia_peermem";

impl Policy {
    /// Tries peer memory first if its module is loaded, because that needs one call and no
    /// descriptor. Tries the other way if the first fails.
    pub fn automatic() -> Self {
        Self::by_module(std::path::Path::new(MODULE).exists())
    }

    /// Does the same, given whether the module is loaded.
    pub fn by_module(loaded: bool) -> Self {
        if loaded {
            let reason = "nvidia-peermem is loaded: peer memory is tried first, then dma-buf";
            Self { ways: &[Way::PeerMemory, Way::DmaBuf], reason, loaded }
        } else {
            let reason = "nvidia-peermem is not loaded: dma-buf is tried first, then peer memory";
            Self { ways: &[Way::DmaBuf, Way::PeerMemory], reason, loaded }
        }
    }

    /// Tries one way and no other.
    pub fn only(way: Way) -> Self {
        let ways: &[Way] = match way {
            Way::PeerMemory => &[Way::PeerMemory],
            Way::DmaBuf => &[Way::DmaBuf],
        };
        Self { ways, reason: "the program or its user chose it", loaded: false }
    }

    /// Parses the value of `GPUMR_WAY`: `peer-memory`, `dma-buf` or `auto`. Fails for another word.
    pub fn parse(word: &str) -> Result<Self, Error> {
        match word {
            "auto" => Ok(Self::automatic()),
            "peer-memory" => Ok(Self::only(Way::PeerMemory)),
            "dma-buf" => Ok(Self::only(Way::DmaBuf)),
            other => {
                let why = format!("{other:?} is no way to register: say peer-memory, dma-buf or auto");
                Err(Error::Argument(why.into()))
            }
        }
    }

    /// Returns the reason for the order.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }

    pub(crate) fn ways(&self) -> &'static [Way] {
        self.ways
    }
}
