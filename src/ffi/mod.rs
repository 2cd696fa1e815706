// SPDX-License-Identifier: GPL-2.0

//! Everything that is C or speaks to C: the C files with their bindings, and safe functions over
//! what needs no more than a call. `core.c` and `proc.c` are nvidia-peermem's alone, and only `peer/`
//! uses them; the others belong to the pin layer, and the sample driver has them, too.

pub(crate) mod raw;
pub(crate) mod shim;
