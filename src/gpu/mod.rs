// SPDX-License-Identifier: GPL-2.0

//! Memory of a GPU: its pins, their page tables, and which devices can reach it. Knows nothing of ib_core.

pub(crate) mod page_table;
pub(crate) mod pin;
pub(crate) mod topology;
