// SPDX-License-Identifier: GPL-2.0

//! Uses the lab's GPU from user space.
//!
//! [`Client`] speaks to `/dev/nvidiactl`: it allocates, copies and frees video memory. [`Lab`]
//! reads and steers the stand-in through debugfs: accounting, faults, hold points, allocation log.
//! [`Gdr`] is the second in-kernel user of `nvidia_p2p_*`. The names, values and formats are
//! defined in `../debugfs.c`, `../lab.c`, `../log.c` and `../rm.c`.
#![warn(missing_docs)]

mod client;
mod error;
mod gdr;
mod lab;
pub mod parse;
mod sys;

pub use client::{Client, Info, Layout, Memory, Piece, Request, Reservation, BACKING};
pub use error::{Error, Result};
pub use gdr::{Gdr, Kind, Pci, Pin};
pub use lab::{Hold, Lab};
pub use parse::{Accounting, Allocation, BarPage, Chunk, HoldState, PinLine, State};

/// The size of a GPU page in bytes. A pin consists of such pages.
pub const GPU_PAGE: u64 = 64 << 10;
