// SPDX-License-Identifier: GPL-2.0

//! DMA mappings, and the devices that they are for.

pub(crate) mod device;
pub(crate) mod map;
