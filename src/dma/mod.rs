// SPDX-License-Identifier: GPL-2.0

//! DMA mappings, and the devices that they are for. Knows nothing of ib_core.

pub(crate) mod device;
pub(crate) mod map;
