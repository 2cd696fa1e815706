// SPDX-License-Identifier: GPL-2.0

//! Sets the soname that programs linked with `-lcuda` look for at run time.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
