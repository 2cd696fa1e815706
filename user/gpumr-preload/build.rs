// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! The name that a library in a folder of libraries must have.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumr-preload.so");
}
