// SPDX-License-Identifier: GPL-2.0
//! What peermemctl knows; the program itself is main.rs.

pub mod answer;
pub mod check;
pub mod cli;
pub mod cuda;
pub mod doctor;
pub mod kernel;
pub mod machine;
pub mod modprobe;
pub mod module_file;
pub mod nvidia;
pub mod pci;
pub mod peermem;
pub mod print;
pub mod rdma;
pub mod root;
pub mod selftest;
pub mod text;
pub mod verbs;
