// SPDX-License-Identifier: GPL-2.0

//! rustc wants a crate of this name in every program. This one is empty: the module uses nothing
//! for which `core` would call it (arithmetic of 128-bit integers and of floats). Such a use would
//! be an undefined symbol, which modpost would report.

#![allow(internal_features)]
#![feature(compiler_builtins)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
