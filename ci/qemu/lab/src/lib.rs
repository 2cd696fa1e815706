// SPDX-License-Identifier: GPL-2.0

//! What the lab and its benchmark share: building what a machine is made of, booting it, hearing
//! what it says.

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
pub mod sh;
