// SPDX-License-Identifier: GPL-2.0

//! Everything that is C or speaks to C: `shim.c`, `bar.c`, `callback.c` and `trace.c` with their
//! bindings, and safe functions over what needs no more than a call.

pub(crate) mod raw;
pub(crate) mod shim;
