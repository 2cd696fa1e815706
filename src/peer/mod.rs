// SPDX-License-Identifier: GPL-2.0

//! What speaks with ib_core: which clients it knows, what an admin chooses, and the files in `/proc`.

pub(crate) mod client;
pub(crate) mod parameters;
pub(crate) mod proc;
mod snapshot;
pub(crate) mod walk;
mod words;
