// SPDX-License-Identifier: GPL-2.0

//! The part that speaks with ib_core: the clients that it knows, the parameters that an admin chooses,
//! and the files in `/proc`.
//!
//! The core holds two locks of its own when it calls. One is the stop lock of the pin layer: the umem
//! mapping lock, which the core's invalidate hook takes. It is held over `get_pages` and `dma_map`, for a
//! plain client also over `dma_unmap`, and never over `release`. The other is the peer mutex, for which
//! every registration of the machine waits. It is held over `acquire`, and the hook does not take it.

pub(crate) mod client;
pub(crate) mod parameters;
pub(crate) mod proc;
mod snapshot;
pub(crate) mod walk;
mod words;
