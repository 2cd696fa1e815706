// SPDX-License-Identifier: GPL-2.0

//! Everything that is C or speaks to C.

pub(crate) mod raw;
pub(crate) mod shim;
