// SPDX-License-Identifier: GPL-2.0

//! The parts that the lab shares with its benchmark: they build what a machine is made of, boot it,
//! and read its results.

pub mod alarms;
pub mod arch;
pub mod artefacts;
pub mod axes;
pub mod cable;
pub mod ctx;
pub mod ktap;
pub mod machine;
pub mod nvidia_c;
pub mod page;
pub mod parts;
pub mod sh;
