// SPDX-License-Identifier: GPL-2.0

//! One registration of pinned GPU memory: how it is pinned, mapped and put, and what is kept of it.

pub(crate) mod orphan;
mod pieces;
pub(crate) mod pinning;
pub(crate) mod registration;
pub(crate) mod registry;
pub(crate) mod state;
mod steps;
