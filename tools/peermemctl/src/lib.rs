// SPDX-License-Identifier: GPL-2.0
//! What peermemctl knows; the program itself is main.rs.

pub mod answer;
pub mod batch;
pub mod catalogue;
pub mod check;
pub mod cli;
pub mod complete;
pub mod consumer;
pub mod cuda;
pub mod doctor;
pub mod environment;
pub mod facts;
pub mod giver;
pub mod kernel;
pub mod launcher;
pub mod log_words;
pub mod machine;
pub mod manual;
pub mod metrics;
pub mod modprobe;
pub mod module_file;
pub mod nvidia;
pub mod outcome;
pub mod pci;
pub mod peermem;
pub mod picture;
pub mod print;
pub mod rdma;
pub mod recorded;
pub mod rights;
pub mod root;
pub mod runtime;
pub mod select;
pub mod selftest;
pub mod setting;
pub mod speed;
pub mod text;
pub mod topology_file;
pub mod trial;
pub mod ucx_conf;
pub mod unload;
pub mod variables;
pub mod verbs;
pub mod verify;
pub mod way;

/// The version of this program, and of the module that it comes with.
pub const VERSION: &str = include_str!("../../../VERSION").trim_ascii();
