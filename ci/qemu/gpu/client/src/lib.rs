// SPDX-License-Identifier: GPL-2.0

//! The lab's GPU from user space.
//!
//! [`Client`] speaks to `/dev/nvidiactl`: allocate, copy and free video memory. [`Lab`] reads and
//! steers the stand-in through debugfs: accounting, faults, hold points, allocation log. [`Gdr`] is
//! the second in-kernel user of `nvidia_p2p_*`. Names, values and formats: `../lab.c`.
#![warn(missing_docs)]

mod client;
mod error;
mod gdr;
mod lab;
pub mod parse;
mod sys;

pub use client::{Client, Info, Layout, Memory, Piece, Request, Reservation};
pub use error::{Error, Result};
pub use gdr::{Gdr, Kind, Pci, Pin};
pub use lab::{Hold, Lab};
pub use parse::{Accounting, Allocation, BarPage, Chunk, HoldState, PinLine, State};

/// Bytes of one GPU page: what a pin counts in.
pub const GPU_PAGE: u64 = 64 << 10;
/// Bytes of one block of video memory: what an allocation is rounded up to, and a GPU address is
/// aligned to.
pub const BACKING: u64 = 2 << 20;
