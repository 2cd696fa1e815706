// SPDX-License-Identifier: GPL-2.0

//! Runs the models against the shipped sources; see `model::cli`.

model::main!(nvidia_peermem);
