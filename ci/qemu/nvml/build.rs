// SPDX-License-Identifier: GPL-2.0

//! The name that programs look for at run time.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
