// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Peer memory or dma-buf: which is tried first, and why.

/// How memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// Plain `ibv_reg_mr()`, served by nvidia-peermem.
    PeerMemory,
    /// `ibv_reg_dmabuf_mr()`.
    DmaBuf,
}

/// Which ways may be tried, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    ways: &'static [Way],
    reason: &'static str,
}

/// There while nvidia-peermem is loaded.
const MODULE: &str = "/sys/module/nvidia_peermem";

impl Policy {
    /// Peer memory first where its module is loaded, which needs one call and no descriptor; the
    /// other way upon failure.
    pub fn automatic() -> Self {
        Self::by_module(std::path::Path::new(MODULE).exists())
    }

    /// The same, told whether the module is loaded.
    pub fn by_module(loaded: bool) -> Self {
        if loaded {
            let reason = "nvidia-peermem is loaded: peer memory first, then dma-buf";
            Self { ways: &[Way::PeerMemory, Way::DmaBuf], reason }
        } else {
            let reason = "nvidia-peermem is not loaded: dma-buf first, then peer memory";
            Self { ways: &[Way::DmaBuf, Way::PeerMemory], reason }
        }
    }

    /// One way, and no other.
    pub fn only(way: Way) -> Self {
        let ways: &[Way] = match way {
            Way::PeerMemory => &[Way::PeerMemory],
            Way::DmaBuf => &[Way::DmaBuf],
        };
        Self { ways, reason: "the program or its user chose it" }
    }

    /// What `GPUMR_WAY` says: `peer-memory`, `dma-buf` or `auto`. Errors: another word.
    pub fn parse(word: &str) -> Result<Self, crate::Error> {
        match word {
            "auto" => Ok(Self::automatic()),
            "peer-memory" => Ok(Self::only(Way::PeerMemory)),
            "dma-buf" => Ok(Self::only(Way::DmaBuf)),
            other => {
                let why = format!("{other:?} is no way to register: say peer-memory, dma-buf or auto");
                Err(crate::Error::Argument(why.into()))
            }
        }
    }

    /// Why.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub(crate) fn ways(&self) -> &'static [Way] {
        self.ways
    }
}
