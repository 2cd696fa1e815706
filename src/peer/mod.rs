// SPDX-License-Identifier: GPL-2.0

//! What speaks with ib_core: which clients it knows, what an admin chooses, and what `/proc` shows of
//! that.

pub(crate) mod client;
pub(crate) mod parameters;
mod snapshot;
pub(crate) mod walk;
