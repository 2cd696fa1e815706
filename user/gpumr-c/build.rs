// SPDX-License-Identifier: GPL-2.0
//! The name by which programs find the library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpumr.so.0");
}
