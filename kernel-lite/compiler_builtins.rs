// SPDX-License-Identifier: GPL-2.0

//! rustc wants a crate of this name in every program. This one is empty: what `core` would call in
//! it (arithmetic of 128-bit integers and of floats) is used nowhere in the module, and would be an
//! undefined symbol, so modpost would say.

#![allow(internal_features)]
#![feature(compiler_builtins)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
