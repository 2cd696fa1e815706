// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
//! Sets the name that a library must have in a folder of libraries.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumr-preload.so");
}
